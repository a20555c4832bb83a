//! Signals that end a command which runs for long.

use std::future::poll_fn;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CliError;

/// Signals that are listened for from when this is made until it is dropped, also while nobody waits for one: none is missed.
pub struct Signals(Vec<Signal>);

impl Signals {
    /// Listens for signals of these kinds; they end the process by themselves no more.
    ///
    /// # Errors
    /// They cannot be listened for.
    pub fn listen(kinds: &[SignalKind]) -> Result<Signals, CliError> {
        let listen = |kind: &SignalKind| signal(*kind);
        let signals = kinds.iter().map(listen).collect::<Result<_, _>>();
        let signals = signals.map_err(|error| CliError::failure(format!("signals cannot be waited for: {error}")))?;
        Ok(Signals(signals))
    }

    /// The next one. Dropped before it is there none is missed.
    pub async fn next(&mut self) {
        poll_fn(|context| {
            let has_come = self.0.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if has_come { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}
