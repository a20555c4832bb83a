//! `kera stream`: create, list, describe, alter and delete streams.

use std::collections::BTreeMap;

use kera_client::{Applications, Client, Status, StreamChanges, StreamInfo, StreamLanes, StreamOptions};
use kera_format::{Cleanup, ReplicationMode};
use kera_protocol::{ApplicationSummary, CopyChange, LaneStats, StreamRef};
use kera_server::api::{StreamDetailsJson, StreamJson};
use kera_server::units::{exact_bytes, human_bytes, human_count, human_duration};
use serde::Serialize;
use serde_json::json;

use crate::cli::{Globals, Limit, OptionArgs, StreamCommand};
use crate::columns;
use crate::commands::copies as changing;
use crate::commands::owners::{self, Owned};
use crate::connect::{NAMES, connect, find_stream, look_for, no_such_stream};
use crate::error::CliError;
use crate::output::{Table, agreed, counted, facts, not_heard, print, print_json, records_of};
use crate::when::show_instant;

/// Runs the command.
///
/// # Errors
/// What the node says, or that it cannot be reached.
pub async fn run(command: StreamCommand, globals: &Globals) -> Result<(), CliError> {
    match command {
        StreamCommand::Create { name, options, if_not_exists } => create(&name, &options, if_not_exists, globals).await,
        StreamCommand::List { prefix, system } => list(&prefix, system, globals).await,
        StreamCommand::Describe { name, lanes } => describe(&name, lanes, globals).await,
        StreamCommand::Alter { name, options, no_wait } => alter(&name, &options, no_wait, globals).await,
        StreamCommand::Delete { name, if_exists, yes } => delete(&name, if_exists, yes, globals).await,
    }
}

impl OptionArgs {
    /// What is to change.
    pub fn changes(&self) -> StreamChanges {
        StreamChanges {
            streamlets: self.streamlets,
            lanes: self.lanes,
            segments_per_group: self.segments_per_group,
            segment_bytes_max: self.segment_bytes,
            replication: self.replication,
            replication_mode: self.replication_mode,
            durability: self.durability,
            order: self.order,
            retention_ms: self.retention_time.map(|Limit(ms)| ms),
            retention_bytes: self.retention_bytes.map(|Limit(bytes)| bytes),
            retention_consumed: self.retention_consumed,
            cleanup: self.cleanup,
            virtual_logs: self.virtual_logs,
            segment_ms: self.segment_time,
            compact_dirty_percent: self.compact_dirty_percent,
            compact_after_ms: self.compact_after,
            compact_within_ms: self.compact_within.map(|Limit(ms)| ms),
            tombstone_ms: self.tombstone_time,
            timestamps: self.timestamps,
            batch_compression: self.batch_compression,
            settings: BTreeMap::new(),
        }
    }
}

/// All mistakes in the options at once, before a node is asked.
fn check(options: &StreamOptions) -> Result<(), CliError> {
    let wrong: Vec<String> = options.check().iter().map(ToString::to_string).collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(CliError::usage(wrong.join("; ")).next("`kera stream create --help` explains the options"))
    }
}

async fn create(name: &str, args: &OptionArgs, if_not_exists: bool, globals: &Globals) -> Result<(), CliError> {
    if !kera_format::limits::name_is_valid(name) {
        let message = format!("`{name}` cannot be the name of a stream");
        return Err(CliError::usage(message).next(NAMES));
    }
    if name.starts_with("_kera.") {
        let message = format!("`{name}` starts with `_kera.`, which is kept for the system's own streams");
        return Err(CliError::usage(message).next("choose another name"));
    }
    let changes = args.changes();
    // What only one copy forbids is known when a node has said how many there are.
    check(&changes.apply(&StreamOptions { replication: changing::COPIES_AUTO, ..StreamOptions::default() }))?;
    let client = connect(globals).await?;
    if if_not_exists && let Some(info) = look_for(&client, name).await? {
        if globals.json {
            return print_json(&StreamJson::from(&info));
        }
        return print(&format!("{} exists, with {}; its options stay as they are\n", info.name, shape(&info.options)));
    }
    let by_itself = match args.replication {
        Some(_) => None,
        None => Some(changing::by_itself(&client).await?),
    };
    let replication = by_itself.as_ref().map_or(1, |chosen| chosen.copies);
    let options = changes.apply(&StreamOptions { replication, ..StreamOptions::default() });
    check(&options)?;
    let made = match if_not_exists {
        true => client.admin().ensure_stream(name, options).await,
        false => client.admin().create_stream(name, options).await,
    };
    let info = made.map_err(|error| match &by_itself {
        Some(chosen) => chosen.refused(&error),
        None => changing::refused(&error),
    })?;
    if globals.json {
        return print_json(&StreamJson::from(&info));
    }
    let why = by_itself.map_or_else(String::new, |chosen| chosen.why(&info.name, info.options.replication));
    print(&format!("created {} with {}, {}{why}\n", info.name, shape(&info.options), copies(&info.options)))
}

async fn list(prefix: &str, system: bool, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let streams = client.admin().streams(prefix, system).await?;
    let changes = changing::known(&client).await;
    if globals.json {
        let one = |info: &StreamInfo| StreamJson::from(info).changing(changing::of(&changes, info.id));
        return print_json(&streams.iter().map(one).collect::<Vec<_>>());
    }
    if streams.is_empty() {
        let which = if prefix.is_empty() {
            "no streams yet".to_owned()
        } else {
            format!("no streams that start with `{prefix}`")
        };
        return print(&format!("{which}; make one with `kera stream create NAME`\n"));
    }
    print(&list_text(&streams, &changes))
}

fn list_text(streams: &[StreamInfo], changes: &[CopyChange]) -> String {
    let mut table = Table::new(&columns::STREAMS);
    let mut notes = String::new();
    for info in streams {
        let o = &info.options;
        let change = changing::of(changes, info.id);
        if let Some(of) = change {
            notes.push_str(&format!("{}: to have {} copies, {}\n", info.name, of.wanted, changing::progress(of)));
        }
        table.row([
            info.name.clone(),
            o.streamlets.to_string(),
            o.lanes.to_string(),
            change.map_or_else(|| o.replication.to_string(), |of| format!("{} of {}", o.replication, of.wanted)),
            o.durability.to_string(),
            o.order.to_string(),
            retention(o),
            // The day is enough here, and lets a row fit a terminal; `describe` and `--json` tell the rest.
            show_instant(info.created_ms).split('T').next().unwrap_or_default().to_owned(),
        ]);
    }
    table.text() + &notes
}

async fn describe(name: &str, lanes: bool, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let info = find_stream(&client, name).await?;
    let mut held = client.admin().stream_stats(info.id).await?;
    let Applications { applications, unheard, .. } = client.admin().applications(Some(info.id)).await?;
    held.unheard.extend(unheard);
    held.unheard.sort_unstable();
    held.unheard.dedup();
    let changes = changing::known(&client).await;
    let change = changing::of(&changes, info.id);
    // Nodes of versions that do not know of owners refuse.
    let owned = owners::of(&client, Some(info.id)).await.ok().flatten();
    if globals.json {
        let details = StreamDetailsJson::new(&info, &held.lanes, &applications);
        let stream = details.stream.clone().changing(change);
        let details = StreamDetailsJson { stream, unheard: held.unheard, ..details };
        return print_json(&Described { details, owners: owned });
    }
    let mut text = describe_text(&info, change, &held, &applications);
    if let Some(owned) = &owned {
        text.push_str(&owners_text(owned, if lanes { usize::MAX } else { OWNERS_SHOWN }));
    }
    if lanes && !held.lanes.is_empty() {
        text.push_str(&lanes_text(&held.lanes, owned.as_deref()));
    }
    print(&text)
}

/// A stream as `--json` shows it.
#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    details: StreamDetailsJson,
    /// Who owns what of it; nothing of a node that is alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    owners: Option<Vec<Owned>>,
}

/// Streamlets whose owners are shown without `--lanes`.
const OWNERS_SHOWN: usize = 32;

fn owners_text(owned: &[Owned], most: usize) -> String {
    let mut table = Table::new(&columns::OWNERS);
    for of in owned.iter().take(most) {
        table.row([of.streamlet.to_string(), owners::listed(&[of.owner]), owners::listed(&of.earlier)]);
    }
    let more = owned.len().saturating_sub(most);
    let more = if more == 0 { String::new() } else { format!("and {more} more; --lanes shows all\n") };
    format!("\n{}{more}", table.text())
}

/// Each lane that was written to, in a cluster with its streamlet's owner.
fn lanes_text(stats: &[LaneStats], owned: Option<&[Owned]>) -> String {
    let mut header = columns::LANES.to_vec();
    if owned.is_some() {
        header.insert(1, "OWNER");
    }
    let owner = |streamlet: u32| owned?.iter().find(|of| of.streamlet == streamlet).map(|of| of.owner);
    let mut table = Table::new(&header);
    for l in stats {
        let mut row = vec![
            l.streamlet.to_string(),
            l.lane.to_string(),
            l.first_ordinal.to_string(),
            l.durable_ordinal.to_string(),
            l.bytes.to_string(),
            l.groups.to_string(),
            l.segments.to_string(),
            show_instant(l.last_append_ms),
        ];
        if owned.is_some() {
            row.insert(1, owners::listed(&[owner(l.streamlet.0).unwrap_or(0)]));
        }
        table.row(row);
    }
    format!("\n{}", table.text())
}

fn describe_text(
    info: &StreamInfo,
    change: Option<&CopyChange>,
    held: &StreamLanes,
    applications: &[ApplicationSummary],
) -> String {
    let stats = &held.lanes;
    let sum = |of: fn(&LaneStats) -> u64| stats.iter().map(of).sum::<u64>();
    let last = stats.iter().map(|l| l.last_append_ms).max().filter(|ms| *ms > 0);
    let o = &info.options;
    let mut text = facts(&[
        ("name", info.name.clone()),
        ("id", info.id.to_string()),
        ("created", show_instant(info.created_ms)),
        ("shape", shape(o)),
        ("groups", format!("{} segments of at most {}", o.segments_per_group, exact_bytes(o.segment_bytes_max.into()))),
        ("safety", format!("durability {}, {}", o.durability, copies_with(o, change))),
        ("order", o.order.to_string()),
        ("retention", format!("{}, cleanup {}", retention(o), o.cleanup)),
        ("records", records(o, stats)),
        (
            "bytes",
            format!(
                "{} of records; the segments that they are in take {} of memory and {} on disk",
                human_bytes(sum(|l| l.bytes)),
                human_bytes(sum(|l| l.memory_bytes)),
                human_bytes(sum(|l| l.disk_bytes))
            ),
        ),
        ("last write", last.map_or("never".into(), show_instant)),
    ]);
    if let Some(nodes) = not_heard(&held.unheard) {
        text.push_str(&facts(&[("missing", format!("{nodes}: what is there is not counted, nor is it in any LAG"))]));
    }
    if o.cleanup.compacts() {
        text.push_str(&facts(&[("compaction", compaction(o, sum(|l| l.uncompacted_bytes), sum(|l| l.bytes)))]));
    }
    if !o.settings.is_empty() {
        let given: Vec<String> =
            o.settings.iter().map(|(name, value)| format!("{name}={}", value.escape_debug())).collect();
        text.push_str(&facts(&[("kept", format!("as Kafka clients have set it: {}", given.join(", ")))]));
    }
    if !applications.is_empty() {
        let mut table = Table::new(&columns::READERS);
        for a in applications {
            table.row([a.name.clone(), a.state.name().to_owned(), a.members.to_string(), human_count(a.lag)]);
        }
        text.push_str(&format!("\n{}", table.text()));
    }
    text
}

async fn alter(name: &str, args: &OptionArgs, no_wait: bool, globals: &Globals) -> Result<(), CliError> {
    let changes = args.changes();
    if changes.is_empty() {
        let advice = "name at least one, like --retention-time 30d; `kera stream alter --help` lists them";
        return Err(CliError::usage("there is no option to change").next(advice));
    }
    let client = connect(globals).await?;
    let before = find_stream(&client, name).await?;
    check(&changes.apply(&before.options))?;
    let altered = client.admin().alter_stream(before.id, changes).await;
    let mut after = altered.map_err(|error| changing::refused(&error))?;
    let mut change = None;
    if let Some(wanted) = args.replication {
        change = changing::change_of(&client, after.id).await?;
        if change.is_some() && !no_wait {
            (after, change) = (changing::wait(&client, &after, wanted, globals).await?, None);
        }
    }
    if globals.json {
        return print_json(&StreamJson::from(&after).changing(change.as_ref()));
    }
    print(&altered_text(&after, change.as_ref()))
}

fn altered_text(after: &StreamInfo, change: Option<&CopyChange>) -> String {
    let o = &after.options;
    let copies = copies_with(o, change);
    let mut text = format!("altered {}: {}, {copies}, retention {}\n", after.name, shape(o), retention(o));
    if change.is_some() {
        text.push_str("the copies are made in the background; `kera status` shows how far it is\n");
    }
    text
}

async fn delete(name: &str, if_exists: bool, yes: bool, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let known = match yes {
        // By its number where the node knows it: whoever hands a command on gives it again when its answer is lost, and another stream may have the name by then.
        true => match client.admin().stream(name).await {
            Ok(info) => Some(info.id),
            // Whoever deletes it says whether it is there: the node may not have heard of it yet.
            Err(error) if error.status() == Some(Status::UnknownStream) => None,
            Err(error) => return Err(error.into()),
        },
        false => match look_for(&client, name).await? {
            Some(info) => {
                agreed_to_delete(&client, &info).await?;
                Some(info.id)
            }
            None if if_exists => return report_delete(name, false, globals),
            None => return Err(no_such_stream(&client, name).await),
        },
    };
    let stream: StreamRef = known.map_or_else(|| name.into(), StreamRef::Id);
    let mut deleted = client.admin().delete_stream(stream).await;
    let is_unknown = deleted.as_ref().is_err_and(|error| error.status() == Some(Status::UnknownStream));
    // The node may have known one that is gone, and not have heard of another one of that name.
    if let Some(gone) = known.filter(|_| is_unknown) {
        if yes {
            deleted = client.admin().delete_stream(name).await;
        } else if look_for(&client, name).await?.is_some_and(|other| other.id != gone) {
            let message = format!("{name} is not the stream any more that was shown, and was not deleted");
            return Err(CliError::failure(message).next("give the command again"));
        }
    }
    match deleted {
        Ok(()) => report_delete(name, true, globals),
        Err(error) if error.status() != Some(Status::UnknownStream) => Err(error.into()),
        Err(_) if if_exists => report_delete(name, false, globals),
        Err(_) => Err(no_such_stream(&client, name).await),
    }
}

/// Asks on the terminal. Who is not at one must have said so: what is deleted does not come back.
async fn agreed_to_delete(client: &Client, info: &StreamInfo) -> Result<(), CliError> {
    let held = client.admin().stream_stats(info.id).await?;
    let at_least = if held.unheard.is_empty() { "" } else { "at least " };
    let all = format!("{} with {at_least}{}", info.name, records_of(held.records()));
    let (lost, kept) = (format!("{all} would be gone for good"), format!("{} was not deleted", info.name));
    agreed(&format!("delete {all}?"), &lost, &kept)
}

fn report_delete(name: &str, deleted: bool, globals: &Globals) -> Result<(), CliError> {
    if globals.json {
        return print_json(&json!({ "name": name, "deleted": deleted }));
    }
    print(&if deleted { format!("deleted {name}\n") } else { format!("there is no stream {name}\n") })
}

fn copies(o: &StreamOptions) -> String {
    match o.replication_mode {
        _ if o.replication == 1 => "1 copy".to_owned(),
        ReplicationMode::Sync => format!("{} copies", o.replication),
        ReplicationMode::Async => format!("{} copies that producers do not wait for", o.replication),
    }
}

/// How many copies there are, and are to be.
fn copies_with(o: &StreamOptions, change: Option<&CopyChange>) -> String {
    let Some(change) = change else { return copies(o) };
    let waits = changing::waits(change).map_or_else(String::new, |waits| format!("; the rest {waits}"));
    format!("{}, to be {}: {}{waits}", copies(o), change.wanted, changing::progress(change))
}

fn shape(o: &StreamOptions) -> String {
    format!("{} of {}", counted(o.streamlets.into(), "streamlet"), counted(o.lanes.into(), "lane"))
}

/// How many records there are: of a compacted stream nobody has counted them.
fn records(o: &StreamOptions, stats: &[LaneStats]) -> String {
    let written = human_count(stats.iter().map(|l| l.next_ordinal).sum());
    let there = human_count(stats.iter().map(|l| l.durable_ordinal - l.first_ordinal).sum());
    if o.cleanup.compacts() {
        format!("{written} ever written, of {there} the last of each key")
    } else {
        format!("{there} that can be read, {written} ever written")
    }
}

/// How far compaction is, and what it goes by.
fn compaction(o: &StreamOptions, behind: u64, bytes: u64) -> String {
    let mut rules = format!("begins at {} %", o.compact_dirty_percent);
    if let Some(ms) = o.compact_within_ms {
        rules.push_str(&format!(" or after {}", human_duration(ms)));
    }
    if o.compact_after_ms > 0 {
        rules.push_str(&format!(", never in the first {}", human_duration(o.compact_after_ms)));
    }
    let (behind, bytes, tombstones) = (human_bytes(behind), human_bytes(bytes), human_duration(o.tombstone_ms));
    format!("{behind} of {bytes} came after the last pass; the next {rules}; tombstones stay for {tombstones}")
}

fn retention(o: &StreamOptions) -> String {
    if o.cleanup == Cleanup::Compact {
        return "the last of each key".into();
    }
    let mut parts = Vec::new();
    parts.extend(o.retention_ms.map(human_duration));
    parts.extend(o.retention_bytes.map(|bytes| format!("{} per streamlet", exact_bytes(bytes))));
    parts.extend(o.retention_consumed.then(|| "until consumed".to_owned()));
    let limits = if parts.is_empty() { "for ever".into() } else { parts.join(" or ") };
    if o.cleanup.compacts() { format!("the last of each key, {limits}") } else { limits }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, OnceLock};

    use kera_protocol::{
        Body, ClusterDescription, DeleteStream, Empty, ErrorBody, FRAME_HEADER_BYTES, FrameHeader, HelloResponse, Op,
        encode_error, encode_response,
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// How a node answers what is not a greeting.
    type Says = dyn Fn(&FrameHeader, (Op, &[u8]), &mut Vec<u8>) + Send + Sync;

    /// Starts a node; its address.
    async fn node(says: impl Fn(&FrameHeader, (Op, &[u8]), &mut Vec<u8>) + Send + Sync + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let says: Arc<Says> = Arc::new(says);
        tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                tokio::spawn(serve(connection, Arc::clone(&says)));
            }
        });
        address
    }

    async fn serve(mut connection: TcpStream, says: Arc<Says>) -> std::io::Result<()> {
        loop {
            let mut head = [0; FRAME_HEADER_BYTES];
            connection.read_exact(&mut head).await?;
            let asked = FrameHeader::parse(&head, 1 << 20).unwrap();
            let mut body = vec![0; asked.body_bytes()];
            connection.read_exact(&mut body).await?;
            let mut answer = Vec::new();
            match Op::from_u16(asked.op).unwrap() {
                Op::Hello => encode_response(&asked, &hello(), &mut answer),
                op => says(&asked, (op, body.as_slice()), &mut answer),
            }
            connection.write_all(&answer).await?;
        }
    }

    fn hello() -> HelloResponse {
        HelloResponse {
            server_name: "test".into(),
            server_version: "1".into(),
            node_id: [1; 16],
            node_epoch: 1,
            ops: HelloResponse::ops_spoken(),
            frame_bytes_max: 8 << 20,
            chunk_bytes_max: 4 << 20,
            in_flight_bytes_max: 64 << 20,
            in_flight_requests_max: 1_000,
            subscriptions_max: 128,
            idle_timeout_ms: 0,
        }
    }

    fn refuse(asked: &FrameHeader, status: Status, answer: &mut Vec<u8>) {
        encode_error(asked, status, &ErrorBody::new("it is refused"), answer);
    }

    /// The addresses of two nodes, of which the one that is asked first has not heard of the stream, and how many streams there are.
    async fn nodes() -> (String, Arc<AtomicUsize>) {
        let (behind, there) = (Arc::new(OnceLock::new()), Arc::new(AtomicUsize::new(1)));
        let mut addresses = Vec::new();
        for number in [1, 2] {
            let (behind, there) = (Arc::clone(&behind), Arc::clone(&there));
            let says = move |asked: &FrameHeader, (op, _): (Op, &[u8]), answer: &mut Vec<u8>| match op {
                Op::GetStream if *behind.get_or_init(|| number) != number => encode_response(asked, &stream(1), answer),
                Op::DeleteStream if there.swap(0, Ordering::SeqCst) == 1 => encode_response(asked, &Empty, answer),
                Op::GetStream | Op::DeleteStream => refuse(asked, Status::UnknownStream, answer),
                _ => refuse(asked, Status::NotSupported, answer),
            };
            addresses.push(node(says).await);
        }
        (addresses.join(","), there)
    }

    /// It was said to be made, with other options than it has, or not to be there.
    #[tokio::test]
    async fn a_stream_of_which_one_node_has_not_heard_is_found_at_another() {
        let client = Client::connect(nodes().await.0).await.unwrap();
        let found = look_for(&client, "flights").await.unwrap();
        assert_eq!(found.map(|info| info.id), Some(kera_client::StreamId(7)));
    }

    #[tokio::test]
    async fn a_node_that_is_alone_is_asked_once_for_a_stream() {
        let asked_for = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked_for);
        let address = node(move |asked, (op, _), answer| match op {
            Op::GetStream => {
                counted.fetch_add(1, Ordering::SeqCst);
                refuse(asked, Status::UnknownStream, answer);
            }
            Op::DescribeCluster => {
                let (cluster, nodes, leader, term, applied) = ([0; 16], Vec::new(), 0, 0, 0);
                let (logs, waiting_streamlets, level) = (0, 0, 0);
                let alone =
                    ClusterDescription { cluster, leader, term, applied, nodes, logs, waiting_streamlets, level };
                encode_response(asked, &alone, answer);
            }
            _ => refuse(asked, Status::NotSupported, answer),
        });
        let client = Client::connect(address.await).await.unwrap();
        assert_eq!(look_for(&client, "flights").await.unwrap(), None);
        assert_eq!(asked_for.load(Ordering::SeqCst), 1);
    }

    /// The node that was asked whether there is one had not heard of it, and nothing was deleted.
    #[tokio::test]
    async fn whether_there_is_a_stream_that_is_deleted_says_who_deletes_it() {
        let (connect, there) = nodes().await;
        let globals = Globals { connect, json: false };
        delete("flights", true, true, &globals).await.unwrap();
        assert_eq!(there.load(Ordering::SeqCst), 0);
        delete("flights", true, true, &globals).await.unwrap();
        let error = delete("flights", false, true, &globals).await.unwrap_err();
        assert_eq!(error.message, "there is no stream `flights`");
    }

    /// The node that hands the command on may give it twice, and a Kafka client that writes on may have had a topic made of that name in between.
    #[tokio::test]
    async fn a_stream_that_the_node_knows_is_deleted_by_its_number() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&deleted);
        let address = node(move |asked, (op, body), answer| match op {
            Op::GetStream => encode_response(asked, &stream(1), answer),
            Op::DeleteStream => {
                noted.lock().unwrap().push(DeleteStream::decode(asked.version, body).unwrap().stream);
                encode_response(asked, &Empty, answer);
            }
            _ => refuse(asked, Status::NotSupported, answer),
        });
        let globals = Globals { connect: address.await, json: false };
        delete("flights", false, true, &globals).await.unwrap();
        assert_eq!(*deleted.lock().unwrap(), [StreamRef::Id(kera_client::StreamId(7))]);
    }

    /// It was made since, and the node has not heard of that: it was said that there is none.
    #[tokio::test]
    async fn a_stream_that_has_the_name_of_the_one_that_the_node_knows_is_deleted_if_that_is_gone() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&deleted);
        let address = node(move |asked, (op, body), answer| match op {
            Op::GetStream => encode_response(asked, &stream(1), answer),
            Op::DeleteStream => {
                let stream = DeleteStream::decode(asked.version, body).unwrap().stream;
                match &stream {
                    StreamRef::Name(_) => encode_response(asked, &Empty, answer),
                    StreamRef::Id(_) => refuse(asked, Status::UnknownStream, answer),
                }
                noted.lock().unwrap().push(stream);
            }
            _ => refuse(asked, Status::NotSupported, answer),
        });
        let globals = Globals { connect: address.await, json: false };
        delete("flights", false, true, &globals).await.unwrap();
        let asked: [StreamRef; 2] = [kera_client::StreamId(7).into(), "flights".into()];
        assert_eq!(*deleted.lock().unwrap(), asked);
    }

    fn stream(replication: u32) -> StreamInfo {
        let options = StreamOptions { streamlets: 8, replication, ..StreamOptions::default() };
        StreamInfo { id: kera_client::StreamId(7), name: "flights".into(), created_ms: 0, options }
    }

    fn change(waits_for: &[u32]) -> CopyChange {
        let (stream, name) = (kera_client::StreamId(7), "flights".into());
        CopyChange { stream, name, copies: 1, wanted: 3, streamlets: 8, there: 5, waits_for: waits_for.to_vec() }
    }

    #[test]
    fn a_change_of_the_number_of_copies_is_shown_until_it_is_done() {
        let (before, after) = (stream(1), stream(3));
        assert_eq!(copies_with(&before.options, None), "1 copy");
        assert_eq!(
            copies_with(&before.options, Some(&change(&[2]))),
            "1 copy, to be 3: 5 of 8 streamlets have them; the rest waits for node 2, which is lost: start it"
        );
        assert_eq!(altered_text(&after, None), "altered flights: 8 streamlets of 1 lane, 3 copies, retention 7d\n");
        assert_eq!(
            altered_text(&before, Some(&change(&[]))),
            "altered flights: 8 streamlets of 1 lane, 1 copy, to be 3: 5 of 8 streamlets have them, retention 7d\n\
             the copies are made in the background; `kera status` shows how far it is\n"
        );
        let lists = |info: &StreamInfo, changes: &[CopyChange]| list_text(std::slice::from_ref(info), changes);
        let changing = lists(&before, &[change(&[])]);
        assert!(changing.contains("  1 of 3  "), "{changing}");
        assert!(changing.ends_with("\nflights: to have 3 copies, 5 of 8 streamlets have them\n"), "{changing}");
        assert!(!lists(&after, &[]).contains("to have"));
    }
}
