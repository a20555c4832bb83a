//! Signals that end a process which runs for long, and which of them are one wish.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

/// What comes within so many steps of the first signal is the same wish: `timeout` signals its child and then the group that the child is in,
/// and at a terminal Ctrl-C reaches a process and whoever stops it because of that.
const SAME_WISH_STEPS: u32 = 10;
/// A step, which is waited for. Nobody can tell when a signal has come, only when it is seen: a process that stood still in between sees both much later
/// than they came, and has seen one step go by at most.
const STEP: Duration = Duration::from_millis(100);

/// What somebody wants of a process by signals. They are listened for from when this is made, also while nobody waits for one: none is missed.
pub struct Wishes {
    signals: Vec<(SignalKind, Signal)>,
    same: Same,
}

impl Wishes {
    /// Listens for signals of these kinds; they end the process by themselves no more.
    ///
    /// # Errors
    /// They cannot be listened for.
    pub fn listen(kinds: &[SignalKind]) -> io::Result<Wishes> {
        let listen = |kind: &SignalKind| signal(*kind).map(|signal| (*kind, signal));
        let signals = kinds.iter().map(listen).collect::<io::Result<_>>()?;
        Ok(Wishes { signals, same: Same::default() })
    }

    /// The next signal that does not go with the first one, by its name. Dropped before it is there none is missed.
    pub async fn next(&mut self) -> &'static str {
        loop {
            let step = self.same.step_until;
            let passed = async {
                match step {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            let signals = &mut self.signals;
            let come = poll_fn(|context| {
                let has_come =
                    |(kind, signal): &mut (SignalKind, Signal)| signal.poll_recv(context).is_ready().then_some(*kind);
                signals.iter_mut().find_map(has_come).map_or(Poll::Pending, Poll::Ready)
            });
            tokio::select! {
                biased;
                kind = come => {
                    let name = name_of(kind);
                    if self.same.is_another_wish(Instant::now()) {
                        return name;
                    }
                    tracing::debug!(signal = name, "a signal that goes with the first one");
                }
                () = passed => self.same.step(Instant::now()),
            }
        }
    }
}

/// Whether what comes is still the first wish.
#[derive(Debug, Default)]
struct Same {
    has_come: bool,
    steps_left: u32,
    /// When the step that goes by ends, if there is one.
    step_until: Option<Instant>,
}

impl Same {
    /// A signal is there: whether it is the first, or comes later than all that goes with that.
    fn is_another_wish(&mut self, now: Instant) -> bool {
        if !self.has_come {
            *self = Same { has_come: true, steps_left: SAME_WISH_STEPS, step_until: Some(now + STEP) };
            return true;
        }
        self.step_until.is_none()
    }

    /// A step has gone by, however long it took.
    fn step(&mut self, now: Instant) {
        self.steps_left = self.steps_left.saturating_sub(1);
        self.step_until = (self.steps_left > 0).then(|| now + STEP);
    }
}

fn name_of(kind: SignalKind) -> &'static str {
    match kind {
        kind if kind == SignalKind::interrupt() => "SIGINT",
        kind if kind == SignalKind::terminate() => "SIGTERM",
        kind if kind == SignalKind::hangup() => "SIGHUP",
        _ => "signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_sent_twice_at_once_is_one() {
        let (mut same, began) = (Same::default(), Instant::now());
        assert!(same.is_another_wish(began));
        for step in 1..=SAME_WISH_STEPS {
            assert!(!same.is_another_wish(began + STEP * (step - 1)), "step {step}");
            same.step(began + STEP * step);
        }
        assert!(same.is_another_wish(began + STEP * SAME_WISH_STEPS));
        assert!(same.is_another_wish(began + Duration::from_secs(60)), "each is one by then");
    }

    /// A machine that stands still shows a minute later what has come within a millisecond.
    #[test]
    fn time_in_which_the_process_stood_still_makes_no_other_wish_of_the_second_signal() {
        let (mut same, began) = (Same::default(), Instant::now());
        assert!(same.is_another_wish(began));
        let later = began + Duration::from_secs(60);
        same.step(later);
        assert!(!same.is_another_wish(later));
    }
}
