//! What programs link against: produce, consume, administer.
//!
//! Everything starts at a [`Client`]. It is cheap to clone, reconnects by itself and runs its background tasks on the
//! tokio runtime that it is used on. Nothing in it polls: every wait ends with an answer, a pushed frame or a timer.

mod admin;
mod backoff;
mod client;
mod consumer;
mod error;
mod producer;
pub mod routing;

pub use admin::Admin;
pub use client::{Client, ClientBuilder};
pub use consumer::{
    Batch, BatchRecord, CommitMode, ConsumedRecord, Consumer, ConsumerBuilder, ConsumerStats, GapPolicy, Position,
};
pub use error::ClientError;
pub use kera_format::{Compression, Cursor, LaneId, Record, RecordView, StreamId, StreamOptions, StreamletId};
pub use kera_protocol::{Start, Status, StreamChanges, StreamInfo};
pub use producer::{Delivered, DeliveryReport, Producer, ProducerBuilder, ProducerStats};
pub use routing::Routing;

/// The producer's buffer without a producer, to measure how fast it takes records. Not part of the API.
#[doc(hidden)]
pub mod measure {
    pub use crate::producer::{Buffer, BufferSettings, Pushed, Taken};
}
