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
//!
//! Where this node owned the streamlet last, what is here also stays if it was rewritten more often than what comes. It may have its copies in this node's log already, as the first rewriting, say: if it went for
//! what comes, which was never rewritten, the next rewriting would be the first once more, and whoever finds both could not tell which of them is the later. With the earlier
//! one beside later rewritings of other segments, removed records were there again (`seeds_that_brought_back_what_compaction_had_removed_do_not`).

use std::collections::{BTreeMap, BTreeSet};

use kera_format::limits::SEGMENT_BYTES_MAX;
use kera_format::piece::rewrites_of;
use kera_format::{GroupId, SegmentId, SegmentIndex};
use kera_log::{AwaitedSegment, CopiedAgain, GroupInfo, Lane, Log, SegmentInfo, behind};
use kera_protocol::Status;

use super::fetch::{Arrivals, must_go_on};
use super::{Copies, Rebuild};
use crate::broker::Broker;
use crate::failure::Failure;

/// Room that the heads of a row of pieces take at most.
const HEADS_BYTES: usize = 64 << 10;
/// How often nothing may have happened after a wait.
const LOOKS_MAX: u32 = 300;

/// Owner epochs of those that come from lost logs whose groups are here as this node has compacted them, in front of compacted ones that stay: of which nothing
/// comes, or nothing that was rewritten as often. `owned_last`: nobody else has owned the streamlet since this node did.
pub(super) fn compacted_since(
    log: &Log,
    lane: &Lane,
    groups: &[GroupInfo],
    (come, owned_last): (&[AwaitedSegment], bool),
    is_held: &dyn Fn(&GroupInfo) -> bool,
) -> BTreeSet<u32> {
    let compacted = || groups.iter().filter(|group| group.is_compacted && is_held(group));
    if compacted().next().is_none() || !log.copies_compacted() {
        return BTreeSet::new();
    }
    let come: BTreeMap<(GroupId, SegmentIndex), u32> =
        come.iter().map(|segment| ((segment.group, segment.index), rewrites_of(segment.rewrite))).collect();
    let epochs_come: BTreeSet<u32> = come.keys().map(|(group, _)| group.epoch()).collect();
    let segments = |group: &GroupInfo| lane.segments(group.id, None, usize::MAX).unwrap_or_default();
    // How often what comes of a segment was rewritten, beside how often that which is here was.
    let beside = |group: &GroupInfo| -> Vec<(u32, u32)> {
        let beside = |one: SegmentInfo| Some((*come.get(&(group.id, one.index))?, one.rewrites));
        segments(group).into_iter().filter_map(beside).collect()
    };
    let is_later = |group: &GroupInfo| owned_last && beside(group).iter().any(|(comes, here)| here > comes);
    let stays = |group: &&GroupInfo| !epochs_come.contains(&group.id.epoch()) || is_later(group);
    let Some(last) = compacted().filter(stays).map(|group| group.id.epoch()).max() else { return BTreeSet::new() };
    let fits = |group: &GroupInfo| {
        let is_small = |one: &SegmentInfo| one.durable_head as usize <= SEGMENT_BYTES_MAX - HEADS_BYTES;
        segments(group).iter().all(is_small) && beside(group).iter().all(|(comes, here)| here >= comes)
    };
    let mut epochs: BTreeSet<u32> = compacted().map(|group| group.id.epoch()).filter(|epoch| *epoch <= last).collect();
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
                must_go_on(copies)?;
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
