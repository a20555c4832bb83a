//! Who owns a streamlet, as a model: moves, lost nodes and their recovery, of `docs/replication.md`.
//!
//! Two nodes and a coordinator. What the other model shows is taken for granted: a fenced node may go on acknowledging until
//! recovery has decided where its logs end, and not after. Messages that are lost or late are steps that are not
//! taken or are taken later; who dies takes no more steps.

use std::fmt;

use crate::explore::Model;

const NODES: usize = 2;

/// A rule that the argument needs, left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A node lets go while what it appended is not acknowledged.
    LetGoTooEarly,
    /// A node that let go takes writes again without asking whether the move was called off.
    ResumeUnasked,
    /// An answer to an earlier move of the same streamlet counts for a later one.
    MovesWithoutNumber,
    /// A node takes writes before the coordinator has made it the owner.
    OpenUnasked,
    /// A node asks to become the owner before what it was told about the lanes is in its own log.
    AskBeforeLogged,
    /// The coordinator names another owner before the ends of the lost node's logs are decided.
    OwnerBeforeEnd,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 6] = [
        Fault::LetGoTooEarly,
        Fault::ResumeUnasked,
        Fault::MovesWithoutNumber,
        Fault::OpenUnasked,
        Fault::AskBeforeLogged,
        Fault::OwnerBeforeEnd,
    ];
}

/// The model and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Ownership {
    /// Chunks that are acknowledged at most.
    pub chunks: u8,
    /// Moves at most.
    pub moves: u8,
    /// What is left out.
    pub fault: Option<Fault>,
}

/// What a node believes of the streamlet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Role {
    /// Somebody else has it.
    None,
    /// It takes writes, as the owner of this owner epoch.
    Owner(u8),
    /// It takes no more, and waits for what it has to be acknowledged.
    LettingGo(u8),
    /// It has nothing under way.
    LetGo(u8),
}

/// A node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    role: Role,
    /// Chunks of the lane that it knows to be acknowledged.
    count: u8,
    /// One more is appended and not acknowledged.
    is_pending: bool,
    /// What recovery would find in its logs about the lane.
    logged: Option<u8>,
    /// What the owner told it on letting go, and in which move.
    told: Option<(u8, u8)>,
}

/// A move that is noted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Move {
    number: u8,
    to: usize,
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    nodes: [Node; NODES],
    /// Chunks that producers were told are there.
    acknowledged: u8,
    /// Two different chunks got the same place.
    is_forked: bool,
    // The coordinator.
    owner: usize,
    owner_epoch: u8,
    moving: Option<Move>,
    moves: u8,
    fenced: [bool; NODES],
    /// Recovery has decided: what it found about the lane.
    ended: [Option<u8>; NODES],
    /// What a new owner begins with that follows a lost node.
    recovered: Option<u8>,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// A node appends a chunk.
    Append(usize),
    /// A node acknowledges it.
    Acknowledge(usize),
    /// The coordinator notes a move to a node.
    Note(usize),
    /// The owner takes no more writes.
    StartLettingGo(usize),
    /// The owner answers that it let go.
    LetGo(usize),
    /// A node puts what it was told into its log.
    Log(usize),
    /// The coordinator makes it the owner.
    Agree(usize),
    /// It learns that and takes writes.
    Open(usize),
    /// The coordinator calls the move off.
    Cancel,
    /// The owner takes writes again.
    Resume(usize),
    /// The coordinator fences a node.
    Fence(usize),
    /// Recovery decides where its logs end.
    End(usize),
    /// The coordinator gives the streamlet of a lost node to another.
    Give(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

type Next = Vec<(Step, State)>;

impl Ownership {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn writes(&self, state: &State, at: usize, next: &mut Next) {
        let node = state.nodes[at];
        if matches!(node.role, Role::Owner(_)) && !node.is_pending && state.acknowledged < self.chunks {
            let mut to = state.clone();
            to.nodes[at].is_pending = true;
            next.push((Step::Append(at), to));
        }
        if node.role != Role::None && node.is_pending && state.ended[at].is_none() {
            let mut to = state.clone();
            let node = &mut to.nodes[at];
            (node.count, node.is_pending) = (node.count + 1, false);
            node.logged = Some(node.count);
            to.acknowledged += 1;
            to.is_forked = node.count != to.acknowledged;
            next.push((Step::Acknowledge(at), to));
        }
    }

    fn lets_go(&self, state: &State, at: usize, next: &mut Next) {
        let node = state.nodes[at];
        match node.role {
            Role::Owner(epoch) if epoch == state.owner_epoch && state.owner == at && state.moving.is_some() => {
                let mut to = state.clone();
                to.nodes[at].role = Role::LettingGo(epoch);
                next.push((Step::StartLettingGo(at), to));
            }
            Role::LettingGo(epoch) if !node.is_pending || self.is(Fault::LetGoTooEarly) => {
                // The request names the move; one that was called off since is answered too, for all the owner knows.
                let mut to = state.clone();
                to.nodes[at].role = Role::LetGo(epoch);
                to.nodes[1 - at].told = Some((state.moves, node.count));
                next.push((Step::LetGo(at), to));
            }
            Role::LettingGo(epoch) | Role::LetGo(epoch) => {
                let is_off = state.owner == at && state.owner_epoch == epoch && state.moving.is_none();
                if is_off || self.is(Fault::ResumeUnasked) {
                    let mut to = state.clone();
                    to.nodes[at].role = Role::Owner(epoch);
                    next.push((Step::Resume(at), to));
                }
            }
            _ => {}
        }
    }

    fn takes_over(&self, state: &State, at: usize, next: &mut Next) {
        let node = state.nodes[at];
        if let Some((_, count)) = node.told
            && node.logged != Some(count)
            && node.role == Role::None
        {
            let mut to = state.clone();
            to.nodes[at].logged = Some(count);
            next.push((Step::Log(at), to));
        }
        if let (Some(moving), Some((number, count))) = (state.moving, node.told) {
            let is_it = moving.to == at && (moving.number == number || self.is(Fault::MovesWithoutNumber));
            let is_logged = node.logged == Some(count) || self.is(Fault::AskBeforeLogged);
            if is_it && is_logged && !state.fenced[at] {
                let to = State {
                    owner: at,
                    owner_epoch: state.owner_epoch + 1,
                    moving: None,
                    recovered: None,
                    ..state.clone()
                };
                next.push((Step::Agree(at), to));
            }
        }
        let is_owner = state.owner == at && node.role == Role::None;
        if is_owner || (self.is(Fault::OpenUnasked) && node.role == Role::None && node.told.is_some()) {
            let count = state.recovered.or(node.told.map(|(_, count)| count));
            if let Some(count) = count {
                let mut to = state.clone();
                let logged = Some(count);
                to.nodes[at] =
                    Node { role: Role::Owner(state.owner_epoch), count, is_pending: false, logged, told: None };
                next.push((Step::Open(at), to));
            }
        }
    }

    fn coordinator(&self, state: &State, next: &mut Next) {
        let (owner, other) = (state.owner, 1 - state.owner);
        match state.moving {
            None if state.moves < self.moves && state.fenced == [false; NODES] => {
                // The node that gives up a streamlet forgets its role when it learns who has it; that is not a step here.
                let mut to = state.clone();
                to.moves += 1;
                to.moving = Some(Move { number: to.moves, to: other });
                if matches!(to.nodes[other].role, Role::LetGo(epoch) if epoch < to.owner_epoch) {
                    to.nodes[other].role = Role::None;
                }
                next.push((Step::Note(other), to));
            }
            Some(_) => next.push((Step::Cancel, State { moving: None, ..state.clone() })),
            None => {}
        }
        for at in 0..NODES {
            if !state.fenced[at] && !state.fenced[1 - at] {
                let mut to = state.clone();
                to.fenced[at] = true;
                next.push((Step::Fence(at), to));
            }
            if state.fenced[at] && state.ended[at].is_none() {
                let mut to = state.clone();
                to.ended[at] = Some(state.nodes[at].logged.unwrap_or(0));
                next.push((Step::End(at), to));
            }
        }
        let may = state.ended[owner].is_some() || self.is(Fault::OwnerBeforeEnd);
        if state.fenced[owner] && !state.fenced[other] && may {
            let found = state.ended[owner].or(state.nodes[owner].logged).unwrap_or(0);
            let mut to = State { owner: other, moving: None, recovered: Some(found), ..state.clone() };
            to.owner_epoch += 1;
            to.nodes[other].role = Role::None;
            next.push((Step::Give(other), to));
        }
    }
}

impl Model for Ownership {
    type State = State;
    type Step = Step;

    fn start(&self) -> State {
        let other = Node { role: Role::None, count: 0, is_pending: false, logged: None, told: None };
        let owner = Node { role: Role::Owner(1), logged: Some(0), ..other };
        State {
            nodes: [owner, other],
            acknowledged: 0,
            is_forked: false,
            owner: 0,
            owner_epoch: 1,
            moving: None,
            moves: 0,
            fenced: [false; NODES],
            ended: [None; NODES],
            recovered: None,
        }
    }

    fn next(&self, state: &State, next: &mut Next) {
        for at in 0..NODES {
            self.writes(state, at, next);
            self.lets_go(state, at, next);
            self.takes_over(state, at, next);
        }
        self.coordinator(state, next);
    }

    /// What one owner has acknowledged the next one knows, and never do two acknowledge side by side.
    fn check(&self, state: &State) -> Result<(), String> {
        if state.is_forked {
            return Err("two chunks that were acknowledged have the same place in the lane".to_owned());
        }
        let found = state.ended[state.owner].filter(|&found| found < state.acknowledged);
        found.map_or(Ok(()), |found| Err(format!("recovery finds {found} of {} chunks", state.acknowledged)))
    }
}
