//! Several ways to one end, of which any may take long: each is tried when the one before it has failed, or beside it.

use std::future::Future;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};

/// How long one way may take before the next one is tried beside it.
const HEDGE: Duration = Duration::from_millis(300);

/// What the first way comes to that does not fail; the others are dropped then. `None`: all have failed, and `failed` was told of each how, or that its task has
/// ended without saying so. To be called on a tokio runtime with time enabled.
pub async fn first_of<T: Send + 'static, E: Send + 'static>(
    mut ways: impl ExactSizeIterator<Item = impl Future<Output = Result<T, E>> + Send + 'static>,
    mut failed: impl FnMut(Result<E, JoinError>),
) -> Option<T> {
    let mut trying = JoinSet::new();
    loop {
        match ways.next() {
            Some(way) => drop(trying.spawn(way)),
            None if trying.is_empty() => return None,
            None => {}
        }
        let tried = match ways.len() {
            0 => trying.join_next().await,
            _ => tokio::time::timeout(HEDGE, trying.join_next()).await.ok().flatten(),
        };
        match tried {
            Some(Ok(Ok(done))) => return Some(done),
            Some(Ok(Err(error))) => failed(Ok(error)),
            Some(Err(ended)) => failed(Err(ended)),
            None => {}
        }
    }
}
