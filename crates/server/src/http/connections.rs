//! Connections of the HTTP door: so many at a time, and none for longer than it needs.
//!
//! Whoever is slow, on purpose or not, costs one connection of a bounded number for a bounded time: headers have to come
//! within a time, a request has to be sent and answered within another, and what a connection buffers is bounded. More
//! connections wait in the socket's queue until one is free.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::error::HttpError;

/// Connections at a time.
pub(crate) const CONNECTIONS_MAX: usize = 256;

/// What one connection, and all of them, may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at a time.
    pub(super) connections: usize,
    /// From the first byte that could be one of a request until all of its headers are there. Also how long a connection
    /// may be silent.
    pub(super) headers: Duration,
    /// From a request's headers to its answer, its body included.
    pub(super) request: Duration,
    /// How long a connection may last before it is asked to end, and then again before it is cut: who does not read its
    /// answer is not waited for.
    pub(super) life: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: CONNECTIONS_MAX,
            headers: Duration::from_secs(10),
            request: Duration::from_secs(40),
            life: Duration::from_secs(120),
        }
    }
}

/// Bytes of a request's headers that are kept while they come.
const HEADER_BYTES_MAX: usize = 16 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// Wait after a connection could not be accepted: the process is out of files, and others have to end first. Each time is logged.
const ACCEPT_AGAIN: Duration = Duration::from_secs(1);

/// Accepts and serves connections until it is dropped.
pub(super) async fn serve(listener: TcpListener, router: Router, limits: Limits) {
    let free = Arc::new(Semaphore::new(limits.connections));
    loop {
        // Never closed.
        let Ok(permit) = free.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::task::spawn_local(async move {
                    connection(stream, router, limits).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, router: Router, limits: Limits) {
    let inner = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = inner.call(request);
        async move {
            match tokio::time::timeout(limits.request, answer).await {
                Ok(answer) => answer,
                Err(_) => Ok::<Response, Infallible>(HttpError::too_slow(limits.request).into_response()),
            }
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.headers);
    http.max_buf_size(HEADER_BYTES_MAX).max_headers(HEADERS_MAX);
    let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    // What a peer does wrong ends its connection and concerns nobody else.
    if tokio::time::timeout(limits.life, served.as_mut()).await.is_err() {
        served.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(limits.life, served).await;
    }
}
