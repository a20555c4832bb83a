//! Ctrl-C, and the time that a measurement may take: a flag that everybody who waits looks at. Whoever started something ends it on the
//! way out, by its process id.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::BenchError;

/// Whether the user has had enough, or it has taken too long. Clones share the first.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    /// Until when, and how long that was.
    until: Option<(Instant, Duration)>,
}

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks everybody to stop.
    pub fn ask(&self) {
        self.asked.store(true, Relaxed);
    }

    /// The same, which also ends what takes longer from now on.
    pub fn within(&self, longest: Duration) -> Stop {
        Stop { asked: self.asked.clone(), until: Some((Instant::now() + longest, longest)) }
    }

    /// The same with its time from now on: for what follows a start that is not to count.
    pub fn anew(&self) -> Stop {
        Stop { asked: self.asked.clone(), until: self.until.map(|(_, longest)| (Instant::now() + longest, longest)) }
    }

    /// Whether somebody has asked.
    pub fn asked(&self) -> &AtomicBool {
        &self.asked
    }

    /// Sleeps, but not when somebody has asked.
    pub fn sleep(&self, time: Duration) -> Result<(), BenchError> {
        const STEP: Duration = Duration::from_millis(50);
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(STEP));
        }
    }

    /// An error once somebody has asked ([`BenchError::Interrupted`]), or when it has taken too long.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.asked.load(Relaxed) {
            return Err(BenchError::Interrupted);
        }
        match self.until {
            Some((until, longest)) if Instant::now() >= until => {
                let message = format!("it took longer than {:.0} s and was ended", longest.as_secs_f64());
                Err(BenchError::server("a measurement", message))
            }
            _ => Ok(()),
        }
    }

    /// Asks when this process gets SIGINT or SIGTERM, from a thread of its own. A second one ends the process at once.
    pub fn on_signals(&self) -> Result<(), BenchError> {
        use tokio::signal::unix::{SignalKind, signal};
        let failed = |e| BenchError::io("listening for signals", e);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
        let (mut interrupt, mut terminate) = {
            let _inside = runtime.enter();
            (signal(SignalKind::interrupt()).map_err(failed)?, signal(SignalKind::terminate()).map_err(failed)?)
        };
        let stop = self.clone();
        let listen = move || {
            runtime.block_on(async {
                for asked in 0.. {
                    tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
                    if asked > 0 {
                        std::process::exit(130);
                    }
                    stop.ask();
                    // Who hears it may be gone, and `eprintln!` would end this process with what it has started.
                    let _ = writeln!(std::io::stderr(), "\nstopping what was started; once more to end at once");
                }
            });
        };
        std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_fails_and_who_has_had_enough_interrupts() {
        let stop = Stop::new();
        assert!(stop.within(Duration::from_secs(3600)).check().is_ok());
        let late = stop.within(Duration::ZERO).check().unwrap_err().to_string();
        assert!(late.contains("longer than 0 s"), "{late}");
        assert!(stop.check().is_ok(), "only what was to be over by then is");
        let limited = stop.within(Duration::ZERO);
        assert!(limited.anew().check().is_err() && stop.anew().check().is_ok());
        stop.ask();
        assert!(matches!(limited.check(), Err(BenchError::Interrupted)));
    }
}
