//! What happens in the demo, in order: create the stream, write and read at once, stop the consumers for a while, start
//! them again, end when everything written has been read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use kera_client::{Client, CommitMode, Consumer, Record, Start, StreamOptions};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::board::{Board, Shared};
use super::flights::{COUNT, flights};
use super::view::View;
use crate::cli::DemoArgs;
use crate::error::CliError;
use crate::rows::Row;

/// The stream of the demo.
pub(super) const STREAM: &str = "flights";
/// The application that counts.
pub(super) const APPLICATION: &str = "departures";
/// How long the consumers are away.
const PAUSE: Duration = Duration::from_secs(3);
/// After how long without a sign of life a consumer's share goes to the other.
const LEASE: Duration = Duration::from_secs(3);
/// The same when nobody watches. A process that stands still for longer is given again what it has read, which is no flight more.
const LEASE_UNSEEN: Duration = Duration::from_secs(60);
/// Time between two looks of the view.
const FRAME: Duration = Duration::from_millis(100);
/// The longest that the consumers may take after the last flight was written.
const PATIENCE: Duration = Duration::from_secs(240);

/// How it went.
#[derive(Clone, Copy)]
pub(super) struct Outcome {
    pub(super) written: u64,
    pub(super) read: u64,
    /// How many were read when the consumers were stopped.
    pub(super) stopped_at: u64,
    /// How many more there were when they were started again.
    pub(super) caught_up: u64,
    pub(super) seconds: f64,
    pub(super) bytes: u64,
}

pub(super) struct Story {
    client: Client,
    board: Shared,
    goal: u64,
    rate: u64,
    stop_consumers: Rc<Cell<bool>>,
}

impl Story {
    pub(super) async fn run(address: &str, args: &DemoArgs, quiet: bool) -> Result<Outcome, CliError> {
        let client = Client::builder(address).client_name("kera demo").connect().await?;
        let options = StreamOptions { streamlets: 4, ..StreamOptions::default() };
        client.admin().create_stream(STREAM, options).await?;
        let story = Story {
            client,
            board: Rc::new(RefCell::new(Board::default())),
            goal: args.max.unwrap_or(COUNT).min(COUNT),
            rate: args.rate,
            stop_consumers: Rc::new(Cell::new(false)),
        };
        let view = View::open(quiet, address, story.goal, story.board.clone())?;
        LocalSet::new().run_until(story.play(view)).await
    }

    fn say(&self, phase: &str) {
        phase.clone_into(&mut self.board.borrow_mut().phase);
    }

    async fn play(self, mut view: View) -> Result<Outcome, CliError> {
        let started = Instant::now();
        self.say("two consumers share the stream and count as the flights come in");
        let mut consumers = self.start_consumers().await?;
        let mut producer = spawn_local(write(self.client.clone(), self.board.clone(), self.goal, self.rate));

        self.watch(&mut view, &mut producer, |board, goal| board.read * 3 >= goal).await?;
        self.say("the consumers are stopped; flights keep coming in");
        self.stop_consumers.set(true);
        join(consumers).await?;
        let stopped_at = self.board.borrow().read;
        let resume_at = Instant::now() + if self.rate == 0 { Duration::ZERO } else { PAUSE };
        self.watch(&mut view, &mut producer, move |_, _| Instant::now() >= resume_at).await?;

        let caught_up = self.board.borrow().written - stopped_at;
        self.say("the consumers are back, at the very flight they had stopped before");
        self.stop_consumers.set(false);
        consumers = self.start_consumers().await?;
        self.watch(&mut view, &mut producer, |board, goal| board.written >= goal).await?;
        producer.await.map_err(|error| CliError::failure(error.to_string()))??;

        let patience = Instant::now() + PATIENCE;
        while self.board.borrow().read < self.goal && Instant::now() < patience {
            view.draw()?;
            tokio::time::sleep(FRAME).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        self.say("everything written has been read");
        self.stop_consumers.set(true);
        join(consumers).await?;
        view.finish()?;
        let board = self.board.borrow();
        Ok(Outcome { written: board.written, read: board.read, stopped_at, caught_up, seconds, bytes: board.bytes })
    }

    /// Draws until `until` holds, or everything is written. An error of the producer ends the demo at once.
    async fn watch(
        &self,
        view: &mut View,
        producer: &mut JoinHandle<Result<(), CliError>>,
        until: impl Fn(&Board, u64) -> bool,
    ) -> Result<(), CliError> {
        while !until(&self.board.borrow(), self.goal) {
            view.draw()?;
            tokio::time::sleep(FRAME).await;
            if producer.is_finished() && self.board.borrow().written < self.goal {
                return producer.await.map_err(|error| CliError::failure(error.to_string()))?;
            }
        }
        Ok(())
    }

    async fn start_consumers(&self) -> Result<Vec<JoinHandle<Result<(), CliError>>>, CliError> {
        let mut handles = Vec::new();
        for index in 0..2 {
            let consumer = self
                .client
                .consumer(STREAM)
                .application(APPLICATION)
                .member_name(format!("counter-{}", index + 1))
                .from(Start::Earliest)
                // Short, so that the two are soon even after one of them came first.
                .lease(if self.rate == 0 { LEASE_UNSEEN } else { LEASE })
                .commit(CommitMode::Interval(Duration::from_millis(500)))
                .build()
                .await?;
            handles.push(spawn_local(read(consumer, index, self.board.clone(), self.stop_consumers.clone())));
        }
        Ok(handles)
    }
}

async fn join(handles: Vec<JoinHandle<Result<(), CliError>>>) -> Result<(), CliError> {
    for handle in handles {
        handle.await.map_err(|error| CliError::failure(error.to_string()))??;
    }
    Ok(())
}

/// Writes the flights at the rate.
async fn write(client: Client, board: Shared, goal: u64, rate: u64) -> Result<(), CliError> {
    let mut producer = client.producer(STREAM).build().await?;
    let (mut source, mut row, started) = (flights()?, Row::default(), Instant::now());
    let mut sent = 0u64;
    while sent < goal {
        let more = source.next(&mut row).map_err(|error| CliError::failure(error.report("flights")))?;
        let Some(key) = row.key.as_deref().filter(|_| more) else { break };
        let record =
            Record { keys: &[key], value: Some(&row.value), timestamp_ms: row.timestamp_ms, ..Record::default() };
        producer.send(&record).await?;
        sent += 1;
        {
            let mut board = board.borrow_mut();
            board.written = sent;
            board.bytes += row.value.len() as u64;
        }
        // The view and the consumers share this thread.
        if sent.is_multiple_of(256) {
            let due = if rate == 0 { started } else { started + Duration::from_secs_f64(sent as f64 / rate as f64) };
            if due > Instant::now() {
                tokio::time::sleep_until(due.into()).await
            } else {
                tokio::task::yield_now().await
            }
        }
    }
    producer.close().await?;
    Ok(())
}

/// Counts until it is told to stop, then commits and leaves.
async fn read(mut consumer: Consumer, index: usize, board: Shared, stop: Rc<Cell<bool>>) -> Result<(), CliError> {
    while !stop.get() {
        let batch = tokio::select! {
            batch = consumer.next_batch() => batch?,
            () = tokio::time::sleep(Duration::from_millis(50)) => continue,
        };
        let Some(batch) = batch else { break };
        let mut board = board.borrow_mut();
        for record in batch.records() {
            let view = record.view;
            board.count(index, view.key(), view.value().unwrap_or_default(), view.timestamp_ms());
        }
    }
    // What was counted is committed before the groups are given back.
    consumer.commit().await?;
    consumer.close().await?;
    Ok(())
}
