//! Which parts of the state of coordinators are this node's: of [groups](crate::group_parts), and of
//! [transactional ids](crate::transaction_parts).
//!
//! A node that is alone has one part with everything. In a cluster a name belongs to a streamlet of a system stream, chosen by its hash, and is
//! coordinated by that streamlet's owner. Whoever becomes the owner reads the streamlet before it serves. Nobody else serves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kera_broker::Broker;
use kera_env::Clock;
use kera_format::{Cursor, StreamId, StreamOptions, StreamletId, murmur2};
use kera_log::{Stream, Streamlet, Tenure};
use parking_lot::{Mutex, RwLock};

use crate::door::{Door, OtherNodes};
use crate::state_log::{Bounded, Edge, Kept, StateLog, state_stream_options};

/// Streamlets of a stream: how many nodes can share the work, and how much a node has to read before it serves. Never changes.
const STREAMLETS: u32 = 16;
/// Nodes that are asked at a time for what they have from before there was a cluster.
const ASKED_AT_ONCE: usize = 16;

/// The options of a stream: logs of its own, so that what is kept does not wait behind records.
pub(crate) fn stream_options(copies: u32) -> StreamOptions {
    StreamOptions { streamlets: STREAMLETS, replication: copies, virtual_logs: 1, ..state_stream_options() }
}

/// The streamlet of a name, of `count`.
pub(crate) fn streamlet_of(name: &str, count: usize) -> usize {
    (murmur2(name.as_bytes()) & 0x7fff_ffff) as usize % count.max(1)
}

/// What each node of the cluster tells, in the order of the nodes. Several are asked at a time, on threads of their own: one that does not answer takes nobody else's time. Blocks the
/// thread until all have told.
pub(crate) fn of_nodes<T: Send>(door: &Door, ask: impl Fn(u32) -> T + Sync) -> Vec<T> {
    at_once(&door.broker.ownership().nodes(), |node| ask(node.node))
}

fn at_once<N: Sync, T: Send>(nodes: &[N], ask: impl Fn(&N) -> T + Sync) -> Vec<T> {
    let (next, told) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(node) = nodes.get(at) else { return };
            let one = ask(node);
            told.lock().push((at, one));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..nodes.len().min(ASKED_AT_ONCE) {
            // Without this thread the others ask more.
            let _ = std::thread::Builder::new().name("kera-founding".into()).spawn_scoped(scope, work);
        }
        work();
    });
    let mut told = told.into_inner();
    told.sort_unstable_by_key(|(at, _)| *at);
    told.into_iter().map(|(_, one)| one).collect()
}

/// Where the part of a streamlet is.
enum Place<P> {
    /// At another node, or nowhere.
    Elsewhere,
    /// Here, in this owner epoch, and on its way.
    Loading(u32),
    /// Here.
    Here(u32, Arc<P>),
}

struct Table<P> {
    /// The cluster's stream; `None`: the node is alone, or the cluster has none yet.
    stream: Option<Arc<Stream>>,
    places: Vec<Place<P>>,
}

/// The parts of a node.
pub(crate) struct StateParts<P> {
    table: RwLock<Table<P>>,
    elsewhere: Arc<P>,
    loading: Arc<P>,
    broker: Arc<Broker>,
}

impl<P> StateParts<P> {
    /// None are here yet. `elsewhere` and `loading` refuse everything, and say why.
    pub(crate) fn new(elsewhere: Arc<P>, loading: Arc<P>, broker: &Arc<Broker>) -> StateParts<P> {
        let (table, broker) = (RwLock::new(Table { stream: None, places: Vec::new() }), Arc::clone(broker));
        StateParts { table, elsewhere, loading, broker }
    }

    /// All is here, of a node that is alone.
    pub(crate) fn set_alone(&self, part: Arc<P>) {
        self.table.write().places = vec![Place::Here(0, part)];
    }

    /// All is the cluster's from here on, if there is its stream; what the node had for itself.
    pub(crate) fn set_shared(&self, stream: Option<Arc<Stream>>) -> Option<Arc<P>> {
        let count = stream.as_ref().map_or(0, |stream| stream.streamlet_count());
        let places = (0..count).map(|_| Place::Elsewhere).collect();
        let before = std::mem::replace(&mut *self.table.write(), Table { stream, places });
        before.places.into_iter().find_map(|place| if let Place::Here(_, part) = place { Some(part) } else { None })
    }

    /// The cluster's stream, once this node knows of it.
    pub(crate) fn stream(&self) -> Option<Arc<Stream>> {
        self.table.read().stream.clone()
    }

    /// Whether all is here.
    pub(crate) fn is_alone(&self) -> bool {
        let table = self.table.read();
        table.stream.is_none() && !table.places.is_empty()
    }

    /// The streamlet that a name's coordinator owns, in a cluster that has the stream.
    pub(crate) fn streamlet_of(&self, name: &str) -> Option<(Arc<Stream>, StreamletId)> {
        let table = self.table.read();
        let streamlet = streamlet_of(name, table.places.len());
        Some((table.stream.clone()?, StreamletId(streamlet as u32)))
    }

    /// The part that answers for a name, if only that it is not here.
    pub(crate) fn find(&self, name: &str) -> Arc<P> {
        let table = self.table.read();
        self.at(&table, streamlet_of(name, table.places.len()))
    }

    /// The part of a streamlet, in the same way.
    pub(crate) fn part(&self, number: u32) -> Arc<P> {
        self.at(&self.table.read(), number as usize)
    }

    /// A node that has not heard of the coordinators for too long may have been replaced: it says that nothing is here, as readers are told.
    fn at(&self, table: &Table<P>, place: usize) -> Arc<P> {
        match table.places.get(place).filter(|_| self.broker.is_confirmed()) {
            Some(Place::Here(_, part)) => Arc::clone(part),
            Some(Place::Loading(_)) => Arc::clone(&self.loading),
            Some(Place::Elsewhere) | None => Arc::clone(&self.elsewhere),
        }
    }

    /// The part of a name and the epoch in which it is this node's, if it is here.
    pub(crate) fn find_here(&self, name: &str) -> Option<(u32, Arc<P>)> {
        let table = self.table.read();
        match table.places.get(streamlet_of(name, table.places.len())) {
            Some(Place::Here(epoch, part)) => Some((*epoch, Arc::clone(part))),
            _ => None,
        }
    }

    /// The parts that are here.
    pub(crate) fn here(&self) -> Vec<Arc<P>> {
        let table = self.table.read();
        let here = table.places.iter().filter_map(|place| match place {
            Place::Here(_, part) => Some(Arc::clone(part)),
            Place::Loading(_) | Place::Elsewhere => None,
        });
        here.collect()
    }

    /// The same, and while some are on their way the one that says so. That one alone while this node may have been replaced: whoever lists what
    /// all nodes have asks again, and does not take for true what may be of the past.
    pub(crate) fn listed(&self) -> Vec<Arc<P>> {
        if !self.broker.is_confirmed() {
            return vec![Arc::clone(&self.loading)];
        }
        let mut parts = self.here();
        if self.table.read().places.iter().any(|place| matches!(place, Place::Loading(_))) {
            parts.push(Arc::clone(&self.loading));
        }
        parts
    }

    /// Looks at who owns the streamlets now: the parts that have left, and what is to be read. `name` is the stream's.
    pub(crate) fn follow<E: Kept>(&self, name: &'static str, clock: &Arc<dyn Clock>) -> (Vec<Arc<P>>, Vec<Coming<E>>) {
        let mut table = self.table.write();
        let (mut left, mut coming) = (Vec::new(), Vec::new());
        let Table { stream: Some(stream), places } = &mut *table else { return (left, coming) };
        for (at, place) in places.iter_mut().enumerate() {
            let Some(streamlet) = stream.streamlet(StreamletId(at as u32)) else { continue };
            let epoch = streamlet.owner_epoch();
            let mine = streamlet.tenure() != Tenure::Elsewhere && epoch != 0;
            if matches!(*place, Place::Here(known, _) | Place::Loading(known) if mine && known == epoch) {
                continue;
            }
            if let Place::Here(_, part) = std::mem::replace(place, Place::Elsewhere) {
                left.push(part);
            }
            if let (true, Some(log)) = (mine, StateLog::of(name, stream, StreamletId(at as u32), clock)) {
                *place = Place::Loading(epoch);
                coming.push(Coming { place: at, epoch, stream: stream.id(), streamlet: Arc::clone(streamlet), log });
            }
        }
        (left, coming)
    }

    /// A streamlet is read: its part serves, if it is still this node's in the same epoch. Whether it is.
    pub(crate) fn loaded<E>(&self, coming: &Coming<E>, part: &Arc<P>) -> bool {
        if let Some(place) = self.table.write().places.get_mut(coming.place)
            && matches!(place, Place::Loading(epoch) if *epoch == coming.epoch)
        {
            *place = Place::Here(coming.epoch, Arc::clone(part));
            return true;
        }
        false
    }
}

/// Of so many tries to read one, 50 ms apart, one is told of.
const TRIES_TOLD: u32 = 200;
/// Of so many one goes on behind what cannot be read.
const TRIES_PAST: u32 = 20;

/// A streamlet that is to be read.
pub(crate) struct Coming<E> {
    place: usize,
    pub(crate) epoch: u32,
    stream: StreamId,
    pub(crate) streamlet: Arc<Streamlet>,
    pub(crate) log: Arc<StateLog<E>>,
}

/// What is read of a streamlet.
struct Filling<T> {
    filled: T,
    /// With a copy on the way: what is there if it is whole.
    copied: Option<T>,
    /// Whether the first entry says where a copy begins or ends.
    first: Option<Option<Edge>>,
    is_whole: bool,
    /// Why something could not be read that a whole copy has not made needless since.
    lacks: Option<String>,
}

impl<T> Filling<T> {
    fn take<E: Bounded>(&mut self, entry: E, begin: &impl Fn() -> T, each: &impl Fn(&mut T, E)) {
        let edge = entry.edge();
        self.first.get_or_insert(edge);
        match edge {
            Some(Edge::Begin) => self.copied = Some(begin()),
            Some(Edge::End) => {
                if let Some(whole) = self.copied.take() {
                    (self.filled, self.is_whole, self.lacks) = (whole, true, None);
                }
            }
            None => {
                if let Some(copied) = &mut self.copied {
                    each(copied, entry.clone());
                }
                each(&mut self.filled, entry);
            }
        }
    }

    /// What comes here cannot be read, and may have had a part of the copy that is on the way.
    fn lack(&mut self, why: String) {
        (self.copied, self.is_whole) = (None, false);
        self.lacks.get_or_insert(why);
    }
}

impl<E: Bounded> Coming<E> {
    /// Reads it into what `begin` makes, entry by entry, and from the beginning again if that fails; what older owners have comes from
    /// `others`. What stands in front of a whole copy of everything does not count, nor does a part of what it [begins with](StateLog::found): so what cannot be read there, since a disk has
    /// lost it or its node is gone, is waited for only if no whole copy stands behind it. With what was filled, how many records were read and how many passed over. Blocks the thread while they come from
    /// disk or from other nodes; `None` if the streamlet is not this node's any more, or when nobody wants it. `what` is said of
    /// failures.
    pub(crate) fn read<T>(
        &self,
        broker: &Broker,
        what: &str,
        (begin, each): (impl Fn() -> T, impl Fn(&mut T, E)),
        others: impl Fn() -> Option<Arc<dyn OtherNodes>>,
        go_on: impl Fn() -> bool,
    ) -> Option<(T, u64, u64)> {
        let elsewhere = |node, from| {
            let others = others().ok_or("the node does not reach others yet")?;
            let given = others.read(node, self.stream, self.streamlet.id(), from)?;
            Ok((given.data, given.next))
        };
        let is_mine =
            || self.streamlet.tenure() != Tenure::Elsewhere && self.streamlet.owner_epoch() == self.epoch && go_on();
        for tries in 0_u32.. {
            if !is_mine() {
                break;
            }
            let mut filling = Filling { filled: begin(), copied: None, first: None, is_whole: false, lacks: None };
            let take = |filling: &mut Filling<T>, entry: E| filling.take(entry, &begin, &each);
            // All that follows would be read each time.
            let goes_past = tries.is_multiple_of(TRIES_PAST);
            match self.read_once(broker, &mut filling, take, (&elsewhere, &is_mine), goes_past) {
                Ok(read) => {
                    // Who serves copies everything later: then something stands in front of a copy, or it is whole.
                    let is_broken_off = filling.first == Some(Some(Edge::Begin)) && !filling.is_whole;
                    self.log.set_broken_off(is_broken_off);
                    let filled = if is_broken_off { begin() } else { filling.filled };
                    return read.map(|(records, passed_over)| (filled, records, passed_over));
                }
                Err(error) => {
                    // Of all streamlets at once, and for as long as a node is gone.
                    if tries.is_multiple_of(TRIES_TOLD) {
                        tracing::warn!(streamlet = %self.streamlet.id(), %error, "{what} cannot be read yet");
                    }
                    self.log.rest();
                }
            }
        }
        None
    }

    /// One try. With `goes_past` it goes on behind what cannot be read, and is over well if a whole copy follows.
    fn read_once<T>(
        &self,
        broker: &Broker,
        filling: &mut Filling<T>,
        take: impl Fn(&mut Filling<T>, E),
        (elsewhere, is_mine): (&impl Fn(u32, Cursor) -> Result<(Vec<u8>, Cursor), String>, &impl Fn() -> bool),
        goes_past: bool,
    ) -> Result<Option<(u64, u64)>, String> {
        let mut from = self.log.start(broker);
        loop {
            match self.log.replay_while(broker, from, |entry| take(filling, entry), elsewhere, is_mine) {
                Ok(Some(read)) => return filling.lacks.take().map_or(Ok(Some(read)), Err),
                Ok(None) => return Ok(None),
                Err(stopped) => match self.log.behind(broker, &stopped).filter(|_| goes_past) {
                    Some(next) => {
                        filling.lack(stopped.why);
                        from = next;
                    }
                    None => return Err(filling.lacks.take().unwrap_or(stopped.why)),
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Condvar;

    use super::*;

    /// Long enough for a thread to begin.
    const PATIENCE: Duration = Duration::from_secs(120);

    #[test]
    fn a_node_that_does_not_answer_keeps_no_other_one_from_being_asked() {
        let (asked, changed) = (Mutex::new(0), Condvar::new());
        let ask = |node: &u32| {
            let mut count = asked.lock();
            *count += 1;
            changed.notify_all();
            // None of them answers before both were asked.
            let alone = changed.wait_while_for(&mut count, |count| *count < 2, PATIENCE);
            (*node, alone.timed_out())
        };
        assert_eq!(at_once(&[7, 3], ask), [(7, false), (3, false)]);
        assert_eq!(at_once(&[0; 0], |node| *node), [0; 0]);
    }
}
