//! Frames and sessions over TCP.
//!
//! The server side ([`Server`]) gives each accepted connection a [`Session`] and calls it with whole frames, in the
//! order they came in, on the I/O thread that the connection is pinned to. The client side ([`Connection`]) sends
//! requests, pipelined and in order, and hands out the answers. Both speak the frames of `kera-protocol` and know
//! nothing of what is in a body, the handshake excepted.
//!
//! Used by the broker, the coordinator and the client. Bytes that come from a socket are never trusted: a frame's length
//! is checked before memory is taken, and whatever is wrong with one connection ends that connection only.

mod connection;
mod error;
mod hedge;
mod input;
mod outbox;
mod server;
mod serving;
mod session;
mod unsent;

pub use connection::{Call, ClientConfig, Connection, Frame, Subscription, WeakConnection};
pub use error::{ANSWER_TOO_LARGE, RpcError};
pub use hedge::first_of;
pub use outbox::{FrameWriter, Outbox};
pub use server::{ConnectionRoom, RunningServer, Server, ServerConfig, ServerStats};
pub use session::{Flow, Framing, Peer, Place, Session, SessionFactory, SessionWaker};
