//! The picture of the demo: a few lines that refresh in place on a terminal, a line a second elsewhere.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use kera_server::units::{human_bytes, human_count};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Gauge, Row, Sparkline, Table};
use ratatui::{DefaultTerminal, Frame, TerminalOptions, Viewport};

use super::board::Shared;
use super::flights::airports;
use crate::error::CliError;
use crate::output::print;
use crate::when::show_instant;

/// Airports that are shown.
const AIRPORTS: usize = 10;
/// Lines of the picture.
const LINES: u16 = AIRPORTS as u16 + 8;
/// Time between two lines elsewhere than on a terminal.
const LINE_EVERY: Duration = Duration::from_secs(1);
/// Time that a rate is taken over.
const RATE_OVER: Duration = Duration::from_secs(1);

pub(super) struct View {
    terminal: Option<DefaultTerminal>,
    quiet: bool,
    address: String,
    goal: u64,
    board: Shared,
    names: HashMap<&'static str, String>,
    /// (when, written, read) of the last moments.
    history: VecDeque<(Instant, u64, u64)>,
    /// Records read per look.
    pulse: VecDeque<u64>,
    said: Option<Instant>,
}

/// What one look shows.
struct Numbers {
    written: u64,
    read: u64,
    in_s: u64,
    out_s: u64,
}

impl View {
    pub(super) fn open(quiet: bool, address: &str, goal: u64, board: Shared) -> Result<View, CliError> {
        let terminal = if !quiet && io::stdout().is_terminal() {
            let options = TerminalOptions { viewport: Viewport::Inline(LINES) };
            let made = ratatui::Terminal::with_options(ratatui::backend::CrosstermBackend::new(io::stdout()), options);
            Some(made.map_err(|error| broken(&error))?)
        } else {
            None
        };
        Ok(View {
            terminal,
            quiet,
            address: address.to_owned(),
            goal,
            board,
            names: airports(),
            history: VecDeque::new(),
            pulse: VecDeque::new(),
            said: None,
        })
    }

    fn numbers(&mut self) -> Numbers {
        let (written, read) = (self.board.borrow().written, self.board.borrow().read);
        let now = Instant::now();
        let before = self.history.back().map_or(0, |(_, _, read)| *read);
        self.pulse.push_back(read - before);
        self.history.push_back((now, written, read));
        while self.history.len() > 2 && now - self.history[0].0 > RATE_OVER {
            self.history.pop_front();
        }
        self.pulse.truncate(512);
        while self.pulse.len() > 200 {
            self.pulse.pop_front();
        }
        let (then, written_then, read_then) = self.history[0];
        let seconds = (now - then).as_secs_f64();
        let rate = |from: u64, to: u64| if seconds > 0.0 { ((to - from) as f64 / seconds) as u64 } else { 0 };
        Numbers { written, read, in_s: rate(written_then, written), out_s: rate(read_then, read) }
    }

    /// Shows how it is now.
    pub(super) fn draw(&mut self) -> Result<(), CliError> {
        let numbers = self.numbers();
        if let Some(mut terminal) = self.terminal.take() {
            let drawn = terminal.draw(|frame| self.picture(frame, &numbers)).map(drop);
            self.terminal = Some(terminal);
            return drawn.map_err(|error| broken(&error));
        }
        if self.quiet || self.said.is_some_and(|said| said.elapsed() < LINE_EVERY) {
            return Ok(());
        }
        self.said = Some(Instant::now());
        self.say(&numbers)
    }

    fn say(&self, n: &Numbers) -> Result<(), CliError> {
        let board = self.board.borrow();
        let busiest = board.top(3).into_iter().map(|(code, a)| format!("{code} {}", human_count(a.flights)));
        print(&format!(
            "written {:>7} ({:>6}/s)  read {:>7} ({:>6}/s)  behind {:>6}  busiest {}  | {}\n",
            human_count(n.written),
            human_count(n.in_s),
            human_count(n.read),
            human_count(n.out_s),
            human_count(n.written - n.read),
            busiest.collect::<Vec<_>>().join(", "),
            board.phase,
        ))
    }

    /// Shows the end, which stays on the screen.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        self.said = None;
        self.draw()?;
        if let Some(terminal) = &mut self.terminal {
            let cursor = terminal.show_cursor();
            cursor.map_err(|error| broken(&error))?;
            print("\n")?;
        }
        Ok(())
    }

    fn picture(&self, frame: &mut Frame<'_>, n: &Numbers) {
        let [title, phase, gauge, rates, counts, pulse, gap, table] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(1),
        ])
        .areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let board = self.board.borrow();
        let day = show_instant(board.latest_ms);
        let head = format!("KerA demo   node at {}   flights of {}", self.address, day.get(..10).unwrap_or_default());
        frame.render_widget(Line::styled(head, bold), title);
        frame.render_widget(Line::styled(format!("› {}", board.phase), Style::new().fg(Color::Cyan)), phase);
        let done = n.read as f64 / self.goal.max(1) as f64;
        let label = format!("{} of {} read", human_count(n.read), human_count(self.goal));
        let bar = Gauge::default().ratio(done.clamp(0.0, 1.0)).label(label).gauge_style(Style::new().fg(Color::Blue));
        frame.render_widget(bar, gauge);
        let text = format!(
            "written {:>9}  {:>8}/s   read {:>9}  {:>8}/s   behind {:>8}   {}",
            human_count(n.written),
            human_count(n.in_s),
            human_count(n.read),
            human_count(n.out_s),
            human_count(n.written - n.read),
            human_bytes(board.bytes),
        );
        frame.render_widget(Line::raw(text), rates);
        let text = format!(
            "consumer 1 {:>9}   consumer 2 {:>9}",
            human_count(board.read_by[0]),
            human_count(board.read_by[1])
        );
        frame.render_widget(Line::raw(text), counts);
        let recent: Vec<u64> = self.pulse.iter().rev().take(pulse.width as usize).rev().copied().collect();
        // Catching up is a spike that would flatten everything else.
        let mut ordered = recent.clone();
        ordered.sort_unstable();
        let usual = ordered.get(ordered.len() * 3 / 4).copied().unwrap_or(0).max(1);
        frame.render_widget(
            Sparkline::default().data(recent).max(usual * 2).style(Style::new().fg(Color::Green)),
            pulse,
        );
        frame.render_widget(Line::raw(""), gap);
        frame.render_widget(self.airports_table(&board.top(AIRPORTS)), table);
    }

    fn airports_table(&self, top: &[(String, super::board::Airport)]) -> Table<'_> {
        let number = |text: String| Cell::from(Line::from(text).right_aligned());
        let rows: Vec<Row<'_>> = top
            .iter()
            .map(|(code, airport)| {
                let flights = airport.flights.max(1);
                Row::new([
                    Cell::from(code.clone()),
                    Cell::from(self.names.get(code.as_str()).cloned().unwrap_or_default()),
                    number(human_count(airport.flights)),
                    number(format!("{:.1} min", airport.delay as f64 / flights as f64)),
                    number(format!("{}%", airport.late * 100 / flights)),
                ])
            })
            .collect();
        let widths = [
            Constraint::Length(4),
            Constraint::Length(26),
            Constraint::Length(9),
            Constraint::Length(14),
            Constraint::Length(16),
        ];
        let header = [
            Cell::from("FROM"),
            Cell::from(""),
            number("FLIGHTS".into()),
            number("AVERAGE DELAY".into()),
            number("15 MIN OR MORE".into()),
        ];
        Table::new(rows, widths).header(Row::new(header).style(Style::new().add_modifier(Modifier::DIM)))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            // Whatever happened, the shell gets its cursor back.
            let _ = terminal.show_cursor();
        }
    }
}

fn broken(error: &io::Error) -> CliError {
    CliError::failure(format!("the terminal: {error}")).next("`kera demo | cat` prints plain lines")
}
