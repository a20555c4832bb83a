//! Which partition is which lane: partition *p* of a topic whose streamlets have *q* lanes is lane *p* mod *q* of streamlet *p* / *q*.

use kera_format::{LaneId, StreamOptions, StreamletId};

/// How many partitions a stream has.
pub(crate) fn partitions_of(options: &StreamOptions) -> u32 {
    options.streamlets.saturating_mul(options.lanes)
}

/// The place of a partition in a stream with so many lanes in each streamlet.
pub(crate) fn place_of(partition: u32, lanes: u32) -> (StreamletId, LaneId) {
    let lanes = lanes.max(1);
    (StreamletId(partition / lanes), LaneId(partition % lanes))
}

/// The streamlet of a partition.
pub(crate) fn streamlet_of(partition: u32, options: &StreamOptions) -> StreamletId {
    place_of(partition, options.lanes).0
}

/// The partition that a lane is.
pub(crate) fn partition_at((streamlet, lane): (StreamletId, LaneId), lanes: u32) -> u32 {
    streamlet.0.saturating_mul(lanes.max(1)).saturating_add(lane.0)
}

/// Whether a topic has a partition.
pub(crate) fn has(options: &StreamOptions, partition: i32) -> bool {
    u32::try_from(partition).is_ok_and(|partition| partition < partitions_of(options))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_partition_has_a_place_and_each_place_is_one_partition() {
        let options = StreamOptions { streamlets: 5, lanes: 3, ..StreamOptions::default() };
        for partition in 0..partitions_of(&options) {
            let place = place_of(partition, options.lanes);
            assert!(place.0.0 < options.streamlets && place.1.0 < options.lanes);
            assert_eq!((partition_at(place, options.lanes), streamlet_of(partition, &options)), (partition, place.0));
            assert!(has(&options, partition.cast_signed()));
        }
        assert!(!has(&options, 15) && !has(&options, -1));
    }
}
