//! Ctrl-C: a flag that everybody who waits looks at. Whoever started something ends it on the way out, by its process id.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::BenchError;

/// Whether the user has had enough. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Nobody has asked yet.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Asks everybody to stop.
    pub fn ask(&self) {
        self.0.store(true, Relaxed);
    }

    /// An error once somebody has asked.
    pub fn check(&self) -> Result<(), BenchError> {
        if self.0.load(Relaxed) { Err(BenchError::Interrupted) } else { Ok(()) }
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
                    eprintln!("\nkera-bench: stopping what was started; once more to end at once");
                }
            });
        };
        std::thread::Builder::new().name("signals".into()).spawn(listen).map_err(failed)?;
        Ok(())
    }
}
