//! Carrying a plan out.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kera_format::{Order, StreamOptions};
use parking_lot::Mutex;

use super::disk::SmallDisk;
use super::large::WrittenThrough;
use super::{ChaosConfig, ChaosReport, Fault};
use crate::BenchError;
use crate::experiment::Stop;
use crate::server::{Server, ServerConfig};
use crate::verify::{
    Checker, ConsumeConfig, ProduceConfig, ProduceProgress, ProduceReport, Verdict, acklog, collect, consume_until,
    nothing_again, produce, settle,
};

const STREAM: &str = "chaos";
const APPLICATION: &str = "witness";
const LOOK: Duration = Duration::from_millis(2);
/// Time between two looks at a disk that is to stay full.
const LOOK_AT_DISK: Duration = Duration::from_millis(20);
/// Nothing acknowledged for so long, under a steady load: acknowledgements have stopped.
const STOPPED: Duration = Duration::from_secs(1);
/// A disk that has less than this to give back would be full of records right after.
const ROOM_BYTES_MIN: u64 = 8 << 20;
/// A server that is asked to stop has to do so within this.
const STOP: Duration = Duration::from_secs(60);
/// How long the application may take for what is left when producers are done.
const PATIENCE: Duration = Duration::from_secs(60);

/// Carries the plan out and judges. An error is a failure of the tormentor, or of a server that does not come back;
/// promises that were broken are in the report. `progress` is told what happens.
pub fn run(config: &ChaosConfig, mut progress: impl FnMut(&str)) -> Result<ChaosReport, BenchError> {
    config.check()?;
    let started = Instant::now();
    let place = Workplace::make(config)?;
    // Who has had enough interrupts, whatever else came of that: the server may have got the same signal.
    let outcome = torment(config, &place, &mut progress).and_then(|report| config.stop.check().map(|()| report));
    if let Err(interrupted) = config.stop.check() {
        return Err(match place.leave(config.keep) {
            Some(dir) => BenchError::Kept { error: Box::new(interrupted), dir },
            None => interrupted,
        });
    }
    let mut report = match outcome {
        Ok(report) => report,
        Err(error) => {
            // A setting that turned out to be wrong is put right without a look at what is there.
            let keep = !matches!(error, BenchError::Setting { .. });
            return Err(match place.leave(keep) {
                Some(dir) => BenchError::Kept { error: Box::new(error), dir },
                None => error,
            });
        }
    };
    report.seconds = started.elapsed().as_secs_f64();
    report.kept = place.leave(config.keep || !report.holds);
    Ok(report)
}

/// Directories of a run.
struct Workplace {
    dir: PathBuf,
    /// On the same kind of file system as the server's own choice, so that an arena can be found and deleted.
    arena_dir: PathBuf,
    disk: Option<SmallDisk>,
}

impl Workplace {
    fn make(config: &ChaosConfig) -> Result<Workplace, BenchError> {
        let name = format!("kera-chaos-{}-{:x}", std::process::id(), crate::clock::now_ns());
        let dir = config.dir.join(&name);
        let memory = Path::new("/dev/shm");
        let arena_dir = if memory.is_dir() { memory.join(&name) } else { dir.join("arena") };
        for new in [&dir, &dir.join("data"), &arena_dir] {
            fs::create_dir_all(new).map_err(|e| BenchError::io_at("creating", new, e))?;
        }
        let mut place = Workplace { dir, arena_dir, disk: None };
        if config.faults.contains(&Fault::FullDisk) {
            match SmallDisk::mount(&place.dir.join("data"), config.disk_bytes()) {
                Ok(disk) => place.disk = Some(disk),
                Err(error) => {
                    place.leave(false);
                    return Err(error);
                }
            }
        }
        Ok(place)
    }

    /// Cleans up; gives the directory if it stays.
    fn leave(self, keep: bool) -> Option<PathBuf> {
        // A mounted disk is gone with its contents: what matters then is the log.
        drop(self.disk);
        let _ = fs::remove_dir_all(&self.arena_dir);
        if !keep {
            let _ = fs::remove_dir_all(&self.dir);
        }
        keep.then_some(self.dir)
    }

    fn delete_arena(&self) -> Result<(), BenchError> {
        let files = fs::read_dir(&self.arena_dir).map_err(|e| BenchError::io_at("listing", &self.arena_dir, e))?;
        for file in files.flatten() {
            fs::remove_file(file.path()).map_err(|e| BenchError::io_at("deleting the arena", &file.path(), e))?;
        }
        Ok(())
    }
}

fn torment(config: &ChaosConfig, place: &Workplace, progress: &mut dyn FnMut(&str)) -> Result<ChaosReport, BenchError> {
    let server_config = ServerConfig {
        arena_bytes: Some(config.arena_bytes),
        arena_dir: Some(place.arena_dir.clone()),
        http: true,
        flags: config.server_flags(),
        ..ServerConfig::in_dir(&config.program, &place.dir)
    };
    let (mut server, took) = Server::start(server_config)?;
    let (address, took_ms, dir) = (server.address(), took.as_secs_f64() * 1e3, place.dir.display());
    progress(&format!("the server listens on {address} after {took_ms:.0} ms, with everything it has in {dir}"));
    let (writing, reading) = (produce_config(config, place), consume_config(config, place));
    let written = Arc::new(ProduceProgress::default());
    let checker = Mutex::new(Checker::new(config.order == Order::Lane));
    let enough = AtomicBool::new(false);
    let mut report = ChaosReport { holds: true, large_segments: config.has_large_segments(), ..ChaosReport::default() };
    std::thread::scope(|scope| {
        let producers = scope.spawn(|| produce(&writing, &address, &written));
        let mut application = None;
        let outcome = wait_for_ack(config, &written, 0, &mut server, &mut || producers.is_finished()).and_then(|_| {
            application = Some(scope.spawn(|| collect(&reading, &address, &checker, &enough)));
            let mut torment = Torment {
                config,
                place,
                server: &mut server,
                written: &written,
                report: &mut report,
                through: WrittenThrough::default(),
                progress,
                ended: &mut || producers.is_finished(),
            };
            torment.carry_out()
        });
        // Read before they are told to end.
        let ended_on_their_own = producers.is_finished();
        written.stop.store(true, Relaxed);
        if let Err(error) = outcome {
            // Nobody waits for a server that is gone.
            enough.store(true, Relaxed);
            written.abandon.store(true, Relaxed);
            // Who has had enough ends it last: members that leave wait for its answer.
            if config.stop.check().is_ok() {
                let _ = server.kill();
            }
            return Err(if ended_on_their_own { why_ended(producers.join()) } else { error });
        }
        progress("waiting for the last acknowledgements");
        wait_for_the_last(config, &written, &mut report, &|| producers.is_finished());
        let produced = producers.join().unwrap_or(Err(BenchError::Thread { what: "the producers" }));
        note_produced(&mut report, produced);
        if let Some(application) = application {
            let waited =
                wait_for_application(&writing.log, &checker, config.stop.asked(), &|| application.is_finished());
            enough.store(true, Relaxed);
            let read = application.join().unwrap_or(Err(BenchError::Thread { what: "the application" }));
            if let Err(error) = waited.and(read) {
                report.problems.push(format!("application: {error}"));
            }
        }
        Ok(())
    })?;
    config.stop.check()?;
    read_on(config, place, &mut server, &reading, &checker, &mut report)?;
    config.stop.check()?;
    progress("reading everything");
    judge(&mut report, &mut server, &writing.log, checker, &config.stop)?;
    Ok(report)
}

/// Waits until the producers have got their last acknowledgements, or have been given up.
fn wait_for_the_last(
    config: &ChaosConfig,
    written: &ProduceProgress,
    report: &mut ChaosReport,
    ended: &dyn Fn() -> bool,
) {
    let waiting = Instant::now();
    while !ended() {
        if config.stop.check().is_err() {
            written.abandon.store(true, Relaxed);
        }
        if waiting.elapsed() > config.recovery && !written.abandon.swap(true, Relaxed) {
            report.problems.push(format!("the last records were not acknowledged within {:?}", config.recovery));
        }
        std::thread::sleep(LOOK);
    }
}

/// Why producers have ended that nobody told to: their own error says more than what was missed because of it.
fn why_ended(outcome: std::thread::Result<Result<ProduceReport, BenchError>>) -> BenchError {
    match outcome {
        Err(_) => BenchError::Thread { what: "the producers" },
        Ok(Err(error @ BenchError::Setting { .. })) => error,
        Ok(Err(error)) => BenchError::server("the producers have ended", error),
        Ok(Ok(report)) => {
            let why = report.first_error.unwrap_or_else(|| "without an error".into());
            BenchError::server("the producers have ended", why)
        }
    }
}

fn produce_config(config: &ChaosConfig, place: &Workplace) -> ProduceConfig {
    ProduceConfig {
        stream: STREAM.into(),
        options: StreamOptions {
            streamlets: config.streamlets,
            lanes: config.lanes,
            // Small groups: there is always one about to be closed and opened.
            segments_per_group: 4,
            segment_bytes_max: config.segment_bytes(),
            durability: config.durability,
            order: config.order,
            retention_ms: None,
            ..StreamOptions::default()
        },
        log: place.dir.join("acknowledged"),
        producers: config.producers,
        record_bytes: config.record_bytes,
        chunk_bytes: config.chunk_bytes,
        rate: config.rate,
        time: None,
        seed: config.seed,
        ..ProduceConfig::default()
    }
}

fn consume_config(config: &ChaosConfig, place: &Workplace) -> ConsumeConfig {
    ConsumeConfig {
        stream: STREAM.into(),
        log: place.dir.join("acknowledged"),
        application: Some(APPLICATION.into()),
        consumers: config.consumers,
        crash_every: (config.consumers > 1).then_some(Duration::from_secs(10)),
        seed: config.seed,
        ..ConsumeConfig::default()
    }
}

/// Doing the faults.
struct Torment<'a> {
    config: &'a ChaosConfig,
    place: &'a Workplace,
    server: &'a mut Server,
    written: &'a ProduceProgress,
    report: &'a mut ChaosReport,
    through: WrittenThrough,
    progress: &'a mut dyn FnMut(&str),
    /// Whether the producers have ended, which nobody told them to.
    ended: &'a mut dyn FnMut() -> bool,
}

impl Torment<'_> {
    /// Does the faults, each followed by the proof that acknowledgements go on.
    fn carry_out(&mut self) -> Result<(), BenchError> {
        for (round, (wait, fault)) in self.config.plan().into_iter().enumerate() {
            self.config.stop.sleep(wait)?;
            let round = format!("round {} of {}, {}", round + 1, self.config.rounds, fault.name());
            self.one_round(&round, fault).map_err(|error| match error {
                BenchError::Setting { .. } => error,
                error => BenchError::server(&round, error),
            })?;
        }
        self.through.look(self.server.http_address());
        (self.report.through_bytes, self.report.through_lives) = (self.through.bytes(), self.through.lives());
        Ok(())
    }

    fn one_round(&mut self, round: &str, fault: Fault) -> Result<(), BenchError> {
        if let Some(status) = self.server.ended()? {
            let message = format!("it ended with {status}{}", self.server.log_tail());
            return Err(BenchError::server("the server ended on its own", message));
        }
        self.through.look(self.server.http_address());
        *self.report.faults.entry(fault.name()).or_default() += 1;
        let took = match fault {
            Fault::Freeze => {
                self.say(&format!("{round} for {} s", self.config.hold.as_secs()));
                self.server.freeze()?;
                let held = self.config.stop.sleep(self.config.hold);
                self.server.thaw()?;
                held?;
                None
            }
            Fault::FullDisk => {
                self.full_disk(round)?;
                None
            }
            Fault::Stop => {
                self.say(round);
                self.server.stop(STOP)?;
                Some(self.server.start_again()?)
            }
            Fault::Kill | Fault::Power => {
                self.say(round);
                self.server.kill()?;
                if fault == Fault::Power {
                    self.place.delete_arena()?;
                }
                Some(self.server.start_again()?)
            }
        };
        if let Some(took) = took {
            self.report.start_ms.push(took.as_secs_f64() * 1e3);
            self.through.end_life();
        }
        let at_end = self.acknowledged();
        let again = wait_for_ack(self.config, self.written, at_end, self.server, self.ended)?;
        self.report.recovery_ms.push(again.as_secs_f64() * 1e3);
        Ok(())
    }

    fn acknowledged(&self) -> u64 {
        self.written.acknowledged.load(Relaxed)
    }

    fn say(&mut self, what: &str) {
        let acknowledged = self.acknowledged();
        (self.progress)(&format!("{what}: {acknowledged} records acknowledged so far"));
    }

    /// Fills the disk, keeps it full until acknowledgements have stopped and for a while longer, and gives space back.
    fn full_disk(&mut self, round: &str) -> Result<(), BenchError> {
        let (config, Some(disk)) = (self.config, &self.place.disk) else { return Ok(()) };
        self.say(&format!("{round}, until the arena is full too"));
        let mut filled = disk.fill()?;
        let full = Instant::now();
        let mut still = Standstill::new(self.acknowledged(), full);
        let mut stopped = None;
        loop {
            filled += disk.fill()?;
            config.stop.sleep(LOOK_AT_DISK)?;
            let now = Instant::now();
            still.look(self.acknowledged(), now);
            if stopped.is_none() && still.lasts(now) >= STOPPED {
                stopped = Some(now);
                self.report.stopped_ms.push(still.since.saturating_duration_since(full).as_secs_f64() * 1e3);
                self.say(&format!("{round} for {} s more, nothing is acknowledged", config.hold.as_secs()));
            }
            if stopped.is_some_and(|stopped| now >= stopped + config.hold) {
                break;
            }
            if stopped.is_none() && full.elapsed() > config.recovery {
                self.report.problems.push(format!(
                    "the disk was full for {:.0} s and acknowledgements went on: the fault never bit and nothing is \
                     proved; give a higher --rate or a smaller --arena-bytes",
                    full.elapsed().as_secs_f64()
                ));
                break;
            }
        }
        self.report.stood_still_ms.push(still.longest.as_secs_f64() * 1e3);
        if filled < ROOM_BYTES_MIN {
            let message = format!(
                "the records have filled all but {filled} bytes of its {}; give more --disk-bytes or fewer --rounds",
                config.disk_bytes()
            );
            return Err(BenchError::setting("disk-bytes", message));
        }
        disk.free()
    }
}

/// For how long a count has not moved.
struct Standstill {
    count: u64,
    since: Instant,
    longest: Duration,
}

impl Standstill {
    fn new(count: u64, now: Instant) -> Standstill {
        Standstill { count, since: now, longest: Duration::ZERO }
    }

    fn look(&mut self, count: u64, now: Instant) {
        if count != self.count {
            (self.count, self.since) = (count, now);
        }
        self.longest = self.longest.max(self.lasts(now));
    }

    fn lasts(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

/// Waits until more than `before` records are acknowledged. Gives how long that took.
fn wait_for_ack(
    config: &ChaosConfig,
    written: &ProduceProgress,
    before: u64,
    server: &mut Server,
    ended: &mut dyn FnMut() -> bool,
) -> Result<Duration, BenchError> {
    let (started, within) = (Instant::now(), config.recovery);
    while written.acknowledged.load(Relaxed) <= before {
        config.stop.check()?;
        if started.elapsed() > within {
            let message = format!("none within {within:?}{}", server.log_tail());
            return Err(BenchError::server("waiting for an acknowledgement", message));
        }
        if ended() {
            return Err(BenchError::server("waiting for an acknowledgement", "the producers have ended"));
        }
        std::thread::sleep(LOOK);
    }
    Ok(started.elapsed())
}

fn note_produced(report: &mut ChaosReport, produced: Result<ProduceReport, BenchError>) {
    match produced {
        Err(error) => report.problems.push(format!("producers: {error}")),
        Ok(produced) => {
            report.sent = produced.sent;
            report.acknowledged = produced.acknowledged;
            report.given_up = produced.given_up;
            report.duplicate_chunks = produced.duplicate_chunks;
            report.reconnects = produced.reconnects;
            if produced.given_up > 0 {
                let why = produced.first_error.unwrap_or_default();
                report.problems.push(format!("{} records were given up: {why}", produced.given_up));
            }
        }
    }
}

/// Waits until the application has had everything that was acknowledged, or nothing for a while.
fn wait_for_application(
    log: &Path,
    checker: &Mutex<Checker>,
    enough: &AtomicBool,
    ended: &dyn Fn() -> bool,
) -> Result<(), BenchError> {
    let acked = acklog::read(log)?;
    let mut last = (u64::MAX, Instant::now());
    while !ended() && !enough.load(Relaxed) {
        let outstanding = checker.lock().outstanding(&acked);
        if outstanding == 0 || last.1.elapsed() > PATIENCE {
            break;
        }
        if outstanding != last.0 {
            last = (outstanding, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Has the application commit everything, kills the server once more, and lets nothing of that come again. Nothing is proved
/// by that where something else has gone wrong.
fn read_on(
    config: &ChaosConfig,
    place: &Workplace,
    server: &mut Server,
    reading: &ConsumeConfig,
    checker: &Mutex<Checker>,
    report: &mut ChaosReport,
) -> Result<(), BenchError> {
    if !report.problems.is_empty() {
        return Ok(());
    }
    let (address, stop) = (server.address(), config.stop.asked());
    let mut outcome = settle(reading, &address, checker, stop);
    config.stop.check()?;
    if outcome.is_ok() {
        server.kill()?;
        if config.faults.contains(&Fault::Power) {
            place.delete_arena()?;
        }
        server.start_again()?;
        outcome = nothing_again(reading, &address, checker, stop);
    }
    if let Err(error) = outcome {
        report.problems.push(format!("the application, read on: {error}"));
    }
    Ok(())
}

fn judge(
    report: &mut ChaosReport,
    server: &mut Server,
    log: &Path,
    application: Mutex<Checker>,
    stop: &Stop,
) -> Result<(), BenchError> {
    let acked = acklog::read(log)?;
    let given: Verdict = application.into_inner().finish(&acked);
    let free = ConsumeConfig { stream: STREAM.into(), log: log.to_owned(), ..ConsumeConfig::default() };
    let kept = consume_until(&free, &server.address(), stop.asked());
    report.application = given.to_string();
    report.holds = given.holds();
    match kept {
        Ok(kept) => {
            report.holds &= kept.holds();
            report.stream = kept.to_string();
        }
        Err(error) => report.problems.push(format!("reading everything: {error}")),
    }
    if report.acknowledged == 0 {
        report.problems.push("nothing was acknowledged: nothing is proved".into());
    }
    report.problems.extend(server.panics());
    // A server that went through all of this still has to stop in good order.
    if let Err(error) = server.stop(STOP) {
        report.problems.push(error.to_string());
    }
    report.holds &= report.problems.is_empty();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_ends_with_every_step_and_the_longest_counts() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut still = Standstill::new(5, start);
        still.look(5, at(300));
        assert_eq!(still.lasts(at(300)), Duration::from_millis(300));
        still.look(6, at(400));
        still.look(6, at(450));
        assert_eq!((still.lasts(at(450)), still.longest), (Duration::from_millis(50), Duration::from_millis(300)));
        still.look(6, at(1500));
        assert_eq!(still.longest, Duration::from_millis(1100));
    }
}
