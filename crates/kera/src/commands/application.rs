//! `kera application`: who reads which stream, and how far.

use std::collections::BTreeSet;

use kera_client::{Applications, Client, ClientError, LaneId, Start, Status, StreamInfo, StreamletId};
use kera_protocol::{ApplicationDescription, ApplicationSummary, CommittedOffset, CommittedOffsets, LaneProgress};
use kera_server::api::{ApplicationDetailsJson, ApplicationJson};
use kera_server::suggest::nearest;
use kera_server::units::human_count;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{ApplicationCommand, Globals};
use crate::columns;
use crate::commands::away::Away;
use crate::commands::status::soon;
use crate::connect::{check_streamlets, connect, explain, find_stream};
use crate::error::CliError;
use crate::numbers::{self, Span};
use crate::output::{Table, agreed, facts, not_heard, print, print_json, records_of, say};
use crate::when::{parse_start, show_instant};

/// Runs the command.
///
/// # Errors
/// What the node says, or that it cannot be reached.
pub async fn run(command: ApplicationCommand, globals: &Globals) -> Result<(), CliError> {
    match command {
        ApplicationCommand::List { stream } => list(stream.as_deref(), globals).await,
        ApplicationCommand::Describe { name, stream } => describe(&name, stream.as_deref(), globals).await,
        ApplicationCommand::Delete { name, stream, yes } => delete(&name, stream.as_deref(), yes, globals).await,
        ApplicationCommand::Reset { name, stream, to, streamlets, dry_run, yes } => {
            let to = parse_start(&to).map_err(|said| CliError::value(&said))?;
            let how = if dry_run {
                How::Show
            } else if yes {
                How::Set
            } else {
                How::Ask
            };
            reset(&name, stream.as_deref(), to, &streamlets, how, globals).await
        }
    }
}

/// Applications with the names of their streams, and the nodes that were not heard and may know more.
async fn all(client: &Client, stream: Option<&str>) -> Result<(Vec<Known>, Vec<u32>), CliError> {
    let streams = match stream {
        Some(name) => vec![find_stream(client, name).await?],
        None => client.admin().streams("", true).await?,
    };
    let only = stream.map(|_| streams[0].id);
    let Applications { applications, unheard, .. } = client.admin().applications(only).await?;
    let known = |a: &ApplicationSummary| streams.iter().find(|s| s.id == a.stream).cloned();
    Ok((applications.into_iter().filter_map(|a| known(&a).map(|s| (a, s))).collect(), unheard))
}

/// An application and its stream.
type Known = (ApplicationSummary, StreamInfo);

#[derive(Serialize)]
struct ListedJson<'a> {
    #[serde(flatten)]
    application: ApplicationJson,
    /// Nodes that own streamlets and were not heard: what it has to read there is not in its lag.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    unheard: &'a [u32],
}

async fn list(stream: Option<&str>, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let (applications, unheard) = all(&client, stream).await?;
    if let Some(nodes) = not_heard(&unheard) {
        if applications.is_empty() {
            // An empty list would say that there are none, and has nowhere to say who was not heard.
            let message = format!("no application is known, but {nodes} and may know some");
            return Err(
                CliError::failure(message).next("`kera status` shows which nodes are lost; start them, and list again")
            );
        }
        say(format_args!("{nodes}: LAG lacks what applications have to read there, and some may be known there alone"));
    }
    if globals.json {
        let one = |(a, s): &Known| ListedJson { application: ApplicationJson::new(a, &s.name), unheard: &unheard };
        return print_json(&applications.iter().map(one).collect::<Vec<_>>());
    }
    let groups = if has_groups(&client).await { GROUPS_APART } else { "" };
    if applications.is_empty() {
        let none = match stream {
            Some(stream) => {
                format!("no application reads {stream}; `kera consume {stream} --application NAME` makes one")
            }
            None => "no applications yet; `kera consume STREAM --application NAME` makes one".to_owned(),
        };
        return print(&format!("{none}\n{groups}"));
    }
    let mut table = Table::new(&columns::APPLICATIONS);
    for (a, s) in &applications {
        table.row([
            a.name.clone(),
            s.name.clone(),
            a.state.name().to_owned(),
            a.members.to_string(),
            human_count(a.lag),
        ]);
    }
    print(&(table.text() + groups))
}

/// What whoever looks for a group of Kafka clients among applications has to know.
const GROUPS_APART: &str =
    "Groups of Kafka clients are not among them: Kafka's tools show those, like kafka-consumer-groups.sh --list.\n";

/// Streams in which nodes keep the groups of Kafka clients: each node that is or was alone, and a cluster.
const GROUPS: [&str; 2] = ["_kera.groups", "_kera.cluster.groups"];

/// Whether Kafka clients have groups here, or had some, as far as that is told soon. Which ones, only the Kafka door says.
async fn has_groups(client: &Client) -> bool {
    let look = async {
        let streams = client.admin().streams("_kera.", true).await.unwrap_or_default();
        for stream in streams.iter().filter(|stream| GROUPS.contains(&stream.name.as_str())) {
            if client.admin().stream_stats(stream.id).await.is_ok_and(|held| held.records() > 0) {
                return true;
            }
        }
        false
    };
    soon(look).await.unwrap_or(false)
}

/// The stream of the application that is meant.
async fn stream_of(client: &Client, name: &str, stream: Option<&str>) -> Result<StreamInfo, CliError> {
    if let Some(stream) = stream {
        return find_stream(client, stream).await;
    }
    let (applications, unheard) = all(client, None).await?;
    let mut streams: Vec<StreamInfo> =
        applications.iter().filter(|(a, _)| a.name == name).map(|(_, s)| s.clone()).collect();
    if streams.len() > 1 {
        let names: Vec<&str> = streams.iter().map(|s| s.name.as_str()).collect();
        let message = format!("{} streams have an application `{name}`: {}", names.len(), names.join(", "));
        return Err(CliError::failure(message).next("say which one with --stream"));
    }
    streams.pop().ok_or_else(|| {
        if let Some(nodes) = not_heard(&unheard) {
            let message = format!("no application `{name}` is known, but {nodes} and may know it");
            return CliError::failure(message)
                .next("`kera status` shows which nodes are lost; start them, or name the stream with --stream");
        }
        let error = CliError::failure(format!("there is no application `{name}`"));
        match nearest(name, applications.iter().map(|(a, _)| a.name.as_str())) {
            Some(meant) => error.next(format!("did you mean `{meant}`? `kera application list` shows all")),
            None => error.next(KAFKA_GROUPS),
        }
    })
}

/// What else a name may be that is not known here.
const KAFKA_GROUPS: &str = "`kera application list` shows all of KerA's own clients; groups of Kafka clients are shown and reset by Kafka's tools, \
                            like kafka-consumer-groups.sh";

/// An error that says which stream has no such application; a node knows it by number.
fn of_application(error: &ClientError, name: &str, stream: &StreamInfo) -> CliError {
    match error.status() {
        Some(Status::UnknownApplication) => {
            let message = format!("stream `{}` has no application `{name}`", stream.name);
            CliError::failure(message).next(KAFKA_GROUPS)
        }
        _ => explain(error),
    }
}

/// An application as all owners of its stream together know it. If one of them is lost, and no other takes its place, nobody knows how far the
/// application is, or whether there is one: that is said soon, with the node. Who is only late is waited for.
async fn as_all_know_it(
    client: &Client,
    name: &str,
    stream: &StreamInfo,
) -> Result<Result<ApplicationDescription, ClientError>, CliError> {
    let away = Away::without_owner(client, stream).await?;
    if !away.is_nothing() {
        let message = format!("how far `{name}` has read {} is not known: {}", stream.name, away.sentence());
        return Err(CliError::failure(message)
            .next("start that node again; `kera status` shows what is lost and what waits for it"));
    }
    Ok(client.admin().application(stream.id, name).await)
}

async fn describe(name: &str, stream: Option<&str>, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let stream = stream_of(&client, name, stream).await?;
    let described = as_all_know_it(&client, name, &stream).await?;
    let description = described.map_err(|error| of_application(&error, name, &stream))?;
    if globals.json {
        return print_json(&ApplicationDetailsJson::new(&description, &stream.name));
    }
    let d = &description;
    let mut text = facts(&[
        ("application", d.name.clone()),
        ("stream", stream.name.clone()),
        ("state", d.state.name().to_owned()),
        ("order", d.order.to_string()),
        ("lag", records_of(d.lag)),
    ]);
    if !d.members.is_empty() {
        let mut table = Table::new(&columns::CONSUMERS);
        for m in &d.members {
            let name = if m.name.is_empty() { m.member.to_string() } else { m.name.clone() };
            table.row([
                name,
                m.address.clone(),
                show_instant(m.joined_ms),
                show_instant(m.heartbeat_ms),
                m.leases.to_string(),
            ]);
        }
        text.push_str(&format!("\n{}", table.text()));
    }
    if !d.lanes.is_empty() {
        let mut table = Table::new(&columns::PROGRESS);
        for l in &d.lanes {
            let committed = l.committed_ordinal.map_or("-".into(), |ordinal| ordinal.to_string());
            table.row([
                l.streamlet.to_string(),
                l.lane.to_string(),
                committed,
                l.durable_ordinal.to_string(),
                l.lag.to_string(),
            ]);
        }
        text.push_str(&format!("\n{}", table.text()));
    }
    print(&text)
}

async fn delete(name: &str, stream: Option<&str>, yes: bool, globals: &Globals) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let stream = stream_of(&client, name, stream).await?;
    if !yes {
        let described = as_all_know_it(&client, name, &stream).await?;
        let lag = described.map_err(|error| of_application(&error, name, &stream))?.lag;
        let left = if lag == 0 { "all of it".to_owned() } else { format!("all but {}", records_of(lag)) };
        let read = format!("how far {name} has read {} ({left})", stream.name);
        let (lost, kept) = (format!("{read} would be forgotten for good"), format!("{name} was not deleted"));
        agreed(&format!("forget {read}?"), &lost, &kept)?;
    }
    let deleted = client.admin().delete_application(stream.id, name).await;
    deleted.map_err(|error| of_application(&error, name, &stream))?;
    if globals.json {
        return print_json(&json!({ "name": name, "stream": stream.name, "deleted": true }));
    }
    print(&format!("deleted {name} of {}\n", stream.name))
}

/// What a reset does with what it finds out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Shows it.
    Show,
    /// Shows it, and sets it if a person agrees.
    Ask,
    /// Sets it.
    Set,
}

async fn reset(
    name: &str,
    stream: Option<&str>,
    to: Start,
    named: &[Span],
    how: How,
    globals: &Globals,
) -> Result<(), CliError> {
    let client = connect(globals).await?;
    let is_named = stream.is_some();
    let stream = stream_of(&client, name, stream).await.map_err(|error| match is_named {
        true => error,
        false => {
            let next = format!("{}; --stream makes a new one of that name", error.next_step);
            error.next(next)
        }
    })?;
    check_streamlets(&stream, &numbers::highest(named))?;
    let streamlets: Vec<StreamletId> = numbers::each(named).into_iter().map(StreamletId).collect();
    let known = match as_all_know_it(&client, name, &stream).await? {
        Ok(described) => Some(described),
        Err(error) if error.status() == Some(Status::UnknownApplication) => None,
        Err(error) => return Err(explain(&error)),
    };
    let is_new = known.is_none();
    let lanes = known.map_or_else(Vec::new, |described| described.lanes);
    if is_new {
        // A node knows nothing of a name that is only asked for, and makes it when it is set.
        let would = if how == How::Set { "is" } else { "would be" };
        say(format_args!(
            "`{name}` has read nothing of {} yet and {would} made as a new application; a group of Kafka clients of that name is \
             something else, which kafka-consumer-groups.sh resets",
            stream.name
        ));
    }
    if how != How::Set {
        let told = match is_new {
            true => Vec::new(),
            false => told_without_setting(&client, name, &stream, &streamlets, to).await?,
        };
        let set = from_now(would_be_set(&client, &stream, &streamlets, to, told).await?, &lanes);
        if how == How::Show {
            return report_reset(name, &stream, &set, how, globals);
        }
        let sum = sum_of(&set).map_or_else(String::new, |sum| format!("{sum}: "));
        let lost = match is_new {
            true => format!("{name} of {} would be made", stream.name),
            false => {
                format!("{sum}{name} of {} would go on elsewhere, and where it is would be forgotten", stream.name)
            }
        };
        let kept = format!("{name} goes on where it was");
        agreed(&format!("{}{sum}set it so?", reset_text(name, &stream, &set, true)), &lost, &kept)?;
    }
    let set = client.admin().reset_offsets(stream.id, name, streamlets, to, false).await?;
    report_reset(name, &stream, &from_now(set_of(&set), &lanes), how, globals)
}

/// Where an application would go on, as the owners tell that know it; nothing if none of these does.
async fn told_without_setting(
    client: &Client,
    name: &str,
    stream: &StreamInfo,
    streamlets: &[StreamletId],
    to: Start,
) -> Result<Vec<Set>, CliError> {
    match client.admin().reset_offsets(stream.id, name, streamlets.to_vec(), to, true).await {
        Ok(offsets) => Ok(set_of(&offsets)),
        Err(error) if error.status() == Some(Status::UnknownApplication) => Ok(Vec::new()),
        Err(error) => Err(explain(&error)),
    }
}

/// Where an application would go on in all that is meant. What its owners have not told of is looked up: they do not know an application that has
/// read nothing there, and make it when it is set.
async fn would_be_set(
    client: &Client,
    stream: &StreamInfo,
    streamlets: &[StreamletId],
    to: Start,
    told: Vec<Set>,
) -> Result<Vec<Set>, CliError> {
    let known: BTreeSet<StreamletId> = told.iter().map(|set| set.streamlet).collect();
    let mut set = told;
    let meant: BTreeSet<StreamletId> = match streamlets.is_empty() {
        true => (0..stream.options.streamlets).map(StreamletId).collect(),
        false => streamlets.iter().copied().collect(),
    };
    for streamlet in meant.difference(&known).copied() {
        for lane in (0..stream.options.lanes).map(LaneId) {
            let at = client.admin().lookup(stream.id, streamlet, lane, to).await?;
            // Where nothing was ever written nothing is set.
            if at.durable_ordinal == 0 {
                continue;
            }
            let ordinal = match to {
                Start::Ordinal(asked) => asked.clamp(at.ordinal, at.durable_ordinal.max(at.ordinal)),
                _ => at.ordinal,
            };
            set.push(Set { streamlet, lane, ordinal, ..Set::default() });
        }
    }
    set.sort_by_key(|set| (set.streamlet, set.lane));
    Ok(set)
}

/// Where an application goes on in a lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Set {
    streamlet: StreamletId,
    lane: LaneId,
    ordinal: u64,
    /// Where it has been until now; nothing if it has committed nothing there.
    from: Option<u64>,
    /// Records that it reads a second time.
    again: u64,
    /// Records that it does not read.
    skipped: u64,
}

fn set_of(offsets: &CommittedOffsets) -> Vec<Set> {
    let of = |o: &CommittedOffset| Set { streamlet: o.streamlet, lane: o.lane, ordinal: o.ordinal, ..Set::default() };
    offsets.offsets.iter().map(of).collect()
}

/// The same with where the application has been, as it was described before: what it had to read was behind that, but for what is deleted by now.
fn from_now(mut set: Vec<Set>, lanes: &[LaneProgress]) -> Vec<Set> {
    for one in &mut set {
        if let Some(was) = lanes.iter().find(|was| (was.streamlet, was.lane) == (one.streamlet, one.lane)) {
            let at = was.durable_ordinal.saturating_sub(was.lag);
            one.from = was.committed_ordinal;
            (one.again, one.skipped) = (at.saturating_sub(one.ordinal), one.ordinal.saturating_sub(at));
        }
    }
    set
}

/// What that comes to: `37 records are read again, 5 records are skipped`. Nothing where it has read nothing.
fn sum_of(set: &[Set]) -> Option<String> {
    if set.iter().all(|one| one.from.is_none() && one.skipped == 0) {
        return None;
    }
    let part = |count: u64, what: &str| {
        let are = if count == 1 { "is" } else { "are" };
        (count > 0).then(|| format!("{} {are} {what}", records_of(count)))
    };
    let again = part(set.iter().map(|one| one.again).sum(), "read again");
    let skipped = part(set.iter().map(|one| one.skipped).sum(), "skipped");
    let parts: Vec<String> = again.into_iter().chain(skipped).collect();
    Some(if parts.is_empty() { "nothing is read again or skipped".to_owned() } else { parts.join(", ") })
}

fn report_reset(name: &str, stream: &StreamInfo, set: &[Set], how: How, globals: &Globals) -> Result<(), CliError> {
    let dry_run = how == How::Show;
    if globals.json {
        let one = |o: &Set| {
            json!({
                "streamlet": o.streamlet.0, "lane": o.lane.0, "ordinal": o.ordinal, "from": o.from, "to": o.ordinal,
                "read_again": o.again, "skipped": o.skipped,
            })
        };
        let offsets: Vec<Value> = set.iter().map(one).collect();
        return print_json(&json!({ "name": name, "stream": stream.name, "dry_run": dry_run, "offsets": offsets }));
    }
    let sum = sum_of(set);
    match how {
        // Whoever was asked has seen where.
        How::Ask => {
            let sum = sum.map_or_else(String::new, |sum| format!(": {sum}"));
            print(&format!("{name} of {} goes on there{sum}\n", stream.name))
        }
        _ => {
            let sum = sum.map_or_else(String::new, |sum| format!("{sum}\n"));
            print(&(reset_text(name, stream, set, dry_run) + &sum))
        }
    }
}

fn reset_text(name: &str, stream: &StreamInfo, set: &[Set], dry_run: bool) -> String {
    let mut table = Table::new(&columns::RESET);
    for o in set {
        let now = o.from.map_or("-".to_owned(), |from| from.to_string());
        let records = match (o.again, o.skipped) {
            (0, 0) => String::new(),
            (again, 0) => format!("{} read again", human_count(again)),
            (_, skipped) => format!("{} skipped", human_count(skipped)),
        };
        table.row([o.streamlet.to_string(), o.lane.to_string(), now, o.ordinal.to_string(), records]);
    }
    let what = if dry_run { "would go on" } else { "goes on" };
    format!("{name} of {} {what} here:\n{}", stream.name, table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reset_changes_is_told_by_lane_and_in_all() {
        let lane = |streamlet, committed_ordinal, durable_ordinal, lag| LaneProgress {
            streamlet: StreamletId(streamlet),
            lane: LaneId(0),
            committed_ordinal,
            durable_ordinal,
            lag,
        };
        let to = |streamlet, ordinal| Set { streamlet: StreamletId(streamlet), ordinal, ..Set::default() };
        // Of the fourth lane the first twenty records are deleted, and nobody has read the fifth.
        let lanes =
            [lane(0, Some(37), 100, 63), lane(1, Some(5), 9, 4), lane(3, Some(10), 50, 30), lane(4, None, 8, 8)];
        let set = from_now(vec![to(0, 0), to(1, 6), to(2, 7), to(3, 20), to(4, 0)], &lanes);
        let told: Vec<_> = set.iter().map(|one| (one.from, one.again, one.skipped)).collect();
        assert_eq!(told, [(Some(37), 37, 0), (Some(5), 0, 1), (None, 0, 0), (Some(10), 0, 0), (None, 0, 0)]);
        assert_eq!(sum_of(&set).as_deref(), Some("37 records are read again, 1 record is skipped"));
        assert_eq!(sum_of(&set[2..]).as_deref(), Some("nothing is read again or skipped"));
        assert_eq!(sum_of(&set[4..]), None, "it has read nothing");
    }
}
