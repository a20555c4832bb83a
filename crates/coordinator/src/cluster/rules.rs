//! Which entries are allowed. Each rule is one that the argument of `docs/replication.md` needs; the models of `kera-sim` show
//! for most of them which loss they prevent.

use std::collections::BTreeSet;

use kera_format::cluster::{BACKUPS_MAX, ClusterEntry, LogName, NodeNumber, OwnerReason, Roles};
use kera_format::{LaneId, StreamId, level};

use super::handed::check_handed_bytes;
use super::{ClusterState, Run};

/// Most nodes of a cluster.
const NODES_MAX: usize = 1000;

/// Why an entry is not allowed, in words.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

fn refuse(reason: String) -> Result<(), Refused> {
    Err(Refused(reason))
}

pub(super) fn must(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Refused> {
    if holds { Ok(()) } else { refuse(otherwise()) }
}

impl ClusterState {
    /// Whether an entry may become true now.
    pub fn check(&self, entry: &ClusterEntry) -> Result<(), Refused> {
        self.check_level(entry)?;
        match entry {
            ClusterEntry::Catalog(kera_format::catalog::Entry::Counters { .. }) => {
                must(self.cluster == [0; 16], || "counters are for snapshots".into())
            }
            ClusterEntry::Catalog(kera_format::catalog::Entry::StreamAltered { stream, options, .. }) => {
                self.check_copies_said(*stream, options)
            }
            // The catalog checks its own while it applies them, before it changes anything.
            ClusterEntry::Catalog(_) | ClusterEntry::Applied { .. } | ClusterEntry::Membership { .. } => Ok(()),
            ClusterEntry::ClusterCounters { .. } => refuse("counters are for snapshots".into()),
            ClusterEntry::RebuiltFrom { .. } => refuse("what is rebuilt from whom is told in snapshots".into()),
            ClusterEntry::LevelRaised { .. } => Ok(()),
            ClusterEntry::Founded { .. } => {
                must(self.cluster == [0; 16], || "the cluster has been founded already".into())
            }
            ClusterEntry::NodeJoined { node, epoch, uuid, .. } => self.check_joined(*node, *epoch, uuid),
            ClusterEntry::NodeFenced { node, epoch } => self.check_live(*node, *epoch),
            ClusterEntry::NodeRemoved { node } => self.check_removed(*node),
            ClusterEntry::OwnerChanged { .. } => self.check_owner(entry),
            ClusterEntry::OwnerReturned { node, epoch, owner_epoch, all } => {
                self.check_returned(*node, *epoch, *owner_epoch, *all)
            }
            ClusterEntry::GroupsHeld { stream, first, count, node, .. } => {
                self.check_range(*stream, *first, *count)?;
                must(*node == 0 || self.nodes.contains_key(node), || no_such_node(*node))
            }
            ClusterEntry::ViewAgreed { log, view, first, backups } => self.check_view(*log, *view, *first, backups),
            ClusterEntry::BackupAdded { log, view, backup } => self.check_added(*log, *view, *backup),
            ClusterEntry::LogEnded { log, end } => self.check_end(*log, *end),
            ClusterEntry::EndsUsed { node, epoch, ends } => {
                // 0: all backups have shown these ends.
                if *node != 0 {
                    self.check_live(*node, *epoch)?;
                }
                self.check_used(ends)
            }
            ClusterEntry::EndTakenBack { log, end } => self.check_taken_back(*log, *end),
            ClusterEntry::EndGivenUp { log } => self.check_lost_end(*log),
            ClusterEntry::ViewGivenUp { log, view } => self.check_view_given_up(*log, *view),
            ClusterEntry::LogGivenUp { log } => self.check_given_up(*log),
            ClusterEntry::MoveNoted { number, stream, streamlet, from, to } => {
                self.check_move(*number, (*stream, *streamlet), *from, *to)
            }
            other => self.check_of_streamlets(other),
        }
    }

    /// The rest: what becomes of streamlets.
    fn check_of_streamlets(&self, entry: &ClusterEntry) -> Result<(), Refused> {
        match entry {
            ClusterEntry::StreamletsRebuilt { stream, first, count, node, epoch, owner_epoch } => {
                self.check_range(*stream, *first, *count)?;
                self.check_live(*node, *epoch)?;
                self.check_rebuilt(*stream, (*first, *count), (*node, *epoch), *owner_epoch)
            }
            ClusterEntry::StreamletHanded { stream, streamlet, owner_epoch, state } => {
                self.check_handed((*stream, *streamlet), *owner_epoch, state.len())
            }
            ClusterEntry::NodeDraining { node, .. } => must(self.nodes.contains_key(node), || no_such_node(*node)),
            ClusterEntry::GroupsLost { stream, first, count, .. } => self.check_range(*stream, *first, *count),
            ClusterEntry::LaneBegins { stream, streamlet, lane, owner_epoch, ordinal } => {
                self.check_begins((*stream, *streamlet, *lane), *owner_epoch, *ordinal)
            }
            ClusterEntry::RebuildNeeds { node, epoch, runs, logs } => {
                self.check_live(*node, *epoch)?;
                self.check_needs(runs, logs)
            }
            ClusterEntry::GroupsReturned { stream, streamlet, owner_epoch, node, epoch } => {
                self.check_groups_returned((*stream, *streamlet), *owner_epoch, (*node, *epoch))
            }
            ClusterEntry::MoveCalledOff { number } => {
                must(self.moves.contains_key(number), || format!("move {number} is not noted"))
            }
            ClusterEntry::CopiesWanted { stream, copies } => self.check_copies_wanted(*stream, *copies),
            ClusterEntry::CopiesMade { stream, streamlet, node, epoch, copies } => {
                self.check_copies_made((*stream, *streamlet), (*node, *epoch), *copies)
            }
            ClusterEntry::ViewGivenUpFor { stream, streamlet, owner_epoch, log, view } => {
                self.check_view_given_up_for((*stream, *streamlet), *owner_epoch, (*log, *view))
            }
            ClusterEntry::StreamletCopies { .. } => refuse("copies of streamlets are told in snapshots".into()),
            other => refuse(format!("no rule says when {other:?} may become true")),
        }
    }

    /// Nobody is told what it may not understand: an entry is of the level in force, and that is raised one by one.
    fn check_level(&self, entry: &ClusterEntry) -> Result<(), Refused> {
        let (needs, has) = (entry.level(), self.level());
        match entry {
            ClusterEntry::LevelRaised { level } => {
                must(*level == has + 1, || {
                    format!("the cluster is at level {has}, so the next one is {}, not {level}", has + 1)
                })?;
                if *level == level::OPEN_ENDS { self.check_open_ends() } else { Ok(()) }
            }
            _ => must(needs <= has, || {
                format!(
                    "the cluster is at level {has}, and this needs level {needs}: it is there when all nodes run a version that \
                     speaks it; `kera cluster level` shows which do not"
                )
            }),
        }
    }

    fn check_joined(&self, node: NodeNumber, epoch: u32, uuid: &[u8; 16]) -> Result<(), Refused> {
        must(node != 0, || "a node has a number from 1 on".into())?;
        let namesake = self.nodes.iter().find(|(number, known)| known.uuid == *uuid && **number != node);
        if let Some((number, _)) = namesake {
            return refuse(format!("this node is number {number} of the cluster, it cannot be number {node} as well"));
        }
        match self.nodes.get(&node) {
            Some(known) if known.uuid != *uuid => refuse(format!(
                "another node is number {node} of the cluster; give this one a number of its own with --node"
            )),
            Some(known) if known.epoch >= epoch => {
                let has = known.epoch;
                refuse(format!("node {node} has had epoch {has}, so {epoch} is too low"))
            }
            None if self.nodes.len() >= NODES_MAX => refuse(format!("the cluster has {NODES_MAX} nodes, the most")),
            _ => Ok(()),
        }
    }

    /// An incarnation that is fenced, or was before the present one, decides nothing any more.
    fn check_live(&self, node: NodeNumber, epoch: u32) -> Result<(), Refused> {
        let Some(known) = self.nodes.get(&node) else { return refuse(no_such_node(node)) };
        must(known.epoch == epoch, || {
            format!("node {node} epoch {epoch} is over; the node has epoch {} now", known.epoch)
        })?;
        must(!known.fenced, || format!("node {node} epoch {epoch} is fenced"))
    }

    fn check_removed(&self, node: NodeNumber) -> Result<(), Refused> {
        let Some(known) = self.nodes.get(&node) else { return refuse(no_such_node(node)) };
        must(known.fenced, || match known.streamlets {
            0 => format!("node {node} is not lost; stop its process, then give it up"),
            has => format!(
                "node {node} is live and owns {has} streamlets; have them moved with `kera node drain {node}`, then stop it"
            ),
        })?;
        must(known.streamlets == 0, || {
            format!(
                "node {node} still owns {} streamlets that nobody else can take over yet, {}: start it again, or give up what \
                 only it had with `kera streamlet accept-loss STREAM/STREAMLET`",
                known.streamlets,
                self.some_of(node)
            )
        })?;
        let holds = self.owners.values().any(|of| of.held().iter().any(|held| held.node == node));
        must(!holds, || {
            format!(
                "node {node} holds older groups of streamlets that have moved; those of streams with copies come to their owners \
                 by themselves once their backups are there, for the others start it again, wait until retention has taken \
                 them, or give them up with `kera streamlet accept-loss STREAM/STREAMLET`"
            )
        })?;
        let has_logs = self.logs.keys().any(|log| log.node == node);
        must(!has_logs, || {
            format!(
                "node {node} has virtual logs from which others still rebuild; try again when they have, in a moment"
            )
        })
    }

    /// A few streamlets of a node, in words.
    fn some_of(&self, node: NodeNumber) -> String {
        let mut some = Vec::new();
        for info in self.catalog.streams() {
            let runs = self.owners.get(&info.id).into_iter().flat_map(|of| of.runs());
            some.extend(runs.filter(|run| run.owner.node == node).map(|run| format!("{}/{}", info.name, run.first)));
            if some.len() >= 3 {
                break;
            }
        }
        some.truncate(3);
        format!("such as {}", some.join(", "))
    }

    pub(super) fn check_range(&self, stream: StreamId, first: u32, count: u32) -> Result<(), Refused> {
        let Ok(info) = self.catalog.find(&stream.into()) else {
            return refuse(format!("there is no stream {stream}"));
        };
        let has = info.options.streamlets;
        let fits = count > 0 && first.checked_add(count).is_some_and(|end| end <= has);
        must(fits, || format!("stream {stream} has {has} streamlets, not {count} from {first} on"))
    }

    fn check_owner(&self, entry: &ClusterEntry) -> Result<(), Refused> {
        let ClusterEntry::OwnerChanged { stream, first, count, node, epoch, owner_epoch, reason, number } = *entry
        else {
            return refuse("not a change of owner".into());
        };
        self.check_range(stream, first, count)?;
        self.check_live(node, epoch)?;
        must(self.nodes[&node].roles.has(Roles::BROKER), || format!("node {node} is no broker"))?;
        let low = owner_epoch < self.first_owner_epoch;
        must(!low, || format!("owner epoch {owner_epoch} may be in ids of groups already"))?;
        let runs: Vec<_> = self.owners.get(&stream).into_iter().flat_map(|of| of.within(first, count)).collect();
        for run in &runs {
            let before = run.owner;
            must(before.owner_epoch < owner_epoch, || {
                format!("owner epoch {owner_epoch} is not above {} of the owner before", before.owner_epoch)
            })?;
            match reason {
                OwnerReason::First => return refuse(format!("node {} owns streamlet {}", before.node, run.first)),
                OwnerReason::Recovered => {
                    self.check_over(before.node, before.epoch)?;
                    self.check_no_open_end(stream, run)?;
                }
                OwnerReason::Gathered => {
                    self.check_gathered(&before, run.first, stream, (node, epoch))?;
                    self.check_no_open_end(stream, run)?;
                }
                OwnerReason::LossAccepted => must(!self.is_live(before.node, before.epoch), || {
                    format!("node {} is live and has streamlet {}; nothing of it is lost", before.node, run.first)
                })?,
                OwnerReason::Moved => {}
                OwnerReason::Copied => self.check_copied(stream, run.first, number)?,
                OwnerReason::GivenBack => self.check_given_back((stream, first, count), &before, node, number)?,
            }
        }
        match (reason, self.moves.get(&number)) {
            (OwnerReason::Moved | OwnerReason::Copied, Some(noted)) => {
                let is_it = noted.stream == stream && noted.streamlet == first && count == 1 && noted.to == node;
                must(is_it, || format!("move {number} is of another streamlet, or to another node"))?;
                let has = runs.first().map(|run| run.owner.node);
                must(has == Some(noted.from), || format!("node {} has not what move {number} moves", noted.from))
            }
            (OwnerReason::Moved | OwnerReason::Copied, None) => {
                refuse(format!("move {number} is not noted; it was called off"))
            }
            (OwnerReason::GivenBack, _) => must(runs.len() == 1, || "nobody owns what is given back".into()),
            (_, _) => must(number == 0, || "only a move has a number".into()),
        }
    }

    /// An owner gathers groups that are lost elsewhere when it has rebuilt what it was to rebuild before.
    fn check_gathered(
        &self,
        before: &super::Owner,
        streamlet: u32,
        stream: StreamId,
        (node, epoch): (NodeNumber, u32),
    ) -> Result<(), Refused> {
        must((before.node, before.epoch) == (node, epoch), || {
            format!("node {} owns streamlet {streamlet}", before.node)
        })?;
        must(!before.rebuilding, || format!("node {node} still rebuilds streamlet {streamlet}"))?;
        let is_any = self.owners.get(&stream).is_some_and(|of| of.held_of(streamlet).any(|held| self.is_lost(&held)));
        must(is_any, || format!("no groups of streamlet {streamlet} are lost"))
    }

    /// What was rebuilt was rebuilt in one owner epoch. If the streamlet is in a later one by now, what its owner gathers in that is not there
    /// yet, and the logs that have it must not go.
    fn check_rebuilt(
        &self,
        stream: StreamId,
        (first, count): (u32, u32),
        incarnation: (NodeNumber, u32),
        owner_epoch: u32,
    ) -> Result<(), Refused> {
        let mut runs = self.owners.get(&stream).into_iter().flat_map(|of| of.within(first, count));
        let other = runs.find(|run| owner_epoch != 0 && !run.owner.has_rebuilt_in(incarnation, owner_epoch));
        other.map_or(Ok(()), |Run { first, owner, .. }| {
            let (node, has) = (owner.node, owner.owner_epoch);
            refuse(format!(
                "streamlet {first} is node {node}'s in owner epoch {has}, what is rebuilt is of {owner_epoch}"
            ))
        })
    }

    fn check_handed(&self, what: (StreamId, u32), owner_epoch: u32, bytes: usize) -> Result<(), Refused> {
        self.check_range(what.0, what.1, 1)?;
        let has = self.owner(what.0, what.1).map(|owner| owner.owner_epoch);
        must(has == Some(owner_epoch), || format!("owner epoch {owner_epoch} is not that of streamlet {}", what.1))?;
        check_handed_bytes(bytes)
    }

    /// Deleted records stay deleted for as long as the lane has the same owner. The next one may have got less of the lane than its floor, if
    /// more was lost at once than there are copies: it says so, and what it appends there is seen.
    fn check_begins(&self, what: (StreamId, u32, LaneId), owner_epoch: u32, ordinal: u64) -> Result<(), Refused> {
        let (stream, streamlet, lane) = what;
        self.check_range(stream, streamlet, 1)?;
        let lanes = self.catalog.find(&stream.into()).map_or(0, |info| info.options.lanes);
        must(lane.0 < lanes, || format!("stream {stream} has {lanes} lanes, so none with number {lane}"))?;
        let has = self.owner(stream, streamlet).map(|owner| owner.owner_epoch);
        must(has == Some(owner_epoch), || format!("owner epoch {owner_epoch} is not that of streamlet {streamlet}"))?;
        match self.floor(stream, streamlet, lane).filter(|floor| floor.owner_epoch == owner_epoch) {
            Some(floor) if ordinal < floor.ordinal => {
                refuse(format!("records below {} of lane {lane} are deleted; {ordinal} is below", floor.ordinal))
            }
            _ => Ok(()),
        }
    }

    /// Whether an incarnation of a broker can acknowledge nothing more that is not known: it is fenced, and the ends of all
    /// of its logs are decided.
    fn check_over(&self, node: NodeNumber, epoch: u32) -> Result<(), Refused> {
        must(!self.is_live(node, epoch), || format!("node {node} epoch {epoch} is not fenced"))?;
        match self.logs_of(node, epoch).find(|(_, log)| log.end.is_none()) {
            Some((name, _)) => refuse(format!("the end of {name} is not decided")),
            None => Ok(()),
        }
    }

    fn check_returned(&self, node: NodeNumber, epoch: u32, owner_epoch: u32, all: bool) -> Result<(), Refused> {
        self.check_live(node, epoch)?;
        let next = self.next_owner_epoch.max(self.first_owner_epoch);
        must(owner_epoch >= next, || format!("owner epoch {owner_epoch} is not above those given out"))?;
        if all { self.check_goes_on(node, epoch) } else { Ok(()) }
    }

    fn check_view(&self, log: LogName, view: u32, first: u64, backups: &[NodeNumber]) -> Result<(), Refused> {
        self.check_live(log.node, log.epoch)?;
        let views = self.logs.get(&log).map_or(&[][..], |state| &state.views);
        let newest = views.len() as u32;
        must(view == newest + 1, || format!("{log} has view {newest}, so {view} is not its next"))?;
        let from = views.last().map_or(1, |view| view.first);
        let begins = if views.is_empty() { first == 1 } else { first >= from };
        must(begins, || {
            format!("view {view} of {log} cannot begin with block {first}, the one before begins with {from}")
        })?;
        must(!backups.is_empty() && backups.len() <= BACKUPS_MAX, || {
            format!("a view has 1 to {BACKUPS_MAX} backups, not {}", backups.len())
        })?;
        let different: BTreeSet<_> = backups.iter().collect();
        must(different.len() == backups.len(), || "a backup is named twice".into())?;
        backups.iter().try_for_each(|backup| self.check_backup(log, *backup))
    }

    fn check_backup(&self, log: LogName, backup: NodeNumber) -> Result<(), Refused> {
        must(backup != log.node, || format!("node {backup} cannot be a backup of its own {log}"))?;
        let is_live = self.nodes.get(&backup).is_some_and(|node| node.is_live(Roles::BACKUP));
        must(is_live, || format!("node {backup} is no backup, or it is lost"))
    }

    fn check_added(&self, log: LogName, view: u32, backup: NodeNumber) -> Result<(), Refused> {
        self.check_live(log.node, log.epoch)?;
        self.check_backup(log, backup)?;
        let views = self.logs.get(&log).map_or(&[][..], |state| &state.views);
        // In the newest view "every backup" decides what is acknowledged, so it changes by another view only.
        must((view as usize) < views.len() && view > 0, || format!("view {view} of {log} is none of its older ones"))?;
        let has = views[view as usize - 1].backups.contains(&backup);
        must(!has, || format!("node {backup} is in view {view} of {log} already"))
    }

    fn check_end(&self, log: LogName, end: u64) -> Result<(), Refused> {
        must(!self.is_live(log.node, log.epoch), || format!("node {} epoch {} is not fenced", log.node, log.epoch))?;
        let Some(state) = self.logs.get(&log) else { return refuse(format!("there is no {log}")) };
        must(state.end.is_none(), || format!("the end of {log} is decided"))?;
        let first = state.views.last().map_or(1, |view| view.first);
        must(end + 1 >= first, || format!("{log} cannot end at {end}: what is before block {first} was acknowledged"))
    }

    fn check_view_given_up(&self, log: LogName, view: u32) -> Result<(), Refused> {
        if self.level() >= level::LOST_BLOCKS && !self.is_live(log.node, log.epoch) {
            return self.check_lost_view(log, view);
        }
        self.check_live(log.node, log.epoch)?;
        let views = self.logs.get(&log).map_or(0, |state| state.views.len());
        // The newest view says where the log ends: it is never without backups.
        must(view > 0 && (view as usize) < views, || format!("view {view} of {log} is none of its older ones"))
    }

    fn check_given_up(&self, log: LogName) -> Result<(), Refused> {
        must(self.logs.contains_key(&log), || format!("there is no {log}"))?;
        if self.is_live(log.node, log.epoch) {
            return Ok(());
        }
        self.check_given_up_by_holder(log)?;
        // Whoever asks has looked before, and an owner may have been lost since: from any log that is over, with those of the node's
        // other incarnations, streamlets are recovered that wait for it, and from those that their owners have named, or from any as
        // long as they have not, streamlets are being rebuilt.
        self.check_not_needed(log)?;
        for owner in self.copied_runs().map(|(_, run)| run.owner) {
            let waits = owner.node == log.node && !self.is_live(owner.node, owner.epoch);
            must(!waits, || {
                format!("streamlets of node {} epoch {} are recovered from {log}", owner.node, owner.epoch)
            })?;
        }
        Ok(())
    }

    /// What was written before streamlets moved away from a node has its copies in the node's logs and is at the node itself, nowhere else.
    /// The node alone knows in which of them: it asks only when all that it holds from before its present life is copied again
    /// in its logs of that life, and acknowledged there. That stays true whenever the question comes, for those logs are kept in the same
    /// way. What is lost at the node, however, the present owners are about to look for in every log that it had.
    fn check_given_up_by_holder(&self, log: LogName) -> Result<(), Refused> {
        let knows = self.level() >= level::HOLDERS_GIVE_UP;
        match self.held_copied().find(|(_, held)| held.node == log.node && (!knows || self.is_lost(held))) {
            Some((stream, held)) if self.is_lost(&held) => refuse(format!(
                "groups of streamlet {} of stream {stream} that node {} held are lost there and come from {log}",
                held.first, log.node
            )),
            Some(_) => {
                refuse(format!("node {} holds groups of streamlets that have moved, with copies in {log}", log.node))
            }
            None => Ok(()),
        }
    }

    fn check_move(&self, number: u64, what: (StreamId, u32), from: NodeNumber, to: NodeNumber) -> Result<(), Refused> {
        let next = self.next_move.max(1);
        must(number == next, || format!("the next move has number {next}, not {number}"))?;
        self.check_may_move(what, from, to)
    }

    /// Whether a streamlet may be moved.
    pub(super) fn check_may_move(
        &self,
        what: (StreamId, u32),
        from: NodeNumber,
        to: NodeNumber,
    ) -> Result<(), Refused> {
        self.check_range(what.0, what.1, 1)?;
        let Some(owner) = self.owner(what.0, what.1) else {
            return refuse(format!("nobody owns streamlet {} of stream {}", what.1, what.0));
        };
        must(owner.node == from, || format!("node {} owns it, not node {from}", owner.node))?;
        self.check_live(owner.node, owner.epoch).map_err(|Refused(why)| {
            Refused(format!("its owner is lost ({why}); it can be moved when it has another one, or this one is back"))
        })?;
        must(!owner.rebuilding, || {
            format!("node {from} still rebuilds it from copies of a lost node; try again when it has")
        })?;
        let Some(target) = self.nodes.get(&to) else { return refuse(no_such_node(to)) };
        must(target.roles.has(Roles::BROKER), || format!("node {to} is no broker, so it owns no streamlets"))?;
        must(!target.fenced, || format!("node {to} is lost; start it again or choose another one"))?;
        must(!target.draining, || {
            format!("node {to} is being drained; `kera node drain {to} --undo` lets it own streamlets again")
        })?;
        match self.moving.get(&what) {
            Some(noted) => refuse(format!(
                "it moves already, by move {noted} to node {}; wait until that is over",
                self.moves[noted].to
            )),
            None => Ok(()),
        }
    }
}

fn no_such_node(node: NodeNumber) -> String {
    format!("there is no node {node} in the cluster; `kera status` shows all")
}
