//! Experiments as files: what is swept, over which workload, on which systems, what it shows and which figure it follows.
//! `experiments/README.md` describes the format.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::metric::{Limit, Metric};
use super::workload::Workload;
use crate::BenchError;

/// An experiment, as its file says it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name on the command line: the file's.
    #[serde(default)]
    pub name: String,
    /// One line.
    pub title: String,
    /// Paper and figure, or "our own".
    pub follows: String,
    /// What it shows, and what to look at.
    pub shows: String,
    /// How the paper's setup differs from this one.
    #[serde(default)]
    pub differs: String,
    /// What it needs that is not there; it is listed, and skipped by name.
    #[serde(default)]
    pub needs: Option<String>,
    /// Whether it is part of the quick tour.
    #[serde(default)]
    pub tour: bool,
    /// Systems that can run it.
    #[serde(default = "kera_alone")]
    pub systems: Vec<String>,
    /// What is drawn, a plot each; the first is what ratios are about.
    pub plots: Vec<Metric>,
    /// Limits of the machine that are measured in the same run and drawn.
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// Times that each system is measured at each point.
    #[serde(default = "three")]
    pub rounds: usize,
    /// Seconds of each measurement.
    #[serde(default = "five")]
    pub seconds: f64,
    /// Those of a quick run: what cannot be seen in a second says how many it takes.
    #[serde(default = "one")]
    pub quick_seconds: f64,
    /// The workload that all points share.
    #[serde(default)]
    pub workload: toml::Table,
    /// What changes from point to point.
    pub sweep: Sweep,
    /// Lines of the plot; none: one for each system.
    #[serde(default)]
    pub series: Vec<Series>,
}

/// The axis.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// A knob of the workload.
    pub knob: String,
    /// What people call it.
    pub label: String,
    /// Its values.
    pub values: Vec<f64>,
    /// Those of a quick run; empty: all.
    #[serde(default)]
    pub quick: Vec<f64>,
}

/// A line of the plot.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// What it is called.
    pub name: String,
    /// Knobs that differ from the workload.
    pub set: toml::Table,
    /// Only these values of the axis; empty: all.
    #[serde(default)]
    pub only: Vec<f64>,
    /// Only these systems; empty: all of the experiment.
    #[serde(default)]
    pub systems: Vec<String>,
    /// Whether a quick run leaves it out.
    #[serde(default)]
    pub slow: bool,
}

/// One point: a workload with its place in the plot.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// The line's name; empty if there is one line only.
    pub series: String,
    /// Where on the axis.
    pub x: f64,
    /// What is done.
    pub workload: Workload,
    /// Systems that may run it.
    pub systems: Vec<String>,
}

fn kera_alone() -> Vec<String> {
    vec!["kera".into()]
}

fn three() -> usize {
    3
}

fn five() -> f64 {
    5.0
}

fn one() -> f64 {
    1.0
}

impl Experiment {
    /// Reads an experiment. The error names the file and what is wrong in it.
    pub fn parse(name: &str, text: &str) -> Result<Experiment, BenchError> {
        let wrong = |message: String| BenchError::setting("experiments", format!("{name}.toml: {message}"));
        let mut experiment: Experiment = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        experiment.name = name.to_owned();
        if experiment.plots.is_empty() || experiment.sweep.values.is_empty() {
            return Err(wrong("`plots` and `sweep.values` must not be empty".into()));
        }
        if experiment.points(false).map_err(|e| wrong(e.to_string()))?.is_empty() {
            return Err(wrong("no series has any of the values of the sweep".into()));
        }
        Ok(experiment)
    }

    /// Whether it needs several nodes at any of its points.
    pub fn is_of_a_cluster(&self) -> bool {
        self.points(false).is_ok_and(|points| points.iter().any(|point| point.workload.nodes > 1))
    }

    /// Its points in the order in which they are run.
    pub fn points(&self, quick: bool) -> Result<Vec<Point>, BenchError> {
        let sweep = &self.sweep;
        let values = if quick && !sweep.quick.is_empty() { &sweep.quick } else { &sweep.values };
        let one = [Series::default()];
        let series: &[Series] = if self.series.is_empty() { &one } else { &self.series };
        let mut points = Vec::new();
        for line in series.iter().filter(|line| !(quick && line.slow)) {
            for &x in values.iter().filter(|x| line.only.is_empty() || line.only.contains(x)) {
                let mut table = self.workload.clone();
                table.insert(sweep.knob.clone(), number(x));
                table.extend(line.set.clone());
                let systems = if line.systems.is_empty() { &self.systems } else { &line.systems };
                let workload = Workload::from_table(&table)?;
                points.push(Point { series: line.name.clone(), x, workload, systems: systems.clone() });
            }
        }
        Ok(points)
    }
}

/// Whole numbers as such: most knobs are.
fn number(x: f64) -> toml::Value {
    if x.fract() == 0.0 && x.abs() < 9e15 { toml::Value::Integer(x as i64) } else { toml::Value::Float(x) }
}

/// All experiments of a folder, by name.
pub fn load_all(dir: &Path) -> Result<Vec<Experiment>, BenchError> {
    let entries = std::fs::read_dir(dir).map_err(|e| {
        let message =
            format!("{}: {e}; run it in the repository's root, or say where the experiments are", dir.display());
        BenchError::setting("experiments", message)
    })?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    files.iter().map(|path| load(path)).collect()
}

fn load(path: &Path) -> Result<Experiment, BenchError> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let text = std::fs::read_to_string(path).map_err(|e| BenchError::io_at("reading", path, e))?;
    Experiment::parse(&name, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
title = "t"
follows = "f"
shows = "s"
plots = ["records-per-s"]
[workload]
mode = "both"
[sweep]
knob = "streamlets"
label = "streamlets"
values = [1, 4, 16]
quick = [4]
[[series]]
name = "one lane"
set = {}
[[series]]
name = "four streamlets of four lanes"
set = { streamlets = 4, lanes = 4 }
only = [16]
systems = ["kera"]
"#;

    #[test]
    fn points_are_series_times_values() {
        let experiment = Experiment::parse("x", TEXT).unwrap();
        let points = experiment.points(false).unwrap();
        assert_eq!(points.iter().map(|p| p.x).collect::<Vec<_>>(), [1.0, 4.0, 16.0, 16.0]);
        assert_eq!(points[2].workload.streamlets, 16);
        assert_eq!((points[3].workload.streamlets, points[3].workload.lanes), (4, 4));
        assert_eq!(experiment.points(true).unwrap().len(), 1);
        assert!(!experiment.is_of_a_cluster());
        let several = TEXT.replace("set = {}", "set = { nodes = 3 }");
        assert!(Experiment::parse("x", &several).unwrap().is_of_a_cluster());
    }

    #[test]
    fn mistakes_name_the_file_and_the_word() {
        for (from, to, word) in [
            ("knob = \"streamlets\"", "knob = \"streamlet\"", "streamlet"),
            ("values = [1, 4, 16]", "values = []", "sweep.values"),
            ("title = \"t\"", "titel = \"t\"", "titel"),
            ("records-per-s", "record-per-s", "record-per-s"),
        ] {
            let error = Experiment::parse("x", &TEXT.replace(from, to)).unwrap_err().to_string();
            assert!(error.contains("x.toml") && error.contains(word), "{error}");
        }
    }
}
