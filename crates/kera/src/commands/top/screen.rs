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

use super::look::View;
use crate::error::CliError;

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
            let problems = view.problems.len() as u16;
            let [head, arena, warnings, streams, below] = Layout::vertical([
                Constraint::Length(1),
                Constraint::Length(1),
                Constraint::Length(problems),
                Constraint::Max(streams),
                Constraint::Max(applications),
            ])
            .areas(frame.area());
            let line = format!(
                "KerA at {address}   in {}/s   out {}/s   {} connections   q quits",
                human_bytes(view.in_bytes_s),
                human_bytes(view.out_bytes_s),
                view.connections
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
            frame.render_widget(streams_table(view), streams);
            frame.render_widget(applications_table(view), below);
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

fn table<'a>(title: &'a str, header: &[&'a str], rows: Vec<Row<'a>>) -> Table<'a> {
    let names =
        header.iter().enumerate().map(|(i, name)| if i == 0 { Cell::from(*name) } else { number((*name).into()) });
    let widths =
        header.iter().enumerate().map(|(i, _)| if i == 0 { Constraint::Min(16) } else { Constraint::Length(14) });
    Table::new(rows, widths.collect::<Vec<_>>())
        .header(Row::new(names).style(Style::new().add_modifier(Modifier::DIM)))
        .block(Block::new().borders(Borders::TOP).title(title))
}

fn number(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn streams_table(view: &View) -> Table<'_> {
    let rows = view.streams.iter().map(|s| {
        Row::new([
            Cell::from(s.name.as_str()),
            number(human_count(s.in_records_s)),
            number(format!("{}/s", human_bytes(s.in_bytes_s))),
            number(human_count(s.out_records_s)),
            number(human_count(s.records)),
            number(human_bytes(s.bytes)),
            number(human_bytes(s.memory_bytes)),
            number(human_bytes(s.disk_bytes)),
        ])
    });
    let header = ["STREAM", "IN records/s", "IN", "OUT records/s", "RECORDS", "BYTES", "IN MEMORY", "ON DISK"];
    table(" streams ", &header, rows.collect())
}

fn applications_table(view: &View) -> Table<'_> {
    let rows = view.applications.iter().map(|a| {
        let lag = if a.lag > 0 { Style::new().fg(Color::Yellow) } else { Style::new() };
        Row::new([
            Cell::from(a.name.as_str()),
            number(a.stream.clone()),
            number(a.members.to_string()),
            number(human_count(a.out_records_s)),
            number(human_count(a.lag)).style(lag),
        ])
    });
    table(" applications ", &["APPLICATION", "STREAM", "CONSUMERS", "OUT records/s", "LAG"], rows.collect())
}
