//! How the blocks of replicated logs reach backups: one connection for each backup, shared by all logs of a broker.
//!
//! The shell around [`kera_vlog::ReplicatedLog`]: it has the sockets that the log does without. A log calls
//! [`RpcLinks`] on its own thread, which only enqueues; one task for each backup on a tokio runtime sends, and answers go back
//! into the log's inbox. Chunks leave by vectored writes from the segments that they are in.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use kera_format::vlog_replica::LogId;
use kera_protocol::codec::Wire;
use kera_protocol::replication::{STORE_HEAD_BYTES, STORE_SYNCED};
use kera_protocol::{BlockStored, Body, Op, ReleaseBlocks, Status, StoreHead, StoreOutcome};
use kera_rpc::{ClientConfig, Connection, RpcError};
use kera_vlog::{Answer, BackupId, BackupLink, Block, ReplicatedLog, View};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// How long after a failed try the next connection to a backup is tried.
const RETRY: Duration = Duration::from_millis(100);
/// How long a backup's machine may take no notice of blocks. Long before that the backup is replaced; it is back as soon as it can be reached,
/// and not when a connection that was cut off tries once more.
const UNNOTICED: Duration = Duration::from_secs(1);

/// Settings of the connections to backups.
#[derive(Clone, Debug)]
pub struct LinkConfig {
    /// Uuid of the cluster.
    pub cluster: [u8; 16],
    /// Whether blocks are answered only when they are synced: durability `power`.
    pub synced: bool,
    /// How long connecting and the handshake may take.
    pub connect_timeout: Duration,
}

/// Where a backup takes this protocol, and who it is; `None`: it is not known.
pub trait Addresses: Send + Sync {
    /// `host:port` of a node, and its uuid. Who says to be somebody else gets nothing: a machine may stand where another one stood, and
    /// what it stores is no copy at the backup that a view names.
    fn address(&self, backup: BackupId) -> Option<(String, [u8; 16])>;
}

impl<F: Fn(BackupId) -> Option<(String, [u8; 16])> + Send + Sync> Addresses for F {
    fn address(&self, backup: BackupId) -> Option<(String, [u8; 16])> {
        self(backup)
    }
}

enum Message {
    Block { log: LogId, number: u64, parts: Vec<Bytes> },
    Release(ReleaseBlocks),
}

type Logs = Mutex<HashMap<LogId, Weak<ReplicatedLog>>>;

/// See the crate. What is queued for a backup is bounded by what its logs have under way.
pub struct RpcLinks {
    config: LinkConfig,
    runtime: Handle,
    addresses: Arc<dyn Addresses>,
    logs: Arc<Logs>,
    peers: Mutex<HashMap<BackupId, mpsc::UnboundedSender<Message>>>,
}

impl RpcLinks {
    /// Links whose tasks run on `runtime`, which needs I/O and time.
    pub fn new(config: LinkConfig, runtime: Handle, addresses: Arc<dyn Addresses>) -> Arc<RpcLinks> {
        Arc::new(RpcLinks { config, runtime, addresses, logs: Arc::default(), peers: Mutex::default() })
    }

    /// Tells a log what becomes of its blocks. Before it sends the first.
    pub fn attach(&self, log: LogId, replicated: &Arc<ReplicatedLog>) {
        self.logs.lock().insert(log, Arc::downgrade(replicated));
    }

    fn tell(&self, to: BackupId, message: Message) {
        let mut peers = self.peers.lock();
        let sender = peers.entry(to).or_insert_with(|| {
            let (sender, messages) = mpsc::unbounded_channel();
            let (config, addresses, logs) = (self.config.clone(), Arc::clone(&self.addresses), Arc::clone(&self.logs));
            self.runtime
                .spawn(Peer { backup: to, config, addresses, logs, connection: None, connections: 0 }.run(messages));
            sender
        });
        // The task ends only with this sender, or with its runtime.
        let _ = sender.send(message);
    }
}

impl BackupLink for RpcLinks {
    fn send(&self, to: BackupId, view: &View, block: &Arc<Block>) {
        let head = StoreHead {
            cluster: self.config.cluster,
            log: block.log,
            view: view.number,
            view_first: view.first,
            block: block.number,
            written_ms: block.written_ms,
            chunk_count: block.chunk_count,
            chunk_bytes: block.chunk_bytes,
            chunks_checksum: block.chunks_checksum,
            flags: if self.config.synced { STORE_SYNCED } else { 0 },
        };
        let mut bytes = Vec::with_capacity(STORE_HEAD_BYTES);
        head.put(&mut bytes);
        let mut parts = Vec::with_capacity(1 + block.parts.len());
        parts.push(Bytes::from(bytes));
        parts.extend(block.parts.iter().cloned());
        self.tell(to, Message::Block { log: block.log, number: block.number, parts });
    }

    fn release(&self, to: BackupId, log: LogId, through: u64) {
        self.tell(to, Message::Release(ReleaseBlocks { log, through_block: through }));
    }
}

/// The task of a backup.
struct Peer {
    backup: BackupId,
    config: LinkConfig,
    addresses: Arc<dyn Addresses>,
    logs: Arc<Logs>,
    connection: Option<Connection>,
    /// How many there were, this one included. A connection is with one life of the backup, and the one before is closed before it is made: what
    /// was answered on an earlier one was answered before anything is asked on this one. So they stand for lives.
    connections: u64,
}

impl Peer {
    async fn run(mut self, mut messages: mpsc::UnboundedReceiver<Message>) {
        while let Some(message) = messages.recv().await {
            let connection = match self.connected().await {
                Ok(connection) => connection,
                Err(error) => {
                    self.broken(&error);
                    // What was sent meanwhile is as lost as this one: the log sends it again where it belongs.
                    while messages.try_recv().is_ok() {}
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            match message {
                Message::Block { log, number, parts } => {
                    let call = connection.send(Op::StoreBlock, parts);
                    let (backup, logs, life) = (self.backup, Arc::clone(&self.logs), self.connections);
                    tokio::spawn(async move {
                        let answer = call.await.and_then(|frame| {
                            let answered = BlockStored::decode(frame.header.version, &frame.body);
                            answered
                                .map_err(|source| RpcError::Protocol { address: format!("backup {backup}"), source })
                        });
                        let replicated = logs.lock().get(&log).and_then(Weak::upgrade);
                        if let Some(replicated) = replicated {
                            answered(&replicated, (backup, life), number, answer);
                        }
                    });
                }
                Message::Release(release) => connection.post(&release),
            }
        }
    }

    /// The connection, or a new one if it is broken.
    async fn connected(&mut self) -> Result<Connection, String> {
        if let Some(connection) = self.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        let (address, uuid) = self.addresses.address(self.backup).ok_or("its address is not known")?;
        let config = ClientConfig {
            client_name: "kera-broker".into(),
            connect_timeout: self.config.connect_timeout,
            unnoticed_timeout: Some(UNNOTICED),
            ..ClientConfig::default()
        };
        let connection = Connection::connect(&address, config).await.map_err(|error| error.to_string())?;
        if connection.hello().node_id != uuid {
            return Err(format!("another node answers at {address}"));
        }
        self.connection = Some(connection.clone());
        self.connections += 1;
        Ok(connection)
    }

    fn broken(&self, why: &str) {
        let logs: Vec<Arc<ReplicatedLog>> = self.logs.lock().values().filter_map(Weak::upgrade).collect();
        tracing::debug!(backup = self.backup, why, "a backup cannot be reached");
        logs.iter().for_each(|log| log.broken(self.backup, format!("backup {}: {why}", self.backup)));
    }
}

/// Tells a log what became of a block.
fn answered(log: &ReplicatedLog, (backup, life): (BackupId, u64), number: u64, answer: Result<BlockStored, RpcError>) {
    let answer = match answer {
        Ok(BlockStored { outcome: StoreOutcome::Stored, block }) => Answer::Stored(block),
        Ok(BlockStored { outcome: StoreOutcome::Fenced, block }) => Answer::Fenced(block as u32),
        Ok(BlockStored { outcome: StoreOutcome::Next, block }) => Answer::Next(block),
        Err(RpcError::Status { status: Status::Overloaded, message, .. }) => Answer::Busy(message),
        Err(RpcError::Status { message, .. }) => Answer::Refused(message),
        Err(error) => return log.broken(backup, error.to_string()),
    };
    log.answered(backup, life, number, answer);
}
