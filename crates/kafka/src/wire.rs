//! Kafka's primitive types, read in place and written into a buffer: for the two messages that carry records, which are
//! not decoded into structures, and for looking at the others before they are.
//!
//! Big-endian. In flexible versions lengths are varints of one more than the length, zero for nothing.

use kafka_protocol::messages::ApiKey;

/// What is wrong with a request. The connection that it came from is closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// It ends inside of a field.
    #[error("the request ends {missing} bytes before a field of {need} bytes does")]
    Truncated {
        /// What the field says it has.
        need: usize,
        /// What is not there.
        missing: usize,
    },
    /// A length or count that cannot be.
    #[error("{what} is {value}, which is not allowed")]
    Value {
        /// Of what.
        what: &'static str,
        /// The value.
        value: i64,
    },
    /// It is larger than all that are not Produce may be.
    #[error("a {key:?} request has {bytes} bytes, and what is not Produce has {limit} at most; ask for less at a time")]
    TooLarge {
        /// Of what.
        key: ApiKey,
        /// Its bytes.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// It may have to wait, and too much does.
    #[error(
        "{waiting} bytes of commands wait at this node, for a leader of the coordinators or for its disk, and {limit} is the most; come again in a moment"
    )]
    Crowded {
        /// Bytes that wait, with this one's.
        waiting: usize,
        /// The most.
        limit: usize,
    },
    /// A string is not UTF-8.
    #[error("a string is not UTF-8")]
    Text,
    /// The decoder of the message refused it.
    #[error("{0}")]
    Decode(String),
}

/// Reads a request from front to back.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    flexible: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], flexible: bool) -> Reader<'a> {
        Reader { rest: bytes, flexible }
    }

    /// What is not read yet.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(Malformed::Truncated { need: count, missing: count - self.rest.len() }),
        }
    }

    #[inline]
    fn array_of<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.bytes(N)?);
        Ok(bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, Malformed> {
        self.array_of().map(i16::from_be_bytes)
    }
    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.array_of().map(i32::from_be_bytes)
    }
    pub(crate) fn u128(&mut self) -> Result<u128, Malformed> {
        self.array_of().map(u128::from_be_bytes)
    }

    /// An unsigned varint of at most 32 bits.
    pub(crate) fn varint(&mut self) -> Result<u32, Malformed> {
        let mut value: u64 = 0;
        for shift in (0..35).step_by(7) {
            let [byte] = self.array_of()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let small = u32::try_from(value);
                return small.map_err(|_| Malformed::Value { what: "a varint", value: value as i64 });
            }
        }
        Err(Malformed::Value { what: "a varint", value: value as i64 })
    }

    /// A length of a string (two bytes in old versions) or of something else (four).
    fn length(&mut self, what: &'static str, short: bool) -> Result<Option<usize>, Malformed> {
        if self.flexible {
            return Ok(self.varint()?.checked_sub(1).map(|length| length as usize));
        }
        let length = if short { i32::from(self.i16()?) } else { self.i32()? };
        match length {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) => Ok(Some(length)),
                Err(_) => Err(Malformed::Value { what, value: length.into() }),
            },
        }
    }

    pub(crate) fn nullable_string(&mut self) -> Result<Option<&'a str>, Malformed> {
        let Some(length) = self.length("the length of a string", true)? else { return Ok(None) };
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map(Some).map_err(|_| Malformed::Text)
    }

    pub(crate) fn string(&mut self) -> Result<&'a str, Malformed> {
        self.nullable_string()?.ok_or(Malformed::Value { what: "the length of a string", value: -1 })
    }

    pub(crate) fn nullable_bytes(&mut self) -> Result<Option<&'a [u8]>, Malformed> {
        let Some(length) = self.length("the length of bytes", false)? else { return Ok(None) };
        self.bytes(length).map(Some)
    }

    /// The count of an array, which is at most the bytes that are left: an entry takes one or more.
    pub(crate) fn array(&mut self) -> Result<Option<usize>, Malformed> {
        let Some(count) = self.length("the count of an array", false)? else { return Ok(None) };
        if count > self.rest.len() {
            return Err(Malformed::Truncated { need: count, missing: count - self.rest.len() });
        }
        Ok(Some(count))
    }

    /// Tagged fields, none of which is looked at.
    pub(crate) fn skip_tags(&mut self) -> Result<(), Malformed> {
        for _ in 0..self.varint()? {
            self.varint()?;
            let bytes = self.varint()?;
            self.bytes(bytes as usize)?;
        }
        Ok(())
    }

    /// Tagged fields, if this version has them.
    pub(crate) fn tags(&mut self) -> Result<(), Malformed> {
        if self.flexible { self.skip_tags() } else { Ok(()) }
    }
}

/// Writes an answer.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) flexible: bool,
}

impl Writer<'_> {
    pub(crate) fn i16(&mut self, value: i16) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }
    pub(crate) fn i32(&mut self, value: i32) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }
    pub(crate) fn i64(&mut self, value: i64) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }
    pub(crate) fn id(&mut self, value: u128) {
        self.out.extend_from_slice(&value.to_be_bytes());
    }
    pub(crate) fn varint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }
    /// The count of an array, or the length of bytes.
    pub(crate) fn count(&mut self, count: usize) {
        if self.flexible {
            self.varint(count as u32 + 1);
        } else {
            self.i32(count as i32);
        }
    }
    /// The count of an array that may not be there at all.
    pub(crate) fn nullable_count(&mut self, count: Option<usize>) {
        match (count, self.flexible) {
            (Some(count), _) => self.count(count),
            (None, true) => self.varint(0),
            (None, false) => self.i32(-1),
        }
    }
    pub(crate) fn string(&mut self, text: &str) {
        self.nullable_string(Some(text));
    }
    pub(crate) fn nullable_string(&mut self, text: Option<&str>) {
        match (text, self.flexible) {
            (Some(text), true) => self.varint(text.len() as u32 + 1),
            (Some(text), false) => self.i16(text.len() as i16),
            (None, true) => self.varint(0),
            (None, false) => self.i16(-1),
        }
        self.out.extend_from_slice(text.unwrap_or_default().as_bytes());
    }
    /// No tagged fields, if this version has room for some.
    pub(crate) fn tags(&mut self) {
        if self.flexible {
            self.out.push(0);
        }
    }
}
