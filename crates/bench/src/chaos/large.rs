//! Whether large segments were written through to their containers: what a node's own counter says, over all of its lives.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use kera_format::Durability;

use super::ChaosConfig;

/// Segments of durability `power` are written through from this size on, by default.
const LARGE_SEGMENT_BYTES: u32 = 4 << 20;
const COUNTER: &str = "kera_vlog_through_bytes_total";
const PATIENCE: Duration = Duration::from_secs(5);

impl ChaosConfig {
    /// Whether segments may become large enough to be written through.
    pub(super) fn has_large_segments(&self) -> bool {
        self.durability == Durability::Power && self.segment_bytes() >= LARGE_SEGMENT_BYTES
    }
}

/// Bytes written through. A life's last moments, between the last look and its end, are not in it.
#[derive(Default, Debug)]
pub(super) struct WrittenThrough {
    /// In lives that are over.
    before: u64,
    /// In this life.
    now: u64,
    /// Lives in which something was.
    lives: u32,
}

impl WrittenThrough {
    /// Asks the node. One that does not answer has not said anything yet: that is no error.
    pub(super) fn look(&mut self, http: Option<SocketAddr>) {
        let Some(bytes) = http.and_then(|address| counter(address).ok().flatten()) else { return };
        self.note(bytes);
    }

    fn note(&mut self, bytes: u64) {
        self.lives += u32::from(self.now == 0 && bytes > 0);
        self.now = bytes;
    }

    /// The node's life is over: the next one counts from zero.
    pub(super) fn end_life(&mut self) {
        self.before += std::mem::take(&mut self.now);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.before + self.now
    }

    pub(super) fn lives(&self) -> u32 {
        self.lives
    }
}

fn counter(address: SocketAddr) -> io::Result<Option<u64>> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: verify\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(value_of(&answer, COUNTER))
}

fn value_of(metrics: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    metrics.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_lives_count_and_lives_without_any_do_not() {
        let mut written = WrittenThrough::default();
        for life in [[0, 0], [5, 9], [0, 0], [0, 4]] {
            life.into_iter().for_each(|bytes| written.note(bytes));
            written.end_life();
        }
        written.note(2);
        assert_eq!((written.bytes(), written.lives()), (15, 3));
    }

    #[test]
    fn the_counter_is_found_among_the_metrics() {
        let text = "# TYPE kera_vlog_through_bytes counter\r\nkera_vlog_through_bytes_total_x 1\r\n\
                    kera_vlog_through_bytes_total 77\r\n# EOF\r\n";
        assert_eq!(value_of(text, COUNTER), Some(77));
        assert_eq!(value_of(text, "kera_other"), None);
    }
}
