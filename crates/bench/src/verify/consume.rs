//! The reading half of the verifier: everything that consumers are given goes to the [`Checker`].

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kera_client::{Batch, Client, ClientError, CommitMode, Consumer};
use kera_format::Order;
use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::acklog::{self, Acked};
use super::again::{nothing_again, settle};
use super::checker::{Checker, Place, Verdict};
use super::produce::{SECONDS_MAX, THREADS_MAX, patient_client, whole_seconds};
use crate::BenchError;

/// How often a reader without data looks whether it is to end.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// How long a reader may take to say good-bye.
const CLOSE: Duration = Duration::from_secs(30);

/// How the stream is read.
#[derive(Clone, Debug)]
pub struct ConsumeConfig {
    /// The stream.
    pub stream: String,
    /// The log of acknowledgements that producers wrote.
    pub log: PathBuf,
    /// Read as this application, which commits; `None` reads everything from the first record on.
    pub application: Option<String>,
    /// Members of the application, each on a thread of its own. Without an application one reads everything.
    pub consumers: u32,
    /// An application that gets nothing at all for this long while records are missing is done: they are lost.
    pub patience: Duration,
    /// How often, on average, a member goes away without a word: its leases have to run out. `None`: never.
    pub crash_every: Option<Duration>,
    /// Decides when members go away.
    pub seed: u64,
}

impl Default for ConsumeConfig {
    fn default() -> Self {
        ConsumeConfig {
            stream: "verify".into(),
            log: "kera-verify.acks".into(),
            application: None,
            consumers: 1,
            patience: Duration::from_secs(60),
            crash_every: None,
            seed: 1,
        }
    }
}

impl ConsumeConfig {
    /// Refuses what cannot work, before anything is asked of a server.
    pub fn check(&self) -> Result<(), BenchError> {
        let ranges = [
            ("consumers", u64::from(self.consumers), THREADS_MAX.into()),
            ("patience-seconds", whole_seconds(self.patience), SECONDS_MAX),
            ("crash-every-seconds", self.crash_every.map_or(1, whole_seconds), SECONDS_MAX),
        ];
        match ranges.into_iter().find(|(_, value, most)| !(1..=*most).contains(value)) {
            Some((flag, value, most)) => {
                Err(BenchError::setting(flag, format!("{value} is out of range; give 1 to {most}")))
            }
            None => Ok(()),
        }
    }
}

/// Reads what is in the stream and compares it with the log of acknowledgements.
///
/// A free reader ends where the stream ends; an application ends when it has had everything that was acknowledged, or
/// nothing for a while. One that has had everything, and whose members all go in good order, is read on as for another
/// two seconds: what it has committed must not come again. Must not be called from within an async runtime.
pub fn consume(config: &ConsumeConfig, address: &str) -> Result<Verdict, BenchError> {
    consume_with(config, address, || ())
}

/// The same, and calls `between` when the members of an application have gone, before it is read on.
pub fn consume_with(config: &ConsumeConfig, address: &str, between: impl FnOnce()) -> Result<Verdict, BenchError> {
    config.check()?;
    let acked = acklog::read(&config.log)?;
    acked.check(&config.log, &config.stream)?;
    compare(config, &acked, address, &AtomicBool::new(false), between)
}

/// The same, also with a log that says nothing; it ends early when `stop` is set, and then it has not seen everything.
pub(crate) fn consume_until(config: &ConsumeConfig, address: &str, stop: &AtomicBool) -> Result<Verdict, BenchError> {
    config.check()?;
    compare(config, &acklog::read(&config.log)?, address, stop, || ())
}

fn compare(
    config: &ConsumeConfig,
    acked: &Acked,
    address: &str,
    stop: &AtomicBool,
    between: impl FnOnce(),
) -> Result<Verdict, BenchError> {
    let ordered = config.application.is_none() || order_of(config, address)? == Order::Lane;
    let checker = Mutex::new(Checker::new(ordered));
    let is_committed = std::thread::scope(|scope| {
        let reading = scope.spawn(|| collect(config, address, &checker, stop));
        let mut last = (Progress::default(), Instant::now());
        while config.application.is_some() && !reading.is_finished() {
            let progress = Progress::of(&mut checker.lock(), acked);
            if progress != last.0 {
                last = (progress, Instant::now());
            }
            if progress.outstanding == 0 || last.1.elapsed() > config.patience {
                stop.store(true, Relaxed);
            }
            std::thread::sleep(LOOK);
        }
        reading.join().unwrap_or(Err(BenchError::Thread { what: "a verifying consumer" }))
    })?;
    // Leases of members that went without a word are theirs for a while, and nobody is given anything of them.
    let all_went = config.application.is_some() && config.crash_every.is_none();
    if all_went && checker.lock().outstanding(acked) == 0 {
        let never = AtomicBool::new(false);
        if !is_committed {
            settle(config, address, &checker, &never)?;
        }
        between();
        nothing_again(config, address, &checker, &never)?;
    }
    Ok(checker.into_inner().finish(acked))
}

/// How far an application is. What is missing may stand behind much that was not acknowledged, that others wrote or that comes again: as long as
/// anything comes it is not lost, only not read yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Progress {
    /// Acknowledged records that have not come yet.
    outstanding: u64,
    /// Records that came, whatever they are.
    delivered: u64,
}

impl Progress {
    fn of(checker: &mut Checker, acked: &Acked) -> Progress {
        Progress { outstanding: checker.outstanding(acked), delivered: checker.delivered() }
    }
}

/// The order that the stream promises to applications.
fn order_of(config: &ConsumeConfig, address: &str) -> Result<Order, BenchError> {
    crate::runtime()?.block_on(async {
        let stream = patient_client(address).await?.admin().stream(config.stream.as_str()).await;
        stream.map(|info| info.options.order).map_err(|error| BenchError::server("looking at the stream", error))
    })
}

/// Reads into `checker` until `stop` is set or, for a free reader, until the end of the stream. Tells whether an
/// application has committed all of it: not so where a member has lost a lease or gone away without a word.
pub fn collect(
    config: &ConsumeConfig,
    address: &str,
    checker: &Mutex<Checker>,
    stop: &AtomicBool,
) -> Result<bool, BenchError> {
    let members = if config.application.is_some() { config.consumers.max(1) } else { 1 };
    let outcomes: Vec<Result<bool, BenchError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..members)
            .map(|number| scope.spawn(move || one_reader(config, address, number, checker, stop)))
            .collect();
        let panicked = || Err(BenchError::Thread { what: "a verifying consumer" });
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| panicked())).collect()
    });
    outcomes.into_iter().try_fold(true, |all, one| Ok(all & one?))
}

fn one_reader(
    config: &ConsumeConfig,
    address: &str,
    number: u32,
    checker: &Mutex<Checker>,
    stop: &AtomicBool,
) -> Result<bool, BenchError> {
    let mut random = SmallRng::seed_from_u64(config.seed ^ u64::from(number) << 40);
    let mut is_committed = true;
    // A runtime for each life of the member: what it leaves behind when it goes away dies with its runtime.
    while !stop.load(Relaxed) {
        let life = config.crash_every.map(|mean| mean.mul_f64(random.random_range(0.2..1.8)));
        match crate::runtime()?.block_on(one_life(config, address, number, checker, stop, life))? {
            Life::Ended { committed } => return Ok(is_committed & committed),
            Life::Over => is_committed = false,
        }
    }
    Ok(is_committed)
}

/// How a life of a member has ended.
enum Life {
    /// It was told to stop, or has come to the end of the stream, and went in good order.
    Ended {
        /// Whether all that it was given is committed.
        committed: bool,
    },
    /// It went without a word.
    Over,
}

/// Reads until it is told to stop, to the end of the stream, or until its life is over.
async fn one_life(
    config: &ConsumeConfig,
    address: &str,
    number: u32,
    checker: &Mutex<Checker>,
    stop: &AtomicBool,
    life: Option<Duration>,
) -> Result<Life, BenchError> {
    let started = async { start(config, &patient_client(address).await?, number, config.application.is_none()).await };
    let mut consumer = tokio::select! {
        consumer = started => consumer?,
        () = super::until_set(stop) => return Ok(Life::Ended { committed: true }),
    };
    let born = Instant::now();
    loop {
        if life.is_some_and(|life| born.elapsed() >= life) {
            return Ok(Life::Over);
        }
        if stop.load(Relaxed) {
            break;
        }
        match tokio::time::timeout(LOOK, consumer.next_batch()).await {
            Err(_) => {}
            Ok(Ok(None)) => break,
            Ok(Ok(Some(batch))) => take(&mut checker.lock(), &batch),
            Ok(Err(error)) => return Err(BenchError::server("reading", error)),
        }
    }
    Ok(Life::Ended { committed: leave(consumer).await? })
}

/// Commits and goes in good order. Whether all that it was given is committed: not so if it has lost a lease.
pub(super) async fn leave(mut consumer: Consumer) -> Result<bool, BenchError> {
    let leaving = async {
        consumer.commit().await?;
        let lost = consumer.stats().lost;
        consumer.close().await.map(|()| lost == 0)
    };
    match tokio::time::timeout(CLOSE, leaving).await {
        Ok(closed) => closed.map_err(|error| BenchError::server("closing a consumer", error)),
        Err(_) => Err(BenchError::server("closing a consumer", format!("it took more than {CLOSE:?}"))),
    }
}

pub(super) async fn start(
    config: &ConsumeConfig,
    client: &Client,
    number: u32,
    until_end: bool,
) -> Result<Consumer, BenchError> {
    let failed = |error: ClientError| BenchError::server("starting a consumer", error);
    let mut builder = client.consumer(&config.stream).gaps(kera_client::GapPolicy::Error).until_end(until_end);
    if let Some(application) = &config.application {
        builder = builder
            .application(application)
            .member_name(format!("verify-{number}"))
            .commit(CommitMode::Interval(Duration::from_millis(500)))
            .lease(if config.crash_every.is_some() { Duration::from_secs(2) } else { Duration::ZERO });
    }
    builder.build().await.map_err(failed)
}

pub(super) fn take(checker: &mut Checker, batch: &Batch) {
    for record in batch.records() {
        let place = Place { streamlet: batch.streamlet(), lane: batch.lane(), ordinal: record.ordinal };
        checker.take(place, record.view.value().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use kera_format::{LaneId, StreamletId};

    use super::super::record::{Identity, Source, encode};
    use super::*;

    #[test]
    fn whatever_comes_is_progress_although_nothing_of_it_is_missing() {
        let source = Source { run: 7, producer: 0 };
        let mut acked = Acked::default();
        acked.add(source, StreamletId(0), 0..1, None);
        let mut checker = Checker::new(true);
        let place = |ordinal| Place { streamlet: StreamletId(0), lane: LaneId(0), ordinal };
        let mut last = Progress::of(&mut checker, &acked);
        assert_eq!(last.outstanding, 1);
        // Foreign, the same again, and one that was never acknowledged.
        let mut unacknowledged = Vec::new();
        encode(&Identity { source, streamlet: StreamletId(0), number: 9 }, 64, &mut unacknowledged);
        for (ordinal, value) in [(0, &b"of others"[..]), (0, &b"of others"[..]), (1, &unacknowledged[..])] {
            checker.take(place(ordinal), value);
            let progress = Progress::of(&mut checker, &acked);
            assert!(progress != last && progress.outstanding == 1, "{progress:?}");
            last = progress;
        }
    }
}
