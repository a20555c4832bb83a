//! Where the time of a run goes, after chapter 3 of the thesis: the phases of a stream's way (producer, network, append,
//! replication, persistence, consumer) on one time axis with what the machine was busy with, so that it can be seen which resource
//! each phase waits for.
//!
//! The bytes of each phase are the node's own counters. Network and append are the same threads of the node: what they spend in
//! the kernel counts as network, what they spend outside it as append.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::counters::Counters;
use super::sample::{BUSY, ProcessSnapshot, Snapshot, thread_seconds};

/// A phase works where it moves more than this share of its own most.
const ACTIVE: f64 = 0.05;
/// Virtual logs that are in the disk at any time, on average, from which on replication counts as waiting for it.
const IN_DISK: f64 = 0.5;
const MIB: f64 = 1024.0 * 1024.0;

/// A profiled run. Every series has one value for each interval; an interval ends at `at_s`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// Of which experiment.
    pub experiment: String,
    /// Which line.
    pub series: String,
    /// Where on the axis.
    pub x: f64,
    /// Of which system.
    pub system: String,
    /// Seconds since the load generator started.
    pub at_s: Vec<f64>,
    /// MiB per second of each phase, as the node counts them; empty if it does not tell.
    pub phases: BTreeMap<Phase, Vec<f64>>,
    /// Cores that each group of threads kept busy, outside the kernel and in it: "server kera-io user".
    pub threads: BTreeMap<String, Vec<f64>>,
    /// Share of each group's busiest thread.
    pub busiest: BTreeMap<String, Vec<f64>>,
    /// Share of all cores that was busy.
    pub machine_busy: Vec<f64>,
    /// Resident memory of the server, in MiB.
    pub server_mib: Vec<f64>,
    /// Resident memory of the load generator, in MiB.
    pub client_mib: Vec<f64>,
    /// MiB per second read from the server's disk.
    pub disk_read: Vec<f64>,
    /// MiB per second written to it.
    pub disk_written: Vec<f64>,
    /// Share of the time in which it had something to do.
    pub disk_busy: Vec<f64>,
    /// Virtual logs that were writing or syncing, on average: above 1 if several did at once.
    #[serde(default)]
    pub replication_in_disk: Vec<f64>,
    /// MiB per second over loopback, of everybody.
    pub loopback: Vec<f64>,
    /// What each phase waits for.
    pub waits: Vec<Wait>,
}

/// A phase of a stream's way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Making records and chunks, in the load generator.
    Producer,
    /// Taking requests from sockets.
    Network,
    /// Copying chunks into segments.
    Append,
    /// Making them durable by virtual logs.
    Replication,
    /// Writing closed segments to disk.
    Persistence,
    /// Receiving them, in the load generator.
    Consumer,
}

impl Phase {
    /// All of them, on the way of a record.
    pub const ALL: [Phase; 6] =
        [Phase::Producer, Phase::Network, Phase::Append, Phase::Replication, Phase::Persistence, Phase::Consumer];

    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Phase::Producer => "producer",
            Phase::Network => "network",
            Phase::Append => "append",
            Phase::Replication => "replication",
            Phase::Persistence => "persistence",
            Phase::Consumer => "consumer",
        }
    }

    /// The bytes that it has moved so far.
    fn counted(self, counters: &Counters) -> f64 {
        match self {
            // What producers have made is what reaches the node.
            Phase::Producer | Phase::Network => counters.received,
            Phase::Append => counters.appended,
            Phase::Replication => counters.replicated,
            Phase::Persistence => counters.persisted,
            Phase::Consumer => counters.consumed,
        }
    }

    /// The threads that do it, by group.
    fn threads(self) -> &'static [&'static str] {
        match self {
            Phase::Producer => &["client producer"],
            Phase::Network | Phase::Append => &["server kera-io"],
            // In a cluster the copies' senders, the network between nodes, and those who write what other nodes have sent.
            Phase::Replication => &[
                "server kera-vlog",
                "server kera-copies",
                "server kera-links",
                "server kera-cluster",
                "server kera-backup",
            ],
            Phase::Persistence => &["server kera-write"],
            Phase::Consumer => &["client consumer"],
        }
    }

    fn uses_disk(self) -> bool {
        matches!(self, Phase::Replication | Phase::Persistence)
    }
}

/// What a phase waits for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Wait {
    /// Which phase.
    pub phase: Phase,
    /// Share of the run in which it works at all.
    pub active: f64,
    /// Its mean while it works, in MiB per second.
    pub mib_per_s: f64,
    /// Cores that its threads kept busy meanwhile.
    pub cores: f64,
    /// What it waits for, in words.
    pub waits_for: String,
}

impl Profile {
    /// From what was seen during a run.
    pub(super) fn new(seen: &[Snapshot]) -> Profile {
        let mut profile = Profile::default();
        let in_the_end = seen.iter().rev().find_map(|one| one.counters);
        // The end of the load generator is not part of the run.
        let seen: Vec<&Snapshot> = seen.iter().filter(|one| !one.client.threads.is_empty()).collect();
        let Some(first) = seen.first() else { return profile };
        // A node that did not answer in time has its bytes counted with those of the next interval.
        let mut counted: Vec<Option<Counters>> = seen
            .iter()
            .scan(None, |known, one| {
                *known = one.counters.or(*known);
                Some(*known)
            })
            .collect();
        // What has moved since the last look at the load generator is counted with what had until then.
        if let Some(last) = counted.last_mut() {
            *last = in_the_end.or(*last);
        }
        for (n, pair) in seen.windows(2).enumerate() {
            let (before, after) = (pair[0], pair[1]);
            let took = after.at.duration_since(before.at).as_secs_f64().max(1e-6);
            profile.at_s.push(after.at.duration_since(first.at).as_secs_f64());
            profile.add_threads(n, "server", &before.server, &after.server, took);
            profile.add_threads(n, "client", &before.client, &after.client, took);
            let all = (after.busy.1 - before.busy.1).max(1e-9);
            profile.machine_busy.push(((after.busy.0 - before.busy.0) / all).clamp(0.0, 1.0));
            profile.server_mib.push(after.server.resident_bytes as f64 / MIB);
            profile.client_mib.push(after.client.resident_bytes as f64 / MIB);
            profile.disk_read.push((after.disk.0 - before.disk.0) as f64 / took / MIB);
            profile.disk_written.push((after.disk.1 - before.disk.1) as f64 / took / MIB);
            profile.disk_busy.push(((after.disk.2 - before.disk.2) / took).clamp(0.0, 1.0));
            profile.loopback.push((after.loopback_bytes - before.loopback_bytes) as f64 / took / MIB);
            let both = counted[n].zip(counted[n + 1]);
            let in_disk = both.map_or(0.0, |(then, now)| now.replication_disk_s - then.replication_disk_s);
            profile.replication_in_disk.push((in_disk / took).max(0.0));
            for (phase, (then, now)) in Phase::ALL.into_iter().filter_map(|phase| Some((phase, both?))) {
                let moved = phase.counted(&now) - phase.counted(&then);
                at(&mut profile.phases, phase, n, moved.max(0.0) / took / MIB);
            }
        }
        profile.level();
        profile.waits = Phase::ALL.iter().filter_map(|phase| profile.wait_of(*phase)).collect();
        profile
    }

    fn add_threads(&mut self, n: usize, who: &str, before: &ProcessSnapshot, after: &ProcessSnapshot, took: f64) {
        for (group, user, system) in thread_seconds(before, after) {
            at(&mut self.threads, format!("{who} {group} user"), n, user / took);
            at(&mut self.threads, format!("{who} {group} system"), n, system / took);
            let name = format!("{who} {group}");
            let known = self.busiest.get(&name).and_then(|shares| shares.get(n)).copied().unwrap_or(0.0);
            let share = ((user + system) / took).min(1.0);
            if share > known {
                at(&mut self.busiest, name, n, share - known);
            }
        }
    }

    /// Series of threads that ended early, or phases that did not answer, go on with nothing.
    fn level(&mut self) {
        let count = self.at_s.len();
        self.threads.values_mut().for_each(|values| values.resize(count, 0.0));
        self.busiest.values_mut().for_each(|values| values.resize(count, 0.0));
        self.phases.values_mut().for_each(|values| values.resize(count, 0.0));
    }

    fn wait_of(&self, phase: Phase) -> Option<Wait> {
        let rates = self.phases.get(&phase)?;
        let most = rates.iter().copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return None;
        }
        let active: Vec<usize> = (0..rates.len()).filter(|&n| rates[n] > most * ACTIVE).collect();
        let mean =
            |values: &[f64]| active.iter().filter_map(|&n| values.get(n)).sum::<f64>() / active.len().max(1) as f64;
        let of = |map: &BTreeMap<String, Vec<f64>>, name: &str| map.get(name).map_or(0.0, |values| mean(values));
        let group = phase.threads();
        let in_kernel: f64 = group.iter().map(|name| of(&self.threads, &format!("{name} system"))).sum();
        let outside: f64 = group.iter().map(|name| of(&self.threads, &format!("{name} user"))).sum();
        let cores = match phase {
            Phase::Network => in_kernel,
            Phase::Append => outside,
            _ => in_kernel + outside,
        };
        let busiest = group.iter().map(|name| of(&self.busiest, name)).fold(0.0, f64::max);
        let (disk, machine) = (mean(&self.disk_busy), mean(&self.machine_busy));
        let in_disk = mean(&self.replication_in_disk);
        let waits_for = if busiest >= BUSY {
            let what = if in_kernel > outside { "mostly in the kernel" } else { "mostly its own code" };
            format!("its own thread: busy for {:.0} % of the time, {what}", busiest * 100.0)
        } else if phase.uses_disk() && disk >= BUSY {
            format!("the disk: busy for {:.0} % of the time", disk * 100.0)
        } else if phase == Phase::Replication && in_disk >= IN_DISK {
            format!("the disk: {in_disk:.1} virtual logs were writing or syncing at any time")
        } else if machine >= 0.95 {
            let most = self.threads.iter().map(|(name, cores)| (name, mean(cores))).max_by(|a, b| a.1.total_cmp(&b.1));
            let who = most.map_or(String::new(), |(name, cores)| format!(", {cores:.2} of them by {name}"));
            format!("a core: all were busy for {:.0} % of the time{who}", machine * 100.0)
        } else {
            let before = if phase == Phase::Producer { "acknowledgements" } else { "the phase before it" };
            format!("{before}: its busiest thread ran for {:.0} % of the time", busiest * 100.0)
        };
        let active_share = active.len() as f64 / rates.len() as f64;
        Some(Wait { phase, active: active_share, mib_per_s: mean(rates), cores, waits_for })
    }
}

/// Adds to a value of a series, with nothing in the places before it.
fn at<K: Ord>(map: &mut BTreeMap<K, Vec<f64>>, key: K, n: usize, value: f64) {
    let values = map.entry(key).or_default();
    if values.len() <= n {
        values.resize(n + 1, 0.0);
    }
    values[n] += value;
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::sample::ThreadCpu;
    use super::*;

    fn thread(group: &str, user: f64, system: f64) -> ThreadCpu {
        ThreadCpu { group: group.into(), user, system }
    }

    /// A second in which producers used `producer` of a core, I/O threads `io` outside the kernel, and the disk was busy for `disk`.
    fn seconds(count: u32, producer: f64, io: f64, disk: f64) -> Vec<Snapshot> {
        let start = Instant::now();
        let one = |n: u32| {
            let t = f64::from(n);
            Snapshot {
                at: start + Duration::from_secs(n.into()),
                server: ProcessSnapshot {
                    threads: [(1, thread("kera-io", io * t, 0.1 * t)), (2, thread("kera-vlog", 0.1 * t, 0.0))].into(),
                    resident_bytes: 64 << 20,
                },
                client: ProcessSnapshot {
                    threads: [(3, thread("producer", producer * t, 0.0))].into(),
                    resident_bytes: 32 << 20,
                },
                busy: (t, 2.0 * t),
                disk: (0, (n as u64) << 20, disk * t),
                loopback_bytes: (n as u64) << 30,
                counters: Some(Counters {
                    received: t * 100.0 * MIB,
                    appended: t * 100.0 * MIB,
                    replicated: t * 90.0 * MIB,
                    replication_disk_s: 0.7 * t,
                    ..Counters::default()
                }),
            }
        };
        (0..=count).map(one).collect()
    }

    fn waits_for(profile: &Profile, phase: Phase) -> &str {
        &profile.waits.iter().find(|wait| wait.phase == phase).unwrap().waits_for
    }

    #[test]
    fn a_phase_waits_for_its_thread_its_disk_or_the_phase_before_it() {
        let profile = Profile::new(&seconds(4, 0.99, 0.3, 0.2));
        assert_eq!(profile.at_s.len(), 4);
        assert!(waits_for(&profile, Phase::Producer).contains("its own thread"));
        assert!(waits_for(&profile, Phase::Append).contains("the phase before it"));
        assert!((profile.phases[&Phase::Append][2] - 100.0).abs() < 1.0);
        assert!(!profile.waits.iter().any(|wait| wait.phase == Phase::Consumer), "nobody consumed");
        let profile = Profile::new(&seconds(4, 0.3, 0.3, 0.97));
        assert!(waits_for(&profile, Phase::Replication).contains("the disk"));
        assert!(waits_for(&profile, Phase::Producer).contains("acknowledgements"));
        let profile = Profile::new(&seconds(4, 0.3, 0.3, 0.2));
        assert!(waits_for(&profile, Phase::Replication).contains("0.7 virtual logs were writing or syncing"));
        let append = profile.waits.iter().find(|wait| wait.phase == Phase::Append).unwrap();
        let network = profile.waits.iter().find(|wait| wait.phase == Phase::Network).unwrap();
        assert!(
            (append.cores - 0.3).abs() < 0.01 && (network.cores - 0.1).abs() < 0.01,
            "user and system are told apart"
        );
    }

    #[test]
    fn bytes_of_a_moment_without_an_answer_are_those_of_the_next_one() {
        let mut seen = seconds(3, 0.3, 0.3, 0.2);
        seen[2].counters = None;
        let profile = Profile::new(&seen);
        let append: Vec<f64> = profile.phases[&Phase::Append].iter().map(|rate| rate.round()).collect();
        assert_eq!(append, [100.0, 0.0, 200.0]);
    }

    #[test]
    fn of_nothing_nothing_is_said() {
        assert_eq!(Profile::new(&[]), Profile::default());
    }
}
