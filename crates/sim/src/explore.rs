//! Walks through all states of a model, breadth first, so that what is found is a shortest way to it.

use std::collections::HashMap;
use std::fmt::{Debug, Display};
use std::hash::Hash;

/// Something with states, steps between them, and a property that must hold in each state.
pub trait Model {
    /// A state. Equal states are walked through once.
    type State: Clone + Eq + Hash + Debug;
    /// What leads from one state to another.
    type Step: Clone + Display;

    /// Where everything begins.
    fn start(&self) -> Self::State;
    /// Puts all that can happen in a state, and where it leads, into `next`.
    fn next(&self, state: &Self::State, next: &mut Vec<(Self::Step, Self::State)>);
    /// What must hold; the error says what does not.
    fn check(&self, state: &Self::State) -> Result<(), String>;
}

/// What a walk has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The property holds in every state that can be reached.
    Holds {
        /// States.
        states: usize,
        /// Steps between them.
        steps: usize,
    },
    /// It does not.
    Broken {
        /// What does not hold.
        why: String,
        /// The steps that lead there, from the start.
        way: Vec<String>,
    },
    /// There are more states than was allowed.
    TooMany {
        /// The states that were walked through.
        states: usize,
    },
}

/// Walks through up to `states_max` states. Takes about a hundred bytes of memory for each, and more if they are large.
pub fn explore<M: Model>(model: &M, states_max: usize) -> Outcome {
    let start = model.start();
    let mut states = vec![(start.clone(), None::<(usize, M::Step)>)];
    let mut seen = HashMap::from([(start, 0usize)]);
    let (mut at, mut steps, mut next) = (0, 0, Vec::new());
    while at < states.len() {
        let state = states[at].0.clone();
        if let Err(why) = model.check(&state) {
            return Outcome::Broken { why, way: way_to(&states, at) };
        }
        next.clear();
        model.next(&state, &mut next);
        steps += next.len();
        for (step, to) in next.drain(..) {
            if seen.contains_key(&to) {
                continue;
            }
            if states.len() == states_max {
                return Outcome::TooMany { states: states_max };
            }
            seen.insert(to.clone(), states.len());
            states.push((to, Some((at, step))));
        }
        at += 1;
    }
    Outcome::Holds { states: states.len(), steps }
}

fn way_to<S, T: Clone + Display>(states: &[(S, Option<(usize, T)>)], mut at: usize) -> Vec<String> {
    let mut way = Vec::new();
    while let Some((before, step)) = &states[at].1 {
        way.push(step.to_string());
        at = *before;
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up by one or two and must not meet `forbidden`.
    struct Counter {
        forbidden: u32,
    }

    impl Model for Counter {
        type State = u32;
        type Step = u32;

        fn start(&self) -> u32 {
            0
        }
        fn next(&self, state: &u32, next: &mut Vec<(u32, u32)>) {
            next.extend([1, 2].map(|by| (by, state + by)).into_iter().filter(|(_, to)| *to <= 10));
        }
        fn check(&self, state: &u32) -> Result<(), String> {
            if *state == self.forbidden { Err(format!("{state} is forbidden")) } else { Ok(()) }
        }
    }

    #[test]
    fn every_state_is_seen_once() {
        assert_eq!(explore(&Counter { forbidden: 99 }, 100), Outcome::Holds { states: 11, steps: 19 });
    }

    #[test]
    fn a_shortest_way_to_a_broken_state_is_told() {
        let Outcome::Broken { why, way } = explore(&Counter { forbidden: 5 }, 100) else { panic!("5 is reached") };
        assert_eq!(why, "5 is forbidden");
        assert_eq!(way.len(), 3);
    }

    #[test]
    fn a_walk_ends_at_its_limit() {
        assert_eq!(explore(&Counter { forbidden: 99 }, 5), Outcome::TooMany { states: 5 });
    }
}
