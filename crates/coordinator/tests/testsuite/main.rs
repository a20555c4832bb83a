//! What coordinators decide, entry by entry.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod balance;
mod came_back_empty;
mod cluster_moves;
mod cluster_rules;
mod commands;
mod copies;
mod crash;
mod given_back;
mod goes_on;
mod lost_ends;
mod lost_for_one;
mod lost_logs;
mod numbers;
mod open_ends;
mod rebuild_needs;
mod rebuilt_from;
mod returned;
mod skipped;
mod support;
mod used_ends;
