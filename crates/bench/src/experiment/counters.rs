//! What a KerA node itself counts, asked over HTTP while it runs: how many bytes each phase has handled.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long an answer may take; a node under full load is not to be waited for.
const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes since the node started, by phase.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Counters {
    /// Received from clients.
    pub(super) received: f64,
    /// Of chunks appended.
    pub(super) appended: f64,
    /// Made durable by virtual logs, on disk (straight to containers included) or by copies on other nodes.
    pub(super) replicated: f64,
    /// Seconds that virtual logs spent writing and syncing, all of them together; not bytes.
    pub(super) replication_disk_s: f64,
    /// Of closed segments written to disk.
    pub(super) persisted: f64,
    /// Of chunks sent to consumers, pushed or asked for.
    pub(super) consumed: f64,
}

impl Counters {
    /// Of two nodes together.
    pub(super) fn and(&self, other: &Counters) -> Counters {
        Counters {
            received: self.received + other.received,
            appended: self.appended + other.appended,
            replicated: self.replicated + other.replicated,
            replication_disk_s: self.replication_disk_s + other.replication_disk_s,
            persisted: self.persisted + other.persisted,
            consumed: self.consumed + other.consumed,
        }
    }
}

/// Asks a node. `None` if it does not answer in time.
pub(super) fn read_counters(address: SocketAddr) -> Option<Counters> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream
        .write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
        .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.starts_with("HTTP/1.1 200").then(|| parse(&text))
}

fn parse(text: &str) -> Counters {
    let of = |names: &[&str]| -> f64 {
        let values = text.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| names.contains(name));
        values.filter_map(|(_, value)| value.trim().parse::<f64>().ok()).sum()
    };
    Counters {
        received: of(&["kera_network_received_bytes_total"]),
        appended: of(&["kera_appended_bytes_total"]),
        replicated: of(&[
            "kera_vlog_written_bytes_total",
            "kera_vlog_through_bytes_total",
            "kera_copies_chunks_bytes_total",
        ]),
        replication_disk_s: of(&["kera_vlog_disk_microseconds_total"]) / 1e6,
        persisted: of(&["kera_store_written_bytes_total"]),
        consumed: of(&["kera_pushed_bytes_total", "kera_read_bytes_total"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# TYPE kera_appended_bytes counter\nkera_appended_bytes_total 7\n\
                    kera_pushed_bytes_total 3\nkera_read_bytes_total 2\nkera_vlog_disk_microseconds_total 500000\n\
                    kera_copies_chunks_bytes_total 4\nkera_appended_bytes_total_not 99\n";
        let counters = parse(text);
        assert_eq!((counters.appended, counters.consumed, counters.persisted), (7.0, 5.0, 0.0));
        assert_eq!((counters.replication_disk_s, counters.replicated), (0.5, 4.0));
        let both = counters.and(&counters);
        assert_eq!((both.appended, both.consumed, both.replication_disk_s), (14.0, 10.0, 1.0));
    }
}
