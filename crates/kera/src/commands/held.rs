//! What other members of an application have leased, where `kera consume` without --follow has been given all that nobody else has. Asked by that
//! command, every second, until it is known how it goes on. Pure: it is told what the nodes say, and what time it is.
//!
//! Without it a command that begins a moment after another consumer was killed would read nothing, and end well: what that one had leased is free only
//! when its lease is over.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use kera_client::{LaneId, StreamletId};
use kera_protocol::{ApplicationDescription, LeaseInfo, MemberInfo};

use crate::output::{counted, records_of};
use crate::when::show_instant;

/// How often it is looked how it goes on.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Nothing is said before: a member that shares the work commits every second what it has read.
const SAY_AFTER: Duration = Duration::from_secs(1);
/// How long members that are heard of are waited for: they give a part of what they hold to one that has nothing, at their next sign of life and
/// commit, or they read it to its end. With leases as they are unless they are set, of half a minute, that is within four seconds.
const SHARE_MAX: Duration = Duration::from_secs(10);
/// Members that are named one by one.
const NAMED_MAX: usize = 3;

/// Where each lane ended when the command began.
pub type Ends = HashMap<(StreamletId, LaneId), u64>;

/// How the command goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing is left, or only what others read that are there.
    End,
    /// Something is free that may not have been so when the nodes were asked last: they are asked at once.
    Ask,
    /// Others hold something. It is looked again in a while.
    Wait,
}

/// A member as its node knows it: its number there, when it joined, its name, and where it connects to that node from. Two nodes may give the same
/// number, also to one consumer, which joins them at one time and connects to each from a port of its own.
type Holder<'a> = (u64, i64, &'a str, &'a str);

/// What is known of the other members from look to look.
#[derive(Debug, Default)]
pub struct Others {
    /// When it was seen first that they hold something.
    since: Option<Instant>,
    /// When each was heard of last as of the first look, by its node's clock. Only compared with what the same node says later.
    heard: BTreeMap<(u64, i64, String, String), i64>,
    /// The nodes were asked once more for what is free.
    has_asked: bool,
    has_said: bool,
}

impl Others {
    /// How it goes on, and what to say. `described`: what each owner says of the application. `own`: the name of the command's own membership, of which
    /// nothing is waited for.
    ///
    /// A member that is not heard of is waited for until its lease is over, which its node sees to: then what it held is given to this one. One that is heard of
    /// holds what it reads for as long as it likes: it is asked for a share by the nodes, and what it keeps is its own to read.
    pub fn look(
        &mut self,
        described: &[ApplicationDescription],
        ends: &Ends,
        own: &str,
        now: Instant,
    ) -> (Then, Option<String>) {
        let left = Left::of(described, ends, own);
        let application = described.first().map_or("", |of| of.name.as_str());
        if left.held == 0 {
            self.since = None;
            self.heard.clear();
            let is_again = left.has_free && !std::mem::replace(&mut self.has_asked, true);
            return (if is_again { Then::Ask } else { Then::End }, None);
        }
        self.has_asked = false;
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        let mut is_silent = false;
        for (of, _) in &left.holders {
            let (number, joined, name, address) = holder(of);
            let known = (number, joined, name.to_owned(), address.to_owned());
            let first = self.heard.entry(known).or_insert(of.heartbeat_ms);
            is_silent |= of.heartbeat_ms <= *first;
        }
        if !is_silent && waited >= SHARE_MAX {
            return (Then::End, Some(left.that_others_read(application)));
        }
        let says = waited >= SAY_AFTER && !std::mem::replace(&mut self.has_said, true);
        (Then::Wait, says.then(|| left.that_is_waited_for(application)))
    }
}

fn holder(of: &MemberInfo) -> Holder<'_> {
    (of.member, of.joined_ms, &of.name, &of.address)
}

/// What is left to read of what there was when the command began.
struct Left<'a> {
    /// Records in lanes that others have leased.
    held: u64,
    /// Those others, with when their leases end.
    holders: Vec<(&'a MemberInfo, i64)>,
    /// Whether a lane has something that nobody has leased.
    has_free: bool,
}

impl<'a> Left<'a> {
    /// Of what each owner says by itself: its leases are those of its own members, whatever numbers others give.
    fn of(described: &'a [ApplicationDescription], ends: &Ends, own: &str) -> Left<'a> {
        let mut left = Left { held: 0, holders: Vec::new(), has_free: false };
        let mut holders = BTreeMap::new();
        described.iter().for_each(|part| left.add(part, ends, own, &mut holders));
        left.holders = holders.into_values().collect();
        left
    }

    fn add(
        &mut self,
        part: &'a ApplicationDescription,
        ends: &Ends,
        own: &str,
        holders: &mut BTreeMap<Holder<'a>, (&'a MemberInfo, i64)>,
    ) {
        for lane in &part.lanes {
            let end = ends.get(&(lane.streamlet, lane.lane)).copied().unwrap_or(0);
            // What came since is not waited for.
            let records = lane.lag.saturating_sub(lane.durable_ordinal.saturating_sub(end));
            if records == 0 {
                continue;
            }
            let is_of_lane = |lease: &&LeaseInfo| (lease.streamlet, lease.lane) == (lane.streamlet, lane.lane);
            let leases: Vec<&LeaseInfo> = part.leases.iter().filter(is_of_lane).collect();
            self.has_free |= leases.is_empty();
            let mut is_held = false;
            for member in part.members.iter().filter(|member| member.name != own) {
                if let Some(lease) = leases.iter().find(|lease| lease.member == member.member) {
                    holders.insert(holder(member), (member, lease.until_ms));
                    is_held = true;
                }
            }
            self.held += if is_held { records } else { 0 };
        }
    }

    fn that_is_waited_for(&self, application: &str) -> String {
        let (records, are) = self.records();
        let one = |(of, until_ms): &(&MemberInfo, i64)| {
            let (heard, until) = (show_instant(of.heartbeat_ms), show_instant(*until_ms));
            format!("{}, last heard of at {heard}, with a lease until {until}", name(of))
        };
        let those = self.named(one);
        format!(
            "waiting: {records} of {application} {are} held by {those}; who is not heard of loses the lease then, and what it held is read here"
        )
    }

    fn that_others_read(&self, application: &str) -> String {
        let (records, are) = self.records();
        let those = self.named(|(of, _)| name(of));
        let them = if self.holders.len() == 1 { "it" } else { "them" };
        format!(
            "{records} of {application} {are} left to {those}: heard of just now, and reading; to have all here, stop {them} and run this again"
        )
    }

    fn records(&self) -> (String, &'static str) {
        (records_of(self.held), if self.held == 1 { "is" } else { "are" })
    }

    fn named(&self, one: impl Fn(&(&MemberInfo, i64)) -> String) -> String {
        let mut named: Vec<String> = self.holders.iter().take(NAMED_MAX).map(one).collect();
        let more = self.holders.len().saturating_sub(NAMED_MAX);
        if more > 0 {
            named.push(format!("and {}", counted(more as u64, "other consumer")));
        }
        named.join("; ")
    }
}

fn name(of: &MemberInfo) -> String {
    match of.name.as_str() {
        "" => format!("consumer {} at {}", of.member, of.address),
        name => format!("{name} at {}", of.address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kera_format::{ApplicationId, GroupId, Order, StreamId};
    use kera_protocol::{ApplicationState, LaneProgress};

    /// Lanes 0 and 1 with ten records each, of which `read` were read; the first is leased by member 5, the second by this command.
    fn described(read: u64, heartbeat_ms: i64, is_leased: bool) -> Vec<ApplicationDescription> {
        let member = |member, name: &str| MemberInfo {
            member,
            name: name.to_owned(),
            address: "127.0.0.1:4242".to_owned(),
            joined_ms: 7,
            heartbeat_ms,
            leases: 1,
        };
        let lease = |member, streamlet| LeaseInfo {
            lease: member,
            member,
            streamlet: StreamletId(streamlet),
            lane: LaneId(0),
            group: GroupId::new(1, 1),
            since_ms: 8,
            until_ms: heartbeat_ms + 30_000,
        };
        let lane = |streamlet, read| LaneProgress {
            streamlet: StreamletId(streamlet),
            lane: LaneId(0),
            committed_ordinal: Some(read),
            durable_ordinal: 10,
            lag: 10 - read,
        };
        let mut leases = vec![lease(6, 1)];
        leases.extend(is_leased.then(|| lease(5, 0)));
        vec![ApplicationDescription {
            application: ApplicationId(1),
            name: "report".to_owned(),
            stream: StreamId(1),
            state: ApplicationState::Active,
            order: Order::Lane,
            members: vec![member(5, "other-1"), member(6, "own-2")],
            leases,
            lanes: vec![lane(0, read), lane(1, 10)],
            lag: 10 - read,
        }]
    }

    fn ends(end: u64) -> Ends {
        [0, 1].map(|streamlet| ((StreamletId(streamlet), LaneId(0)), end)).into()
    }

    #[test]
    fn who_is_not_heard_of_is_waited_for_until_the_lease_is_over() {
        let (mut others, begun) = (Others::default(), Instant::now());
        let held = described(4, 1_000, true);
        assert_eq!(others.look(&held, &ends(10), "own-2", begun), (Then::Wait, None));
        let (then, said) = others.look(&held, &ends(10), "own-2", begun + SAY_AFTER);
        let said = said.expect("it is said what is waited for");
        assert_eq!(then, Then::Wait);
        for words in ["6 records of report are held by other-1 at 127.0.0.1:4242", "00:00:01.000Z", "00:00:31.000Z"] {
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(others.look(&held, &ends(10), "own-2", begun + 10 * SHARE_MAX), (Then::Wait, None), "once");
        let free = described(4, 1_000, false);
        assert_eq!(others.look(&free, &ends(10), "own-2", begun + 10 * SHARE_MAX), (Then::Ask, None));
        assert_eq!(others.look(&free, &ends(10), "own-2", begun + 10 * SHARE_MAX), (Then::End, None), "asked once");
    }

    #[test]
    fn what_those_keep_that_are_heard_of_is_theirs() {
        let (mut others, begun) = (Others::default(), Instant::now());
        assert_eq!(others.look(&described(4, 1_000, true), &ends(10), "own-2", begun).0, Then::Wait);
        let later = described(9, 1_001, true);
        assert_eq!(others.look(&later, &ends(10), "own-2", begun + SHARE_MAX / 2).0, Then::Wait, "it may give some");
        let (then, said) = others.look(&later, &ends(10), "own-2", begun + SHARE_MAX);
        assert_eq!(then, Then::End);
        assert!(said.expect("it is said").starts_with("1 record of report is left to other-1"));
    }

    #[test]
    fn nothing_is_waited_for_where_all_was_read_that_there_was() {
        let mut others = Others::default();
        assert_eq!(others.look(&described(10, 1_000, true), &ends(10), "own-2", Instant::now()), (Then::End, None));
        assert_eq!(others.look(&described(4, 1_000, true), &ends(4), "own-2", Instant::now()), (Then::End, None));
        assert_eq!(others.look(&described(4, 1_000, true), &ends(10), "other-1", Instant::now()), (Then::End, None));
    }

    /// Joined by their numbers alone, its own lease would be that of whoever has the same number at another node.
    #[test]
    fn members_of_two_nodes_that_have_one_number_are_two() {
        let begun = Instant::now();
        let mut parts = described(4, 1_000, true);
        // The second node has given to this command the number that another one has at the first, and to another one that of this command.
        let mut second = parts[0].clone();
        second.members.iter_mut().for_each(|member| member.member = 11 - member.member);
        second.leases.retain(|lease| lease.member == 5);
        second.leases[0].streamlet = StreamletId(2);
        second.lanes.truncate(1);
        second.lanes[0].streamlet = StreamletId(2);
        parts[0].leases.retain(|lease| lease.member == 6);
        parts[0].lanes.truncate(1);
        parts[0].lanes[0].streamlet = StreamletId(1);
        parts.push(second);
        let ends: Ends = [1, 2].map(|streamlet| ((StreamletId(streamlet), LaneId(0)), 10)).into();
        assert_eq!(Others::default().look(&parts, &ends, "own-2", begun), (Then::End, None), "all leases are its own");
    }
}
