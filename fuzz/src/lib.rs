//! What is fuzzed ([`targets`]) and from which bytes fuzzing starts ([`seeds`]).

pub mod seeds;
pub mod targets;
pub mod kafka_session;
