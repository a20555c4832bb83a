//! The protocol: its documents, golden bytes, and what bytes that are none do.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod documents;
mod examples;
mod frames;
mod golden;
mod messages;
mod mutations;
mod support;
