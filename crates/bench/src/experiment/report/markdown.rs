//! The report as Markdown, with the plots as files beside it.

use std::fmt::Write;

use super::{Report, Section, Table, name_of};

pub(super) fn page(report: &Report<'_>) -> String {
    let header = &report.results.header;
    let mut text = String::new();
    let _ = writeln!(text, "# KerA, measured {} UTC\n\n{}.", header.started, report.machine());
    if header.quick {
        text += "Short runs: to see what there is to see, not to be quoted.\n";
    }
    report.budgets().iter().for_each(|budget| text += &format!("\n{budget}\n"));
    text += "\n| system | version | settings |\n| --- | --- | --- |\n";
    for (name, version, settings) in report.systems() {
        let _ = writeln!(text, "| {name} | {} | {} |", cell(version), cell(settings));
    }
    if report.glance.is_some() {
        text +=
            "\n![KerA ÷ each peer, from the least to the most over all points of an experiment](plots/glance.svg)\n";
    }
    text += "\n| experiment | in short |\n| --- | --- |\n";
    for section in &report.sections {
        let _ = writeln!(
            text,
            "| [{}](#{}) | {} |",
            section.experiment.title,
            section.experiment.name,
            cell(&section.headline)
        );
    }
    for skipped in &report.skipped {
        let who = skipped.system.as_deref().map_or(String::new(), |system| format!(" ({})", name_of(system)));
        let _ = writeln!(text, "| {}{who} | not run: {} |", skipped.experiment, cell(&skipped.why));
    }
    report.sections.iter().for_each(|section| text += &section_of(section));
    let _ = writeln!(text, "\nMade by `kera-bench {}`.", header.command.join(" "));
    text
}

fn section_of(section: &Section<'_>) -> String {
    let experiment = section.experiment;
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = String::new();
    let _ = writeln!(text, "\n<a id=\"{}\"></a>\n\n## {}\n", experiment.name, experiment.title);
    let _ = writeln!(text, "`{}`, follows {}. {}", experiment.name, experiment.follows, words(&experiment.shows));
    if !experiment.differs.trim().is_empty() {
        let _ = writeln!(text, "\nUnlike there: {}", words(&experiment.differs));
    }
    let setup: Vec<String> = section.setup.iter().map(|(knob, value)| format!("{knob} {value}")).collect();
    let _ = writeln!(text, "\nAt all points: {}.", setup.join(", "));
    if !section.headline.is_empty() {
        let _ = writeln!(text, "\n**{}**", section.headline);
    }
    text.push('\n');
    for picture in section.pictures.iter().chain(&section.profile_pictures) {
        let _ = writeln!(text, "![{}](plots/{}.svg)", picture.about, picture.name);
    }
    text.push('\n');
    text += &table(&section.table);
    text.push('\n');
    text += &table(&section.costs);
    if !section.waits.is_empty() {
        let head = ["run", "phase", "works", "MiB/s", "cores", "waits for"].map(str::to_owned).to_vec();
        text.push('\n');
        text += &table(&Table { head, rows: section.waits.iter().map(|row| row.to_vec()).collect() });
    }
    text.push('\n');
    for (system, guarantee) in &section.guarantees {
        let _ = writeln!(text, "- {system}: {guarantee}");
    }
    section.notes.iter().for_each(|note| text += &format!("- {note}\n"));
    for skipped in &section.skipped {
        let who = skipped.system.as_deref().map_or("all systems", name_of);
        let at = skipped
            .point
            .as_ref()
            .map_or(String::new(), |(series, x)| format!(", {}", super::point_name(experiment, series, *x)));
        let _ = writeln!(text, "- left out, {who}{at}: {}", words(&skipped.why));
    }
    text
}

fn table(table: &Table) -> String {
    let mut text = String::new();
    let line =
        |cells: &[String]| format!("| {} |\n", cells.iter().map(|text| cell(text)).collect::<Vec<_>>().join(" | "));
    text += &line(&table.head);
    text += &line(&table.head.iter().map(|_| "---".to_owned()).collect::<Vec<_>>());
    table.rows.iter().for_each(|row| text += &line(row));
    text
}

fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
