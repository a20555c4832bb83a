//! Connections that several share. One of those who want one makes it, the others wait for what that comes to.
//!
//! Called by producers, consumers and short calls, on whichever runtime they run.

use std::sync::atomic::{AtomicU64, Ordering};

use kera_rpc::RpcError;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};

/// What is shared, locked while more of it is made.
#[derive(Debug, Default)]
pub(crate) struct InTurn<T> {
    /// How many tries to make it have failed. Written while the state is locked.
    failures: AtomicU64,
    state: Mutex<State<T>>,
}

#[derive(Debug, Default)]
struct State<T> {
    shared: T,
    /// How the last try failed, if it did.
    failed: Option<RpcError>,
}

impl<T> InTurn<T> {
    /// What is there as `find` sees it, or else what `make` makes and `keep` puts there.
    ///
    /// A try that fails while others wait has failed for them too: if each of them tried anew when it has its turn, the last of many would wait
    /// for as many times as long as one may take. Who is dropped while it makes something leaves that to the next one.
    pub(crate) async fn get<C>(
        &self,
        find: impl FnOnce(&mut T) -> Option<C>,
        make: impl Future<Output = Result<C, RpcError>>,
        keep: impl FnOnce(&mut T, &C),
    ) -> Result<C, RpcError> {
        let failures = self.failures.load(Ordering::SeqCst);
        let mut state = self.state.lock().await;
        if let Some(found) = find(&mut state.shared) {
            return Ok(found);
        }
        if self.failures.load(Ordering::SeqCst) > failures
            && let Some(error) = &state.failed
        {
            return Err(error.clone());
        }
        let made = make.await;
        match &made {
            Ok(made) => {
                keep(&mut state.shared, made);
                state.failed = None;
            }
            Err(error) => {
                state.failed = Some(error.clone());
                self.failures.fetch_add(1, Ordering::SeqCst);
            }
        }
        made
    }

    /// What is there, once nobody makes more of it.
    pub(crate) async fn lock(&self) -> MappedMutexGuard<'_, T> {
        MutexGuard::map(self.state.lock().await, |state| &mut state.shared)
    }

    /// What is there, unless somebody makes more of it.
    pub(crate) fn try_lock(&self) -> Option<MappedMutexGuard<'_, T>> {
        self.state.try_lock().ok().map(|state| MutexGuard::map(state, |state| &mut state.shared))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::sync::Notify;

    use super::*;

    const WAITING: u64 = 20;

    /// What many want at one time, and how often it is tried.
    #[derive(Default)]
    struct Wanted {
        shared: InTurn<Option<u32>>,
        asked: AtomicU64,
        tries: AtomicU64,
        go: Notify,
    }

    impl Wanted {
        async fn get(self: Arc<Self>, works: bool) -> Option<u32> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let make = async {
                self.tries.fetch_add(1, Ordering::SeqCst);
                self.go.notified().await;
                let failed = || RpcError::Connect { address: "host:1".into(), reason: "it is gone".into() };
                works.then_some(7).ok_or_else(failed)
            };
            self.shared.get(|shared| *shared, make, |shared, made| *shared = Some(*made)).await.ok()
        }
    }

    #[test]
    fn those_who_wait_take_what_one_try_comes_to() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let wanted = Arc::new(Wanted::default());
            for (round, works) in [(1, false), (2, true)] {
                let waiting: Vec<_> = (0..WAITING).map(|_| tokio::spawn(Arc::clone(&wanted).get(works))).collect();
                while wanted.asked.load(Ordering::SeqCst) < round * WAITING {
                    tokio::task::yield_now().await;
                }
                wanted.go.notify_one();
                for one in waiting {
                    let got = tokio::time::timeout(Duration::from_secs(60), one).await.expect("it tries anew");
                    assert_eq!(got.unwrap(), works.then_some(7));
                }
                assert_eq!(wanted.tries.load(Ordering::SeqCst), round, "one try for all of them");
            }
        });
    }
}
