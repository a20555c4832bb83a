//! How much of streamlets that have moved the coordinators keep.

/// What the coordinators keep of a moved streamlet takes at most so much below level [`LARGE_MOVES`](crate::level::LARGE_MOVES), and from it on unless lanes and
/// applications alone take more: as many fit into one message between them as go there at once.
pub const HANDED_BYTES_MAX: usize = 64 << 10;
/// The largest such state. It has one entry of the coordinators' log, which is sent at once: with more the signs of life behind it would come late.
pub const HANDED_LARGE_BYTES_MAX: usize = 512 << 10;
/// Those with more than [`HANDED_BYTES_MAX`] take at most so much together: each node has them in memory, and each snapshot has them. What all lanes need
/// that a cluster may have fits twice.
pub const HANDED_LARGE_TOTAL_BYTES_MAX: usize = 64 << 20;
/// Those with no more than that take so much together: beyond three quarters of it producers are left out of what comes, more and more of them. A streamlet's state stays until it moves
/// again, and a cluster may have a million streamlets. Lanes and applications always go along, which are bounded by themselves.
pub const HANDED_USUAL_TOTAL_BYTES_MAX: usize = 256 << 20;
