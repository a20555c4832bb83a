//! The experiments of the papers, and our own, on KerA and its peers, side by side in one run.
//!
//! An experiment is a file (`experiments/`); [`run::run`] measures it and hands out lines of raw results; [`results::Results`]
//! reads them again, whenever, for reports and comparisons. Everything runs on the caller's thread but for one that looks on; the
//! systems and their load generators are processes of their own.

mod counters;
pub mod definition;
pub mod metric;
pub mod profile;
pub mod ratios;
pub mod report;
pub mod results;
pub mod run;
pub mod sample;
pub mod stop;
pub mod systems;
pub mod workload;

pub use definition::Experiment;
pub use results::Results;
pub use stop::Stop;
