//! The report as one HTML file: no scripts, no fonts, nothing fetched.

use std::fmt::Write;

use super::{Report, Section, Table, latency_of, name_of};

const STYLE: &str = "\
:root{--ink:#1f2937;--soft:#6b7280;--line:#e5e7eb;--back:#f6f7f9;--mark:#1d4ed8}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:15px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}
header{background:#0f172a;color:#e2e8f0;padding:44px 24px 36px}
header>div{max-width:1132px;margin:0 auto}
main{max-width:1180px;margin:0 auto}
header h1{margin:0 0 6px;font-size:30px;letter-spacing:-.02em;color:#fff}
header p{margin:3px 0;color:#cbd5e1}
.quick{display:inline-block;margin-top:12px;background:#fbbf24;color:#422006;border-radius:999px;padding:3px 12px;font-size:13px;font-weight:600}
main{padding:24px}
section,.card{background:#fff;border:1px solid var(--line);border-radius:12px;padding:26px 30px;margin:0 0 24px}
h2{margin:0 0 2px;font-size:21px;letter-spacing:-.01em}
h3{margin:26px 0 8px;font-size:15px}
.follows{color:var(--soft);font-size:13.5px;margin:0 0 12px}
.headline{font-size:16.5px;font-weight:600;color:var(--mark);margin:14px 0}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(420px,1fr));gap:14px;margin:16px 0}
.glance svg{width:100%;height:auto;display:block}
.setup{display:flex;flex-wrap:wrap;gap:6px;margin:12px 0}
.setup span{background:#f3f4f6;border-radius:999px;padding:2px 10px;font-size:12.5px;color:var(--soft)}
.setup b{color:var(--ink);font-weight:600}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:10px;margin-top:20px}
.facts div{background:#1e293b;border-radius:10px;padding:10px 14px;font-size:13.5px;color:#cbd5e1}
.facts b{display:block;color:#fff;font-size:14px}
td small{color:var(--soft);white-space:nowrap}
td.mine{font-weight:600}
.ratio{display:inline-block;background:#eff6ff;color:#1e3a8a;border-radius:6px;padding:0 7px;margin:0 4px 3px 0;white-space:nowrap;font-size:12.5px}
.ratio.behind{background:#fef3c7;color:#92400e}
.ratio.limit{background:#f3f4f6;color:#4b5563}
.plots svg{width:100%;height:auto;border:1px solid var(--line);border-radius:8px;display:block}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:13.5px;margin:8px 0}
th{text-align:left;color:var(--soft);font-weight:600;border-bottom:2px solid var(--line);padding:6px 10px 6px 0;vertical-align:bottom}
td{border-bottom:1px solid var(--line);padding:6px 10px 6px 0;font-variant-numeric:tabular-nums;vertical-align:top}
details{margin-top:12px}summary{cursor:pointer;color:var(--soft);font-size:13.5px}
code{font:12.5px/1.5 ui-monospace,Menlo,Consolas,monospace;background:#f3f4f6;border-radius:5px;padding:2px 5px;overflow-wrap:anywhere}
.skipped{color:var(--soft);font-size:13.5px}
nav a{color:var(--mark);text-decoration:none}nav td:first-child{white-space:nowrap}
ul{padding-left:20px;margin:6px 0}
";

pub(super) fn page(report: &Report<'_>) -> String {
    let header = &report.results.header;
    let mut page = String::new();
    let _ = write!(
        page,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>KerA: measured {}</title><style>{STYLE}</style><header><div><h1>KerA, measured</h1>",
        header.started
    );
    let count = report.results.runs.len();
    let _ = write!(page, "<p>{} experiments, {count} runs, {} UTC</p>", report.sections.len(), header.started);
    if header.quick {
        page += "<span class=quick>short runs: to see what there is to see, not to be quoted</span>";
    }
    report.budgets().iter().for_each(|text| page += &format!("<p>{}</p>", escaped(text)));
    let _ = write!(page, "<div class=facts><div><b>Machine</b>{}</div>", escaped(&report.machine()));
    for (name, version, _) in report.systems() {
        let _ = write!(page, "<div><b>{name}</b>{}</div>", escaped(version));
    }
    page += "</div></div></header><main>";
    page += &overview(report);
    report.sections.iter().for_each(|section| page += &section_of(report, section));
    page += &method(report);
    page += "</main></html>\n";
    page
}

fn overview(report: &Report<'_>) -> String {
    let mut text = String::new();
    if let Some(glance) = &report.glance {
        text += "<section class=glance><h2>KerA ÷ each peer</h2><p class=follows>From the least to the most over all points of an experiment, in the \
                 figure that its first plot shows; right of the line KerA is ahead. Systems took turns in the same run.</p>";
        text += glance;
        text += "</section>";
    }
    text += "<nav class=card><h2>In short</h2><div class=wide><table>";
    for section in &report.sections {
        let experiment = section.experiment;
        let _ = write!(
            text,
            "<tr><td><a href='#{}'>{}</a><td>{}",
            experiment.name,
            escaped(&experiment.title),
            escaped(&section.headline)
        );
    }
    text += "</table></div>";
    if !report.skipped.is_empty() {
        text += "<h3>Not run</h3><ul class=skipped>";
        for skipped in &report.skipped {
            let who = skipped.system.as_deref().map_or(String::new(), |system| format!(" ({})", name_of(system)));
            let _ = write!(text, "<li>{}{who}: {}", skipped.experiment, escaped(&skipped.why));
        }
        text += "</ul>";
    }
    text + "</nav>"
}

fn section_of(report: &Report<'_>, section: &Section<'_>) -> String {
    let experiment = section.experiment;
    let mut text = String::new();
    let _ = write!(
        text,
        "<section id='{}'><h2>{}</h2><p class=follows>{} · follows {}</p><p>{}</p>",
        experiment.name,
        escaped(&experiment.title),
        experiment.name,
        escaped(&experiment.follows),
        escaped(&experiment.shows)
    );
    if !experiment.differs.trim().is_empty() {
        let _ = write!(text, "<p class=follows>Unlike there: {}</p>", escaped(&experiment.differs));
    }
    text += "<div class=setup>";
    for (knob, value) in &section.setup {
        let _ = write!(text, "<span>{} <b>{}</b></span>", escaped(knob), escaped(value));
    }
    let _ = write!(text, "</div><p class=headline>{}</p><div class=plots>", escaped(&section.headline));
    section.pictures.iter().for_each(|picture| text += &picture.svg);
    text += "</div>";
    text += &figures(&section.table);
    text += "<h3>What it cost</h3>";
    text += &table(&section.costs);
    if !section.waits.is_empty() {
        text += "<h3>Where the time goes</h3><div class=plots>";
        section.profile_pictures.iter().for_each(|picture| text += &picture.svg);
        text += "</div>";
        let head = ["run", "phase", "works", "MiB/s", "cores", "waits for"].map(str::to_owned).to_vec();
        text += &table(&Table { head, rows: section.waits.iter().map(|row| row.to_vec()).collect() });
    } else if !section.profile_pictures.is_empty() {
        text += "<h3>Where the time goes</h3><div class=plots>";
        section.profile_pictures.iter().for_each(|picture| text += &picture.svg);
        text += "</div>";
    }
    if !section.notes.is_empty() {
        text += "<ul class=skipped>";
        section.notes.iter().for_each(|note| text += &format!("<li>{}", escaped(note)));
        text += "</ul>";
    }
    if !section.skipped.is_empty() {
        text += "<h3>Left out</h3><ul class=skipped>";
        for skipped in &section.skipped {
            let at = skipped
                .point
                .as_ref()
                .map_or(String::new(), |(series, x)| format!(", {}", super::point_name(experiment, series, *x)));
            let who = skipped.system.as_deref().map_or("all systems", name_of);
            let _ = write!(text, "<li>{who}{}: {}", escaped(&at), escaped(&skipped.why));
        }
        text += "</ul>";
    }
    text += "<details><summary>What an acknowledgement means, commands, single runs</summary><ul>";
    for (system, guarantee) in &section.guarantees {
        let _ = write!(text, "<li>{system}: {}", escaped(guarantee));
    }
    text += "</ul>";
    for (system, command) in &section.commands {
        let _ = write!(text, "<p>{system}, one of them: <code>{}</code></p>", escaped(command));
    }
    text += &single_runs(report, section);
    text + "</details></section>"
}

fn single_runs(report: &Report<'_>, section: &Section<'_>) -> String {
    let experiment = section.experiment;
    let head = [
        "system",
        "point",
        "round",
        experiment.plots[0].label(),
        "p50 / p99",
        "server busiest",
        "client busiest",
        "disk busy",
    ];
    let runs = report.results.runs.iter().filter(|run| run.experiment == experiment.name);
    let rows = runs.map(|run| {
        let value = experiment.plots[0].of(&run.figures).map_or("-".into(), |value| experiment.plots[0].show(value));
        let share = |share: f64| format!("{:.0} %", share * 100.0);
        let system = if run.way.is_empty() {
            name_of(&run.system).into()
        } else {
            format!("{} ({})", name_of(&run.system), run.way)
        };
        vec![
            system,
            super::point_name(experiment, &run.series, run.x),
            (run.round + 1).to_string(),
            value,
            latency_of(&run.figures).unwrap_or_else(|| "-".into()),
            share(run.usage.server_busiest),
            share(run.usage.client_busiest),
            share(run.usage.disk_busy),
        ]
    });
    table(&Table { head: head.map(str::to_owned).to_vec(), rows: rows.collect() })
}

fn method(report: &Report<'_>) -> String {
    let mut text = String::from(
        "<section><h2>How it was measured</h2><ul>\
         <li>Systems in turns at every point (A B A B …), in one run, on one machine; everything is synced between two runs.\
         <li>Figures are medians; in brackets, and as thick bars in the plots, the least and the most of all rounds.\
         <li>Server and load generator are processes of their own and talk over loopback, sharing the machine's cores.\
         <li>Limits of the machine (dashed) are measured in the same run.\
         <li>A hollow point: a thread of the load generator ran all the time while the server's did not, so the server could do more.\
         <li>At a fixed rate a record counts from when it was due, however late it was sent.</ul><h3>Systems</h3><ul>",
    );
    for (name, version, settings) in report.systems() {
        let _ = write!(text, "<li><b>{name}</b> ({}): {}", escaped(version), escaped(settings));
    }
    let command = report.results.header.command.join(" ");
    let _ = write!(text, "</ul><p>Made by <code>kera-bench {}</code>.</p></section>", escaped(&command));
    text
}

/// The table of figures: spread in small, KerA's own column marked, ratios apart from each other.
fn figures(table: &Table) -> String {
    let mut text = String::from("<div class=wide><table><tr>");
    table.head.iter().for_each(|cell| text += &format!("<th>{}", escaped(cell)));
    let mine = table.head.iter().position(|cell| cell.starts_with("KerA:"));
    for row in &table.rows {
        text += "<tr>";
        for (n, cell) in row.iter().enumerate() {
            if n + 1 == row.len() {
                let ratios = cell.split(", ").filter(|ratio| !ratio.is_empty());
                text += &format!("<td>{}", ratios.map(ratio).collect::<String>());
            } else {
                let class = if Some(n) == mine { " class=mine" } else { "" };
                let cell = match cell.split_once(" (").filter(|_| n > 0) {
                    Some((figure, spread)) => format!("{} <small>({}</small>", escaped(figure), escaped(spread)),
                    None => escaped(cell),
                };
                text += &format!("<td{class}>{cell}");
            }
        }
    }
    text + "</table></div>"
}

/// KerA against a peer or a limit.
fn ratio(text: &str) -> String {
    let class = match text.split_once(" × ").and_then(|(ratio, _)| ratio.parse::<f64>().ok()) {
        None => " limit",
        Some(ratio) if ratio < 1.0 => " behind",
        Some(_) => "",
    };
    format!("<span class='ratio{class}'>{}</span>", escaped(text))
}

fn table(table: &Table) -> String {
    let mut text = String::from("<div class=wide><table><tr>");
    table.head.iter().for_each(|cell| text += &format!("<th>{}", escaped(cell)));
    for row in &table.rows {
        text += "<tr>";
        row.iter().for_each(|cell| text += &format!("<td>{}", escaped(cell)));
    }
    text + "</table></div>"
}

/// Text as it stands in a page.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}
