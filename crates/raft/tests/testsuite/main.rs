//! Groups of coordinators over a network and disks that fail.
//!
//! One binary for all: each binary more is another link of everything, and waits alone for its slowest test.

mod faults;
mod group;
mod levels;
mod support;
mod survivor;
