//! Servers and connections over loopback.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod common;
mod connection;
mod server;
