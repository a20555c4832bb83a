//! What most files of a node, and parts of them, start with: magic, version and size of the header at the same offsets, and a checksum over
//! the header up to there. Called by what parses them, on any thread; never looks behind the checksum.

use crate::FormatError;
use crate::checksum::crc32c;
use crate::wire::{u16_at, u32_at};

/// How one of them starts. What a field must be stands beside what an error says that it must be.
pub(crate) struct Start {
    /// The first four bytes.
    pub(crate) magic: (u32, &'static str),
    /// The two behind them.
    pub(crate) version: (u16, &'static str),
    /// The next two: how many bytes the header has.
    pub(crate) header_bytes: (usize, &'static str),
    /// Where its checksum is, CRC-32C of all bytes before.
    pub(crate) checksum_at: usize,
    /// What the fields are called in errors, as they are looked at: magic, checksum, version, size of the header.
    pub(crate) fields: [&'static str; 4],
}

impl Start {
    /// Verifies it. The caller has made sure that the bytes with the checksum are there.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), FormatError> {
        let [of_magic, of_checksum, of_version, of_header_bytes] = self.fields;
        let bad = |field, value: u64, allowed| Err(FormatError::BadField { field, value, allowed });
        if u32_at(bytes, 0) != self.magic.0 {
            return bad(of_magic, u32_at(bytes, 0).into(), self.magic.1);
        }
        let (found, computed) = (u32_at(bytes, self.checksum_at), crc32c(&bytes[..self.checksum_at]));
        if found != computed {
            return Err(FormatError::Checksum { what: of_checksum, found, computed });
        }
        if u16_at(bytes, 4) != self.version.0 {
            return bad(of_version, u16_at(bytes, 4).into(), self.version.1);
        }
        if u16_at(bytes, 6) as usize != self.header_bytes.0 {
            return bad(of_header_bytes, u16_at(bytes, 6).into(), self.header_bytes.1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::put;

    const START: Start = Start {
        magic: (7, "seven"),
        version: (1, "one"),
        header_bytes: (16, "sixteen"),
        checksum_at: 12,
        fields: ["file.magic", "file.checksum", "file.version", "file.header_bytes"],
    };

    fn sealed(magic: u32, version: u16, header_bytes: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        put(&mut bytes, 0, &magic.to_le_bytes());
        put(&mut bytes, 4, &version.to_le_bytes());
        put(&mut bytes, 6, &header_bytes.to_le_bytes());
        let crc = crc32c(&bytes[..12]);
        put(&mut bytes, 12, &crc.to_le_bytes());
        bytes
    }

    #[test]
    fn each_field_is_looked_at_and_named() {
        let bad =
            |field, value, allowed| -> Result<(), FormatError> { Err(FormatError::BadField { field, value, allowed }) };
        assert_eq!(START.check(&sealed(7, 1, 16)), Ok(()));
        assert_eq!(START.check(&sealed(8, 1, 16)), bad("file.magic", 8, "seven"));
        assert_eq!(START.check(&sealed(7, 2, 16)), bad("file.version", 2, "one"));
        assert_eq!(START.check(&sealed(7, 1, 15)), bad("file.header_bytes", 15, "sixteen"));
        let mut changed = sealed(7, 2, 16);
        changed[11] ^= 1;
        let found = START.check(&changed);
        assert!(matches!(found, Err(FormatError::Checksum { what: "file.checksum", .. })), "{found:?}");
    }
}
