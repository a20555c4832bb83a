//! The client: where the server is, one shared connection for short calls, and the start of everything else.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::{HelloResponse, Message, Op};
use kera_rpc::{Connection, RpcError};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::{Admin, ClientError, ConsumerBuilder, ProducerBuilder};

/// How to reach a server. Made by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    address: String,
    rpc: kera_rpc::ClientConfig,
    retry_timeout: Duration,
}

impl ClientBuilder {
    /// What the program calls itself in the server's logs and listings.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.rpc.client_name = name.into();
        self
    }

    /// How long one try to connect may take; 10 s unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.rpc.connect_timeout = timeout;
        self
    }

    /// How long one call waits for its answer; 30 s unless set.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.rpc.call_timeout = timeout;
        self
    }

    /// For how long short calls (admin, opening producers and consumers) are tried again while the server cannot be
    /// reached or asks to come back later; zero, the default: not at all. A call that may have been carried out is not
    /// tried again, unless it does no more the second time.
    pub fn retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// Connects, so that a wrong address is found at once.
    pub async fn connect(self) -> Result<Client, ClientError> {
        let client = Client { inner: Arc::new(ClientInner { config: self, connection: Mutex::new(None) }) };
        client.server().await?;
        Ok(client)
    }
}

/// A server, as a program sees it. Clones share one connection for short calls; each producer and consumer has its own.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    config: ClientBuilder,
    connection: Mutex<Option<Connection>>,
}

impl Client {
    /// Connects to `address` (`host:port`) with default settings.
    pub async fn connect(address: impl Into<String>) -> Result<Client, ClientError> {
        Client::builder(address).connect().await
    }

    /// Settings for a connection to `address` (`host:port`).
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder { address: address.into(), rpc: kera_rpc::ClientConfig::default(), retry_timeout: Duration::ZERO }
    }

    /// Where the server is.
    pub fn address(&self) -> &str {
        &self.inner.config.address
    }

    /// What the server said about itself when it was last connected to.
    pub async fn server(&self) -> Result<HelloResponse, ClientError> {
        let retry_for = self.inner.config.retry_timeout;
        self.retrying(retry_for, true, async || Ok(self.shared().await?.hello().clone())).await
    }

    /// Streams, applications, statistics.
    pub fn admin(&self) -> Admin {
        Admin { client: self.clone() }
    }

    /// A producer for `stream`.
    pub fn producer(&self, stream: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder::new(self.clone(), stream.into())
    }

    /// A consumer of `stream`.
    pub fn consumer(&self, stream: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), stream.into())
    }

    /// Asks the server anything, over the shared connection, which is made again if it is broken.
    pub async fn call<M: Message>(&self, message: &M) -> Result<M::Response, ClientError> {
        self.call_for(message, self.inner.config.retry_timeout).await
    }

    /// As [`call`](Client::call), tried again for so long.
    pub(crate) async fn call_for<M: Message>(
        &self,
        message: &M,
        retry_for: Duration,
    ) -> Result<M::Response, ClientError> {
        self.retrying(retry_for, is_repeatable(M::OP), async || self.shared().await?.call(message).await).await
    }

    /// How long what fails is tried again.
    pub(crate) fn retry_timeout(&self) -> Duration {
        self.inner.config.retry_timeout
    }

    /// A connection of its own, one try.
    pub(crate) async fn dedicated(&self) -> Result<Connection, RpcError> {
        Connection::connect(&self.inner.config.address, self.inner.config.rpc.clone()).await
    }

    async fn shared(&self) -> Result<Connection, RpcError> {
        let mut shared = self.inner.connection.lock().await;
        if let Some(connection) = shared.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let connection = self.dedicated().await?;
        *shared = Some(connection.clone());
        Ok(connection)
    }

    /// Tries until it works, the error is for good, or the time is up; or until it could have had an effect, unless that may
    /// be had twice.
    async fn retrying<T>(
        &self,
        retry_for: Duration,
        repeatable: bool,
        mut attempt: impl AsyncFnMut() -> Result<T, RpcError>,
    ) -> Result<T, ClientError> {
        let until = Instant::now() + retry_for;
        let mut backoff = Backoff::default();
        loop {
            let error = match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let wait = backoff.next(error.retry_after());
            let is_final = !error.retryable() || (error.could_duplicate() && !repeatable);
            if is_final || Instant::now() + wait > until {
                return Err(error.into());
            }
            tokio::time::sleep(wait).await;
        }
    }
}

/// Whether asking twice does no more than asking once: what only looks, and a producer's id, of which there are enough.
fn is_repeatable(op: Op) -> bool {
    matches!(
        op,
        Op::GetStream
            | Op::ListStreams
            | Op::StreamStats
            | Op::Lookup
            | Op::AvailableGroups
            | Op::AvailableSegments
            | Op::ListApplications
            | Op::DescribeApplication
            | Op::FetchOffsets
            | Op::NodeStatus
            | Op::AllocateProducer
    )
}
