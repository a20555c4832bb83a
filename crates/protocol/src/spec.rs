//! What messages are made of: their fields for documents, their bytes field by field for `spec/`, and samples of them
//! for tests. Made by the same macros that read and write them, so that none can drift from the others. Nothing in
//! here runs in a server.

use crate::codec::Wire;
use crate::{
    Body, ChunkResult, DescribeCluster, DescribeCopies, DescribeLogs, Empty, NodeStatus, ReadAnswer,
    ReadChunksResponse, WriteChunks, WriteChunksResponse,
};
use bytes::Bytes;
use kera_format::chunk::{ChunkTarget, Chunks, Skip};
use kera_format::{ChunkBuilder, Compression, Cursor, LaneId, Record, StreamId, StreamletId};

/// A field of a struct, for documents.
#[derive(Clone, Debug)]
pub struct FieldDoc {
    /// Its name.
    pub name: &'static str,
    /// How it is written: `u32`, `text`, `list of ReadEntry`.
    pub kind: String,
    /// What it means.
    pub doc: String,
}

/// A struct whose fields are documented.
pub trait Documented {
    /// The struct's name.
    const NAME: &'static str;
    /// What it is.
    fn doc() -> String;
    /// Its fields in the order in which they are written.
    fn fields() -> Vec<FieldDoc>;
}

/// Bodies without fields, and those whose layout their module describes.
macro_rules! described_by_their_module {
    ($($name:ident),+) => { $(
        impl Documented for $name {
            const NAME: &'static str = stringify!($name);
            fn doc() -> String {
                String::new()
            }
            fn fields() -> Vec<FieldDoc> {
                Vec::new()
            }
        }
    )+ };
}
described_by_their_module!(
    DescribeCluster,
    DescribeCopies,
    DescribeLogs,
    Empty,
    NodeStatus,
    WriteChunks,
    WriteChunksResponse,
    ReadChunksResponse
);

/// Joins the lines of a doc comment.
pub fn join_doc(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// One field of an encoded value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TracedField {
    /// Where it starts.
    pub at: usize,
    /// Its name from the outermost struct on, such as `entries[0].cursor.group`.
    pub path: String,
    /// How it is written.
    pub kind: String,
    /// Its value, as JSON.
    pub value: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// The fields of an encoded value, collected as it is walked through.
#[derive(Debug, Default)]
pub struct Trace {
    path: String,
    at: usize,
    /// What was collected.
    pub fields: Vec<TracedField>,
}

impl Trace {
    /// The fields of `value`.
    pub fn of<T: Wire>(value: &T) -> Vec<TracedField> {
        let mut trace = Trace::default();
        value.trace(&mut trace);
        trace.fields
    }

    /// Walks through `value`, which is the field or item called `name` of what is being walked through.
    pub fn inside<T: Wire>(&mut self, name: &str, value: &T) {
        let outer = self.path.len();
        self.push_name(name);
        value.trace(self);
        self.path.truncate(outer);
    }

    /// Adds a field without parts. `name` is empty, or that of an unnamed part such as a list's count.
    pub fn leaf(&mut self, name: &str, kind: &str, value: String, bytes: Vec<u8>) {
        let outer = self.path.len();
        self.push_name(name);
        let (at, path) = (self.at, self.path.clone());
        self.at += bytes.len();
        self.fields.push(TracedField { at, path, kind: kind.to_owned(), value, bytes });
        self.path.truncate(outer);
    }

    fn push_name(&mut self, name: &str) {
        if !self.path.is_empty() && !name.is_empty() && !name.starts_with('[') {
            self.path.push('.');
        }
        self.path.push_str(name);
    }
}

/// Text as a JSON string.
pub fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Where samples take their choices from: given bytes, and zeros when these are used up, so that fewer and smaller
/// bytes give smaller samples.
#[derive(Debug)]
pub struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    /// Takes its choices from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Source<'a> {
        Source { bytes }
    }

    /// The next choice of `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let count = N.min(self.bytes.len());
        let (taken, rest) = self.bytes.split_at(count);
        out[..count].copy_from_slice(taken);
        self.bytes = rest;
        out
    }

    /// A number below `limit`, which is at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.array::<1>()[0]) % limit
    }
}

/// A body whose fields can be told and that tests can make.
pub trait Specified: Body {
    /// Its fields and their bytes.
    fn traced(&self) -> Vec<TracedField>;
    /// Any value.
    fn any(source: &mut Source<'_>) -> Self;
}

impl<T: Wire + Body> Specified for T {
    fn traced(&self) -> Vec<TracedField> {
        Trace::of(self)
    }
    fn any(source: &mut Source<'_>) -> Self {
        T::sample(source)
    }
}

/// A few sealed chunks, back to back, and how many.
pub(crate) fn any_chunks(source: &mut Source<'_>) -> (u32, Vec<u8>) {
    let (count, mut chunks) = (source.below(4), Vec::new());
    for _ in 0..count {
        let mut builder = ChunkBuilder::default();
        for _ in 0..=source.below(3) {
            builder.push(&Record::value(&source.array::<9>()[..source.below(10)]));
        }
        let (stream, streamlet) = (StreamId::sample(source), StreamletId::sample(source));
        let target = ChunkTarget { stream, streamlet, ..ChunkTarget::default() };
        chunks.extend(builder.seal(&target, Compression::None).expect("a small chunk with a record"));
    }
    (count as u32, chunks)
}

fn trace_chunks(trace: &mut Trace, name: &str, chunks: &[u8]) {
    for (i, chunk) in Chunks::new(chunks).enumerate() {
        let bytes = chunk.map_or_else(|_| Vec::new(), |chunk| chunk.as_bytes().to_vec());
        let value = format!("\"{} bytes\"", bytes.len());
        trace.leaf(&format!("{name}[{i}]"), "chunk", value, bytes);
    }
}

/// The fields of a request to write as a version lays it out.
pub(crate) fn trace_write(request: &WriteChunks, version: u8) -> Vec<TracedField> {
    let mut trace = Trace::default();
    trace.inside("chunk_count", &request.chunk_count);
    trace.inside("timeout_ms", &request.timeout_ms);
    if version >= 2 {
        trace.inside("skip_count", &(request.skips.len() as u32));
        trace.inside("zero", &0u32);
        for (i, (index, skip)) in request.skips.iter().enumerate() {
            let name = |field: &str| format!("skips[{i}].{field}");
            trace.inside(&name("index"), index);
            trace.inside(&name("zero"), &0u32);
            trace.inside(&name("from"), &skip.from);
        }
    }
    trace_chunks(&mut trace, "chunks", &request.chunks);
    trace.fields
}

impl Specified for WriteChunks {
    fn traced(&self) -> Vec<TracedField> {
        trace_write(self, 2)
    }
    fn any(source: &mut Source<'_>) -> Self {
        let timeout_ms = u32::sample(source);
        let (chunk_count, chunks) = any_chunks(source);
        let mut skips = Vec::new();
        for index in 0..chunk_count {
            if bool::sample(source) {
                skips.push((index, Skip { from: u64::sample(source) }));
            }
        }
        WriteChunks { timeout_ms, chunk_count, skips, chunks: Bytes::from(chunks) }
    }
}

impl Specified for WriteChunksResponse {
    fn traced(&self) -> Vec<TracedField> {
        let mut trace = Trace::default();
        trace.inside("count", &(self.results.len() as u32));
        trace.inside("zero", &0u32);
        for (i, result) in self.results.iter().enumerate() {
            let name = |field: &str| format!("results[{i}].{field}");
            trace.inside(&name("status"), &result.status);
            trace.inside(&name("flags"), &result.flags());
            trace.inside(&name("lane"), &result.lane);
            trace.inside(&name("group"), &result.cursor.group);
            trace.inside(&name("base_ordinal"), &result.base_ordinal);
            trace.inside(&name("segment"), &result.cursor.segment);
            trace.inside(&name("position"), &result.cursor.position);
        }
        trace.fields
    }
    fn any(source: &mut Source<'_>) -> Self {
        let result = |source: &mut Source<'_>| ChunkResult {
            status: u16::sample(source),
            duplicate: bool::sample(source),
            // Only whoever asks in version 2 is told; what it stands in is the same.
            forgot: false,
            lane: LaneId::sample(source),
            cursor: Cursor::sample(source),
            base_ordinal: u64::sample(source),
        };
        let count = source.below(4);
        WriteChunksResponse { results: (0..count).map(|_| result(source)).collect() }
    }
}

impl Specified for ReadChunksResponse {
    fn traced(&self) -> Vec<TracedField> {
        let mut trace = Trace::default();
        trace.inside("count", &(self.answers.len() as u32));
        trace.inside("zero", &0u32);
        for (i, (answer, _)) in self.answers.iter().enumerate() {
            let name = |field: &str| format!("answers[{i}].{field}");
            trace.inside(&name("index"), &answer.index);
            trace.inside(&name("status"), &answer.status);
            trace.inside(&name("flags"), &answer.flags);
            trace.inside(&name("start"), &answer.start);
            trace.inside(&name("next"), &answer.next);
            trace.inside(&name("durable_ordinal"), &answer.durable_ordinal);
            trace.inside(&name("data_bytes"), &answer.data_bytes);
            trace.inside(&name("zero"), &0u32);
        }
        for (i, (_, data)) in self.answers.iter().enumerate() {
            trace_chunks(&mut trace, &format!("data[{i}]"), data);
        }
        trace.fields
    }
    fn any(source: &mut Source<'_>) -> Self {
        let answer = |source: &mut Source<'_>| {
            let (_, data) = any_chunks(source);
            let answer = ReadAnswer {
                index: u32::sample(source),
                status: u16::sample(source),
                flags: u16::sample(source),
                start: Cursor::sample(source),
                next: Cursor::sample(source),
                durable_ordinal: u64::sample(source),
                data_bytes: data.len() as u32,
            };
            (answer, Bytes::from(data))
        };
        let count = source.below(4);
        ReadChunksResponse { answers: (0..count).map(|_| answer(source)).collect() }
    }
}

/// The fields of a frame's header.
pub fn trace_frame_header(header: &crate::FrameHeader) -> Vec<TracedField> {
    let mut trace = Trace::default();
    trace.inside("frame_bytes", &header.frame_bytes);
    trace.inside("op", &header.op);
    trace.inside("version", &header.version);
    trace.inside("flags", &header.flags);
    trace.inside("correlation", &header.correlation);
    trace.inside("status", &header.status);
    trace.leaf("zero", "6 bytes", "\"000000000000\"".to_owned(), vec![0; 6]);
    trace.fields
}

/// The fields of an error's body.
pub fn trace_error(error: &crate::ErrorBody) -> Vec<TracedField> {
    let mut trace = Trace::default();
    trace.inside("retry_after_ms", &error.retry_after_ms);
    trace.inside("message", &error.message);
    trace.fields
}
