//! The HTTP door: health, metrics, the admin API and its OpenAPI document.
//!
//! One thread with a runtime of its own, so that nothing here ever runs on an I/O thread. It is up before recovery
//! begins, so that `/readyz` can say what the node waits for, and goes last.

mod admin;
mod browsers;
mod connections;
mod error;
mod health;
mod inside;
mod routes;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use kera_env::Clock;
use kera_protocol::CopyChange;
use kera_rpc::SessionFactory;
use tokio::sync::oneshot;

use crate::metrics::Metrics;
use crate::readiness::Readiness;
use connections::Limits;

pub(crate) use connections::CONNECTIONS_MAX;
pub use routes::openapi_text;

/// What the handlers see of the node. What comes after recovery is missing until then.
pub struct HttpState {
    /// Whether the node serves.
    pub readiness: Arc<Readiness>,
    /// What the node is made of, once it is put together.
    pub node: OnceLock<HttpNode>,
}

/// The parts of a running node that HTTP needs.
pub struct HttpNode {
    /// What clients' connections are answered by.
    pub sessions: Arc<dyn SessionFactory>,
    /// The clock of their deadlines.
    pub clock: Arc<dyn Clock>,
    /// The numbers of `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Streams that are to have another number of copies, and how far that is.
    pub copy_changes: Box<dyn Fn() -> Vec<CopyChange> + Send + Sync>,
}

/// A server that runs.
pub struct HttpServer {
    /// Where it listens.
    pub address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl HttpServer {
    /// Listens, and starts the thread.
    ///
    /// # Errors
    /// The address cannot be used, or there is no thread.
    pub fn start(address: &str, state: Arc<HttpState>) -> io::Result<HttpServer> {
        HttpServer::with_limits(address, state, Limits::default())
    }

    fn with_limits(address: &str, state: Arc<HttpState>, limits: Limits) -> io::Result<HttpServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let name: Arc<str> = browsers::name_of(address).into();
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let thread = std::thread::Builder::new().name("kera-http".into()).stack_size(1 << 20).spawn(move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, async move {
                if let Err(error) = serve(listener, name, state, limits, stopped).await {
                    tracing::error!(%error, "HTTP ended; health, metrics and the admin API are gone");
                }
            });
        })?;
        Ok(HttpServer { address, stop, thread })
    }

    /// Stops it and waits for the thread. Requests under way are cut off: whoever probes finds nobody, which is right.
    pub fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("the HTTP thread ended with a panic");
        }
    }
}

async fn serve(
    listener: TcpListener,
    name: Arc<str>,
    state: Arc<HttpState>,
    limits: Limits,
    stopped: oneshot::Receiver<()>,
) -> io::Result<()> {
    let is_loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (inside, asking) = inside::Inside::new(state.clone());
    tokio::task::spawn_local(asking);
    let router = routes::router(routes::Door::new(state, inside), is_loopback.then_some(name));
    tokio::select! {
        () = connections::serve(listener, router, limits) => {}
        _ = stopped => {}
    }
    Ok(())
}
