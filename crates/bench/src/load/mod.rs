//! The load generator: `kera bench produce`, `consume` and `both`.
//!
//! [`run`] blocks the calling thread, which keeps the time and shows progress, and starts one thread for each producer
//! and each consumer. It must not be called from within an async runtime.

pub mod config;
mod consume;
mod meter;
mod produce;
pub mod report;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kera_client::{Client, ClientError, Status};
use parking_lot::{Condvar, Mutex};

pub use config::{LoadConfig, Mode};
pub use report::{LoadReport, SideReport};

use crate::BenchError;
use crate::clock::now_ns;
use crate::experiment::Stop;
use crate::process::ProcessUsage;
use meter::Meter;

/// How long consumers may go without a record after the producers are done, and producers at a rate without an acknowledgement behind
/// the end of the stretch, before the rest is taken for lost.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The same once one of them has failed: what it was to read does not come.
const PATIENCE_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long it may take until all nodes of a cluster know of a new stream.
const KNOWN_WITHIN: Duration = Duration::from_secs(10);
/// How long threads may take to end well once somebody has asked to stop.
const GRACE: Duration = Duration::from_secs(1);
/// How often they look whether somebody has.
const LOOK: Duration = Duration::from_millis(50);
/// How often the watching thread looks.
const TICK: Duration = Duration::from_millis(5);

/// Where a load goes.
#[derive(Clone, Debug)]
pub struct Target {
    /// `host:port`.
    pub address: String,
    /// The server's process, if it is on this host and its cost is wanted.
    pub server_pid: Option<u32>,
}

/// What is known while a load runs, once a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Seconds since the threads started.
    pub seconds: f64,
    /// Records acknowledged in all.
    pub produced: u64,
    /// Records received in all.
    pub consumed: u64,
    /// Acknowledged per second since the last time.
    pub produced_per_s: f64,
    /// Received per second since the last time.
    pub consumed_per_s: f64,
    /// Records given up, failures.
    pub errors: u64,
    /// Whether the warm-up is over.
    pub measuring: bool,
}

/// Where threads wait for each other before the first record.
struct StartLine {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl StartLine {
    fn new(threads: usize) -> StartLine {
        StartLine { state: Mutex::new((threads, false)), changed: Condvar::new() }
    }

    /// This thread is as far as it gets; waits for the others. A thread that failed to get ready does not wait.
    fn ready_and_wait(&self, ready: bool) {
        let mut state = self.state.lock();
        state.0 -= 1;
        self.changed.notify_all();
        while ready && !state.1 {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until all threads are ready (or failed), then lets them go.
    fn go(&self, first: impl FnOnce()) {
        let mut state = self.state.lock();
        while state.0 > 0 {
            self.changed.wait(&mut state);
        }
        first();
        state.1 = true;
        self.changed.notify_all();
    }
}

/// Runs a load to its end, or until somebody asks to stop. Streams that it made are deleted afterwards, however it ended, unless they are to be kept.
///
/// # Errors
/// What could not be done first; [`BenchError::Interrupted`] if somebody has asked to stop, unless a stream that was made is left behind then.
pub fn run(
    mode: Mode,
    config: &LoadConfig,
    target: &Target,
    stop: &Stop,
    progress: impl FnMut(&Progress),
) -> Result<LoadReport, BenchError> {
    config.check(mode)?;
    let admin = crate::runtime()?;
    let prefix = format!("bench-{}-{:x}", std::process::id(), now_ns() % 0x1_0000_0000);
    let streams = config.stream_names(&prefix);
    let mut made = Vec::new();
    let outcome = (|| {
        admin.block_on(make_streams(&target.address, &streams, config, stop, &mut made))?;
        let config = match mode {
            Mode::Consume => fill(config, target, &streams, made.len(), stop)?,
            _ => config.clone(),
        };
        measure(mode, &config, target, &streams, stop, progress)
    })();
    let deleted = if config.keep { Ok(()) } else { admin.block_on(delete_streams(&target.address, &made)) };
    let mut report = match (outcome, deleted) {
        (Err(BenchError::Interrupted), Err(left)) => return Err(left),
        (outcome, Ok(())) => outcome?,
        (outcome, Err(error)) => {
            let mut report = outcome?;
            report.first_error.get_or_insert(error.to_string());
            report
        }
    };
    report.config = Some(config.clone());
    Ok(report)
}

/// Makes the streams that are missing, and notes their names in `made`, also of those before one that could not be made.
async fn make_streams(
    address: &str,
    streams: &[String],
    config: &LoadConfig,
    stop: &Stop,
    made: &mut Vec<String>,
) -> Result<(), BenchError> {
    let failed = |error: ClientError| BenchError::server("making a stream", error);
    let connecting = async {
        let client = Client::builder(address).client_name("kera-bench").connect().await;
        client.map_err(|error| BenchError::server(format!("connecting to {address}"), error))
    };
    let client = built(stop, connecting).await?;
    let admin = client.admin();
    for name in streams {
        stop.check()?;
        match admin.create_stream(name, config.stream_options()).await {
            Ok(_) => made.push(name.clone()),
            Err(error) if error.status() == Some(Status::StreamExists) => {
                let info = admin.stream(name.as_str()).await.map_err(failed)?;
                if (info.options.streamlets, info.options.lanes) != (config.streamlets, config.lanes) {
                    let is = format!("{} streamlets of {} lanes", info.options.streamlets, info.options.lanes);
                    let message = format!("the stream {name} exists and has {is}; give the same, or another --stream");
                    return Err(BenchError::setting("streamlets", message));
                }
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(())
}

/// Tries until all nodes of a cluster know of a stream that was just made: the one that made it is the first of them.
async fn once_known<T>(mut attempt: impl AsyncFnMut() -> Result<T, ClientError>) -> Result<T, ClientError> {
    let started = Instant::now();
    loop {
        match attempt().await {
            Err(error) if error.status() == Some(Status::UnknownStream) && started.elapsed() < KNOWN_WITHIN => {
                tokio::time::sleep(TICK).await;
            }
            outcome => return outcome,
        }
    }
}

async fn delete_streams(address: &str, streams: &[String]) -> Result<(), BenchError> {
    let failed = |error: ClientError| BenchError::server("deleting a stream", error);
    let admin = Client::connect(address).await.map_err(failed)?.admin();
    for name in streams {
        admin.delete_stream(name.as_str()).await.map_err(failed)?;
    }
    Ok(())
}

/// Makes something to consume in streams that were just made, and says how much there is.
fn fill(
    config: &LoadConfig,
    target: &Target,
    streams: &[String],
    made: usize,
    stop: &Stop,
) -> Result<LoadConfig, BenchError> {
    if made == 0 {
        return Ok(config.clone());
    }
    let records = config.records_in_all().unwrap_or(5_000_000);
    let fill = LoadConfig {
        records: Some(records),
        time: None,
        warmup_records: 0,
        producers: config.producers.max(1),
        rate: None,
        ..config.clone()
    };
    let report = measure(Mode::Produce, &fill, target, streams, stop, |_| ())?;
    if report.main.errors > 0 {
        let why = report.first_error.unwrap_or_default();
        return Err(BenchError::server("filling the stream", why));
    }
    let warmup_records = config.warmup_records.min(records);
    Ok(LoadConfig { records: Some(records - warmup_records), warmup_records, time: None, ..config.clone() })
}

/// What comes of some work; nothing if it is not over soon after somebody has asked to stop.
async fn unless_asked<T>(stop: &Stop, work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        while !stop.asked().load(Relaxed) {
            tokio::time::sleep(LOOK).await;
        }
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = late => None,
    }
}

/// What is made of a server, which is tried for a while if the server is away or hangs: whoever has asked to stop does not wait for that.
async fn built<T>(stop: &Stop, making: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    unless_asked(stop, making).await.unwrap_or(Err(BenchError::Interrupted))
}

fn measure(
    mode: Mode,
    config: &LoadConfig,
    target: &Target,
    streams: &[String],
    stop: &Stop,
    progress: impl FnMut(&Progress),
) -> Result<LoadReport, BenchError> {
    stop.check()?;
    // The warm-up ends after records where records are limited, otherwise after a time.
    let by_records = config.records.is_some() || config.warmup_records > 0;
    let meter = || Meter::new(by_records.then_some(config.warmup_records), config.time);
    let at_a_rate = config.rate.is_some();
    let producing = Arc::new(produce::Shared {
        config: config.clone(),
        address: target.address.clone(),
        streams: streams.to_vec(),
        meter: meter().judged_by_due(at_a_rate),
        left: AtomicU64::new(config.records_in_all().unwrap_or(u64::MAX)),
        stop: AtomicBool::new(false),
        asked: stop.clone(),
    });
    let consuming = Arc::new(consume::Shared {
        config: config.clone(),
        address: target.address.clone(),
        streams: streams.to_vec(),
        // Consumers alone read what was due long before they began.
        meter: meter().judged_by_due(at_a_rate && mode == Mode::Both),
        wanted: AtomicU64::new(config.records_in_all().unwrap_or(u64::MAX)),
        until_end: mode == Mode::Consume && config.time.is_none(),
        stop: AtomicBool::new(false),
        has_failed: AtomicBool::new(false),
        asked: stop.clone(),
    });
    let producers = if mode == Mode::Consume { 0 } else { config.producers };
    let consumers = if mode == Mode::Produce { 0 } else { config.consumers };
    let line = StartLine::new((producers + consumers) as usize);
    let (outcome, usage) = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for number in 0..consumers {
            let (shared, line) = (&consuming, &line);
            threads.push((false, spawn(scope, "consumer", number, move || consume::run(shared, number, line))));
        }
        for number in 0..producers {
            let (shared, line) = (&producing, &line);
            threads.push((true, spawn(scope, "producer", number, move || produce::run(shared, number, line))));
        }
        line.go(|| {
            let now = now_ns();
            producing.meter.ready(now);
            consuming.meter.ready(now);
        });
        let mut watch = Watch::new(config, target, &producing, &consuming, mode, stop);
        let usage = watch.until_done(&threads, progress);
        let mut outcome = Ok(());
        for (_, thread) in threads {
            let one = thread.join().unwrap_or(Err(BenchError::Thread { what: "a thread of the load" }));
            outcome = outcome.and(one);
        }
        (outcome, usage)
    });
    stop.check()?;
    outcome?;
    Ok(summed_up(mode, config, &producing.meter, &consuming.meter, usage))
}

/// A thread with a name, by which whoever looks on tells one side from the other.
fn spawn<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    name: &str,
    number: u32,
    work: impl FnOnce() -> Result<(), BenchError> + Send + 'scope,
) -> std::thread::ScopedJoinHandle<'scope, Result<(), BenchError>> {
    let thread = std::thread::Builder::new().name(format!("{name}-{number}"));
    thread.spawn_scoped(scope, work).expect("the system has a thread to spare")
}

fn summed_up(
    mode: Mode,
    config: &LoadConfig,
    produced: &Meter,
    consumed: &Meter,
    (server, client): (Option<ProcessUsage>, ProcessUsage),
) -> LoadReport {
    let side = |meter: &Meter| {
        let (records, seconds) = meter.stretch();
        SideReport {
            latency_us: meter.summary(),
            errors: meter.errors(),
            removed: meter.removed(),
            ..SideReport::new(records, config.user_bytes_per_record(), seconds)
        }
    };
    let main = side(if mode == Mode::Consume { consumed } else { produced });
    LoadReport {
        main,
        consume: (mode == Mode::Both).then(|| side(consumed)),
        server,
        client,
        first_error: produced.first_error().or_else(|| consumed.first_error()),
        config: None,
    }
}

/// The thread that keeps the time.
struct Watch<'a> {
    config: &'a LoadConfig,
    target: &'a Target,
    producing: &'a produce::Shared,
    consuming: &'a consume::Shared,
    mode: Mode,
    stop: &'a Stop,
    started: Instant,
    measuring: bool,
    before: (Option<ProcessUsage>, ProcessUsage),
    after: Option<(Option<ProcessUsage>, ProcessUsage)>,
    shown: (Instant, u64, u64),
}

impl<'a> Watch<'a> {
    fn new(
        config: &'a LoadConfig,
        target: &'a Target,
        producing: &'a produce::Shared,
        consuming: &'a consume::Shared,
        mode: Mode,
        stop: &'a Stop,
    ) -> Watch<'a> {
        let started = Instant::now();
        let shown = (started, 0, 0);
        let (measuring, before, after) = (false, usage(target), None);
        Watch { config, target, producing, consuming, mode, stop, started, measuring, before, after, shown }
    }

    fn until_done(
        &mut self,
        threads: &[(bool, std::thread::ScopedJoinHandle<'_, Result<(), BenchError>>)],
        mut progress: impl FnMut(&Progress),
    ) -> (Option<ProcessUsage>, ProcessUsage) {
        let mut last = (self.consuming.meter.settled(), Instant::now());
        loop {
            let side_done =
                |producing: bool| threads.iter().filter(|(p, _)| *p == producing).all(|(_, t)| t.is_finished());
            let (produced, consumed) = (side_done(true), side_done(false));
            // In front of the end of this loop: producers at a rate end with the stretch, which has to end at its time then too.
            self.keep_time();
            if produced && consumed {
                break;
            }
            if self.stop.asked().load(Relaxed) {
                self.producing.stop.store(true, Relaxed);
                self.consuming.stop.store(true, Relaxed);
            }
            if produced && self.mode == Mode::Both {
                self.wait_for_consumers(&mut last);
            } else {
                last.1 = Instant::now();
            }
            if consumed && !produced && self.mode == Mode::Both {
                // Consumers that failed must not leave the producers running for ever.
                self.producing.stop.store(true, Relaxed);
            }
            if self.shown.0.elapsed() >= Duration::from_secs(1) {
                progress(&self.progress());
            }
            std::thread::sleep(TICK);
        }
        let (server, client) = self.after.take().unwrap_or_else(|| usage(self.target));
        let server = server.zip(self.before.0).map(|(after, before)| after.since(&before));
        (server, client.since(&self.before.1))
    }

    /// Consumers get what was acknowledged, and not for ever. `last` is how far they were, and since when.
    fn wait_for_consumers(&self, last: &mut (u64, Instant)) {
        let (produced, consuming) = (self.producing.meter.records(), self.consuming);
        consuming.wanted.fetch_min(produced, Relaxed);
        if consuming.meter.settled() != last.0 {
            *last = (consuming.meter.settled(), Instant::now());
        }
        let patience = if consuming.has_failed.load(Relaxed) { PATIENCE_AFTER_FAILURE } else { PATIENCE };
        if last.1.elapsed() > patience && !consuming.stop.swap(true, Relaxed) {
            let missing = produced.saturating_sub(last.0);
            consuming.meter.fail(missing, || format!("{missing} acknowledged records did not come"));
        }
    }

    /// Begins and ends the measured stretch where that goes by time.
    fn keep_time(&mut self) {
        let meters = [&self.producing.meter, &self.consuming.meter];
        let main = if self.mode == Mode::Consume { meters[1] } else { meters[0] };
        if !self.measuring {
            let by_records = self.config.records.is_some() || self.config.warmup_records > 0;
            if !by_records && self.started.elapsed() >= self.config.warmup {
                // Both at once: what is due in the one's stretch is due in the other's.
                let now = now_ns();
                meters.iter().for_each(|meter| meter.begin(now));
            }
            if main.measures() {
                self.measuring = true;
                self.before = usage(self.target);
            }
        }
        if self.after.is_none() && now_ns() >= main.ends_ns() {
            meters.iter().for_each(|meter| meter.end());
            self.after = Some(usage(self.target));
            if self.config.rate.is_none() {
                // At a rate they end by themselves, when all that was due by now is sent.
                self.producing.stop.store(true, Relaxed);
            }
            if self.mode == Mode::Consume {
                self.consuming.stop.store(true, Relaxed);
            }
        }
    }

    fn progress(&mut self) -> Progress {
        let (now, produced, consumed) =
            (Instant::now(), self.producing.meter.records(), self.consuming.meter.records());
        let since = now.duration_since(self.shown.0).as_secs_f64();
        let shown = Progress {
            seconds: self.started.elapsed().as_secs_f64(),
            produced,
            consumed,
            produced_per_s: (produced - self.shown.1) as f64 / since,
            consumed_per_s: (consumed - self.shown.2) as f64 / since,
            errors: self.producing.meter.errors() + self.consuming.meter.errors(),
            measuring: self.measuring,
        };
        self.shown = (now, produced, consumed);
        shown
    }
}

fn usage(target: &Target) -> (Option<ProcessUsage>, ProcessUsage) {
    (target.server_pid.and_then(ProcessUsage::of), ProcessUsage::of(std::process::id()).unwrap_or_default())
}

impl Progress {
    /// One line for a terminal.
    pub fn line(&self) -> String {
        let mut line = format!("{:>5.0} s  ", self.seconds);
        for (what, count, rate) in
            [("acknowledged", self.produced, self.produced_per_s), ("received", self.consumed, self.consumed_per_s)]
        {
            if count > 0 {
                line += &format!("{}{what}, {}/s  ", report::short(count as f64), report::short(rate));
            }
        }
        if self.errors > 0 {
            line += &format!("{} errors  ", self.errors);
        }
        if !self.measuring {
            line += "(warm-up)";
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_end_is_left_soon_after_somebody_has_asked() {
        let (runtime, stop) = (crate::runtime().unwrap(), Stop::new());
        stop.ask();
        assert_eq!(runtime.block_on(unless_asked(&stop, async { 7 })), Some(7), "what is over is whole");
        let soon = async {
            tokio::time::sleep(TICK).await;
            7
        };
        assert_eq!(runtime.block_on(unless_asked(&stop, soon)), Some(7), "it may end well");
        assert_eq!(runtime.block_on(unless_asked(&stop, std::future::pending::<u32>())), None);
        let hangs = std::future::pending::<Result<u32, BenchError>>();
        assert!(matches!(runtime.block_on(built(&stop, hangs)), Err(BenchError::Interrupted)));
    }

    #[test]
    fn a_stream_that_a_node_has_not_heard_of_yet_is_asked_for_again() {
        let refused = |status| ClientError::Refused { records: 0, streamlet: kera_client::StreamletId(0), status };
        let runtime = crate::runtime().unwrap();
        let mut left = 3;
        let made = runtime.block_on(once_known(async || {
            left -= 1;
            if left > 0 { Err(refused(Status::UnknownStream)) } else { Ok(7) }
        }));
        assert_eq!((made.unwrap(), left), (7, 0));
        let mut asked = 0;
        let other = runtime.block_on(once_known(async || {
            asked += 1;
            Err::<(), _>(refused(Status::StreamExists))
        }));
        assert!(other.is_err() && asked == 1, "other errors come back at once");
    }
}
