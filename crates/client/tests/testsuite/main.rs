//! Producers and consumers against brokers that fail on purpose, and against real ones.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod cluster;
mod consumer;
mod door;
mod fake;
mod producer;
mod steady;
