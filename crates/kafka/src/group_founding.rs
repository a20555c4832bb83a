//! What Kafka groups had committed at a node that was alone comes along when it founds a cluster.
//!
//! The node's groups are in its own `_kera.groups`, those of the cluster in `_kera.cluster.groups`, whose streamlets any node may own. Who reads a
//! streamlet that nobody has ever served asks all nodes for what they have in a stream of their own, and takes over what belongs to the
//! streamlet, before it serves: one of them was alone, the others have nothing. Records that say nothing begin and end that, so that it is done
//! once, and again by the next owner if it breaks off. What producers have pending is waited for: the node that was alone aborts the transactions that run, and carries out what it has
//! decided ([`crate::transaction_founding`]), so nothing is pending when it is done.
//!
//! On a thread of its own for each streamlet, which may block.

use kera_format::StreamId;
use kera_format::kafka_groups::{Entry, Fact};
use kera_protocol::admin::StreamRef;

use crate::door::Door;
use crate::group_door::GROUPS_STREAM;
use crate::group_parts::{Load, Part};
use crate::groups::{Coordinator, GroupConfig};
use crate::state_log::{Patience, Told, Unread, pieces};
use crate::state_parts::{of_nodes, streamlet_of};

/// The group of the record that says nothing. No client can make it: a topic of the system is not committed for.
const NOBODY: &str = "_kera.founded";

/// Fills the groups of a streamlet that nobody has ever served. False if that broke off: then the part is not to be served, for it would say of groups that they
/// have committed nothing.
#[must_use]
pub(crate) fn take_over(door: &Door, load: &Load, part: &Part, go_on: impl Fn() -> bool + Sync) -> bool {
    let Some(log) = part.log.as_ref().filter(|log| log.is_new()) else { return true };
    let go_on = &(|| go_on() && log.is_ours());
    let Ok(info) = door.catalog.coordinator.stream(&StreamRef::Name(GROUPS_STREAM.to_owned())) else { return true };
    let Some(count) = door.catalog.info_of_groups().map(|info| info.options.streamlets as usize) else { return true };
    let of_node = |node: u32| {
        let mut patience = Patience::new(door, node);
        let nothing = || load.making().coordinator(GroupConfig::default(), None);
        let mut told = Told::new(nothing());
        while go_on() {
            // Anew each time: what was forgotten since the last time may not be said in this one, since it is not there any more.
            let mut next = nothing();
            let each = |entry: Entry| {
                if streamlet_of(&entry.group, count) == load.number() {
                    next.replay(entry);
                }
            };
            let read = log.read_before(door, node, (GROUPS_STREAM, info.id), each, go_on);
            told.hear(next, read.is_ok(), Coordinator::group_count);
            let why = match read {
                Ok(()) if !told.best.has_pending() => break,
                Ok(()) => Unread::Refused("its transactions have not ended".to_owned()),
                Err(why) => why,
            };
            if patience.is_over(door, &why, "what Kafka groups had committed") {
                break;
            }
            log.rest();
        }
        (told.best.snapshot(None, usize::MAX).0, told.best.group_count())
    };
    let told = of_nodes(door, of_node);
    // It may not be all that they have.
    if !go_on() {
        return false;
    }
    let groups: usize = told.iter().map(|(_, groups)| groups).sum();
    let mut entries: Vec<Entry> = told.into_iter().flat_map(|(entries, _)| entries).collect();
    // Members have not heard of this coordinator: they join it. And what is pending now is of transactions that do not end.
    entries.retain(|entry| !matches!(entry.fact, Fact::Pending(..) | Fact::Member(..)));
    for entry in &mut entries {
        if let Fact::Offset(_, Some(offset)) = &mut entry.fact
            && offset.topic_id != 0
        {
            // Half of a topic's id was the node's, and is the cluster's now; the other half is the stream's.
            offset.topic_id = door.catalog.topic_id(StreamId(offset.topic_id as u64)).as_u128();
        }
    }
    entries.push(Entry { group: NOBODY.to_owned(), fact: Fact::Group(None) });
    if !log.found(pieces(&entries), go_on) {
        return false;
    }
    let streamlet = load.number();
    if groups > 0 {
        tracing::info!(streamlet, groups, "Kafka groups of a node that was alone have come along");
    }
    load.making().fill(part, entries);
    true
}
