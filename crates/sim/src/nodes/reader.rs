//! A reader of one lane in a cluster: from somewhere on, in order, without a gap, at whoever has it, also where groups of earlier owners are
//! with others; and again from somewhere else.

use std::collections::BTreeSet;

use kera_format::chunk::Chunks;
use kera_format::{Cursor, GroupId, LaneId, StreamId, StreamletId};
use kera_protocol::read::ENTRY_FOLLOW_GROUPS;
use kera_protocol::{
    AvailableGroups, FindOwners, GroupInfo, GroupList, Lookup, LookupResult, Owner, Owners, ReadChunks,
    ReadChunksResponse, ReadEntry, Start, Status,
};

use super::client::{Around, Client, Owned, PATIENCE_US, Seen, Wish, owner_of};
use crate::cluster::client::{Answer, retry};
use crate::cluster::truth::{Place, Violation};

const TURN_US: u64 = 100_000;
/// How long a read waits at a node, in milliseconds.
const WAIT_MS: u32 = 300;
/// How often nodes may send it to each other before it looks for its place once more.
const SENT_MAX: u32 = 20;
/// After so many reads in which nothing came a reader that is to read everything looks for its place once more: retention may have taken what
/// it waits for.
const IDLE_MAX: u32 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing is asked; at the next turn a place is looked up.
    Lost,
    LooksUp,
    /// Several nodes have groups: the owner is asked for the end, and then all of them for what they have.
    AsksOwner,
    Lists,
    /// All have told, and are asked whether what they have told was what the table of owners expected of them.
    Checks,
    Reads,
    /// The node that it was sent to is not known yet.
    Sent,
    /// The last try has failed in a way that passes.
    Rests,
}

/// See the module.
pub(super) struct Reader {
    place: Place,
    /// Reads everything once, from the first record to the end, and is done.
    is_last: bool,
    step: Step,
    owned: Owned,
    asked: (u64, u32, u64),
    cursor: Cursor,
    /// The ordinal that must come next.
    next: u64,
    /// Where the lane began when it was looked up.
    first: u64,
    /// Ordinals of a compacted lane that it has read.
    shown: BTreeSet<u64>,
    from: Start,
    /// Where groups are, as far as nodes were asked; who is asked next; and what the owner said of the end.
    groups: Vec<(GroupInfo, u32)>,
    to_list: Vec<u32>,
    /// Who is to be checked next, and what was known of the owners when it was asked for groups.
    to_check: Vec<u32>,
    seen: (u64, Owner),
    latest: Option<LookupResult>,
    hint: u64,
    sent: u32,
    idle: u32,
    is_done: bool,
    last_problem: String,
}

impl Reader {
    /// One that reads for as long as the run lasts.
    pub(super) fn new(place: Place) -> Reader {
        Reader {
            place,
            is_last: false,
            step: Step::Lost,
            owned: Owned::new(StreamId(place.stream)),
            asked: (0, 0, 0),
            cursor: Cursor::default(),
            next: 0,
            first: 0,
            shown: BTreeSet::new(),
            from: Start::Earliest,
            groups: Vec::new(),
            to_list: Vec::new(),
            to_check: Vec::new(),
            seen: (0, Owner::default()),
            latest: None,
            hint: 0,
            sent: 0,
            idle: 0,
            is_done: false,
            last_problem: String::new(),
        }
    }

    /// One that reads everything there is, once nobody writes any more.
    pub(super) fn last(place: Place) -> Reader {
        Reader { is_last: true, ..Reader::new(place) }
    }

    fn look_up(&mut self, around: &mut Around<'_>) {
        let Place { streamlet, .. } = self.place;
        self.groups.clear();
        (self.latest, self.to_list) = (None, self.owned.holders(streamlet));
        (self.to_check, self.seen) = (self.to_list.clone(), self.owned.seen(streamlet));
        let owner = self.owned.node(streamlet).filter(|_| !self.to_list.contains(&0));
        let Some(node) = owner else {
            // Nobody has it, or nobody has older groups of it yet: without them it would seem to begin behind them.
            self.owned.want();
            return;
        };
        match self.to_list.len() {
            1 => self.look_up_at(node, self.from, Step::LooksUp, around),
            _ => self.look_up_at(node, Start::Latest, Step::AsksOwner, around),
        }
    }

    fn look_up_at(&mut self, node: u32, at: Start, step: Step, around: &mut Around<'_>) {
        let Place { stream, streamlet, lane } = self.place;
        let (stream, streamlet, lane) = (StreamId(stream), StreamletId(streamlet), LaneId(lane));
        let correlation = around.send(node, &Lookup { stream, streamlet, lane, at });
        (self.asked, self.step) = ((correlation, node, around.now_us), step);
    }

    /// Asks the next node for its groups; when all have told, looks at the one that has what is wanted.
    fn list(&mut self, after: GroupId, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(node) = self.to_list.last().copied() else { return self.check(around) };
        let Place { stream, streamlet, .. } = self.place;
        let (stream, streamlet) = (StreamId(stream), StreamletId(streamlet));
        let correlation = around.send(node, &AvailableGroups { stream, streamlet, after, limit: 0 });
        (self.asked, self.step) = ((correlation, node, around.now_us), Step::Lists);
        Ok(())
    }

    /// A node that was lost and started again has forgotten groups that others have rebuilt: where they were there would be nothing. It knows who
    /// has them now, so it is asked after it has told, as the client does.
    fn check(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(node) = self.to_check.last().copied() else { return self.choose(around) };
        let asked = FindOwners { streams: vec![StreamId(self.place.stream).into()], after: None, limit: 0 };
        let correlation = around.send(node, &asked);
        (self.asked, self.step) = ((correlation, node, around.now_us), Step::Checks);
        Ok(())
    }

    /// Whether what a node has told of its groups is what is known of the owners, by what it says of them now. Where nodes hear of states in pieces their numbers do not tell, and
    /// what counts is decided as the client does it; elsewhere a state with no later number is the same.
    fn is_borne_out(&self, told: &Owners, around: &Around<'_>) -> bool {
        let (version, known) = &self.seen;
        let says = owner_of(told, self.place.streamlet);
        if !around.in_pieces {
            return told.version <= *version || says.as_ref() == Some(known);
        }
        let node = self.asked.1;
        let runs = known.older_runs().chain([(known.epoch..u32::MAX, known.node)]);
        let its = runs.filter(|(_, holder)| *holder == node).map(|(epochs, _)| epochs);
        says.is_some_and(|says| says.bears_out(known, node, its))
    }

    fn checked(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let told: Owners = answer.decode()?;
        around.told_owners(self.asked.1, &told)?;
        if !self.is_borne_out(&told, around) {
            self.step = Step::Rests;
            self.owned.want();
            return Ok(());
        }
        self.to_check.pop();
        self.check(around)
    }

    fn listed(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let (list, lane): (GroupList, LaneId) = (answer.decode()?, LaneId(self.place.lane));
        let wanted = |group: &&GroupInfo| group.lane == lane && group.durable_ordinal > group.first_ordinal;
        self.groups.extend(list.groups.iter().filter(wanted).map(|group| (*group, self.asked.1)));
        match list.groups.last() {
            Some(last) if list.more => self.list(last.group, around),
            _ => {
                self.to_list.pop();
                self.list(GroupId::NONE, around)
            }
        }
    }

    fn choose(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        let Some(latest) = self.latest else { return Ok(()) };
        self.groups.sort_unstable_by_key(|(group, _)| group.group);
        let first_ordinal = self.groups.first().map_or(latest.first_ordinal, |(group, _)| group.first_ordinal);
        let latest = LookupResult { first_ordinal, ..latest };
        self.latest = Some(latest);
        let from = self.from;
        let found = self.groups.iter().find(|(group, _)| match from {
            Start::Ordinal(ordinal) => group.durable_ordinal > ordinal,
            _ => true,
        });
        match (found.copied(), from) {
            (Some((group, node)), Start::Ordinal(ordinal)) => {
                self.look_up_at(node, Start::Ordinal(ordinal.max(group.first_ordinal)), Step::LooksUp, around);
                Ok(())
            }
            // Records in front of what is told may be deleted and lie there for a while.
            (Some((group, node)), Start::Earliest) if around.told.floors.is_on => {
                self.look_up_at(node, Start::Ordinal(group.first_ordinal), Step::LooksUp, around);
                Ok(())
            }
            (Some((group, node)), _) => {
                let cursor = Cursor { group: group.group, segment: group.first_segment, position: 0 };
                self.asked.1 = node;
                self.placed(LookupResult { cursor, ordinal: group.first_ordinal, ..latest }, around)
            }
            (None, _) => {
                self.asked.1 = self.owned.node(self.place.streamlet).unwrap_or(self.asked.1);
                self.placed(latest, around)
            }
        }
    }

    /// Goes on at the node that has what is at the cursor, if it is known and is not the one that has just sent it away.
    fn go_on(&mut self, not_at: u32, around: &mut Around<'_>) {
        self.sent += 1;
        if self.sent > SENT_MAX {
            (self.from, self.step, self.sent) = (Start::Ordinal(self.next), Step::Rests, 0);
            self.owned.want();
            return;
        }
        match self.owned.holder(self.place.streamlet, self.cursor.group, self.hint).filter(|node| *node != not_at) {
            Some(node) => {
                self.asked.1 = node;
                self.read(around);
            }
            None => {
                self.step = Step::Sent;
                self.owned.want();
            }
        }
    }

    fn read(&mut self, around: &mut Around<'_>) {
        let Place { stream, streamlet, lane } = self.place;
        let entry = ReadEntry {
            stream: StreamId(stream),
            streamlet: StreamletId(streamlet),
            lane: LaneId(lane),
            cursor: self.cursor,
            max_bytes: 0,
            flags: ENTRY_FOLLOW_GROUPS,
        };
        let max_bytes = 1 << (12 + around.below(7));
        let request = ReadChunks { max_wait_ms: WAIT_MS, min_bytes: 1, max_bytes, entries: vec![entry] };
        let node = self.asked.1;
        let correlation = around.send(node, &request);
        (self.asked, self.step) = ((correlation, node, around.now_us), Step::Reads);
    }

    fn found(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let mut found: LookupResult = answer.decode()?;
        if let Some(latest) = &self.latest {
            found.first_ordinal = latest.first_ordinal;
        }
        self.placed(found, around)
    }

    fn placed(&mut self, found: LookupResult, around: &mut Around<'_>) -> Result<(), Violation> {
        // A node that is not the owner any more tells where its own part begins.
        if self.from == Start::Earliest {
            around.gone_in_front(self.place, found.first_ordinal)?;
            let is_at_one = self.latest.is_none();
            if is_at_one || self.is_last {
                around.begins(self.place, (self.asked.1, self.asked.2), found.ordinal)?;
            }
        }
        match self.from {
            Start::Ordinal(asked) if found.ordinal > asked => around.gone(self.place, asked..found.ordinal)?,
            _ => {}
        }
        if self.is_last && self.from == Start::Earliest {
            self.first = found.ordinal;
        }
        if found.ordinal > self.next && self.is_last {
            self.first = found.ordinal;
        }
        (self.cursor, self.next) = (found.cursor, found.ordinal);
        self.read(around);
        Ok(())
    }

    fn take(&mut self, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        let response: ReadChunksResponse = answer.decode()?;
        for (one, data) in &response.answers {
            match one.status().expect("a status of this build") {
                Status::Ok => {
                    self.sent = 0;
                    if !data.is_empty() {
                        // Nodes forget each for itself: one may have what is old when another has forgotten what came behind it.
                        if let Some(base) = base_of(data).filter(|base| *base > self.next) {
                            around.gone(self.place, self.next..base)?;
                            (self.first, self.next) = (base, base);
                        }
                        self.next = around.read_noting(self.place, self.next, data, &mut self.shown)?;
                        around.told.early.read(self.place, self.next);
                    }
                    self.cursor = one.next;
                    if data.is_empty() && self.is_last {
                        let (durable, end) = (one.durable_ordinal, one.end_of_group());
                        self.last_problem = format!("nothing came, durable up to {durable}, end of group: {end}");
                    }
                    if self.is_last && data.is_empty() && self.next == one.durable_ordinal && !one.end_of_group() {
                        return self.ended(around);
                    }
                }
                status @ (Status::CursorGone | Status::CursorUnknown) => {
                    // Groups that were opened and never written to are not rebuilt.
                    self.last_problem = status.name().to_owned();
                    (self.from, self.step) = (Start::Ordinal(self.next), Step::Rests);
                    return Ok(());
                }
                Status::NotOwner => {
                    (self.cursor, self.hint) = (one.next, one.durable_ordinal);
                    self.last_problem = format!("node {} has not what is at {:?}", self.asked.1, self.cursor);
                    self.go_on(self.asked.1, around);
                    return Ok(());
                }
                status if status.retryable() => {
                    self.last_problem = status.name().to_owned();
                    (self.from, self.step) = (Start::Ordinal(self.next), Step::Rests);
                    self.owned.want();
                    return Ok(());
                }
                Status::UnknownStream => return self.owned.told_gone(self.asked.1, around),
                other => return Err(Violation(format!("{}: a read is refused: {}", self.place, other.name()))),
            }
        }
        if self.is_last && response.answers.is_empty() && self.next >= around.truth.end(self.place) {
            return self.ended(around);
        }
        self.idle = if response.answers.is_empty() { self.idle + 1 } else { 0 };
        if self.is_last && self.idle > IDLE_MAX {
            (self.from, self.step, self.idle) = (Start::Ordinal(self.next), Step::Rests, 0);
            self.owned.want();
            return Ok(());
        }
        match (self.is_last, around.below(40)) {
            (false, 0) => self.step = Step::Lost,
            _ => self.read(around),
        }
        Ok(())
    }

    fn ended(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        self.is_done = true;
        if around.told.is_compacted {
            return around.truth.read_compacted(self.place, self.next, &self.shown);
        }
        around.begins_at_last(self.place, self.first)?;
        around.truth.read_from(self.place, self.first, self.next)
    }
}

/// The ordinal of the first record that was read.
fn base_of(data: &[u8]) -> Option<u64> {
    Some(Chunks::new(data).next()?.ok()?.broker().ok()?.base_ordinal)
}

impl Client for Reader {
    fn answer(&mut self, node: u32, answer: &Answer, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.owned.take(answer, around)? || answer.header.correlation != self.asked.0 || self.is_done {
            return Ok(());
        }
        if answer.status() == Status::UnknownStream {
            return self.owned.told_gone(node, around);
        }
        if answer.status() != Status::Ok {
            retry(answer, "a read")?;
            self.last_problem = answer.error();
            self.step = Step::Rests;
            self.owned.want();
            return Ok(());
        }
        match self.step {
            Step::LooksUp => self.found(answer, around),
            Step::AsksOwner => {
                let latest: LookupResult = answer.decode()?;
                if latest.cursor.group.epoch() > self.owned.epoch(self.place.streamlet) {
                    // It owns it once more, and others have what was written between.
                    self.step = Step::Rests;
                    self.owned.want();
                    return Ok(());
                }
                self.latest = Some(latest);
                self.list(GroupId::NONE, around)
            }
            Step::Lists => self.listed(answer, around),
            Step::Checks => self.checked(answer, around),
            Step::Reads => self.take(answer, around),
            Step::Lost | Step::Rests | Step::Sent => Ok(()),
        }
    }

    fn lost(&mut self, node: u32, _: &mut Around<'_>) {
        self.owned.lost(node);
        // What several nodes have is put together of answers of their lives of now: one that was started again may have forgotten what it had.
        let is_of_it = self.asked.1 == node || matches!(self.step, Step::Lists | Step::Checks);
        if is_of_it && matches!(self.step, Step::LooksUp | Step::AsksOwner | Step::Lists | Step::Checks | Step::Reads) {
            // The ordinal is what it has; cursors of lost groups are worth nothing.
            (self.from, self.step) = (Start::Ordinal(self.next), Step::Rests);
        }
    }

    fn timer(&mut self, around: &mut Around<'_>) -> Result<(), Violation> {
        if self.is_done || self.owned.is_gone() {
            return Ok(());
        }
        self.owned.look(around);
        match self.step {
            Step::Lost => {
                if !self.is_last {
                    let end = around.truth.end(self.place);
                    self.from = match around.below(3) {
                        0 => Start::Earliest,
                        1 if end > 0 => Start::Ordinal(around.below(end)),
                        _ => Start::Ordinal(self.next),
                    };
                }
                self.look_up(around);
            }
            Step::Rests => self.look_up(around),
            Step::Sent => self.go_on(0, around),
            _ if around.now_us > self.asked.2 + PATIENCE_US => {
                let node = self.asked.1;
                around.wishes.push(Wish::Drop(node));
                self.lost(node, around);
            }
            _ => {}
        }
        around.timer(TURN_US);
        Ok(())
    }

    fn is_done(&self, seen: &Seen<'_>) -> bool {
        self.is_done || !self.is_last || seen.gone.contains_key(&StreamId(self.place.stream))
    }

    fn state(&self) -> String {
        let node = self.owned.node(self.place.streamlet).unwrap_or(0);
        let (at, step) = (self.cursor, self.step);
        format!("reader of {} at node {node}: {} at {at:?}, {step:?}, {}", self.place, self.next, self.last_problem)
    }
}
