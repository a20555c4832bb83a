//! A node as such: how fast it starts, what it takes when idle, how fast it comes back.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kera_bench::BenchError;
use kera_bench::limit::median;
use kera_bench::process::ProcessUsage;
use kera_bench::server::{Server, ServerConfig};
use serde::Serialize;

use crate::peers::remake;

/// Figures of a node.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeFigures {
    /// From exec to listening with an empty directory, in milliseconds; the median.
    start_ms: f64,
    /// Resident bytes one second later, shared memory included.
    idle_resident_bytes: u64,
    /// From exec to listening after kill -9 with a full arena, in milliseconds.
    restart_full_ms: f64,
    /// Bytes of that arena.
    arena_bytes: u64,
    /// Lanes that were written to once.
    idle_lanes: u64,
    /// Resident bytes with them, shared memory included, half a minute later.
    idle_lanes_resident_bytes: u64,
}

impl NodeFigures {
    pub(crate) fn markdown(&self) -> String {
        let mib = |bytes: u64| bytes >> 20;
        format!(
            "| node | measured | wanted |\n| --- | ---: | ---: |\n\
             | start, empty directory | {:.0} ms | 30 ms |\n\
             | resident when idle | {} MiB | 20 MiB |\n\
             | start after kill -9, arena of {} MiB filled | {:.0} ms | 1000 ms |\n\
             | resident with {} idle lanes | {} MiB | 1024 MiB |\n",
            self.start_ms,
            mib(self.idle_resident_bytes),
            mib(self.arena_bytes),
            self.restart_full_ms,
            self.idle_lanes,
            mib(self.idle_lanes_resident_bytes),
        )
    }
}

/// Measures all of it.
pub(crate) fn measure(program: &Path, dir: &Path, arena_bytes: u64, quick: bool) -> Result<NodeFigures, BenchError> {
    let dir = dir.join("node");
    eprintln!("node: start");
    let (start_ms, idle_resident_bytes) = start(program, &dir)?;
    eprintln!("node: restart with a full arena");
    let restart_full_ms = restart(program, &dir, arena_bytes)?;
    eprintln!("node: idle lanes");
    let idle_lanes = if quick { 10_000 } else { 100_000 };
    let idle_lanes_resident_bytes = lanes(program, &dir, idle_lanes, quick)?;
    let _ = std::fs::remove_dir_all(&dir);
    Ok(NodeFigures {
        start_ms,
        idle_resident_bytes,
        restart_full_ms,
        arena_bytes,
        idle_lanes,
        idle_lanes_resident_bytes,
    })
}

fn config(program: &Path, dir: &Path, arena_bytes: Option<u64>) -> ServerConfig {
    ServerConfig { arena_bytes, ..ServerConfig::in_dir(program, dir) }
}

fn start(program: &Path, dir: &Path) -> Result<(f64, u64), BenchError> {
    let mut times = Vec::new();
    let mut resident = 0;
    for _ in 0..5 {
        remake(dir)?;
        let (mut server, took) = Server::start(config(program, dir, None))?;
        times.push(took.as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_secs(1));
        resident = resident.max(resident_of(&server));
        server.stop(Duration::from_secs(30))?;
    }
    Ok((median(&mut times), resident))
}

fn restart(program: &Path, dir: &Path, arena_bytes: u64) -> Result<f64, BenchError> {
    remake(dir)?;
    let (mut server, _) = Server::start(config(program, dir, Some(arena_bytes)))?;
    // More than fits, so that what is left is full.
    let records = arena_bytes * 5 / 4 / 1000;
    let words = format!("produce --streamlets 16 --record-bytes 1000 --chunk-bytes 65536 --keep --records {records}");
    bench(program, &server, &words)?;
    server.kill()?;
    let took = server.start_again()?;
    server.stop(Duration::from_secs(120))?;
    Ok(took.as_secs_f64() * 1e3)
}

fn lanes(program: &Path, dir: &Path, lanes: u64, quick: bool) -> Result<u64, BenchError> {
    remake(dir)?;
    let (mut server, _) = Server::start(config(program, dir, Some(1 << 30)))?;
    let words = format!("produce --streamlets {lanes} --chunk-bytes 256 --keep --records {}", lanes * 4);
    bench(program, &server, &words)?;
    std::thread::sleep(Duration::from_secs(if quick { 5 } else { 30 }));
    let resident = resident_of(&server);
    server.stop(Duration::from_secs(120))?;
    Ok(resident)
}

fn resident_of(server: &Server) -> u64 {
    server.pid().and_then(ProcessUsage::of).map_or(0, |usage| usage.resident_bytes)
}

fn bench(program: &Path, server: &Server, words: &str) -> Result<(), BenchError> {
    let mut command = Command::new(program);
    command.arg("bench").args(words.split_whitespace()).args(["--json", "--connect", &server.address()]);
    let output = command.output().map_err(|e| BenchError::io(format!("running {command:?}"), e))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::server(format!("{command:?}"), message))
}
