//! The log with its store: compaction against a list of everything, and more data than memory.
//!
//! One binary for both: each binary more is another link of everything, and waits alone for its slowest test.

mod compaction;
mod store;
