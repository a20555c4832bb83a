//! A full disk is no reason to end. `openraft` gives a node up for good when its log cannot be written, and the node would live on as a
//! coordinator that neither votes nor learns anything. So what finds no room waits until there is some: the node is slow then, as if its
//! disk were, and others lead. The same holds where the process may open no more files or gets no memory, which clients can bring about and whose end passes.
//! Of all other errors `openraft` is told, and the node's part ends with them: [`Group::ended`](crate::Group::ended).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kera_env::is_out_of_means;

/// Time until it is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// Time between two lines of the log.
const SAY: Duration = Duration::from_secs(10);

/// Writes, again and again while there is no room, until `closing` says that the node stops. What is written must not have happened when
/// it fails. Blocks.
pub(crate) fn when_there_is_room<T>(
    what: &str,
    closing: &AtomicBool,
    mut write: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let mut said: Option<Instant> = None;
    loop {
        match write() {
            Err(error) if has_no_room(&error) && !closing.load(Ordering::Acquire) => {
                if said.is_none_or(|said| said.elapsed() > SAY) {
                    match is_full(&error) {
                        true => tracing::error!(%error, "{what} cannot be written until there is room on the disk"),
                        false => {
                            tracing::error!(%error, "{what} cannot be written until files can be opened and there is memory")
                        }
                    }
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

/// Whether it may go well later, with nobody doing anything to the disk but making room.
pub(crate) fn has_no_room(error: &io::Error) -> bool {
    is_full(error) || is_out_of_means(error)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
