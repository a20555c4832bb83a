//! Input without structure: every line is a value, or all of it is one.

use std::io::{BufRead, Read};

use super::{ROW_BYTES_MAX, Row, RowError, RowSource, read_line};

pub(super) struct LineRows {
    input: Box<dyn BufRead + Send>,
    line: u64,
    whole: bool,
}

impl LineRows {
    pub(super) fn new(input: Box<dyn BufRead + Send>, whole: bool) -> LineRows {
        LineRows { input, line: 0, whole }
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
