//! What `kera top` sees: one look at the nodes, and the rates between two looks.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use kera_client::{Applications, Client};
use kera_protocol::{MemberNode, NodeStatusResponse};

use crate::commands::status::soon;
use crate::error::CliError;
use crate::output::not_heard;

/// Streams that are looked at; of more only the first by name.
const STREAMS_MAX: usize = 200;

/// All nodes at one moment.
pub(super) struct Look {
    at: Instant,
    nodes: Vec<NodeLook>,
    streams: Vec<StreamLook>,
    /// The names of all streams by their ids, also of those that are not looked at.
    names: HashMap<u64, String>,
    /// Streams that are not looked at.
    streams_left_out: usize,
    applications: Vec<ApplicationLook>,
    /// Nodes that have not told how far applications are.
    unheard: Vec<u32>,
}

/// A node, by its number; 0 is one that is alone.
struct NodeLook {
    number: u32,
    state: &'static str,
    streamlets: u64,
    /// Nothing of one that is lost, or does not answer soon.
    status: Option<NodeStatusResponse>,
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

/// Who looks: connections to all nodes of a cluster, which are kept from look to look.
pub(super) struct Watch {
    client: Client,
    others: HashMap<String, Client>,
}

impl Watch {
    pub(super) fn new(client: Client) -> Watch {
        Watch { client, others: HashMap::new() }
    }

    /// Looks once.
    pub(super) async fn look(&mut self) -> Result<Look, CliError> {
        let nodes = self.nodes().await?;
        look(&self.client, nodes).await
    }

    async fn nodes(&mut self) -> Result<Vec<NodeLook>, CliError> {
        let members = self.client.admin().describe_cluster().await?.nodes;
        if members.is_empty() {
            let status = Some(self.client.admin().node_status().await?);
            return Ok(vec![NodeLook { number: 0, state: "live", streamlets: 0, status }]);
        }
        let mut nodes = Vec::new();
        let mut asked = tokio::task::JoinSet::new();
        for member in &members {
            let streamlets = member.streamlets;
            let state = if member.fenced { "lost" } else { "silent" };
            nodes.push(NodeLook { number: member.node, state, streamlets, status: None });
            let Some(client) = self.client_of(member).await else { continue };
            let number = member.node;
            asked.spawn(async move { Some((number, soon(async { client.admin().node_status().await.ok() }).await??)) });
        }
        let mut said: BTreeMap<u32, NodeStatusResponse> = asked.join_all().await.into_iter().flatten().collect();
        for node in &mut nodes {
            node.status = said.remove(&node.number);
            if node.status.is_some() {
                node.state = "live";
            }
        }
        Ok(nodes)
    }

    /// A connection to a node that is live.
    async fn client_of(&mut self, member: &MemberNode) -> Option<Client> {
        let address = &member.native_address;
        if member.fenced || address.is_empty() {
            return None;
        }
        if !self.others.contains_key(address) {
            let client = soon(Client::builder(address).client_name("kera").connect()).await?.ok()?;
            self.others.insert(address.clone(), client);
        }
        self.others.get(address).cloned()
    }
}

async fn look(client: &Client, nodes: Vec<NodeLook>) -> Result<Look, CliError> {
    let admin = client.admin();
    let all = admin.streams("", false).await?;
    let names = all.iter().map(|info| (info.id.0, info.name.clone())).collect();
    let streams_left_out = all.len().saturating_sub(STREAMS_MAX);
    let mut streams = Vec::new();
    for info in all.into_iter().take(STREAMS_MAX) {
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
    let Applications { applications, unheard, .. } = admin.applications(None).await?;
    let applications = applications.into_iter().map(|a| ApplicationLook {
        id: a.application.0,
        name: a.name,
        stream: a.stream.0,
        members: a.members,
        lag: a.lag,
    });
    let (at, applications) = (Instant::now(), applications.collect());
    Ok(Look { at, nodes, streams, names, streams_left_out, applications, unheard })
}

/// What is shown: the latest look with rates since the one before. Figures that are no stream's are sums over the nodes that answer.
pub(super) struct View {
    pub(super) arena_bytes: u64,
    pub(super) arena_used_bytes: u64,
    pub(super) connections: u64,
    pub(super) in_bytes_s: u64,
    pub(super) out_bytes_s: u64,
    pub(super) problems: Vec<String>,
    /// The nodes of a cluster; none of one that is alone.
    pub(super) nodes: Vec<NodeView>,
    pub(super) streams: Vec<StreamView>,
    /// Streams that are not looked at: there are too many.
    pub(super) streams_left_out: usize,
    pub(super) applications: Vec<ApplicationView>,
    /// Nodes that have not told how far applications are.
    pub(super) unheard: Vec<u32>,
}

pub(super) struct NodeView {
    pub(super) node: u32,
    pub(super) state: &'static str,
    pub(super) streamlets: u64,
    pub(super) in_bytes_s: u64,
    pub(super) out_bytes_s: u64,
    pub(super) connections: u64,
    pub(super) arena_bytes: u64,
    pub(super) arena_used_bytes: u64,
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
    /// Not known where its stream is not looked at.
    pub(super) out_records_s: Option<u64>,
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
            let stream = streams.iter().find(|s| s.id == a.stream)?;
            Some(stream.durable.saturating_sub(a.lag))
        };
        let applications: Vec<(u64, ApplicationView)> = (now.applications.iter())
            .map(|a| {
                let then = application_before(a.id).zip(before).and_then(|(then, before)| read(&before.streams, then));
                let out_records_s = read(&now.streams, a).map(|now| then.map_or(0, |then| rate(then, now)));
                let stream = now.names.get(&a.stream).cloned().unwrap_or_else(|| a.stream.to_string());
                let (name, members, lag) = (a.name.clone(), a.members, a.lag);
                (a.stream, ApplicationView { name, stream, members, out_records_s, lag })
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
                    .filter_map(|(_, a)| a.out_records_s)
                    .sum(),
                records: s.durable.saturating_sub(s.first),
                bytes: s.bytes,
                memory_bytes: s.memory_bytes,
                disk_bytes: s.disk_bytes,
            }
        });
        let nodes: Vec<NodeView> = now
            .nodes
            .iter()
            .map(|node| node_view(before.and_then(|before| before.node(node.number)), node, rate))
            .collect();
        let sum = |of: fn(&NodeView) -> u64| nodes.iter().map(of).sum();
        View {
            arena_bytes: sum(|node| node.arena_bytes),
            arena_used_bytes: sum(|node| node.arena_used_bytes),
            connections: sum(|node| node.connections),
            in_bytes_s: sum(|node| node.in_bytes_s),
            out_bytes_s: sum(|node| node.out_bytes_s),
            problems: problems(&now.nodes),
            streams: streams.collect(),
            streams_left_out: now.streams_left_out,
            applications: applications.into_iter().map(|(_, a)| a).collect(),
            nodes: nodes.into_iter().filter(|node| node.node != 0).collect(),
            unheard: now.unheard.clone(),
        }
    }

    /// That there are streams which are not looked at; nothing if there are none.
    pub(super) fn left_out(&self) -> Option<String> {
        (self.streams_left_out > 0).then(|| format!("and {} more", self.streams_left_out))
    }

    /// What figures of applications lack, as a line; nothing if all nodes were heard.
    pub(super) fn lacking(&self) -> Option<String> {
        not_heard(&self.unheard).map(|nodes| format!("{nodes}: LAG lacks what applications have to read there"))
    }
}

impl Look {
    fn node(&self, number: u32) -> Option<&NodeLook> {
        self.nodes.iter().find(|node| node.number == number)
    }
}

/// What a node does since a look before. One that was started again since has begun to count at nothing.
fn node_view(before: Option<&NodeLook>, now: &NodeLook, rate: impl Fn(u64, u64) -> u64) -> NodeView {
    let status = now.status.as_ref();
    let then = before.and_then(|before| before.status.as_ref());
    let figure = |of: fn(&NodeStatusResponse) -> u64| status.map_or(0, of);
    let grown = |of: fn(&NodeStatusResponse) -> u64| {
        status
            .zip(then)
            .filter(|(now, then)| now.node_epoch == then.node_epoch)
            .map_or(0, |(now, then)| rate(of(then), of(now)))
    };
    NodeView {
        node: now.number,
        state: now.state,
        streamlets: now.streamlets,
        in_bytes_s: grown(|status| status.appended_bytes),
        out_bytes_s: grown(|status| status.read_bytes),
        connections: figure(|status| status.connections),
        arena_bytes: figure(|status| status.arena_bytes),
        arena_used_bytes: figure(|status| status.arena_used_bytes),
    }
}

/// What nodes say goes wrong, with their numbers; what several say, once.
fn problems(nodes: &[NodeLook]) -> Vec<String> {
    let mut saying: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (node, status) in nodes.iter().filter_map(|node| Some((node, node.status.as_ref()?))) {
        for problem in &status.problems {
            saying.entry(problem).or_default().push(node.number.to_string());
        }
    }
    let is_alone = nodes.iter().any(|node| node.number == 0);
    let told = saying.into_iter().map(|(problem, nodes)| match is_alone {
        true => problem.to_owned(),
        false => format!("node {}: {problem}", nodes.join(", ")),
    });
    let missing = nodes.iter().filter(|node| node.status.is_none());
    let missing = missing.map(|node| match node.state {
        "lost" => format!("node {} is lost", node.number),
        _ => format!("node {} does not answer", node.number),
    });
    missing.chain(told).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::commands::status::tests::told;

    fn look(seconds: u64, nodes: Vec<NodeLook>) -> Look {
        let at = Instant::now() + Duration::from_secs(seconds);
        let (streams, applications, unheard) = (Vec::new(), Vec::new(), Vec::new());
        Look { at, nodes, streams, names: HashMap::new(), streams_left_out: 0, applications, unheard }
    }

    fn stream(id: u64, durable: u64) -> StreamLook {
        let name = format!("s{id}");
        StreamLook { id, name, first: 0, next: durable, durable, bytes: 0, memory_bytes: 0, disk_bytes: 0 }
    }

    fn node(number: u32, appended: Option<u64>) -> NodeLook {
        let status = appended.map(|appended_bytes| told(number, appended_bytes));
        let state = if status.is_some() { "live" } else { "lost" };
        NodeLook { number, state, streamlets: 1, status }
    }

    #[test]
    fn the_head_is_the_sum_of_all_nodes_that_answer() {
        let before = look(0, vec![node(1, Some(0)), node(2, Some(5000)), node(3, Some(7))]);
        let now = look(10, vec![node(1, Some(1000)), node(2, Some(9000)), node(3, None)]);
        let view = View::new(Some(&before), &now);
        assert!((490..=500).contains(&view.in_bytes_s), "{}", view.in_bytes_s);
        assert_eq!((view.connections, view.arena_bytes, view.arena_used_bytes), (4, 200, 20));
        assert_eq!(view.problems, ["node 3 is lost", "node 1, 2: the disk is full"]);
        assert_eq!(
            view.nodes.iter().map(|node| (node.node, node.state)).collect::<Vec<_>>(),
            [(1, "live"), (2, "live"), (3, "lost")]
        );
        assert_eq!(view.lacking(), None);
        let unheard = View::new(Some(&before), &Look { unheard: vec![3], ..now });
        assert_eq!(
            unheard.lacking().as_deref(),
            Some("node 3 was not heard: LAG lacks what applications have to read there")
        );
        let alone = View::new(None, &look(0, vec![node(0, Some(1))]));
        assert!(alone.nodes.is_empty());
        assert_eq!(alone.problems, ["the disk is full"]);
    }

    #[test]
    fn streams_that_are_not_looked_at_are_counted_and_their_applications_have_names_and_no_rate() {
        let at = |seconds: u64, durable: u64, lag: u64| {
            let application =
                |id: u64, stream: u64| ApplicationLook { id, name: format!("a{id}"), stream, members: 1, lag };
            Look {
                streams: vec![stream(1, durable)],
                names: [1, 2].map(|id| (id, format!("s{id}"))).into(),
                streams_left_out: 1,
                // The third one's stream was deleted a moment ago.
                applications: vec![application(7, 1), application(8, 2), application(9, 3)],
                ..look(seconds, Vec::new())
            }
        };
        let view = View::new(Some(&at(0, 1000, 1000)), &at(10, 2000, 0));
        assert_eq!((view.streams_left_out, view.left_out().as_deref()), (1, Some("and 1 more")));
        let streams: Vec<&str> = view.applications.iter().map(|a| a.stream.as_str()).collect();
        assert_eq!(streams, ["s1", "s2", "3"]);
        let rates: Vec<bool> = view.applications.iter().map(|a| a.out_records_s.is_some()).collect();
        assert_eq!(rates, [true, false, false]);
        let rate = view.applications[0].out_records_s.expect("it is known");
        assert!((190..=200).contains(&rate), "{rate}");
        assert_eq!(view.streams[0].out_records_s, rate);
        assert_eq!(View::new(None, &look(0, Vec::new())).left_out(), None);
    }
}
