//! What a run costs while it runs: CPU of each thread of server and load generator, memory, disk and loopback, from `/proc`.
//!
//! A thread of its own looks several times a second. That is how a run can say what it waited for, and how the limit of the
//! load generator is told from that of the server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::counters::{Counters, read_counters};

/// Kernel clock ticks per second in `/proc`.
const TICKS_PER_S: f64 = 100.0;
/// Bytes of a sector in `/proc/diskstats`, whatever the disk's are.
const SECTOR_BYTES: u64 = 512;
/// A thread, a disk or all cores count as busy from here on.
pub const BUSY: f64 = 0.9;

/// CPU seconds of a thread so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadCpu {
    pub(super) group: String,
    pub(super) user: f64,
    pub(super) system: f64,
}

/// A process at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessSnapshot {
    pub(super) threads: BTreeMap<u32, ThreadCpu>,
    pub(super) resident_bytes: u64,
}

/// Everything at one moment. Counts go up from the machine's start.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) at: Instant,
    pub(super) server: ProcessSnapshot,
    pub(super) client: ProcessSnapshot,
    /// Seconds that all cores together were busy, and all there were.
    pub(super) busy: (f64, f64),
    /// Bytes read and written, and seconds in which the disk had something to do.
    pub(super) disk: (u64, u64, f64),
    /// Bytes over loopback.
    pub(super) loopback_bytes: u64,
    /// What the server itself counts, if it was asked.
    pub(super) counters: Option<Counters>,
}

/// What to look at.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// All processes of the server.
    pub(super) servers: Vec<u32>,
    pub(super) client: u32,
    /// A directory on the server's disk.
    pub(super) dir: PathBuf,
    pub(super) every: Duration,
    /// Where each of them tells what it counts.
    pub(super) metrics: Vec<SocketAddr>,
}

/// Looks on until it is asked for what it saw.
#[derive(Debug)]
pub(super) struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Snapshot>>>,
}

impl Sampler {
    pub(super) fn start(watched: Watched) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let look = move || {
            let disk = device_of(&watched.dir);
            let mut seen = Vec::new();
            while !told.load(Relaxed) {
                let next = Instant::now() + watched.every;
                seen.push(snapshot(&watched, disk.as_deref()));
                while !told.load(Relaxed) && Instant::now() < next {
                    std::thread::sleep(Duration::from_millis(5).min(watched.every));
                }
            }
            // Of the time since the last look, which is long where this thread has few turns.
            seen.push(snapshot(&watched, disk.as_deref()));
            seen
        };
        // Without the thread a run is measured all the same, and says less.
        let thread = std::thread::Builder::new().name("sampler".into()).spawn(look).ok();
        Sampler { stop, thread }
    }

    pub(super) fn finish(mut self) -> Vec<Snapshot> {
        self.stop.store(true, Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

fn snapshot(watched: &Watched, disk: Option<&str>) -> Snapshot {
    Snapshot {
        at: Instant::now(),
        server: together(watched.servers.iter().map(|pid| process(*pid))),
        client: process(watched.client),
        busy: read("/proc/stat").and_then(|text| busy_of(&text)).unwrap_or_default(),
        disk: read("/proc/diskstats").and_then(|text| disk_of(&text, disk?)).unwrap_or_default(),
        loopback_bytes: read("/proc/net/dev").and_then(|text| loopback_of(&text)).unwrap_or_default(),
        counters: all_counters(&watched.metrics),
    }
}

/// Processes that are one server: a thread's number is nobody else's on a machine.
fn together(processes: impl Iterator<Item = ProcessSnapshot>) -> ProcessSnapshot {
    processes.fold(ProcessSnapshot::default(), |mut all, one| {
        all.threads.extend(one.threads);
        all.resident_bytes += one.resident_bytes;
        all
    })
}

/// What all of them count together; `None` if one does not answer: without it the sum would fall and rise again.
fn all_counters(addresses: &[SocketAddr]) -> Option<Counters> {
    let all: Option<Vec<Counters>> = addresses.iter().map(|address| read_counters(*address)).collect();
    all?.into_iter().reduce(|one, other| one.and(&other))
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn process(pid: u32) -> ProcessSnapshot {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let ids = tasks.into_iter().flatten().flatten().filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    let threads = ids.filter_map(|id| Some((id, thread_of(&read(&format!("/proc/{pid}/task/{id}/stat"))?)?))).collect();
    let resident = read(&format!("/proc/{pid}/statm")).and_then(|text| text.split(' ').nth(1)?.parse::<u64>().ok());
    ProcessSnapshot { threads, resident_bytes: resident.unwrap_or(0) * rustix::param::page_size() as u64 }
}

/// A line of `/proc/…/stat`: the name in parentheses may hold anything; utime and stime are the 12th and 13th field behind it.
fn thread_of(stat: &str) -> Option<ThreadCpu> {
    let (before, behind) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1;
    let mut fields =
        behind.split_whitespace().skip(11).map(|field| field.parse::<f64>().map(|ticks| ticks / TICKS_PER_S));
    Some(ThreadCpu { group: group_of(name), user: fields.next()?.ok()?, system: fields.next()?.ok()? })
}

/// Threads that do the same have names that differ in a number at the end.
fn group_of(name: &str) -> String {
    let group = name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '-' | '#' | '_' | ' ' | ':'));
    if group.is_empty() { name.to_owned() } else { group.to_owned() }
}

fn busy_of(stat: &str) -> Option<(f64, f64)> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal: guests are in user already.
    let ticks: Vec<f64> = line.split_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    let all: f64 = ticks.iter().sum();
    Some(((all - idle) / TICKS_PER_S, all / TICKS_PER_S))
}

fn disk_of(stats: &str, device: &str) -> Option<(u64, u64, f64)> {
    let fields = stats.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let fields = fields.into_iter().find(|fields| fields.get(..2).is_some_and(|ids| ids.join(":") == device))?;
    let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
    Some((number(5)? * SECTOR_BYTES, number(9)? * SECTOR_BYTES, number(12)? as f64 / 1e3))
}

fn loopback_of(dev: &str) -> Option<u64> {
    dev.lines().find_map(|line| line.trim_start().strip_prefix("lo:"))?.split_whitespace().next()?.parse().ok()
}

/// The disk below a directory, as `major:minor`.
fn device_of(dir: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(dir).ok()?.dev();
    Some(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

/// What a stretch of a run cost.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Cores that the server kept busy.
    pub server_cores: f64,
    /// The same of the load generator.
    pub client_cores: f64,
    /// The share of its time in which the server's busiest thread ran.
    pub server_busiest: f64,
    /// The same of the load generator.
    pub client_busiest: f64,
    /// Share of all cores that was busy, whoever it was.
    pub machine_busy: f64,
    /// Share of the time in which the disk had something to do.
    pub disk_busy: f64,
    /// Resident bytes of the server at the end.
    pub server_bytes: u64,
    /// The same of the load generator.
    pub client_bytes: u64,
}

/// What the stretch of `seconds` of a run cost in which most was done: the measured one, as far as can be seen from outside. Before it
/// streams are made and everything warms up, after it streams are deleted.
pub(super) fn usage(seen: &[Snapshot], seconds: f64) -> Usage {
    let seen: Vec<&Snapshot> = seen.iter().filter(|one| !one.client.threads.is_empty()).collect();
    let Some((first, last)) = busiest_stretch(&seen, seconds) else {
        let Some(last) = seen.last() else { return Usage::default() };
        let (server_bytes, client_bytes) = (last.server.resident_bytes, last.client.resident_bytes);
        return Usage { server_bytes, client_bytes, ..Usage::default() };
    };
    let took = last.at.duration_since(first.at).as_secs_f64();
    let cores = |of: fn(&Snapshot) -> &ProcessSnapshot| {
        let threads = thread_seconds(of(first), of(last));
        let shares: Vec<f64> = threads.map(|(_, user, system)| (user + system) / took).collect();
        (shares.iter().sum::<f64>(), shares.iter().copied().fold(0.0, f64::max).min(1.0))
    };
    let (server_cores, server_busiest) = cores(|one| &one.server);
    let (client_cores, client_busiest) = cores(|one| &one.client);
    let all = last.busy.1 - first.busy.1;
    Usage {
        server_cores,
        client_cores,
        server_busiest,
        client_busiest,
        machine_busy: if all > 0.0 { (last.busy.0 - first.busy.0) / all } else { 0.0 },
        disk_busy: ((last.disk.2 - first.disk.2) / took).clamp(0.0, 1.0),
        server_bytes: last.server.resident_bytes,
        client_bytes: last.client.resident_bytes,
    }
}

/// Where it begins and ends: of those of this length, or of the whole if it is shorter, the one with most CPU of both sides.
fn busiest_stretch<'a>(seen: &[&'a Snapshot], seconds: f64) -> Option<(&'a Snapshot, &'a Snapshot)> {
    let between = |a: &Snapshot, b: &Snapshot| b.at.duration_since(a.at).as_secs_f64();
    let whole = (*seen.first()?, *seen.last()?);
    let work = |(from, to): (&Snapshot, &Snapshot)| {
        let both = thread_seconds(&from.server, &to.server).chain(thread_seconds(&from.client, &to.client));
        both.map(|(_, user, system)| user + system).sum::<f64>() / between(from, to).max(1e-6)
    };
    let stretches = seen.iter().enumerate().filter_map(|(n, from)| {
        let to = seen[n..].iter().take_while(|to| between(from, to) <= seconds * 1.05).last()?;
        (between(from, to) >= seconds * 0.7).then_some((*from, *to))
    });
    let best = stretches.max_by(|a, b| work(*a).total_cmp(&work(*b))).unwrap_or(whole);
    (best.0.at < best.1.at).then_some(best)
}

/// Group, user and system seconds of each thread between two moments. One that was not there before starts from zero.
pub(super) fn thread_seconds<'a>(
    before: &'a ProcessSnapshot,
    after: &'a ProcessSnapshot,
) -> impl Iterator<Item = (&'a str, f64, f64)> {
    after.threads.iter().map(|(id, now)| {
        let then = before.threads.get(id).cloned().unwrap_or_default();
        (now.group.as_str(), (now.user - then.user).max(0.0), (now.system - then.system).max(0.0))
    })
}

/// What held a run at full speed back, as far as can be seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// A thread of the load generator ran all the time: the server could do more.
    Client,
    /// A thread of the server ran all the time.
    Server,
    /// A thread on either side ran all the time.
    Both,
    /// No core was left, though no single thread had one to itself.
    Cores,
    /// The disk had something to do all the time.
    Disk,
    /// None of these: round trips, syncs, locks, or a rate that was asked for.
    Waiting,
}

impl Bound {
    /// Judges a run.
    pub fn of(usage: &Usage) -> Bound {
        match (usage.client_busiest >= BUSY, usage.server_busiest >= BUSY) {
            (true, true) => Bound::Both,
            (true, false) => Bound::Client,
            (false, true) => Bound::Server,
            (false, false) if usage.disk_busy >= BUSY => Bound::Disk,
            (false, false) if usage.machine_busy >= 0.95 => Bound::Cores,
            (false, false) => Bound::Waiting,
        }
    }

    /// In a table.
    pub fn label(self) -> &'static str {
        match self {
            Bound::Client => "the client",
            Bound::Server => "the server",
            Bound::Both => "client and server",
            Bound::Cores => "the machine's cores",
            Bound::Disk => "the disk",
            Bound::Waiting => "waiting",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_as_it_is_written() {
        let thread =
            thread_of("42 (kera-io-1) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 100 200 300").unwrap();
        assert_eq!((thread.group.as_str(), thread.user, thread.system), ("kera-io", 1.5, 0.5));
        assert_eq!(group_of("42"), "42");
        assert_eq!(busy_of("cpu  100 0 200 600 100 0 0 0 0 0\ncpu0 1 1\n"), Some((3.0, 10.0)));
        let disks = " 253 0 zram0 0 0 0 0\n 254 0 vda 10 0 16 5 20 0 32 7 0 1500 9\n";
        assert_eq!(disk_of(disks, "254:0"), Some((8192, 16384, 1.5)));
        assert_eq!(disk_of(disks, "1:1"), None);
        assert_eq!(loopback_of("Inter-|\n face |bytes\n    lo: 77 1 0 0 0 0 0 0 77 1\n"), Some(77));
    }

    #[test]
    fn a_thread_that_never_rests_is_seen_and_named_as_the_clients() {
        let watched = Watched {
            servers: vec![],
            client: std::process::id(),
            dir: std::env::temp_dir(),
            every: Duration::from_millis(20),
            metrics: vec![],
        };
        // On a busy machine it or the sampler may get no turn for as long as that.
        let seen = (0..50).find_map(|_| {
            let sampler = Sampler::start(watched.clone());
            let started = Instant::now();
            let mut sum = 0u64;
            while started.elapsed() < Duration::from_millis(300) {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
            let seen = sampler.finish();
            (seen.len() > 1 && usage(&seen, 60.0).client_cores > 0.0).then_some(seen)
        });
        let usage = usage(&seen.expect("it is seen"), 60.0);
        assert!(usage.client_bytes > 0, "{usage:?}");
        assert_eq!(usage.server_bytes, 0);
    }

    #[test]
    fn processes_of_one_server_are_added_up() {
        let of = |id: u32, bytes| {
            let thread = ThreadCpu { group: "io".into(), user: 1.0, system: 0.0 };
            ProcessSnapshot { threads: [(id, thread)].into(), resident_bytes: bytes }
        };
        let both = together([of(7, 100), of(9, 20), ProcessSnapshot::default()].into_iter());
        assert_eq!((both.threads.len(), both.resident_bytes), (2, 120));
        assert!(all_counters(&[]).is_none());
    }

    #[test]
    fn the_busiest_thread_decides_whom_a_run_names() {
        let of = |client, server, disk, machine| {
            Bound::of(&Usage {
                client_busiest: client,
                server_busiest: server,
                disk_busy: disk,
                machine_busy: machine,
                ..Usage::default()
            })
        };
        assert_eq!(of(0.97, 0.6, 0.0, 0.8), Bound::Client);
        assert_eq!(of(0.97, 0.95, 0.0, 1.0), Bound::Both);
        assert_eq!(of(0.5, 0.95, 0.95, 0.8), Bound::Server);
        assert_eq!(of(0.5, 0.5, 0.95, 0.8), Bound::Disk);
        assert_eq!(of(0.7, 0.7, 0.1, 0.99), Bound::Cores);
        assert_eq!(of(0.5, 0.5, 0.1, 0.5), Bound::Waiting);
    }
}
