//! What each command does. One module per command, called once from `main` on the main thread.

pub mod application;
pub mod away;
pub mod cluster;
pub mod config;
pub mod consume;
pub mod copies;
pub mod demo;
pub mod held;
pub mod last;
pub mod level;
pub mod logs;
pub mod moves;
pub mod owners;
pub mod printing;
pub mod produce;
pub mod recover;
pub mod serve;
pub mod starts;
pub mod status;
pub mod stream;
pub mod top;
