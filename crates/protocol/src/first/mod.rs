//! First versions of messages that have had another one, as they were released: nothing in here changes any more. Each turns into the
//! current struct when it is read, and is made from that for whoever speaks no more.

pub mod admin;
pub mod application;
pub mod cluster;
pub mod moves;
pub mod node;
pub mod replication;
pub mod write;

/// Frozen structs are bodies of their own for tests and for what is written down of them.
macro_rules! bodies {
    ($($name:ident),+) => { $(
        impl $crate::message::Body for $name {
            fn encode(&self, _version: u8, out: &mut Vec<u8>) {
                $crate::codec::Wire::put(self, out);
            }
            fn decode(_version: u8, body: &[u8]) -> Result<Self, $crate::ProtocolError> {
                $crate::message::decode_whole(body)
            }
        }
    )+ };
}
pub(crate) use bodies;
