//! Who is to be in the next view, and who of them is there.
//!
//! A backup that was lost a moment ago looks like any other: to the coordinators until it has been silent for long enough, to a log for as long as
//! nothing is sent to it. Named in a view it would have the log wait for it at best. At worst nobody of the view is there: if the broker
//! ends as well before it has chosen others, there is nobody who can show where its log ends, although the backups of the view before have
//! all of it. So a view names only backups that have answered a question since the log began to choose, those included that were in the
//! view before. `docs/replication.md`, "Replacing a backup".

use std::collections::BTreeMap;

use super::BackupId;

/// Backups that are asked for more than the view needs: one of them may not answer.
const SPARE: usize = 2;

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
    asked: Vec<BackupId>,
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
        staying: Vec<BackupId>,
        (others, reserve): (Vec<BackupId>, Vec<BackupId>),
        wanted: usize,
        now_us: u64,
    ) -> Choice {
        let (stay, most) = (staying.len(), wanted + SPARE);
        let asked: Vec<BackupId> = staying.into_iter().chain(others).take(most.max(stay)).collect();
        let reserve = reserve.into_iter().take(most).collect();
        let (began_us, put_us, told) = (now_us, 0, BTreeMap::new());
        Choice { question, began_us, put_us, asked, staying: stay, reserve, wanted, told }
    }

    /// Who may be named if at least so many are to be.
    pub(crate) fn may_be(&self, least: usize) -> Vec<BackupId> {
        let more: &[BackupId] = if self.asked.len() < least { &self.reserve } else { &[] };
        self.asked.iter().chain(more).copied().collect()
    }

    /// A backup has said whether it takes blocks, or cannot be reached.
    pub(crate) fn told(&mut self, backup: BackupId, takes: bool) {
        self.told.insert(backup, takes);
    }

    /// What to do now. Who does not answer is asked again after `again_us`; from then on those that have answered are good enough if
    /// `least` of them have, the reserve counted. Who is in the present view is waited for until `late_us`.
    pub(crate) fn next(&mut self, now_us: u64, least: usize, (again_us, late_us): (u64, u64)) -> Next {
        let age_us = now_us.saturating_sub(self.began_us);
        let silent: Vec<BackupId> =
            self.asked.iter().chain(&self.reserve).filter(|backup| !self.told.contains_key(backup)).copied().collect();
        // A broker that stood still itself knows nothing of who was silent, nor of who is there by now.
        if self.put_us > 0 && now_us.saturating_sub(self.put_us) >= late_us {
            return Next::Late(Vec::new());
        }
        if age_us >= late_us {
            return Next::Late(silent);
        }
        let takes = |backup: &&BackupId| self.told.get(backup) == Some(&true);
        let mut there: Vec<BackupId> = self.asked.iter().filter(takes).take(self.wanted).copied().collect();
        // Whether nobody that is better may still say that it is there.
        let mut may = self.asked.iter().filter(|backup| self.told.get(backup) != Some(&false)).take(self.wanted);
        let is_best = may.all(|backup| takes(&backup)) && there.len() >= least;
        let is_over = silent.is_empty() || age_us >= again_us;
        if is_over && there.len() < least {
            let missing = least - there.len();
            there.extend(self.reserve.iter().filter(takes).take(missing));
        }
        let waits_for_staying = self.asked[..self.staying].iter().any(|backup| silent.contains(backup));
        if silent.is_empty() || (!waits_for_staying && (is_best || (is_over && there.len() >= least))) {
            return Next::Name(there);
        }
        if self.put_us > 0 && now_us.saturating_sub(self.put_us) < again_us {
            return Next::Wait;
        }
        self.put_us = now_us.max(1);
        Next::Ask(silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: (u64, u64) = (100, 500);

    fn choice(staying: &[BackupId], others: &[BackupId], wanted: usize) -> Choice {
        Choice::new(1, staying.to_vec(), (others.to_vec(), vec![8]), wanted, 1000)
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
