//! Values of flags: what is read from their text, and what is said of text that makes no sense.

use kera_client::Compression;
use kera_format::vlog_replica::LogId;
use kera_format::{BatchCompression, Cleanup, Durability, Order, ReplicationMode, Timestamps};
use kera_server::units::{parse_bytes, parse_duration_ms};

use super::LAST_MAX;

/// Addresses of nodes, with commas between.
pub(super) fn addresses(text: &str) -> Result<String, String> {
    let has_port = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        let is_host = !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
        port.parse::<u16>().ok().filter(|_| is_host)
    };
    let mut all = text.split(',').map(str::trim).filter(|address| !address.is_empty()).peekable();
    if all.peek().is_none() {
        return Err("name a node as HOST:PORT, like 127.0.0.1:7070, or several with commas between".into());
    }
    match all.find(|address| has_port(address).is_none()) {
        Some(wrong) => Err(format!("`{wrong}` is not HOST:PORT; it is like 127.0.0.1:7070 or [::1]:7070")),
        None => Ok(text.to_owned()),
    }
}

/// A limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<u64>);

pub(super) fn time_or_none(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { parse_duration_ms(text).map(|ms| Limit(Some(ms))) }
}

pub(super) fn bytes_or_none(text: &str) -> Result<Limit, String> {
    if text == "none" { Ok(Limit(None)) } else { parse_bytes(text).map(|bytes| Limit(Some(bytes))) }
}

pub(super) fn segment_bytes(text: &str) -> Result<u32, String> {
    u32::try_from(parse_bytes(text)?).map_err(|_| format!("{text} is more than 16MiB"))
}

pub(super) fn rate(text: &str) -> Result<u64, String> {
    let wrong = "it is a whole number of records per second, 1 or more; leave the flag out for as fast as it goes";
    text.parse::<u64>().ok().filter(|rate| *rate > 0).ok_or_else(|| wrong.to_owned())
}

pub(super) fn durability(text: &str) -> Result<Durability, String> {
    text.parse()
}

pub(super) fn replication_mode(text: &str) -> Result<ReplicationMode, String> {
    text.parse()
}

pub(super) fn order(text: &str) -> Result<Order, String> {
    text.parse()
}

pub(super) fn timestamps(text: &str) -> Result<Timestamps, String> {
    text.parse()
}

pub(super) fn batch_compression(text: &str) -> Result<BatchCompression, String> {
    text.parse()
}

pub(super) fn cleanup(text: &str) -> Result<Cleanup, String> {
    text.parse()
}

pub(super) fn compression(text: &str) -> Result<Compression, String> {
    [Compression::None, Compression::Lz4, Compression::Zstd]
        .into_iter()
        .find(|c| c.name() == text)
        .ok_or_else(|| format!("`{text}` is none of: none, lz4, zstd"))
}

pub(super) fn last_records(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(most) if most <= LAST_MAX => Ok(most),
        Ok(_) => Err(format!("{LAST_MAX} is the most; for more say since when, like --from 1h")),
        Err(_) => Err(format!("`{text}` is no number of records; it is like 10, and {LAST_MAX} at most")),
    }
}

pub(super) fn separator(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("it is empty".into()) } else { Ok(text.replace("\\t", "\t")) }
}

pub(super) fn delimiter(text: &str) -> Result<u8, String> {
    let text = if matches!(text, "\\t" | "tab") { "\t" } else { text };
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => Ok(*byte),
        _ => Err("it is one character, like ; or tab, and neither a quote nor a line end".into()),
    }
}

pub(super) fn chunk_bytes(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    let (least, most) = (256, kera_format::limits::CHUNK_BYTES_MAX as u64);
    if (least..=most).contains(&bytes) {
        Ok(bytes as usize)
    } else {
        Err(format!("{text} is not between {least}B and {most}B"))
    }
}

/// A streamlet, as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamletName {
    /// Its stream.
    pub stream: String,
    /// Its number in it.
    pub streamlet: u32,
}

impl std::fmt::Display for StreamletName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.stream, self.streamlet)
    }
}

pub(super) fn streamlet_name(text: &str) -> Result<StreamletName, String> {
    let wrong = || format!("`{text}` is no streamlet; name it as STREAM/NUMBER, like payments/3");
    let (stream, number) = text.rsplit_once('/').ok_or_else(wrong)?;
    let streamlet = number.parse().map_err(|_| wrong())?;
    if stream.is_empty() { Err(wrong()) } else { Ok(StreamletName { stream: stream.to_owned(), streamlet }) }
}

/// Virtual logs, as the command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogNames {
    /// Of which node.
    pub node: u32,
    /// Of which epoch of it; all if nothing.
    pub epoch: Option<u32>,
    /// Which of these; all if nothing.
    pub log: Option<u32>,
}

impl LogNames {
    /// Whether a log is one of them.
    pub fn has(&self, node: u32, epoch: u32, log: u32) -> bool {
        let is = |named: Option<u32>, number| named.is_none_or(|named| named == number);
        self.node == node && is(self.epoch, epoch) && is(self.log, log)
    }
}

impl std::fmt::Display for LogNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.node)?;
        self.epoch.map_or(Ok(()), |epoch| write!(f, "/{epoch}"))?;
        self.log.map_or(Ok(()), |log| write!(f, "/{log}"))
    }
}

pub(super) fn log_names(text: &str) -> Result<LogNames, String> {
    let wrong = || format!("`{text}` is no log; name it as NODE/EPOCH/NUMBER like 1/4/0, or NODE for all of a node");
    let parts: Vec<u32> = text.split('/').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
    match parts[..] {
        [node] => Ok(LogNames { node, epoch: None, log: None }),
        [node, epoch] => Ok(LogNames { node, epoch: Some(epoch), log: None }),
        [node, epoch, log] => Ok(LogNames { node, epoch: Some(epoch), log: Some(log) }),
        _ => Err(wrong()),
    }
}

/// Blocks of a virtual log, as the command line names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first one.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

pub(super) fn blocks(text: &str) -> Result<Blocks, String> {
    let parts = text.split_once('-').unwrap_or((text, text));
    match (parts.0.parse::<u64>(), parts.1.parse::<u64>()) {
        (Ok(first), Ok(last)) if first > 0 && first <= last => Ok(Blocks { first, last }),
        _ => Err(format!("`{text}` are no blocks; name the first and the last, from 1, like 1-99")),
    }
}

pub(super) fn one_log(text: &str) -> Result<LogId, String> {
    match log_names(text) {
        Ok(LogNames { node, epoch: Some(epoch), log: Some(vlog) }) => Ok(LogId { node, epoch, vlog }),
        _ => Err(format!("`{text}` is no log; name it as NODE/EPOCH/NUMBER like 1/4/0")),
    }
}
