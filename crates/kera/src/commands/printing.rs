//! Standard output of `kera consume`, written by a thread of its own: whoever reads it may stand still for as long as they like, and the
//! command still hears signals and keeps its leases.
//!
//! What is printed is gathered and handed over in parts, of which few are under way at a time. It is out only when
//! [`flush`](Printing::flush) has returned: nothing may be committed before that.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock};
use std::thread;

use tokio::sync::{mpsc, oneshot};

use crate::error::CliError;
use crate::output::write_error;

/// Bytes after which a part is handed over.
const PART_BYTES: usize = 1 << 16;
/// Parts that are handed over and not written yet.
const PARTS_AHEAD: usize = 4;

enum Part {
    Bytes(Vec<u8>),
    /// Whoever waits until everything before is written.
    Flush(oneshot::Sender<()>),
}

/// See the module. Dropped, it leaves to the thread what was handed over; that ends with the process.
pub struct Printing {
    parts: mpsc::Sender<Part>,
    gathered: Vec<u8>,
    /// What kept the thread from writing. It has ended then.
    failed: Arc<OnceLock<CliError>>,
}

impl Printing {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is none.
    pub fn start() -> Result<Printing, CliError> {
        let (parts, taken) = mpsc::channel(PARTS_AHEAD);
        let failed = Arc::new(OnceLock::new());
        let failing = failed.clone();
        // Detached: it may be waiting for a reader when the command is over.
        thread::Builder::new()
            .name("kera-output".into())
            .spawn(move || write_parts(taken, &failing))
            .map_err(|error| CliError::failure(format!("no thread to write the output: {error}")))?;
        Ok(Printing { parts, gathered: Vec::with_capacity(PART_BYTES), failed })
    }

    /// Where to print to: what was printed and is not handed over yet.
    pub fn gathered(&mut self) -> &mut Vec<u8> {
        &mut self.gathered
    }

    /// Whether there is enough for a part: it is to be handed over before more is printed.
    pub fn is_full(&self) -> bool {
        self.gathered.len() >= PART_BYTES
    }

    /// Hands over what was printed; waits while nobody reads what was handed over before. Dropped before it is done it has done nothing.
    ///
    /// # Errors
    /// The reader is gone, or it cannot be written.
    pub async fn hand_over(&mut self) -> Result<(), CliError> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let Ok(room) = self.parts.reserve().await else { return Err(self.ended()) };
        room.send(Part::Bytes(std::mem::replace(&mut self.gathered, Vec::with_capacity(PART_BYTES))));
        Ok(())
    }

    /// Waits until everything that was printed is written.
    ///
    /// # Errors
    /// As [`hand_over`](Printing::hand_over).
    pub async fn flush(&mut self) -> Result<(), CliError> {
        self.hand_over().await?;
        let (done, is_written) = oneshot::channel();
        match self.parts.send(Part::Flush(done)).await {
            Ok(()) => is_written.await.map_err(|_| self.ended()),
            Err(_) => Err(self.ended()),
        }
    }

    /// Why the thread has ended.
    fn ended(&self) -> CliError {
        let failed = self.failed.get().cloned();
        failed.unwrap_or_else(|| CliError::failure("standard output: the thread that writes it has ended"))
    }
}

/// Writes until nothing more comes, or it cannot: whoever finds that out finds the reason, too.
fn write_parts(mut parts: mpsc::Receiver<Part>, failed: &OnceLock<CliError>) {
    let mut out = io::stdout().lock();
    while let Some(part) = parts.blocking_recv() {
        match part {
            Part::Bytes(bytes) => {
                if let Err(error) = out.write_all(&bytes).and_then(|()| out.flush()) {
                    let _ = failed.set(write_error(&error));
                    return;
                }
            }
            // It may have been dropped while it waited.
            Part::Flush(done) => drop(done.send(())),
        }
    }
}
