//! The core of `docs/replication.md` as a model: one virtual log of one broker, its backups, views, the fence and the end
//! that recovery decides on.
//!
//! What is not in it needs no place of its own. A message that is lost, late, doubled or overtaken: a step that is not taken,
//! is taken later or again; blocks that were sent can be delivered at any time after. A crash of the broker or of a
//! backup: none of its steps is taken any more. A backup keeps what it has stored, so "every backup of the view has
//! answered" can be looked up in the backups themselves at the moment of the acknowledgement: an answer that came
//! later than it left is an acknowledgement that happens later.

use std::fmt;

use crate::explore::Model;

/// Backups there are.
pub const BACKUPS: usize = 3;
/// Most blocks: numbers from 1.
pub const BLOCKS_MAX: usize = 6;
/// Most views.
pub const VIEWS_MAX: usize = 4;

/// A rule that the argument needs, left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A block is acknowledged when all but one backup of the view have it.
    AcknowledgeWithoutTheLast,
    /// The broker goes on acknowledging after it has asked for another view.
    AcknowledgeDuringChange,
    /// The next view begins behind what was written, not behind what was acknowledged.
    ViewBeginsTooLate,
    /// The broker uses the next view before the coordinator has agreed.
    UseViewUnasked,
    /// The coordinator agrees to a view of a broker that it has fenced.
    ViewAfterFence,
    /// A backup takes blocks again after it has fenced.
    ForgetFence,
    /// A backup tells how far it has the log, and goes on taking blocks.
    TellEndUnfenced,
    /// A backup takes a block although it has not the one before.
    TakeBehindHole,
    /// Recovery asks backups of the view before the newest.
    AskOldView,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 9] = [
        Fault::AcknowledgeWithoutTheLast,
        Fault::AcknowledgeDuringChange,
        Fault::ViewBeginsTooLate,
        Fault::UseViewUnasked,
        Fault::ViewAfterFence,
        Fault::ForgetFence,
        Fault::TellEndUnfenced,
        Fault::TakeBehindHole,
        Fault::AskOldView,
    ];
}

/// The model and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Replication {
    /// Blocks that the broker makes at most.
    pub blocks: u8,
    /// Views that the log has at most.
    pub views: usize,
    /// Backups of a view.
    pub copies: u32,
    /// What is left out.
    pub fault: Option<Fault>,
}

/// A set of backups, one bit each.
type Backups = u8;

/// Which backups hold the log from which block on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct View {
    first: u8,
    backups: Backups,
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// Broker: blocks that it made, and that it acknowledged.
    made: u8,
    acknowledged: u8,
    /// Broker: the view that it uses, and the one that it has asked for.
    used: View,
    used_number: u8,
    asked: Option<View>,
    /// Network: up to which block blocks were sent in each view, and to whom.
    sent: [(View, u8); VIEWS_MAX],
    /// Backups: the blocks that each has, one bit each, and whether it has fenced.
    blocks: [u8; BACKUPS],
    fenced: Backups,
    /// Network: what each backup answered to the fence.
    ends: [Option<u8>; BACKUPS],
    /// Coordinator.
    views: [View; VIEWS_MAX],
    views_len: u8,
    broker_is_fenced: bool,
    end: Option<u8>,
}

impl State {
    fn newest(&self) -> View {
        self.views[self.views_len as usize - 1]
    }

    fn has(&self, backup: usize, block: u8) -> bool {
        self.blocks[backup] & 1 << block != 0
    }

    /// Up to which block a backup has the log from `first` on, without a hole.
    fn through(&self, backup: usize, first: u8) -> u8 {
        (first..)
            .take_while(|&block| usize::from(block) <= BLOCKS_MAX && self.has(backup, block))
            .last()
            .unwrap_or(first - 1)
    }
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    /// The broker makes a block and sends it.
    Make(u8),
    /// A backup stores a block.
    Store(usize, u8),
    /// The broker acknowledges a block.
    Acknowledge(u8),
    /// The broker asks for another view.
    Ask(View),
    /// The coordinator agrees.
    Agree(View),
    /// The broker learns it.
    Use(View),
    /// The coordinator fences the broker.
    FenceBroker,
    /// A backup fences, and tells how far it has the log.
    Fence(usize, u8),
    /// A backup tells how far it has the log.
    Tell(usize, u8),
    /// A backup forgets its fence.
    Forget(usize),
    /// The coordinator decides where the log ends.
    End(u8),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Make(block) => write!(f, "the broker makes block {block}"),
            Step::Store(backup, block) => write!(f, "backup {backup} stores block {block}"),
            Step::Acknowledge(block) => write!(f, "the broker acknowledges block {block}"),
            Step::Ask(view) => write!(f, "the broker asks for backups {:03b} from {} on", view.backups, view.first),
            Step::Agree(view) => write!(f, "the coordinator agrees to {:03b} from {} on", view.backups, view.first),
            Step::Use(view) => write!(f, "the broker uses {:03b} from {} on", view.backups, view.first),
            Step::FenceBroker => write!(f, "the coordinator fences the broker"),
            Step::Fence(backup, end) => write!(f, "backup {backup} fences and has the log to {end}"),
            Step::Tell(backup, end) => write!(f, "backup {backup} tells that it has the log to {end}"),
            Step::Forget(backup) => write!(f, "backup {backup} forgets its fence"),
            Step::End(end) => write!(f, "the log ends at {end}"),
        }
    }
}

fn members(backups: Backups) -> impl Iterator<Item = usize> {
    (0..BACKUPS).filter(move |backup| backups & 1 << backup != 0)
}

type Next = Vec<(Step, State)>;

impl Replication {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Up to which block a backup says that it has the log from `first` on. If it takes blocks behind holes it only knows
    /// the last one that it has.
    fn told(&self, state: &State, backup: usize, first: u8) -> u8 {
        if self.is(Fault::TakeBehindHole) {
            return (first..=BLOCKS_MAX as u8).rfind(|&block| state.has(backup, block)).unwrap_or(first - 1);
        }
        state.through(backup, first)
    }

    fn broker_writes(&self, state: &State, next: &mut Next) {
        if state.made < self.blocks {
            let mut to = state.clone();
            to.made += 1;
            to.sent[usize::from(to.used_number)] = (to.used, to.made);
            next.push((Step::Make(to.made), to));
        }
        let block = state.acknowledged + 1;
        let missing = members(state.used.backups).filter(|&b| self.told(state, b, state.used.first) < block).count();
        let allowed = usize::from(self.is(Fault::AcknowledgeWithoutTheLast));
        let may = state.asked.is_none() || self.is(Fault::AcknowledgeDuringChange);
        if may && block <= state.made && missing <= allowed {
            let mut to = state.clone();
            to.acknowledged = block;
            next.push((Step::Acknowledge(block), to));
        }
    }

    fn broker_changes_view(&self, state: &State, next: &mut Next) {
        let number = usize::from(state.used_number) + 1;
        let Some(asked) = state.asked else {
            let first = 1 + if self.is(Fault::ViewBeginsTooLate) { state.made } else { state.acknowledged };
            let others =
                (1..1 << BACKUPS).filter(|set: &Backups| set.count_ones() == self.copies && *set != state.used.backups);
            for backups in others.filter(|_| number < self.views) {
                let view = View { first, backups };
                next.push((Step::Ask(view), State { asked: Some(view), ..state.clone() }));
            }
            return;
        };
        let is_newest = usize::from(state.views_len) == number;
        if is_newest && (!state.broker_is_fenced || self.is(Fault::ViewAfterFence)) {
            let mut to = state.clone();
            to.views[number] = asked;
            to.views_len += 1;
            next.push((Step::Agree(asked), to));
        }
        if usize::from(state.views_len) > number || self.is(Fault::UseViewUnasked) {
            let mut to = State { asked: None, used: asked, used_number: number as u8, ..state.clone() };
            to.sent[number] = (asked, to.made);
            next.push((Step::Use(asked), to));
        }
    }

    fn backups_store(&self, state: &State, next: &mut Next) {
        for (view, through) in state.sent {
            for backup in members(view.backups & !state.fenced) {
                for block in view.first..=through {
                    let follows = block == view.first || state.has(backup, block - 1) || self.is(Fault::TakeBehindHole);
                    if follows && !state.has(backup, block) {
                        let mut to = state.clone();
                        to.blocks[backup] |= 1 << block;
                        next.push((Step::Store(backup, block), to));
                    }
                }
            }
        }
    }

    fn recovery(&self, state: &State, next: &mut Next) {
        if !state.broker_is_fenced {
            next.push((Step::FenceBroker, State { broker_is_fenced: true, ..state.clone() }));
            return;
        }
        let asked = match state.views_len {
            2.. if self.is(Fault::AskOldView) => state.views[usize::from(state.views_len) - 2],
            _ => state.newest(),
        };
        for backup in members(asked.backups).filter(|&backup| state.ends[backup].is_none()) {
            let mut to = state.clone();
            let end = self.told(state, backup, asked.first);
            to.ends[backup] = Some(end);
            if self.is(Fault::TellEndUnfenced) {
                next.push((Step::Tell(backup, end), to));
            } else {
                to.fenced |= 1 << backup;
                next.push((Step::Fence(backup, end), to));
            }
        }
        if self.is(Fault::ForgetFence) {
            for backup in members(state.fenced) {
                next.push((Step::Forget(backup), State { fenced: state.fenced & !(1 << backup), ..state.clone() }));
            }
        }
        if state.end.is_none() {
            for end in state.ends.iter().flatten() {
                next.push((Step::End(*end), State { end: Some(*end), ..state.clone() }));
            }
        }
    }

    /// Whether block `block`, acknowledged, is at every backup that recovery may take it from.
    fn check_copies(&self, state: &State, block: u8) -> Result<(), String> {
        let views = &state.views[..usize::from(state.views_len)];
        let view = views.iter().rfind(|view| view.first <= block).ok_or("no view has the block")?;
        match members(view.backups).find(|&backup| !state.has(backup, block)) {
            Some(backup) => Err(format!("block {block} is acknowledged, and backup {backup} of its view has it not")),
            None => Ok(()),
        }
    }
}

impl Model for Replication {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        assert!(usize::from(self.blocks) <= BLOCKS_MAX && self.views <= VIEWS_MAX, "within the bounds of the model");
        let view = View { first: 1, backups: (1 << self.copies) - 1 };
        let mut state = State {
            made: 0,
            acknowledged: 0,
            used: view,
            used_number: 0,
            asked: None,
            sent: Default::default(),
            blocks: [0; BACKUPS],
            fenced: 0,
            ends: [None; BACKUPS],
            views: Default::default(),
            views_len: 1,
            broker_is_fenced: false,
            end: None,
        };
        state.views[0] = view;
        state
    }

    fn next(&self, state: &State, next: &mut Next) {
        self.broker_writes(state, next);
        self.broker_changes_view(state, next);
        self.backups_store(state, next);
        self.recovery(state, next);
    }

    /// With all but one backup of each view lost, recovery still finds what was acknowledged, and once it has decided on an
    /// end nothing behind it is acknowledged.
    fn check(&self, state: &State) -> Result<(), String> {
        let Some(end) = state.end else {
            // Before that only older views count: of the newest one, the end decides.
            return (1..=state.acknowledged.min(state.newest().first - 1))
                .try_for_each(|b| self.check_copies(state, b));
        };
        if state.acknowledged > end {
            return Err(format!("block {} is acknowledged, and the log ends at {end}", state.acknowledged));
        }
        (1..=state.acknowledged).try_for_each(|block| self.check_copies(state, block))
    }
}
