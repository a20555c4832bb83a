//! What messages are made of: their fields for documents, their bytes field by field for `spec/`, and samples of them
//! for tests. Made by the same macros that read and write them, so that none can drift from the others. Nothing in
//! here runs in a server.

use crate::codec::Wire;

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
