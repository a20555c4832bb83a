//! Who owns which streamlet, as far as this node has been told, and the steps by which a streamlet leaves it or comes to it
//! (`docs/replication.md`, "A streamlet moves").
//!
//! Whoever follows the coordinator feeds the table; the broker only reads it, and only where it must: writes look at their
//! streamlet's own word under the lane's lock ([`kera_log::Streamlet::let_go`]), reads ask the table only for streamlets of which another node has groups.
//! A node that is in no cluster owns everything, and nothing here costs it more than that word.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_format::cluster::HANDED_BYTES_MAX;
use kera_format::{GroupId, StreamId, StreamletId};
use kera_log::{DurabilitySink, Lane, Observer, Stream, Streamlet, Tenure, TenureError, Waiters};
use kera_protocol::limits::{OWNER_STREAMS_MAX, page_items};
use kera_protocol::placement::runs_of;
use kera_protocol::{FindOwners, NodeInfo, Owner, Owners, Role, Status, StreamOwners, StreamRef, StreamletState};
use parking_lot::{Mutex, RwLock};

use crate::broker::Broker;
use crate::failure::Failure;
use crate::handover;

/// What this node knows of its cluster. Shared by all sessions; fed by one thread.
#[derive(Default)]
pub struct Ownership {
    table: RwLock<Table>,
    /// Of the streams with lower numbers the node has heard, also of those that are gone; zero: it is in no cluster.
    heard_before: AtomicU64,
    /// Sessions whose writes wait for streamlets that are being let go. A move may be tried for long, and whose connection has ended meanwhile is not kept for it.
    waiting: Mutex<Waiters>,
}

/// What a look for a stream [has come to](Ownership::find).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard<T> {
    /// It is there.
    Of(T),
    /// It may be there: the node has not heard of it yet.
    NotYet,
    /// It is gone, or never was.
    Gone,
}

/// Whose a lane is, and whether it is open here. What is found in the lane counts only if that is the same before and behind.
#[derive(PartialEq, Eq, Debug)]
pub struct Whose {
    /// Nobody else [has anything](Lane::is_plain) of it.
    pub is_plain: bool,
    /// Whether it is open here.
    pub tenure: Tenure,
    /// In which owner epoch its groups are opened.
    pub owner_epoch: u32,
    /// By the table of owners. Not asked for where nobody else has anything: that is so of nearly all lanes.
    pub owner: Option<Owner>,
}

impl Whose {
    /// As it is now.
    pub fn of(ownership: &Ownership, lane: &Lane) -> Whose {
        let is_plain = lane.is_plain();
        let owner = if is_plain { None } else { ownership.owner(lane.stream_id(), lane.streamlet_id()) };
        Whose { is_plain, tenure: lane.tenure(), owner_epoch: lane.owner_epoch(), owner }
    }
}

#[derive(Default)]
struct Table {
    cluster: [u8; 16],
    version: u64,
    /// This node's number; zero: it is in no cluster.
    me: u32,
    nodes: BTreeMap<u32, NodeInfo>,
    streams: BTreeMap<StreamId, Vec<Owner>>,
    /// Streams that are gone by a state that is still to be told of. What is known of their owners may be older than the state that has its number, and is told to nobody.
    going: BTreeSet<StreamId>,
    /// What this node has offered to hold again, with the owner epoch of whom it was offered to.
    offered: BTreeMap<(StreamId, StreamletId), u32>,
}

impl Ownership {
    /// This node's number in its cluster; zero: it is in none, and owns everything.
    pub fn node(&self) -> u32 {
        self.table.read().me
    }

    /// The cluster's id, all zeros if there is none.
    pub fn cluster(&self) -> [u8; 16] {
        self.table.read().cluster
    }

    /// Which state of the cluster it has been told last; rises with each change.
    pub fn version(&self) -> u64 {
        self.table.read().version
    }

    /// All nodes, by their numbers.
    pub fn nodes(&self) -> Vec<NodeInfo> {
        self.table.read().nodes.values().cloned().collect()
    }

    /// Who owns a streamlet; `None`: the node is in no cluster, or has not heard of the streamlet.
    pub fn owner(&self, stream: StreamId, streamlet: StreamletId) -> Option<Owner> {
        self.table.read().streams.get(&stream)?.get(streamlet.0 as usize).cloned()
    }

    /// This node offers the owner of a streamlet to hold its older groups, or does so no more.
    pub(crate) fn offer(&self, stream: StreamId, streamlet: StreamletId, owner_epoch: Option<u32>) {
        let offered = &mut self.table.write().offered;
        match owner_epoch {
            Some(epoch) => drop(offered.insert((stream, streamlet), epoch)),
            None => drop(offered.remove(&(stream, streamlet))),
        }
    }

    /// Whether this node has offered to hold the older groups of a streamlet, as it is owned now, and it is not decided: others may hear before it
    /// does that it holds them.
    pub(crate) fn is_offered(&self, stream: StreamId, streamlet: StreamletId, owner: &Owner) -> bool {
        owner.node != self.node()
            && owner.older.iter().all(|older| older.node == owner.node)
            && self.table.read().offered.get(&(stream, streamlet)) == Some(&owner.epoch)
    }

    /// Whether this node has groups of a streamlet by what it knows of its owners.
    pub(crate) fn has_some(&self, stream: StreamId, streamlet: StreamletId) -> bool {
        let me = self.node();
        let has = |owner: Owner| owner.node == me || owner.older.iter().any(|older| older.node == me);
        self.owner(stream, streamlet).is_none_or(has)
    }

    /// Who owns each streamlet of a stream, from 0 on; `None` as with [`owner`](Ownership::owner).
    pub fn owners(&self, stream: StreamId) -> Option<Vec<Owner>> {
        self.table.read().streams.get(&stream).cloned()
    }

    /// The streamlets of a stream that this node owns by what it knows, whether or not it has opened them, each with its owner epoch.
    pub(crate) fn owned(&self, stream: StreamId) -> Vec<(StreamletId, u32)> {
        let table = self.table.read();
        let owners = table.streams.get(&stream).into_iter().flatten();
        let mine = (0..).map(StreamletId).zip(owners).filter(|(_, owner)| owner.node == table.me);
        mine.map(|(streamlet, owner)| (streamlet, owner.epoch)).collect()
    }

    /// A stream is gone by the newest state, and the change that says so is still to be told.
    pub(crate) fn goes(&self, stream: StreamId) {
        self.table.write().going.insert(stream);
    }

    /// The hint that goes with [`Status::NotOwner`]: the owner's number over its epoch; zero if nobody is known.
    pub(crate) fn hint(&self, stream: StreamId, streamlet: StreamletId) -> u64 {
        let owner = self.owner(stream, streamlet).filter(|owner| owner.node != 0);
        owner.map_or(0, |owner| u64::from(owner.node) << 32 | u64::from(owner.epoch))
    }

    /// The refusal of what the owner of a streamlet or another node has, with the owner's [`hint`](Ownership::hint).
    pub(crate) fn not_owner(&self, stream: StreamId, streamlet: StreamletId) -> Failure {
        Failure::not_owner(stream, streamlet, self.hint(stream, streamlet))
    }

    /// Has a session called when a streamlet that is being let go has gone, or stays, or its stream was deleted.
    pub(crate) fn wait(&self, observer: &Arc<dyn Observer>, token: u64) {
        self.waiting.lock().push(observer, token);
    }

    /// Whether a stream may be there of which the node has not heard yet: numbers rise.
    pub fn may_hear_of(&self, stream: StreamId) -> bool {
        let before = self.heard_before.load(Ordering::Acquire);
        before > 0 && stream.0 >= before
    }

    /// Looks for a stream, by whatever `find` finds it in that is told of streams no later than [this](Broker::heard_of_streams).
    ///
    /// What the node has heard of is looked at first. Who looked for the stream first, and found nothing, would be told behind that that there is nothing to be heard of any more
    /// if the node hears of the stream in between: it would take a stream for gone that has just come.
    pub fn find<T>(&self, stream: StreamId, find: impl FnOnce() -> Option<T>) -> Heard<T> {
        let may_come = self.may_hear_of(stream);
        match find() {
            Some(found) => Heard::Of(found),
            None if may_come => Heard::NotYet,
            None => Heard::Gone,
        }
    }

    pub(crate) fn wake(&self) {
        // Who is called may wait again: not under the lock.
        let waiting = self.waiting.lock().take();
        waiting.call();
    }

    fn with<T>(&self, version: u64, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.write();
        table.version = table.version.max(version);
        change(&mut table)
    }
}

impl Broker {
    /// Who owns what.
    pub fn ownership(&self) -> &Ownership {
        &self.ownership
    }

    /// This node is number `node` of a cluster, before anybody is served. Streams that are [placed](Broker::place_stream) belong to those
    /// that are named; all others, such as those of the system that each node has for itself, stay this node's.
    pub fn join_cluster(&self, cluster: [u8; 16], node: u32) {
        self.ownership.with(0, |table| (table.cluster, table.me) = (cluster, node));
        self.applications.join_cluster();
    }

    /// All that has changed in the cluster up to state `version` was told. Before that a state has no number here, whatever of it was told: who is told the number takes all for told, and
    /// does not ask again before there is a later one.
    pub fn told_up_to(&self, version: u64) {
        self.ownership.with(version, |_| ());
    }

    /// The nodes of the cluster are these, as of state `version`; zero: it is said [later](Broker::told_up_to) which state it is.
    pub fn set_nodes(&self, version: u64, nodes: Vec<NodeInfo>) {
        let nodes = nodes.into_iter().map(|node| (node.node, node)).collect();
        self.ownership.with(version, |table| table.nodes = nodes);
    }

    /// All streams with lower numbers than `next` were made, and those of them that are still there are placed. From there on a stream that
    /// the node does not know may only not be known yet, and whoever asks for it is told to ask again ([`Status::NotReady`]).
    pub fn heard_of_streams(&self, next: StreamId) {
        // Whoever sees it sees those streams as well.
        self.ownership.heard_before.fetch_max(next.0, Ordering::Release);
    }

    /// What is said of a stream that was not there when somebody has looked for it. It may have come since.
    pub(crate) fn unknown_stream(&self, stream: StreamId) -> Failure {
        match self.ownership.find(stream, || self.log.stream(stream)) {
            Heard::Of(_) | Heard::NotYet => {
                Failure::later(Status::NotReady, format!("this node has not heard of stream {stream} yet; ask again"))
            }
            Heard::Gone => Failure::unknown_stream(stream),
        }
    }

    /// The owners of a stream's streamlets are these, from 0 on, as of state `version`, or zero as with [`set_nodes`](Broker::set_nodes): when the stream is made, grows, or the node starts.
    /// Streamlets of this node take writes when they are [opened](Broker::open_streamlet).
    pub fn place_stream(&self, version: u64, stream: StreamId, owners: Vec<Owner>) -> Result<(), Failure> {
        let found = self.log.stream(stream).ok_or_else(|| Failure::unknown_stream(stream))?;
        found.place_elsewhere();
        self.heard_of_streams(StreamId(stream.0.saturating_add(1)));
        let before = self.ownership.owners(stream).unwrap_or_default();
        for (streamlet, owner) in (0..).map(StreamletId).zip(owners) {
            if before.get(streamlet.0 as usize) != Some(&owner) {
                self.set_owner(version, stream, streamlet, owner)?;
            }
        }
        Ok(())
    }

    /// A streamlet has another owner, or its older groups are elsewhere, as of state `version`. If it was this node's and is not any
    /// more, writes are refused from here on, whatever this node had to say about it.
    pub fn set_owner(
        &self,
        version: u64,
        stream: StreamId,
        streamlet: StreamletId,
        owner: Owner,
    ) -> Result<(), Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        let me = self.ownership.node();
        let (is_mine, epoch, shared) = (owner.node == me, owner.epoch, !owner.older.is_empty());
        let told = owner.clone();
        place.set_others(!is_mine && owner.node != 0);
        self.ownership.with(version, |table| {
            let owners = table.streams.entry(stream).or_default();
            if owners.len() <= streamlet.0 as usize {
                owners.resize(streamlet.0 as usize + 1, Owner::default());
            }
            owners[streamlet.0 as usize] = owner;
        });
        if !is_mine || (place.tenure() != Tenure::Elsewhere && place.owner_epoch() != epoch) {
            // Called also when it has left before: readers at the end learn only now where the lane goes on.
            place.leave();
            self.applications.streamlet_left(stream, streamlet);
        } else {
            place.set_shared(shared);
            self.applications.older_changed(stream, streamlet, &told, me);
        }
        self.ownership.wake();
        Ok(())
    }

    /// A stream is gone from the cluster, and before that from the log. Writes that wait for a streamlet of it which was being let go are told so.
    pub fn displace_stream(&self, version: u64, stream: StreamId) {
        self.ownership.with(version, |table| {
            table.streams.remove(&stream);
            table.going.remove(&stream);
        });
        self.ownership.wake();
    }

    /// This node takes writes of a streamlet from here on, in groups of `epoch`. `state`: what the last owner handed over, or what was
    /// found of it in the backups' answers; `None` for a streamlet that nobody has ever owned. Durable before it is called, by
    /// the caller: after a restart it is called again, with the same state and a later epoch.
    pub fn open_streamlet(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        epoch: u32,
        state: Option<&StreamletState>,
    ) -> Result<(), Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        if let Some(state) = state {
            if (state.stream, state.streamlet) != (stream, streamlet) {
                let message = format!("state is that of streamlet {} of stream {}", state.streamlet, state.stream);
                return Err(Failure::argument(message));
            }
            // What is here of progress from before that owner is older than what it hands over.
            place.forget_progress(|group| group.epoch() > state.epoch);
            place.receive(&handover::from_state(state)).map_err(refused)?;
        }
        let older = self.ownership.owner(stream, streamlet).is_some_and(|owner| !owner.older.is_empty());
        self.opens(stream, &place, epoch);
        place.open(epoch, older || state.is_some()).map_err(refused)?;
        for lane in place.lanes() {
            self.lane_started(lane);
        }
        self.applications.streamlet_opened(self, stream, &place, state);
        self.ownership.wake();
        Ok(())
    }

    /// Which virtual log a streamlet goes on in that is about to be [opened](Broker::open_streamlet) in a later owner epoch: one of its own with its
    /// number, or the one that its stream and number give it. Refused while something in the log that it is in is not durable: it stays
    /// there then, which is always right.
    pub fn put_in_log(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        own: Option<(u8, Arc<dyn DurabilitySink>)>,
    ) -> Result<(), Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        if own.as_ref().map(|(number, _)| *number) == place.own_log() {
            return Ok(());
        }
        if !place.is_settled() {
            let message = format!("not all of streamlet {streamlet} of stream {stream} is durable in its log");
            return Err(Failure::later(Status::NotReady, message));
        }
        place.put_in(own).map_err(refused)
    }

    /// How many copies a streamlet has from here on that is about to be [opened](Broker::open_streamlet) in a later owner epoch. Refused while something in
    /// the log that it is in is not durable.
    pub fn set_copies(&self, stream: StreamId, streamlet: StreamletId, copies: u32) -> Result<(), Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        if place.is_in_log_of(copies) {
            return Ok(());
        }
        if !place.is_settled() {
            let message = format!("not all of streamlet {streamlet} of stream {stream} is durable in its log");
            return Err(Failure::later(Status::NotReady, message));
        }
        place.set_copies(copies);
        Ok(())
    }

    /// This node is asked to let go of a streamlet: writes wait from here on, open groups are closed. Refused, and writes go on, while it is not
    /// known how far applications are in it: it could not be handed over, and a move that is tried again and again would keep
    /// its writers waiting. And if it would take more than [`HANDED_BYTES_MAX`] along.
    pub fn let_go(&self, stream: StreamId, streamlet: StreamletId) -> Result<(), Failure> {
        self.let_go_within(stream, streamlet, HANDED_BYTES_MAX)
    }

    /// The same, with up to `most` bytes that the coordinators keep of what it takes along.
    pub fn let_go_within(&self, stream: StreamId, streamlet: StreamletId, most: usize) -> Result<(), Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        self.applications.check_known(self, stream, streamlet)?;
        let progress = self.applications.check_size(stream, streamlet, most)?;
        handover::check_fits(stream, &place, progress, most)?;
        place.let_go().map_err(refused)
    }

    /// What the next owner must know, once everything that was appended is acknowledged; `None` before that: ask again. Final until
    /// the streamlet leaves or the move is [called off](Broker::keep_streamlet).
    pub fn handed_over(&self, stream: StreamId, streamlet: StreamletId) -> Result<Option<StreamletState>, Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        if place.tenure() != Tenure::LettingGo {
            let message = format!("streamlet {streamlet} of stream {stream} is not being let go");
            return Err(Failure::argument(message));
        }
        if !place.is_settled() {
            return Ok(None);
        }
        Ok(Some(handover::to_state(stream, &place, self.applications.handed_over(stream, streamlet)?)))
    }

    /// A move is called off: this node keeps the streamlet that it was letting go, and writes that wait go on.
    pub fn keep_streamlet(&self, stream: StreamId, streamlet: StreamletId) -> Result<(), Failure> {
        let place = self.streamlet_to_move(stream, streamlet)?;
        let older = self.ownership.owner(stream, streamlet).is_some_and(|owner| !owner.older.is_empty());
        place.resume(older).map_err(refused)?;
        self.ownership.wake();
        Ok(())
    }

    pub(crate) fn streamlet_to_move(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
    ) -> Result<Arc<Streamlet>, Failure> {
        let found = self.log.stream(stream).ok_or_else(|| Failure::unknown_stream(stream))?;
        found.streamlet(streamlet).cloned().ok_or_else(|| {
            let streamlets = found.options().streamlets;
            Failure::unknown_streamlet(stream, streamlet, streamlets)
        })
    }

    /// Answers who owns what.
    pub fn find_owners(&self, asked: &FindOwners) -> Result<Owners, Failure> {
        if asked.streams.len() > OWNER_STREAMS_MAX {
            return Err(Failure::limit("streams", asked.streams.len(), OWNER_STREAMS_MAX));
        }
        let mut wanted = Vec::with_capacity(asked.streams.len());
        for stream in &asked.streams {
            let id = match stream {
                StreamRef::Id(id) => Some(*id),
                StreamRef::Name(name) => self.stream_named(name),
            };
            let known = id.filter(|id| self.log.stream(*id).is_some_and(|stream| self.is_told_of(&stream)));
            wanted.push(known.ok_or_else(|| match id {
                Some(id) => self.unknown_stream(id),
                None => Failure::new(Status::UnknownStream, format!("there is no stream {stream:?}")),
            })?);
        }
        if asked.streams.is_empty() {
            wanted = self.log.streams().iter().filter(|stream| !stream.is_system()).map(|stream| stream.id()).collect();
        }
        wanted.sort_unstable();
        wanted.dedup();
        Ok(self.owners_page(&wanted, asked))
    }

    /// Whether it is known here whose the streamlets of a stream are: of one that [comes](Broker::stream_comes) that is told a moment later, and of one that
    /// [goes](Broker::hear_of_no_owners) a moment later that it is gone.
    fn is_told_of(&self, stream: &Stream) -> bool {
        let (table, id) = (self.ownership.table.read(), stream.id());
        !table.going.contains(&id) && (!stream.is_elsewhere() || table.streams.contains_key(&id))
    }

    fn owners_page(&self, wanted: &[StreamId], asked: &FindOwners) -> Owners {
        let table = self.ownership.table.read();
        let mut page = Owners {
            cluster: table.cluster,
            version: table.version,
            node: table.me,
            nodes: table.nodes.values().cloned().collect(),
            streams: Vec::new(),
            more: false,
        };
        if table.me == 0 {
            page.nodes = vec![alone(self.config.epoch)];
        }
        let mut left = page_items(asked.limit);
        for &stream in wanted {
            // What was told of one that goes belongs to an earlier state than the page's.
            if table.going.contains(&stream) || asked.after.is_some_and(|(after, _)| stream < after) {
                continue;
            }
            let Some(found) = self.log.stream(stream) else { continue };
            let streamlets = found.streamlet_count();
            let mut runs = match table.streams.get(&stream) {
                Some(owners) => runs_of(owners),
                // It has just come, and nobody has said yet whose they are.
                None if found.is_elsewhere() => continue,
                None => runs_of(&vec![Owner { node: table.me, ..Owner::default() }; streamlets as usize]),
            };
            runs.retain(|run| asked.after.is_none_or(|after| (stream, run.first) > after));
            if runs.is_empty() {
                continue;
            }
            if left == 0 {
                page.more = true;
                break;
            }
            page.more = runs.len() > left;
            runs.truncate(left);
            left -= runs.len();
            page.streams.push(StreamOwners { stream, streamlets, runs });
            if page.more {
                break;
            }
        }
        page
    }
}

/// A node that is in no cluster, as it is told.
fn alone(node_epoch: u32) -> NodeInfo {
    let roles = vec![Role::Coordinator, Role::Broker];
    let (address, kafka_address, http_address, rack) = Default::default();
    NodeInfo { node: 0, node_epoch, address, kafka_address, http_address, rack, roles }
}

fn refused(error: TenureError) -> Failure {
    match error {
        TenureError::Wrong { .. } => Failure::later(Status::NotReady, error.to_string()),
        _ => Failure::argument(error.to_string()),
    }
}

/// A cursor to the lane's first group of an owner epoch.
pub(crate) fn first_of(epoch: u32) -> kera_format::Cursor {
    kera_format::Cursor { group: GroupId::new(epoch, 0), ..Default::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Session(AtomicU64);

    impl Observer for Session {
        fn advanced(&self, _: u64) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_stream_that_comes_while_somebody_looks_for_it_is_not_gone() {
        let (ownership, stream) = (Ownership::default(), StreamId(50));
        ownership.heard_before.store(50, Ordering::Relaxed);
        // It is looked for just before the node hears of it.
        let misses = || {
            ownership.heard_before.store(51, Ordering::Relaxed);
            None::<()>
        };
        assert_eq!(ownership.find(stream, misses), Heard::NotYet);
        assert_eq!(ownership.find(stream, || None::<()>), Heard::Gone);
        assert_eq!(ownership.find(stream, || Some(7)), Heard::Of(7));
    }

    /// Each of them is buffers of a connection, and nobody calls before the streamlet has gone or stays.
    #[test]
    fn sessions_that_are_gone_are_forgotten_and_those_that_wait_are_called() {
        let ownership = Ownership::default();
        let session = Arc::new(Session::default());
        let observer: Arc<dyn Observer> = Arc::clone(&session) as _;
        for _ in 0..10_000 {
            ownership.wait(&observer, 1);
            let gone: Arc<dyn Observer> = Arc::new(Session::default());
            ownership.wait(&gone, 1);
            let watched = Arc::downgrade(&gone);
            drop(gone);
            assert_eq!(watched.strong_count(), 0, "it is kept");
        }
        let waiting = ownership.waiting.lock().len();
        assert!(waiting <= 32, "{waiting}");
        ownership.wake();
        assert!(session.0.swap(0, Ordering::Relaxed) > 0);
        ownership.wake();
        assert_eq!(session.0.load(Ordering::Relaxed), 0, "it is called once");
    }
}
