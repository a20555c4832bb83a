//! Records and chunks: limits, every way to be wrong, and properties over any of them.

use kera_format::checksum::crc32c;
use kera_format::chunk::{Chunk, ChunkTarget, Chunks, KafkaChunk, NO_TIMESTAMP, PayloadKind, seal_in_place};
use kera_format::ids::*;
use kera_format::{
    BrokerPart, CHUNK_HEADER_BYTES, ChunkBuilder, ChunkHeader, ChunkView, Compression, FormatError, Record, RecordView,
    Records, limits,
};
use proptest::prelude::*;

const COMPRESSIONS: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

/// What a [`Record`] borrows from.
#[derive(Clone, Debug)]
struct Owned {
    keys: Vec<Vec<u8>>,
    value: Option<Vec<u8>>,
    version: Option<u64>,
    timestamp_ms: Option<i64>,
    checksum: bool,
}

impl Owned {
    fn with<T>(&self, use_it: impl FnOnce(&Record<'_>) -> T) -> T {
        let keys: Vec<&[u8]> = self.keys.iter().map(Vec::as_slice).collect();
        let Owned { value, version, timestamp_ms, checksum, .. } = self;
        use_it(&Record {
            keys: &keys,
            value: value.as_deref(),
            version: *version,
            timestamp_ms: *timestamp_ms,
            checksum: *checksum,
        })
    }

    fn encoded(&self) -> Vec<u8> {
        self.with(|record| {
            let mut out = Vec::new();
            record.encode(&mut out);
            assert_eq!(out.len(), record.encoded_bytes());
            out
        })
    }

    fn is(&self, view: &RecordView<'_>) {
        assert_eq!(view.keys().collect::<Vec<_>>(), self.keys);
        assert_eq!(view.key_count(), self.keys.len());
        assert_eq!(view.value(), self.value.as_deref());
        assert_eq!((view.version(), view.timestamp_ms()), (self.version, self.timestamp_ms));
        assert_eq!(view.verify(), Ok(()));
    }
}

fn any_record() -> impl Strategy<Value = Owned> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
    (
        proptest::collection::vec(bytes(), 0..4),
        proptest::option::of(bytes()),
        any::<Option<u64>>(),
        any::<Option<i64>>(),
    )
        .prop_flat_map(|(keys, value, version, timestamp_ms)| {
            any::<bool>().prop_map(move |checksum| Owned {
                keys: keys.clone(),
                value: value.clone(),
                version,
                timestamp_ms,
                checksum,
            })
        })
}

fn any_target() -> impl Strategy<Value = ChunkTarget> {
    (any::<u64>(), any::<u32>(), any::<u64>(), any::<u16>(), any::<u64>()).prop_map(
        |(stream, streamlet, id, epoch, n)| ChunkTarget {
            stream: StreamId(stream),
            streamlet: StreamletId(streamlet),
            producer_id: ProducerId(id),
            producer_epoch: ProducerEpoch(epoch),
            sequence: n,
        },
    )
}

fn any_broker_part() -> impl Strategy<Value = BrokerPart> {
    (any::<u64>(), any::<u32>(), any::<u64>(), any::<i64>(), any::<u32>(), any::<u32>()).prop_map(
        |(group, segment, base_ordinal, append_time_ms, lane, position)| BrokerPart {
            group: GroupId(group),
            segment: SegmentIndex(segment),
            base_ordinal,
            append_time_ms,
            lane: LaneId(lane),
            position,
        },
    )
}

/// Whatever `bytes` are, reading them as anything does not panic, and what is read lies within them.
fn read_everything(bytes: &[u8]) {
    for record in Records::new(bytes) {
        let Ok(record) = record else { break };
        let parts: usize = record.keys().map(<[u8]>::len).sum::<usize>() + record.value().map_or(0, <[u8]>::len);
        assert!(parts <= record.as_bytes().len());
        let _ = (record.key(), record.version(), record.timestamp_ms(), record.verify(), format!("{record:?}"));
    }
    for chunk in Chunks::new(bytes) {
        let Ok(chunk) = chunk else { break };
        assert!(chunk.as_bytes().len() <= bytes.len() && chunk.payload().len() < chunk.as_bytes().len());
        let _ = (chunk.verify(), chunk.broker());
        if let Ok(payload) = chunk.uncompressed() {
            assert!(payload.len() <= limits::CHUNK_UNCOMPRESSED_BYTES_MAX);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_record_comes_back_as_it_was_written(record in any_record()) {
        let bytes = record.encoded();
        let view = RecordView::parse(&bytes).unwrap();
        prop_assert_eq!(view.as_bytes(), &bytes[..]);
        record.is(&view);
    }

    #[test]
    fn a_record_that_is_cut_is_an_error(record in any_record()) {
        let bytes = record.encoded();
        for length in 0..bytes.len() {
            prop_assert!(RecordView::parse(&bytes[..length]).is_err(), "cut at {}", length);
        }
    }

    #[test]
    fn a_records_own_checksum_notices_any_changed_bit(mut record in any_record(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        record.checksum = true;
        let mut bytes = record.encoded();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let noticed = match RecordView::parse(&bytes) {
            Err(_) => true,
            // The flag that says that there is a checksum is the one bit that it cannot guard.
            Ok(view) => view.verify().is_err() || bytes[4] & 4 == 0,
        };
        prop_assert!(noticed);
    }

    #[test]
    fn a_chunk_comes_back_as_it_was_sealed(
        records in proptest::collection::vec(any_record(), 1..20),
        target in any_target(),
        broker in any_broker_part(),
        compression in prop::sample::select(&COMPRESSIONS[..]),
    ) {
        let mut builder = ChunkBuilder::with_buffer(vec![9; 50]);
        records.iter().for_each(|record| record.with(|record| builder.push(record)));
        prop_assert_eq!(builder.record_count() as usize, records.len());
        let mut bytes = builder.seal(&target, compression).unwrap();
        broker.stamp(&mut bytes);
        let view = ChunkView::parse(&bytes).unwrap();
        prop_assert_eq!(view.verify(), Ok(()));
        prop_assert_eq!(view.broker(), Ok(broker));
        let header = view.header();
        prop_assert_eq!(header.total_bytes(), bytes.len());
        prop_assert_eq!((header.stream, header.streamlet), (target.stream, target.streamlet));
        prop_assert_eq!((header.producer_id, header.producer_epoch), (target.producer_id, target.producer_epoch));
        prop_assert_eq!((header.sequence, header.record_count), (target.sequence, records.len() as u32));
        let latest = records.iter().filter_map(|record| record.timestamp_ms).max();
        prop_assert_eq!(header.max_timestamp_ms, latest.unwrap_or(NO_TIMESTAMP));
        let payload = view.uncompressed().unwrap();
        let read: Vec<_> = Records::new(&payload).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(read.len(), records.len());
        records.iter().zip(&read).for_each(|(record, view)| record.is(view));
    }

    /// A batch beside its header is the chunk that the same bytes in one piece are, checksum included, and is verified by the
    /// batch's own checksum.
    #[test]
    fn a_batch_beside_its_header_is_the_chunk_that_it_is_in_one_piece(
        batch in proptest::collection::vec(any::<u8>(), 21..600),
        target in any_target(),
        changed in any::<prop::sample::Index>(),
    ) {
        let crc = crc32c(&batch[21..]);
        let beside = KafkaChunk::new(&batch, &target, 1, 5, 21, crc).unwrap();
        let mut whole = vec![0; CHUNK_HEADER_BYTES];
        whole.extend_from_slice(&batch);
        seal_in_place(&mut whole, &target, PayloadKind::KafkaBatch, Compression::None, 1, 5).unwrap();
        let view = ChunkView::parse(&whole).unwrap();
        prop_assert_eq!(Chunk::header(&beside), view.header());
        prop_assert_eq!((beside.verify(), view.verify()), (Ok(()), Ok(())));
        let parts = |chunk: &dyn Chunk| [chunk.parts().0, chunk.parts().1].concat();
        prop_assert_eq!(parts(&beside), parts(&view));
        // What the batch says of itself is not true: it cannot be verified.
        let mut damaged = batch.clone();
        let at = changed.index(batch.len());
        damaged[at] ^= 4;
        let beside = KafkaChunk::new(&damaged, &target, 1, 5, 21, crc).unwrap();
        prop_assert_eq!(beside.verify().is_err(), at >= 21, "the first bytes are the broker's to change");
    }

    #[test]
    fn a_chunk_that_is_cut_is_an_error(record in any_record(), target in any_target()) {
        let mut builder = ChunkBuilder::default();
        record.with(|record| builder.push(record));
        let bytes = builder.seal(&target, Compression::None).unwrap();
        for length in 0..bytes.len() {
            prop_assert!(ChunkView::parse(&bytes[..length]).is_err(), "cut at {}", length);
        }
    }

    #[test]
    fn checksums_notice_any_changed_bit(record in any_record(), broker in any_broker_part(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut builder = ChunkBuilder::default();
        record.with(|record| builder.push(record));
        let mut bytes = builder.seal(&ChunkTarget::default(), Compression::None).unwrap();
        broker.stamp(&mut bytes);
        let unpadded = ChunkView::parse(&bytes).unwrap().header().unpadded_bytes();
        bytes[at.index(unpadded)] ^= 1 << bit;
        let noticed = ChunkView::parse(&bytes).and_then(|view| {
            view.verify()?;
            view.broker()
        });
        prop_assert!(noticed.is_err());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        read_everything(&bytes);
        for compression in COMPRESSIONS {
            let mut small = bytes.clone();
            if let Some(high) = small.get_mut(2..4) {
                high.fill(0); // announces at most 64 KiB
            }
            let _ = compression.decompress(&small);
        }
    }

    #[test]
    fn compression_gives_back_what_it_got(payload in proptest::collection::vec(0u8..4, 0..5_000)) {
        let (mut packed, mut unpacked) = (vec![1; 10], vec![2; 20]);
        for compression in COMPRESSIONS {
            compression.compress_into(&payload, &mut packed);
            prop_assert_eq!(&packed, &compression.compress(&payload));
            compression.decompress_into(&packed, &mut unpacked).unwrap();
            prop_assert_eq!(&unpacked, &payload);
        }
    }
}

#[test]
fn a_record_without_keys_costs_8_bytes() {
    assert_eq!(Record::value(&[0; 100]).encoded_bytes(), 108);
}

fn over_limit(result: Result<(), FormatError>) -> &'static str {
    match result.expect_err("over a limit") {
        FormatError::OverLimit { field, .. } => field,
        other => panic!("another error: {other}"),
    }
}

#[test]
fn a_record_is_checked_against_its_limits() {
    let keys = vec![&b"k"[..]; 256];
    assert_eq!(Record { keys: &keys[..255], ..Record::default() }.check(), Ok(()));
    assert_eq!(over_limit(Record { keys: &keys, ..Record::default() }.check()), "record.key_count");

    let key = vec![0; limits::RECORD_VALUE_OFFSET_MAX - 10];
    assert_eq!(Record { keys: &[&key], ..Record::default() }.check(), Ok(()));
    let record = Record { keys: &[&key, b""], ..Record::default() };
    assert_eq!(over_limit(record.check()), "record.keys (bytes of header and keys together)");

    let value = vec![0; limits::CHUNK_BYTES_MAX];
    let largest = limits::CHUNK_BYTES_MAX - CHUNK_HEADER_BYTES - 8;
    assert_eq!(Record::value(&value[..largest]).check(), Ok(()));
    assert_eq!(over_limit(Record::value(&value[..largest + 1]).check()), "record.length");
}

#[test]
fn the_largest_record_fits_into_the_largest_chunk_and_that_into_the_largest_segment() {
    let value = vec![7; limits::CHUNK_BYTES_MAX - CHUNK_HEADER_BYTES - 8];
    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(&value));
    let chunk = builder.seal(&ChunkTarget::default(), Compression::None).expect("the largest chunk");
    assert_eq!(chunk.len(), limits::CHUNK_BYTES_MAX);
    assert_eq!(chunk.len() + kera_format::segment::SEGMENT_HEADER_BYTES, limits::SEGMENT_BYTES_MAX);
    assert_eq!(ChunkView::parse(&chunk).map(|view| view.payload().len()), Ok(value.len() + 8));

    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(&value));
    builder.push(&Record::value(b""));
    assert_eq!(over_limit(builder.seal(&ChunkTarget::default(), Compression::None).map(|_| ())), "chunk bytes");
}

#[test]
fn a_chunk_without_records_is_not_sealed() {
    let sealed = ChunkBuilder::default().seal(&ChunkTarget::default(), Compression::None);
    assert!(matches!(sealed, Err(FormatError::BadField { field: "chunk.record_count", .. })));
}

#[test]
fn a_chunk_claims_no_more_records_than_its_payload_can_hold() {
    let mut buffer = vec![0; CHUNK_HEADER_BYTES + 17];
    let seal = |buffer: &mut Vec<u8>, kind, compression, count| {
        buffer.truncate(CHUNK_HEADER_BYTES + 17);
        seal_in_place(buffer, &ChunkTarget::default(), kind, compression, count, 0)
    };
    assert_eq!(over_limit(seal(&mut buffer, PayloadKind::Records, Compression::None, 3)), "chunk.record_count");
    assert_eq!(over_limit(seal(&mut buffer, PayloadKind::Records, Compression::Lz4, u32::MAX)), "chunk.record_count");
    assert_eq!(
        over_limit(seal(&mut buffer, PayloadKind::KafkaBatch, Compression::None, u32::MAX)),
        "chunk.record_count"
    );
    assert_eq!(seal(&mut buffer, PayloadKind::KafkaBatch, Compression::None, 1_000), Ok(()));
    assert_eq!(seal(&mut buffer, PayloadKind::Records, Compression::None, 2), Ok(()));
    assert_eq!(ChunkHeader::parse(&buffer).map(|header| header.record_count), Ok(2));
}

#[test]
fn compression_that_does_not_help_is_left_out() {
    let value: Vec<u8> = (0..64u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect();
    for compression in COMPRESSIONS {
        let mut builder = ChunkBuilder::default();
        builder.push(&Record::value(&value));
        let chunk = builder.seal(&ChunkTarget::default(), compression).expect("a chunk");
        assert_eq!(ChunkHeader::parse(&chunk).map(|header| header.compression), Ok(Compression::None));
    }
}

#[test]
fn a_compressed_payload_that_would_grow_too_large_is_refused_before_memory_is_taken() {
    let announced = limits::CHUNK_UNCOMPRESSED_BYTES_MAX as u32 + 1;
    for compression in [Compression::Lz4, Compression::Zstd] {
        let error = compression.decompress(&announced.to_le_bytes()).expect_err("too large");
        assert!(matches!(error, FormatError::OverLimit { field: "compressed payload.uncompressed_bytes", .. }));
        assert!(matches!(compression.decompress(&[1, 2, 3]), Err(FormatError::Truncated { .. })));
    }
}

#[test]
fn a_compressed_payload_of_another_length_than_announced_is_refused() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        for announced in [9u32, 11] {
            let mut packed = compression.compress(&[5; 10]);
            packed[..4].copy_from_slice(&announced.to_le_bytes());
            let error = compression.decompress(&packed).expect_err("another length");
            assert!(matches!(error, FormatError::Decompress { .. }), "{error}");
            assert!(error.to_string().starts_with(compression.name()), "{error}");
        }
    }
}

#[test]
fn numbers_of_compressions_and_kinds_stay() {
    for (number, compression) in COMPRESSIONS.into_iter().enumerate() {
        assert_eq!(Compression::from_u8(number as u8), Ok(compression));
        assert_eq!(compression as u8, number as u8);
    }
    assert_eq!(COMPRESSIONS.map(Compression::name), ["none", "lz4", "zstd"]);
    assert_eq!(PayloadKind::from_u8(0), Ok(PayloadKind::Records));
    assert_eq!(PayloadKind::from_u8(1), Ok(PayloadKind::KafkaBatch));
    assert!(PayloadKind::from_u8(PayloadKind::ArrowIpc as u8).is_err());
}

#[test]
fn iterators_end_after_the_first_error() {
    let mut bytes = Vec::new();
    Record::value(b"one").encode(&mut bytes);
    bytes.extend_from_slice(&[1, 2, 3]);
    let mut records = Records::new(&bytes);
    assert!(records.next().is_some_and(|record| record.is_ok()));
    assert!(records.next().is_some_and(|record| record.is_err()));
    assert!(records.next().is_none());

    let mut builder = ChunkBuilder::default();
    builder.push(&Record::value(b"one"));
    let mut bytes = builder.seal(&ChunkTarget::default(), Compression::None).expect("a chunk");
    bytes.extend_from_slice(&[0; 200]);
    let mut chunks = Chunks::new(&bytes);
    assert!(chunks.next().is_some_and(|chunk| chunk.is_ok()));
    assert!(chunks.next().is_some_and(|chunk| chunk.is_err()));
    assert!(chunks.next().is_none());
}
