//! The terminal of `kera top`: opened on the alternate screen, given back however the command ends.

use std::io;
use std::time::Duration;

use kera_server::units::{human_bytes, human_count};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Cell, Gauge, Paragraph, Row, Table};
use tokio::sync::mpsc;

use super::look::{ApplicationView, NodeView, StreamView, View};
use crate::columns;
use crate::error::CliError;
use crate::output::counted;

pub(super) struct Screen {
    terminal: DefaultTerminal,
    quit: mpsc::Receiver<()>,
}

impl Screen {
    pub(super) fn open() -> Result<Screen, CliError> {
        let terminal = ratatui::try_init().map_err(|error| broken(&error))?;
        let (sender, quit) = mpsc::channel(1);
        // Detached: it ends with the process, or when nobody listens any more.
        std::thread::spawn(move || watch_keys(&sender));
        Ok(Screen { terminal, quit })
    }

    /// Completes when somebody presses q, Esc or Ctrl-C.
    pub(super) async fn quit(&mut self) {
        self.quit.recv().await;
    }

    pub(super) fn draw(&mut self, view: &View, address: &str) -> Result<(), CliError> {
        let drawn = self.terminal.draw(|frame| {
            let height = |rows: usize| u16::try_from(rows + 3).unwrap_or(u16::MAX);
            let (streams, applications) = (height(view.streams.len()), height(view.applications.len()));
            let nodes = if view.nodes.is_empty() { 0 } else { height(view.nodes.len()) };
            let problems = view.problems.len() as u16;
            let lacking = view.lacking();
            let width = frame.area().width;
            let [head, arena, warnings, nodes, streams, applications, below] = Layout::vertical([
                Constraint::Length(1),
                Constraint::Length(1),
                Constraint::Length(problems),
                Constraint::Max(nodes),
                Constraint::Max(streams),
                Constraint::Max(applications),
                Constraint::Length(u16::from(lacking.is_some())),
            ])
            .areas(frame.area());
            let who = match view.nodes.len() {
                0 => format!("KerA at {address}"),
                nodes => format!("KerA, {nodes} nodes"),
            };
            let line = format!(
                "{who}   in {}/s   out {}/s   {}   q quits",
                human_bytes(view.in_bytes_s),
                human_bytes(view.out_bytes_s),
                counted(view.connections, "connection")
            );
            frame.render_widget(Line::styled(line, Style::new().add_modifier(Modifier::BOLD)), head);
            let used = if view.arena_bytes == 0 { 0.0 } else { view.arena_used_bytes as f64 / view.arena_bytes as f64 };
            let label = format!("arena {} of {}", human_bytes(view.arena_used_bytes), human_bytes(view.arena_bytes));
            let gauge =
                Gauge::default().ratio(used.clamp(0.0, 1.0)).label(label).gauge_style(Style::new().fg(Color::Blue));
            frame.render_widget(gauge, arena);
            let text: Vec<Line> =
                view.problems.iter().map(|p| Line::styled(p.clone(), Style::new().fg(Color::Red))).collect();
            frame.render_widget(Paragraph::new(text), warnings);
            frame.render_widget(nodes_table(view, width), nodes);
            frame.render_widget(streams_table(view, width), streams);
            frame.render_widget(applications_table(view, width), applications);
            frame.render_widget(Line::styled(lacking.unwrap_or_default(), Style::new().fg(Color::Yellow)), below);
        });
        drawn.map(drop).map_err(|error| broken(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn broken(error: &io::Error) -> CliError {
    CliError::failure(format!("the terminal: {error}")).next("`kera top | cat` prints plain lines")
}

fn watch_keys(sender: &mpsc::Sender<()>) {
    while !sender.is_closed() {
        let pressed = match event::poll(Duration::from_millis(200)) {
            Ok(true) => event::read().ok(),
            Ok(false) => None,
            Err(_) => return,
        };
        if let Some(Event::Key(key)) = pressed
            && key.kind == KeyEventKind::Press
        {
            let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                let _ = sender.blocking_send(());
            }
        }
    }
}

/// A column: its name, and how soon it goes where there is no room for all; 0 stays.
type Column = (&'static str, u8);

const NODES: [Column; 7] = with_order(&columns::TOP_NODES, [0, 0, 2, 0, 0, 3, 1]);
const STREAMS: [Column; 8] = with_order(&columns::TOP_STREAMS, [0, 0, 2, 1, 0, 3, 5, 4]);
const APPLICATIONS: [Column; 5] = with_order(&columns::TOP_APPLICATIONS, [0, 2, 3, 1, 0]);

const fn with_order<const N: usize>(names: &[&'static str; N], order: [u8; N]) -> [Column; N] {
    let mut columns = [("", 0); N];
    let mut at = 0;
    while at < N {
        columns[at] = (names[at], order[at]);
        at += 1;
    }
    columns
}

/// The first column, a name, is cut rather than to leave out others.
const NAME_MIN: usize = 12;
/// And has so much if there is room.
const NAME_MAX: usize = 40;

/// The columns for which there is room, and how wide each is: as wide as its header and its widest cell, with one between.
fn fitting(columns: &[Column], rows: &[Vec<String>], width: u16) -> Vec<(usize, u16)> {
    let widest = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widest = cells.max(columns[at].0.chars().count());
        if at == 0 { widest.clamp(NAME_MIN, NAME_MAX) } else { widest }
    };
    let widths: Vec<usize> = (0..columns.len()).map(widest).collect();
    let mut kept: Vec<usize> = (0..columns.len()).collect();
    let least = |kept: &[usize]| -> usize {
        kept.iter().map(|at| if *at == 0 { NAME_MIN } else { widths[*at] }).sum::<usize>()
            + kept.len().saturating_sub(1)
    };
    while least(&kept) > usize::from(width) {
        let goes = kept.iter().enumerate().filter(|(_, at)| columns[**at].1 > 0).max_by_key(|(_, at)| columns[**at].1);
        let Some((goes, _)) = goes else { break };
        kept.remove(goes);
    }
    let spare = usize::from(width).saturating_sub(least(&kept));
    let wide = |at: usize| if at == 0 { widths[0].min(NAME_MIN + spare) } else { widths[at] };
    kept.into_iter().map(|at| (at, wide(at) as u16)).collect()
}

fn table(
    title: String,
    columns: &[Column],
    rows: &[Vec<String>],
    width: u16,
    style: impl Fn(usize, usize) -> Style,
) -> Table<'static> {
    let kept = fitting(columns, rows, width);
    let cell = |at: usize, text: String| if at == 0 { Cell::from(text) } else { number(text) };
    let names = kept.iter().map(|(at, _)| cell(*at, columns[*at].0.to_owned()));
    let header = Row::new(names.collect::<Vec<_>>()).style(Style::new().add_modifier(Modifier::DIM));
    let rows = rows.iter().enumerate().map(|(line, row)| {
        let cells =
            kept.iter().map(|(at, _)| cell(*at, row.get(*at).cloned().unwrap_or_default()).style(style(line, *at)));
        Row::new(cells.collect::<Vec<_>>())
    });
    let widths = kept.iter().map(|(_, width)| Constraint::Length(*width));
    Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(header)
        .block(Block::new().borders(Borders::TOP).title(title))
}

fn number(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn nodes_table(view: &View, width: u16) -> Table<'static> {
    let row = |n: &NodeView| {
        vec![
            format!("node {}", n.node),
            n.state.to_owned(),
            n.streamlets.to_string(),
            format!("{}/s", human_bytes(n.in_bytes_s)),
            format!("{}/s", human_bytes(n.out_bytes_s)),
            n.connections.to_string(),
            format!("{} of {}", human_bytes(n.arena_used_bytes), human_bytes(n.arena_bytes)),
        ]
    };
    let rows: Vec<Vec<String>> = view.nodes.iter().map(row).collect();
    let lost = |line: usize, at: usize| match at == 1 && view.nodes.get(line).is_some_and(|node| node.state != "live") {
        true => Style::new().fg(Color::Red),
        false => Style::new(),
    };
    table(" nodes ".into(), &NODES, &rows, width, lost)
}

fn streams_table(view: &View, width: u16) -> Table<'static> {
    let row = |s: &StreamView| {
        vec![
            s.name.clone(),
            human_count(s.in_records_s),
            format!("{}/s", human_bytes(s.in_bytes_s)),
            human_count(s.out_records_s),
            human_count(s.records),
            human_bytes(s.bytes),
            human_bytes(s.memory_bytes),
            human_bytes(s.disk_bytes),
        ]
    };
    let rows: Vec<Vec<String>> = view.streams.iter().map(row).collect();
    let title = view.left_out().map_or_else(|| " streams ".into(), |left_out| format!(" streams, {left_out} "));
    table(title, &STREAMS, &rows, width, |_, _| Style::new())
}

fn applications_table(view: &View, width: u16) -> Table<'static> {
    let row = |a: &ApplicationView| {
        let rate = a.out_records_s.map_or_else(String::new, human_count);
        vec![a.name.clone(), a.stream.clone(), a.members.to_string(), rate, human_count(a.lag)]
    };
    let rows: Vec<Vec<String>> = view.applications.iter().map(row).collect();
    let behind = |line: usize, at: usize| match at == 4 && view.applications.get(line).is_some_and(|a| a.lag > 0) {
        true => Style::new().fg(Color::Yellow),
        false => Style::new(),
    };
    table(" applications ".into(), &APPLICATIONS, &rows, width, behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_eighty_columns_each_header_that_is_shown_is_whole() {
        let rows: Vec<Vec<String>> = vec![
            ["flights", "130,000", "12.7 MiB/s", "130,000", "12,345,678", "1.5 GiB", "288.0 MiB", "1.2 GiB"]
                .map(String::from)
                .to_vec(),
        ];
        for width in [30, 60, 80, 100, 200] {
            let kept = fitting(&STREAMS, &rows, width);
            let taken: usize = kept.iter().map(|(_, wide)| usize::from(*wide)).sum::<usize>() + kept.len() - 1;
            assert!(taken <= usize::from(width.max(36)), "{width}: {kept:?}");
            for (at, wide) in kept.iter().skip(1) {
                assert!(usize::from(*wide) >= STREAMS[*at].0.len().max(rows[0][*at].len()), "{width}: {kept:?}");
            }
        }
        let names =
            |width| fitting(&STREAMS, &rows, width).into_iter().map(|(at, _)| STREAMS[at].0).collect::<Vec<_>>();
        assert_eq!(names(200).len(), 8);
        assert_eq!(names(80), ["STREAM", "IN records/s", "IN", "OUT records/s", "RECORDS", "BYTES", "ON DISK"]);
        assert_eq!(names(10), ["STREAM", "IN records/s", "RECORDS"]);
    }
}
