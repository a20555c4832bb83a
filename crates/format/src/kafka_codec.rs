//! Compression of the records of a Kafka batch: the five kinds that its attributes name.
//!
//! Only who has to look into a batch comes here: native readers and compaction. A batch does not say how large its records are
//! without compression, so whoever opens one says what they may be at most, and nothing beyond that is kept in memory.

use std::borrow::Cow;
use std::io::{self, Read, Write};

use crate::FormatError;

/// How the records of a batch are compressed. The numbers are Kafka's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum KafkaCodec {
    /// Not at all.
    #[default]
    None = 0,
    /// Gzip.
    Gzip = 1,
    /// Snappy: one block as it is, or blocks in the frame of snappy-java, which Java's clients write.
    Snappy = 2,
    /// LZ4 frames.
    Lz4 = 3,
    /// Zstandard frames.
    Zstd = 4,
}

/// What a frame of snappy-java starts with; its version and the oldest one that reads it follow, four bytes each.
const SNAPPY_JAVA: [u8; 8] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0];
const SNAPPY_JAVA_HEADER_BYTES: usize = 16;
/// Zstandard frames whose window is larger are refused: 2^27 is what the library takes by itself, and so Kafka and its clients. An encoder that is not
/// told how much comes says that much at level 22, of a few bytes too. No memory is used for what a frame only promises: its window is asked for as a
/// whole and written as far as records fill it, which is `bytes_max` at most and a block. It goes with the decoder, so that each thread that opens batches
/// has one at a time.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// For who wants few bytes and has the time.
const ZSTD_BEST_LEVEL: i32 = 15;

impl KafkaCodec {
    /// From the lowest three bits of a batch's attributes.
    pub fn from_attributes(attributes: i16) -> Result<KafkaCodec, FormatError> {
        match attributes & 7 {
            0 => Ok(KafkaCodec::None),
            1 => Ok(KafkaCodec::Gzip),
            2 => Ok(KafkaCodec::Snappy),
            3 => Ok(KafkaCodec::Lz4),
            4 => Ok(KafkaCodec::Zstd),
            other => Err(FormatError::BadField {
                field: "kafka batch.compression",
                value: other.unsigned_abs().into(),
                allowed: "0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)",
            }),
        }
    }

    /// Kafka's name of it.
    pub fn name(self) -> &'static str {
        match self {
            KafkaCodec::None => "none",
            KafkaCodec::Gzip => "gzip",
            KafkaCodec::Snappy => "snappy",
            KafkaCodec::Lz4 => "lz4",
            KafkaCodec::Zstd => "zstd",
        }
    }

    /// Compresses records as Kafka's clients read them.
    pub fn compress(self, records: &[u8]) -> Vec<u8> {
        let in_memory = "writing into memory does not fail";
        match self {
            KafkaCodec::None => records.to_vec(),
            KafkaCodec::Gzip => gzip(records, flate2::Compression::default()),
            KafkaCodec::Snappy => {
                let mut out = vec![0; snap::raw::max_compress_len(records.len())];
                let bytes =
                    snap::raw::Encoder::new().compress(records, &mut out).expect("it is as large as the worst case");
                out.truncate(bytes);
                out
            }
            KafkaCodec::Lz4 => {
                // Blocks that stand alone, as Kafka's own clients write them.
                let info = lz4_flex::frame::FrameInfo::new().block_mode(lz4_flex::frame::BlockMode::Independent);
                let mut out = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
                out.write_all(records).expect(in_memory);
                out.finish().expect(in_memory)
            }
            KafkaCodec::Zstd => zstd::stream::encode_all(records, zstd::DEFAULT_COMPRESSION_LEVEL).expect(in_memory),
        }
    }

    /// The same in fewer bytes, for Gzip and Zstandard. Takes many times as long.
    pub fn compress_best(self, records: &[u8]) -> Vec<u8> {
        match self {
            KafkaCodec::Gzip => gzip(records, flate2::Compression::best()),
            KafkaCodec::Zstd => {
                zstd::stream::encode_all(records, ZSTD_BEST_LEVEL).expect("writing into memory does not fail")
            }
            KafkaCodec::None | KafkaCodec::Snappy | KafkaCodec::Lz4 => self.compress(records),
        }
    }

    /// Undoes it. What would be larger than `bytes_max` is refused, and takes little more memory than that before it is.
    pub fn decompress(self, records: &[u8], bytes_max: usize) -> Result<Cow<'_, [u8]>, FormatError> {
        let read = |from: &mut dyn Read| {
            let mut out = Vec::new();
            from.take(bytes_max as u64 + 1).read_to_end(&mut out).map_err(|error| self.failed(&error))?;
            self.check(out.len(), bytes_max)?;
            Ok(Cow::Owned(out))
        };
        match self {
            KafkaCodec::None => {
                self.check(records.len(), bytes_max)?;
                Ok(Cow::Borrowed(records))
            }
            KafkaCodec::Gzip => read(&mut flate2::read::MultiGzDecoder::new(records)),
            KafkaCodec::Snappy => self.unsnap(records, bytes_max).map(Cow::Owned),
            KafkaCodec::Lz4 => read(&mut lz4_flex::frame::FrameDecoder::new(records)),
            KafkaCodec::Zstd => {
                let failed = |error: io::Error| self.failed(&error);
                let mut from = zstd::stream::read::Decoder::with_buffer(records).map_err(failed)?;
                from.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(failed)?;
                read(&mut from)
            }
        }
    }

    fn unsnap(self, records: &[u8], bytes_max: usize) -> Result<Vec<u8>, FormatError> {
        let mut out = Vec::new();
        let mut add = |block: &[u8]| {
            let bytes = snap::raw::decompress_len(block).map_err(|error| self.failed(&error))?;
            self.check(out.len().saturating_add(bytes), bytes_max)?;
            let from = out.len();
            out.resize(from + bytes, 0);
            snap::raw::Decoder::new().decompress(block, &mut out[from..]).map_err(|error| self.failed(&error))?;
            Ok(())
        };
        if !records.starts_with(&SNAPPY_JAVA) {
            add(records)?;
            return Ok(out);
        }
        FormatError::need("snappy-java header", SNAPPY_JAVA_HEADER_BYTES, records.len())?;
        let mut rest = &records[SNAPPY_JAVA_HEADER_BYTES..];
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            FormatError::need("snappy-java block", length, after.len())?;
            let (block, after) = after.split_at(length);
            add(block)?;
            rest = after;
        }
        if rest.is_empty() { Ok(out) } else { Err(self.failed(&"the length of a block is cut off")) }
    }

    fn check(self, bytes: usize, bytes_max: usize) -> Result<(), FormatError> {
        if bytes <= bytes_max {
            return Ok(());
        }
        let (value, limit) = (bytes as u64, bytes_max as u64);
        Err(FormatError::OverLimit { field: "kafka batch.uncompressed bytes", value, limit })
    }

    fn failed(self, reason: &dyn ToString) -> FormatError {
        FormatError::Decompress { codec: self.name(), reason: reason.to_string() }
    }
}

fn gzip(records: &[u8], level: flate2::Compression) -> Vec<u8> {
    let in_memory = "writing into memory does not fail";
    let mut out = flate2::write::GzEncoder::new(Vec::new(), level);
    out.write_all(records).expect(in_memory);
    out.finish().expect(in_memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: [KafkaCodec; 5] =
        [KafkaCodec::None, KafkaCodec::Gzip, KafkaCodec::Snappy, KafkaCodec::Lz4, KafkaCodec::Zstd];

    #[test]
    fn what_grows_beyond_the_limit_is_refused() {
        let records = vec![7; 100_000];
        for codec in ALL {
            let compressed = codec.compress(&records);
            assert_eq!(*codec.decompress(&compressed, 100_000).unwrap(), records, "{}", codec.name());
            let refused = codec.decompress(&compressed, 99_999);
            assert!(
                matches!(refused, Err(FormatError::OverLimit { limit: 99_999, .. })),
                "{}: {refused:?}",
                codec.name()
            );
        }
    }

    #[test]
    fn frames_of_snappy_java_are_read() {
        let mut framed = [&SNAPPY_JAVA[..], &[0, 0, 0, 1, 0, 0, 0, 1]].concat();
        for part in [&b"first part, "[..], b"second"] {
            let block = KafkaCodec::Snappy.compress(part);
            framed.extend_from_slice(&(block.len() as u32).to_be_bytes());
            framed.extend_from_slice(&block);
        }
        assert_eq!(*KafkaCodec::Snappy.decompress(&framed, 100).unwrap(), *b"first part, second");
        assert!(KafkaCodec::Snappy.decompress(&framed, 17).is_err(), "the limit is for all blocks together");
        assert!(KafkaCodec::Snappy.decompress(&framed[..framed.len() - 1], 100).is_err());
        framed.push(0);
        assert!(KafkaCodec::Snappy.decompress(&framed, 100).is_err());
    }

    /// As Java's producers do it with `compression.zstd.level=22`, who do not say how much comes. That level itself takes most of a gigabyte.
    #[test]
    fn zstd_with_the_window_of_the_highest_level_is_read_and_none_with_a_larger_one() {
        let records = [7; 100];
        let with_window = |log| {
            let mut out = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
            out.window_log(log).unwrap();
            out.write_all(&records).unwrap();
            out.finish().unwrap()
        };
        let compressed = with_window(27);
        assert_eq!(*KafkaCodec::Zstd.decompress(&compressed, records.len()).unwrap(), records);
        assert!(matches!(KafkaCodec::Zstd.decompress(&compressed, 99), Err(FormatError::OverLimit { .. })));
        assert!(KafkaCodec::Zstd.decompress(&with_window(28), records.len()).is_err());
    }

    #[test]
    fn other_numbers_are_refused() {
        assert_eq!(KafkaCodec::from_attributes(0x30 | 3), Ok(KafkaCodec::Lz4));
        assert!(KafkaCodec::from_attributes(5).is_err());
    }

    proptest! {
        #[test]
        fn records_survive(records in prop::collection::vec(any::<u8>(), 0..2000)) {
            for codec in ALL {
                for compressed in [codec.compress(&records), codec.compress_best(&records)] {
                    prop_assert_eq!(&*codec.decompress(&compressed, records.len()).unwrap(), &records);
                }
            }
        }

        #[test]
        fn any_bytes_are_refused_or_stay_within_the_limit(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for codec in ALL {
                if let Ok(records) = codec.decompress(&bytes, 1000) {
                    prop_assert!(records.len() <= 1000);
                }
            }
        }
    }
}
