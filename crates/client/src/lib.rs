//! What programs link against: produce, consume, administer.
//!
//! Everything starts at a [`Client`]. It is cheap to clone, reconnects by itself and runs its background tasks on the
//! tokio runtime that it is used on. Nothing in it polls: every wait ends with an answer, a pushed frame or a timer.
//!
//! # Produce
//!
//! ```no_run
//! use kera_client::{Client, ClientError, Record, StreamOptions};
//!
//! # async fn produce() -> Result<(), ClientError> {
//! let client = Client::connect("127.0.0.1:7070").await?;
//! client.admin().ensure_stream("flights", StreamOptions { streamlets: 4, ..Default::default() }).await?;
//! let mut producer = client.producer("flights").build().await?;
//! for (carrier, flight) in [("AA", "one"), ("UA", "two")] {
//!     let keys = [carrier.as_bytes()];
//!     let record = Record { keys: &keys, value: Some(flight.as_bytes()), ..Default::default() };
//!     producer.send(&record).await?; // waits only while the buffer is full
//! }
//! producer.close().await?; // everything is acknowledged, or the first failure is told
//! # Ok(())
//! # }
//! ```
//!
//! Records are collected into chunks, one for each streamlet; requests with chunks of many streamlets are pipelined. Each
//! record is in the stream exactly once and in order, also when connections break or the server is restarted.
//! [`ProducerBuilder`] has the settings, [`routing`] says which streamlet a key goes to.
//!
//! # Consume
//!
//! ```no_run
//! use kera_client::{Client, ClientError, Start};
//!
//! # async fn consume() -> Result<(), ClientError> {
//! let client = Client::connect("127.0.0.1:7070").await?;
//! let mut consumer = client.consumer("flights").application("report").from(Start::Earliest).build().await?;
//! while let Some(batch) = consumer.next_batch().await? {
//!     for record in batch.records() {
//!         println!("{} {:?} {:?}", record.ordinal, record.view.key(), record.view.value());
//!     }
//!     // Asking for the next batch says that this one is processed; that is committed every second.
//! }
//! consumer.close().await?; // commits, and gives the groups to the other members
//! # Ok(())
//! # }
//! ```
//!
//! Without [`application`](ConsumerBuilder::application) a consumer reads the lanes it is told to, from where it is told to.
//! With one, the members of the application share the stream's groups, and go on where it has committed.
//!
//! # When something fails
//!
//! Producers and consumers try again by themselves. What comes out as a [`ClientError`] says what was wrong with which
//! field, whether trying again makes sense ([`ClientError::retryable`]), and whether what failed may have been done all the
//! same ([`ClientError::could_duplicate`]).

mod admin;
mod backoff;
mod client;
mod consumer;
mod error;
mod held;
mod lent;
mod moves;
mod placement;
mod places;
mod producer;
pub mod routing;
#[cfg(test)]
mod testing;
mod turn;

pub use admin::{Admin, Applications};
pub use client::{Client, ClientBuilder};
pub use consumer::{
    Batch, BatchRecord, CommitMode, ConsumedRecord, Consumer, ConsumerBuilder, ConsumerStats, GapPolicy, Position,
};
pub use error::ClientError;
pub use held::StreamLanes;
pub use kera_format::{Compression, Cursor, LaneId, Record, RecordView, StreamId, StreamOptions, StreamletId};
pub use kera_protocol::{Start, Status, StreamChanges, StreamInfo};
pub use producer::{Delivered, DeliveryReport, Producer, ProducerBuilder, ProducerStats};
pub use routing::Routing;

/// The front of a producer alone, to measure how fast it takes records. Not part of the API.
#[doc(hidden)]
pub mod measure {
    pub use crate::producer::{BufferSettings, Front};
}
