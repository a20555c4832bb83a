//! Walks a request along its shape before anything is decoded: every length and count in it is checked against the bytes that
//! are there, so that no memory is taken for what a request only claims to hold.
//!
//! Pure, on the connection's I/O thread. The notation of shapes is in [`crate::apis`].

use crate::wire::{Malformed, Reader};

/// Walks a whole request of `version` in `bytes`. Bytes behind it are left alone, as Kafka leaves them: librdkafka, for one, writes
/// three too many when it asks for all topics.
pub(crate) fn check(shape: &str, version: i16, flexible: bool, bytes: &[u8]) -> Result<(), Malformed> {
    let mut walk = Walk { reader: Reader::new(bytes, flexible), version, flexible };
    walk.fields(shape.as_bytes())?;
    if flexible {
        walk.reader.skip_tags()?;
    }
    Ok(())
}

struct Walk<'a> {
    reader: Reader<'a>,
    version: i16,
    flexible: bool,
}

impl Walk<'_> {
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
                        self.fields(inner)?;
                        if self.flexible {
                            self.reader.skip_tags()?;
                        }
                    }
                }
                b'(' => {
                    let (inner, rest) = split(shape, b'(', b')');
                    shape = rest;
                    self.fields(inner)?;
                    if self.flexible {
                        self.reader.skip_tags()?;
                    }
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
