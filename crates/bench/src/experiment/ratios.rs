//! Ratios of one run: KerA against each peer, and against the limits of the machine. They are what is compared between days and
//! machines; times never are.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::metric::Metric;
use super::results::{Results, Spread};
use crate::BenchError;

/// The version of the format of recorded ratios.
pub const FORMAT: u32 = 1;
/// How far a ratio may be off before it counts, whatever single runs say: machines are shared, and runs are short.
const TOLERANCE: f64 = 0.4;
/// The same for times: tails jump more.
const TOLERANCE_OF_TIMES: f64 = 1.5;
/// How far apart runs are taken to be of which there is only one.
const WIDTH_OF_ONE: f64 = 0.8;

/// KerA against something, above 1 if KerA is better (or for limits: the share of what is possible).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ratio {
    /// Which experiment.
    pub experiment: String,
    /// Which line.
    pub series: String,
    /// Where on the axis.
    pub x: f64,
    /// Of which figure.
    pub metric: Metric,
    /// A peer, or a limit.
    pub against: String,
    /// KerA ÷ the other; the other ÷ KerA where less is better.
    pub ratio: f64,
    /// How far apart single runs were, both sides together, as a share.
    pub width: f64,
}

/// Recorded ratios, as a file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recorded {
    /// [`FORMAT`].
    pub format: u32,
    /// When they were measured.
    pub measured: String,
    /// On what.
    pub machine: String,
    /// All of them.
    pub ratios: Vec<Ratio>,
}

/// All ratios of the first plot of each experiment.
pub fn of(results: &Results) -> Recorded {
    let mut ratios = Vec::new();
    for experiment in &results.experiments {
        let Some(&metric) = experiment.plots.first() else { continue };
        for (series, x, workload) in results.points(experiment) {
            let Some(kera) = results.figure(experiment, &series, x, "kera", metric) else { continue };
            let mut add = |against: String, other: f64, width: f64| {
                let ratio = if metric.is_cost() { other / kera.median } else { kera.median / other };
                if ratio.is_finite() && ratio > 0.0 {
                    let (experiment, series) = (experiment.name.clone(), series.clone());
                    ratios.push(Ratio { experiment, series, x, metric, against, ratio, width });
                }
            };
            for system in results.systems_of(&experiment.name).iter().filter(|system| *system != "kera") {
                if let Some(peer) = results.figure(experiment, &series, x, system, metric) {
                    add(system.clone(), peer.median, width(&kera) + width(&peer));
                }
            }
            for &limit in &experiment.limits {
                if let Some(value) = results.limit(&experiment.name, &workload, limit, metric) {
                    add(limit.label().to_owned(), value, width(&kera));
                }
            }
        }
    }
    let machine = &results.header.machine;
    let machine = format!("{}, {} cores", machine.processor, machine.cores);
    Recorded { format: FORMAT, measured: results.header.started.clone(), machine, ratios }
}

/// How far apart the runs of one side were, as a share: one alone does not tell, and is taken to be as far off as short runs are at times.
fn width(spread: &Spread) -> f64 {
    if spread.count > 1 { spread.width() } else { WIDTH_OF_ONE }
}

/// Reads recorded ratios, or those of a folder of results.
pub fn read(path: &Path) -> Result<Recorded, BenchError> {
    if path.is_dir() || path.extension().is_some_and(|ending| ending == "jsonl") {
        return Results::read(path).map(|results| of(&results));
    }
    let text = std::fs::read_to_string(path).map_err(|e| {
        BenchError::io_at("reading ratios (a folder of results, or what `kera-bench record` wrote)", path, e)
    })?;
    let wrong = |message: String| BenchError::server(format!("reading {}", path.display()), message);
    let recorded: Recorded = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    match recorded.format {
        FORMAT => Ok(recorded),
        other => Err(wrong(format!("it has format {other}, this program reads format {FORMAT}"))),
    }
}

/// What became of a ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// KerA lost ground, by more than noise explains.
    Slower,
    /// Within what runs differ anyhow.
    Same,
    /// KerA gained ground, by more than noise explains.
    Faster,
}

/// A ratio of two runs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Where.
    pub at: Ratio,
    /// The ratio of the later run.
    pub now: f64,
    /// By which factor it may be off.
    pub allowed: f64,
    /// What that means.
    pub verdict: Verdict,
}

/// Compares what both have. Ratios that only one of them has say nothing.
pub fn compare(before: &Recorded, after: &Recorded) -> Vec<Change> {
    let same = |a: &Ratio, b: &Ratio| {
        (&a.experiment, &a.series, a.x, a.metric, &a.against) == (&b.experiment, &b.series, b.x, b.metric, &b.against)
    };
    let pairs = before.ratios.iter().filter_map(|a| Some((a, after.ratios.iter().find(|b| same(a, b))?)));
    pairs.map(|(a, b)| change(a, b)).collect()
}

fn change(before: &Ratio, after: &Ratio) -> Change {
    let usual = if before.metric.is_cost() { TOLERANCE_OF_TIMES } else { TOLERANCE };
    // Where single runs of either day were further apart than that, nothing less can be told.
    let allowed = 1.0 + usual.max(before.width).max(after.width);
    let change = after.ratio / before.ratio;
    let verdict = match change {
        c if c * allowed < 1.0 => Verdict::Slower,
        c if c > allowed => Verdict::Faster,
        _ => Verdict::Same,
    };
    Change { at: before.clone(), now: after.ratio, allowed, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(metric: Metric, ratio: f64, width: f64) -> Recorded {
        let one = Ratio {
            experiment: "e".into(),
            series: String::new(),
            x: 1.0,
            metric,
            against: "kafka".into(),
            ratio,
            width,
        };
        Recorded { format: FORMAT, measured: String::new(), machine: String::new(), ratios: vec![one] }
    }

    fn verdict(before: Recorded, after: Recorded) -> Verdict {
        compare(&before, &after)[0].verdict
    }

    #[test]
    fn noise_is_forgiven_and_a_loss_is_not() {
        let rate = |ratio, width| recorded(Metric::RecordsPerS, ratio, width);
        assert_eq!(verdict(rate(10.0, 0.1), rate(7.5, 0.1)), Verdict::Same);
        assert_eq!(verdict(rate(10.0, 0.1), rate(6.0, 0.1)), Verdict::Slower);
        assert_eq!(verdict(rate(10.0, 0.1), rate(6.0, 0.9)), Verdict::Same, "runs that far apart tell nothing");
        assert_eq!(verdict(rate(10.0, 0.1), rate(20.0, 0.1)), Verdict::Faster);
        let time = |ratio| recorded(Metric::AckP99, ratio, 0.1);
        assert_eq!(verdict(time(10.0), time(5.0)), Verdict::Same);
        assert_eq!(verdict(time(10.0), time(3.0)), Verdict::Slower);
    }

    #[test]
    fn one_run_alone_is_not_taken_for_an_exact_one() {
        let of = |values: &[f64]| width(&Spread::of(values.iter().copied()).unwrap());
        assert_eq!((of(&[3.0]), of(&[3.0, 3.0]), of(&[2.0, 3.0, 4.0])), (WIDTH_OF_ONE, 0.0, 2.0 / 3.0));
    }

    #[test]
    fn what_only_one_of_them_has_is_not_compared() {
        let (a, mut b) = (recorded(Metric::RecordsPerS, 1.0, 0.0), recorded(Metric::RecordsPerS, 0.1, 0.0));
        b.ratios[0].against = "redis".into();
        assert!(compare(&a, &b).is_empty());
    }

    #[test]
    fn what_was_recorded_can_be_read_and_a_later_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ratios.json");
        let mut one = recorded(Metric::RecordsPerS, 2.0, 0.1);
        std::fs::write(&path, serde_json::to_string(&one).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), one);
        one.format = 9;
        std::fs::write(&path, serde_json::to_string(&one).unwrap()).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("format 9"));
    }
}
