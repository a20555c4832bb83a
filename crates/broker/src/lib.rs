//! The broker role: appends what producers send, serves what consumers read, and shares a stream's groups among the
//! members of applications (thesis 6.3.2 and 7.1).
//!
//! | to | call |
//! | --- | --- |
//! | start | [`Broker::new`], [`Broker::stream_created`] for every stream of the catalog, then (after the log's recovery) [`Broker::open_applications`] |
//! | serve a connection | [`Broker::session`], and what [`BrokerSession`] says |
//! | follow the catalog | [`Broker::stream_created`], [`Broker::stream_altered`], [`Broker::stream_deleted`] |
//! | be one of several nodes | [`Broker::join_cluster`], [`Broker::set_nodes`], [`Broker::hear_of_stream`], [`Broker::hear_of_owners`], as the coordinators say, and [`News`] |
//! | give a streamlet to another node | [`Broker::let_go`], [`Broker::handed_over`], then [`Broker::set_owner`] or [`Broker::keep_streamlet`] |
//! | do either as moves are noted | [`Moving`] |
//! | take one | [`Broker::set_owner`], [`Broker::open_streamlet`] |
//! | take those of a lost node | [`Broker::set_owner`], [`Broker::take_over`], then [`Broker::rebuild`] |
//! | keep time | [`Broker::tick`], about once a second, from the maintenance thread |
//! | look inside | [`Broker::metrics`], [`Broker::latencies`] |
//!
//! A session runs on the I/O thread of its connection and never waits: what cannot be done now is remembered and taken up
//! again when the lane, the sink, the arena or the application that it depends on calls back. Everything is determined by the frames,
//! the clock and those calls, so the tests drive sessions without sockets. No sockets, files or clocks of the system in here.

mod acks;
mod adaptive;
mod applications;
mod broker;
mod config;
mod copying;
pub mod elsewhere;
mod entries;
mod failure;
mod groups;
mod handover;
mod lanes;
mod latency;
mod mend;
mod meter;
mod metrics;
mod moved;
mod moving;
mod ownership;
mod placing;
mod read;
mod recovery;
mod session;
mod signals;
mod standing;
mod streams;
mod subscribe;
mod visible;
mod waiters;
mod write;

pub use adaptive::{Adaptive, AdaptiveConfig, AdaptiveStats, LogChange, LogKind, Wrote};
pub use applications::{APPLICATIONS_STREAM, ApplicationCounts, ReplayReport, applications_stream_options};
pub use broker::{Broker, Opening};
pub use config::BrokerConfig;
pub use copying::{CopyRun, CopyStep};
pub use failure::Failure;
pub use handover::kept_state;
pub use latency::{BOUNDS_US, HistogramCounts, Latencies, LatencyHistogram};
pub use mend::{MendFrom, NotGathered, gather};
pub use meter::Meter;
pub use metrics::{BrokerCounts, BrokerMetrics};
pub use moved::Reading;
pub use moving::Moving;
pub use ownership::{Heard, Ownership, Whose};
pub use placing::{News, Placing, UNNUMBERED};
pub use recovery::{
    Copies, EndedLog, EndedView, HandedStates, NOT_READ_BACK, NoStates, NotTaken, Rebuild, RebuildTimes,
    RecoveryProgress, logs_without,
};
pub use session::BrokerSession;
pub use standing::SERVES_MS;
