//! The picture above all others: for each experiment how far ahead of each peer KerA is, or behind, over all of its points.

use std::fmt::Write;

use super::html::escaped;
use super::{name_of, plot, times};
use crate::experiment::definition::Experiment;
use crate::experiment::ratios::Ratio;

const WIDTH: f64 = 1000.0;
/// Where names end and bars begin.
const LEFT: f64 = 330.0;
/// What is kept free for figures behind the bars.
const RIGHT: f64 = 110.0;
const TOP: f64 = 34.0;
const BAR: f64 = 12.0;
const BAR_APART: f64 = 17.0;
const ROWS_APART: f64 = 14.0;
const MARKS: [f64; 11] = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

/// A peer in an experiment: the least and the most that KerA is ahead of it.
#[derive(Clone, PartialEq, Debug)]
struct Range<'a> {
    peer: &'a str,
    least: f64,
    most: f64,
}

/// Draws it; `None` if no peer was measured.
pub(super) fn draw<'a>(experiments: impl Iterator<Item = &'a Experiment>, ratios: &[Ratio]) -> Option<String> {
    let rows = experiments.map(|experiment| (experiment.title.as_str(), ranges(&experiment.name, ratios)));
    let rows: Vec<(&str, Vec<Range<'_>>)> = rows.filter(|(_, ranges)| !ranges.is_empty()).collect();
    let all = || rows.iter().flat_map(|(_, ranges)| ranges);
    let least = all().map(|range| range.least).reduce(f64::min)?.min(1.0) * 0.8;
    let most = all().map(|range| range.most).reduce(f64::max)?.max(2.0) * 1.1;
    let at = |ratio: f64| LEFT + (ratio / least).ln() / (most / least).ln() * (WIDTH - LEFT - RIGHT);
    let mut body = String::new();
    let mut y = TOP + ROWS_APART;
    for (title, ranges) in &rows {
        let middle = y + (ranges.len() as f64 - 1.0) * BAR_APART / 2.0 + BAR / 2.0 + 4.0;
        let _ = write!(body, "<text x='{}' y='{middle}' text-anchor='end'>{}</text>", LEFT - 14.0, escaped(title));
        for range in ranges {
            bar(&mut body, range, at(range.least), at(range.most), y);
            y += BAR_APART;
        }
        y += ROWS_APART;
    }
    let mut grid = String::new();
    for mark in MARKS.iter().filter(|mark| (least..=most).contains(*mark)) {
        let (x, equal) = (at(*mark), *mark == 1.0);
        let (colour, wide) = if equal { ("#1f2937", 1.5) } else { ("#e5e7eb", 1.0) };
        let label = if equal { "equal".to_owned() } else { format!("{mark} ×") };
        let _ = write!(
            grid,
            "<line x1='{x:.1}' x2='{x:.1}' y1='{TOP}' y2='{y}' stroke='{colour}' stroke-width='{wide}'/>\
             <text x='{x:.1}' y='{}' text-anchor='middle' fill='#6b7280' font-size='12'>{label}</text>",
            TOP - 10.0
        );
    }
    let height = y + 30.0;
    let key = legend(&rows, y + 18.0);
    Some(format!(
        "<svg viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' height='{height}' xmlns='http://www.w3.org/2000/svg' font-family='sans-serif' \
         font-size='13.5' fill='#1f2937'><rect width='{WIDTH}' height='{height}' fill='#fff'/>{grid}{body}{key}</svg>\n"
    ))
}

fn bar(body: &mut String, range: &Range<'_>, from: f64, to: f64, y: f64) {
    let colour = colour(range.peer);
    // One point only is still to be seen.
    let wide = (to - from).max(5.0);
    let _ = write!(
        body,
        "<rect x='{from:.1}' y='{y}' width='{wide:.1}' height='{BAR}' rx='4' fill='{colour}'><title>{}: {}</title></rect>\
         <text x='{:.1}' y='{}' font-size='12' fill='#6b7280'>{}</text>",
        name_of(range.peer),
        range.text(),
        from + wide + 7.0,
        y + BAR - 2.0,
        range.text()
    );
}

fn legend(rows: &[(&str, Vec<Range<'_>>)], y: f64) -> String {
    let (mut text, mut x, mut known) = (String::new(), LEFT, Vec::new());
    for range in rows.iter().flat_map(|(_, ranges)| ranges) {
        if !known.contains(&range.peer) {
            known.push(range.peer);
            let name = name_of(range.peer);
            let _ = write!(
                text,
                "<rect x='{x}' y='{}' width='{BAR}' height='{BAR}' rx='3' fill='{}'/><text x='{}' y='{y}' font-size='12.5'>÷ {name}</text>",
                y - BAR + 1.0,
                colour(range.peer),
                x + BAR + 6.0
            );
            x += 46.0 + 7.5 * name.chars().count() as f64;
        }
    }
    text
}

fn colour(peer: &str) -> String {
    let colour = plot::colour(peer, 0);
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

impl Range<'_> {
    fn text(&self) -> String {
        let (least, most) = (times(self.least), times(self.most));
        if least == most { format!("{least} ×") } else { format!("{least} to {most} ×") }
    }
}

fn ranges<'a>(experiment: &str, ratios: &'a [Ratio]) -> Vec<Range<'a>> {
    let mut found: Vec<Range<'a>> = Vec::new();
    let of_peers = |ratio: &&Ratio| ratio.experiment == experiment && !ratio.against.starts_with("limit: ");
    for ratio in ratios.iter().filter(of_peers) {
        match found.iter_mut().find(|range| range.peer == ratio.against) {
            Some(range) => (range.least, range.most) = (range.least.min(ratio.ratio), range.most.max(ratio.ratio)),
            None => found.push(Range { peer: &ratio.against, least: ratio.ratio, most: ratio.ratio }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::metric::Metric;

    fn ratio(experiment: &str, against: &str, ratio: f64) -> Ratio {
        let (series, metric) = (String::new(), Metric::RecordsPerS);
        Ratio { experiment: experiment.into(), series, x: 1.0, metric, against: against.into(), ratio, width: 0.1 }
    }

    #[test]
    fn each_peer_has_a_bar_from_its_least_to_its_most() {
        let text = "title = \"a < b\"\nfollows = \"f\"\nshows = \"s\"\nplots = [\"records-per-s\"]\n[sweep]\nknob = \"streams\"\nlabel = \"l\"\nvalues = [1]";
        let experiment = Experiment::parse("x", text).unwrap();
        let ratios = [
            ratio("x", "kafka", 5.0),
            ratio("x", "kafka", 2.0),
            ratio("x", "redis", 0.5),
            ratio("x", "limit: loopback TCP", 0.1),
            ratio("other", "nats", 9.0),
        ];
        assert_eq!(ranges("x", &ratios)[0], Range { peer: "kafka", least: 2.0, most: 5.0 });
        let svg = draw(std::iter::once(&experiment), &ratios).unwrap();
        for words in ["a &lt; b", "2.00 to 5.00 ×", "0.50 ×", "equal", "Redis"] {
            assert!(svg.contains(words), "{words} is missing in {svg}");
        }
        assert!(!svg.contains("NATS") && !svg.contains("loopback"));
        assert!(draw(std::iter::once(&experiment), &ratios[3..4]).is_none(), "limits alone make no picture");
    }
}
