//! Who should get which partition: `uniform` and `range`.
//!
//! Both are functions of the members' subscriptions and, for `uniform`, of what they have. Every partition of a topic that
//! somebody subscribes to goes to exactly one of its subscribers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use uuid::Uuid;

/// Partitions by topic.
pub(super) type Assignment = BTreeMap<Uuid, BTreeSet<i32>>;

/// The names of the assignors, the default first.
pub(super) const NAMES: [&str; 2] = ["uniform", "range"];
/// Passes over all partitions in search of a better balance. Each but the last improves it.
const PASSES_MAX: usize = 64;

/// One subscriber.
#[derive(Clone, Debug)]
pub(super) struct Subscriber<'a> {
    pub(super) id: &'a str,
    /// What it is ordered by: the name that outlives it, or else its id.
    pub(super) order: &'a str,
    /// Topics that exist. Those who want the same share them: then they are looked through once for all.
    pub(super) topics: Rc<BTreeSet<Uuid>>,
    /// What it should have had until now.
    pub(super) has: Option<&'a Assignment>,
}

/// Assigns with the assignor of this name; by default with the first.
pub(super) fn assign(
    name: &str,
    subscribers: &[Subscriber<'_>],
    partitions: &BTreeMap<Uuid, u32>,
) -> BTreeMap<String, Assignment> {
    if name == "range" { range(subscribers, partitions) } else { uniform(subscribers, partitions) }
}

/// Each topic is cut into consecutive pieces, one for each of its subscribers in their order; the first ones get one
/// more where it does not come out even.
fn range(subscribers: &[Subscriber<'_>], partitions: &BTreeMap<Uuid, u32>) -> BTreeMap<String, Assignment> {
    let mut result = nothing(subscribers);
    let mut ordered: Vec<&Subscriber<'_>> = subscribers.iter().collect();
    ordered.sort_by_key(|subscriber| (subscriber.order, subscriber.id));
    for (topic, &count) in partitions {
        let of_topic: Vec<_> = ordered.iter().filter(|subscriber| subscriber.topics.contains(topic)).collect();
        let Ok(subscribers) = u32::try_from(of_topic.len()) else { continue };
        let Some(least) = count.checked_div(subscribers) else { continue };
        let mut next = 0;
        for (at, subscriber) in (0..).zip(of_topic) {
            let end = next + least + u32::from(at < count % subscribers);
            if next < end {
                give(&mut result, subscriber.id, *topic, (next..end).map(|partition| partition as i32));
            }
            next = end;
        }
    }
    result
}

/// Everybody gets as many as the others as far as subscriptions allow, and keeps what it has as far as that allows.
fn uniform(subscribers: &[Subscriber<'_>], partitions: &BTreeMap<Uuid, u32>) -> BTreeMap<String, Assignment> {
    let mut balance = Balance::new(subscribers, partitions);
    balance.keep();
    balance.give_the_rest();
    balance.improve();
    let mut result = nothing(subscribers);
    for (&(topic, partition), owner) in &balance.owners {
        if let Some(owner) = owner {
            give(&mut result, subscribers[*owner].id, topic, [partition]);
        }
    }
    result
}

struct Balance<'a> {
    subscribers: &'a [Subscriber<'a>],
    /// Those that share what they want.
    sharing: Vec<Vec<usize>>,
    /// For each topic which of these want it.
    wanted: BTreeMap<Uuid, Vec<usize>>,
    owners: BTreeMap<(Uuid, i32), Option<usize>>,
    loads: Vec<usize>,
    /// Nobody keeps more than this at first: what everybody would get at most if all wanted the same.
    keep_max: Vec<usize>,
}

impl<'a> Balance<'a> {
    fn new(subscribers: &'a [Subscriber<'a>], partitions: &BTreeMap<Uuid, u32>) -> Balance<'a> {
        let (mut sharing, mut known): (Vec<Vec<usize>>, HashMap<_, usize>) = Default::default();
        let mut wanted: BTreeMap<Uuid, Vec<usize>> = BTreeMap::new();
        for (at, subscriber) in subscribers.iter().enumerate() {
            let next = sharing.len();
            let of = *known.entry(Rc::as_ptr(&subscriber.topics)).or_insert(next);
            if of < next {
                sharing[of].push(at);
                continue;
            }
            sharing.push(vec![at]);
            for topic in subscriber.topics.iter().filter(|topic| partitions.contains_key(topic)) {
                #[cfg(test)]
                tests::LINED_UP.set(tests::LINED_UP.get() + 1);
                wanted.entry(*topic).or_default().push(of);
            }
        }
        let all = wanted.keys().flat_map(|topic| (0..partitions[topic]).map(|partition| (*topic, partition as i32)));
        let owners: BTreeMap<_, _> = all.map(|of| (of, None)).collect();
        // If all want the same, as many as the remainder may keep one more: then nothing has to move afterwards.
        let same = sharing.windows(2).all(|pair| subscribers[pair[0][0]].topics == subscribers[pair[1][0]].topics);
        let members = subscribers.len().max(1);
        let (least, more) = (owners.len() / members, owners.len() % members);
        let mut keep_max = vec![if same { least } else { usize::MAX }; subscribers.len()];
        let mut fullest: Vec<usize> = (0..subscribers.len()).collect();
        let has = |at: &usize| subscribers[*at].has.map_or(0, |has| has.values().map(BTreeSet::len).sum::<usize>());
        fullest.sort_by_key(|at| std::cmp::Reverse(has(at)));
        for at in fullest.into_iter().take(if same { more } else { 0 }) {
            keep_max[at] += 1;
        }
        Balance { subscribers, sharing, wanted, owners, loads: vec![0; subscribers.len()], keep_max }
    }

    /// Those that want a topic.
    fn wanting(&self, topic: &Uuid) -> impl Iterator<Item = usize> {
        self.wanted.get(topic).into_iter().flatten().flat_map(move |of| self.sharing[*of].iter().copied())
    }

    fn keep(&mut self) {
        for (at, subscriber) in self.subscribers.iter().enumerate() {
            let has = subscriber.has.into_iter().flatten();
            for (topic, partition) in has.flat_map(|(topic, partitions)| partitions.iter().map(move |of| (topic, of))) {
                if self.loads[at] >= self.keep_max[at] || !subscriber.topics.contains(topic) {
                    continue;
                }
                if let Some(owner @ None) = self.owners.get_mut(&(*topic, *partition)) {
                    *owner = Some(at);
                    self.loads[at] += 1;
                }
            }
        }
    }

    /// Those that want a topic, by how much they have: who has least first; of equals who comes first.
    fn by_load(&self, topic: &Uuid) -> BTreeSet<(usize, usize)> {
        let by_load = self.wanting(topic).map(|at| (self.loads[at], at)).collect::<BTreeSet<_>>();
        #[cfg(test)]
        tests::LOOKED_AT.set(tests::LOOKED_AT.get() + by_load.len());
        by_load
    }

    fn give_the_rest(&mut self) {
        let mut free: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
        for (topic, partition) in self.owners.iter().filter(|(_, owner)| owner.is_none()).map(|(of, _)| *of) {
            free.entry(topic).or_default().push(partition);
        }
        let mut free: Vec<_> = free.into_iter().collect();
        // Topics that few want first: for those there is no choice.
        free.sort_by_cached_key(|(topic, _)| self.wanting(topic).count());
        for (topic, partitions) in free {
            let mut by_load = self.by_load(&topic);
            for partition in partitions {
                let Some((load, at)) = by_load.pop_first() else { break };
                self.owners.insert((topic, partition), Some(at));
                self.loads[at] = load + 1;
                by_load.insert((load + 1, at));
            }
        }
    }

    /// Moves single partitions from those that have at least two more than another who wants them.
    fn improve(&mut self) {
        let topics: Vec<Uuid> = self.wanted.keys().copied().collect();
        for _ in 0..PASSES_MAX {
            // Where all want the same they have it by now, and nobody looks at what each topic's have.
            if is_even(self.loads.iter().copied()) {
                return;
            }
            let mut moves = 0;
            for topic in &topics {
                moves += self.improve_topic(*topic);
            }
            if moves == 0 {
                return;
            }
        }
    }

    /// The same for the partitions of one topic: how many were moved.
    fn improve_topic(&mut self, topic: Uuid) -> usize {
        if is_even(self.wanting(&topic).map(|at| self.loads[at])) {
            return 0;
        }
        let (mut by_load, mut moves) = (self.by_load(&topic), 0);
        for (_, owner) in self.owners.range_mut((topic, i32::MIN)..=(topic, i32::MAX)) {
            let (Some(from), Some((least, to))) = (*owner, by_load.first().copied()) else { continue };
            let most = self.loads[from];
            if most < least + 2 {
                continue;
            }
            for (at, before, after) in [(from, most, most - 1), (to, least, least + 1)] {
                by_load.remove(&(before, at));
                by_load.insert((after, at));
                self.loads[at] = after;
            }
            *owner = Some(to);
            moves += 1;
        }
        moves
    }
}

/// Whether nobody has at least two more than another.
fn is_even(loads: impl Iterator<Item = usize>) -> bool {
    let (least, most) = loads.fold((usize::MAX, 0), |(least, most), load| (least.min(load), most.max(load)));
    most < least.saturating_add(2)
}

fn nothing(subscribers: &[Subscriber<'_>]) -> BTreeMap<String, Assignment> {
    subscribers.iter().map(|subscriber| (subscriber.id.to_owned(), Assignment::new())).collect()
}

fn give(result: &mut BTreeMap<String, Assignment>, id: &str, topic: Uuid, partitions: impl IntoIterator<Item = i32>) {
    if let Some(assignment) = result.get_mut(id) {
        assignment.entry(topic).or_default().extend(partitions);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use proptest::prelude::*;

    thread_local! {
        /// How many subscribers were looked at, over all topics.
        pub(super) static LOOKED_AT: Cell<usize> = const { Cell::new(0) };
        /// How many topics that somebody wants were looked at for who wants them.
        pub(super) static LINED_UP: Cell<usize> = const { Cell::new(0) };
    }

    fn topic(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn loads(result: &BTreeMap<String, Assignment>) -> Vec<usize> {
        result.values().map(|assignment| assignment.values().map(BTreeSet::len).sum()).collect()
    }

    fn ids(count: usize) -> Vec<String> {
        (0..count).map(|at| format!("member-{at:03}")).collect()
    }

    fn subscribers<'a>(
        ids: &'a [String],
        topics: impl Fn(usize) -> BTreeSet<Uuid>,
        has: Option<&'a BTreeMap<String, Assignment>>,
    ) -> Vec<Subscriber<'a>> {
        let one = |(at, id): (usize, &'a String)| Subscriber {
            id,
            order: id,
            topics: Rc::new(topics(at)),
            has: has.and_then(|has| has.get(id)),
        };
        ids.iter().enumerate().map(one).collect()
    }

    #[test]
    fn range_gives_consecutive_partitions_and_the_first_one_more() {
        let ids = ids(3);
        let all = |_| BTreeSet::from([topic(1)]);
        let result = assign("range", &subscribers(&ids, all, None), &BTreeMap::from([(topic(1), 7)]));
        let of = |at: usize| result[&ids[at]][&topic(1)].iter().copied().collect::<Vec<_>>();
        assert_eq!((of(0), of(1), of(2)), (vec![0, 1, 2], vec![3, 4], vec![5, 6]));
    }

    #[test]
    fn uniform_moves_only_what_a_fourth_member_needs() {
        let all = |_| BTreeSet::from([topic(1)]);
        let partitions = BTreeMap::from([(topic(1), 12)]);
        let four = ids(4);
        let before = assign("uniform", &subscribers(&four[..3], all, None), &partitions);
        assert_eq!(loads(&before), [4, 4, 4]);
        let after = assign("uniform", &subscribers(&four, all, Some(&before)), &partitions);
        assert_eq!(loads(&after), [3, 3, 3, 3]);
        for id in &four[..3] {
            assert!(after[id][&topic(1)].is_subset(&before[id][&topic(1)]), "{id} got what another had");
        }
    }

    /// A large group takes its coordinator no time that grows with members times partitions.
    #[test]
    fn subscribers_are_looked_at_once_for_a_topic_and_not_for_each_partition() {
        let partitions = BTreeMap::from([(topic(1), 3_000), (topic(2), 3_000)]);
        let both = |_| BTreeSet::from([topic(1), topic(2)]);
        // Half of them want one topic alone.
        let some = |at: usize| BTreeSet::from_iter([topic(1), topic(2)].into_iter().take(1 + at % 2));
        let ids = ids(1_001);
        let looked_at = |subscribers: &[Subscriber<'_>]| {
            LOOKED_AT.set(0);
            (assign("uniform", subscribers, &partitions), LOOKED_AT.get())
        };
        let (before, looked) = looked_at(&subscribers(&ids[..1_000], both, None));
        assert!(looked <= 2 * 1_000, "{looked}");
        let (after, looked) = looked_at(&subscribers(&ids, both, Some(&before)));
        assert!(looked <= 2 * 1_001, "{looked}");
        let (least, most) = (loads(&after).into_iter().min(), loads(&after).into_iter().max());
        assert_eq!((least, most), (Some(5), Some(6)));
        let (after, looked) = looked_at(&subscribers(&ids, some, Some(&before)));
        assert!(looked <= (1 + PASSES_MAX) * 2 * 1_001, "{looked}");
        assert_eq!(loads(&after).into_iter().sum::<usize>(), 6_000);
    }

    #[test]
    fn topics_that_many_share_are_looked_through_once_and_given_as_if_nobody_shared() {
        let partitions: BTreeMap<Uuid, u32> = (0..200).map(|at| (topic(at), 1 + at as u32 % 3)).collect();
        let ids = ids(60);
        // Three in four want all, the others some.
        let wants = |at: usize| (0..200_u128).filter(|of| at % 4 != 3 || of % 7 == at as u128 % 7).map(topic).collect();
        let own = subscribers(&ids, wants, None);
        let mut shared: Vec<Rc<BTreeSet<Uuid>>> = Vec::new();
        let sharing: Vec<Subscriber<'_>> = own
            .iter()
            .map(|of| {
                let known = shared.iter().find(|known| **known == of.topics).unwrap_or(&of.topics).clone();
                shared.push(Rc::clone(&known));
                Subscriber { topics: known, ..of.clone() }
            })
            .collect();
        let lined_up = |subscribers: &[Subscriber<'_>]| {
            LINED_UP.set(0);
            (assign("uniform", subscribers, &partitions), LINED_UP.get())
        };
        let (alone, looked) = lined_up(&own);
        assert!(looked > 45 * 200, "{looked}");
        let (together, looked) = lined_up(&sharing);
        assert!((200..=200 + 7 * 29).contains(&looked), "{looked}");
        assert_eq!(alone, together);
    }

    proptest! {
        #[test]
        fn each_partition_goes_to_one_subscriber(
            wants in proptest::collection::vec(proptest::collection::btree_set(0..5u128, 0..5), 1..8),
            before in proptest::collection::vec(proptest::collection::btree_set(0..5u128, 0..5), 1..8),
            counts in proptest::collection::btree_map(0..5u128, 0..9u32, 0..5),
        ) {
            let partitions: BTreeMap<Uuid, u32> = counts.iter().map(|(id, count)| (topic(*id), *count)).collect();
            let topics = |wants: &Vec<BTreeSet<u128>>, at: usize| wants[at].iter().map(|id| topic(*id)).collect();
            let (old_ids, ids) = (ids(before.len()), ids(wants.len()));
            for name in NAMES {
                let old = subscribers(&old_ids, |at| topics(&before, at), None);
                let has = assign(name, &old, &partitions);
                let members = subscribers(&ids, |at| topics(&wants, at), Some(&has));
                let result = assign(name, &members, &partitions);
                for (topic, count) in &partitions {
                    let wanted = members.iter().filter(|member| member.topics.contains(topic)).count();
                    for partition in 0..*count as i32 {
                        let owners: Vec<_> = members.iter().filter(|member| {
                            result[member.id].get(topic).is_some_and(|of| of.contains(&partition))
                        }).collect();
                        prop_assert_eq!(owners.len(), wanted.min(1));
                        prop_assert!(owners.iter().all(|owner| owner.topics.contains(topic)));
                    }
                }
                let total: usize = loads(&result).iter().sum();
                let wanted = |topic: &Uuid| members.iter().any(|member| member.topics.contains(topic));
                let expected: u32 = partitions.iter().filter(|(topic, _)| wanted(topic)).map(|(_, count)| count).sum();
                prop_assert_eq!(total, expected as usize);
            }
        }

        #[test]
        fn uniform_is_even_and_keeps_what_it_can(members in 1..9usize, joined in 0..4usize, count in 0..40u32) {
            let all = |_| BTreeSet::from([topic(1), topic(2)]);
            let partitions = BTreeMap::from([(topic(1), count), (topic(2), 7)]);
            let ids = ids(members + joined);
            let before = assign("uniform", &subscribers(&ids[..members], all, None), &partitions);
            let after = assign("uniform", &subscribers(&ids, all, Some(&before)), &partitions);
            for result in [&before, &after] {
                let loads = loads(result);
                prop_assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 1);
            }
            // Whoever was there gets nothing that it did not have.
            for id in &ids[..members] {
                let had = |topic: &Uuid, of: &BTreeSet<i32>| before[id].get(topic).is_some_and(|had| of.is_subset(had));
                prop_assert!(after[id].iter().all(|(topic, of)| had(topic, of)));
            }
        }
    }
}
