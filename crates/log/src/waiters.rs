//! Being called back, once: when a lane has moved, when the arena has room again.
//!
//! The broker's sessions wait here. A registration is one-shot and weak: it goes when it fires, and an observer that was
//! dropped is forgotten. Call-backs run on whatever thread made the change, never under a lane's lock.

/// Something that can be told to look again. A session of the broker is one.
pub trait Observer: Send + Sync {
    /// What was waited for may have happened. `token` is what the observer gave when it registered.
    ///
    /// Runs on the thread that made the change (an appender, a virtual log's writer, a loader): note it, wake somebody, and
    /// return. It must not append or read here. May be called without need.
    fn advanced(&self, token: u64);
}

/// A state of a lane: it changes whenever a reader could see something else than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LaneVersion(pub(crate) u64);

/// A state of the arena: it changes whenever a block is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceVersion(pub(crate) u64);
