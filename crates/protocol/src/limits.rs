//! Counts that the receiving side checks beyond the bounds of the frame itself; sizes of stored things are in
//! [`kera_format::limits`].

/// Most entries of one `ReadChunks` or `Subscribe`.
pub const READ_ENTRIES_MAX: usize = 65_536;
/// Most entries of one `CommitOffsets`.
pub const COMMIT_ENTRIES_MAX: usize = 65_536;
/// Most items of one page of a listing; more are asked for with `after`.
pub const PAGE_ITEMS_MAX: usize = 10_000;
/// Most streams of one `FindOwners`.
pub const OWNER_STREAMS_MAX: usize = 1_000;
/// Most lanes of one `SetFloors`.
pub const FLOORS_MAX: usize = 1_000;
/// Most ranges of streamlets of one `RebuildNeeds`.
pub const REBUILD_RUNS_MAX: usize = kera_format::cluster::REBUILD_RUNS_MAX;
/// Most logs of one `RebuildNeeds`.
pub const REBUILD_LOGS_MAX: usize = kera_format::cluster::REBUILD_LOGS_MAX;
/// Most ends of one `UseEnds`.
pub const USED_ENDS_MAX: usize = kera_format::cluster::USED_ENDS_MAX;
/// Most streamlets of one `NodeLoad` that are looked at.
pub const LOAD_STREAMLETS_MAX: usize = 64;
/// Most moves of one `PlanBalance`.
pub const BALANCE_MOVES_MAX: usize = 256;
/// Longest text that a client may give as its own name or a member's name, in bytes.
pub const CLIENT_NAME_BYTES_MAX: usize = 255;
/// Longest message of an [`crate::ErrorBody`], in bytes; longer ones are cut.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 4_096;
/// Longest wait that a request may ask for; longer ones are cut to it.
pub const WAIT_MS_MAX: u32 = 600_000;
