//! Medians, ratios, a table in Markdown and everything in JSON.

use std::fmt::Write;
use std::path::Path;

use kera_bench::BenchError;
use serde_json::{Value, json};

use crate::node::NodeFigures;
use crate::points::{KafkaClient, Metric, Point};

/// All points of a run.
pub(crate) struct Comparison {
    rounds: usize,
    seconds: f64,
    quick: bool,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) node: Option<NodeFigures>,
}

/// The runs of one point.
pub(crate) struct Outcome {
    point: Point,
    pub(crate) kera: Vec<Value>,
    /// For each way to load Kafka, its runs.
    kafka: Vec<Vec<Value>>,
    pub(crate) limit: Vec<f64>,
}

/// The way to load Kafka that was best for it.
struct Best<'a> {
    /// The median of its runs.
    value: f64,
    runs: &'a [Value],
    client: KafkaClient,
}

impl Metric {
    fn of(self, run: &Value) -> f64 {
        let figure = |pointer: &str| run.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0);
        match self {
            Metric::Rate => figure("/records_per_s"),
            Metric::RateOfBoth => figure("/records_per_s").min(figure("/consume/records_per_s")),
            Metric::Bytes => figure("/mib_per_s") * f64::from(1 << 20),
            Metric::AckP99 => figure("/latency_us/p99"),
            Metric::ReceiptP99 => figure("/consume/latency_us/p99"),
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Metric::Rate | Metric::RateOfBoth => format!("{:.2} M records/s", value / 1e6),
            Metric::Bytes if value >= 1e9 => format!("{:.2} GB/s", value / 1e9),
            Metric::Bytes => format!("{:.0} MB/s", value / 1e6),
            Metric::AckP99 | Metric::ReceiptP99 => format!("{:.2} ms", value / 1e3),
        }
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2]),
        n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

impl Outcome {
    pub(crate) fn new(point: &Point) -> Outcome {
        Outcome { point: point.clone(), kera: vec![], kafka: vec![vec![]; point.kafka.len()], limit: vec![] }
    }

    /// The runs of Kafka's `n`th way.
    pub(crate) fn kafka_of(&mut self, n: usize) -> &mut Vec<Value> {
        &mut self.kafka[n]
    }

    fn kera_median(&self) -> Option<f64> {
        median(self.kera.iter().map(|run| self.point.metric.of(run)))
    }

    /// The best way's median, its runs, and whose client that is.
    fn kafka_best(&self) -> Option<Best<'_>> {
        let ways = self.kafka.iter().zip(&self.point.kafka);
        let medians = ways.filter_map(|(runs, load)| {
            let value = median(runs.iter().map(|run| self.point.metric.of(run)))?;
            Some(Best { value, runs, client: load.client })
        });
        medians.max_by(|a, b| {
            let order = a.value.total_cmp(&b.value);
            if self.point.metric.is_time() { order.reverse() } else { order }
        })
    }

    /// The most records that retention took from KerA's consumers, unread, in one run: they had to read less than Kafka's, which keeps all.
    fn removed_max(&self) -> u64 {
        let of = |run: &Value| {
            let at = |pointer: &str| run.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
            at("/removed").max(at("/consume/removed"))
        };
        self.kera.iter().map(of).max().unwrap_or(0)
    }

    /// Bytes per second that headers make of a payload rate: what the limits are about.
    fn kera_for_limit(&self) -> Option<f64> {
        const RECORD: f64 = 100.0;
        self.kera_median().map(|bytes| bytes * (RECORD + kera_format::record::RECORD_HEADER_BYTES as f64) / RECORD)
    }

    fn ratio(&self) -> Option<f64> {
        let limit = median(self.limit.iter().copied());
        match (limit, self.kafka_best()) {
            (Some(limit), _) => Some(self.kera_for_limit()? / limit),
            (None, Some(kafka)) if self.point.metric.is_time() => Some(kafka.value / self.kera_median()?),
            (None, Some(kafka)) => Some(self.kera_median()? / kafka.value),
            (None, None) => None,
        }
    }

    /// Both figures in words.
    pub(crate) fn summary(&self) -> Option<(String, String)> {
        let metric = self.point.metric;
        let other = match (median(self.limit.iter().copied()), self.kafka_best()) {
            (Some(limit), _) => format!("{} ({})", metric.show(limit), self.point.limit?.name()),
            (None, Some(kafka)) => format!("{} ({})", metric.show(kafka.value), kafka.client.name()),
            (None, None) => return None,
        };
        let kera = if self.point.limit.is_some() { self.kera_for_limit()? } else { self.kera_median()? };
        Some((self.with_removed(metric.show(kera)), other))
    }

    /// KerA's figure with what its consumers did not have to read.
    fn with_removed(&self, kera: String) -> String {
        match self.removed_max() {
            0 => kera,
            removed => format!("{kera} (retention took up to {removed} records unread)"),
        }
    }

    fn cost(runs: &[Value]) -> String {
        let of = |pointer: &str| median(runs.iter().filter_map(|run| run.pointer(pointer)?.as_f64()));
        let cpu = of("/server/cpu_seconds").zip(of("/seconds")).map(|(cpu, seconds)| cpu / seconds.max(1e-9));
        let cpu = cpu.map_or("-".into(), |cores| format!("{cores:.2}"));
        let memory =
            of("/server/resident_bytes").map_or("-".into(), |bytes| format!("{:.0}", bytes / f64::from(1 << 20)));
        format!("{cpu} / {memory}")
    }

    fn to_json(&self) -> Value {
        json!({
            "name": self.point.name,
            "title": self.point.title,
            "kera_command": self.point.kera,
            "kafka_commands": self.point.kafka,
            "kera_median": self.kera_median(),
            "kera_removed_max": self.removed_max(),
            "kafka_median": self.kafka_best().map(|best| best.value),
            "kafka_client": self.kafka_best().map(|best| best.client),
            "limit_median": median(self.limit.iter().copied()),
            "ratio": self.ratio(),
            "target": self.point.target,
            "reached": self.ratio().map(|ratio| ratio >= self.point.target),
            "kera_runs": self.kera,
            "kafka_runs": self.kafka,
            "limit_runs": self.limit,
        })
    }
}

impl Comparison {
    pub(crate) fn new(rounds: usize, seconds: f64, quick: bool) -> Comparison {
        Comparison { rounds, seconds, quick, outcomes: vec![], node: None }
    }

    /// The table.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let quick = if self.quick { "; a quick run, not to be quoted" } else { "" };
        let _ =
            writeln!(text, "Medians of {} rounds of {} s, both sides in turns{quick}.\n", self.rounds, self.seconds);
        text += "| point | KerA | against | ratio | wanted | server CPU cores / MiB: KerA | Kafka |\n";
        text += "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
        for outcome in &self.outcomes {
            let (kera, other) = outcome.summary().unwrap_or_else(|| {
                let kera = outcome.kera_median().map(|value| outcome.with_removed(outcome.point.metric.show(value)));
                (kera.unwrap_or("-".into()), "-".into())
            });
            let share = outcome.point.limit.is_some();
            let ratio = |ratio: f64| if share { format!("{:.0}%", ratio * 100.0) } else { format!("{ratio:.1}x") };
            let _ = writeln!(
                text,
                "| {} | {kera} | {other} | {} | {} | {} | {} |",
                outcome.point.title,
                outcome.ratio().map_or("-".into(), ratio),
                ratio(outcome.point.target),
                Outcome::cost(&outcome.kera),
                outcome.kafka_best().map_or("-".into(), |best| Outcome::cost(best.runs)),
            );
        }
        if let Some(node) = &self.node {
            text.push('\n');
            text += &node.markdown();
        }
        text
    }

    /// Writes both files.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), BenchError> {
        let all = json!({
            "rounds": self.rounds,
            "seconds": self.seconds,
            "quick": self.quick,
            "points": self.outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>(),
            "node": self.node,
        });
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(dir)?;
            std::fs::write(dir.join("compare.json"), format!("{all:#}\n"))?;
            std::fs::write(dir.join("compare.md"), self.markdown())
        };
        write().map_err(|e| BenchError::io_at("writing to", dir, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::points::{self, Scale};

    fn outcome(name: &str) -> Outcome {
        let points = points::all(&Scale { seconds: 1.0, quick: true });
        Outcome::new(points.iter().find(|point| point.name == name).expect("there is one"))
    }

    #[test]
    fn records_that_consumers_did_not_have_to_read_are_in_the_row() {
        let mut outcome = outcome("both-16k");
        let run =
            |removed: u64| json!({ "records_per_s": 9e6, "consume": { "records_per_s": 8e6, "removed": removed } });
        outcome.kera.push(run(0));
        assert_eq!((outcome.removed_max(), outcome.with_removed("8.00 M".into())), (0, "8.00 M".into()));
        outcome.kera.extend([run(1_200_000), run(7)]);
        outcome.kafka_of(0).push(json!({ "records_per_s": 2e6, "consume": { "records_per_s": 1e6 } }));
        let mut comparison = Comparison::new(3, 1.0, true);
        comparison.outcomes.push(outcome);
        let table = comparison.markdown();
        assert!(table.contains("8.00 M records/s (retention took up to 1200000 records unread)"), "{table}");
        assert!(table.contains("| 8.0x |"), "{table}");
    }

    #[test]
    fn the_better_of_kafkas_clients_counts_and_is_named() {
        for name in ["latency-ack", "latency-receipt"] {
            let mut outcome = outcome(name);
            let run = |p99: f64| {
                let side = json!({ "p99": p99 });
                json!({ "latency_us": side, "consume": { "latency_us": side } })
            };
            outcome.kera.push(run(1000.0));
            outcome.kafka_of(0).push(run(2_500_000.0));
            outcome.kafka_of(1).push(run(9000.0));
            assert_eq!(outcome.ratio(), Some(9.0));
            assert_eq!(outcome.summary().unwrap().1, "9.00 ms (Java client)");
        }
    }
}
