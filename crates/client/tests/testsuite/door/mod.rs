//! A way to a node that a test can spoil.

#![allow(unreachable_pub)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Stands in front of a node and can stop passing anything on, as a machine does that is gone: no connection closes, none is refused.
pub struct Door {
    pub address: SocketAddr,
    pub frozen: Arc<AtomicBool>,
    /// How often it was [left](Door::leave).
    left: Arc<AtomicU64>,
}

impl Door {
    pub fn before(node: SocketAddr) -> Door {
        Door::slow(node, Duration::ZERO)
    }

    /// One that takes its time, each way.
    pub fn slow(node: SocketAddr, delay: Duration) -> Door {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (frozen, left) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let door = Door { address, frozen: Arc::clone(&frozen), left: Arc::clone(&left) };
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect(node) else { continue };
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let begun = left.load(Ordering::SeqCst);
                for (from, to) in [(client, server), back] {
                    let (frozen, left) = (Arc::clone(&frozen), Arc::clone(&left));
                    let is_frozen = move || frozen.load(Ordering::SeqCst) || left.load(Ordering::SeqCst) != begun;
                    std::thread::spawn(move || pass_on(from, to, delay, &is_frozen));
                }
            }
        });
        door
    }

    /// From now on nothing is passed on by the connections that there are, as if something between the two had forgotten them. Others can
    /// be made.
    pub fn leave(&self) {
        self.left.fetch_add(1, Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, delay: Duration, is_frozen: &dyn Fn() -> bool) {
    let mut bytes = [0; 16 << 10];
    loop {
        let read = from.read(&mut bytes).unwrap_or(0);
        std::thread::sleep(delay);
        while is_frozen() {
            std::thread::sleep(Duration::from_millis(10));
        }
        if read == 0 || to.write_all(&bytes[..read]).is_err() {
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
            return;
        }
    }
}
