//! Who is to be in the next view, and who of them is there.
//!
//! A backup that was lost a moment ago looks like any other: to the coordinators until it has been silent for long enough, to a log for as long as
//! nothing is sent to it. Named in a view it would have the log wait for it at best. At worst nobody of the view is there: if the broker
//! ends as well before it has chosen others, there is nobody who can show where its log ends, although the backups of the view before have
//! all of it. So a view names only backups that have answered a question since the log began to choose, those included that were in the
//! view before. `docs/replication.md`, "Replacing a backup".
//!
//! A rack is lost as a whole, so of those that answer as many racks are named as there are: [`spread`].

use std::collections::BTreeMap;

use kera_format::cluster::Rack;

use super::BackupId;

/// Backups that are asked for more than the view needs: one of them may not answer.
const SPARE: usize = 2;

/// Up to `most` of them, the best first. The first `staying` come first whatever their racks are; then, each time, one of a rack that has the fewest of those that
/// were taken and of the node itself, and of these the first. What stands nobody knows where counts as a rack of its own.
pub(crate) fn spread(of: &[(BackupId, Rack)], staying: usize, most: usize) -> Vec<(BackupId, Rack)> {
    let mut used: BTreeMap<Rack, usize> = BTreeMap::from([(Rack::Own, 1)]);
    let (mut taken, mut left) = (Vec::new(), of.to_vec());
    while taken.len() < most && !left.is_empty() {
        let crowd = |rack: Rack| if rack == Rack::Unknown { 0 } else { used.get(&rack).copied().unwrap_or(0) };
        let at = match taken.len() < staying {
            true => 0,
            false => (0..left.len()).min_by_key(|at| crowd(left[*at].1)).unwrap_or(0),
        };
        let (backup, rack) = left.remove(at);
        *used.entry(rack).or_default() += 1;
        taken.push((backup, rack));
    }
    taken
}

/// Of the backups of a view that is whole, the one that is to leave it so that another one, of `others`, can have a rack to itself: it shares its own with the node
/// or with another one of the view.
pub(crate) fn who_leaves(view: &[(BackupId, Rack)], others: &[(BackupId, Rack)]) -> Option<BackupId> {
    let has = |rack: Rack| rack == Rack::Own || view.iter().any(|(_, of)| *of == rack);
    let is_unused = |(_, rack): &(BackupId, Rack)| matches!(rack, Rack::Other(_)) && !has(*rack);
    let shares = |at: &usize| match view[*at].1 {
        Rack::Unknown => false,
        Rack::Own => true,
        rack => view[..*at].iter().any(|(_, of)| *of == rack),
    };
    let leaving = (0..view.len()).rev().find(shares)?;
    others.iter().any(is_unused).then(|| view[leaving].0)
}

/// What a log that chooses does next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// It waits.
    Wait,
    /// It asks these (again).
    Ask(Vec<BackupId>),
    /// These are there, the best first: as many as were wanted, or fewer.
    Name(Vec<BackupId>),
    /// These have not answered for so long that they count as lost. Who is there is to be asked anew.
    Late(Vec<BackupId>),
}

/// See the module. Times in microseconds.
pub(crate) struct Choice {
    /// Number of the question.
    pub(crate) question: u64,
    began_us: u64,
    /// When it was put last; 0: not yet.
    put_us: u64,
    /// Who is asked, the best first.
    asked: Vec<(BackupId, Rack)>,
    /// The first so many of them are in the present view and stay in the next if they are there.
    staying: usize,
    /// Named only if writes had to wait without them: they were replaced a moment ago.
    reserve: Vec<BackupId>,
    wanted: usize,
    /// Whether they take blocks, as they say.
    told: BTreeMap<BackupId, bool>,
}

impl Choice {
    /// A choice among those that may stay and others, the best first; `reserve` if there are too few of them.
    pub(crate) fn new(
        question: u64,
        staying: Vec<(BackupId, Rack)>,
        (others, reserve): (Vec<(BackupId, Rack)>, Vec<BackupId>),
        wanted: usize,
        now_us: u64,
    ) -> Choice {
        let (stay, most) = (staying.len(), wanted + SPARE);
        let all: Vec<_> = staying.into_iter().chain(others).collect();
        let asked = spread(&all, stay, most.max(stay));
        let reserve = reserve.into_iter().take(most).collect();
        let (began_us, put_us, told) = (now_us, 0, BTreeMap::new());
        Choice { question, began_us, put_us, asked, staying: stay, reserve, wanted, told }
    }

    /// Who may be named if at least so many are to be.
    pub(crate) fn may_be(&self, least: usize) -> Vec<BackupId> {
        let more: &[BackupId] = if self.asked.len() < least { &self.reserve } else { &[] };
        self.asked.iter().map(|(backup, _)| backup).chain(more).copied().collect()
    }

    /// A backup has said whether it takes blocks, or cannot be reached.
    pub(crate) fn told(&mut self, backup: BackupId, takes: bool) {
        self.told.insert(backup, takes);
    }

    /// What to do now. Who does not answer is asked again after `again_us`; from then on those that have answered are good enough if
    /// `least` of them have, the reserve counted. Who is in the present view is waited for until `late_us`.
    pub(crate) fn next(&mut self, now_us: u64, least: usize, (again_us, late_us): (u64, u64)) -> Next {
        let age_us = now_us.saturating_sub(self.began_us);
        let asked = || self.asked.iter().map(|(backup, _)| *backup);
        let silent: Vec<BackupId> =
            asked().chain(self.reserve.iter().copied()).filter(|backup| !self.told.contains_key(backup)).collect();
        // A broker that stood still itself knows nothing of who was silent, nor of who is there by now.
        if self.put_us > 0 && now_us.saturating_sub(self.put_us) >= late_us {
            return Next::Late(Vec::new());
        }
        if age_us >= late_us {
            return Next::Late(silent);
        }
        let takes = |backup: &&BackupId| self.told.get(backup) == Some(&true);
        let mut there = self.best(&takes);
        // Whether nobody that is better may still say that it is there.
        let may = self.best(&|backup| self.told.get(backup) != Some(&false));
        let is_best = may.iter().all(|backup| takes(&backup)) && there.len() >= least;
        let is_over = silent.is_empty() || age_us >= again_us;
        if is_over && there.len() < least {
            let missing = least - there.len();
            there.extend(self.reserve.iter().filter(takes).take(missing));
        }
        let waits_for_staying = self.asked[..self.staying].iter().any(|(backup, _)| silent.contains(backup));
        if silent.is_empty() || (!waits_for_staying && (is_best || (is_over && there.len() >= least))) {
            return Next::Name(there);
        }
        if self.put_us > 0 && now_us.saturating_sub(self.put_us) < again_us {
            return Next::Wait;
        }
        self.put_us = now_us.max(1);
        Next::Ask(silent)
    }

    /// Whom the view would name if these were all there are.
    fn best(&self, is_there: &dyn Fn(&&BackupId) -> bool) -> Vec<BackupId> {
        let of = |asked: &[(BackupId, Rack)]| asked.iter().filter(|(backup, _)| is_there(&backup)).copied().collect();
        let (staying, others): (Vec<_>, Vec<_>) = (of(&self.asked[..self.staying]), of(&self.asked[self.staying..]));
        let stay = staying.len();
        let best = spread(&[staying, others].concat(), stay, self.wanted);
        best.into_iter().map(|(backup, _)| backup).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: (u64, u64) = (100, 500);

    fn choice(staying: &[BackupId], others: &[BackupId], wanted: usize) -> Choice {
        let nowhere = |of: &[BackupId]| of.iter().map(|backup| (*backup, Rack::Unknown)).collect();
        Choice::new(1, nowhere(staying), (nowhere(others), vec![8]), wanted, 1000)
    }

    const B: Rack = Rack::Other(2);
    const C: Rack = Rack::Other(3);

    fn named(of: &mut Choice, now_us: u64) -> Vec<BackupId> {
        match of.next(now_us, 1, TIMES) {
            Next::Name(named) => named,
            next => panic!("{next:?}"),
        }
    }

    #[test]
    fn two_of_one_rack_are_named_only_if_no_other_answers() {
        let others = vec![(2, B), (3, B), (5, B), (6, B), (4, C), (7, Rack::Own)];
        let mut of = Choice::new(1, vec![], (others.clone(), vec![]), 2, 1000);
        assert_eq!(of.next(1000, 1, TIMES), Next::Ask(vec![2, 4, 3, 7]), "one of each rack, whatever comes before it");
        of.told(2, true);
        of.told(3, true);
        assert_eq!(of.next(1010, 1, TIMES), Next::Wait, "4 is in another rack and may be there");
        of.told(4, true);
        assert_eq!(named(&mut of, 1011), [2, 4]);
        let mut of = Choice::new(1, vec![], (others, vec![]), 2, 1000);
        of.next(1000, 1, TIMES);
        of.told(2, true);
        of.told(3, true);
        of.told(4, false);
        assert_eq!(named(&mut of, 1010), [2, 3], "7 is where the node is, and comes behind 3");
    }

    #[test]
    fn who_stays_counts_for_its_rack() {
        let mut of = Choice::new(1, vec![(2, B)], (vec![(3, B), (4, C)], vec![]), 2, 1000);
        of.next(1000, 1, TIMES);
        (2..=4).for_each(|backup| of.told(backup, true));
        assert_eq!(named(&mut of, 1001), [2, 4]);
        let mut of = Choice::new(1, vec![(2, B), (3, B)], (vec![(4, C)], vec![]), 2, 1000);
        of.next(1000, 1, TIMES);
        (2..=4).for_each(|backup| of.told(backup, true));
        assert_eq!(named(&mut of, 1001), [2, 3], "what stays stays");
    }

    #[test]
    fn who_shares_a_rack_leaves_for_one_that_does_not() {
        assert_eq!(who_leaves(&[(2, B), (3, B)], &[(4, C)]), Some(3));
        assert_eq!(who_leaves(&[(7, Rack::Own), (3, B)], &[(4, C)]), Some(7));
        assert_eq!(who_leaves(&[(2, B), (4, C)], &[(3, B), (5, Rack::Other(4))]), None, "each has its own");
        assert_eq!(who_leaves(&[(2, B), (3, B)], &[(5, B), (7, Rack::Own), (8, Rack::Unknown)]), None);
        assert_eq!(who_leaves(&[(2, Rack::Unknown), (3, Rack::Unknown)], &[(4, C)]), None);
    }

    #[test]
    fn the_best_that_are_there_are_named_as_soon_as_nobody_better_may_answer() {
        let mut of = choice(&[4], &[7, 5, 6, 9], 2);
        assert_eq!(of.next(1000, 1, TIMES), Next::Ask(vec![4, 7, 5, 6, 8]));
        of.told(5, true);
        of.told(4, true);
        assert_eq!(of.next(1010, 1, TIMES), Next::Wait, "7 is better and may be there");
        of.told(7, false);
        assert_eq!(of.next(1020, 1, TIMES), Next::Name(vec![4, 5]));
    }

    #[test]
    fn who_is_new_and_silent_is_waited_for_for_a_moment_only() {
        let mut of = choice(&[], &[7, 5], 1);
        assert_eq!(of.next(1000, 1, TIMES), Next::Ask(vec![7, 5, 8]));
        of.told(5, true);
        assert_eq!(of.next(1099, 1, TIMES), Next::Wait);
        assert_eq!(of.next(1100, 1, TIMES), Next::Name(vec![5]));
    }

    #[test]
    fn who_is_in_the_view_is_asked_again_until_it_is_late() {
        let mut of = choice(&[4], &[5, 6], 2);
        of.next(1000, 1, TIMES);
        of.told(5, true);
        of.told(6, true);
        of.told(8, true);
        assert_eq!(of.next(1100, 1, TIMES), Next::Ask(vec![4]), "what it has the others have not");
        assert_eq!(of.next(1200, 1, TIMES), Next::Ask(vec![4]));
        assert_eq!(of.next(1500, 1, TIMES), Next::Late(vec![4]), "5 and 6 may be gone by now");
    }

    #[test]
    fn who_was_replaced_a_moment_ago_is_better_than_nobody() {
        let mut of = choice(&[], &[5], 2);
        of.next(1000, 1, TIMES);
        of.told(8, true);
        assert_eq!(of.next(1099, 1, TIMES), Next::Wait);
        assert_eq!(of.next(1100, 1, TIMES), Next::Name(vec![8]));
        of.told(5, true);
        assert_eq!(of.next(1101, 1, TIMES), Next::Name(vec![5]), "and than nobody only");
    }

    #[test]
    fn nobody_is_named_if_nobody_answers() {
        let mut of = choice(&[], &[5], 1);
        of.next(1000, 1, TIMES);
        of.told(8, false);
        assert_eq!(of.next(1100, 1, TIMES), Next::Ask(vec![5]));
        of.told(5, false);
        assert_eq!(of.next(1101, 1, TIMES), Next::Name(vec![]), "there is nobody to wait for");
    }

    #[test]
    fn who_stood_still_itself_asks_anew() {
        let mut of = choice(&[4], &[5], 2);
        of.next(1000, 1, TIMES);
        of.told(4, true);
        of.told(5, true);
        assert_eq!(of.next(1500, 1, TIMES), Next::Late(vec![]), "both have answered too long ago");
    }
}
