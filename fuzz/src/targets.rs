//! One function for each structure that is read from outside: any bytes may come in, none may make it panic, and what was
//! read must hold together.

use kera_format::chunk::{ChunkView, Chunks};
use kera_format::container::{BatchHeader, ContainerHeader, ReleasedMap, Trailer, verify_image};
use kera_format::extent::{ExtentMarker, walk_image};
use kera_format::kafka_batch::{KAFKA_BATCH_HEADER_BYTES, KafkaBatchView, KafkaRecords};
use kera_format::segment::{SegmentHeader, SegmentProgress, closed_checksum};
use kera_format::{Compression, Records, arena, catalog, limits, vlog};
use kera_protocol::frame::FRAME_BYTES_MAX;
use kera_protocol::write::parse_results;
use kera_protocol::{
    Body, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, Op, ReadChunksView, WriteChunksView, for_each_message,
};
use std::fmt::Debug;

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const ALL: [Target; 11] = [
    ("record", record),
    ("chunk", chunk),
    ("segment", segment),
    ("compression", compression),
    ("kafka_batch", kafka_batch),
    ("frame", frame),
    ("message", message),
    ("container", container),
    ("vlog", vlog),
    ("catalog", catalog),
    ("arena", arena),
];

/// Puts the CRC-32C of `covered` where it is kept, if the bytes go that far.
fn repair(bytes: &mut [u8], covered: std::ops::Range<usize>, at: usize) {
    if let Some(checked) = bytes.get(covered) {
        let crc = kera_format::checksum::crc32c(checked);
        if let Some(place) = bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&crc.to_le_bytes());
        }
    }
}

/// `read`s the bytes as they are and with checksums put right.
fn both(data: &[u8], put_right: impl Fn(&mut [u8]), read: impl Fn(&[u8])) {
    read(data);
    let mut repaired = data.to_vec();
    put_right(&mut repaired);
    if repaired != data {
        read(&repaired);
    }
}

/// Records, back to back.
pub fn record(data: &[u8]) {
    let mut at = 0;
    for record in Records::new(data) {
        let Ok(record) = record else { return };
        assert_eq!(record.as_bytes(), &data[at..at + record.as_bytes().len()]);
        at += record.as_bytes().len();
        let keys: Vec<&[u8]> = record.keys().collect();
        assert_eq!((keys.len(), keys.first()), (record.key_count(), record.key().as_ref()));
        let written = kera_format::Record {
            keys: &keys,
            value: record.value(),
            version: record.version(),
            timestamp_ms: record.timestamp_ms(),
            checksum: record.as_bytes()[4] & 4 != 0,
        };
        if record.is_removed() {
            assert_eq!(record.as_bytes(), kera_format::record::REMOVED_RECORD);
            continue;
        }
        // One way to write a record: what was read is written as the same bytes, the checksum excepted.
        let mut bytes = Vec::new();
        written.encode(&mut bytes);
        assert_eq!(bytes.len(), record.as_bytes().len());
        assert!(record.verify().is_err() || bytes == record.as_bytes(), "{record:?}");
    }
    assert_eq!(at, data.len());
}

/// Chunks, back to back.
pub fn chunk(data: &[u8]) {
    both(data, repair_chunks, |data| {
        let mut at = 0;
        for chunk in Chunks::new(data) {
            let Ok(chunk) = chunk else { return };
            let header = chunk.header();
            assert_eq!(chunk.as_bytes(), &data[at..at + header.total_bytes()]);
            assert!(header.total_bytes() <= limits::CHUNK_BYTES_MAX && header.total_bytes().is_multiple_of(8));
            at += header.total_bytes();
            if let Ok(broker) = chunk.broker() {
                let mut stamped = chunk.as_bytes().to_vec();
                broker.stamp(&mut stamped);
                assert_eq!(stamped, chunk.as_bytes());
            }
            if chunk.verify().is_ok()
                && announced_bytes(chunk.payload()) <= 1 << 20
                && let Ok(payload) = chunk.uncompressed()
            {
                record(&payload);
            }
        }
        assert_eq!(at, data.len());
    });
}

fn repair_chunks(mut bytes: &mut [u8]) {
    while let Some(total) = ChunkView::parse(bytes).ok().map(|chunk| chunk.as_bytes().len()) {
        let unpadded = ChunkView::parse(bytes).map_or(0, |chunk| chunk.header().unpadded_bytes());
        repair(bytes, 44..unpadded, 40);
        repair(bytes, 4..44, 0);
        bytes = &mut bytes[total..];
    }
}

/// What a compressed payload says it grows to: targets leave out what would only take memory and time.
fn announced_bytes(payload: &[u8]) -> u32 {
    payload.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length))
}

/// A segment's header and, where there are, its chunks.
pub fn segment(data: &[u8]) {
    let put_right = |bytes: &mut [u8]| {
        repair(bytes, 0..60, 60);
        if bytes.len() >= 128 {
            repair_chunks(&mut bytes[128..]);
            let crc = closed_checksum(bytes);
            bytes[124..128].copy_from_slice(&crc.to_le_bytes());
        }
    };
    both(data, put_right, |data| {
        let Ok(header) = SegmentHeader::parse(data) else { return };
        let Ok(progress) = SegmentProgress::parse(data, header.capacity_bytes) else { return };
        assert!(progress.durable_head <= progress.head && progress.head <= header.capacity_bytes.into());
        let mut written = vec![0; 128];
        header.write(&mut written);
        assert_eq!(written[..64], data[..64]);
        progress.write(&mut written);
        assert_eq!(SegmentProgress::parse(&written, header.capacity_bytes), Ok(progress));
        if let Ok(verified) = verify_image(data) {
            assert_eq!(verified, (header, progress));
        }
    });
}

/// A Kafka batch and the records in it.
pub fn kafka_batch(data: &[u8]) {
    both(data, repair_kafka_batch, |data| {
        let Ok(batch) = KafkaBatchView::parse(data) else { return };
        let Ok(records) = batch.uncompressed(1 << 20) else { return };
        assert!(records.len() <= 1 << 20);
        let mut at = 0;
        for record in KafkaRecords::new(&batch, &records) {
            let Ok(record) = record else { return };
            assert_eq!(record.bytes, &records[at..at + record.bytes.len()]);
            at += record.bytes.len();
            assert!(record.offset_delta < batch.offsets());
            assert_eq!(record.headers().count(), record.headers().len(), "headers were checked with their record");
        }
        assert_eq!(at, records.len());
    });
}

/// Length and checksum; the latter is the only big-endian one.
fn repair_kafka_batch(bytes: &mut [u8]) {
    if bytes.len() >= KAFKA_BATCH_HEADER_BYTES {
        let length = bytes.len() as u32 - 12;
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        let crc = kera_format::checksum::crc32c(&bytes[21..]);
        bytes[17..21].copy_from_slice(&crc.to_be_bytes());
    }
}

/// A compressed payload, behind the number of its compression.
pub fn compression(data: &[u8]) {
    let Some((number, payload)) = data.split_first() else { return };
    let Ok(compression) = Compression::from_u8(number % 3) else { return };
    if compression != Compression::None && announced_bytes(payload) > 1 << 20 {
        return;
    }
    if let Ok(plain) = compression.decompress(payload) {
        assert_eq!(compression.decompress(&compression.compress(&plain)), Ok(plain));
    }
}

/// A frame, and its body as what its header says.
pub fn frame(data: &[u8]) {
    let Ok(header) = FrameHeader::parse(data, FRAME_BYTES_MAX) else { return };
    assert_eq!(header.to_bytes(), data[..FRAME_HEADER_BYTES]);
    let body = &data[FRAME_HEADER_BYTES..];
    if header.status != 0 {
        let _ = ErrorBody::decode(body);
    } else if let Some(op) = Op::from_u16(header.op) {
        read_body(op, header.version, body);
    }
}

/// A body, behind the operation's place in [`Op::ALL`] and the version.
pub fn message(data: &[u8]) {
    let [op, version, body @ ..] = data else { return };
    read_body(Op::ALL[usize::from(*op) % Op::ALL.len()], *version, body);
}

fn read_body(op: Op, version: u8, body: &[u8]) {
    macro_rules! read_as {
        ($($name:ident),+ $(,)?) => {{
            use kera_protocol::*;
            match op {
                $(Op::$name => {
                    same_again::<$name>(version, body);
                    if $name::OP.check_version(version).is_ok() {
                        same_again::<<$name as Message>::Response>(version, body);
                    }
                }),+
            }
        }};
    }
    for_each_message!(read_as);
    read_in_place(version, body);
}

/// What was read is read again from what it is written as.
fn same_again<B: Body + PartialEq + Debug>(version: u8, body: &[u8]) {
    if let Ok(read) = B::decode(version, body) {
        let mut written = Vec::new();
        read.encode(version, &mut written);
        assert_eq!(written.len(), body.len(), "{read:?}");
        assert_eq!(B::decode(version, &written), Ok(read));
    }
}

fn read_in_place(version: u8, body: &[u8]) {
    if let Ok(view) = WriteChunksView::parse(version, body) {
        let mut chunks = view.chunks();
        let good = chunks.by_ref().take_while(Result::is_ok).count();
        assert!(good <= view.chunk_count() as usize && chunks.offset() <= view.chunk_bytes().len());
        let _ = view.chunks_from(chunks.index(), chunks.offset()).count();
    }
    if let Ok(results) = parse_results(body) {
        assert_eq!(8 + 32 * results.count(), body.len());
    }
    if let Ok(view) = ReadChunksView::parse(body) {
        let data: usize = view.answers().map(|(_, data)| data.len()).sum();
        assert_eq!(8 + 56 * view.count() + data, body.len());
    }
}

/// The pages of a container.
pub fn container(data: &[u8]) {
    let put_right = |bytes: &mut [u8]| {
        let entries_end = bytes.len();
        repair(bytes, 64..entries_end, 56);
        repair(bytes, 0..60, 60);
    };
    both(data, put_right, |data| {
        let _ = ContainerHeader::parse(data);
        let _ = ReleasedMap::parse(data);
        if let Ok(marker) = ExtentMarker::parse(data) {
            assert!(marker.image_at() > marker.index_at() && marker.end() > marker.image_at());
        }
        if let Ok((header, progress)) = walk_image(data) {
            assert!(progress.head <= data.len() as u64 && progress.head <= header.capacity_bytes.into());
        }
        if let Ok(batch) = BatchHeader::parse(data)
            && let Ok(entries) = batch.entries(data)
        {
            assert_eq!(entries.len(), batch.count() as usize);
        }
        for file_bytes in [data.len() as u64, 16_384] {
            if let Ok(trailer) = Trailer::parse(data, file_bytes)
                && let Ok(entries) = trailer.entries(data)
            {
                assert_eq!(entries.len(), trailer.count() as usize);
            }
        }
    });
}

/// A virtual log's file header or block.
pub fn vlog(data: &[u8]) {
    let put_right = |bytes: &mut [u8]| {
        if let Ok(block) = vlog::BlockHeader::parse(bytes) {
            repair(bytes, 64..64 + block.chunk_bytes as usize, 52);
        }
        repair(bytes, 0..60, 60);
    };
    both(data, put_right, |data| {
        if let Ok(file) = vlog::FileHeader::parse(data) {
            let mut written = vec![0; 64];
            file.write(&mut written);
            assert_eq!(vlog::FileHeader::parse(&written), Ok(file));
        }
        let Ok(block) = vlog::BlockHeader::parse(data) else { return };
        assert!(block.total_bytes().is_multiple_of(4096));
        let mut written = vec![0; 64];
        block.write(&mut written);
        assert_eq!(vlog::BlockHeader::parse(&written), Ok(block));
        if block.verify_chunks(&data[64..]).is_ok() {
            chunk(&data[64..64 + block.chunk_bytes as usize]);
        }
    });
}

/// A catalog's file header, or its entries.
pub fn catalog(data: &[u8]) {
    let put_right = |bytes: &mut [u8]| {
        repair(bytes, 0..60, 60);
        let length = bytes.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        repair(bytes, 4..length as usize, 0);
    };
    both(data, put_right, |data| {
        if let Ok(header) = catalog::FileHeader::parse(data) {
            assert_eq!(catalog::FileHeader::parse(&header.encode()), Ok(header));
        }
        let mut rest = data;
        while let Ok((index, entry, bytes)) = catalog::Entry::parse(rest) {
            let mut written = Vec::new();
            entry.encode(index, &mut written);
            assert_eq!(catalog::Entry::parse(&written), Ok((index, entry, written.len())));
            rest = &rest[bytes..];
        }
    });
}

/// An arena's header page and block table.
pub fn arena(data: &[u8]) {
    both(
        data,
        |bytes| repair(bytes, 0..76, 76),
        |data| {
            if let Ok(header) = arena::ArenaHeader::parse(data) {
                assert_eq!(header.encode(), data[..80]);
                assert!(header.file_bytes() > header.bytes);
            }
            for byte in data {
                if let Some(entry) = arena::TableEntry::from_byte(*byte) {
                    assert_eq!(entry.to_byte(), *byte);
                }
            }
        },
    );
}
