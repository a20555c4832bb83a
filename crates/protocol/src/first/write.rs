//! Of [`crate::write`]: writing chunks, before sequences could be skipped.

use crate::spec::{Source, Specified, TracedField, trace_write};
use crate::{Body, ProtocolError, WriteChunks};

/// [`WriteChunks`], version 1: no [skips](WriteChunks::skips), and nothing says that there are none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteChunksV1(WriteChunks);

impl From<&WriteChunks> for WriteChunksV1 {
    fn from(current: &WriteChunks) -> WriteChunksV1 {
        WriteChunksV1(WriteChunks { skips: Vec::new(), ..current.clone() })
    }
}

impl From<WriteChunksV1> for WriteChunks {
    fn from(first: WriteChunksV1) -> WriteChunks {
        first.0
    }
}

impl Body for WriteChunksV1 {
    fn encode(&self, _version: u8, out: &mut Vec<u8>) {
        self.0.encode(1, out);
    }
    fn decode(_version: u8, body: &[u8]) -> Result<Self, ProtocolError> {
        WriteChunks::decode(1, body).map(WriteChunksV1)
    }
}

impl Specified for WriteChunksV1 {
    fn traced(&self) -> Vec<TracedField> {
        trace_write(&self.0, 1)
    }
    fn any(source: &mut Source<'_>) -> Self {
        WriteChunksV1::from(&WriteChunks::any(source))
    }
}
