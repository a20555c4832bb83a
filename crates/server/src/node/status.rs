//! How the node is: for `kera status`, and the numbers of `/metrics`. Reads every part once; may wait for a disk, so never
//! on an I/O thread.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use kera_coordinator::catalog::SYSTEM_PREFIX;
use kera_format::StreamId;
use kera_format::cluster::HANDED_LARGE_BYTES_MAX;
use kera_log::store::DiskState;
use kera_protocol::{DiskStatus, NodeStatusResponse, Role};
use kera_vlog::VirtualLogStats;

use super::Parts;
use super::kafka::Listening;
use crate::machine;
use crate::metrics::{ApplicationNumbers, LABELLED_MAX, LatencyCounts, Snapshot, Storage, StreamNumbers};
use crate::units::human_bytes;

/// That a streamlet comes near to where it cannot move any more, and what to do.
fn takes_much_along(stream: &str, streamlet: u32, bytes: usize) -> String {
    let (bytes, most) = (human_bytes(bytes as u64), human_bytes(HANDED_LARGE_BYTES_MAX as u64));
    let positions = human_bytes((HANDED_LARGE_BYTES_MAX / 4 * 3) as u64);
    format!(
        "{stream}/{streamlet} would take {bytes} along if it moved, for its lanes and for how far applications are in it, and {most} is the most, of which \
         {positions} may be for applications: with more it stays where it is; delete applications that are not used any more, or write to a stream with more \
         streamlets and fewer lanes"
    )
}

impl Parts {
    /// The answer to `NodeStatus`.
    pub(crate) fn status(&self) -> NodeStatusResponse {
        let log = self.log.stats();
        let counts = self.broker.metrics().read();
        let mut response = NodeStatusResponse {
            node_id: self.identity.node,
            node_epoch: self.identity.epoch,
            version: env!("CARGO_PKG_VERSION").into(),
            roles: match &self.cluster {
                Some(_) => crate::cluster::roles(&self.config),
                None => vec![Role::Coordinator, Role::Broker],
            },
            started_ms: self.started_ms,
            uptime_ms: self.uptime_ms(),
            ready: self.readiness.not_ready().is_none(),
            problems: self.problems(),
            arena_bytes: log.arena.bytes,
            arena_used_bytes: log.arena.used_bytes,
            streams: 0,
            lanes: log.lanes,
            groups: 0,
            segments: 0,
            stored_bytes: 0,
            connections: self.server_stats().connections,
            subscriptions: counts.subscriptions,
            applications: self.broker.application_counts().applications,
            appended_records: log.records_appended,
            appended_bytes: log.bytes_appended,
            read_bytes: counts.bytes_read + counts.bytes_pushed,
            pending_bytes: self.virtual_log_stats().pending_bytes,
            disks: self.disks(),
        };
        let infos = self.coordinator.streams().into_iter();
        let system: HashSet<_> =
            infos.filter(|info| info.name.starts_with(SYSTEM_PREFIX)).map(|info| info.id).collect();
        for stream in self.log.streams() {
            response.streams += u64::from(!system.contains(&stream.id()));
            for streamlet in stream.streamlets() {
                for lane in streamlet.lanes() {
                    let lane = lane.stats();
                    response.groups += lane.groups;
                    response.segments += lane.segments;
                    response.stored_bytes += lane.bytes;
                }
            }
        }
        response
    }

    /// What goes wrong; and what waits for lost nodes, and a clock that has jumped, which are no reason to send clients elsewhere.
    fn problems(&self) -> Vec<String> {
        let waits = self.cluster.as_ref().map_or_else(Vec::new, |cluster| cluster.waits());
        let jumped = self.clock.believed().doubt().map(|doubt| super::maintenance::jumped(&doubt));
        self.readiness.problems().into_iter().chain(waits).chain(jumped).chain(self.take_much_along()).collect()
    }

    /// Streamlets that will not move any more if what goes along with them doubles.
    fn take_much_along(&self) -> Vec<String> {
        let much = self.broker.take_along(HANDED_LARGE_BYTES_MAX / 2);
        if much.is_empty() {
            return Vec::new();
        }
        let names: HashMap<_, _> = self.coordinator.streams().into_iter().map(|info| (info.id, info.name)).collect();
        let name = |stream: StreamId| names.get(&stream).cloned().unwrap_or_else(|| stream.to_string());
        much.into_iter().map(|(stream, streamlet, bytes)| takes_much_along(&name(stream), streamlet.0, bytes)).collect()
    }

    fn uptime_ms(&self) -> u64 {
        self.clock.monotonic_us().saturating_sub(self.started_us) / 1000
    }

    fn server_stats(&self) -> kera_rpc::ServerStats {
        self.server.lock().as_ref().map(kera_rpc::RunningServer::stats).unwrap_or_default()
    }

    /// All virtual logs together.
    fn virtual_log_stats(&self) -> VirtualLogStats {
        let mut all = VirtualLogStats { healthy: true, ..VirtualLogStats::default() };
        for one in self.virtual_logs.iter().map(|v| v.stats()) {
            all.blocks += one.blocks;
            all.chunks += one.chunks;
            all.chunk_bytes += one.chunk_bytes;
            all.block_bytes += one.block_bytes;
            all.through_bytes += one.through_bytes;
            all.failures += one.failures;
            all.disk_us += one.disk_us;
            all.disk_us_max = all.disk_us_max.max(one.disk_us_max);
            all.pending_references += one.pending_references;
            all.pending_bytes += one.pending_bytes;
            all.files += one.files;
            all.file_bytes += one.file_bytes;
            all.healthy &= one.healthy;
        }
        all
    }

    fn disks(&self) -> Vec<DiskStatus> {
        let virtual_logs = self.virtual_log_stats().file_bytes;
        let status = |(index, disk): (usize, &kera_log::store::DiskStatus)| {
            let (total_bytes, free_bytes) = machine::space(&disk.path).unwrap_or_default();
            let own = if index == 0 { virtual_logs } else { 0 };
            let reason = disk.error.as_ref().map_or("", |(error, _)| error.as_str());
            let problem = match disk.state {
                DiskState::Working => String::new(),
                DiskState::Full => format!("full: {reason}"),
                DiskState::Failed => format!("failed: {reason}"),
            };
            let path = disk.path.display().to_string();
            DiskStatus { path, total_bytes, free_bytes, used_bytes: disk.segment_bytes + own, problem }
        };
        self.store.status().disks.iter().enumerate().map(status).collect()
    }

    /// Everything that a scrape shows.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let (kafka, kafka_server) = self.kafka.lock().as_ref().map(Listening::stats).unwrap_or_default();
        Snapshot {
            broker: self.broker.metrics().read(),
            latencies: LatencyCounts { kafka_produce: kafka.produce, kafka_fetch: kafka.fetch, ..self.latencies() },
            kafka,
            kafka_server,
            log: self.log.stats(),
            virtual_logs: self.virtual_log_stats(),
            cluster: self.cluster.as_ref().map(|cluster| cluster.numbers()).unwrap_or_default(),
            storage: self.storage(),
            server: self.server_stats(),
            uptime_ms: self.uptime_ms(),
            compaction: self.compactor.stats(),
            scrub: self.scrub.numbers(),
            compaction_us: self.compaction_us.load(Ordering::Relaxed),
            epoch: self.identity.epoch,
            ready: self.readiness.not_ready().is_none(),
            streams: self.stream_numbers(),
            applications: self.application_numbers(),
        }
    }

    fn latencies(&self) -> LatencyCounts {
        let of = self.broker.latencies();
        LatencyCounts {
            write_process: of.write_process.read(),
            write_power: of.write_power.read(),
            read: of.read.read(),
            ..LatencyCounts::default()
        }
    }

    fn application_numbers(&self) -> Vec<ApplicationNumbers> {
        let names: HashMap<_, _> = self.coordinator.streams().into_iter().map(|info| (info.id, info.name)).collect();
        let numbers = |one: kera_protocol::ApplicationSummary| {
            // A stream that was deleted a moment ago takes its applications with it.
            let stream = names.get(&one.stream)?.clone();
            Some(ApplicationNumbers { name: one.name, stream, members: one.members.into(), lag: one.lag })
        };
        self.broker.application_summaries(LABELLED_MAX).into_iter().filter_map(numbers).collect()
    }

    fn storage(&self) -> Storage {
        let status = self.store.status();
        let mut storage = Storage {
            dirty_bytes: status.dirty_bytes,
            clean_bytes: status.clean_bytes,
            loads_waiting: status.loads_waiting,
            ..Storage::default()
        };
        for disk in &status.disks {
            storage.stored_bytes += disk.segment_bytes;
            storage.containers += disk.containers;
            storage.written_bytes += disk.counters.written_bytes;
            storage.write_errors += disk.counters.write_errors;
            storage.loaded_bytes += disk.counters.loaded_bytes;
            storage.read_errors += disk.counters.read_errors;
            storage.corrupt_segments += disk.counters.corrupt_segments;
            storage.disks_down += u64::from(disk.state != DiskState::Working);
        }
        storage
    }

    fn stream_numbers(&self) -> Vec<StreamNumbers> {
        let mut all = Vec::new();
        for info in self.coordinator.streams().into_iter().take(LABELLED_MAX) {
            let Some(stream) = self.log.stream(info.id) else { continue };
            let mut numbers = StreamNumbers { name: info.name, ..StreamNumbers::default() };
            for streamlet in stream.streamlets() {
                for lane in streamlet.lanes() {
                    let lane = lane.stats();
                    numbers.records += lane.next_ordinal;
                    numbers.bytes += lane.bytes;
                }
            }
            all.push(numbers);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_streamlet_that_takes_much_along_names_it_and_how_near_it_is() {
        let said = takes_much_along("payments", 3, 300 << 10);
        assert!(said.starts_with("payments/3 would take 300 KiB along"), "{said}");
        assert!(said.contains("512 KiB is the most, of which 384 KiB may be for applications"), "{said}");
    }
}
