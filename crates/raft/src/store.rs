//! The log as `openraft` wants it: entries in memory for whoever reads, and a thread that makes them durable, many with one
//! sync. `openraft` hears of an entry's durability when it is synced, and not before.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use kera_env::Clock;
use kera_format::raft::Record;
use kera_protocol::RaftBallot;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{ErrorSubject, ErrorVerb, LogState, OptionalSend, RaftLogReader, StorageError};
use parking_lot::RwLock;
use tokio::sync::{oneshot, watch};

use crate::file::LogFile;
use crate::room::when_there_is_room;
use crate::types::{Ballot, Entry, Place, TypeConfig, ballot_of, from_format, log_id, place_of, to_format, vote};

/// Most records that one sync makes durable.
const RECORDS_MAX: usize = 4096;

/// Most bytes of entries that are sent to a node at a time, unless one alone has more: they are to be there, on its disk, and answered in the time between two
/// signs of life.
const SENT_BYTES_MAX: usize = 1 << 20;

/// A disk is slow that took so long for something lately, in microseconds. Of an election those wait for the disk who ask for votes, and then those who give them: several times that has to
/// go into the [time](crate::Timing) after which whoever asks begins anew.
const SLOW_US: u64 = 50_000;

/// What takes so many times as long as others did lately may be written by a disk that is slow, as where a new file is begun, which syncs several times. What takes longer is not: the disk stands still.
const TIMES_LATELY: u64 = 8;

/// For a term so much further on a vote is written on a slow disk.
const TERMS_AHEAD: u64 = 64;

/// For whom: no node has this number.
const NOBODY: u64 = 0;

type Failed = StorageError<u64>;

/// Who is told that records are durable.
enum Done {
    Flushed(LogFlushed<TypeConfig>),
    Waiting(oneshot::Sender<io::Result<()>>),
}

/// For how long the write that is under way has been, with its sync. What waits for room is not under way. And how many bytes were written since the start.
pub(crate) struct Writing {
    clock: Arc<dyn Clock>,
    /// On the monotonic clock; 0: none is.
    since_us: AtomicU64,
    /// The most that one took lately, in microseconds. It counts half as much with each that comes behind it: a disk that is slow by turns is slow.
    lately_us: AtomicU64,
    bytes: AtomicU64,
}

impl Writing {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Writing {
        Writing { clock, since_us: AtomicU64::new(0), lately_us: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn begins(&self) {
        self.since_us.store(self.clock.monotonic_us().max(1), Ordering::Release);
    }

    fn is_over(&self) {
        self.since_us.store(0, Ordering::Release);
    }

    /// The same of what somebody waits for.
    fn is_written(&self) {
        let before_us = self.lately_us.load(Ordering::Acquire);
        self.lately_us.store(self.for_us().max(before_us / 2), Ordering::Release);
        self.is_over();
    }

    /// The disk has refused it. One that is full is tried again and again, and a leader that would be taken for a slow one at each try would lead without an end and have nothing decided.
    fn is_refused(&self) {
        self.lately_us.store(0, Ordering::Release);
        self.is_over();
    }

    /// Whether the disk took long for that lately.
    fn is_slow(&self) -> bool {
        self.lately_us.load(Ordering::Acquire) >= SLOW_US
    }

    /// Whether the disk is slow, and has not been at what is under way for longer than one that takes as long as it did lately.
    pub(crate) fn may_be_slow(&self) -> bool {
        self.is_slow() && self.for_us() < self.lately_us.load(Ordering::Acquire).saturating_mul(TIMES_LATELY)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub(crate) fn for_us(&self) -> u64 {
        let since_us = self.since_us.load(Ordering::Acquire);
        if since_us == 0 { 0 } else { self.clock.monotonic_us().saturating_sub(since_us) }
    }
}

enum Job {
    Write(Vec<Record>, Done),
    /// The file is to be compared with its copy.
    Look(Sender<io::Result<(u64, bool)>>),
}

/// How often who waits to look at the disk is asked whether to go on with that.
pub(crate) const ASKED: Duration = Duration::from_millis(100);

/// Has the thread that writes the log look at what is on the disk.
#[derive(Clone)]
pub(crate) struct Looker(Sender<Job>);

impl Looker {
    /// How many bytes file and copy have, and whether they were not the same. Blocks; writes wait. The thread may wait for room on the disk
    /// itself, for days: it is waited for as long as it `goes_on`, and then looks when it can, for nobody.
    pub(crate) fn look(&self, goes_on: &dyn Fn() -> bool) -> io::Result<(u64, bool)> {
        let gone = || io::Error::other("the thread that writes the coordinators' log is gone");
        let (sender, looked) = channel();
        self.0.send(Job::Look(sender)).map_err(|_| gone())?;
        loop {
            match looked.recv_timeout(ASKED) {
                Ok(found) => return found,
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
                Err(RecvTimeoutError::Timeout) if goes_on() => {}
                Err(RecvTimeoutError::Timeout) => return Err(given_up("the coordinators' log")),
            }
        }
    }
}

/// What is to be looked at is being written, and who wants to look waits no longer.
pub(crate) fn given_up(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{what} is being written, and that does not end"))
}

/// Entries of the log that no snapshot has taken the place of, by index, committed or not.
pub(crate) type Kept = Arc<RwLock<BTreeMap<u64, Entry>>>;

/// The log of one node. Clones are the same log.
#[derive(Clone)]
pub(crate) struct LogStore {
    entries: Kept,
    purged: Option<Place>,
    /// The last one that was given.
    vote: Option<Ballot>,
    /// Votes in lower terms are not written: the one on the disk is in this term. 0: all are.
    ahead: u64,
    /// Who leads, where that is to be written with the next entries.
    led: Option<Record>,
    writing: Arc<Writing>,
    leaders: Arc<watch::Sender<Option<RaftBallot>>>,
    jobs: Sender<Job>,
    /// Up to which entry a snapshot is durable; None: none will be any more.
    snapshots: Option<watch::Receiver<Option<u64>>>,
}

impl LogStore {
    /// Starts the thread, which ends with the last clone. A write that waits for room ends when `closing` says so.
    pub(crate) fn start(file: LogFile, closing: Arc<AtomicBool>, writing: Arc<Writing>) -> io::Result<LogStore> {
        let contents = file.contents().clone();
        let entries = contents.entries.into_iter().map(|(index, entry)| (index, from_format(entry))).collect();
        let (jobs, receiver) = channel();
        let spawn = std::thread::Builder::new().name("kera-raft-disk".into()).stack_size(512 << 10);
        let writes = Arc::clone(&writing);
        spawn.spawn(move || write(file, &receiver, &closing, &writes))?;
        let given = contents.vote.map(|(term, node, committed)| RaftBallot { term, node, committed });
        Ok(LogStore {
            entries: Arc::new(RwLock::new(entries)),
            purged: contents.purged.as_ref().map(log_id),
            vote: given.as_ref().map(vote),
            ahead: 0,
            led: None,
            writing,
            // Who has led goes on to lead, until it hears of another one.
            leaders: Arc::new(watch::Sender::new(given.filter(|ballot| ballot.committed))),
            jobs,
            snapshots: None,
        })
    }

    /// From now on the log is cut only behind what a snapshot has for certain.
    ///
    /// `openraft` has a snapshot that came from the leader written, and the log cut, at the same time. A kill between the two, with the cut first, would leave a node with neither the
    /// entries nor the snapshot that has taken their place, which no later start could mend.
    pub(crate) fn wait_for_snapshots(&mut self, snapshots: watch::Receiver<Option<u64>>) {
        self.snapshots = Some(snapshots);
    }

    async fn wait_for_snapshot(&mut self, index: u64) -> Result<(), Failed> {
        let Some(snapshots) = &mut self.snapshots else { return Ok(()) };
        let reaches = |until: &Option<u64>| until.is_none_or(|until| until >= index);
        let is_there = snapshots.wait_for(reaches).await.is_ok_and(|until| until.is_some());
        if is_there {
            return Ok(());
        }
        let error = io::Error::other("the log is not cut: the snapshot that was to replace it could not be written");
        Err(StorageError::from_io_error(ErrorSubject::Logs, ErrorVerb::Write, error))
    }

    /// Has the log begin behind what a snapshot has, if it ends in front of that: whoever wrote the snapshot did not live to cut it.
    ///
    /// `openraft` does so too, but by the order of terms: where a snapshot of an earlier term has replaced entries that were never decided it would leave them, and the next entry
    /// would not follow on them.
    pub(crate) async fn begin_behind(&mut self, snapshot: Option<Place>) -> Result<(), Failed> {
        let last = self.get_log_state().await?.last_log_id;
        match snapshot {
            Some(place) if last.is_some_and(|last| last.index < place.index) => self.purge(place).await,
            _ => Ok(()),
        }
    }

    pub(crate) fn entries(&self) -> Kept {
        self.entries.clone()
    }

    pub(crate) fn looker(&self) -> Looker {
        Looker(self.jobs.clone())
    }

    /// Tells who leads, this node or another one, as soon as that is known here. Nobody from when this node votes for one that does not lead yet, or hears of another leader and that is not written yet.
    pub(crate) fn leaders(&self) -> watch::Receiver<Option<RaftBallot>> {
        self.leaders.subscribe()
    }

    /// Takes entries: what is to be written, with who leads in front of them where that is not on the disk.
    fn take(&mut self, entries: impl IntoIterator<Item = Entry>) -> Vec<Record> {
        let mut records = Vec::new();
        if let Some(led) = self.led.take() {
            records.push(led);
            // What comes is written behind that.
            self.ahead = 0;
        }
        let mut kept = self.entries.write();
        for entry in entries {
            records.push(Record::Appended(to_format(&entry)));
            kept.insert(entry.log_id.index, entry);
        }
        records
    }

    async fn wait(&self, records: Vec<Record>) -> Result<(), Failed> {
        let (sender, done) = oneshot::channel();
        let gone = || io::Error::other("the thread that writes the coordinators' log is gone");
        let sent = self.jobs.send(Job::Write(records, Done::Waiting(sender)));
        let result = match sent {
            Ok(()) => done.await.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(gone()),
        };
        result.map_err(|error| StorageError::from_io_error(ErrorSubject::Logs, ErrorVerb::Write, error))
    }
}

fn write(mut file: LogFile, jobs: &Receiver<Job>, closing: &AtomicBool, writing: &Writing) {
    let mut next = None;
    while let Some(first) = next.take().or_else(|| jobs.recv().ok()) {
        let (mut records, mut done) = match first {
            Job::Write(records, done) => (records, vec![done]),
            Job::Look(looked) => {
                writing.begins();
                let found = file.look();
                writing.is_over();
                // Whoever has asked may have gone.
                let _ = looked.send(found);
                continue;
            }
        };
        while records.len() < RECORDS_MAX
            && let Ok(job) = jobs.try_recv()
        {
            match job {
                Job::Write(more, also) => {
                    records.extend(more);
                    done.push(also);
                }
                look @ Job::Look(_) => {
                    next = Some(look);
                    break;
                }
            }
        }
        let result = when_there_is_room("the coordinators' log", closing, || {
            writing.begins();
            let written = file.write(records.clone());
            match &written {
                Ok(_) => writing.is_written(),
                Err(_) => writing.is_refused(),
            }
            written
        });
        match &result {
            Ok(bytes) => drop(writing.bytes.fetch_add(*bytes, Ordering::AcqRel)),
            Err(error) => tracing::error!(%error, "the coordinators' log cannot be written"),
        }
        for one in done {
            let copy = match &result {
                Ok(_) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            match one {
                Done::Flushed(callback) => callback.log_io_completed(copy),
                Done::Waiting(sender) => drop(sender.send(copy)),
            }
        }
        writing.begins();
        file.copy();
        writing.is_over();
    }
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, Failed> {
        Ok(self.entries.read().range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, Failed> {
        let (mut bytes, mut taken) = (Vec::new(), Vec::new());
        for (_, entry) in self.entries.read().range(start..end) {
            to_format(entry).encode(&mut bytes);
            if !taken.is_empty() && bytes.len() > SENT_BYTES_MAX {
                break;
            }
            taken.push(entry.clone());
        }
        Ok(taken)
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, Failed> {
        let last = self.entries.read().last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState { last_purged_log_id: self.purged, last_log_id: last.or(self.purged) })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    /// A vote is on the disk before anybody hears of it, but for two kinds:
    ///
    /// * That the one leads for whom this node has voted. That is written with the first entries that come: until then a start finds that it has voted for that one, which is as much as others count on.
    /// * Votes on a slow disk ([`SLOW_US`]), where the last one was written for a term further on. A start finds that it has voted there, and votes in no term in front of it. If each had to be written, whoever
    ///   asks would begin anew before the vote is on two disks, one after the other, and so with the next one, without end. Behind the first one or two they come at once.
    ///
    /// A vote further on is for [nobody](NOBODY). `openraft` takes one for its own node that it is told of for a try of this node to be elected: who leads neither gives way to it nor has anything
    /// decided any more, and goes on to say that it leads. Of a term further on no node has asked for a vote, so if it had a name that node would be told of one that it does not know.
    ///
    /// What is written of who leads takes the place of a vote further on, for with that a node that starts again would not follow: the leader's term would be in front of it. It is no lower than any vote that was
    /// given: each one makes it be forgotten. What is cut off, or purged, is written without it: what the disk has then is the vote for that leader or one further on, which a start is as well off with.
    ///
    /// [`slow`](crate::slow) has what is there after a kill between any two of these.
    async fn save_vote(&mut self, vote: &Ballot) -> Result<(), Failed> {
        let RaftBallot { term, node, committed } = ballot_of(vote);
        let is_given = self.vote.is_some_and(|given| given.leader_id == vote.leader_id);
        // What was to be written of an earlier leader would take back this one.
        self.led = None;
        if !committed || !is_given {
            // Nor does it lead any more as long as this is written, which may be seconds.
            self.leaders.send_replace(None);
        }
        if committed && (is_given || term < self.ahead) {
            self.led = Some(Record::Vote { term, node, committed });
        } else if term >= self.ahead {
            let is_ahead = !committed && self.writing.is_slow();
            let ahead = if is_ahead { term.checked_add(TERMS_AHEAD).unwrap_or(0) } else { 0 };
            let (term, node) = if ahead > 0 { (ahead, NOBODY) } else { (term, node) };
            self.wait(vec![Record::Vote { term, node, committed }]).await?;
            self.ahead = ahead;
        }
        self.vote = Some(*vote);
        if committed {
            self.leaders.send_replace(Some(RaftBallot { term, node, committed }));
        }
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Ballot>, Failed> {
        Ok(self.vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), Failed>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records = self.take(entries);
        if let Err(sent) = self.jobs.send(Job::Write(records, Done::Flushed(callback)))
            && let Job::Write(_, Done::Flushed(callback)) = sent.0
        {
            callback.log_io_completed(Err(io::Error::other("the thread that writes the log is gone")));
        }
        Ok(())
    }

    async fn truncate(&mut self, from: Place) -> Result<(), Failed> {
        self.entries.write().split_off(&from.index);
        self.wait(vec![Record::Truncated { from: from.index }]).await
    }

    async fn purge(&mut self, through: Place) -> Result<(), Failed> {
        self.wait_for_snapshot(through.index).await?;
        {
            let mut entries = self.entries.write();
            *entries = entries.split_off(&(through.index + 1));
        }
        self.purged = Some(through);
        self.wait(vec![Record::Purged { place: place_of(&through) }]).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kera_env::{FaultyDisk, ManualClock, MemoryDisk, SystemClock};
    use kera_format::StreamId;
    use kera_format::cluster::{ClusterEntry, HANDED_BYTES_MAX, RaftPlace};
    use kera_format::raft::{LogEntry, Payload};
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::file::folder;

    #[tokio::test]
    async fn the_log_is_cut_when_the_snapshot_that_replaces_it_is_there_and_not_before() {
        let disk = Arc::new(MemoryDisk::new());
        let writing = Arc::new(Writing::new(Arc::new(SystemClock::new())));
        let file = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
        let mut store = LogStore::start(file, Arc::default(), writing).unwrap();
        let (durable, snapshots) = watch::channel(Some(0));
        store.wait_for_snapshots(snapshots);
        let place = |index| log_id(&RaftPlace { term: 1, leader: 1, index });
        {
            let mut cut = store.clone();
            let cut = cut.purge(place(5));
            tokio::pin!(cut);
            for until in [0, 4] {
                durable.send_replace(Some(until));
                tokio::select! {
                    biased;
                    _ = &mut cut => panic!("a snapshot reaches up to {until}"),
                    () = tokio::task::yield_now() => {}
                }
            }
            durable.send_replace(Some(5));
            cut.await.unwrap();
        }
        durable.send_replace(None);
        store.purge(place(6)).await.unwrap_err();
        drop(store);
        let again = LogFile::open(folder(disk), [1; 16]).unwrap();
        assert_eq!(again.contents().purged, Some(place_of(&place(5))));
    }

    /// Else the next election begins before the vote of the last one is on two disks, one after the other.
    #[tokio::test]
    async fn on_a_slow_disk_votes_are_written_ahead_until_somebody_leads() {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        let start = || {
            let writing = Arc::new(Writing::new(Arc::new(ManualClock::new(0))));
            let file = LogFile::open(folder(Arc::new(disk.clone())), [1; 16]).unwrap();
            (LogStore::start(file, Arc::default(), writing.clone()).unwrap(), writing)
        };
        let syncs = || disk.counts().1;
        let ballot = |term, node, committed| vote(&RaftBallot { term, node, committed });
        let is_slow = |writing: &Writing| writing.lately_us.store(SLOW_US, Ordering::Release);
        let (mut store, writing) = start();
        is_slow(&writing);
        store.save_vote(&ballot(6, 2, false)).await.unwrap();
        let before = syncs();
        store.save_vote(&ballot(7, 1, false)).await.unwrap();
        store.save_vote(&ballot(5 + TERMS_AHEAD, 3, false)).await.unwrap();
        assert_eq!(syncs(), before, "they are behind the one that is written");
        drop(store);
        // A start takes it for its own: in which of the terms up to there it has voted it does not know.
        let (mut store, writing) = start();
        assert_eq!(store.read_vote().await.unwrap(), Some(ballot(6 + TERMS_AHEAD, NOBODY, false)));
        is_slow(&writing);
        store.save_vote(&ballot(100, 1, false)).await.unwrap();
        let (before, mut leaders) = (syncs(), store.leaders());
        store.save_vote(&ballot(101, 2, true)).await.unwrap();
        assert_eq!(syncs(), before);
        assert_eq!(*leaders.borrow_and_update(), Some(RaftBallot { term: 101, node: 2, committed: true }));
        let place = RaftPlace { term: 101, leader: 2, index: 0 };
        let records = store.take([from_format(LogEntry { place, payload: Payload::Blank })]);
        assert_eq!(records[0], Record::Vote { term: 101, node: 2, committed: true }, "with the first entry");
        store.wait(records).await.unwrap();
        drop(store);
        let (mut store, _) = start();
        assert_eq!(store.read_vote().await.unwrap(), Some(ballot(101, 2, true)));
        assert_eq!(*store.leaders().borrow(), Some(RaftBallot { term: 101, node: 2, committed: true }));
        assert_eq!(store.entries.read().len(), 1);
        // Nothing takes long any more.
        let before = syncs();
        store.save_vote(&ballot(102, 3, false)).await.unwrap();
        assert_eq!(syncs(), before + 1);
        assert_eq!(*store.leaders().borrow(), None, "who has led would say so on and on");
        store.save_vote(&ballot(102, 3, true)).await.unwrap();
        assert_eq!(syncs(), before + 1, "that it has voted for it is written");
        drop(store);
        let (mut store, _) = start();
        assert_eq!(store.read_vote().await.unwrap(), Some(ballot(102, 3, false)));
    }

    #[test]
    fn a_disk_is_slow_for_some_writes_behind_one_that_took_long_and_stands_still_when_one_takes_no_end() {
        let clock = Arc::new(ManualClock::new(0));
        let writing = Writing::new(clock.clone());
        let takes = |ms| {
            writing.begins();
            clock.advance_ms(ms);
            writing.is_written();
        };
        takes(1);
        assert!(!writing.is_slow());
        writing.begins();
        clock.advance_ms(200);
        assert!(!writing.may_be_slow(), "it was well, and stands still");
        clock.advance_ms(300);
        writing.is_written();
        let slow = (0..5).map(|_| {
            let is_slow = writing.is_slow();
            takes(1);
            is_slow
        });
        assert_eq!(slow.collect::<Vec<_>>(), [true, true, true, true, false]);
        takes(500);
        writing.begins();
        clock.advance_ms(3_000);
        assert!(writing.may_be_slow());
        clock.advance_ms(1_500);
        assert!(!writing.may_be_slow());
    }

    #[test]
    fn a_disk_that_takes_long_to_refuse_is_not_slow_and_one_that_was_well_does_not_become_so_by_what_is_under_way() {
        let clock = Arc::new(ManualClock::new(0));
        let writing = Writing::new(clock.clone());
        let begins = |ms| {
            writing.begins();
            clock.advance_ms(ms);
        };
        begins(500);
        writing.is_written();
        // It is full.
        begins(500);
        assert!(writing.may_be_slow());
        writing.is_refused();
        assert_eq!(writing.for_us(), 0);
        begins(200);
        assert!(!writing.may_be_slow());
        writing.is_refused();
        // There is room.
        begins(40);
        writing.is_written();
        begins(200);
        assert!(!writing.may_be_slow(), "as where a disk stops");
    }

    /// What it has voted for would be forgotten, and it could vote again.
    #[tokio::test]
    async fn who_has_led_is_not_written_behind_a_later_vote() {
        let disk = Arc::new(MemoryDisk::new());
        let start = || {
            let writing = Arc::new(Writing::new(Arc::new(ManualClock::new(0))));
            let file = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
            LogStore::start(file, Arc::default(), writing).unwrap()
        };
        let ballot = |term, node, committed| vote(&RaftBallot { term, node, committed });
        let mut store = start();
        for given in [ballot(5, 2, false), ballot(5, 2, true), ballot(6, 3, false)] {
            store.save_vote(&given).await.unwrap();
        }
        let place = RaftPlace { term: 5, leader: 2, index: 0 };
        let records = store.take([from_format(LogEntry { place, payload: Payload::Blank })]);
        store.wait(records).await.unwrap();
        drop(store);
        assert_eq!(start().read_vote().await.unwrap(), Some(ballot(6, 3, false)));
    }

    /// It would say all the while that it leads.
    #[tokio::test]
    async fn who_hears_of_another_leader_leads_no_more_before_that_is_written() {
        let disk = FaultyDisk::new(Arc::new(MemoryDisk::new()));
        let writing = Arc::new(Writing::new(Arc::new(ManualClock::new(0))));
        let file = LogFile::open(folder(Arc::new(disk.clone())), [1; 16]).unwrap();
        let mut store = LogStore::start(file, Arc::default(), writing).unwrap();
        let ballot = |term, node, committed| RaftBallot { term, node, committed };
        for given in [ballot(5, 1, false), ballot(5, 1, true)] {
            store.save_vote(&vote(&given)).await.unwrap();
        }
        let leaders = store.leaders();
        assert_eq!(*leaders.borrow(), Some(ballot(5, 1, true)));
        disk.set_stuck(true);
        let later = vote(&ballot(6, 2, true));
        {
            let saved = store.save_vote(&later);
            tokio::pin!(saved);
            tokio::select! {
                biased;
                _ = &mut saved => panic!("its disk does not answer"),
                () = tokio::task::yield_now() => {}
            }
            assert_eq!(*leaders.borrow(), None);
            disk.set_stuck(false);
            saved.await.unwrap();
        }
        assert_eq!(*leaders.borrow(), Some(ballot(6, 2, true)));
    }

    /// However slow the disk is, and whenever the power goes: a start finds no earlier vote than the last one that was answered for and the leader of the last entry, and none for a node that has
    /// not asked in that term.
    #[tokio::test]
    async fn no_power_cut_takes_a_vote_back_or_makes_one_up() {
        let (mut ahead, mut led, mut cut) = (0, 0, 0);
        for seed in 0..100 {
            let (disk, mut rng) = (Arc::new(MemoryDisk::new()), StdRng::seed_from_u64(seed));
            let (mut given, mut last): ((u64, u64, bool), u64) = ((0, 0, false), 0);
            let mut asked: BTreeSet<(u64, u64)> = BTreeSet::new();
            for _ in 0..4 {
                let writing = Arc::new(Writing::new(Arc::new(ManualClock::new(0))));
                let file = LogFile::open(folder(disk.clone()), [1; 16]).unwrap();
                let mut store = LogStore::start(file, Arc::default(), writing.clone()).unwrap();
                let found = store.read_vote().await.unwrap().map(|found| ballot_of(&found));
                let found = found.map_or((0, 0, false), |found| (found.term, found.node, found.committed));
                let said = format!("seed {seed}: {given:?} was answered for, {found:?} is there");
                assert!((found.0, found.1) >= (given.0, given.1), "{said}");
                assert!(found.1 == NOBODY || asked.contains(&(found.0, found.1)), "{said}: nobody asked for that");
                let end = store.entries.read().last_key_value().map(|(_, entry)| place_of(&entry.log_id));
                let end = end.unwrap_or_default();
                assert!(end.index >= last && (end.term, end.leader) <= (found.0, found.1), "{said}: {last}, {end:?}");
                ahead += u32::from(found.0 > 0 && found.1 == NOBODY);
                (given, last) = (found, end.index);
                disk.cut_power_at(rng.random_range(1..40));
                for _ in 0..rng.random_range(1..12) {
                    let slow_us = if rng.random() { SLOW_US } else { 0 };
                    writing.lately_us.store(slow_us, Ordering::Release);
                    let is_written = if given.2 && last > 0 && rng.random_range(0..6) == 0 {
                        // As a leader has it that has another entry there. Who leads is not written with that.
                        let place = RaftPlace { term: given.0, leader: given.1, index: last };
                        (last, cut) = (last - 1, cut + u32::from(store.led.is_some()));
                        store.truncate(log_id(&place)).await.is_ok()
                    } else if given.2 && rng.random() {
                        let place = RaftPlace { term: given.0, leader: given.1, index: last + 1 };
                        let records = store.take([from_format(LogEntry { place, payload: Payload::Blank })]);
                        led += u32::from(records.len() > 1);
                        let is_written = store.wait(records).await.is_ok();
                        last += u64::from(is_written);
                        is_written
                    } else {
                        let (later, leads): (u64, bool) = (rng.random_range(1..3), rng.random());
                        let is_given = leads && !given.2 && given.1 != NOBODY && rng.random();
                        let another = (given.0 + later, rng.random_range(1..4), leads);
                        let (term, node, committed) = if is_given { (given.0, given.1, true) } else { another };
                        asked.insert((term, node));
                        let saved = store.save_vote(&vote(&RaftBallot { term, node, committed })).await;
                        given = if saved.is_ok() { (term, node, committed) } else { given };
                        saved.is_ok()
                    };
                    if !is_written {
                        break;
                    }
                }
                drop(store);
                disk.crash(rng.random());
            }
        }
        let said =
            format!("{ahead} votes further on were found, {led} leaders written with an entry, {cut} cut before");
        assert!(ahead > 0 && led > 0 && cut > 0, "{said}");
    }

    #[tokio::test]
    async fn no_more_is_sent_at_a_time_than_comes_there_between_two_signs_of_life() {
        let file = LogFile::open(folder(Arc::new(MemoryDisk::new())), [1; 16]).unwrap();
        let writing = Arc::new(Writing::new(Arc::new(SystemClock::new())));
        let mut store = LogStore::start(file, Arc::default(), writing).unwrap();
        let (stream, state) = (StreamId(1), vec![0; HANDED_BYTES_MAX]);
        for index in 1..=300 {
            // One that is large by itself, and then many.
            let handed = ClusterEntry::StreamletHanded { stream, streamlet: 0, owner_epoch: 1, state: state.clone() };
            let payload = Payload::Entries(vec![handed; if index == 1 { 20 } else { 1 }]);
            let entry = LogEntry { place: RaftPlace { term: 1, leader: 1, index }, payload };
            store.entries.write().insert(index, from_format(entry));
        }
        let mut sent = Vec::new();
        while sent.iter().sum::<usize>() < 300 {
            let from = 1 + sent.iter().sum::<usize>() as u64;
            sent.push(store.limited_get_log_entries(from, 301).await.unwrap().len());
        }
        assert_eq!(sent[..3], [1, 15, 15]);
        assert_eq!(store.limited_get_log_entries(300, 301).await.unwrap().len(), 1);
    }
}
