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

/// Most items of a page that is asked for with this `limit`; zero: as many as a page may have.
pub fn page_items(limit: u32) -> usize {
    if limit == 0 { PAGE_ITEMS_MAX } else { PAGE_ITEMS_MAX.min(limit as usize) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_was_asked_for_up_to_the_limit() {
        let items = [0, 1, PAGE_ITEMS_MAX as u32, PAGE_ITEMS_MAX as u32 + 1, u32::MAX].map(page_items);
        assert_eq!(items, [PAGE_ITEMS_MAX, 1, PAGE_ITEMS_MAX, PAGE_ITEMS_MAX, PAGE_ITEMS_MAX]);
    }
}
