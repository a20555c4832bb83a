//! The end of one lost log as a model: who tells it, who opens streamlets with it, when it is taken back, and when a person gives it up. `docs/replication.md`,
//! "An end that nobody can show" and "One that is gone had the end alone".
//!
//! It begins where the model of [`crate::replication`] ends: the log's broker is fenced at all backups of its newest view, and each of these has all
//! that was acknowledged and at most as many blocks more as a log has under way. A step that is not taken is a message that is lost; what is said
//! late is a step that is taken late.

use std::fmt;

use crate::explore::Model;

/// Backups of the view.
pub const BACKUPS: usize = 2;
/// Owners that take over, beside or after one another.
pub const OWNERS: usize = 2;
/// Blocks that were made.
const MADE: u8 = 3;
/// Blocks that a log has under way.
const UNDER_WAY: u8 = 2;

/// A rule that the argument needs, left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// An end is taken back that somebody has said to use.
    TakeBackUsed,
    /// An owner opens streamlets and says nothing.
    OpenUnsaid,
    /// What an owner says counts although the end is another one by now.
    SayUnchecked,
    /// When the level rises ends stay unmarked with which somebody may have opened.
    RaiseUnmarked,
    /// A backup is believed that is further behind than blocks can be under way.
    TakeBackFar,
    /// An end that was decided is never taken back: then nobody may ever show it.
    NeverTakeBack,
    /// An end counts as shown by all backups although one of them has not answered.
    BindUnshown,
    /// An end is taken back as a backup tells that has lost its power, and with it what it had not synced.
    BelieveUncertain,
    /// What a person gives up stays used.
    GiveUpNothing,
    /// Also of what a person has given up a backup is not believed that has lost its power.
    DoubtGivenUp,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 10] = [
        Fault::TakeBackUsed,
        Fault::OpenUnsaid,
        Fault::SayUnchecked,
        Fault::RaiseUnmarked,
        Fault::TakeBackFar,
        Fault::NeverTakeBack,
        Fault::BindUnshown,
        Fault::BelieveUncertain,
        Fault::GiveUpNothing,
        Fault::DoubtGivenUp,
    ];
}

/// The model.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Blocks that each backup has when the broker is fenced.
    pub has: [u8; BACKUPS],
    /// What is left out.
    pub fault: Option<Fault>,
}

/// How far an owner is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Owner {
    /// It has not asked, or begins again.
    Idle,
    /// A backup has shown it the log up to this end.
    Shown(u8),
    /// The coordinators have heard that it uses it.
    Heard(u8),
    /// It serves.
    Opened(u8),
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    has: [u8; BACKUPS],
    gone: [bool; BACKUPS],
    /// What backups have answered, however long ago.
    told: [Option<u8>; BACKUPS],
    /// A backup has lost all that it had and does not know it.
    has_lost: bool,
    /// Backups that have lost their power, and do not know what they had before.
    uncertain: [bool; BACKUPS],
    /// Coordinators: the end, the one that was decided first, whether somebody has used it or all backups have shown it, and whether it was decided
    /// below the level.
    end: Option<u8>,
    first_end: u8,
    used: bool,
    at_all: bool,
    is_raised: bool,
    decided_below: bool,
    /// Whether a person has given the end up since it was used, and ever.
    given_up: bool,
    was_given_up: bool,
    owners: [Owner; OWNERS],
    /// With which end streamlets were opened first, and whether any were opened with another one, since a person has given up what there was before.
    opened: Option<u8>,
    clash: bool,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    /// A backup tells the coordinators how far it has the log.
    Tell(usize, u8),
    /// It is away, for good or not.
    Go(usize),
    /// It is back with all that it had.
    Return(usize),
    /// It loses what it had, and does not know it.
    Lose(usize),
    /// It loses its power and the last block, and knows that there may have been more.
    Power(usize),
    /// The coordinators decide where the log ends.
    End(u8),
    /// They take that back.
    TakeBack(u8),
    /// A person gives up what those have that are away.
    GiveUp,
    /// The level rises.
    Raise,
    /// A backup shows an owner the log.
    Show(usize, u8),
    /// The coordinators hear an owner.
    Hear(usize, u8),
    /// They refuse what it says.
    Refuse(usize),
    /// An owner opens streamlets.
    Open(usize, u8),
    /// An owner is lost, and another one takes its place.
    Crash(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Tell(backup, end) => write!(f, "backup {backup} tells that it has the log to {end}"),
            Step::Go(backup) => write!(f, "backup {backup} is lost"),
            Step::Return(backup) => write!(f, "backup {backup} is back with its old disk"),
            Step::Lose(backup) => write!(f, "backup {backup} loses its blocks"),
            Step::Power(backup) => write!(f, "backup {backup} loses its power, and its last block"),
            Step::End(end) => write!(f, "the log ends at {end}"),
            Step::TakeBack(end) => write!(f, "that is taken back: it ends at {end}"),
            Step::GiveUp => write!(f, "a person gives up what those have that are away"),
            Step::Raise => write!(f, "the level rises"),
            Step::Show(owner, end) => write!(f, "owner {owner} is shown the log to {end}"),
            Step::Hear(owner, end) => write!(f, "the coordinators hear that owner {owner} opens with {end}"),
            Step::Refuse(owner) => write!(f, "the coordinators refuse what owner {owner} says"),
            Step::Open(owner, end) => write!(f, "owner {owner} opens with {end}"),
            Step::Crash(owner) => write!(f, "owner {owner} is lost"),
        }
    }
}

type Next = Vec<(Step, State)>;

impl Ends {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The last block that may have been acknowledged: at all backups.
    fn acknowledged(&self) -> u8 {
        self.has.into_iter().min().unwrap_or(0)
    }

    fn backups(&self, state: &State, next: &mut Next) {
        for at in 0..BACKUPS {
            let mut to = state.clone();
            if state.gone[at] {
                to.gone[at] = false;
                next.push((Step::Return(at), to));
                continue;
            }
            if self.counts(state, at) {
                to.told[at] = Some(state.has[at]);
                next.push((Step::Tell(at, state.has[at]), to));
            }
            if !state.uncertain[at] && state.has[at] > 0 {
                let mut to = state.clone();
                (to.has[at], to.uncertain[at]) = (state.has[at] - 1, true);
                next.push((Step::Power(at), to));
            }
            let mut to = state.clone();
            to.gone[at] = true;
            next.push((Step::Go(at), to));
            // What is lost of the last few blocks only a backup itself can know, and then it is not certain of its end.
            if state.end.is_some() && !state.has_lost && state.first_end > UNDER_WAY {
                let mut to = State { has_lost: true, ..state.clone() };
                to.has[at] = 0;
                next.push((Step::Lose(at), to));
            }
        }
    }

    /// Whether it counts what a backup tells.
    fn counts(&self, state: &State, at: usize) -> bool {
        let is_given_up = state.given_up && !self.is(Fault::DoubtGivenUp);
        !state.uncertain[at] || is_given_up || (state.end.is_some() && self.is(Fault::BelieveUncertain))
    }

    /// A person gives up what backups had of the end that are away, while others are there. Whoever has been heard has opened with it by now, or might have.
    fn give_up(&self, state: &State, next: &mut Next) {
        let is_lost = state.gone.contains(&true) && state.gone.contains(&false);
        // One that was marked when the level rose counts as one that all have shown.
        if !state.is_raised || !state.used || state.at_all || state.decided_below || !is_lost {
            return;
        }
        let owners = state.owners.map(|owner| match owner {
            Owner::Heard(end) => Owner::Opened(end),
            owner => owner,
        });
        let (opened, clash, used) = (None, false, self.is(Fault::GiveUpNothing));
        let to = State { given_up: true, was_given_up: true, owners, opened, clash, used, ..state.clone() };
        next.push((Step::GiveUp, to));
    }

    /// Whether the coordinators may take the end back to this one.
    fn may_take_back(&self, state: &State, end: u8) -> bool {
        let is_free = !state.used || self.is(Fault::TakeBackUsed);
        let is_near = end + UNDER_WAY >= state.first_end || self.is(Fault::TakeBackFar);
        state.is_raised
            && is_free
            && is_near
            && state.end.is_some_and(|now| end < now)
            && !self.is(Fault::NeverTakeBack)
    }

    fn coordinators(&self, state: &State, next: &mut Next) {
        if !state.is_raised {
            let marks = state.end.is_some() && !self.is(Fault::RaiseUnmarked);
            next.push((Step::Raise, State { is_raised: true, used: state.used || marks, ..state.clone() }));
        }
        self.give_up(state, next);
        let least = state.told.into_iter().flatten().min();
        let has_all = state.told.into_iter().all(|told| told.is_some()) || self.is(Fault::BindUnshown);
        for told in state.told.into_iter().flatten() {
            if state.end.is_none() {
                let (end, first_end, decided_below) = (Some(told), told, !state.is_raised);
                // All have it, and it is bound from the beginning.
                let at_all = state.is_raised && has_all && least == Some(told);
                let to = State { end, first_end, decided_below, at_all, used: state.used || at_all, ..state.clone() };
                next.push((Step::End(told), to));
            } else if self.may_take_back(state, told) {
                next.push((Step::TakeBack(told), State { end: Some(told), ..state.clone() }));
            }
        }
    }

    fn owner(&self, state: &State, at: usize, next: &mut Next) {
        let with = |owner: Owner| {
            let mut to = state.clone();
            to.owners[at] = owner;
            to
        };
        match state.owners[at] {
            Owner::Idle => {
                let shows = |end: u8| (0..BACKUPS).any(|backup| !state.gone[backup] && state.has[backup] >= end);
                if let Some(end) = state.end.filter(|end| shows(*end)) {
                    next.push((Step::Show(at, end), with(Owner::Shown(end))));
                }
                return;
            }
            Owner::Shown(end) => {
                // Who knows of no such level has read the end below it.
                if state.decided_below || self.is(Fault::OpenUnsaid) {
                    next.push((Step::Hear(at, end), with(Owner::Heard(end))));
                }
                if state.is_raised && (state.end == Some(end) || self.is(Fault::SayUnchecked)) {
                    next.push((Step::Hear(at, end), State { used: true, given_up: false, ..with(Owner::Heard(end)) }));
                } else if state.is_raised {
                    next.push((Step::Refuse(at), with(Owner::Idle)));
                }
            }
            Owner::Heard(end) => {
                let mut to = with(Owner::Opened(end));
                to.clash |= state.opened.is_some_and(|before| before != end);
                to.opened = state.opened.or(Some(end));
                next.push((Step::Open(at, end), to));
            }
            Owner::Opened(_) => {}
        }
        next.push((Step::Crash(at), with(Owner::Idle)));
    }
}

impl Model for Ends {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        assert!(self.has.iter().all(|has| *has <= MADE && has + UNDER_WAY >= MADE), "as a log has them");
        State {
            has: self.has,
            gone: [false; BACKUPS],
            told: [None; BACKUPS],
            has_lost: false,
            uncertain: [false; BACKUPS],
            end: None,
            first_end: 0,
            used: false,
            at_all: false,
            is_raised: false,
            decided_below: false,
            given_up: false,
            was_given_up: false,
            owners: [Owner::Idle; OWNERS],
            opened: None,
            clash: false,
        }
    }

    fn next(&self, state: &State, next: &mut Next) {
        self.backups(state, next);
        self.coordinators(state, next);
        (0..OWNERS).for_each(|at| self.owner(state, at, next));
    }

    /// All that was acknowledged is in front of the end; all who open streamlets do so with one end, and it stays; and unless somebody uses an end that
    /// not all backups have shown, one that is there and has lost nothing is enough to open with that end or with a lower one. When a person has given up an end, so
    /// is one that has lost no more than its power, and what was acknowledged is lost with that alone; who opens from then on does so with one end again.
    fn check(&self, state: &State) -> Result<(), String> {
        let Some(end) = state.end else { return Ok(()) };
        let is_accepted = state.was_given_up && state.uncertain.contains(&true) && end + UNDER_WAY >= state.first_end;
        if self.acknowledged() > end && !is_accepted {
            return Err(format!("block {} was acknowledged, and the log ends at {end}", self.acknowledged()));
        }
        if state.clash || state.opened.is_some_and(|opened| opened != end) {
            return Err(format!("streamlets were opened with {:?}, and the log ends at {end}", state.opened));
        }
        let is_sound = |at: &usize| !state.gone[*at] && state.has[*at] == self.has[*at];
        let mut sound = (0..BACKUPS).filter(is_sound);
        let tells_less = |at: usize| self.counts(state, at) && self.may_take_back(state, state.has[at]);
        let helps = |at: usize| state.has[at] >= end || tells_less(at);
        let is_near = |at: &usize| !state.gone[*at] && state.has[*at] + UNDER_WAY >= state.first_end;
        if let Some(at) = (0..BACKUPS).filter(is_near).find(|at| state.given_up && !helps(*at)) {
            return Err(format!(
                "end {end} is given up, backup {at} has block {}, and nobody can open with that",
                state.has[at]
            ));
        }
        match sound.find(|at| !helps(*at)) {
            Some(at) if state.is_raised && (!state.used || state.at_all) => {
                Err(format!("backup {at} has all that was acknowledged, and nobody can ever open with end {end}"))
            }
            _ => Ok(()),
        }
    }
}
