//! Which streamlets get a virtual log of their own (adaptive replication, thesis 5.3.3): one that fills the log that it shares with others
//! nearly alone goes to one of its own by itself, and comes back when it is quiet.
//!
//! Only the choice: it is told how many bytes of which streamlets came into which logs, interval by interval, and says at most one change at a
//! time. Whoever asks has the change made (`docs/replication.md`, "A log for a streamlet that fills one"). A change costs the streamlet's
//! producers a round trip and the coordinators an entry, so there are few: what takes a streamlet out is far from what brings it back,
//! both have to hold for many intervals in a row, and there are pauses between changes, of a node and of a streamlet.

use std::collections::{BTreeMap, HashMap};

use kera_format::{StreamId, StreamletId};
use kera_log::OWN_LOGS_MAX;

type Place = (StreamId, StreamletId);

/// Intervals in a row in which a streamlet must fill its log before it gets one of its own.
const BUSY: u32 = 6;
/// Intervals in a row in which it must be quiet before it goes back.
const QUIET: u32 = 24;
/// Intervals between two changes of a node.
const NODE_PAUSE: u64 = 6;
/// Intervals between two changes of a streamlet.
const STREAMLET_PAUSE: u64 = 60;
/// Intervals after which a change that was asked for and has not come is given up.
const WAITS: u64 = 6;
/// A streamlet goes when one part in so many of its log is its own, and others are in it as well.
const OUT_SHARE: u64 = 2;
/// It comes back when it would be less than one part in so many of the shared log.
const BACK_SHARE: u64 = 5;
/// Or when it has less than one part in so many of the bytes per second that take one out.
const BACK_RATE: u64 = 4;

/// Settings of the choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdaptiveConfig {
    /// Logs that streamlets may have of their own, at most [`OWN_LOGS_MAX`]; zero: none ever goes.
    pub logs_max: usize,
    /// Time between two looks.
    pub interval_us: u64,
    /// Bytes per second from which a streamlet is worth a log.
    pub bytes_per_s: u64,
}

/// What logs can be used for: copies, and whether they are synced.
pub type LogKind = (u32, bool);

/// What a streamlet has written since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrote {
    /// Which one.
    pub place: Place,
    /// Bytes of its chunks.
    pub bytes: u64,
    /// Number of the log that it shares with others when it has none of its own.
    pub shared_log: u32,
    /// The log of its own that it is in.
    pub own: Option<u8>,
    /// What its log must be.
    pub kind: LogKind,
    /// Whether it may have one of its own.
    pub may: bool,
}

/// A streamlet is to go to a log of its own, by its number, or back to the shared one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogChange {
    /// Which one.
    pub place: Place,
    /// Where it is to go on.
    pub own: Option<u8>,
    /// What that log must be.
    pub kind: LogKind,
}

/// What is remembered of a streamlet that is busy, has a log, or had one a short while ago.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    busy: u32,
    quiet: u32,
    own: Option<u8>,
    kind: LogKind,
    shared_log: u32,
    changed_us: Option<u64>,
}

/// Numbers of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AdaptiveStats {
    /// Streamlets that have a log of their own.
    pub own: u64,
    /// Times that one got a log of its own.
    pub out: u64,
    /// Times that one came back.
    pub back: u64,
    /// Changes that were asked for and did not come.
    pub given_up: u64,
}

/// See the module. Deterministic: it knows the time only by what it is told.
#[derive(Debug)]
pub struct Adaptive {
    config: AdaptiveConfig,
    known: BTreeMap<Place, Known>,
    /// What each log of streamlets' own is, from its first use on.
    kinds: [Option<LogKind>; OWN_LOGS_MAX],
    pending: Option<(LogChange, u64)>,
    looked_us: Option<u64>,
    changed_us: Option<u64>,
    stats: AdaptiveStats,
}

impl Adaptive {
    /// Knows of nothing yet.
    pub fn new(config: AdaptiveConfig) -> Adaptive {
        let config = AdaptiveConfig { logs_max: config.logs_max.min(OWN_LOGS_MAX), ..config };
        let (known, kinds, stats) = (BTreeMap::new(), [None; OWN_LOGS_MAX], AdaptiveStats::default());
        Adaptive { config, known, kinds, pending: None, looked_us: None, changed_us: None, stats }
    }

    /// Where a streamlet goes that is opened now: where the change says that is under way, otherwise the shared log.
    pub fn target(&self, place: Place) -> Option<(u8, LogKind)> {
        let (change, _) = self.pending.filter(|(change, _)| change.place == place)?;
        change.own.map(|number| (number, change.kind))
    }

    /// Counters and sizes.
    pub fn stats(&self) -> AdaptiveStats {
        AdaptiveStats { own: self.known.values().filter(|known| known.own.is_some()).count() as u64, ..self.stats }
    }

    /// Streamlets that had a log of their own at the last look, and what that is.
    pub fn own(&self) -> Vec<(StreamId, StreamletId, LogKind)> {
        let own = self.known.iter().filter(|(_, known)| known.own.is_some());
        own.map(|((stream, streamlet), known)| (*stream, *streamlet, known.kind)).collect()
    }

    /// An interval is over: what was written in it, with those that have a log of their own and wrote nothing left out. `in_log` tells for a
    /// streamlet that is on this node which log of its own it is in. The answer is a change that is to be made; until it has come, or
    /// does not come for long, there is no other.
    pub fn look(&mut self, now_us: u64, wrote: &[Wrote], in_log: &dyn Fn(Place) -> Option<u8>) -> Option<LogChange> {
        let since_us = self.looked_us.replace(now_us).map(|before| now_us.saturating_sub(before));
        self.settle(now_us, in_log);
        for (place, known) in &mut self.known {
            known.own = in_log(*place);
        }
        // A node that stood still knows nothing of what it missed.
        let Some(took_us) = since_us.filter(|took_us| (1..=4 * self.config.interval_us).contains(took_us)) else {
            self.known.values_mut().for_each(|known| (known.busy, known.quiet) = (0, 0));
            return None;
        };
        self.count(wrote, took_us);
        let streamlet_pause_us = STREAMLET_PAUSE * self.config.interval_us;
        let rests = |known: &Known| known.changed_us.is_some_and(|at| now_us.saturating_sub(at) < streamlet_pause_us);
        self.known.retain(|_, known| known.own.is_some() || known.busy > 0 || rests(known));
        let node_pause_us = NODE_PAUSE * self.config.interval_us;
        let pauses = self.changed_us.is_some_and(|at| now_us.saturating_sub(at) < node_pause_us);
        if self.pending.is_some() || pauses {
            return None;
        }
        let change = self.choose(&|known| !rests(known))?;
        self.pending = Some((change, now_us));
        Some(change)
    }

    /// The change that was told last is not to be made, or cannot: it counts as one that did not come.
    pub fn refused(&mut self, now_us: u64) {
        if let Some((change, _)) = self.pending.take() {
            self.stats.given_up += 1;
            self.changed(change.place, now_us);
        }
    }

    /// Whether the change that is under way has come.
    fn settle(&mut self, now_us: u64, in_log: &dyn Fn(Place) -> Option<u8>) {
        let Some((change, asked_us)) = self.pending else { return };
        if in_log(change.place) == change.own {
            self.pending = None;
            match change.own {
                Some(_) => self.stats.out += 1,
                None => self.stats.back += 1,
            }
            self.changed(change.place, now_us);
        } else if now_us.saturating_sub(asked_us) > WAITS * self.config.interval_us {
            self.refused(now_us);
        }
    }

    fn changed(&mut self, place: Place, now_us: u64) {
        self.changed_us = Some(now_us);
        let known = self.known.entry(place).or_default();
        (known.busy, known.quiet, known.changed_us) = (0, 0, Some(now_us));
    }

    /// Counts for how many intervals in a row each streamlet fills its log, or is quiet.
    fn count(&mut self, wrote: &[Wrote], took_us: u64) {
        let mut of_log: HashMap<u32, u64> = HashMap::new();
        for of in wrote.iter().filter(|of| of.own.is_none()) {
            *of_log.entry(of.shared_log).or_default() += of.bytes;
        }
        let per_s = |bytes: u64| u128::from(bytes) * 1_000_000 / u128::from(took_us);
        let worth = u128::from(self.config.bytes_per_s);
        let mut written: HashMap<Place, u64> = HashMap::new();
        for of in wrote {
            *written.entry(of.place).or_default() += of.bytes;
            let all = of_log.get(&of.shared_log).copied().unwrap_or(0);
            let fills = of.may && of.own.is_none() && per_s(of.bytes) >= worth;
            let is_busy = fills && of.bytes.saturating_mul(OUT_SHARE) >= all && of.bytes < all;
            if is_busy || of.own.is_some() || self.known.contains_key(&of.place) {
                let known = self.known.entry(of.place).or_default();
                (known.own, known.kind, known.shared_log) = (of.own, of.kind, of.shared_log);
                known.busy = if is_busy { known.busy + 1 } else { 0 };
            }
        }
        for (place, known) in &mut self.known {
            let bytes = written.get(place).copied().unwrap_or(0);
            let others = of_log.get(&known.shared_log).copied().unwrap_or(0);
            let is_small = bytes.saturating_mul(BACK_SHARE) < bytes.saturating_add(others);
            let is_quiet = is_small || per_s(bytes) * u128::from(BACK_RATE) < worth;
            known.quiet = if known.own.is_some() && is_quiet { known.quiet + 1 } else { 0 };
            if !written.contains_key(place) {
                known.busy = 0;
            }
        }
    }

    fn choose(&mut self, may: &dyn Fn(&Known) -> bool) -> Option<LogChange> {
        let off = self.config.logs_max == 0;
        let goes_back = |(_, known): &(&Place, &Known)| may(known) && (off || known.quiet >= QUIET);
        let of_its_own = self.known.iter().filter(|(_, known)| known.own.is_some());
        if let Some((place, known)) = of_its_own.clone().find(goes_back) {
            return Some(LogChange { place: *place, own: None, kind: known.kind });
        }
        let is_free = |number: usize| !of_its_own.clone().any(|(_, known)| known.own == Some(number as u8));
        let mut busy: Vec<_> =
            self.known.iter().filter(|(_, known)| known.own.is_none() && known.busy >= BUSY).collect();
        busy.sort_by_key(|(place, known)| (u32::MAX - known.busy, **place));
        let (place, known) = busy.into_iter().find(|(_, known)| may(known))?;
        let fits = |number: &usize| is_free(*number) && self.kinds[*number].is_none_or(|kind| kind == known.kind);
        let number = (0..self.config.logs_max).find(fits)?;
        let change = LogChange { place: *place, own: Some(number as u8), kind: known.kind };
        self.kinds[number] = Some(change.kind);
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const INTERVAL_US: u64 = 5_000_000;
    const KIND: LogKind = (3, false);
    const MIB: u64 = 1 << 20;
    const CONFIG: AdaptiveConfig = AdaptiveConfig { logs_max: 2, interval_us: INTERVAL_US, bytes_per_s: 8 * MIB };

    /// A node whose changes come at once, or not at all.
    struct Node {
        adaptive: Adaptive,
        in_log: RefCell<BTreeMap<Place, u8>>,
        now_us: u64,
        moves: bool,
        changes: Vec<(u64, LogChange)>,
    }

    fn place(number: u64) -> Place {
        (StreamId(number), StreamletId(0))
    }

    impl Node {
        fn new(config: AdaptiveConfig) -> Node {
            let adaptive = Adaptive::new(config);
            Node { adaptive, in_log: RefCell::default(), now_us: 0, moves: true, changes: Vec::new() }
        }

        /// Intervals in which each of these wrote so many MiB per second, all to one shared log if not to their own.
        fn write(&mut self, intervals: u64, rates: &[(u64, u64)]) {
            for _ in 0..intervals {
                self.now_us += INTERVAL_US;
                let wrote: Vec<Wrote> = rates
                    .iter()
                    .filter(|(_, rate)| *rate > 0)
                    .map(|(number, rate)| Wrote {
                        place: place(*number),
                        bytes: rate * MIB * INTERVAL_US / 1_000_000,
                        shared_log: 0,
                        own: self.in_log.borrow().get(&place(*number)).copied(),
                        kind: KIND,
                        may: true,
                    })
                    .collect();
                let in_log = |place: Place| self.in_log.borrow().get(&place).copied();
                let Some(change) = self.adaptive.look(self.now_us, &wrote, &in_log) else { continue };
                self.changes.push((self.now_us / INTERVAL_US, change));
                assert_eq!(self.adaptive.target(change.place), change.own.map(|number| (number, KIND)));
                if self.moves {
                    match change.own {
                        Some(number) => _ = self.in_log.borrow_mut().insert(change.place, number),
                        None => _ = self.in_log.borrow_mut().remove(&change.place),
                    }
                }
            }
        }

        fn places(&self) -> Vec<(Place, Option<u8>)> {
            self.changes.iter().map(|(_, change)| (change.place, change.own)).collect()
        }
    }

    #[test]
    fn a_streamlet_that_fills_a_log_gets_one_and_comes_back_when_it_is_quiet() {
        let mut node = Node::new(CONFIG);
        node.write(6, &[(1, 90), (2, 1), (3, 1)]);
        assert_eq!(node.places(), [], "a burst");
        node.write(100, &[(1, 90), (2, 1), (3, 1)]);
        assert_eq!(node.places(), [(place(1), Some(0))]);
        assert_eq!(node.adaptive.stats(), AdaptiveStats { own: 1, out: 1, ..AdaptiveStats::default() });
        node.write(QUIET as u64 - 1, &[(2, 1), (3, 1)]);
        node.write(1, &[(1, 90), (2, 1), (3, 1)]);
        node.write(QUIET as u64 - 1, &[(2, 1), (3, 1)]);
        assert_eq!(node.changes.len(), 1, "quiet, but not for long enough at a time");
        node.write(2, &[(2, 1), (3, 1)]);
        assert_eq!(node.places(), [(place(1), Some(0)), (place(1), None)]);
        assert_eq!(node.adaptive.stats(), AdaptiveStats { own: 0, out: 1, back: 1, given_up: 0 });
    }

    #[test]
    fn what_is_small_or_alone_or_one_of_many_stays() {
        let mut node = Node::new(CONFIG);
        node.write(100, &[(1, 7), (2, 1)]);
        node.write(100, &[(1, 90)]);
        node.write(100, &[(1, 40), (2, 41), (3, 10)]);
        assert_eq!(node.places(), []);
        let mut off = Node::new(AdaptiveConfig { logs_max: 0, ..CONFIG });
        off.write(100, &[(1, 90), (2, 1)]);
        assert_eq!(off.places(), []);
    }

    #[test]
    fn changes_are_few_however_load_changes() {
        let mut node = Node::new(CONFIG);
        // Each shape lasts just long enough for a change, over and over.
        for _ in 0..20 {
            node.write(8, &[(1, 90), (2, 1)]);
            node.write(26, &[(1, 0), (2, 1)]);
        }
        let of_one: Vec<u64> = node.changes.iter().map(|(at, _)| *at).collect();
        assert!(node.changes.len() >= 4, "it goes and comes: {of_one:?}");
        assert!(of_one.windows(2).all(|pair| pair[1] - pair[0] >= STREAMLET_PAUSE), "{of_one:?}");
        let mut node = Node::new(CONFIG);
        for turn in 0..40 {
            // Another one each time.
            node.write(8, &[(1 + turn, 90), (100, 1)]);
        }
        let at: Vec<u64> = node.changes.iter().map(|(at, _)| *at).collect();
        assert!(at.windows(2).all(|pair| pair[1] - pair[0] >= NODE_PAUSE), "{at:?}");
        assert!(node.in_log.borrow().len() <= 2);
    }

    #[test]
    fn logs_are_bounded_and_given_to_others_when_they_are_free() {
        let mut node = Node::new(CONFIG);
        node.write(60, &[(1, 100), (2, 1)]);
        node.write(60, &[(1, 100), (3, 100), (2, 1)]);
        node.write(60, &[(1, 100), (3, 100), (4, 100), (2, 1)]);
        assert_eq!(node.places(), [(place(1), Some(0)), (place(3), Some(1))]);
        // One goes away altogether: to another node.
        node.in_log.borrow_mut().remove(&place(1));
        node.write(20, &[(3, 100), (4, 100), (2, 1)]);
        assert_eq!(node.places().last(), Some(&(place(4), Some(0))));
    }

    #[test]
    fn a_change_that_does_not_come_is_given_up_and_others_wait_for_it() {
        let mut node = Node::new(CONFIG);
        node.moves = false;
        node.write(WAITS + 7, &[(1, 100), (2, 1)]);
        assert_eq!((node.changes.len(), node.adaptive.stats().given_up), (1, 0));
        node.write(2, &[(1, 100), (2, 1)]);
        assert_eq!((node.changes.len(), node.adaptive.stats().given_up), (1, 1));
        node.write(STREAMLET_PAUSE - 2, &[(1, 100), (2, 1)]);
        assert_eq!(node.changes.len(), 1);
        node.write(10, &[(1, 100), (2, 1)]);
        assert_eq!(node.changes.len(), 2);
    }

    #[test]
    fn what_a_node_missed_while_it_stood_still_counts_for_nothing() {
        let mut node = Node::new(CONFIG);
        node.write(6, &[(1, 100), (2, 1)]);
        node.now_us += 10 * INTERVAL_US;
        node.write(6, &[(1, 100), (2, 1)]);
        assert_eq!(node.places(), []);
        node.write(1, &[(1, 100), (2, 1)]);
        assert_eq!(node.places(), [(place(1), Some(0))]);
    }
}
