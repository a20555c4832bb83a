//! First versions of messages that have had a second one, as they were released: nothing in here changes any more. Each turns into the
//! current struct when it is read, and is made from that for whoever speaks no more.

pub mod admin;
pub mod cluster;
pub mod node;
