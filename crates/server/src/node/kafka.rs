//! The Kafka door of a node: a server of its own on I/O threads of its own, over the same broker and catalog.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kera_env::SystemRandom;
use kera_kafka::{Door, DoorConfig, DoorStats, DoorThread, KafkaSessions, NOT_GIVEN, StartError};
use kera_protocol::HelloResponse;
use kera_rpc::{Framing, RunningServer, Server, ServerConfig, ServerStats};

use super::Parts;
use super::start::{resolve, server_config};
use crate::cluster::Others;
use crate::config::Config;
use crate::fatal::{Door as Listener, Fatal};

/// A connection of a Kafka client that is silent for so long is closed, when the configuration says `none`: as in Kafka,
/// whose clients expect it and come back.
const IDLE_TIMEOUT_MS: u32 = 600_000;

/// After how long a silent connection of a Kafka client is closed.
fn idle_timeout_ms(set: Option<u64>) -> u32 {
    set.map_or(IDLE_TIMEOUT_MS, |ms| u32::try_from(ms).unwrap_or(u32::MAX))
}

/// What clients are told instead of the address that is listened on. Nodes of a cluster are told of each other as it is written in the configuration, and so each tells of itself: a
/// client that hears of a name from one and of an address from another one, which are the same node, takes it for one that moves.
fn advertised(config: &Config) -> Option<String> {
    if config.cluster.node.is_none() {
        return config.kafka.advertised.clone();
    }
    // A configuration that was read has no port of 0 here.
    config.kafka_address().filter(|address| !address.ends_with(":0")).map(String::from)
}

/// The door and its server.
pub(crate) struct Listening {
    /// Nothing if the port is somebody else's, or Kafka clients are not wanted here.
    server: Option<RunningServer>,
    door: Arc<Door>,
}

impl Listening {
    /// What both count.
    pub(super) fn stats(&self) -> (DoorStats, ServerStats) {
        (self.door.stats(), self.server.as_ref().map(RunningServer::stats).unwrap_or_default())
    }
}

/// The door of a node, once it listens.
pub(super) struct Kafka {
    address: Option<SocketAddr>,
    thread: DoorThread,
}

impl Kafka {
    /// Listens, unless it is turned off. In a cluster there is a door in any case: other nodes write markers of transactions through it, and it
    /// asks their coordinators which records may be read.
    pub(super) fn start(config: &Config, parts: &Parts) -> Result<Option<Kafka>, Fatal> {
        if config.kafka.listen.is_none() && parts.cluster.is_none() {
            return Ok(None);
        }
        let door = DoorConfig {
            // One for all nodes of a cluster: ids of topics are made of it.
            node: parts.cluster.as_ref().map_or(parts.identity.node, |cluster| cluster.describe().cluster),
            data_dir: config.node.data.display().to_string(),
            advertised: advertised(config),
            auto_create: config.kafka.auto_create,
            accept_damage: config.virtual_logs.accept_damage,
            partitions_default: config.kafka.partitions as u32,
            copies_default: config.kafka.replication.map(|copies| copies as u32),
            ..DoorConfig::default()
        };
        let (broker, coordinator) = (parts.broker.clone(), parts.coordinator.clone());
        let (door, thread) =
            Door::start(door, broker, coordinator, parts.clock.clone(), Arc::new(SystemRandom)).map_err(not_opened)?;
        if let Some(cluster) = &parts.cluster {
            door.set_others(Arc::new(Others::new(cluster)));
            cluster.set_kafka(&door);
        }
        let server = match &config.kafka.listen {
            Some(address) => listen(config, parts, address, &door)?,
            None => None,
        };
        let address = server.as_ref().map(RunningServer::local_addr);
        if let Some(address) = address {
            door.listens_on(address);
        }
        *parts.kafka.lock() = Some(Listening { server, door });
        Ok(Some(Kafka { address, thread }))
    }

    /// Where it listens, if it does.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Answers what is under way, for at most `timeout`, and closes all connections. Blocks.
    pub(super) fn stop(self, parts: &Parts, timeout: Duration) {
        let listening = parts.kafka.lock().take();
        if let Some(Listening { server, door }) = listening {
            if let Some(server) = server {
                server.stop(timeout);
            }
            drop(door);
        }
        self.thread.join();
    }
}

/// Why the door does not open. That the machine gives it no thread, or the cluster has not given it its streams, says nothing of what is on the disks.
fn not_opened(error: StartError) -> Fatal {
    let error = match error {
        StartError::NoThread(error) => return Fatal::Resources { what: "a thread of the Kafka door", error },
        StartError::Kept(error) => error,
    };
    let message = format!("what is kept for Kafka clients: {error}");
    match error.kind() {
        NOT_GIVEN => Fatal::not_here(
            message,
            "see to what is named, and start the node again; what is on its disks stays as it is",
        ),
        _ => Fatal::Data { message },
    }
}

/// Listens for Kafka clients; nothing if the port is taken and nobody asked for it.
fn listen(config: &Config, parts: &Parts, address: &str, door: &Arc<Door>) -> Result<Option<RunningServer>, Fatal> {
    let failed = |error| Fatal::listen(Listener::Kafka, address, error);
    let network = &config.network;
    // Nobody says hello here, but the limits of a server are in it.
    let limits = HelloResponse {
        server_name: "kera".into(),
        server_version: env!("CARGO_PKG_VERSION").into(),
        node_id: parts.identity.node,
        node_epoch: parts.identity.epoch,
        ops: Vec::new(),
        frame_bytes_max: network.frame_bytes_max as u32,
        chunk_bytes_max: 0,
        in_flight_bytes_max: 0,
        in_flight_requests_max: 0,
        subscriptions_max: 0,
        idle_timeout_ms: idle_timeout_ms(network.idle_timeout),
    };
    let server =
        ServerConfig { framing: Framing::Prefixed, ..server_config(parts, resolve(address).map_err(failed)?, limits) };
    match Server::start(server, Arc::new(KafkaSessions(door.clone()))) {
        Ok(server) => Ok(Some(server)),
        // Nobody asked for this port, and a first node beside a Kafka broker is no mistake. The door is there all the same: it
        // knows which records of transactions may be read. In a cluster clients are told of the address by others.
        Err(error) if error.kind() == ErrorKind::AddrInUse && config.kafka_by_default && parts.cluster.is_none() => {
            tracing::warn!(
                "{address} is taken, so Kafka clients cannot connect to this node; --kafka-listen HOST:PORT gives them \
                     another port, --kafka-listen none turns this off"
            );
            Ok(None)
        }
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::again::next_try;
    use crate::config::SETTINGS;

    /// Whoever is told that data is damaged restores a copy of it, or moves it away.
    #[test]
    fn a_door_that_gets_no_thread_says_nothing_of_the_data() {
        let no_thread = not_opened(StartError::NoThread(ErrorKind::WouldBlock.into()));
        assert!(matches!(no_thread, Fatal::Resources { .. }), "{no_thread}");
        assert_eq!((no_thread.exit_status(), next_try(Some(1), &no_thread)), (17, Some(2)), "it may pass");
        let not_given = not_opened(std::io::Error::from(NOT_GIVEN).into());
        assert!(matches!(not_given, Fatal::NotHere { .. }), "{not_given}");
        // As a disk says it that cannot be read now: it is no thread that is missing.
        let unreadable = not_opened(std::io::Error::from(ErrorKind::WouldBlock).into());
        assert!(matches!(unreadable, Fatal::Data { .. }), "{unreadable}");
    }

    /// As others tell of it: see `join_message`.
    #[test]
    fn a_node_of_a_cluster_tells_of_itself_as_it_is_written() {
        let mut config = Config::default();
        config.kafka.listen = Some("node-1:9092".into());
        assert_eq!(advertised(&config), None, "the address that is listened on");
        config.cluster.node = Some(1);
        assert_eq!(advertised(&config).as_deref(), Some("node-1:9092"));
        config.kafka.advertised = Some("outside:19092".into());
        assert_eq!(advertised(&config).as_deref(), Some("outside:19092"));
    }

    /// The text of the setting and `docs/moving-from-kafka.md` say so.
    #[test]
    fn kafka_clients_have_a_time_where_others_have_none() {
        assert_eq!(idle_timeout_ms(Config::default().network.idle_timeout), 600_000);
        assert_eq!([5_000, u64::MAX].map(|ms| idle_timeout_ms(Some(ms))), [5_000, u32::MAX]);
        let setting = SETTINGS.iter().find(|setting| setting.flag == "idle-timeout").unwrap();
        assert!(setting.doc_line().contains("of a Kafka client is closed after 10 minutes"));
    }
}
