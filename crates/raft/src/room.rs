//! A full disk is no reason to end. `openraft` gives a node up for good when its log cannot be written, and the node would live on as a
//! coordinator that neither votes nor learns anything. So what finds no room waits until there is some: the node is slow then, as if its
//! disk were, and others lead. Of all other errors `openraft` is told, and the node's part ends with them: [`Group::ended`](crate::Group::ended).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time until it is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Time between two lines of the log.
const SAY: Duration = Duration::from_secs(10);

/// Writes, again and again while the disk is full, until `closing` says that the node stops. What is written must not have happened when
/// it fails. Blocks.
pub(crate) fn when_there_is_room<T>(
    what: &str,
    closing: &AtomicBool,
    mut write: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut said: Option<Instant> = None;
    loop {
        match write() {
            Err(error) if is_full(&error) && !closing.load(Ordering::Acquire) => {
                if said.is_none_or(|said| said.elapsed() > SAY) {
                    tracing::error!(%error, "{what} cannot be written until there is room on the disk");
                    said = Some(Instant::now());
                }
                std::thread::sleep(RETRY);
            }
            written => {
                if said.is_some() && written.is_ok() {
                    tracing::info!("{what} is written again");
                }
                return written;
            }
        }
    }
}

pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
