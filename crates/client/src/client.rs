//! The client: where the server is, one shared connection for short calls, and the start of everything else.

use std::sync::Arc;
use std::time::Duration;

use kera_protocol::{HelloResponse, Message};

use crate::{Admin, ClientError, ConsumerBuilder, ProducerBuilder};

/// How to reach a server. Made by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    pub(crate) address: String,
    pub(crate) rpc: kera_rpc::ClientConfig,
    pub(crate) retry_timeout: Duration,
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
    /// reached or asks to come back later; zero, the default: not at all.
    pub fn retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = timeout;
        self
    }

    /// Connects, so that a wrong address is found at once.
    pub async fn connect(self) -> Result<Client, ClientError> {
        todo!()
    }
}

/// A server, as a program sees it. Clones share one connection for short calls; each producer and consumer has its own.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) inner: Arc<ClientInner>,
}

#[derive(Debug)]
pub(crate) struct ClientInner {
    pub(crate) config: ClientBuilder,
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
        todo!()
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
        let _ = message;
        todo!()
    }
}
