//! Groups of a compacted lane that a new owner has itself, beside what lost logs have of them.
//!
//! A node that comes back goes on with its streamlets, in a new log, and keeps the log of its life before for what that has copies of. If such a streamlet moves
//! away, and this node takes it over again, that log tells of the node's oldest groups as they were appended, and of its later ones no lost log tells: they stay
//! as they are here. They were compacted, and tombstones went from them when all that these hide had gone from what is *here*. The groups from the log would
//! bring that back: the last record of a key would be a value again.
//!
//! So in front of compacted groups that stay what is here stays, too, if it is compacted and the log has no more of it. That log is not needed any more once the streamlet
//! is told as rebuilt, so before that what has stayed is given to this node's own log, as what is rebuilt is. A segment that cannot be put into
//! [pieces](kera_format::piece), of nearly 16 MiB, is rebuilt from the log nevertheless.

use std::collections::BTreeSet;

use kera_format::SegmentId;
use kera_format::limits::SEGMENT_BYTES_MAX;
use kera_log::{CopiedAgain, GroupInfo, Lane, Log, behind};
use kera_protocol::Status;

use super::fetch::Arrivals;
use super::{Copies, Rebuild};
use crate::broker::Broker;
use crate::failure::Failure;

/// Room that the heads of a row of pieces take at most.
const HEADS_BYTES: usize = 64 << 10;
/// How often nothing may have happened after a wait.
const LOOKS_MAX: u32 = 300;

/// Owner epochs of those that come from lost logs whose groups are here as this node has compacted them, in front of compacted ones of which nothing comes.
pub(super) fn compacted_since(
    log: &Log,
    lane: &Lane,
    groups: &[GroupInfo],
    come: &BTreeSet<u32>,
    is_held: &dyn Fn(&GroupInfo) -> bool,
) -> BTreeSet<u32> {
    let compacted = || groups.iter().filter(|group| group.is_compacted && is_held(group));
    let stays = compacted().map(|group| group.id.epoch()).filter(|epoch| !come.contains(epoch)).max();
    let Some(stays) = stays.filter(|_| log.copies_compacted()) else { return BTreeSet::new() };
    let fits = |group: &GroupInfo| {
        let segments = lane.segments(group.id, None, usize::MAX).unwrap_or_default();
        segments.iter().all(|segment| segment.durable_head as usize <= SEGMENT_BYTES_MAX - HEADS_BYTES)
    };
    let mut epochs: BTreeSet<u32> = compacted().map(|group| group.id.epoch()).filter(|epoch| *epoch < stays).collect();
    epochs.retain(|epoch| groups.iter().filter(|group| group.id.epoch() == *epoch).all(fits));
    epochs
}

/// Gives what has stayed to the log of its streamlet, and waits until it has its copies there.
pub(super) fn copy_kept(broker: &Broker, rebuild: &Rebuild, copies: &dyn Copies) -> Result<(), Failure> {
    let arrivals = Arrivals::new();
    for name in &rebuild.streamlets {
        let Some(place) = broker.place_of(*name) else { continue };
        let kept = place.kept();
        let sink = place.lanes().next().and_then(|lane| lane.sink().map(behind));
        let Some(sink) = sink.filter(|_| !kept.is_empty()) else { continue };
        let mut last = None;
        for segment in kept {
            let mut looks = 0;
            let ticket = loop {
                match broker.log.copy_again_in_order(segment, &*sink, &mut |_, _, _| true) {
                    CopiedAgain::Given(ticket, _) => break Some(ticket),
                    CopiedAgain::Gone => break None,
                    CopiedAgain::Never => return Err(nowhere(segment, "it does not fit into pieces")),
                    _ if looks == LOOKS_MAX => return Err(nowhere(segment, "it does not come from the disk")),
                    _ => looks += 1,
                }
                arrivals.look(copies.pause());
            };
            last = ticket.or(last);
        }
        if let Some(ticket) = last {
            arrivals.durable(&*sink, ticket, copies)?;
        }
        place.kept_copied();
    }
    Ok(())
}

fn nowhere(segment: SegmentId, why: &str) -> Failure {
    let message = format!("segment {segment}, which has stayed at this node, cannot be copied: {why}");
    Failure::later(Status::NotReady, message)
}
