//! Walks a request along its shape before anything is decoded: every length and count in it is checked against the bytes that
//! are there, so that no memory is taken for what a request only claims to hold.
//!
//! Pure, on the connection's I/O thread. The notation of shapes is in [`crate::apis`].

use crate::wire::{Malformed, Reader};

/// Walks a whole request of `version` in `bytes`. Bytes behind it are left alone, as Kafka leaves them: librdkafka, for one, writes
/// three too many when it asks for all topics.
pub(crate) fn check(shape: &str, version: i16, flexible: bool, bytes: &[u8]) -> Result<(), Malformed> {
    let mut walk = Walk { reader: Reader::new(bytes, flexible), version, flexible };
    walk.structure(shape.as_bytes())
}

struct Walk<'a> {
    reader: Reader<'a>,
    version: i16,
    flexible: bool,
}

impl Walk<'_> {
    /// Fields, and the tagged ones behind them.
    fn structure(&mut self, shape: &[u8]) -> Result<(), Malformed> {
        let known = shape.iter().rposition(|&b| b == b'<').filter(|_| shape.ends_with(b">")).unwrap_or(shape.len());
        self.fields(&shape[..known])?;
        if self.flexible { self.tags(&shape[known..]) } else { Ok(()) }
    }

    /// Tagged fields: each takes as many bytes as it says. The decoder goes by that only where it does not know a field. It reads one that it knows by its
    /// type, and would go on in its midst if the two differed, where lengths are found that nobody has looked at. So these are walked as well.
    fn tags(&mut self, known: &[u8]) -> Result<(), Malformed> {
        for _ in 0..self.reader.varint()? {
            let (tag, bytes) = (self.reader.varint()?, self.reader.varint()?);
            let bytes = self.reader.bytes(bytes as usize)?;
            let Some(shape) = known_field(known, tag) else { continue };
            let mut field = Walk { reader: Reader::new(bytes, self.flexible), ..*self };
            field.fields(shape)?;
            if !field.reader.rest().is_empty() {
                return Err(Malformed::Value { what: "the length of a tagged field", value: bytes.len() as i64 });
            }
        }
        Ok(())
    }

    fn fields(&mut self, mut shape: &[u8]) -> Result<(), Malformed> {
        while let Some((&first, rest)) = shape.split_first() {
            shape = rest;
            match first {
                b'b' => drop(self.reader.bytes(1)?),
                b'h' => drop(self.reader.bytes(2)?),
                b'i' => drop(self.reader.bytes(4)?),
                b'l' => drop(self.reader.bytes(8)?),
                b'u' => drop(self.reader.bytes(16)?),
                b's' => drop(self.reader.nullable_string()?),
                b'y' => drop(self.reader.nullable_bytes()?),
                b'[' => {
                    let (inner, rest) = split(shape, b'[', b']');
                    shape = rest;
                    for _ in 0..self.reader.array()?.unwrap_or(0) {
                        self.fields(inner)?;
                    }
                }
                b'?' => {
                    let (inner, rest) = split(shape.get(1..).unwrap_or_default(), b'(', b')');
                    shape = rest;
                    if self.reader.bytes(1)? == [1] {
                        self.structure(inner)?;
                    }
                }
                b'(' => {
                    let (inner, rest) = split(shape, b'(', b')');
                    shape = rest;
                    self.structure(inner)?;
                }
                b'0'..=b'9' => {
                    let open = shape.iter().position(|&b| b == b'{').unwrap_or(shape.len());
                    let (range, after) = (&shape[..open], &shape[(open + 1).min(shape.len())..]);
                    let (inner, rest) = split(after, b'{', b'}');
                    shape = rest;
                    if in_range(first, range, self.version) {
                        self.fields(inner)?;
                    }
                }
                _ => unreachable!("shapes are constants, and a test walks all of them"),
            }
        }
        Ok(())
    }
}

/// The shape of a tagged field, of `<0u1(il)>`.
fn known_field(known: &[u8], tag: u32) -> Option<&[u8]> {
    let digit = b'0' + u8::try_from(tag).ok().filter(|tag| *tag < 10)?;
    let shape = &known[known.iter().position(|&b| b == digit)? + 1..];
    let end = if shape.starts_with(b"(") { shape.iter().position(|&b| b == b')')? } else { 0 };
    shape.get(..=end)
}

/// What is before the bracket that closes, and what is behind it.
fn split(shape: &[u8], open: u8, close: u8) -> (&[u8], &[u8]) {
    let mut depth = 1;
    for (at, &b) in shape.iter().enumerate() {
        if b == open {
            depth += 1;
        } else if b == close {
            depth -= 1;
            if depth == 0 {
                return (&shape[..at], &shape[at + 1..]);
            }
        }
    }
    (shape, &[])
}

/// `3+` or `2-4`, its first digit apart.
fn in_range(first: u8, range: &[u8], version: i16) -> bool {
    let text: String = std::iter::once(first).chain(range.iter().copied()).map(char::from).collect();
    match text.split_once(['+', '-']) {
        Some((from, "")) => from.parse::<i16>().is_ok_and(|from| version >= from),
        Some((from, to)) => {
            from.parse::<i16>().is_ok_and(|from| version >= from) && to.parse::<i16>().is_ok_and(|to| version <= to)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::APIS;
    use kafka_protocol::messages::ApiKey;
    use proptest::prelude::*;

    #[test]
    fn counts_that_lie_are_found() {
        // A metadata request of version 1 that claims two thousand million topics.
        assert!(check("[(s)]", 1, false, &[0x7f, 0xff, 0xff, 0xff, 0, 1, b'a']).is_err());
        assert!(check("[(s)]", 1, false, &[0, 0, 0, 1, 0, 1, b'a']).is_ok());
        assert!(check("[(s)]", 1, false, &[0, 0, 0, 1, 0, 2, b'a']).is_err());
        assert!(check("[(s)]", 1, false, &[0, 0, 0, 1, 0, 1, b'a', 0]).is_ok(), "bytes behind the request");
        assert!(check("[(s)]", 9, true, &[2, 2, b'a', 0, 0]).is_ok());
        assert!(check("?(i)b", 0, true, &[1, 0, 0, 0, 7, 0, 5, 0]).is_ok());
        assert!(check("?(i)b", 0, true, &[0xff, 5, 0]).is_ok());
        assert!(check("?(i)b", 0, true, &[1, 5, 0]).is_err());
        assert!(check("2-4{i}5+{l}", 3, false, &[0; 4]).is_ok());
        assert!(check("2-4{i}5+{l}", 5, false, &[0; 8]).is_ok());
        assert!(check("2-4{i}5+{l}", 1, false, &[]).is_ok());
    }

    /// A tagged field that the decoder knows and reads by its type, whatever length it says.
    #[test]
    fn tagged_fields_have_the_length_that_they_say() {
        const SHAPE: &str = "b<0s1(il)>";
        let replica = [&[1, 13][..], &[0; 12], &[0]].concat();
        for (bytes, is_good) in [
            (vec![7, 1, 0, 3, 3, b'a', b'b'], true),
            (vec![7, 1, 0, 3, 9, b'a', b'b', 0, 0, 0, 0, 0, 0], false),
            (vec![7, 1, 0, 4, 3, b'a', b'b', b'c'], false),
            (vec![7, 1, 5, 3, 9, b'a', b'b'], true),
            ([&[7, 1][..], &replica].concat(), true),
            ([&[7, 1, 1, 12][..], &[0; 12]].concat(), false),
        ] {
            assert_eq!(check(SHAPE, 0, true, &bytes).is_ok(), is_good, "{bytes:?}");
        }
        // A fetch of nothing, and a cluster's name that is longer than its field.
        let fetch = APIS.iter().find(|api| api.key == ApiKey::Fetch).unwrap();
        let head = [&[0; 21][..], &[1, 1, 1]].concat();
        assert!(check(fetch.shape, 17, true, &[&head[..], &[1, 0, 2, 2, b'c']].concat()).is_ok());
        assert!(check(fetch.shape, 17, true, &[&head[..], &[1, 0, 1, 200]].concat()).is_err());
    }

    proptest! {
        /// Every shape is well formed, and no bytes make the walk panic or take memory.
        #[test]
        fn any_bytes_are_walked(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for api in APIS {
                for version in api.min..=api.max {
                    let _ = check(api.shape, version, api.is_flexible(version), &bytes);
                }
            }
        }
    }
}
