//! Copying, checksums and the load generator itself: one thread, no system calls.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kera_format::checksum::crc32c;
use kera_format::chunk::{ChunkTarget, Chunks};
use kera_format::{CHUNK_HEADER_BYTES, ChunkBuilder, Compression, ProducerId, StreamId};

use super::GeneratorCost;
use crate::BenchError;
use crate::keys::KeyDistribution;
use crate::source::{RecordSource, Shape, stamp_of};

const AREA_BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 64 << 10;
const CHECKSUM_PIECE_BYTES: usize = 16 << 10;
const CHUNK_BYTES: usize = 16 << 10;
const VALUE_BYTES: usize = 100;
/// Records between two looks at the clock.
const ROUND: u32 = 4096;

/// Bytes per second from one area of 64 MiB to another, in pieces of 64 KiB.
pub(super) fn copy(time: Duration) -> f64 {
    let from = vec![1u8; AREA_BYTES];
    let mut to = vec![2u8; AREA_BYTES];
    rate(time, AREA_BYTES, || {
        for (to, from) in to.chunks_mut(PIECE_BYTES).zip(from.chunks(PIECE_BYTES)) {
            black_box(&mut *to).copy_from_slice(black_box(from));
        }
    })
}

/// Bytes per second of checksums over an area of 1 MiB, in pieces of 16 KiB.
pub(super) fn checksum(time: Duration) -> f64 {
    let area = vec![1u8; 1 << 20];
    rate(time, area.len(), || {
        for piece in area.chunks(CHECKSUM_PIECE_BYTES) {
            black_box(crc32c(black_box(piece)));
        }
    })
}

fn rate(time: Duration, bytes_per_round: usize, mut round: impl FnMut()) -> f64 {
    round();
    let started = Instant::now();
    let mut rounds = 0u64;
    while rounds == 0 || started.elapsed() < time {
        round();
        rounds += 1;
    }
    rounds as f64 * bytes_per_round as f64 / started.elapsed().as_secs_f64()
}

/// What the load generator costs for each record of 100 bytes without a key.
pub(super) fn generator(time: Duration) -> Result<GeneratorCost, BenchError> {
    let shape = Shape { value_bytes: VALUE_BYTES, keys: KeyDistribution::None, key_count: 1, checksum: false };
    let mut source = RecordSource::new(&shape, 1);
    let make = rate(time, ROUND as usize, || {
        source.prepare(ROUND as usize, 128, 1);
        source.records(&source.key_refs()).for_each(|record| {
            black_box(&record);
        });
    });
    let mut encoder = Encoder { builder: None, sealed: Vec::new(), buffer: Vec::with_capacity(CHUNK_BYTES + 256) };
    let mut failed = None;
    let encode = rate(time, ROUND as usize, || {
        source.prepare(ROUND as usize, 128, 0);
        for record in source.records(&source.key_refs()) {
            if let Err(error) = encoder.push(&record) {
                failed = Some(error);
            }
        }
    });
    if let Some(error) = failed {
        return Err(error.into());
    }
    let chunk = encoder.sealed;
    let records = (CHUNK_BYTES - CHUNK_HEADER_BYTES) / (VALUE_BYTES + kera_format::record::RECORD_HEADER_BYTES);
    let scan = rate(time, records, || {
        let stamps = Chunks::new(black_box(&chunk)).flatten().flat_map(|chunk| chunk.records().flatten());
        let found = stamps.map(|record| stamp_of(record.value().unwrap_or_default())).filter(|&stamp| stamp != 0);
        black_box(found.count());
    });
    Ok(GeneratorCost { make_ns: 1e9 / make, encode_ns: 1e9 / encode, scan_ns: 1e9 / scan })
}

/// Fills chunks of 16 KiB and throws them away, reusing the buffer, as a producer's pool does.
struct Encoder {
    builder: Option<ChunkBuilder>,
    sealed: Vec<u8>,
    buffer: Vec<u8>,
}

impl Encoder {
    #[inline]
    fn push(&mut self, record: &kera_format::Record<'_>) -> Result<(), kera_format::FormatError> {
        if self.builder.as_ref().is_some_and(|builder| builder.bytes() + record.encoded_bytes() > CHUNK_BYTES) {
            self.seal()?;
        }
        self.builder.get_or_insert_with(|| ChunkBuilder::with_buffer(std::mem::take(&mut self.buffer))).push(record);
        Ok(())
    }

    fn seal(&mut self) -> Result<(), kera_format::FormatError> {
        if let Some(builder) = self.builder.take() {
            let target = ChunkTarget { stream: StreamId(1), producer_id: ProducerId(1), ..ChunkTarget::default() };
            let sealed = black_box(builder.seal(&target, Compression::None)?);
            self.buffer = std::mem::replace(&mut self.sealed, sealed);
        }
        Ok(())
    }
}
