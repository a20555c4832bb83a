//! Whether the node serves, and if not, why: what `/readyz` answers. Written by the starting and stopping thread and by
//! maintenance, read by HTTP and `kera status`.

use parking_lot::Mutex;

/// Where the node is between its start and its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It starts; what it does right now.
    Starting(&'static str),
    /// It serves.
    Serving,
    /// It stops.
    Draining,
}

/// The phase, and what goes wrong while it serves.
#[derive(Debug)]
pub struct Readiness {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    problems: Vec<String>,
}

impl Default for Readiness {
    fn default() -> Readiness {
        let state = State { phase: Phase::Starting("reading the configuration"), problems: Vec::new() };
        Readiness { state: Mutex::new(state) }
    }
}

impl Readiness {
    /// The node is in another phase.
    pub fn enter(&self, phase: Phase) {
        self.state.lock().phase = phase;
    }

    /// What goes wrong now, a sentence each; replaces what was said before.
    pub fn set_problems(&self, problems: Vec<String>) {
        self.state.lock().problems = problems;
    }

    /// What goes wrong now.
    pub fn problems(&self) -> Vec<String> {
        self.state.lock().problems.clone()
    }

    /// Why the node should get no new clients; `None` if it should.
    pub fn not_ready(&self) -> Option<String> {
        let state = self.state.lock();
        match &state.phase {
            Phase::Starting(step) => Some(format!("starting: {step}")),
            Phase::Draining => Some("stopping: connections are being drained".into()),
            Phase::Serving if state.problems.is_empty() => None,
            Phase::Serving => Some(state.problems.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_only_while_it_serves_without_problems() {
        let readiness = Readiness::default();
        assert!(readiness.not_ready().unwrap().starts_with("starting: "));
        readiness.enter(Phase::Serving);
        assert_eq!(readiness.not_ready(), None);
        readiness.set_problems(vec!["the disk is full".into()]);
        assert_eq!(readiness.not_ready().as_deref(), Some("the disk is full"));
        readiness.set_problems(Vec::new());
        readiness.enter(Phase::Draining);
        assert!(readiness.not_ready().unwrap().starts_with("stopping"));
    }
}
