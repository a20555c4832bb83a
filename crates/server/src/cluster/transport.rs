//! Messages to other nodes over connections of the native protocol, one to each address, opened when it is needed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use kera_protocol::Op;
use kera_raft::{Pending, Transport};
use kera_rpc::{ClientConfig, Connection, RpcError};
use parking_lot::Mutex;
use tokio::runtime::Handle;

/// How long a connection may take, and how long it waits for an answer.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(15);
/// What the error of a request begins with that the other node has refused for good.
pub(super) const REFUSED: &str = "refused: ";

/// See the module. Everything runs on the log's runtime.
pub(super) struct RpcTransport {
    runtime: Handle,
    connections: Arc<Mutex<HashMap<String, Connection>>>,
}

impl RpcTransport {
    pub(super) fn new(runtime: Handle) -> RpcTransport {
        RpcTransport { runtime, connections: Arc::default() }
    }
}

async fn connected(connections: &Mutex<HashMap<String, Connection>>, address: &str) -> Result<Connection, RpcError> {
    let known = connections.lock().get(address).filter(|known| !known.is_closed()).cloned();
    if let Some(known) = known {
        return Ok(known);
    }
    let config = ClientConfig {
        client_name: "kera-node".into(),
        connect_timeout: CONNECT,
        call_timeout: ANSWER,
        ..ClientConfig::default()
    };
    let opened = Connection::connect(address, config).await?;
    connections.lock().insert(address.to_owned(), opened.clone());
    Ok(opened)
}

impl Transport for RpcTransport {
    fn call(&self, _to: u64, address: &str, op: Op, body: Vec<u8>) -> Pending<Vec<u8>> {
        let (connections, address) = (self.connections.clone(), address.to_owned());
        let (sender, answer) = tokio::sync::oneshot::channel();
        // A caller that has lost patience does not end a connection that others wait for.
        self.runtime.spawn(async move {
            let asked = async {
                let connection = connected(&connections, &address).await?;
                let sent = connection.send(op, vec![body.into()]);
                let late = |_| RpcError::Timeout { address: address.clone(), after: ANSWER };
                tokio::time::timeout(ANSWER, sent).await.map_err(late)?
            };
            let told = asked.await.map(|frame| frame.body.to_vec()).map_err(|error| match error.status() {
                Some(status) if !status.retryable() => format!("{REFUSED}{error}"),
                _ => error.to_string(),
            });
            let _ = sender.send(told);
        });
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err("the node is stopping".into())) })
    }
}
