//! The Kafka door: serves Kafka's protocol in the same process, straight onto the log. A topic is a stream, partition p is
//! lane p mod Q of streamlet p / Q, an offset is an ordinal.

pub mod groups;
