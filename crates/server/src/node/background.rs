//! Threads that do what nobody waits for: with low priority, until they are told to end.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::Parts;

/// Others who want the processor get about ten times as much of it. Not less for such a thread: it takes locks that writers want.
const NICE: i32 = 10;

/// Such a thread.
pub(super) struct Background {
    /// What it does, in a sentence.
    what: &'static str,
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl Background {
    /// Starts one that does `what` in `run`, which returns soon after the other end of its channel is gone.
    pub(super) fn start(
        (name, what): (&str, &'static str),
        parts: &Arc<Parts>,
        run: impl FnOnce(&Parts, &Receiver<()>) + Send + 'static,
    ) -> io::Result<Background> {
        let (stop, stopped) = sync_channel(1);
        let parts = Arc::clone(parts);
        let thread = std::thread::Builder::new().name(name.into()).stack_size(1 << 20).spawn(move || {
            if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE) {
                tracing::debug!(%error, "{what} runs at ordinary priority");
            }
            run(&parts, &stopped);
        })?;
        Ok(Background { what, stop, thread })
    }

    /// Ends it, after what it is at.
    pub(super) fn stop(self) {
        drop(self.stop);
        if self.thread.join().is_err() {
            tracing::error!("{} ended with a panic", self.what);
        }
    }
}
