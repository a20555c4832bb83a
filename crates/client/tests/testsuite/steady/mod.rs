//! What keeps tests steady on a machine whose threads may stand still for seconds, and on which others take ports.

#![allow(unreachable_pub)]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpSocket;

/// A port that is a server's for as long as this is there, also while nobody listens at it: nobody else gets it meanwhile, as an address to
/// listen at or to connect from, and whoever connects to it then is refused.
#[derive(Debug)]
pub struct Port {
    pub address: SocketAddr,
    _socket: TcpSocket,
}

impl Port {
    pub fn reserve() -> Port {
        let socket = TcpSocket::new_v4().unwrap();
        // Then the server may bind to it as well.
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        Port { address: socket.local_addr().unwrap(), _socket: socket }
    }
}

/// Lets so much time pass at once, for clients only. So a test can give them a lot of it, of which a machine that stands still takes none that
/// counts, and still see what they do when it is up.
pub async fn later(by: Duration) {
    // What was begun just now has come as far as it does without an answer.
    tokio::time::sleep(Duration::from_millis(10)).await;
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}
