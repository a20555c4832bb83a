//! What `kera top` sees: one look at the node, and the rates between two looks.

use std::time::Instant;

use kera_client::Client;
use kera_protocol::NodeStatusResponse;

use crate::error::CliError;

/// Streams that are looked at; of more only the first by name.
const STREAMS_MAX: usize = 200;

/// The node at one moment.
pub(super) struct Look {
    at: Instant,
    status: NodeStatusResponse,
    streams: Vec<StreamLook>,
    applications: Vec<ApplicationLook>,
}

struct StreamLook {
    id: u64,
    name: String,
    first: u64,
    next: u64,
    durable: u64,
    bytes: u64,
    memory_bytes: u64,
    disk_bytes: u64,
}

struct ApplicationLook {
    id: u64,
    name: String,
    stream: u64,
    members: u32,
    lag: u64,
}

/// Looks once.
pub(super) async fn look(client: &Client) -> Result<Look, CliError> {
    let admin = client.admin();
    let status = admin.node_status().await?;
    let mut streams = Vec::new();
    for info in admin.streams("", false).await?.into_iter().take(STREAMS_MAX) {
        // A stream that was deleted a moment ago has no statistics.
        let Ok(found) = admin.stream_stats(info.id).await else { continue };
        let mut stream = StreamLook {
            id: info.id.0,
            name: info.name,
            first: 0,
            next: 0,
            durable: 0,
            bytes: 0,
            memory_bytes: 0,
            disk_bytes: 0,
        };
        for lane in found.lanes {
            stream.first += lane.first_ordinal;
            stream.next += lane.next_ordinal;
            stream.durable += lane.durable_ordinal;
            stream.bytes += lane.bytes;
            stream.memory_bytes += lane.memory_bytes;
            stream.disk_bytes += lane.disk_bytes;
        }
        streams.push(stream);
    }
    let applications = admin.applications(None).await?.into_iter().map(|a| ApplicationLook {
        id: a.application.0,
        name: a.name,
        stream: a.stream.0,
        members: a.members,
        lag: a.lag,
    });
    Ok(Look { at: Instant::now(), status, streams, applications: applications.collect() })
}

/// What is shown: the latest look with rates since the one before.
pub(super) struct View {
    pub(super) arena_bytes: u64,
    pub(super) arena_used_bytes: u64,
    pub(super) connections: u64,
    pub(super) in_bytes_s: u64,
    pub(super) out_bytes_s: u64,
    pub(super) problems: Vec<String>,
    pub(super) streams: Vec<StreamView>,
    pub(super) applications: Vec<ApplicationView>,
}

pub(super) struct StreamView {
    pub(super) name: String,
    pub(super) in_records_s: u64,
    pub(super) in_bytes_s: u64,
    pub(super) out_records_s: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) disk_bytes: u64,
}

pub(super) struct ApplicationView {
    pub(super) name: String,
    pub(super) stream: String,
    pub(super) members: u32,
    pub(super) out_records_s: u64,
    pub(super) lag: u64,
}

impl View {
    pub(super) fn new(before: Option<&Look>, now: &Look) -> View {
        let seconds = before.map_or(0.0, |before| (now.at - before.at).as_secs_f64());
        let rate =
            |then: u64, now: u64| if seconds > 0.0 { (now.saturating_sub(then) as f64 / seconds) as u64 } else { 0 };
        let stream_before = |id: u64| before.and_then(|b| b.streams.iter().find(|s| s.id == id));
        let application_before = |id: u64| before.and_then(|b| b.applications.iter().find(|a| a.id == id));
        // What an application has read is what is there less what it lags behind.
        let read = |streams: &[StreamLook], a: &ApplicationLook| {
            let durable = streams.iter().find(|s| s.id == a.stream).map_or(0, |s| s.durable);
            durable.saturating_sub(a.lag)
        };
        let applications: Vec<(u64, ApplicationView)> = (now.applications.iter())
            .map(|a| {
                let then = application_before(a.id).zip(before).map(|(then, before)| read(&before.streams, then));
                let name_of = |id: u64| {
                    now.streams.iter().find(|s| s.id == id).map_or_else(|| id.to_string(), |s| s.name.clone())
                };
                let out_records_s = then.map_or(0, |then| rate(then, read(&now.streams, a)));
                (
                    a.stream,
                    ApplicationView {
                        name: a.name.clone(),
                        stream: name_of(a.stream),
                        members: a.members,
                        out_records_s,
                        lag: a.lag,
                    },
                )
            })
            .collect();
        let streams = now.streams.iter().map(|s| {
            let then = stream_before(s.id);
            StreamView {
                name: s.name.clone(),
                in_records_s: then.map_or(0, |then| rate(then.next, s.next)),
                in_bytes_s: then.map_or(0, |then| rate(then.bytes, s.bytes)),
                out_records_s: applications
                    .iter()
                    .filter(|(stream, _)| *stream == s.id)
                    .map(|(_, a)| a.out_records_s)
                    .sum(),
                records: s.durable.saturating_sub(s.first),
                bytes: s.bytes,
                memory_bytes: s.memory_bytes,
                disk_bytes: s.disk_bytes,
            }
        });
        View {
            arena_bytes: now.status.arena_bytes,
            arena_used_bytes: now.status.arena_used_bytes,
            connections: now.status.connections,
            in_bytes_s: before.map_or(0, |b| rate(b.status.appended_bytes, now.status.appended_bytes)),
            out_bytes_s: before.map_or(0, |b| rate(b.status.read_bytes, now.status.read_bytes)),
            problems: now.status.problems.clone(),
            streams: streams.collect(),
            applications: applications.into_iter().map(|(_, a)| a).collect(),
        }
    }
}
