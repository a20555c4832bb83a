//! Reading and writing message bodies field by field: little-endian, no padding, fields in the order of the struct.
//!
//! | type | bytes |
//! | --- | --- |
//! | integers | their size, little-endian |
//! | `bool` | 1: 0 or 1 |
//! | text | `u32` length, UTF-8 |
//! | bytes | `u32` length, bytes |
//! | list | `u32` count, items |
//! | map | `u32` count, names in ascending order, each with its value |
//! | optional | 1: 0 or 1, then the value if 1 |
//! | choice | `u8` number, then the fields of that choice |
//!
//! The crate's own `wire_struct!` declares a struct and how it is written in one go, so that the two cannot drift
//! apart.

use crate::ProtocolError;
use crate::spec::{Source, Trace, json_string};
use kera_format::{
    ApplicationId, BatchCompression, Cleanup, Cursor, Durability, GroupId, LaneId, Order, ProducerEpoch, ProducerId,
    ReplicationMode, SegmentIndex, Settings, StreamId, StreamOptions, StreamletId, Timestamps,
};
use std::collections::BTreeMap;

/// Takes fields from a body, front to back. Remembers which field it is at, for errors.
pub struct Reader<'a> {
    rest: &'a [u8],
    field: &'static str,
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes, field: "body" }
    }

    /// Names the field that is read next, as `Struct.field`.
    #[inline]
    pub fn enter(&mut self, field: &'static str) {
        self.field = field;
    }

    /// The field being read.
    pub fn field(&self) -> &'static str {
        self.field
    }

    /// The next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], ProtocolError> {
        if count > self.rest.len() {
            return Err(ProtocolError::Truncated { field: self.field, need: count, have: self.rest.len() });
        }
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        Ok(taken)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        Ok(self.take(N)?.try_into().expect("as many bytes as were asked for"))
    }

    /// Bytes that are left.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// A count of items that take at least `item_bytes_min` each; refused when the rest of the body cannot hold them.
    pub fn count(&mut self, item_bytes_min: usize) -> Result<usize, ProtocolError> {
        let count = u32::get(self)? as usize;
        let fits = self.rest.len() / item_bytes_min.max(1);
        if count > fits {
            return Err(ProtocolError::Count { field: self.field, count: count as u64, fits: fits as u64 });
        }
        Ok(count)
    }

    /// A value that the field does not allow.
    pub fn bad(&self, value: u64, allowed: &'static str) -> ProtocolError {
        ProtocolError::BadField { field: self.field, value, allowed }
    }

    /// Ends: bytes that nobody asked for are an error, because a longer layout has a higher version.
    pub fn finish(self) -> Result<(), ProtocolError> {
        if self.rest.is_empty() { Ok(()) } else { Err(ProtocolError::Trailing { bytes: self.rest.len() }) }
    }
}

/// A value with one way of being written.
pub trait Wire: Sized {
    /// The fewest bytes it takes.
    const BYTES_MIN: usize;
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes it.
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError>;
    /// How documents call its kind.
    fn kind() -> String;
    /// Tells its fields and their bytes, see [`crate::spec`].
    fn trace(&self, trace: &mut Trace);
    /// Any value, for tests.
    fn sample(source: &mut Source<'_>) -> Self;
}

/// The bytes of a value.
pub fn bytes_of<T: Wire>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.put(&mut out);
    out
}

macro_rules! integers {
    ($($ty:ty),+) => { $(
        impl Wire for $ty {
            const BYTES_MIN: usize = size_of::<$ty>();
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            #[inline]
            fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
                Ok(<$ty>::from_le_bytes(from.array()?))
            }
            fn kind() -> String {
                stringify!($ty).to_owned()
            }
            fn trace(&self, trace: &mut Trace) {
                trace.leaf("", stringify!($ty), self.to_string(), bytes_of(self));
            }
            fn sample(source: &mut Source<'_>) -> Self {
                <$ty>::from_le_bytes(source.array())
            }
        }
    )+ };
}
integers!(u8, u16, u32, u64, i64);

macro_rules! ids {
    ($($ty:ident($inner:ty)),+ $(,)?) => { $(
        impl Wire for $ty {
            const BYTES_MIN: usize = size_of::<$inner>();
            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
            #[inline]
            fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
                Ok($ty(<$inner>::get(from)?))
            }
            fn kind() -> String {
                stringify!($inner).to_owned()
            }
            fn trace(&self, trace: &mut Trace) {
                self.0.trace(trace);
            }
            fn sample(source: &mut Source<'_>) -> Self {
                $ty(<$inner>::sample(source))
            }
        }
    )+ };
}
ids!(
    StreamId(u64),
    StreamletId(u32),
    LaneId(u32),
    GroupId(u64),
    SegmentIndex(u32),
    ProducerId(u64),
    ProducerEpoch(u16),
    ApplicationId(u64),
);

macro_rules! choices_of_options {
    ($($ty:ident: $allowed:literal),+ $(,)?) => { $(
        impl Wire for $ty {
            const BYTES_MIN: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
            fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
                let value = u8::get(from)?;
                $ty::from_u8(value).ok_or_else(|| from.bad(value.into(), $allowed))
            }
            fn kind() -> String {
                concat!("u8: ", $allowed).to_owned()
            }
            fn trace(&self, trace: &mut Trace) {
                trace.leaf("", "u8", (*self as u8).to_string(), bytes_of(self));
            }
            fn sample(source: &mut Source<'_>) -> Self {
                $ty::from_u8(source.below(2) as u8).expect("both numbers are allowed")
            }
        }
    )+ };
}
choices_of_options!(
    Durability: "0 (process) or 1 (power)",
    Order: "0 (lane) or 1 (none)",
    ReplicationMode: "0 (sync) or 1 (async)",
    Cleanup: "0 (delete), 1 (compact) or 2 (compact,delete)",
    Timestamps: "0 (create) or 1 (append)",
    BatchCompression: "0 (producer), 1 (none), 2 (gzip), 3 (snappy), 4 (lz4) or 5 (zstd)",
);

impl Wire for bool {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(from.bad(other.into(), "0 or 1")),
        }
    }
    fn kind() -> String {
        "bool".to_owned()
    }
    fn trace(&self, trace: &mut Trace) {
        trace.leaf("", "bool", self.to_string(), bytes_of(self));
    }
    fn sample(source: &mut Source<'_>) -> Self {
        source.below(2) == 1
    }
}

impl<const N: usize> Wire for [u8; N] {
    const BYTES_MIN: usize = N;
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        from.array()
    }
    fn kind() -> String {
        format!("{N} bytes")
    }
    fn trace(&self, trace: &mut Trace) {
        let hex: String = self.iter().map(|b| format!("{b:02x}")).collect();
        trace.leaf("", &Self::kind(), json_string(&hex), self.to_vec());
    }
    fn sample(source: &mut Source<'_>) -> Self {
        source.array()
    }
}

impl Wire for String {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let bytes = from.count(1)?;
        let text = from.take(bytes)?;
        match std::str::from_utf8(text) {
            Ok(text) => Ok(text.to_owned()),
            Err(e) => Err(ProtocolError::NotUtf8 { field: from.field(), at: e.valid_up_to() }),
        }
    }
    fn kind() -> String {
        "text".to_owned()
    }
    fn trace(&self, trace: &mut Trace) {
        trace.leaf("length", "u32", self.len().to_string(), bytes_of(&(self.len() as u32)));
        trace.leaf("", "text", json_string(self), self.as_bytes().to_vec());
    }
    fn sample(source: &mut Source<'_>) -> Self {
        let length = source.below(12);
        (0..length).map(|_| ['a', 'Z', '-', 'é', '流', '"', '0', '\n'][source.below(8)]).collect()
    }
}

impl<T: Wire> Wire for Option<T> {
    const BYTES_MIN: usize = 1;
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        Ok(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
    fn kind() -> String {
        format!("optional {}", T::kind())
    }
    fn trace(&self, trace: &mut Trace) {
        trace.leaf("present", "bool", self.is_some().to_string(), vec![u8::from(self.is_some())]);
        if let Some(value) = self {
            value.trace(trace);
        }
    }
    fn sample(source: &mut Source<'_>) -> Self {
        bool::sample(source).then(|| T::sample(source))
    }
}

impl<T: Wire> Wire for Vec<T> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for item in self {
            item.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let count = from.count(T::BYTES_MIN)?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
    fn kind() -> String {
        format!("list of {}", T::kind())
    }
    fn trace(&self, trace: &mut Trace) {
        trace.leaf("count", "u32", self.len().to_string(), bytes_of(&(self.len() as u32)));
        for (i, item) in self.iter().enumerate() {
            trace.inside(&format!("[{i}]"), item);
        }
    }
    fn sample(source: &mut Source<'_>) -> Self {
        let count = source.below(4);
        (0..count).map(|_| T::sample(source)).collect()
    }
}

/// By names, each of which is there once: in ascending order, so that there is one way of writing it.
impl<V: Wire> Wire for BTreeMap<String, V> {
    const BYTES_MIN: usize = 4;
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        for (name, value) in self {
            name.put(out);
            value.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let count = from.count(String::BYTES_MIN + V::BYTES_MIN)?;
        let mut items = BTreeMap::new();
        for _ in 0..count {
            let (name, value) = (String::get(from)?, V::get(from)?);
            if items.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(from.bad(name.len() as u64, "a name behind the one before it"));
            }
            items.insert(name, value);
        }
        Ok(items)
    }
    fn kind() -> String {
        format!("map of text to {}", V::kind())
    }
    fn trace(&self, trace: &mut Trace) {
        trace.leaf("count", "u32", self.len().to_string(), bytes_of(&(self.len() as u32)));
        for (i, (name, value)) in self.iter().enumerate() {
            trace.inside(&format!("[{i}].name"), name);
            trace.inside(&format!("[{i}].value"), value);
        }
    }
    fn sample(source: &mut Source<'_>) -> Self {
        let count = source.below(4);
        (0..count).map(|_| (String::sample(source), V::sample(source))).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    const BYTES_MIN: usize = A::BYTES_MIN + B::BYTES_MIN;
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        Ok((A::get(from)?, B::get(from)?))
    }
    fn kind() -> String {
        format!("({}, {})", A::kind(), B::kind())
    }
    fn trace(&self, trace: &mut Trace) {
        trace.inside("[0]", &self.0);
        trace.inside("[1]", &self.1);
    }
    fn sample(source: &mut Source<'_>) -> Self {
        (A::sample(source), B::sample(source))
    }
}

/// Implements [`Wire`] for a struct: its fields in this order.
macro_rules! wire_fields {
    ($name:ident, $doc:expr, { $($field:ident: $ty:ty, $field_doc:expr;)+ }) => {
        impl $crate::codec::Wire for $name {
            const BYTES_MIN: usize = 0 $(+ <$ty as $crate::codec::Wire>::BYTES_MIN)+;
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::codec::Wire::put(&self.$field, out);)+
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::ProtocolError> {
                Ok($name { $($field: {
                    from.enter(concat!(stringify!($name), ".", stringify!($field)));
                    <$ty as $crate::codec::Wire>::get(from)?
                }),+ })
            }
            fn kind() -> String {
                stringify!($name).to_owned()
            }
            fn trace(&self, trace: &mut $crate::spec::Trace) {
                $(trace.inside(stringify!($field), &self.$field);)+
            }
            fn sample(source: &mut $crate::spec::Source<'_>) -> Self {
                $name { $($field: <$ty as $crate::codec::Wire>::sample(source)),+ }
            }
        }
        impl $crate::spec::Documented for $name {
            const NAME: &'static str = stringify!($name);
            fn doc() -> String {
                $crate::spec::join_doc(&$doc)
            }
            fn fields() -> Vec<$crate::spec::FieldDoc> {
                vec![$($crate::spec::FieldDoc {
                    name: stringify!($field),
                    kind: <$ty as $crate::codec::Wire>::kind(),
                    doc: $crate::spec::join_doc(&$field_doc),
                }),+]
            }
        }
    };
}
pub(crate) use wire_fields;

wire_fields!(Cursor, ["A place in a lane."], {
    group: GroupId, ["The group; zero: the first there is."];
    segment: SegmentIndex, ["The segment in it."];
    position: u32, ["Bytes from the start of the segment, where a chunk starts; zero: the first chunk."];
});
wire_fields!(StreamOptions, ["The options of a stream."], {
    streamlets: u32, ["Streamlets."];
    lanes: u32, ["Lanes of a streamlet."];
    segments_per_group: u32, ["Segments of a group."];
    segment_bytes_max: u32, ["The largest size class of its segments, a power of two from 65536 to 16777216."];
    replication: u32, ["Copies, the broker's own included."];
    durability: Durability, ["How safe bytes are before they are acknowledged."];
    order: Order, ["What order consumers of an application see."];
    retention_ms: Option<u64>, ["How long data is kept, in milliseconds; absent: for ever."];
    retention_bytes: Option<u64>, ["How much a streamlet keeps; absent: everything."];
    retention_consumed: bool, ["Whether closed groups go as soon as every application has read them."];
    cleanup: Cleanup, ["How old data leaves."];
    virtual_logs: u32, ["Virtual logs of its own; zero: it shares the broker's."];
    segment_ms: u64, ["A segment takes no more appends when it was opened so many milliseconds ago."];
    compact_dirty_percent: u32, ["A lane is compacted when so many percent of its bytes came after the last pass."];
    compact_after_ms: u64, ["Compaction leaves a record alone for so many milliseconds after its append."];
    compact_within_ms: Option<u64>, ["A lane is compacted so many milliseconds after an append; absent: when it is worth it."];
    tombstone_ms: u64, ["Tombstones are kept for so many milliseconds after what they hide has gone."];
    timestamps: Timestamps, ["The time of records that Kafka clients write."];
    batch_compression: BatchCompression, ["How batches that Kafka clients write are kept."];
    replication_mode: ReplicationMode, ["When producers are answered, of a stream with copies; from version 2 of the operation on."];
    settings: Settings, ["What Kafka clients have set, as they gave it: at most 64 names and values of 4096 bytes in all; from version 3 of the operation on."];
});

/// Declares a struct whose fields are written in their order.
macro_rules! wire_struct {
    ($(#[doc = $doc:literal])+ $(#[derive($($derive:ident),+)])? pub struct $name:ident {
        $($(#[doc = $field_doc:literal])+ pub $field:ident: $ty:ty),+ $(,)?
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, PartialEq, Eq, Debug $($(, $derive)+)?)]
        pub struct $name {
            $($(#[doc = $field_doc])+ pub $field: $ty),+
        }
        $crate::codec::wire_fields!($name, [$($doc),+], { $($field: $ty, [$($field_doc),+];)+ });
    };
}
pub(crate) use wire_struct;

/// A request without fields.
macro_rules! question {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name;

        impl $crate::codec::Wire for $name {
            const BYTES_MIN: usize = 0;
            fn put(&self, _out: &mut Vec<u8>) {}
            fn get(_from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::ProtocolError> {
                Ok($name)
            }
            fn kind() -> String {
                stringify!($name).to_owned()
            }
            fn trace(&self, _trace: &mut $crate::spec::Trace) {}
            fn sample(_source: &mut $crate::spec::Source<'_>) -> Self {
                $name
            }
        }
    };
}
pub(crate) use question;

/// Declares an enum without fields that is written as one byte.
macro_rules! wire_enum {
    ($(#[doc = $doc:literal])+ pub enum $name:ident, $allowed:literal {
        $($(#[doc = $variant_doc:literal])+ $variant:ident = $number:literal => $text:literal),+ $(,)?
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum $name {
            $($(#[doc = $variant_doc])+ $variant = $number),+
        }
        impl $name {
            /// Its name in output and documents.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }
        impl $crate::codec::Wire for $name {
            const BYTES_MIN: usize = 1;
            fn put(&self, out: &mut Vec<u8>) {
                out.push(*self as u8);
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::ProtocolError> {
                match <u8 as $crate::codec::Wire>::get(from)? {
                    $($number => Ok($name::$variant),)+
                    other => Err(from.bad(other.into(), $allowed)),
                }
            }
            fn kind() -> String {
                concat!("u8: ", $allowed).to_owned()
            }
            fn trace(&self, trace: &mut $crate::spec::Trace) {
                trace.leaf("", "u8", (*self as u8).to_string(), vec![*self as u8]);
            }
            fn sample(source: &mut $crate::spec::Source<'_>) -> Self {
                let all = [$($name::$variant),+];
                all[source.below(all.len())]
            }
        }
    };
}
pub(crate) use wire_enum;
