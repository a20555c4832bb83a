//! Plots as SVG: lines over an axis of the sweep's values with the spread of single runs, bars where there is one value only, and
//! lines over time for profiles.

use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::experiment::results::Spread;

const WIDTH: u32 = 640;
const HEIGHT: u32 = 370;
/// Pixels of a row of the legend.
const ROW: u32 = 22;
/// Above this factor between the largest and the smallest value the axis is logarithmic.
const LINEAR_MAX: f64 = 25.0;
const INK: RGBColor = RGBColor(31, 41, 55);
const FAINT: RGBColor = RGBColor(229, 231, 235);
/// How limits are told apart: pixels of a dash, and between two.
const DASHES: [(u32, u32); 4] = [(9, 5), (2, 5), (16, 5), (5, 9)];
/// So many lines, over so many values, have their figures written beside them.
const LABELLED_LINES_MAX: usize = 2;
const LABELLED_TICKS_MAX: usize = 8;
const GREY: RGBColor = RGBColor(120, 128, 140);

/// A line: its name, its colour, and for each value of the axis what was measured there.
#[derive(Clone, Debug)]
pub(super) struct LineOf {
    pub(super) label: String,
    pub(super) colour: RGBColor,
    /// Place on the axis, figures, and whether the load generator was the limit there.
    pub(super) points: Vec<(usize, Spread, bool)>,
}

/// A limit of the machine.
#[derive(Clone, Debug)]
pub(super) struct LimitLine {
    pub(super) label: String,
    pub(super) points: Vec<(usize, f64)>,
}

/// All of a plot.
pub(super) struct Plot<'a> {
    pub(super) title: String,
    pub(super) axis: String,
    /// Names of the axis' values.
    pub(super) ticks: Vec<String>,
    pub(super) lines: Vec<LineOf>,
    pub(super) limits: Vec<LimitLine>,
    pub(super) show: &'a dyn Fn(f64) -> String,
}

type Drawn<T> = Result<T, DrawingAreaErrorKind<std::io::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The colour of a system's nth line.
pub(super) fn colour(system: &str, nth: usize) -> RGBColor {
    let shades: [RGBColor; 4] = match system {
        "kera" => [RGBColor(29, 78, 216), RGBColor(14, 165, 233), RGBColor(99, 102, 241), RGBColor(30, 58, 138)],
        "kafka" => [RGBColor(220, 38, 38), RGBColor(251, 113, 133), RGBColor(153, 27, 27), RGBColor(244, 63, 94)],
        "kafka-java" => {
            [RGBColor(147, 51, 234), RGBColor(192, 132, 252), RGBColor(88, 28, 135), RGBColor(168, 85, 247)]
        }
        "nats" => [RGBColor(5, 150, 105), RGBColor(74, 222, 128), RGBColor(6, 95, 70), RGBColor(16, 185, 129)],
        "redis" => [RGBColor(217, 119, 6), RGBColor(251, 191, 36), RGBColor(146, 64, 14), RGBColor(245, 158, 11)],
        _ => [RGBColor(71, 85, 105), RGBColor(148, 163, 184), RGBColor(30, 41, 59), RGBColor(100, 116, 139)],
    };
    shades[nth % shades.len()]
}

/// Draws a plot; `None` if there is nothing to draw.
pub(super) fn draw(plot: &Plot<'_>) -> Option<String> {
    let measured: Vec<usize> = plot.lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    let (&first, &last) = (measured.iter().min()?, measured.iter().max()?);
    let mut svg = String::new();
    // Drawing into memory cannot fail but for a mistake in here; a report without one plot is better than none.
    let drawn = if first == last { bars(&mut svg, plot) } else { lines(&mut svg, plot) };
    drawn.ok()?;
    Some(svg)
}

fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

fn limits_of(plot: &Plot<'_>) -> (f64, f64) {
    let values = plot.lines.iter().flat_map(|line| line.points.iter().flat_map(|(_, s, _)| [s.least, s.most]));
    let values = values.chain(plot.limits.iter().flat_map(|limit| limit.points.iter().map(|point| point.1)));
    let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    (values.iter().copied().fold(f64::MAX, f64::min), values.iter().copied().fold(0.0, f64::max))
}

/// Lines, with a legend below.
fn lines(svg: &mut String, plot: &Plot<'_>) -> Drawn<()> {
    let entries = plot.lines.len() + plot.limits.len();
    let any_client = plot.lines.iter().any(|line| line.points.iter().any(|point| point.2));
    let rows = entries.div_ceil(legend_columns(plot)) as u32 + u32::from(any_client);
    let height = HEIGHT + rows * ROW + 10;
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (upper, lower) = root.split_vertically(HEIGHT);
    let (least, most) = limits_of(plot);
    let x = -0.25..plot.ticks.len() as f64 - 0.75;
    if most / least > LINEAR_MAX {
        onto(&upper, plot, x, (least * 0.5..most * 2.0).log_scale(), least * 0.5)?;
    } else {
        onto(&upper, plot, x, 0.0..most * 1.12, 0.0)?;
    }
    legend(&lower, plot, any_client)?;
    root.present()
}

/// `bottom`: the least value of the upright axis.
fn onto<X, Y>(area: &Area<'_>, plot: &Plot<'_>, x: X, y: Y, bottom: f64) -> Drawn<()>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let caption = if bottom > 0.0 { format!("{}, logarithmic", plot.title) } else { plot.title.clone() };
    let mut chart = ChartBuilder::on(area)
        .caption(caption, text(17))
        .margin(12)
        .margin_right(28)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(x, y)?;
    // The values stand where they are, not at round numbers: they are written by hand.
    let nothing = |_: &f64| String::new();
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(GREY)
        .label_style(text(13))
        .x_desc(&plot.axis)
        .axis_desc_style(text(14))
        .disable_x_mesh()
        .set_tick_mark_size(LabelAreaPosition::Bottom, 0)
        .x_label_formatter(&nothing)
        .y_label_formatter(&|value| plain(&(plot.show)(*value)))
        .y_labels(7)
        .draw()?;
    let centred = text(13).pos(Pos::new(HPos::Center, VPos::Top));
    for (n, tick) in plot.ticks.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(n as f64, bottom));
        area.draw(&Text::new(tick.as_str(), (x, y + 7), centred.clone()))?;
    }
    for (limit, (dash, gap)) in plot.limits.iter().zip(DASHES.iter().cycle()) {
        let points = limit.points.iter().map(|(n, value)| (*n as f64, *value));
        chart.draw_series(DashedLineSeries::new(points, *dash, *gap, GREY.stroke_width(2)))?;
    }
    for line in &plot.lines {
        let style = line.colour.stroke_width(3);
        chart.draw_series(LineSeries::new(line.points.iter().map(|(n, s, _)| (*n as f64, s.median)), style))?;
        for (n, spread, client) in &line.points {
            let at = *n as f64;
            if spread.most > spread.least {
                let bar = vec![(at, spread.least), (at, spread.most)];
                chart.draw_series([PathElement::new(bar, line.colour.mix(0.45).stroke_width(6))])?;
            }
            chart.draw_series([Circle::new((at, spread.median), 5, line.colour.filled())])?;
            if *client {
                chart.draw_series([Circle::new((at, spread.median), 3, WHITE.filled())])?;
            }
        }
    }
    if plot.lines.len() <= LABELLED_LINES_MAX && plot.ticks.len() <= LABELLED_TICKS_MAX {
        for line in &plot.lines {
            for (n, spread, _) in &line.points {
                let place = chart.backend_coord(&(*n as f64, spread.median));
                let is_upper = value_at(&plot.lines[0], *n) >= value_at(&plot.lines[plot.lines.len() - 1], *n);
                let above = std::ptr::eq(line, &plot.lines[0]) == is_upper;
                let style =
                    ("sans-serif", 12).into_font().color(&line.colour).pos(Pos::new(HPos::Center, VPos::Center));
                let label = plain(&(plot.show)(spread.median));
                area.draw(&Text::new(label, (place.0, place.1 + if above { -15 } else { 16 }), style))?;
            }
        }
    }
    Ok(())
}

/// What a line is at a place, if it has been measured there.
fn value_at(line: &LineOf, place: usize) -> Option<f64> {
    line.points.iter().find(|(n, _, _)| *n == place).map(|(_, spread, _)| spread.median)
}

/// Round numbers without their zeros: where a grid line is, not what was measured.
fn plain(text: &str) -> String {
    text.replace(".00 ", " ").replace(".0 ", " ")
}

/// Names that are long have a row for themselves.
fn legend_columns(plot: &Plot<'_>) -> usize {
    const LONG: usize = 36;
    let names = plot.lines.iter().map(|line| &line.label).chain(plot.limits.iter().map(|limit| &limit.label));
    if names.into_iter().any(|name| name.chars().count() > LONG) { 1 } else { 2 }
}

fn legend(area: &Area<'_>, plot: &Plot<'_>, any_client: bool) -> Drawn<()> {
    let columns = legend_columns(plot);
    let column = (WIDTH as i32 - 60) / columns as i32;
    let place = |n: usize| (40 + (n % columns) as i32 * column, 8 + (n / columns) as i32 * ROW as i32);
    let names = plot.lines.iter().map(|line| (line.label.as_str(), line.colour, (28, 0)));
    let limits = plot.limits.iter().zip(DASHES.iter().cycle()).map(|(limit, dash)| (limit.label.as_str(), GREY, *dash));
    let mut count = 0;
    for (n, (label, colour, (dash, gap))) in names.chain(limits).enumerate() {
        let (x, y) = place(n);
        for from in (0..28).step_by((dash + gap) as usize) {
            let to = (from + dash as i32).min(28);
            area.draw(&PathElement::new(vec![(x + from, y + 7), (x + to, y + 7)], colour.stroke_width(3)))?;
        }
        area.draw(&Text::new(shortened(label, 76), (x + 36, y), text(13)))?;
        count = n + 1;
    }
    if any_client {
        let (x, y) = (40, place(count.next_multiple_of(columns)).1);
        area.draw(&Circle::new((x + 14, y + 7), 5, INK.filled()))?;
        area.draw(&Circle::new((x + 14, y + 7), 3, WHITE.filled()))?;
        area.draw(&Text::new("hollow: the load generator was the limit, not the server", (x + 36, y), text(13)))?;
    }
    Ok(())
}

/// Bars, one below the other, where there is one value on the axis.
fn bars(svg: &mut String, plot: &Plot<'_>) -> Drawn<()> {
    const TOP: i32 = 46;
    const BAR: i32 = 34;
    const LEFT: i32 = 270;
    let entries = plot.lines.len() + plot.limits.len();
    let any_client = plot.lines.iter().any(|line| line.points.iter().any(|point| point.2));
    let height = TOP + BAR * entries as i32 + if any_client { 46 } else { 16 };
    let root = SVGBackend::with_string(svg, (WIDTH, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let at = plot.lines.first().and_then(|line| line.points.first()).and_then(|point| plot.ticks.get(point.0));
    let title = format!("{}, {} {}", plot.title, plot.axis, at.map_or("", String::as_str));
    root.draw(&Text::new(shortened(&title, 84), (16, 12), text(17)))?;
    let (least, most) = limits_of(plot);
    let room = f64::from(WIDTH as i32 - LEFT - 120);
    let is_log = most / least > LINEAR_MAX;
    let length = |value: f64| {
        let share = if is_log { (value / (least * 0.5)).ln() / (most / (least * 0.5)).ln() } else { value / most };
        (share.clamp(0.0, 1.0) * room).round() as i32
    };
    let mut y = TOP;
    for line in &plot.lines {
        let Some((_, spread, client)) = line.points.first() else { continue };
        root.draw(&Text::new(shortened(&line.label, 38), (16, y + 6), text(13)))?;
        let end = LEFT + length(spread.median);
        let fill = if *client { line.colour.mix(0.35).filled() } else { line.colour.filled() };
        root.draw(&Rectangle::new([(LEFT, y), (end, y + 22)], fill))?;
        if *client {
            root.draw(&Rectangle::new([(LEFT, y), (end, y + 22)], line.colour.stroke_width(2)))?;
        }
        let (from, to) = (LEFT + length(spread.least), LEFT + length(spread.most));
        root.draw(&PathElement::new(vec![(from, y + 11), (to, y + 11)], INK.mix(0.7).stroke_width(2)))?;
        root.draw(&Text::new((plot.show)(spread.median), (end.max(to) + 8, y + 6), text(13)))?;
        y += BAR;
    }
    for limit in &plot.limits {
        let Some((_, value)) = limit.points.first() else { continue };
        let end = LEFT + length(*value);
        root.draw(&Text::new(shortened(&limit.label, 38), (16, y + 6), text(13)))?;
        root.draw(&Rectangle::new([(LEFT, y + 8), (end, y + 14)], GREY.mix(0.6).filled()))?;
        root.draw(&Text::new((plot.show)(*value), (end + 8, y + 4), text(13)))?;
        y += BAR;
    }
    let mut notes = Vec::new();
    if any_client {
        notes.push("pale: the load generator was the limit, not the server");
    }
    if is_log {
        notes.push("lengths are logarithmic");
    }
    if !notes.is_empty() {
        root.draw(&Text::new(notes.join("; "), (16, y + 4), text(12)))?;
    }
    root.present()
}

/// Values over time, by name.
pub(super) type Lines = Vec<(String, Vec<f64>)>;

/// Lines over time that share their unit, with a legend below.
pub(super) struct Panel {
    pub(super) title: &'static str,
    pub(super) lines: Lines,
    pub(super) show: fn(f64) -> String,
}

impl Panel {
    const PLOT_HEIGHT: u32 = 170;

    fn most(&self) -> f64 {
        self.lines.iter().flat_map(|(_, values)| values.iter().copied()).fold(0.0, f64::max)
    }

    fn height(&self) -> u32 {
        Panel::PLOT_HEIGHT + self.lines.len().div_ceil(3) as u32 * ROW + 14
    }
}

/// Panels one below the other over the same time, so that what happens at the same moment stands in one line. Those of which nothing was
/// seen are left out; `None` if that is all of them.
pub(super) fn over_time(title: &str, at_s: &[f64], mut panels: Vec<Panel>) -> Option<String> {
    panels.retain(|panel| panel.most() > 0.0);
    let end = *at_s.last()?;
    if panels.is_empty() {
        return None;
    }
    let mut svg = String::new();
    time_panels(&mut svg, title, at_s, &panels, end).ok()?;
    Some(svg)
}

fn time_panels(svg: &mut String, title: &str, at_s: &[f64], panels: &[Panel], end: f64) -> Drawn<()> {
    const TOP: u32 = 40;
    let height = TOP + panels.iter().map(Panel::height).sum::<u32>();
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, mut rest) = root.split_vertically(TOP);
    head.draw(&Text::new(shortened(title, 84), (16, 14), text(17)))?;
    for panel in panels {
        let (here, below) = rest.split_vertically(panel.height());
        time_panel(&here, at_s, panel, end)?;
        rest = below;
    }
    root.present()
}

fn time_panel(area: &Area<'_>, at_s: &[f64], panel: &Panel, end: f64) -> Drawn<()> {
    const COLOURS: [RGBColor; 10] = [
        RGBColor(29, 78, 216),
        RGBColor(220, 38, 38),
        RGBColor(5, 150, 105),
        RGBColor(217, 119, 6),
        RGBColor(124, 58, 237),
        RGBColor(14, 165, 233),
        RGBColor(236, 72, 153),
        RGBColor(101, 163, 13),
        RGBColor(120, 128, 140),
        RGBColor(146, 64, 14),
    ];
    let (upper, lower) = area.split_vertically(Panel::PLOT_HEIGHT);
    let mut chart = ChartBuilder::on(&upper)
        .caption(panel.title, text(14))
        .margin(6)
        .margin_right(28)
        .x_label_area_size(22)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..end, 0.0..panel.most() * 1.08)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(GREY)
        .label_style(text(12))
        .x_label_formatter(&|x| format!("{x:.1} s"))
        .y_label_formatter(&|value| (panel.show)(*value))
        .y_labels(5)
        .draw()?;
    for (n, (label, values)) in panel.lines.iter().enumerate() {
        let colour = COLOURS[n % COLOURS.len()];
        let points = at_s.iter().copied().zip(values.iter().copied());
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        let (x, y) = (40 + (n as i32 % 3) * 200, 4 + (n as i32 / 3) * ROW as i32);
        lower.draw(&PathElement::new(vec![(x, y + 7), (x + 22, y + 7)], colour.stroke_width(3)))?;
        lower.draw(&Text::new(shortened(label, 26), (x + 28, y), text(12)))?;
    }
    Ok(())
}

fn shortened(text: &str, characters: usize) -> String {
    if text.chars().count() <= characters {
        text.to_owned()
    } else {
        text.chars().take(characters - 1).chain(['…']).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(values: &[(usize, f64, bool)], show: &dyn Fn(f64) -> String) -> Option<String> {
        let points = values.iter().map(|&(n, median, client)| {
            (n, Spread { median, least: median * 0.9, most: median * 1.1, count: 3 }, client)
        });
        draw(&Plot {
            title: "t < u".into(),
            axis: "chunk size".into(),
            ticks: vec!["1 KiB".into(), "4 KiB".into(), "16 KiB".into()],
            lines: vec![LineOf { label: "KerA".into(), colour: colour("kera", 0), points: points.collect() }],
            limits: vec![LimitLine { label: "limit: loopback".into(), points: vec![(0, 9e6), (1, 9e6)] }],
            show,
        })
    }

    #[test]
    fn lines_have_ticks_a_legend_and_what_held_them_back() {
        let svg = plot(&[(0, 1e6, false), (1, 2e6, true)], &|value| format!("{value}")).unwrap();
        for text in ["1 KiB", "4 KiB", "KerA", "limit: loopback", "hollow", "chunk size"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        assert!(!svg.contains("t < u"), "text is escaped");
        let log = plot(&[(0, 1e3, false), (1, 2e6, false)], &|value| format!("{value}")).unwrap();
        assert!(!log.contains("hollow"));
    }

    #[test]
    fn panels_of_one_time_share_a_picture_and_empty_ones_are_left_out() {
        let panel = |title, values: &[f64]| {
            let lines = vec![("one".into(), values.to_vec())];
            Panel { title, lines, show: |v| format!("{v}") }
        };
        let svg =
            over_time("where", &[0.1, 0.2], vec![panel("full", &[1.0, 2.0]), panel("empty", &[0.0, 0.0])]).unwrap();
        assert!(
            svg.contains("where") && svg.contains("full") && svg.contains("0.1 s") && !svg.contains("empty"),
            "{svg}"
        );
        assert!(over_time("where", &[0.1], vec![panel("empty", &[0.0])]).is_none());
    }

    #[test]
    fn one_value_makes_bars_and_none_makes_nothing() {
        let svg = plot(&[(1, 1e6, true)], &|value| format!("{value:e}")).unwrap();
        assert!(svg.contains("4 KiB") && svg.contains("1e6") && svg.contains("pale"), "{svg}");
        assert!(plot(&[], &|_| String::new()).is_none());
    }
}
