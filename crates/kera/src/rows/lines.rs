//! Input without structure: every line is a value, or all of it is one.

use std::io::{BufRead, Read};

use super::{ROW_BYTES_MAX, Row, RowError, RowSource, read_line};

pub(super) struct LineRows {
    input: Box<dyn BufRead + Send>,
    line: u64,
    whole: bool,
    separator: Option<String>,
}

impl LineRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, whole: bool, separator: Option<String>) -> LineRows {
        LineRows { input, line: 0, whole, separator }
    }
}

impl RowSource for LineRows {
    fn next(&mut self, row: &mut Row) -> Result<bool, RowError> {
        self.line += 1;
        row.line = self.line;
        if !self.whole {
            let more = read_line(&mut *self.input, self.line, &mut row.value)?;
            if row.value.last() == Some(&b'\r') {
                row.value.pop();
            }
            if let Some(separator) = self.separator.as_ref().filter(|_| more) {
                split(row, separator)?;
            }
            return Ok(more);
        }
        if self.line > 1 {
            return Ok(false);
        }
        row.value.clear();
        let limit = ROW_BYTES_MAX as u64 + 1;
        (&mut self.input).take(limit).read_to_end(&mut row.value).map_err(|e| RowError::io(1, &e))?;
        if row.value.len() > ROW_BYTES_MAX {
            let message = format!("the input is longer than {ROW_BYTES_MAX} bytes, the limit of one record");
            return Err(RowError { fatal: true, ..RowError::new(1, None, message) });
        }
        Ok(true)
    }
}

/// Takes the key, which is in front of the first separator, from the value.
fn split(row: &mut Row, separator: &str) -> Result<(), RowError> {
    let at = row.value.windows(separator.len().max(1)).position(|part| part == separator.as_bytes());
    let Some(at) = at else {
        let message = format!("there is no `{separator}`, which --key-separator names, between a key and a value");
        return Err(RowError::new(row.line, None, message));
    };
    let value = row.value.split_off(at + separator.len());
    row.value.truncate(at);
    row.key = Some(std::mem::replace(&mut row.value, value));
    Ok(())
}
