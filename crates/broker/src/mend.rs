//! Reading a segment that a disk has lost from the backups that have its chunks (`docs/replication.md`, "A disk has lost something").
//!
//! On a thread that may wait for backups. What comes is verified chunk by chunk ([`Gathering::put`]); a backup that does not give a block is passed over, and
//! the next one that has it is asked.

use std::ops::RangeInclusive;

use kera_format::SegmentId;
use kera_format::chunk::Chunks;
use kera_format::vlog_replica::LogId;
use kera_log::{DamagedSegment, Gathering};
use kera_protocol::{LaneStates, ReadBlocks, StreamletRef};

use crate::recovery::Copies;

/// About how many bytes of chunks a backup is asked for at a time.
const READ_BYTES: u32 = 4 << 20;
/// Of a log that is over it is asked where in it the segment is, up to so many blocks.
const NARROW_BLOCKS: u64 = 64;

/// Blocks of one of this node's logs, and who has them: each all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MendFrom {
    /// The log.
    pub log: LogId,
    /// The blocks.
    pub blocks: RangeInclusive<u64>,
    /// The numbers of the backups.
    pub backups: Vec<u32>,
    /// It is of an earlier incarnation, and all that is known is that the segment may be in it.
    pub is_over: bool,
}

/// Why a segment could not be gathered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NotGathered {
    /// What is missing, and what each backup has said.
    pub reason: String,
    /// All of it is there [as it was before it was compacted last](Gathering::has_older).
    pub has_older: bool,
}

/// Gathers the chunks of a segment from these blocks, one range after the other, until all of it is there. What ends since these copies are
/// [not to go on](Copies::goes_on) has not asked all: it says nothing of what there is.
pub fn gather(of: DamagedSegment, from: &[MendFrom], copies: &dyn Copies) -> Result<Gathering, NotGathered> {
    let mut found = Gathering::new(of);
    let mut reasons = Vec::new();
    for range in from {
        for part in places(&of.id(), range, copies, &mut reasons) {
            read(&mut found, &part, copies, &mut reasons);
            if found.is_whole() {
                return Ok(found);
            }
        }
        if !copies.goes_on() {
            reasons.push("this node is stopping".to_owned());
            break;
        }
    }
    let (has, bytes, count, has_older) = (found.bytes(), of.bytes(), from.len(), found.has_older());
    let why = if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) };
    let as_it_was = if has_older { ", which have it as it was before it was compacted" } else { "" };
    let reason = format!("{has} of its {bytes} bytes are in the copies of {count} ranges of blocks{as_it_was}{why}");
    Err(NotGathered { reason, has_older })
}

/// The parts of a range that have something of the segment, as far as that is asked.
fn places(id: &SegmentId, range: &MendFrom, copies: &dyn Copies, reasons: &mut Vec<String>) -> Vec<MendFrom> {
    if !range.is_over {
        return vec![range.clone()];
    }
    let (mut parts, mut left) = (Vec::new(), vec![range.clone()]);
    while copies.goes_on()
        && let Some(part) = left.pop()
    {
        match has(id, &part, copies) {
            Ok(false) => {}
            Ok(true) => {
                let (first, last) = (*part.blocks.start(), *part.blocks.end());
                if last - first < NARROW_BLOCKS {
                    parts.push(part);
                } else {
                    // The newer half comes first.
                    let middle = first + (last - first) / 2;
                    left.push(MendFrom { blocks: first..=middle, ..part.clone() });
                    left.push(MendFrom { blocks: middle + 1..=last, ..part });
                }
            }
            Err(reason) => reasons.push(reason),
        }
    }
    parts
}

/// Whether blocks of a log that is over have something of the segment, as the first backup says that answers, or may have it: more is in them of the streamlet than that one can say at once.
fn has(id: &SegmentId, part: &MendFrom, copies: &dyn Copies) -> Result<bool, String> {
    let asked = LaneStates {
        log: part.log,
        from_block: *part.blocks.start(),
        through_block: *part.blocks.end(),
        streamlets: vec![StreamletRef { stream: id.stream, streamlet: id.streamlet }],
    };
    let mut reasons = Vec::new();
    for backup in in_order(part, copies).into_iter().take_while(|_| copies.goes_on()) {
        match copies.lane_states(backup, &asked) {
            Ok(answer) => {
                let lanes = answer.lanes.iter().filter(|lane| lane.lane == id.lane);
                let mut parts = lanes.flat_map(|lane| &lane.parts);
                return Ok(parts.any(|part| (part.group, part.segment) == (id.group, id.index)));
            }
            // Fewer blocks are asked for next, or read.
            Err(no_states) if no_states.is_too_much => return Ok(true),
            Err(no_states) => reasons.push(format!("backup {backup}: {no_states}")),
        }
    }
    if reasons.is_empty() {
        return Err(format!("no backup of log {} was asked", part.log));
    }
    Err(reasons.join("; "))
}

/// The backups of a range: those that are not known to be lost first.
fn in_order(part: &MendFrom, copies: &dyn Copies) -> Vec<u32> {
    let (mut there, lost): (Vec<u32>, Vec<u32>) = part.backups.iter().partition(|backup| copies.is_there(**backup));
    there.extend(lost);
    there
}

/// Reads a range, from the block at which one backup fails on from the next one, and then behind the block that none of them gives.
fn read(found: &mut Gathering, part: &MendFrom, copies: &dyn Copies, reasons: &mut Vec<String>) {
    let (mut next, last) = (*part.blocks.start(), *part.blocks.end());
    let backups = in_order(part, copies);
    let (mut at, mut failed) = (0, 0);
    while copies.goes_on() && next <= last && !found.is_whole() && !backups.is_empty() {
        let backup = backups[at];
        match read_once(found, part.log, (next, last), backup, copies) {
            Ok(behind) => (next, failed) = (behind, 0),
            Err(reason) => {
                reasons.push(format!("backup {backup} at block {next} of log {}: {reason}", part.log));
                (at, failed) = ((at + 1) % backups.len(), failed + 1);
                if failed == backups.len() {
                    (next, failed) = (next + 1, 0);
                }
            }
        }
    }
}

/// The block behind those that were read.
fn read_once(
    found: &mut Gathering,
    log: LogId,
    (from_block, through_block): (u64, u64),
    backup: u32,
    copies: &dyn Copies,
) -> Result<u64, String> {
    let SegmentId { stream, streamlet, .. } = found.of().id();
    let streamlets = vec![StreamletRef { stream, streamlet }];
    let asked = ReadBlocks { log, from_block, through_block, streamlets, max_bytes: READ_BYTES };
    let read = copies.read_blocks(backup, &asked)?;
    if read.next_block <= from_block || read.next_block > through_block + 1 {
        return Err(format!("it went on to block {}", read.next_block));
    }
    for (_, chunks) in &read.blocks {
        for chunk in Chunks::new(chunks) {
            chunk.and_then(|chunk| found.put(&chunk)).map_err(|error| error.to_string())?;
        }
    }
    Ok(read.next_block)
}
