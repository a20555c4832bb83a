//! Small files of JSON that say what belongs to a node, kept [twice](kera_env::replace_twice).
//!
//! JSON has no checksum, and a file that builds before this one read gets no field for one. The copy has it instead: the same text, and a line
//! `crc32c xxxxxxxx` behind it. So a copy that reads back is what was written, and says whether the file is, too: a digit of an epoch that a disk has changed
//! parses as well as any other.

use std::io;

use kera_env::{Disk, copy_path, read_twice, replace_with_copy};
use kera_format::checksum::crc32c;

/// Bytes of the last line of a copy, with the line breaks around it.
const LINE_BYTES: usize = 17;

/// A file's text, and that of its copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Marks {
    /// Of the file, whatever it is; empty if it cannot be read.
    pub(crate) file: Vec<u8>,
    /// Of the copy, if that is what was written.
    pub(crate) copy: Option<Vec<u8>>,
}

impl Marks {
    /// Whether file and copy say the same.
    pub(crate) fn are_same(&self) -> bool {
        self.copy.as_ref() == Some(&self.file)
    }

    /// Whether the file is its copy with one bit changed. No build writes such a one: whatever it changes is more than that, but for an epoch.
    pub(crate) fn is_one_bit_off(&self) -> bool {
        let Some(copy) = self.copy.as_ref().filter(|copy| copy.len() == self.file.len()) else { return false };
        copy.iter().zip(&self.file).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>() == 1
    }
}

fn line_of(text: &[u8]) -> String {
    format!("\ncrc32c {:08x}\n", crc32c(text))
}

/// Reads a file and its copy, of at most `limit` bytes each; errors are those of [`read_twice`].
pub(crate) fn read(disk: &dyn Disk, name: &str, limit: usize) -> io::Result<Marks> {
    let both = read_twice(disk, name, limit + LINE_BYTES)?;
    let copy = both.copy.len().checked_sub(LINE_BYTES).and_then(|end| {
        let (text, line) = both.copy.split_at(end);
        (line == line_of(text).as_bytes()).then(|| text.to_vec())
    });
    Ok(Marks { file: both.file, copy })
}

/// Replaces a file, then its copy, both synced: after a power cut the file is whole, old or new, and the copy is not newer.
pub(crate) fn write(disk: &dyn Disk, name: &str, text: &[u8]) -> io::Result<()> {
    replace_with_copy(disk, name, text, &[text, line_of(text).as_bytes()].concat())
}

/// Removes a file and its copy, if they are there; the file last, which counts.
pub(crate) fn remove(disk: &dyn Disk, name: &str) -> io::Result<()> {
    for path in [copy_path(name), name.to_owned()] {
        match disk.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_env::MemoryDisk;

    #[test]
    fn a_copy_says_whether_it_is_what_was_written_and_so_whether_the_file_is() {
        let disk = MemoryDisk::new();
        write(&disk, "a.json", b"{\"epoch\": 7}").unwrap();
        let marks = read(&disk, "a.json", 99).unwrap();
        assert!(marks.are_same() && !marks.is_one_bit_off(), "{marks:?}");
        disk.flip_bit("a.json", 10, 1).unwrap();
        let marks = read(&disk, "a.json", 99).unwrap();
        assert!(!marks.are_same() && marks.is_one_bit_off(), "{marks:?}");
        assert_eq!(marks.file, b"{\"epoch\": 5}");
        for offset in 0..29 {
            disk.flip_bit("a.json.copy", offset, 0).unwrap();
            assert_eq!(read(&disk, "a.json", 99).unwrap().copy, None, "{offset}");
            disk.flip_bit("a.json.copy", offset, 0).unwrap();
        }
        assert_eq!(disk.read_all("a.json.copy", 99).unwrap(), b"{\"epoch\": 7}\ncrc32c 1e4ca570\n");
        disk.remove("a.json").unwrap();
        assert_eq!(read(&disk, "a.json", 99).unwrap().copy.unwrap(), b"{\"epoch\": 7}");
    }
}
