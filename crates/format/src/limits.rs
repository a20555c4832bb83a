//! Sizes and counts, each checked where a value comes in from outside. Bytes unless the name says otherwise.

/// The smallest segment size class.
pub const SEGMENT_BYTES_MIN: usize = 64 << 10;
/// The largest segment size class.
pub const SEGMENT_BYTES_MAX: usize = 16 << 20;
/// The largest chunk, header and padding included: it must fit into the largest segment behind the segment's header.
pub const CHUNK_BYTES_MAX: usize = SEGMENT_BYTES_MAX - crate::segment::SEGMENT_HEADER_BYTES;
/// The most bytes a chunk's payload decompresses to.
pub const CHUNK_UNCOMPRESSED_BYTES_MAX: usize = 64 << 20;
/// The longest stream name, in bytes of UTF-8 (all ASCII).
pub const STREAM_NAME_BYTES_MAX: usize = 249;
/// The longest application name.
pub const APPLICATION_NAME_BYTES_MAX: usize = 249;
/// Most streamlets of a stream.
pub const STREAMLETS_MAX: u32 = 131_072;
/// Most lanes of a streamlet.
pub const LANES_MAX: u32 = 4_096;
/// Most lanes of a stream (streamlets times lanes).
pub const STREAM_LANES_MAX: u32 = 1 << 20;
/// Most lanes of all streams together, those of the system included. One that was written to takes some 2.5 KiB of a node's memory at rest, so all
/// of them take 2.5 GiB; as many as the largest stream has, and as many as a disk notes where they begin.
pub const ALL_LANES_MAX: u64 = 1 << 20;
/// Most virtual logs that a stream may have of its own.
pub const VIRTUAL_LOGS_MAX: u32 = 256;
/// Most segments of a group.
pub const SEGMENTS_PER_GROUP_MAX: u32 = 65_536;
/// Most keys of a record.
pub const RECORD_KEYS_MAX: usize = 255;
/// Most settings that a stream keeps as they were given.
pub const SETTINGS_MAX: usize = 64;
/// What the names and values of a stream's settings may take together.
pub const SETTINGS_BYTES_MAX: usize = 4 << 10;
/// What a record's header and keys may take together: the value's offset is a `u16`.
pub const RECORD_VALUE_OFFSET_MAX: usize = u16::MAX as usize;
/// The largest frame of the native protocol by default: a request with many chunks.
pub const FRAME_BYTES_DEFAULT: usize = 32 << 20;
/// The largest frame that can be configured.
pub const FRAME_BYTES_MAX: usize = 256 << 20;

/// Whether a stream or application name is allowed: 1 to 249 characters of `a-z A-Z 0-9 . _ -`, not `.` or `..`
/// (the rule of Kafka topics, so that every stream can be one).
pub fn name_is_valid(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= STREAM_NAME_BYTES_MAX
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}
