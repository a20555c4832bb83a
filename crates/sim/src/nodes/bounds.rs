//! Streams that keep so many bytes of each streamlet: so much of what came last, but for less than a segment, stays readable, whoever owns it
//! and whoever has rebuilt it.

use std::collections::BTreeMap;

use crate::cluster::truth::{Place, Truth, Violation, Written};

/// Bytes of the headers of a streamlet's segments, which count as kept, at most.
const HEADERS_BYTES: u64 = 16 << 10;

/// How much goes, and how much there was.
#[derive(Default)]
pub(super) struct Bounds {
    /// How many bytes of chunks stay of each streamlet of a stream.
    kept: BTreeMap<u64, u64>,
    /// The share of each record in the bytes of its chunk.
    bytes: BTreeMap<(u64, Written), u64>,
    /// Bytes of all chunks that were made for a streamlet, by stream.
    made: BTreeMap<(u64, u32), u64>,
    /// Where lanes begin, as was told last.
    begins: BTreeMap<Place, u64>,
}

impl Bounds {
    /// A stream keeps so many bytes of each streamlet. It deletes by segments, of at most so many bytes.
    pub(super) fn keeps(&mut self, stream: u64, (bytes, segment_bytes): (u64, u64)) {
        self.kept.insert(stream, bytes.saturating_sub(segment_bytes + HEADERS_BYTES));
    }

    /// Whether a stream does so.
    pub(super) fn are_of(&self, stream: u64) -> bool {
        self.kept.contains_key(&stream)
    }

    /// A producer has made a chunk.
    pub(super) fn made(&mut self, stream: u64, records: &[Written], bytes: u64) {
        if !self.are_of(stream) {
            return;
        }
        for written in records {
            self.bytes.insert((stream, *written), bytes / records.len() as u64);
            *self.made.entry((stream, written.streamlet)).or_default() += bytes / records.len() as u64;
        }
    }

    /// Nothing is left of a lane in front of an ordinal. What nobody knows the place of counts as left.
    pub(super) fn begins(&mut self, truth: &Truth, place: Place, ordinal: u64) -> Result<(), Violation> {
        self.begins.insert(place, ordinal);
        let (stream, streamlet) = (place.stream, place.streamlet);
        let of_streamlet = self.begins.iter().filter(|(at, _)| (at.stream, at.streamlet) == (stream, streamlet));
        let gone = of_streamlet.flat_map(|(at, ordinal)| truth.between(*at, 0..*ordinal));
        let gone: u64 = gone.filter_map(|(_, written)| self.bytes.get(&(stream, written))).sum();
        let left = self.made.get(&(stream, streamlet)).copied().unwrap_or(0).saturating_sub(gone);
        let kept = self.kept.get(&stream).copied().unwrap_or(0);
        if gone > 0 && left < kept {
            return Err(Violation(format!(
                "{place} begins at {ordinal}, and {left} bytes are left of its streamlet, which keeps {kept}"
            )));
        }
        Ok(())
    }
}
