//! What an application has committed does not come again: it is read on in the place of its members, and nothing of what
//! they were given may be among what comes. A position that moved back would else be seen by nobody, for a record that
//! comes again is lawful as long as it is not committed.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kera_client::ClientError;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::checker::Checker;
use super::consume::{ConsumeConfig, LOOK, leave, start, take};
use super::produce::patient_client;
use crate::BenchError;

/// So long it is listened whether something comes again, once all that is there was read.
const QUIET: Duration = Duration::from_secs(2);

/// Reads to the end what the application has not committed, and commits it, or stops when `stop` is set. Waits until its
/// members are gone, for what is leased to them is given to nobody.
///
/// # Errors
/// The server cannot be asked, or all is not committed within the patience.
pub(crate) fn settle(
    config: &ConsumeConfig,
    address: &str,
    checker: &Mutex<Checker>,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    unless(stop, async {
        let message = || format!("the application has not committed everything within {:?}", config.patience);
        let done = timeout(config.patience, commit_all(config, address, checker)).await;
        done.unwrap_or_else(|_| Err(BenchError::server("reading on", message())))
    })
}

/// Reads on for a while, or until `stop` is set: all that the application was given is committed, and its members have
/// gone. What comes again is a finding.
///
/// # Errors
/// The server cannot be asked.
pub(crate) fn nothing_again(
    config: &ConsumeConfig,
    address: &str,
    checker: &Mutex<Checker>,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    checker.lock().expect_nothing_again();
    unless(stop, listen(config, address, checker))
}

fn unless(stop: &AtomicBool, work: impl Future<Output = Result<(), BenchError>>) -> Result<(), BenchError> {
    crate::runtime()?.block_on(async {
        tokio::select! {
            done = work => done,
            () = super::until_set(stop) => Ok(()),
        }
    })
}

async fn commit_all(config: &ConsumeConfig, address: &str, checker: &Mutex<Checker>) -> Result<(), BenchError> {
    let failed = |error: ClientError| BenchError::server("reading on", error);
    let (client, name) = (patient_client(address).await?, config.application.as_deref().unwrap_or_default());
    let stream = client.admin().stream(config.stream.as_str()).await.map_err(failed)?.id;
    loop {
        while !client.admin().application(stream, name).await.is_ok_and(|told| told.members.is_empty()) {
            sleep(LOOK).await;
        }
        let mut consumer = start(config, &client, 0, true).await?;
        while let Some(batch) = consumer.next_batch().await.map_err(failed)? {
            take(&mut checker.lock(), &batch);
        }
        // What a lease was lost of is read once more.
        if leave(consumer).await? {
            return Ok(());
        }
    }
}

/// To the end of what is there, however long a busy machine takes until it has given out anything; and then for a while.
async fn listen(config: &ConsumeConfig, address: &str, checker: &Mutex<Checker>) -> Result<(), BenchError> {
    let client = patient_client(address).await?;
    for (until_end, listened) in [(true, config.patience), (false, QUIET)] {
        let mut consumer = start(config, &client, 0, until_end).await?;
        let until = Instant::now() + listened;
        loop {
            match timeout_at(until, consumer.next_batch()).await {
                // What it has lost a lease of comes to it again, and by right.
                Ok(Ok(Some(batch))) if consumer.stats().lost == 0 => take(&mut checker.lock(), &batch),
                Ok(Ok(_)) | Err(_) => break,
                Ok(Err(error)) => return Err(BenchError::server("reading on", error)),
            }
        }
        leave(consumer).await?;
    }
    Ok(())
}
