//! Signals that end a command which runs for long.

use kera_server::Wishes;
use tokio::signal::unix::SignalKind;

use crate::error::CliError;

/// Listens for Ctrl-C, SIGTERM and signals of these kinds; they end the process by themselves no more.
///
/// # Errors
/// They cannot be listened for.
pub fn listen(others: &[SignalKind]) -> Result<Wishes, CliError> {
    let kinds = [&[SignalKind::interrupt(), SignalKind::terminate()][..], others].concat();
    Wishes::listen(&kinds).map_err(|error| CliError::failure(format!("signals cannot be waited for: {error}")))
}
