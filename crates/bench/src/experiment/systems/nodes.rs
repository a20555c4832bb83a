//! Nodes of KerA that are measured as one server: one alone, or a cluster on this machine, in which each is a process with data,
//! arena and addresses of its own, as `kera cluster up` starts them. They end when dropped.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::BenchError;
use crate::ports;
use crate::server::{Server, ServerConfig};

/// How long a cluster may take until it knows all of its nodes.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// What nodes are started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Started {
    /// How many; more than one form a cluster.
    pub(super) nodes: u32,
    /// Of each.
    pub(super) arena_bytes: u64,
    /// Of each.
    pub(super) virtual_logs: u32,
    /// Whether they tell what they count.
    pub(super) http: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Nodes {
    servers: Vec<Server>,
}

impl Nodes {
    /// Starts them on empty folders, and waits until all of them serve. Gives the time that the first one took.
    pub(super) fn start(
        program: &Path,
        dir: &Path,
        arenas: Option<&Path>,
        how: Started,
    ) -> Result<(Nodes, Duration), BenchError> {
        let mut nodes = Nodes { servers: vec![] };
        let (mut took, mut join) = (Duration::ZERO, None);
        for number in 1..=how.nodes {
            let mut config = config(program, dir, arenas, how, number);
            if how.nodes > 1 {
                let [listen, cluster] = ports::free()?;
                config.listen = Some(listen);
                config.flags.extend(membership(number, cluster, join));
                join = join.or(Some(cluster));
            }
            for folder in [Some(&config.data), config.arena_dir.as_ref()].into_iter().flatten() {
                std::fs::create_dir_all(folder).map_err(|e| BenchError::io_at("creating", folder, e))?;
            }
            let (server, one) = Server::start(config)?;
            nodes.servers.push(server);
            if number == 1 {
                took = one;
            }
        }
        if how.nodes > 1 {
            nodes.wait_until_all_are_known(program)?;
        }
        Ok((nodes, took))
    }

    /// Where clients reach any of them, with commas between.
    pub(super) fn addresses(&self) -> String {
        self.servers.iter().map(Server::address).collect::<Vec<_>>().join(",")
    }

    /// Processes of those that run.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.servers.iter().filter_map(Server::pid).collect()
    }

    /// Where they tell what they count, if they do.
    pub(super) fn http_addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().filter_map(Server::http_address).collect()
    }

    /// The one that was started first; in a cluster it leads the coordinators, unless they have chosen another one since.
    pub(super) fn first(&mut self) -> &mut Server {
        &mut self.servers[0]
    }

    /// Asks all of them to stop and waits; the first one last. Those that do not stop well are killed: the first error counts.
    pub(super) fn stop(&mut self, within: Duration) -> Result<(), BenchError> {
        let mut outcome = Ok(());
        for mut server in self.servers.drain(..).rev() {
            if server.pid().is_some() {
                let stopped = server.stop(within).map(|_| ());
                outcome = outcome.and(stopped);
            }
        }
        outcome
    }

    fn wait_until_all_are_known(&self, program: &Path) -> Result<(), BenchError> {
        let (count, started) = (self.servers.len(), Instant::now());
        loop {
            let mut ask = Command::new(program);
            ask.args(["status", "--json", "--connect", &self.servers[0].address()]).stdin(Stdio::null());
            let told = ask.output().map_err(|e| BenchError::io("asking a cluster how it is", e))?;
            if live_nodes(&told.stdout) == count {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                let message = format!("not all of {count} nodes are live: {}", String::from_utf8_lossy(&told.stdout));
                return Err(BenchError::server("starting a cluster", message));
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn config(program: &Path, dir: &Path, arenas: Option<&Path>, how: Started, number: u32) -> ServerConfig {
    let of_its_own = |folder: &Path| -> PathBuf {
        if how.nodes > 1 { folder.join(format!("node-{number}")) } else { folder.to_owned() }
    };
    ServerConfig {
        arena_bytes: Some(how.arena_bytes),
        arena_dir: arenas.map(of_its_own),
        http: how.http,
        flags: vec!["--virtual-logs".into(), how.virtual_logs.to_string()],
        ..ServerConfig::in_dir(program, &of_its_own(dir))
    }
}

fn membership(number: u32, cluster: SocketAddr, join: Option<SocketAddr>) -> Vec<String> {
    let mut words = vec!["--node".into(), number.to_string(), "--cluster-listen".into(), cluster.to_string()];
    // Each has a rack of its own, or copies would not be spread.
    words.extend(["--rack".into(), format!("rack-{number}")]);
    if let Some(first) = join {
        words.extend(["--join".into(), first.to_string()]);
    }
    words
}

/// Nodes of a cluster that are live, as `kera status --json` tells; 0 if it tells nothing.
fn live_nodes(status: &[u8]) -> usize {
    let status: Value = serde_json::from_slice(status).unwrap_or_default();
    let nodes = status.pointer("/cluster/nodes").and_then(Value::as_array);
    nodes.map_or(0, |nodes| nodes.iter().filter(|node| node["state"] == "live").count())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: Started = Started { nodes: 3, arena_bytes: 1 << 30, virtual_logs: 4, http: false };

    #[test]
    fn nodes_of_a_cluster_share_nothing() {
        let of = |number| config(Path::new("kera"), Path::new("data"), Some(Path::new("arenas")), HOW, number);
        let (one, two) = (of(1), of(2));
        assert!(one.data != two.data && one.arena_dir != two.arena_dir && one.log != two.log, "{one:?} {two:?}");
        let alone = Started { nodes: 1, ..HOW };
        let alone = config(Path::new("kera"), Path::new("data"), None, alone, 1);
        assert_eq!(alone.data, Path::new("data/data"));
    }

    #[test]
    fn all_but_the_first_join_it() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(!membership(1, at(7), None).contains(&"--join".to_owned()));
        let joins = membership(2, at(8), Some(at(7)));
        assert!(joins.ends_with(&["--join".to_owned(), at(7).to_string()]), "{joins:?}");
    }

    #[test]
    fn only_live_nodes_count() {
        let status = br#"{"cluster": {"nodes": [{"state": "live"}, {"state": "lost"}, {"state": "live"}]}}"#;
        assert_eq!(live_nodes(status), 2);
        assert_eq!((live_nodes(b""), live_nodes(b"{}")), (0, 0));
    }
}
