//! The threads around the store's steps. They do nothing but step, wait, and end when told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::StoreError;
use super::core::Core;
use super::host::Host;
use super::signal::{Signal, Step};

/// The running threads. Dropping it, like [`stop`](StoreThreads::stop), ends and joins them.
pub struct StoreThreads {
    stop: Arc<AtomicBool>,
    wake: Box<dyn Fn() + Send + Sync>,
    threads: Vec<JoinHandle<()>>,
}

impl StoreThreads {
    /// Ends the threads after what they are doing now, and waits for them. What is dirty stays dirty; see
    /// [`super::DiskStore::flush_all`].
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A thread may be about to wait: it is woken until it has ended.
            (self.wake)();
            let _ = thread.join();
        }
    }
}

impl Drop for StoreThreads {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn start<H: Host>(core: &Arc<Core<H>>) -> Result<StoreThreads, StoreError> {
    let waking = Arc::clone(core);
    let wake = Box::new(move || {
        waking.keeper.signal.notify();
        for part in &waking.disks {
            part.write_signal.notify();
            part.load_signal.notify();
        }
    });
    let mut threads = StoreThreads { stop: Arc::default(), wake, threads: Vec::new() };
    threads.spawn(core, "kera-keep".to_owned(), |core| &core.keeper.signal, Core::step_keep)?;
    for disk in 0..core.disks.len() {
        let write = format!("kera-write-{disk}");
        threads.spawn(core, write, move |core| &core.disks[disk].write_signal, move |core| core.step_write(disk))?;
        for loader in 0..core.config.loaders_per_disk {
            let load = format!("kera-load-{disk}-{loader}");
            threads.spawn(core, load, move |core| &core.disks[disk].load_signal, move |core| core.step_load(disk))?;
        }
    }
    Ok(threads)
}

impl StoreThreads {
    fn spawn<H: Host>(
        &mut self,
        core: &Arc<Core<H>>,
        name: String,
        signal: impl Fn(&Core<H>) -> &Signal + Send + 'static,
        step: impl Fn(&Core<H>) -> Step + Send + 'static,
    ) -> Result<(), StoreError> {
        let (core, stop) = (Arc::clone(core), Arc::clone(&self.stop));
        let run = move || {
            while !stop.load(Ordering::Acquire) {
                match step(&core) {
                    Step::Again => {}
                    Step::Until(at_us) => {
                        let wait = Duration::from_micros(at_us.saturating_sub(core.now_us()));
                        signal(&core).wait(Some(wait));
                    }
                    Step::Idle => signal(&core).wait(None),
                }
            }
        };
        // A thread that was started before one that fails ends when `self` is dropped.
        self.threads.push(Builder::new().name(name).spawn(run).map_err(StoreError::Thread)?);
        Ok(())
    }
}
