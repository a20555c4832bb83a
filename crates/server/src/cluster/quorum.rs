//! What a node says while it waits for a majority of the coordinators: whom it lacks, and where they are. And whether the others can find it.
//!
//! Used by a node that starts, on the runtime of the coordinators' log. Connects to coordinators to see whether they are there, and asks them
//! nothing.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kera_env::{Clock, Lasting, Lasts};
use kera_protocol::Op;
use kera_raft::{Group, KnownMember};
use kera_rpc::{ClientConfig, Connection};

use crate::config::{Config, Mistake, Mistakes};
use crate::fatal::Fatal;

/// After this time without an answer a node says what it waits for.
const SOON: Duration = Duration::from_secs(1);
/// And again each time.
const AGAIN: Duration = Duration::from_secs(10);
/// How long a coordinator may take to greet who connects.
const CONNECT: Duration = Duration::from_millis(500);

/// Goes on with something, and says in the log what it waits for as long as there is no leader. Nor is there one where this node has led and comes back alone: it begins as
/// the leader that it was, and nobody follows it.
pub(super) async fn told<T>(group: &Group, node: u32, done: impl Future<Output = T>) -> T {
    let telling = async {
        let mut pause = SOON;
        loop {
            tokio::time::sleep(pause).await;
            pause = AGAIN;
            if group.leader().is_some() && group.is_followed() {
                continue;
            }
            let (voters, there) = who_is_there(group, node).await;
            if let Some(said) = lacking(node, &voters, &group.voters(), &there) {
                tracing::warn!("{said}");
            }
        }
    };
    tokio::select! {
        biased;
        done = done => done,
        never = telling => never,
    }
}

/// When a node that runs says that nothing is decided, and again each time, in microseconds. An election takes less than a second.
pub(super) const UNDECIDED_US: u64 = 10_000_000;

/// That a node leads and does not found its cluster all the same: what it begins with is refused each time, or not taken.
pub(super) struct Unfounded {
    began: Instant,
    lasting: Lasting,
}

impl Unfounded {
    /// It is said when it has lasted for so long, in microseconds, and again each time.
    pub(super) fn said_after(us: u64) -> Unfounded {
        Unfounded { began: Instant::now(), lasting: Lasting::new(us) }
    }

    /// It was tried once more. As long as nobody leads [`told`] says what is waited for.
    pub(super) fn look(&mut self, group: &Group, reason: &str) {
        let now_us = self.began.elapsed().as_micros() as u64;
        if let Some(Lasts::For(since_us)) = self.lasting.look(group.is_leader(), now_us) {
            tracing::warn!(
                seconds = since_us / 1_000_000,
                reason,
                "this node leads the coordinators and cannot found its cluster; it goes on trying"
            );
        }
    }
}

/// Says in the log when this node has known no leader for long although it hears most coordinators, or leads and is not followed by most of them, and when that is over. That it does not
/// hear most of them is said by what it refuses then.
pub(super) async fn watch_leader(group: &Group, clock: &dyn Clock) {
    let (mut leaderless, mut unfollowed) = (Lasting::new(UNDECIDED_US), Lasting::new(UNDECIDED_US));
    loop {
        tokio::time::sleep(SOON).await;
        let hears = group.would_miss_majority() && hears(&group.members(), group.lacks_majority().as_deref());
        let now_us = clock.monotonic_us();
        match leaderless.look(hears && group.leader().is_none(), now_us) {
            Some(Lasts::For(since_us)) => tracing::warn!(
                seconds = since_us / 1_000_000,
                "the coordinators answer and have not agreed on a leader: no lost node is replaced, nothing moves, and no stream is made meanwhile"
            ),
            Some(Lasts::Over) => tracing::info!("the coordinators have a leader again"),
            None => {}
        }
        match unfollowed.look(hears && !group.is_followed(), now_us) {
            Some(Lasts::For(since_us)) => tracing::warn!(
                seconds = since_us / 1_000_000,
                "this node leads the coordinators, and most of them answer and do not follow it: no lost node is replaced, nothing moves, and no stream is made meanwhile"
            ),
            Some(Lasts::Over) => tracing::info!("most coordinators follow this node again, or another one leads"),
            None => {}
        }
    }
}

/// Whether most coordinators answer, as far as can be told. Who knows of none, as long as nobody has let it in, hears none.
fn hears(known: &[KnownMember], lacks: Option<&str>) -> bool {
    lacks.is_none() && known.iter().any(|member| member.votes)
}

/// Who votes, and which of them are there. Another node at the address of one is not.
async fn who_is_there(group: &Group, node: u32) -> (Vec<KnownMember>, Vec<u32>) {
    let voters: Vec<KnownMember> = group.members().into_iter().filter(|member| member.votes).collect();
    let mut asked = tokio::task::JoinSet::new();
    for voter in voters.iter().filter(|voter| voter.node != node).cloned() {
        asked.spawn(async move {
            let config =
                ClientConfig { client_name: "kera-node".into(), connect_timeout: CONNECT, ..ClientConfig::default() };
            let greeted = Connection::connect(&voter.address, config).await.ok()?;
            Some((voter.node, greeted.hello().node_id))
        });
    }
    let answered = asked.join_all().await.into_iter().flatten();
    let is_it = |(voter, uuid): &(u32, [u8; 16])| group.check_is(*voter, Op::RaftVote, *uuid).is_ok();
    let mut there: Vec<u32> = answered.filter(is_it).map(|(voter, _)| voter).collect();
    there.extend(voters.iter().map(|voter| voter.node).filter(|voter| *voter == node));
    (voters, there)
}

/// What is said of it; nothing of a node that knows no coordinators yet. `lists`: who votes, in two lists while that is being changed. A majority of each is
/// needed then, so it is the list without one that is told.
fn lacking(node: u32, voters: &[KnownMember], lists: &[BTreeSet<u32>], there: &[u32]) -> Option<String> {
    if voters.is_empty() {
        return None;
    }
    let answer = |list: &BTreeSet<u32>| there.iter().filter(|voter| list.contains(voter)).count();
    let needed = |list: &BTreeSet<u32>| list.len() / 2 + 1;
    let Some(list) = lists.iter().find(|list| answer(list) < needed(list)) else {
        return Some(format!(
            "this node waits for the coordinators: {} of {} answer, and have not agreed on a leader yet",
            there.len(),
            voters.len()
        ));
    };
    let at = |voter: &KnownMember| format!("node {} at {}", voter.node, voter.address);
    let is_missing = |voter: &&KnownMember| list.contains(&voter.node) && !there.contains(&voter.node);
    let missing: Vec<String> = voters.iter().filter(is_missing).map(at).collect();
    // A leader tells the others where one is that has moved; those that have moved together wait for each other.
    let moved = match missing.len() {
        0 | 1 => "",
        _ => {
            "; if they have moved, start so many of them as before that a majority is there, and then the others with --join"
        }
    };
    let counted = if list.contains(&node) && there.contains(&node) { ", its own included" } else { "" };
    Some(format!(
        "this node waits for the majority of the coordinators: {} votes of {} are needed and {} can be had{counted}; start {}{moved} (if most are gone for good: \
         `kera cluster recover --help`)",
        needed(list),
        list.len(),
        answer(list),
        missing.join(", or ")
    ))
}

/// A node that was in the cluster before is heard of by the others where they know it. One that listens somewhere else is told of no leader, and
/// its elections trouble those who have one. With `--join` it tells them where it is; alone it needs nobody to find it.
pub(super) fn check_address(config: &Config, node: u32, members: &[KnownMember]) -> Result<(), Fatal> {
    let others_vote = members.iter().any(|member| member.node != node && member.votes);
    let Some(known) = members.iter().find(|member| member.node == node).filter(|_| others_vote) else {
        return Ok(());
    };
    if is_reached_at(config, &known.address) {
        return Ok(());
    }
    let (known, now) = (&known.address, config.cluster_address());
    let message = format!(
        "the other nodes know this one at {known}, and it is to be reached at {now}; pass --cluster-listen {known} (or --cluster-advertised), and its \
         other addresses as before, or, if it has moved, --join with the address of a node that runs; fewer than half of the \
         coordinators that vote may move at a time: the others have to have a leader, who tells all where it is"
    );
    Err(Fatal::Config(Mistakes(vec![Mistake { place: String::new(), setting: "cluster.listen".into(), message }])))
}

/// When a node that has just opened what it has was heard of by the coordinators last, if it asked to be let in at `joined_us` and was `confirmed_us` since. That it is done does not say that it was: opening takes as
/// long as there is much, and meanwhile it may have been cut off, been taken for lost, and been given up. All of it on the clock that goes on while the machine is suspended.
pub(super) fn heard_us(joined_us: u64, confirmed_us: Option<u64>) -> u64 {
    confirmed_us.map_or(joined_us, |confirmed_us| confirmed_us.max(joined_us))
}

fn is_reached_at(config: &Config, known: &str) -> bool {
    if config.cluster_address() == known {
        return true;
    }
    let at = |address: &str| crate::node::resolve(address).ok();
    let (Some(known), Some(listens)) = (at(known), at(&config.cluster.listen)) else { return false };
    let is_known = |found: SocketAddr| found == known;
    at(config.cluster_address()).is_some_and(is_known)
        || (listens.port() == known.port() && (listens.ip() == known.ip() || listens.ip().is_unspecified()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kera_broker::{Broker, BrokerConfig};
    use kera_env::ManualClock;
    use kera_log::{Arena, ArenaConfig, Log, LogConfig};

    use super::*;

    fn three() -> Vec<KnownMember> {
        let one = |node| KnownMember { node, address: format!("127.0.0.1:718{node}"), votes: true };
        (1..=3).map(one).collect()
    }

    #[test]
    fn who_waits_says_for_whom_and_how_many_votes_are_there_and_needed() {
        assert_eq!(
            lacking(1, &three(), &[1..=3].map(BTreeSet::from_iter), &[1]).as_deref(),
            Some(
                "this node waits for the majority of the coordinators: 2 votes of 3 are needed and 1 can be had, its own included; start node 2 at \
                 127.0.0.1:7182, or node 3 at 127.0.0.1:7183; if they have moved, start so many of them as before that a majority is there, and then the others \
                 with --join (if most are gone for good: `kera cluster recover --help`)"
            )
        );
        let all = [BTreeSet::from([1, 2, 3])];
        assert!(lacking(4, &three(), &all, &[]).is_some_and(|said| said.contains("and 0 can be had; start node 1 at")));
        assert!(lacking(1, &three(), &all, &[1, 2]).is_some_and(|said| said.contains("2 of 3 answer")));
        assert_eq!(lacking(1, &[], &[], &[]), None);
    }

    /// It served for some seconds what others may own by then.
    #[test]
    fn a_node_that_was_cut_off_while_it_opened_what_it_has_does_not_serve_when_it_has() {
        let clock = Arc::new(ManualClock::new(0));
        let dir = tempfile::tempdir().expect("a directory");
        let arena = ArenaConfig { path: dir.path().join("arena"), bytes: 4 << 20, node: [7; 16] };
        let log = Log::new(LogConfig::default(), Arena::create_or_attach(arena).expect("an arena").0);
        let broker = Broker::new(BrokerConfig::default(), log, clock.clone());
        let serves = |joined_us, confirmed_us| {
            broker.confirmed(heard_us(joined_us, confirmed_us));
            broker.is_confirmed()
        };
        let joined_us = clock.since_boot_us();
        clock.advance_ms(60_000);
        let now_us = clock.since_boot_us();
        assert!(!serves(joined_us, None));
        assert!(!serves(joined_us, Some(joined_us + 1_000_000)));
        assert!(serves(joined_us, Some(now_us - 1_000_000)));
        // It has just joined, and was not asked since.
        assert!(serves(now_us, None) && serves(now_us, Some(joined_us)));
    }

    /// It said that they answer and have no leader, where the address to join was wrong.
    #[test]
    fn who_has_not_joined_yet_hears_no_coordinators() {
        assert!(hears(&three(), None));
        assert!(!hears(&three(), Some("no majority of the coordinators")));
        assert!(!hears(&[], None));
    }

    /// Most of all are there, and the one that voted alone before is not.
    #[test]
    fn who_waits_while_a_change_of_who_votes_is_half_done_says_whose_votes_are_missing_of_the_list_that_lacks_them() {
        let lists = [BTreeSet::from([3]), BTreeSet::from([1, 2, 3])];
        let said = lacking(1, &three(), &lists, &[1, 2]).expect("it waits");
        assert!(
            said.contains("1 votes of 1 are needed and 0 can be had; start node 3 at 127.0.0.1:7183 (if"),
            "{said}"
        );
        let said = lacking(3, &three(), &lists, &[3]).expect("it waits");
        assert!(said.contains("2 votes of 3 are needed and 1 can be had, its own included"), "{said}");
    }

    #[test]
    fn a_node_that_listens_elsewhere_than_the_others_know_is_told_so_unless_it_is_the_only_one() {
        let mut config = Config::default();
        config.cluster.listen = "127.0.0.1:7182".into();
        assert!(check_address(&config, 2, &three()).is_ok());
        config.cluster.listen = "0.0.0.0:7182".into();
        assert!(check_address(&config, 2, &three()).is_ok());
        config.cluster.listen = "127.0.0.1:7072".into();
        let said = check_address(&config, 2, &three()).unwrap_err().to_string();
        assert!(
            said.contains("know this one at 127.0.0.1:7182") && said.contains("reached at 127.0.0.1:7072"),
            "{said}"
        );
        assert!(said.contains("fewer than half of the coordinators that vote may move at a time"), "{said}");
        config.cluster.advertised = Some("127.0.0.1:7182".into());
        assert!(check_address(&config, 2, &three()).is_ok());
        config.cluster.advertised = None;
        assert!(check_address(&config, 2, &three()[1..2]).is_ok());
        assert!(check_address(&config, 4, &three()).is_ok());
    }
}
