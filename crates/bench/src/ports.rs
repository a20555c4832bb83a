//! Ports of loopback for servers that are told where to listen, because others have to know it before they are started.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::BenchError;

const FIRST: u16 = 12_000;
const END: u16 = 32_000;
/// Where Linux begins to take ports for connections unless it is told otherwise.
const SYSTEM_DEFAULT: u16 = 32_768;
const LEAST_ROOM: u16 = 1000;

/// So many addresses of loopback on which nothing listens, each handed out once in this process until all of them were.
///
/// They lie below the range from which the system takes ports for connections and for port 0. A port of that range may be taken by somebody
/// else before the server that was given it listens, or while it is down.
///
/// # Errors
/// If fewer than that are free.
pub fn free<const COUNT: usize>() -> Result<[SocketAddr; COUNT], BenchError> {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    // Other processes begin elsewhere: neighbours differ by more ports than one of them uses.
    let next = NEXT.get_or_init(|| AtomicU32::new(std::process::id().wrapping_mul(997)));
    let (mut found, mut tries) = ([SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); COUNT], 0);
    let width = u32::from(system_ports_begin().min(END) - FIRST);
    for address in &mut found {
        loop {
            if tries == width {
                let error = std::io::Error::from(std::io::ErrorKind::AddrInUse);
                return Err(BenchError::io(
                    format!("looking for {COUNT} free ports among {FIRST}-{}", FIRST + width as u16),
                    error,
                ));
            }
            tries += 1;
            address.set_port(FIRST + (next.fetch_add(1, Ordering::Relaxed) % width) as u16);
            if TcpListener::bind(*address).is_ok() {
                break;
            }
        }
    }
    Ok(found)
}

/// Where the system's range of ports for connections begins, if that leaves room below it.
fn system_ports_begin() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first = range.split_whitespace().next().and_then(|first| first.parse().ok());
    first.filter(|first| *first >= FIRST + LEAST_ROOM).unwrap_or(SYSTEM_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ_are_not_taken_and_lie_outside_the_range_of_the_system() {
        let [one, other] = free().unwrap();
        assert_ne!(one, other);
        let taken = TcpListener::bind(one).unwrap();
        let later: [SocketAddr; 3] = free().unwrap();
        assert!(!later.contains(&taken.local_addr().unwrap()));
        assert!(later.iter().all(|address| (FIRST..system_ports_begin()).contains(&address.port())));
    }
}
