//! Who is lost: the failure detector of the coordinators' leader, as pure logic over monotonic time. Being wrong costs time, never
//! data: whoever is declared lost is fenced before anybody takes its place.

use std::collections::BTreeMap;

use kera_format::cluster::NodeNumber;

/// Nodes send a sign of life so often.
pub const HEARTBEAT_MS: u64 = 100;
/// A node is lost when it has been silent for so long.
pub const LOST_AFTER_MS: u64 = 500;

/// An incarnation that is taken for lost so soon after it joined, and is heard afterwards, was starting on a machine that is too busy for it.
const YOUNG_US: u64 = 10_000_000;
/// How often the time doubles for such a node: up to eight times as long.
const DOUBLINGS_MAX: u32 = 3;
/// It is back to the usual time when it was not wronged for so long.
const FORGIVEN_US: u64 = 60_000_000;

/// So many times in a row a look that comes late blames a node for nothing. Signs of life come several times between two looks that are late, so one that was heard behind none of these
/// is not there, and whoever looks is late each time.
const FORGIVEN_MAX: u32 = 10;

/// The last sign of life of a node's newest incarnation, and since when that is known to take part.
#[derive(Clone, Copy, Debug)]
struct Sign {
    epoch: u32,
    at_us: u64,
    since_us: u64,
    /// Looks that came late since then.
    forgiven: u32,
}

impl Sign {
    /// As if it were heard now, for the first time.
    fn first(epoch: u32, now_us: u64) -> Sign {
        Sign { epoch, at_us: now_us, since_us: now_us, forgiven: 0 }
    }
}

/// A node whose young incarnations were taken for lost and were alive.
#[derive(Clone, Copy, Debug)]
struct Wronged {
    times: u32,
    last_us: u64,
}

/// The detector. Owned by the leader's driver; time is monotonic microseconds.
///
/// A node that is declared lost starts again (`docs/decisions/0018-a-fenced-node-starts-again.md`), and a start is when it has most to do. On a machine
/// that is so busy that a starting node is silent for half a second it would be declared lost at every start, and never serve. So the detector
/// learns from having been wrong: a young incarnation that is heard after it was declared lost was slow and not gone, and the node's next ones are
/// given twice the time, up to eight times. Nobody else's loss is noticed later by that.
#[derive(Clone, Debug)]
pub struct Detector {
    lost_after_us: u64,
    heard: BTreeMap<NodeNumber, Sign>,
    /// Young incarnations that were declared lost, and when.
    young_lost: BTreeMap<NodeNumber, (u32, u64)>,
    wronged: BTreeMap<NodeNumber, Wronged>,
    looked_us: u64,
}

impl Detector {
    /// A detector that has heard of nobody. Nodes are lost after `lost_after_ms` of silence.
    pub fn new(lost_after_ms: u64) -> Detector {
        Detector {
            lost_after_us: lost_after_ms * 1000,
            heard: BTreeMap::new(),
            young_lost: BTreeMap::new(),
            wronged: BTreeMap::new(),
            looked_us: 0,
        }
    }

    /// A sign of life of an incarnation. That of an earlier one says nothing, but that it was alive when it was declared lost.
    pub fn heard(&mut self, node: NodeNumber, epoch: u32, now_us: u64) {
        let is_wronged = |(of, lost_us): &(u32, u64)| *of == epoch && now_us > *lost_us;
        if self.young_lost.get(&node).is_some_and(is_wronged) {
            self.young_lost.remove(&node);
            let wronged = self.wronged.entry(node).or_insert(Wronged { times: 0, last_us: now_us });
            *wronged = Wronged { times: (wronged.times + 1).min(DOUBLINGS_MAX), last_us: now_us };
        }
        let sign = self.heard.entry(node).or_insert(Sign::first(epoch, now_us));
        if epoch > sign.epoch {
            *sign = Sign { at_us: sign.at_us.max(now_us), ..Sign::first(epoch, now_us) };
        } else if epoch == sign.epoch && now_us > sign.at_us {
            (sign.at_us, sign.forgiven) = (now_us, 0);
        }
    }

    /// Of the incarnations that take part, those that have been silent for too long. One that nobody has heard of yet, because it
    /// has just joined or the leader has just become one, is given the whole time from now on.
    ///
    /// A leader that has not looked for long, because it did not run itself, blames nobody for that. But one that is always late, as where its work takes long or it is given little of a
    /// processor, would never blame anybody: after some late looks in a row behind which a node was not heard it is taken for what it is.
    pub fn lost(&mut self, live: &[(NodeNumber, u32)], now_us: u64) -> Vec<(NodeNumber, u32)> {
        let slept = now_us.saturating_sub(self.looked_us) > self.lost_after_us / 2;
        self.looked_us = now_us;
        self.heard.retain(|node, _| live.iter().any(|(lives, _)| lives == node));
        self.wronged.retain(|_, wronged| now_us.saturating_sub(wronged.last_us) < FORGIVEN_US);
        let mut lost = Vec::new();
        for &(node, epoch) in live {
            let sign = self.heard.entry(node).or_insert(Sign::first(epoch, now_us));
            if sign.epoch < epoch {
                *sign = Sign::first(epoch, now_us);
            } else if slept && sign.forgiven < FORGIVEN_MAX {
                (sign.at_us, sign.forgiven) = (now_us, sign.forgiven + 1);
            }
            let patience_us = self.lost_after_us << self.wronged.get(&node).map_or(0, |wronged| wronged.times);
            if sign.epoch != epoch || now_us.saturating_sub(sign.at_us) <= patience_us {
                continue;
            }
            if now_us.saturating_sub(sign.since_us) < YOUNG_US {
                // Of one that is lost for several turns the first counts.
                if self.young_lost.get(&node).is_none_or(|(of, _)| *of < epoch) {
                    self.young_lost.insert(node, (epoch, now_us));
                }
            }
            lost.push((node, epoch));
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVE: [(NodeNumber, u32); 2] = [(1, 1), (2, 5)];

    /// Looks every 50 ms from `from` to `to`, both heard of by `beats`; what was lost when.
    fn watch(detector: &mut Detector, from: u64, to: u64, beats: &[(NodeNumber, u32)]) -> Vec<(u64, NodeNumber)> {
        let mut lost = Vec::new();
        for ms in (from..to).step_by(50) {
            beats.iter().filter(|_| ms % 100 == 0).for_each(|(node, epoch)| detector.heard(*node, *epoch, ms * 1000));
            lost.extend(detector.lost(&LIVE, ms * 1000).into_iter().map(|(node, _)| (ms, node)));
        }
        lost
    }

    #[test]
    fn who_is_silent_for_half_a_second_is_lost_and_nobody_else() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        assert_eq!(watch(&mut detector, 1000, 3000, &LIVE), []);
        let lost = watch(&mut detector, 3000, 4000, &LIVE[..1]);
        assert_eq!(lost.first(), Some(&(3450, 2)), "the last sign of life was at 2900");
        assert!(lost.iter().all(|(_, node)| *node == 2));
    }

    #[test]
    fn a_leader_that_has_just_become_one_gives_everybody_the_whole_time() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        let lost = watch(&mut detector, 100_000, 101_000, &[]);
        assert_eq!(lost.first().map(|(ms, _)| *ms), Some(100_550));
    }

    #[test]
    fn a_leader_that_did_not_run_blames_nobody() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1000, 2000, &LIVE);
        assert_eq!(detector.lost(&LIVE, 60_000_000), []);
        assert_eq!(watch(&mut detector, 60_050, 62_000, &LIVE), []);
    }

    /// Each turn of its work takes longer than half the time in which a node may be silent.
    #[test]
    fn a_leader_that_is_always_late_blames_who_is_gone_and_nobody_who_is_heard() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1_000, 2_000, &LIVE);
        let mut lost = Vec::new();
        for ms in (2_300..20_000).step_by(300) {
            detector.heard(1, 1, ms * 1000 - 1);
            // What it has heard of before is told at each look.
            detector.heard(2, 5, 1_900_000);
            lost.extend(detector.lost(&LIVE, ms * 1000).into_iter().map(|(node, _)| (ms, node)));
        }
        assert!(lost.first().is_some_and(|(ms, _)| *ms > 5_000 && *ms < 7_000), "{lost:?}");
        assert!(lost.iter().all(|(_, node)| *node == 2), "{lost:?}");
        // It is back, and forgiven as before.
        detector.heard(2, 5, 19_900_000);
        assert_eq!(detector.lost(&LIVE, 20_300_000), []);
    }

    #[test]
    fn signs_of_an_earlier_incarnation_say_nothing() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1000, 2000, &LIVE);
        let lost = watch(&mut detector, 2000, 3000, &[(1, 1), (2, 4)]);
        assert_eq!(lost.first().map(|(_, node)| *node), Some(2));
    }

    /// Starts one incarnation of node 2 after the other, each of which is heard for the first time `silent_ms` after it joined and starts
    /// again if it was declared lost by then. How many were, until one lives on.
    fn starts(detector: &mut Detector, from: u64, silent_ms: u64, is_heard: bool) -> usize {
        let (mut ms, mut count) = (from, 0);
        for epoch in 10..30 {
            let live = [(1, 1), (2, epoch)];
            let joined = ms;
            let mut is_lost = false;
            while ms < joined + silent_ms {
                detector.heard(1, 1, ms * 1000);
                is_lost |= detector.lost(&live, ms * 1000).contains(&(2, epoch));
                ms += 50;
            }
            if is_heard {
                detector.heard(2, epoch, ms * 1000);
            }
            if !is_lost {
                return count;
            }
            count += 1;
        }
        count
    }

    #[test]
    fn a_node_that_is_slow_to_start_is_given_more_time_until_it_does() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1000, 2000, &LIVE);
        assert_eq!(starts(&mut detector, 2000, 3000, true), 3, "after half a second, one, and two");
        // And others are not.
        let mut lost = Vec::new();
        for ms in (20_000..21_000).step_by(50) {
            detector.heard(2, 13, ms * 1000);
            lost.extend(detector.lost(&[(1, 1), (2, 13)], ms * 1000).into_iter().map(|(node, _)| (ms, node)));
        }
        assert_eq!(lost.first(), Some(&(20_550, 1)));
    }

    #[test]
    fn one_that_is_gone_is_not_given_more() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1000, 2000, &LIVE);
        assert_eq!(starts(&mut detector, 2000, 3000, false), 20);
    }

    #[test]
    fn who_was_wronged_is_watched_as_others_are_after_a_minute() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1000, 2000, &LIVE);
        assert_eq!(starts(&mut detector, 2000, 3000, true), 3);
        watch(&mut detector, 100_000, 100_500, &[(1, 1), (2, 5)]);
        let mut lost = Vec::new();
        for ms in (100_500..102_000).step_by(50) {
            detector.heard(1, 1, ms * 1000);
            lost.extend(detector.lost(&[(1, 1), (2, 13)], ms * 1000).into_iter().map(|(node, _)| (ms, node)));
        }
        assert!(lost.first().is_some_and(|(ms, node)| *node == 2 && *ms <= 101_100), "{lost:?}");
    }

    #[test]
    fn who_stood_still_long_after_it_had_joined_is_not_given_more() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1000, 20_000, &LIVE);
        let lost = watch(&mut detector, 20_000, 21_000, &LIVE[..1]);
        assert_eq!(lost.first().map(|(_, node)| *node), Some(2));
        detector.heard(2, 5, 21_000_000);
        assert!(detector.wronged.is_empty());
    }
}
