//! Who is lost: the failure detector of the coordinators' leader, as pure logic over monotonic time. Being wrong costs time, never
//! data: whoever is declared lost is fenced before anybody takes its place.

use std::collections::BTreeMap;

use kera_format::cluster::NodeNumber;

/// Nodes send a sign of life so often.
pub const HEARTBEAT_MS: u64 = 100;
/// A node is lost when it has been silent for so long.
pub const LOST_AFTER_MS: u64 = 500;

/// The detector. Owned by the leader's driver; time is monotonic microseconds.
#[derive(Clone, Debug)]
pub struct Detector {
    lost_after_us: u64,
    heard: BTreeMap<NodeNumber, (u32, u64)>,
    looked_us: u64,
}

impl Detector {
    /// A detector that has heard of nobody. Nodes are lost after `lost_after_ms` of silence.
    pub fn new(lost_after_ms: u64) -> Detector {
        Detector { lost_after_us: lost_after_ms * 1000, heard: BTreeMap::new(), looked_us: 0 }
    }

    /// A sign of life of an incarnation. That of an earlier one says nothing.
    pub fn heard(&mut self, node: NodeNumber, epoch: u32, now_us: u64) {
        let at = self.heard.entry(node).or_insert((epoch, now_us));
        if epoch >= at.0 {
            *at = (epoch, at.1.max(now_us));
        }
    }

    /// Of the incarnations that take part, those that have been silent for too long. One that nobody has heard of yet, because it
    /// has just joined or the leader has just become one, is given the whole time from now on.
    ///
    /// A leader that has not looked for long, because it did not run itself, blames nobody for that.
    pub fn lost(&mut self, live: &[(NodeNumber, u32)], now_us: u64) -> Vec<(NodeNumber, u32)> {
        let slept = now_us.saturating_sub(self.looked_us) > self.lost_after_us / 2;
        self.looked_us = now_us;
        self.heard.retain(|node, _| live.iter().any(|(lives, _)| lives == node));
        for &(node, epoch) in live {
            let at = self.heard.entry(node).or_insert((epoch, now_us));
            if at.0 < epoch || slept {
                *at = (epoch.max(at.0), now_us);
            }
        }
        let is_silent = |(node, epoch): &&(NodeNumber, u32)| {
            self.heard.get(node).is_some_and(|(of, at)| of == epoch && now_us.saturating_sub(*at) > self.lost_after_us)
        };
        live.iter().filter(is_silent).copied().collect()
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

    #[test]
    fn signs_of_an_earlier_incarnation_say_nothing() {
        let mut detector = Detector::new(LOST_AFTER_MS);
        watch(&mut detector, 1000, 2000, &LIVE);
        let lost = watch(&mut detector, 2000, 3000, &[(1, 1), (2, 4)]);
        assert_eq!(lost.first().map(|(_, node)| *node), Some(2));
    }
}
