//! How keys that need not be text are written at the command line: in hexadecimal or base64.

use clap::ValueEnum;

/// Digits of base64, as most programs write it.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// Most characters of a key that a message shows.
const SHOWN_MAX: usize = 40;

/// How keys are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KeyEncoding {
    /// As they are.
    #[default]
    Text,
    /// Two hexadecimal digits for each byte, like c3bc.
    Hex,
    /// Base64, like w7w=; the = at the end may be left out.
    Base64,
}

impl KeyEncoding {
    /// The bytes of a key that is written so.
    ///
    /// # Errors
    /// It is not written so; a sentence without its end.
    pub fn decode(self, written: &[u8]) -> Result<Vec<u8>, String> {
        let (decoded, what) = match self {
            KeyEncoding::Text => return Ok(written.to_vec()),
            KeyEncoding::Hex => (unhex(written), "hexadecimal"),
            KeyEncoding::Base64 => (from_base64(written), "base64"),
        };
        decoded.ok_or_else(|| {
            let text = String::from_utf8_lossy(written);
            let more = if text.chars().count() > SHOWN_MAX { "…" } else { "" };
            let shown: String = text.chars().take(SHOWN_MAX).collect();
            format!("`{shown}{more}` is not {what}")
        })
    }

    /// Writes a key so.
    pub fn write(self, key: &[u8], out: &mut Vec<u8>) {
        match self {
            KeyEncoding::Text => out.extend_from_slice(key),
            KeyEncoding::Hex => out.extend_from_slice(hex(key).as_bytes()),
            KeyEncoding::Base64 => to_base64(key, out),
        }
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that are written in hexadecimal; nothing if these are not.
pub fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some((digit(*high)? << 4) | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

fn to_base64(bytes: &[u8], out: &mut Vec<u8>) {
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        let digit = |at: usize| DIGITS[((bits >> (18 - 6 * at)) & 63) as usize];
        // So many bytes have one digit more.
        out.extend((0..4).map(|at| if at <= three.len() { digit(at) } else { b'=' }));
    }
}

fn from_base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = &text[..text.len() - padding];
    let is_padded = padding == 0 || padding <= 2 && text.len().is_multiple_of(4);
    if !is_padded || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for four in digits.chunks(4) {
        let mut bits: u32 = 0;
        for digit in four {
            let value = DIGITS.iter().position(|known| known == digit)?;
            bits = (bits << 6) | value as u32;
        }
        bits <<= 6 * (4 - four.len());
        let three = bits.to_be_bytes();
        let (whole, left) = three[1..].split_at(four.len() - 1);
        // Bits that are part of no byte are 0: another text would be the same key.
        if left.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(whole);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_comes_back_as_it_was() {
        for (key, hex, base64) in [
            (&b""[..], "", ""),
            (&b"f"[..], "66", "Zg=="),
            (&b"fo"[..], "666f", "Zm8="),
            (&b"foo"[..], "666f6f", "Zm9v"),
            (&b"foobar"[..], "666f6f626172", "Zm9vYmFy"),
            (&b"\xff\xfe\x00:"[..], "fffe003a", "//4AOg=="),
            (&b"\xfb\xf0"[..], "fbf0", "+/A="),
        ] {
            for (encoding, written) in [(KeyEncoding::Hex, hex), (KeyEncoding::Base64, base64)] {
                let mut out = Vec::new();
                encoding.write(key, &mut out);
                assert_eq!(String::from_utf8_lossy(&out), written);
                assert_eq!(encoding.decode(written.as_bytes()).as_deref(), Ok(key));
            }
            let without_end = base64.trim_end_matches('=');
            assert_eq!(KeyEncoding::Base64.decode(without_end.as_bytes()).as_deref(), Ok(key));
        }
        assert_eq!(KeyEncoding::Hex.decode(b"FFfe").as_deref(), Ok(&b"\xff\xfe"[..]));
        assert_eq!(KeyEncoding::Text.decode(b"\xff").as_deref(), Ok(&b"\xff"[..]));
    }

    #[test]
    fn what_is_not_written_so_is_refused() {
        for wrong in ["f", "fg", "0x12", "é"] {
            assert!(KeyEncoding::Hex.decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
        for wrong in ["Z", "Zg=", "Zg===", "=", "Zm9v=", "Zm9v====", "Zh==", "Zm9", "Z g=", "Zg-_"] {
            assert!(KeyEncoding::Base64.decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert_eq!(KeyEncoding::Hex.decode(b"xy"), Err("`xy` is not hexadecimal".into()));
        let long = KeyEncoding::Base64.decode("é".repeat(1_000).as_bytes()).unwrap_err();
        assert!(long.chars().count() < 60, "{long}");
    }
}
