//! Segment headers, ids, names and stream options: limits, and properties over any of them.

use kera_format::ids::*;
use kera_format::segment::{REWRITES_MAX, SegmentHeader, SegmentProgress, SegmentState, at};
use kera_format::{Cleanup, Durability, FormatError, Order, StreamOptions, limits};
use proptest::prelude::*;

fn any_header() -> impl Strategy<Value = SegmentHeader> {
    let id = (any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u32>());
    (id, 16u32..=24, any::<u64>(), any::<i64>(), any::<u32>()).prop_map(
        |(id, power, base_ordinal, created_ms, flags)| {
            let id = SegmentId {
                stream: StreamId(id.0),
                streamlet: StreamletId(id.1),
                lane: LaneId(id.2),
                group: GroupId(id.3),
                index: SegmentIndex(id.4),
            };
            SegmentHeader { id, capacity_bytes: 1 << power, base_ordinal, created_ms, flags }
        },
    )
}

fn any_progress() -> impl Strategy<Value = SegmentProgress> {
    let state = prop::sample::select(&[SegmentState::Open, SegmentState::Closed, SegmentState::ClosedGroup][..]);
    let heads = (16u64..=8192, 16u64..=8192);
    (heads, state, any::<u64>(), any::<u32>(), any::<(i64, i64, i64)>()).prop_map(
        |((a, b), state, next_ordinal, chunk_count, times)| SegmentProgress {
            head: 8 * a.max(b),
            durable_head: 8 * a.min(b),
            next_ordinal,
            state,
            chunk_count,
            first_append_ms: times.0,
            last_append_ms: times.1,
            max_timestamp_ms: times.2,
        },
    )
}

proptest! {
    #[test]
    fn a_segment_header_comes_back_as_it_was_written(header in any_header(), progress in any_progress()) {
        let mut bytes = vec![0xff; 128];
        header.write(&mut bytes);
        progress.write(&mut bytes);
        prop_assert_eq!(SegmentHeader::parse(&bytes), Ok(header));
        prop_assert_eq!(SegmentProgress::parse(&bytes, header.capacity_bytes), Ok(progress));
        for length in 0..bytes.len() {
            prop_assert!(SegmentHeader::parse(&bytes[..length]).is_err());
            prop_assert!(SegmentProgress::parse(&bytes[..length], header.capacity_bytes).is_err());
        }
    }

    #[test]
    fn what_is_left_of_a_segment_that_was_cut_counts_before_the_longer_one(header in any_header()) {
        let expected = (header.rewrites() < REWRITES_MAX).then(|| header.rewrites() + 1);
        prop_assert_eq!(header.cut().map(|cut| cut.rewrites()), expected);
        let rest = |header: SegmentHeader| (header.is_compacted(), header.has_forgotten(), header.flags & 1, header.created_ms);
        prop_assert!(header.cut().is_none_or(|cut| rest(cut) == rest(header)));
    }

    #[test]
    fn the_first_half_notices_any_changed_bit(header in any_header(), at in 0usize..64, bit in 0u8..8) {
        let mut bytes = vec![0; 128];
        header.write(&mut bytes);
        bytes[at] ^= 1 << bit;
        prop_assert!(SegmentHeader::parse(&bytes).is_err());
    }

    #[test]
    fn a_closed_second_half_notices_any_changed_bit_but_of_the_durable_head(
        progress in any_progress(), at in 64usize..128, bit in 0u8..8,
    ) {
        let progress = SegmentProgress { state: SegmentState::Closed, ..progress };
        let mut bytes = vec![0; 128];
        progress.write(&mut bytes);
        bytes[at] ^= 1 << bit;
        let durable_head = (at::DURABLE_HEAD..at::NEXT_ORDINAL).contains(&at);
        // `Closed` is two bits away from `Open`, which carries no checksum; `ClosedGroup` is one, so it is left out.
        prop_assert!(durable_head || SegmentProgress::parse(&bytes, 1 << 24).is_err());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), capacity in any::<u32>()) {
        let _ = SegmentHeader::parse(&bytes);
        let _ = SegmentProgress::parse(&bytes, capacity);
    }

    #[test]
    fn group_ids_order_as_epoch_and_number_do(a in any::<(u32, u32)>(), b in any::<(u32, u32)>()) {
        let (x, y) = (GroupId::new(a.0, a.1), GroupId::new(b.0, b.1));
        prop_assert_eq!((x.epoch(), x.number()), a);
        prop_assert_eq!(x.cmp(&y), a.cmp(&b));
    }
}

#[test]
fn a_cursor_orders_by_group_then_segment_then_position() {
    let cursor = |group, segment, position| Cursor { group: GroupId(group), segment: SegmentIndex(segment), position };
    let ordered = [cursor(0, 0, 0), cursor(1, 0, 128), cursor(1, 0, 136), cursor(1, 1, 0), cursor(2, 0, 0)];
    assert!(ordered.is_sorted_by(|a, b| a < b));
    assert_eq!(ordered[0], Cursor::default());
}

#[test]
fn ids_show_as_people_read_them() {
    assert_eq!(GroupId::new(7, 9).to_string(), "7.9");
    assert_eq!(format!("{:?}", GroupId::new(7, 9)), "GroupId(7.9)");
    assert_eq!(format!("{:?} {}", StreamId(5), StreamId(5)), "StreamId(5) 5");
    let id = SegmentId { stream: StreamId(1), group: GroupId::new(2, 3), ..SegmentId::default() };
    assert_eq!(id.to_string(), "1/0/0/2.3/0");
}

#[test]
fn names_follow_the_rule_of_kafka_topics() {
    let longest = "x".repeat(249);
    for name in ["a", "A.b_c-9", "...", "_kera.applications", &longest] {
        assert!(limits::name_is_valid(name), "{name}");
    }
    let too_long = "x".repeat(250);
    for name in ["", ".", "..", "a b", "a/b", "é", "a\n", &too_long] {
        assert!(!limits::name_is_valid(name), "{name}");
    }
}

fn wrong(options: StreamOptions) -> Vec<&'static str> {
    let field = |error: &FormatError| match error {
        FormatError::BadField { field, .. } | FormatError::OverLimit { field, .. } => *field,
        other => panic!("another error: {other}"),
    };
    options.check().iter().map(field).collect()
}

#[test]
fn default_options_are_within_their_limits() {
    assert!(wrong(StreamOptions::default()).is_empty());
}

#[test]
fn the_largest_and_smallest_options_are_within_their_limits() {
    let largest = StreamOptions {
        streamlets: limits::STREAMLETS_MAX,
        lanes: 8,
        segments_per_group: limits::SEGMENTS_PER_GROUP_MAX,
        segment_bytes_max: 16 << 20,
        replication: 16,
        retention_ms: Some(i64::MAX as u64),
        retention_bytes: None,
        virtual_logs: limits::VIRTUAL_LOGS_MAX,
        ..StreamOptions::default()
    };
    assert!(wrong(largest).is_empty());
    let smallest = StreamOptions {
        segments_per_group: 1,
        segment_bytes_max: 64 << 10,
        retention_ms: Some(1),
        retention_bytes: Some(1),
        ..StreamOptions::default()
    };
    assert!(wrong(smallest).is_empty());
}

#[test]
fn all_mistakes_in_options_are_told_at_once() {
    let options = StreamOptions {
        streamlets: 0,
        lanes: limits::LANES_MAX + 1,
        segments_per_group: 0,
        segment_bytes_max: 100_000,
        replication: 17,
        retention_ms: Some(0),
        retention_bytes: Some(u64::MAX),
        virtual_logs: limits::VIRTUAL_LOGS_MAX + 1,
        segment_ms: 0,
        compact_dirty_percent: 101,
        compact_after_ms: u64::MAX,
        compact_within_ms: Some(1),
        tombstone_ms: u64::MAX,
        ..StreamOptions::default()
    };
    assert_eq!(
        wrong(options),
        [
            "streamlets",
            "lanes",
            "segments_per_group",
            "replication",
            "retention_time",
            "retention_bytes",
            "virtual_logs",
            "segment_time",
            "compact_dirty_percent",
            "compact_after",
            "tombstone_time",
            "compact_within",
            "segment_bytes"
        ]
    );
    let many = StreamOptions { streamlets: 131_072, lanes: 4_096, ..StreamOptions::default() };
    assert_eq!(wrong(many), ["streamlets × lanes"]);
}

#[test]
fn choices_have_names_and_numbers_that_stay() {
    for (number, name) in ["process", "power"].iter().enumerate() {
        let durability: Durability = name.parse().expect(name);
        assert_eq!(Durability::from_u8(number as u8), Some(durability));
        assert_eq!(durability.to_string(), *name);
    }
    assert_eq!((Order::from_u8(0), Order::from_u8(1)), (Some(Order::Lane), Some(Order::None)));
    assert_eq!((Cleanup::from_u8(0), Cleanup::from_u8(1)), (Some(Cleanup::Delete), Some(Cleanup::Compact)));
    assert_eq!(Cleanup::from_u8(2), Some(Cleanup::CompactDelete));
    assert_eq!("compact,delete".parse(), Ok(Cleanup::CompactDelete));
    assert_eq!((Durability::from_u8(2), Order::from_u8(2), Cleanup::from_u8(3)), (None, None, None));
    assert_eq!("disk".parse::<Durability>(), Err("`disk` is none of: process, power".to_owned()));
}
