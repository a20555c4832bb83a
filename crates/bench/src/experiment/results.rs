//! Raw results: `results.jsonl`, one JSON object a line, so that plots can be drawn again from them.
//!
//! The first line is a header with the format's version. Readers skip kinds of lines that they do not know; a version that they
//! do not know they refuse. `docs/performance/results-format.md` describes every kind.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::definition::Experiment;
use super::metric::{Limit, Metric};
use super::sample::{Bound, Usage};
use super::workload::Workload;
use crate::BenchError;
use crate::limit::LimitReport;

/// The version of the format that is written.
pub const FORMAT: u32 = 1;
/// The file's name in a folder of results.
pub const FILE: &str = "results.jsonl";

/// A line of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Line {
    /// The first one.
    Header(Header),
    /// An experiment begins.
    Experiment {
        /// As its file says it.
        experiment: Box<Experiment>,
    },
    /// A system that takes part.
    System {
        /// Its name.
        system: String,
        /// Versions of server and load generator.
        version: String,
        /// How its server is set up, for people.
        settings: String,
    },
    /// A measurement.
    Run(Box<Run>),
    /// Limits of the machine.
    Limit {
        /// Of which experiment.
        experiment: String,
        /// For chunks of this size.
        chunk_bytes: u64,
        /// What was measured.
        report: LimitReport,
    },
    /// What was not measured, and why.
    Skipped(Skipped),
    /// How far a run came that kept to a time.
    Budget(Budget),
    /// Where the time of a profiled run went.
    Profile(Box<super::profile::Profile>),
    /// A kind of a later program.
    #[serde(other)]
    Unknown,
}

/// What all lines share.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: u32,
    /// The program and its version.
    pub program: String,
    /// How it was called.
    pub command: Vec<String>,
    /// When it started, UTC.
    pub started: String,
    /// Whether these are short runs, not to be quoted.
    pub quick: bool,
    /// Where it ran.
    pub machine: Machine,
}

/// A machine.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name.
    pub processor: String,
    /// Cores that the program may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Version of the kernel.
    pub kernel: String,
}

/// One measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Run {
    /// Of which experiment.
    pub experiment: String,
    /// Which line; empty if there is one only.
    pub series: String,
    /// Where on the axis.
    pub x: f64,
    /// Of which system.
    pub system: String,
    /// The how manieth of this system at this point, from 0.
    pub round: usize,
    /// Which of several ways to load the system; empty if there is one only.
    pub way: String,
    /// What was done.
    pub workload: Workload,
    /// What an acknowledgement meant in this run.
    pub guarantees: String,
    /// What the load generator printed, and what was seen from outside.
    pub figures: Value,
    /// What it cost.
    pub usage: Usage,
    /// What held it back.
    pub bound: Bound,
    /// The load generator and its flags, to do it again.
    pub command: Vec<String>,
}

/// What was not measured.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Skipped {
    /// Which experiment.
    pub experiment: String,
    /// Which system; `None`: none of them.
    pub system: Option<String>,
    /// Which line and where on the axis; `None`: nowhere.
    pub point: Option<(String, f64)>,
    /// Why, and what to do about it.
    pub why: String,
}

/// How far a run came that kept to a time.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Budget {
    /// Minutes that it was given.
    pub minutes: f64,
    /// Minutes that it took.
    pub took_minutes: f64,
    /// Measurements that there were to be, all rounds counted.
    pub planned: usize,
    /// Those that there are.
    pub measured: usize,
}

/// Writes lines as they come, so that nothing is lost if a later one fails.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Starts a file in a folder, which is made. A folder that has results already is refused.
    pub fn create(dir: &Path, header: Header) -> Result<Writer, BenchError> {
        std::fs::create_dir_all(dir).map_err(|e| BenchError::io_at("creating", dir, e))?;
        let path = dir.join(FILE);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = file.map_err(|e| BenchError::io_at("creating (choose another --out if it is there)", &path, e))?;
        let mut writer = Writer { path, file };
        writer.write(&Line::Header(header))?;
        Ok(writer)
    }

    /// Adds a line.
    pub fn write(&mut self, line: &Line) -> Result<(), BenchError> {
        let written = serde_json::to_string(line).map_err(std::io::Error::other);
        let written = written.and_then(|text| writeln!(self.file, "{text}"));
        written.map_err(|e| BenchError::io_at("writing", &self.path, e))
    }
}

/// What a file says.
#[derive(Clone, Debug)]
pub struct Results {
    /// The first line.
    pub header: Header,
    /// In the order in which they were run.
    pub experiments: Vec<Experiment>,
    /// Name, version and settings.
    pub systems: BTreeMap<String, (String, String)>,
    /// All measurements.
    pub runs: Vec<Run>,
    /// Experiment, chunk size, limits; several of each.
    pub limits: Vec<(String, u64, LimitReport)>,
    /// What was not measured.
    pub skipped: Vec<Skipped>,
    /// Of each run that kept to a time, how far it came.
    pub budgets: Vec<Budget>,
    /// Profiles.
    pub profiles: Vec<super::profile::Profile>,
}

impl Results {
    /// Reads a folder of results, or the file itself.
    pub fn read(path: &Path) -> Result<Results, BenchError> {
        let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let text = std::fs::read_to_string(&path)
            .map_err(|e| BenchError::io_at("reading results (`kera-bench run NAME` makes some)", &path, e))?;
        Results::parse(&text).map_err(|message| BenchError::server(format!("reading {}", path.display()), message))
    }

    /// Reads several, which have to be of the same machine and kind: a tour that was run in pieces. Of an experiment that several have,
    /// the first counts.
    pub fn read_all(paths: &[PathBuf]) -> Result<Results, BenchError> {
        let mut all = paths.iter().map(|path| Results::read(path));
        let mut first = all.next().unwrap_or_else(|| Err(BenchError::setting("results", "say which")))?;
        for next in all {
            first.add(next?)?;
        }
        Ok(first)
    }

    fn add(&mut self, other: Results) -> Result<(), BenchError> {
        let (mine, theirs) = (&self.header, &other.header);
        if (&mine.machine, mine.quick) != (&theirs.machine, theirs.quick) {
            let message =
                "they are of different machines, or some are of short runs and some are not; make a report of each";
            return Err(BenchError::setting("results", message));
        }
        let known: Vec<String> = self.experiments.iter().map(|experiment| experiment.name.clone()).collect();
        let is_new = |name: &String| !known.contains(name);
        self.header.command.extend(["and".into()].into_iter().chain(other.header.command));
        self.experiments.extend(other.experiments.into_iter().filter(|one| is_new(&one.name)));
        self.systems.extend(other.systems);
        self.runs.extend(other.runs.into_iter().filter(|run| is_new(&run.experiment)));
        self.limits.extend(other.limits.into_iter().filter(|(name, _, _)| is_new(name)));
        self.budgets.extend(other.budgets);
        self.skipped.extend(other.skipped.into_iter().filter(|one| is_new(&one.experiment)));
        self.profiles.extend(other.profiles.into_iter().filter(|one| is_new(&one.experiment)));
        Ok(())
    }

    fn parse(text: &str) -> Result<Results, String> {
        let mut lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
        let (_, first) = lines.next().ok_or("it is empty")?;
        let Ok(Line::Header(header)) = serde_json::from_str(first) else {
            return Err("the first line is no header".into());
        };
        if header.format != FORMAT {
            return Err(format!("it has format {}, this program reads format {FORMAT}", header.format));
        }
        let mut results = Results {
            header,
            experiments: vec![],
            systems: BTreeMap::new(),
            runs: vec![],
            limits: vec![],
            skipped: vec![],
            budgets: vec![],
            profiles: vec![],
        };
        for (number, line) in lines {
            match serde_json::from_str(line).map_err(|e| format!("line {}: {e}", number + 1))? {
                Line::Header(_) | Line::Unknown => {}
                Line::Experiment { experiment } => results.experiments.push(*experiment),
                Line::System { system, version, settings } => {
                    results.systems.insert(system, (version, settings));
                }
                Line::Run(run) => results.runs.push(*run),
                Line::Limit { experiment, chunk_bytes, report } => {
                    results.limits.push((experiment, chunk_bytes, report))
                }
                Line::Skipped(skipped) => results.skipped.push(skipped),
                Line::Budget(budget) => results.budgets.push(budget),
                Line::Profile(profile) => results.profiles.push(*profile),
            }
        }
        Ok(results)
    }

    /// The points of an experiment that were measured, in order: line, place on the axis, workload.
    pub fn points(&self, experiment: &Experiment) -> Vec<(String, f64, Workload)> {
        let mut points: Vec<(String, f64, Workload)> = Vec::new();
        for run in self.runs.iter().filter(|run| run.experiment == experiment.name) {
            if !points.iter().any(|(series, x, _)| *series == run.series && *x == run.x) {
                points.push((run.series.clone(), run.x, run.workload.clone()));
            }
        }
        points
    }

    /// Systems that were measured in an experiment, KerA first.
    pub fn systems_of(&self, experiment: &str) -> Vec<String> {
        let mut systems: Vec<String> = Vec::new();
        for run in self.runs.iter().filter(|run| run.experiment == experiment) {
            if !systems.contains(&run.system) {
                systems.push(run.system.clone());
            }
        }
        systems.sort_by_key(|system| system != "kera");
        systems
    }

    /// Runs of one system at one point: of the way that is best there by `metric`.
    pub fn runs_at(&self, experiment: &str, series: &str, x: f64, system: &str, metric: Metric) -> Vec<&Run> {
        let mut ways: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        let here =
            |run: &&Run| run.experiment == experiment && run.series == series && run.x == x && run.system == system;
        self.runs.iter().filter(here).for_each(|run| ways.entry(&run.way).or_default().push(run));
        let best = ways.into_values().max_by(|a, b| {
            let of =
                |runs: &[&Run]| Spread::of(runs.iter().filter_map(|run| metric.of(&run.figures))).map(|s| s.median);
            let order = of(a).partial_cmp(&of(b)).unwrap_or(std::cmp::Ordering::Equal);
            if metric.is_cost() { order.reverse() } else { order }
        });
        best.unwrap_or_default()
    }

    /// A metric of one system at one point.
    pub fn figure(
        &self,
        experiment: &Experiment,
        series: &str,
        x: f64,
        system: &str,
        metric: Metric,
    ) -> Option<Spread> {
        let main = *experiment.plots.first()?;
        let runs = self.runs_at(&experiment.name, series, x, system, main);
        Spread::of(runs.iter().filter_map(|run| metric.of(&run.figures)))
    }

    /// The median of a limit at a point.
    pub fn limit(&self, experiment: &str, workload: &Workload, limit: Limit, metric: Metric) -> Option<f64> {
        let reports = self.limits.iter().filter(|(of, chunk, _)| of == experiment && *chunk == workload.chunk_bytes);
        Spread::of(reports.filter_map(|(_, _, report)| limit.of(metric, workload, report))).map(|spread| spread.median)
    }
}

/// Several measurements of the same.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spread {
    /// The one in the middle.
    pub median: f64,
    /// The smallest.
    pub least: f64,
    /// The largest.
    pub most: f64,
    /// How many.
    pub count: usize,
}

impl Spread {
    /// Of nothing there is none.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let median = crate::limit::median(&mut values);
        Some(Spread { median, least: *values.first()?, most: *values.last()?, count: values.len() })
    }

    /// How far apart they are, as a share of the median.
    pub fn width(&self) -> f64 {
        if self.median > 0.0 { (self.most - self.least) / self.median } else { 0.0 }
    }
}

impl Machine {
    /// This one. What cannot be found out is empty.
    pub fn this() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| -> Option<String> {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib: u64 = memory.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0);
        Machine {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_bytes: kib * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// A moment in UTC, `2026-01-31 23:59:58`, from seconds since 1970.
pub fn utc(seconds: u64) -> String {
    // Days to dates: the calendar repeats every 400 years, which begin in March so that a leap day comes last.
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let of_day = seconds % 86_400;
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_at_the_edges() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(utc(4_107_542_400), "2100-03-01 00:00:00");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59:59");
    }

    #[test]
    fn spreads() {
        let spread = Spread::of([3.0, 1.0, 2.0, f64::NAN].into_iter()).unwrap();
        assert_eq!((spread.median, spread.least, spread.most, spread.count), (2.0, 1.0, 3.0, 3));
        assert_eq!(spread.width(), 1.0);
        assert!(Spread::of(std::iter::empty()).is_none());
    }

    #[test]
    fn lines_of_later_programs_are_skipped_and_later_formats_refused() {
        let header = Header {
            format: FORMAT,
            program: "kera-bench".into(),
            command: vec![],
            started: utc(0),
            quick: true,
            machine: Machine::default(),
        };
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::create(dir.path(), header.clone()).unwrap();
        assert!(Writer::create(dir.path(), header.clone()).unwrap_err().to_string().contains("--out"));
        let skipped =
            Skipped { experiment: "x".into(), system: None, point: Some(("a".into(), 1.0)), why: "no".into() };
        writer.write(&Line::Skipped(skipped.clone())).unwrap();
        let results = Results::read(dir.path()).unwrap();
        assert_eq!(results.skipped, [skipped]);
        let twice = Results::read_all(&[dir.path().to_owned(), dir.path().to_owned()]).unwrap();
        assert_eq!(twice.skipped.len(), 2, "nothing was run, so nothing is there twice");
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(Results::parse(&format!("{text}{{\"kind\":\"sonnet\",\"lines\":14}}\n")).is_ok());
        assert!(Results::parse(&format!("{text}{{\"kind\":\"run\"}}\n")).unwrap_err().contains("line 3"));
        let later = text.replace("\"format\":1", "\"format\":2");
        assert!(Results::parse(&later).unwrap_err().contains("format 2"));
    }
}
