//! Connections of the HTTP door: so many at a time, and none for longer than it needs.
//!
//! Whoever is slow, on purpose or not, costs one connection of a bounded number for a bounded time: headers have to come
//! within a time, a request has to be sent and answered within another, and what a connection buffers is bounded. One more
//! takes the place of that which has been without a request for longest, so that whoever looks whether the node is alive is
//! answered; while all have one it waits, and others in the socket's queue.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
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
use tokio::sync::{Notify, Semaphore};

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
    /// How long a connection that has to make room may still take for an answer that is on its way.
    pub(super) last_answer: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: CONNECTIONS_MAX,
            headers: Duration::from_secs(10),
            request: Duration::from_secs(40),
            life: Duration::from_secs(120),
            last_answer: Duration::from_millis(100),
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
    let idle = Rc::new(Idle::default());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let permit = tokio::select! {
                    biased;
                    permit = Arc::clone(&free).acquire_owned() => permit,
                    () = idle.close_one() => Arc::clone(&free).acquire_owned().await,
                };
                // Never closed.
                let Ok(permit) = permit else { return };
                let (router, place) = (router.clone(), Place::new(&idle));
                tokio::task::spawn_local(async move {
                    connection(stream, router, limits, place).await;
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

/// The connections of which no request is there, by when the last one was answered or they were accepted.
#[derive(Default)]
struct Idle {
    since: RefCell<BTreeMap<u64, Rc<Notify>>>,
    next: Cell<u64>,
    more: Notify,
}

impl Idle {
    /// Has that one closed which has been without a request for longest; while all have one, the first that has none.
    async fn close_one(&self) {
        loop {
            let first = self.since.borrow_mut().pop_first();
            if let Some((_, close)) = first {
                close.notify_one();
                return;
            }
            self.more.notified().await;
        }
    }
}

/// A connection's place among those without a request, which goes with it.
struct Place {
    idle: Rc<Idle>,
    at: Cell<u64>,
    close: Rc<Notify>,
    /// A whole request has come.
    asked: Cell<bool>,
}

impl Place {
    fn new(idle: &Rc<Idle>) -> Rc<Place> {
        let place = Place { idle: Rc::clone(idle), at: Cell::new(0), close: Rc::default(), asked: Cell::default() };
        place.enter();
        Rc::new(place)
    }

    fn enter(&self) {
        let at = self.idle.next.get();
        self.idle.next.set(at + 1);
        self.at.set(at);
        self.idle.since.borrow_mut().insert(at, Rc::clone(&self.close));
        self.idle.more.notify_one();
    }

    fn leave(&self) {
        self.idle.since.borrow_mut().remove(&self.at.get());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

/// One that has to make room is waited for only while an answer may be on its way. Where there was no whole request there is none, so it is dropped as it
/// is: that hyper would wait for the rest of headers which have begun would let whoever sends half of them on many connections hold up the others, ten a
/// second. One that was answered and is silent since, or has sent half of its next headers, hyper ends by itself at once.
async fn connection(stream: TcpStream, router: Router, limits: Limits, place: Rc<Place>) {
    let inner = TowerToHyperService::new(router);
    let of_requests = Rc::clone(&place);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let answer = inner.call(request);
        let place = Rc::clone(&of_requests);
        place.leave();
        place.asked.set(true);
        async move {
            let answer = tokio::time::timeout(limits.request, answer).await;
            place.enter();
            match answer {
                Ok(answer) => answer,
                Err(_) => Ok::<Response, Infallible>(HttpError::too_slow(limits.request).into_response()),
            }
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.headers);
    http.max_buf_size(HEADER_BYTES_MAX).max_headers(HEADERS_MAX);
    let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let rest = tokio::select! {
        // First, so that a request that is there already is seen.
        biased;
        // What a peer does wrong ends its connection and concerns nobody else.
        _ = served.as_mut() => return,
        () = place.close.notified() => {
            if !place.asked.get() {
                return;
            }
            limits.last_answer
        }
        () = tokio::time::sleep(limits.life) => limits.life,
    };
    served.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(rest, served).await;
}
