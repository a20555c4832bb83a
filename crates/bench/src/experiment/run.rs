//! Runs experiments: at each point all systems in turns (A B A B …), the limits of the machine in the same run, and a line for
//! everything that is measured or left out.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::definition::{Experiment, Point};
use super::profile::Profile;
use super::results::{FORMAT, Header, Line, Machine, Run, Skipped, utc};
use super::sample::Bound;
use super::stop::Stop;
use super::systems::{Job, Outcome, System};
use crate::BenchError;
use crate::limit::{self, DiskRate, LimitConfig};

/// Records of a run that is as small as it gets.
const TINY_RECORDS: u64 = 1000;

/// How much time is spent on an experiment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Size {
    /// As its file says.
    #[default]
    Full,
    /// The quick values of its sweep, a second each: to see, not to quote.
    Quick,
    /// Moments, with little of everything: for tests.
    Tiny,
}

/// How to run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A directory of the disk on which servers keep their data: that disk's limits are measured.
    pub dir: PathBuf,
    /// How much.
    pub size: Size,
    /// Times that each system is measured at each point; `None`: as the file says.
    pub rounds: Option<usize>,
    /// Seconds of each measurement; `None`: as the file says.
    pub seconds: Option<f64>,
    /// Whether to see where the time goes.
    pub profile: bool,
}

impl Options {
    fn rounds(&self, experiment: &Experiment) -> usize {
        let usual = match self.size {
            Size::Full => experiment.rounds,
            Size::Quick => experiment.rounds.min(2),
            Size::Tiny => 1,
        };
        self.rounds.unwrap_or(usual).max(1)
    }

    fn seconds(&self, experiment: &Experiment) -> f64 {
        let usual = match self.size {
            Size::Full => experiment.seconds,
            Size::Quick => experiment.seconds.min(experiment.quick_seconds),
            // Only for what cannot go by records: a server that is killed under load, which has to have begun by then.
            Size::Tiny => 2.0,
        };
        self.seconds.unwrap_or(usual)
    }

    fn warmup_seconds(&self) -> f64 {
        match self.size {
            Size::Full => 2.0,
            Size::Quick => 0.5,
            Size::Tiny => 0.05,
        }
    }

    /// How long the machine is left alone between two runs, once everything is synced.
    fn settle(&self) -> Duration {
        match self.size {
            Size::Full => Duration::from_secs(1),
            Size::Quick => Duration::from_millis(200),
            Size::Tiny => Duration::ZERO,
        }
    }

    /// Short runs need it often; a broker with a hundred threads costs a little each time.
    fn look_every(&self) -> Duration {
        Duration::from_millis(if self.size == Size::Tiny { 20 } else { 100 })
    }
}

/// A peer that was asked for and is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Which.
    pub system: String,
    /// Why, and how to get it.
    pub why: String,
}

/// What comes next, for whoever looks on.
#[derive(Clone, Debug)]
pub struct Step {
    /// In words.
    pub text: String,
    /// Measurements done.
    pub done: usize,
    /// Measurements in all, as far as is known.
    pub total: usize,
}

/// The first line of results.
pub fn header(command: Vec<String>, size: Size) -> Header {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Header {
        format: FORMAT,
        program: format!("kera-bench {}", env!("CARGO_PKG_VERSION")),
        command,
        started: utc(now.as_secs()),
        quick: size != Size::Full,
        machine: Machine::this(),
    }
}

/// Runs experiments one after the other. Every line goes to `sink` as soon as it is known, every step to `progress`.
///
/// A system that fails at a point is left out there, with a line that says why; only Ctrl-C and a `sink` that fails end a run.
pub fn run(
    experiments: &[Experiment],
    systems: &mut [Box<dyn System>],
    missing: &[Missing],
    options: &Options,
    stop: &Stop,
    sink: &mut dyn FnMut(Line) -> Result<(), BenchError>,
    progress: &mut dyn FnMut(&Step),
) -> Result<(), BenchError> {
    for system in systems.iter() {
        let (version, settings) = (system.version(), system.settings());
        sink(Line::System { system: system.name().into(), version, settings })?;
    }
    let mut runner = Runner { systems, options, stop, sink, progress, done: 0, total: 0 };
    runner.total = experiments.iter().map(|experiment| runner.count(experiment)).sum::<Result<usize, _>>()?;
    for experiment in experiments {
        (runner.sink)(Line::Experiment { experiment: Box::new(experiment.clone()) })?;
        for peer in missing.iter().filter(|peer| experiment.systems.contains(&peer.system)) {
            runner.skip(experiment, Some(&peer.system), None, peer.why.clone())?;
        }
        runner.experiment(experiment)?;
    }
    Ok(())
}

struct Runner<'a> {
    systems: &'a mut [Box<dyn System>],
    options: &'a Options,
    stop: &'a Stop,
    sink: &'a mut dyn FnMut(Line) -> Result<(), BenchError>,
    progress: &'a mut dyn FnMut(&Step),
    done: usize,
    total: usize,
}

impl Runner<'_> {
    fn points(&self, experiment: &Experiment) -> Result<Vec<Point>, BenchError> {
        let mut points = experiment.points(self.options.size != Size::Full)?;
        if self.options.size == Size::Tiny {
            points.iter_mut().for_each(|point| point.workload = point.workload.clone().tiny());
            // The ends of each line are where something breaks first.
            let all = points.clone();
            points.retain(|point| {
                let of_line = |other: &&Point| other.series == point.series;
                let first = all.iter().find(of_line).map(|p| p.x);
                let last = all.iter().rev().find(of_line).map(|p| p.x);
                Some(point.x) == first || Some(point.x) == last
            });
        }
        Ok(points)
    }

    /// Measurements that an experiment takes.
    fn count(&self, experiment: &Experiment) -> Result<usize, BenchError> {
        if experiment.needs.is_some() {
            return Ok(0);
        }
        let takes = |point: &Point| {
            let here = self.systems.iter().filter(|system| point.systems.iter().any(|name| name == system.name()));
            here.filter(|system| system.leaves_out(&point.workload).is_none()).count() * self.options.rounds(experiment)
        };
        Ok(self.points(experiment)?.iter().map(takes).sum())
    }

    fn skip(
        &mut self,
        experiment: &Experiment,
        system: Option<&str>,
        point: Option<&Point>,
        why: String,
    ) -> Result<(), BenchError> {
        let at = point.map_or(String::new(), |point| format!(" at {} {}", point.series, point.x));
        let text = format!("{}{at}: {} is left out: {why}", experiment.name, system.unwrap_or("all of it"));
        (self.progress)(&Step { text, done: self.done, total: self.total });
        (self.sink)(Line::Skipped(Skipped {
            experiment: experiment.name.clone(),
            system: system.map(str::to_owned),
            point: point.map(|point| (point.series.clone(), point.x)),
            why,
        }))
    }

    fn experiment(&mut self, experiment: &Experiment) -> Result<(), BenchError> {
        if let Some(needs) = &experiment.needs {
            return self.skip(experiment, None, None, format!("it needs {needs}"));
        }
        let mut disk = None;
        let mut measured_chunks = Vec::new();
        for point in self.points(experiment)? {
            let chunk_bytes = point.workload.chunk_bytes;
            let rounds = self.options.rounds(experiment);
            let mut ways = std::collections::BTreeMap::new();
            for round in 0..rounds {
                // Short runs measure a limit once; it is the systems that need their turns.
                if !measured_chunks.contains(&(chunk_bytes, round)) && (round == 0 || self.options.size == Size::Full) {
                    measured_chunks.push((chunk_bytes, round));
                    self.limits(experiment, chunk_bytes, &mut disk)?;
                }
                for n in 0..self.systems.len() {
                    self.measure(experiment, &point, round, n, &mut ways)?;
                }
            }
        }
        Ok(())
    }

    /// One system at one point. In the first round all ways to load it are tried, later ones take the best.
    fn measure(
        &mut self,
        experiment: &Experiment,
        point: &Point,
        round: usize,
        n: usize,
        best: &mut std::collections::BTreeMap<usize, Option<&'static str>>,
    ) -> Result<(), BenchError> {
        let name = self.systems[n].name();
        if !point.systems.iter().any(|system| system == name) {
            return Ok(());
        }
        if let Some(why) = self.systems[n].leaves_out(&point.workload) {
            return if round == 0 { self.skip(experiment, Some(name), Some(point), why) } else { Ok(()) };
        }
        let ways = match best.get(&n) {
            Some(Some(way)) => vec![*way],
            // It failed before.
            Some(None) => return Ok(()),
            None => self.systems[n].ways(&point.workload),
        };
        let mut found: Option<(f64, &'static str)> = None;
        let of = format!("{}, {} = {}", experiment.title, experiment.sweep.label, point.x);
        for way in ways {
            self.stop.check()?;
            let text = format!("{of}: {name} {way} ({} of {})", round + 1, self.options.rounds(experiment));
            (self.progress)(&Step { text, done: self.done, total: self.total });
            let job = Job {
                workload: &point.workload,
                way,
                records: (self.options.size == Size::Tiny).then_some(TINY_RECORDS),
                seconds: self.options.seconds(experiment),
                warmup_seconds: self.options.warmup_seconds(),
                look_every: self.options.look_every(),
                profile: self.options.profile,
                stop: self.stop,
            };
            match self.systems[n].measure(&job) {
                Ok(outcome) => {
                    let run = self.run_line(experiment, point, round, n, way, &outcome);
                    let value =
                        experiment.plots.first().and_then(|metric| Some((metric.of(&run.figures)?, metric.is_cost())));
                    let (value, is_cost) = value.unwrap_or((0.0, false));
                    if found.is_none_or(|(best, _)| if is_cost { value < best } else { value > best }) {
                        found = Some((value, way));
                    }
                    (self.sink)(Line::Run(Box::new(run)))?;
                    self.profile_line(experiment, point, name, &outcome)?;
                }
                Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
                Err(error) => {
                    self.systems[n].stop();
                    self.skip(experiment, Some(name), Some(point), format!("failed: {error}"))?;
                }
            }
            self.settle();
        }
        self.done += 1;
        best.entry(n).or_insert(found.map(|(_, way)| way));
        Ok(())
    }

    fn run_line(
        &self,
        experiment: &Experiment,
        point: &Point,
        round: usize,
        n: usize,
        way: &str,
        outcome: &Outcome,
    ) -> Run {
        let mut figures = outcome.figures.clone();
        // The load's own description says the same as the workload, at length.
        if let Some(fields) = figures.as_object_mut() {
            fields.remove("config");
            let clients = super::systems::kera::clients(&point.workload);
            fields.insert("clients".into(), clients);
            fields.insert("server_cores".into(), json!(outcome.usage.server_cores));
            fields.insert("server_bytes".into(), json!(outcome.usage.server_bytes));
        }
        Run {
            experiment: experiment.name.clone(),
            series: point.series.clone(),
            x: point.x,
            system: self.systems[n].name().into(),
            round,
            way: way.to_owned(),
            workload: point.workload.clone(),
            guarantees: self.systems[n].guarantees(&point.workload),
            figures,
            bound: Bound::of(&outcome.usage),
            usage: outcome.usage.clone(),
            command: outcome.command.clone(),
        }
    }

    fn profile_line(
        &mut self,
        experiment: &Experiment,
        point: &Point,
        system: &str,
        outcome: &Outcome,
    ) -> Result<(), BenchError> {
        if !self.options.profile || outcome.seen.is_empty() {
            return Ok(());
        }
        (self.sink)(Line::Profile(Box::new(Profile {
            experiment: experiment.name.clone(),
            series: point.series.clone(),
            x: point.x,
            system: system.to_owned(),
            ..Profile::new(&outcome.seen)
        })))
    }

    fn limits(
        &mut self,
        experiment: &Experiment,
        chunk_bytes: u64,
        disk: &mut Option<DiskRate>,
    ) -> Result<(), BenchError> {
        if experiment.limits.is_empty() {
            return Ok(());
        }
        let text = format!("{}: the limits of this machine", experiment.title);
        (self.progress)(&Step { text, done: self.done, total: self.total });
        let millis = match self.options.size {
            Size::Full => 1000,
            Size::Quick => 250,
            Size::Tiny => 10,
        };
        // The disk is measured once: it does not depend on the chunk, and takes long.
        let wants_disk = disk.is_none() && experiment.limits.iter().any(|limit| limit.is_disk());
        let config = LimitConfig {
            frame_bytes: vec![usize::try_from(chunk_bytes).unwrap_or(usize::MAX).clamp(64, 16 << 20)],
            time: Duration::from_millis(millis),
            rounds: 1,
            disk_dir: wants_disk.then(|| self.options.dir.clone()),
            disk_bytes: if self.options.size == Size::Full { 1 << 30 } else { 64 << 20 },
        };
        let mut report = limit::run(&config, |_| ())?;
        if wants_disk {
            (*disk).clone_from(&report.disk);
        } else {
            report.disk.clone_from(disk);
        }
        let experiment = experiment.name.clone();
        (self.sink)(Line::Limit { experiment, chunk_bytes, report })
    }

    /// Lets what one side left to be written reach the disk, so that the next does not pay for it.
    fn settle(&self) {
        if self.options.size != Size::Tiny {
            rustix::fs::sync();
        }
        std::thread::sleep(self.options.settle());
    }
}
