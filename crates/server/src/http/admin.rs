//! The admin API: the node, streams and applications, under `/v1`. Every handler asks the node what a client would ask.

use std::collections::{BTreeSet, HashMap};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use kera_format::{LaneId, StreamId, StreamOptions, StreamletId};
use kera_protocol::limits::page_items;
use kera_protocol::{
    AlterStream, CreateStream, DeleteApplication, DeleteStream, DescribeApplication, FindOwners, GetStream, LaneStats,
    ListApplications, ListStreams, Message, NodeStatus, ResetOffsets, Start, Status, StreamInfo, StreamRef,
    StreamStats, StreamletsTold,
};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::error::{Asked, HttpError, Named, Told};
use super::inside::Inside;
use super::routes::Door;
use crate::api::{
    ApplicationDetailsJson, ApplicationJson, ErrorJson, NodeJson, OptionsJson, StreamDetailsJson, StreamJson,
    records_in,
};

type Answer<T> = Result<Json<T>, HttpError>;

fn changes(options: &OptionsJson) -> Result<kera_protocol::StreamChanges, HttpError> {
    options.changes().map_err(|(field, error)| HttpError::field(field, error, "/openapi.json lists what is allowed"))
}

async fn find(inside: &Inside, name: &str) -> Result<StreamInfo, HttpError> {
    Ok(inside.call(&GetStream { stream: StreamRef::Name(name.into()) }).await?)
}

/// Streams with how far changes of their numbers of copies are, as this node knows it.
fn with_changes(door: &Door, streams: &[StreamInfo]) -> Result<Vec<StreamJson>, HttpError> {
    let changes = (door.node()?.copy_changes)();
    let one = |info: &StreamInfo| StreamJson::from(info).changing(changes.iter().find(|of| of.stream == info.id));
    Ok(streams.iter().map(one).collect())
}

fn with_change(door: &Door, info: &StreamInfo) -> Result<StreamJson, HttpError> {
    Ok(with_changes(door, std::slice::from_ref(info))?.remove(0))
}

/// How the node is.
#[utoipa::path(get, path = "/v1/status", tag = "node", responses(
    (status = 200, description = "How it is", body = NodeJson),
    (status = 503, description = "It still starts", body = ErrorJson),
))]
pub(super) async fn status(State(door): State<Door>) -> Answer<NodeJson> {
    let status = door.inside()?.call(&NodeStatus).await?;
    Ok(Json((&status).into()))
}

/// Which streams to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamsQuery {
    /// Only names that start so.
    #[serde(default)]
    prefix: String,
    /// Only names after this one: the last of the page before.
    #[serde(default)]
    after: String,
    /// Most streams in the answer.
    #[serde(default)]
    limit: u32,
    /// Also those of the system.
    #[serde(default)]
    system: bool,
}

/// A page of streams.
#[derive(Serialize, ToSchema)]
pub(super) struct StreamsPage {
    /// In the order of their names.
    streams: Vec<StreamJson>,
    /// Whether there are more after the last one.
    more: bool,
}

/// Streams, in the order of their names, a page at a time.
#[utoipa::path(get, path = "/v1/streams", tag = "streams", params(StreamsQuery), responses(
    (status = 200, description = "A page of them", body = StreamsPage),
    (status = 503, description = "The node still starts", body = ErrorJson),
))]
pub(super) async fn list_streams(State(door): State<Door>, Asked(query): Asked<StreamsQuery>) -> Answer<StreamsPage> {
    let StreamsQuery { prefix, after, limit, system } = query;
    let list = door.inside()?.call(&ListStreams { prefix, after, limit, system }).await?;
    Ok(Json(StreamsPage { streams: with_changes(&door, &list.streams)?, more: list.more }))
}

/// A stream to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewStream {
    /// Its name: 1 to 249 of the characters a-z A-Z 0-9 . _ -
    name: String,
    /// Its options; what is left out gets its default.
    #[serde(default)]
    options: OptionsJson,
    /// Answer with the stream that exists instead of an error.
    #[serde(default)]
    if_not_exists: bool,
}

/// Makes a stream.
#[utoipa::path(post, path = "/v1/streams", tag = "streams", request_body = NewStream, responses(
    (status = 201, description = "It is there", body = StreamJson),
    (status = 400, description = "Name or options are not allowed", body = ErrorJson),
    (status = 409, description = "There is one of that name", body = ErrorJson),
    (status = 503, description = "The node still starts", body = ErrorJson),
))]
pub(super) async fn create_stream(
    State(door): State<Door>,
    Told(new): Told<NewStream>,
) -> Result<(StatusCode, Json<StreamJson>), HttpError> {
    let NewStream { name, options, if_not_exists } = new;
    let options = changes(&options)?.apply(&StreamOptions::default());
    let info = door.inside()?.call(&CreateStream { name, options, if_not_exists }).await?;
    Ok((StatusCode::CREATED, Json((&info).into())))
}

/// Which lanes of a stream to show.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LanesQuery {
    /// Only lanes after this one, as `STREAMLET/LANE`: the last of the page before.
    #[serde(default)]
    after: Option<String>,
    /// Most lanes in the answer; 0, or more than 10,000: 10,000.
    #[serde(default)]
    limit: u32,
}

impl LanesQuery {
    /// The lane behind which the page begins.
    fn after(&self) -> Result<Option<(StreamletId, LaneId)>, HttpError> {
        let Some(text) = &self.after else { return Ok(None) };
        let place = text
            .split_once('/')
            .and_then(|(streamlet, lane)| Some((StreamletId(streamlet.parse().ok()?), LaneId(lane.parse().ok()?))));
        let wrong = || HttpError::field("after", format!("`{text}` is no lane"), "give STREAMLET/LANE, as 3/0");
        place.map(Some).ok_or_else(wrong)
    }
}

/// A stream with what this node has of it, and who reads that; in a cluster `kera stream describe` asks all nodes.
/// Of its lanes a page at a time: `lanes_used_count` says how many there are.
#[utoipa::path(get, path = "/v1/streams/{stream}", tag = "streams", params(("stream" = String, Path, description = "Its name"), LanesQuery), responses(
    (status = 200, description = "The stream", body = StreamDetailsJson),
    (status = 404, description = "There is none of that name", body = ErrorJson),
    (status = 503, description = "The node still starts", body = ErrorJson),
))]
pub(super) async fn get_stream(
    State(door): State<Door>,
    Named(stream): Named<String>,
    Asked(query): Asked<LanesQuery>,
) -> Answer<StreamDetailsJson> {
    let after = query.after()?;
    let inside = door.inside()?;
    let info = find(&inside, &stream).await?;
    let held = held(&inside, info.id, after, query.limit).await?;
    let applications = inside.call(&ListApplications { stream: Some(info.id) }).await?.applications;
    let stream = with_change(&door, &info)?;
    let Held { records, bytes, lanes_used_count, .. } = held;
    let details = StreamDetailsJson::new(&info, &held.page, &applications);
    Ok(Json(StreamDetailsJson { stream, records, bytes, lanes_used_count, ..details }))
}

/// What is in a stream: all of it in sums, and a page of its lanes.
#[derive(Default)]
struct Held {
    records: u64,
    bytes: u64,
    lanes_used_count: u64,
    page: Vec<LaneStats>,
}

/// Looks at all lanes of a stream, of which there may be a million: no more than a page of them is kept, and others are answered between two.
async fn held(
    inside: &Inside,
    stream: StreamId,
    after: Option<(StreamletId, LaneId)>,
    limit: u32,
) -> Result<Held, HttpError> {
    let most = page_items(limit);
    let (mut held, mut seen) = (Held::default(), None);
    loop {
        let found = inside.call(&StreamStats { stream, streamlets: Vec::new(), after: seen, limit: 0 }).await?;
        for lane in &found.lanes {
            seen = Some((lane.streamlet, lane.lane));
            held.records += records_in(lane);
            held.bytes += lane.bytes;
            held.lanes_used_count += 1;
            if seen > after && held.page.len() < most {
                held.page.push(*lane);
            }
        }
        if !found.more || found.lanes.is_empty() {
            return Ok(held);
        }
    }
}

/// Changes options of a stream; those that are left out stay. Another number of copies comes in the background: `replication_wanted` says so
/// until it is there.
#[utoipa::path(patch, path = "/v1/streams/{stream}", tag = "streams", request_body = OptionsJson, params(("stream" = String, Path, description = "Its name")), responses(
    (status = 200, description = "The stream as it is now", body = StreamJson),
    (status = 400, description = "An option is not allowed or cannot be changed", body = ErrorJson),
    (status = 404, description = "There is none of that name", body = ErrorJson),
    (status = 503, description = "The node still starts", body = ErrorJson),
))]
pub(super) async fn alter_stream(
    State(door): State<Door>,
    Named(stream): Named<String>,
    Told(options): Told<OptionsJson>,
) -> Answer<StreamJson> {
    let changes = changes(&options)?;
    let info = door.inside()?.call(&AlterStream { stream: StreamRef::Name(stream), changes }).await?;
    Ok(Json(with_change(&door, &info)?))
}

/// Deletes a stream and all of its data.
#[utoipa::path(delete, path = "/v1/streams/{stream}", tag = "streams", params(("stream" = String, Path, description = "Its name")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is none of that name", body = ErrorJson),
    (status = 503, description = "The node still starts", body = ErrorJson),
))]
pub(super) async fn delete_stream(
    State(door): State<Door>,
    Named(stream): Named<String>,
) -> Result<StatusCode, HttpError> {
    door.inside()?.call(&DeleteStream { stream: StreamRef::Name(stream) }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Nodes but this one that own streamlets of a stream (of these, of all if none are named), as this node knows it; 0: nobody owns one at the moment, or it has not heard whose one is.
/// Owners keep what applications have read of their streamlets, so what this node says of an application is not all of it then.
async fn other_owners(inside: &Inside, stream: StreamId, streamlets: &[u32]) -> Result<BTreeSet<u32>, HttpError> {
    let is_meant = |streamlet: StreamletId| streamlets.is_empty() || streamlets.contains(&streamlet.0);
    let (mut others, mut after, mut told) = (BTreeSet::new(), None, StreamletsTold::default());
    loop {
        let page = inside.call(&FindOwners { streams: vec![stream.into()], after, limit: 0 }).await?;
        if page.node == 0 {
            return Ok(others);
        }
        page.streams.iter().for_each(|of| told.take(of));
        let runs = page.streams.iter().flat_map(|of| &of.runs);
        let those = runs.filter(|run| run.node != page.node && run.streamlets().any(is_meant));
        others.extend(those.map(|run| run.node));
        let next = page.next_page();
        if next <= after {
            others.extend(told.untold().any(is_meant).then_some(0));
            return Ok(others);
        }
        after = next;
    }
}

/// Refuses what would be done to this node's part of an application only. `command`: what does it to all of it.
async fn only_owner(inside: &Inside, info: &StreamInfo, streamlets: &[u32], command: &str) -> Result<(), HttpError> {
    let others = other_owners(inside, info.id, streamlets).await?;
    if others.is_empty() { Ok(()) } else { Err(at_others(&info.name, &others, command)) }
}

/// Has this node do what it does to its part of an application, if it owns all of it: before it is asked, and behind that. A streamlet that leaves in between takes along what is
/// recorded of it, and its next owner was not asked: what was forgotten would come back with it.
async fn as_only_owner<M: Message>(
    inside: &Inside,
    info: &StreamInfo,
    streamlets: &[u32],
    command: &str,
    message: &M,
) -> Result<M::Response, HttpError> {
    only_owner(inside, info, streamlets, command).await?;
    let done = inside.call(message).await;
    only_owner(inside, info, streamlets, command).await?;
    Ok(done?)
}

/// What a node says of which it has a part at most. That nobody owns some of the streamlets passes; then it may be this node that does.
fn at_others(stream: &str, others: &BTreeSet<u32>, command: &str) -> HttpError {
    if others.iter().all(|node| *node == 0) {
        return HttpError::not_ready(format!("nobody owns some streamlets of `{stream}` at the moment"));
    }
    let nodes: Vec<String> = others.iter().filter(|node| **node != 0).map(u32::to_string).collect();
    let own = match nodes.as_slice() {
        [one] => format!("node {one} owns"),
        several => format!("nodes {} own", several.join(", ")),
    };
    let error = format!("{own} streamlets of `{stream}`, and over HTTP a node is asked for what it owns itself");
    HttpError::not_here(error, format!("`{command}` asks all owners"))
}

/// Which applications to list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApplicationsQuery {
    /// Only those of this stream.
    #[serde(default)]
    stream: Option<String>,
}

/// An application in a list.
#[derive(Serialize, ToSchema)]
pub(super) struct ListedJson {
    /// Who has read how far.
    #[serde(flatten)]
    application: ApplicationJson,
    /// Nodes that own other streamlets of its stream and were not asked: neither its lag nor its consumers there are told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unheard: Vec<u32>,
}

/// Applications: who has read how far, of the streamlets that this node owns: `unheard` are the nodes that own others. Those of streams of which it owns
/// nothing are not listed. In a cluster `kera application list` asks all nodes.
#[utoipa::path(get, path = "/v1/applications", tag = "applications", params(ApplicationsQuery), responses(
    (status = 200, description = "All that it knows", body = Vec<ListedJson>),
    (status = 404, description = "There is no stream of that name", body = ErrorJson),
    (status = 503, description = "The node still starts", body = ErrorJson),
))]
pub(super) async fn list_applications(
    State(door): State<Door>,
    Asked(query): Asked<ApplicationsQuery>,
) -> Answer<Vec<ListedJson>> {
    let inside = door.inside()?;
    let only = match &query.stream {
        Some(name) => Some(find(&inside, name).await?),
        None => None,
    };
    let applications = inside.call(&ListApplications { stream: only.as_ref().map(|s| s.id) }).await?.applications;
    let mut all = Vec::with_capacity(applications.len());
    let mut others: HashMap<StreamId, Vec<u32>> = HashMap::new();
    for application in &applications {
        let name = match &only {
            Some(stream) => stream.name.clone(),
            None => match inside.call(&GetStream { stream: StreamRef::Id(application.stream) }).await {
                Ok(stream) => stream.name,
                // Deleted since it was listed, and its applications with it.
                Err(refusal) if refusal.status == Status::UnknownStream => continue,
                Err(refusal) => return Err(refusal.into()),
            },
        };
        let unheard = match others.get(&application.stream) {
            Some(others) => others.clone(),
            None => {
                let found = match other_owners(&inside, application.stream, &[]).await {
                    Err(error) if error.code == StatusCode::NOT_FOUND => continue,
                    found => found?,
                };
                let found: Vec<u32> = found.into_iter().filter(|node| *node != 0).collect();
                others.insert(application.stream, found.clone());
                found
            }
        };
        all.push(ListedJson { application: ApplicationJson::new(application, &name), unheard });
    }
    Ok(Json(all))
}

/// An application's consumers, and how far it is in each lane, of the streamlets that this node owns: `unheard` are the nodes that own others. One that owns none of
/// them, or has not heard of the application, does not know whether there is one. In a cluster `kera application describe` asks all owners.
#[utoipa::path(get, path = "/v1/applications/{stream}/{application}", tag = "applications", params(
    ("stream" = String, Path, description = "The stream's name"), ("application" = String, Path, description = "Its name")), responses(
    (status = 200, description = "The application", body = ApplicationDetailsJson),
    (status = 404, description = "There is no such stream or application", body = ErrorJson),
    (status = 501, description = "This node knows none of that name, and other nodes own streamlets of the stream", body = ErrorJson),
    (status = 503, description = "The node still starts, or nobody owns some of the streamlets at the moment", body = ErrorJson),
))]
pub(super) async fn get_application(
    State(door): State<Door>,
    Named((stream, application)): Named<(String, String)>,
) -> Answer<ApplicationDetailsJson> {
    let inside = door.inside()?;
    let info = find(&inside, &stream).await?;
    let before = other_owners(&inside, info.id, &[]).await?;
    let described = inside.call(&DescribeApplication { application, stream: info.id }).await;
    let others = other_owners(&inside, info.id, &[]).await?;
    let description = match described {
        Err(refusal) if refusal.status == Status::UnknownApplication && !others.is_empty() => {
            return Err(at_others(&info.name, &others, "kera application describe"));
        }
        // What has come may have brought the application along.
        Err(refusal) if refusal.status == Status::UnknownApplication && !before.is_empty() => {
            return Err(HttpError::not_ready(format!("streamlets of `{}` have come to this node just now", info.name)));
        }
        described => described?,
    };
    let unheard = others.into_iter().filter(|node| *node != 0).collect();
    Ok(Json(ApplicationDetailsJson { unheard, ..ApplicationDetailsJson::new(&description, &info.name) }))
}

/// Forgets an application and what it has read. It must have no consumers, and the node must own all of the stream: in a cluster
/// `kera application delete` asks all owners.
#[utoipa::path(delete, path = "/v1/applications/{stream}/{application}", tag = "applications", params(
    ("stream" = String, Path, description = "The stream's name"), ("application" = String, Path, description = "Its name")), responses(
    (status = 204, description = "It is gone"),
    (status = 404, description = "There is no such stream or application", body = ErrorJson),
    (status = 409, description = "It has consumers", body = ErrorJson),
    (status = 501, description = "Other nodes own streamlets of the stream", body = ErrorJson),
    (status = 503, description = "The node still starts, or nobody owns some of the streamlets at the moment", body = ErrorJson),
))]
pub(super) async fn delete_application(
    State(door): State<Door>,
    Named((stream, application)): Named<(String, String)>,
) -> Result<StatusCode, HttpError> {
    let inside = door.inside()?;
    let info = find(&inside, &stream).await?;
    let message = DeleteApplication { application, stream: info.id };
    as_only_owner(&inside, &info, &[], "kera application delete", &message).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Where an application is to go on.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ResetRequest {
    /// `earliest`, `latest`, or a number of milliseconds since 1970.
    to: ResetTo,
    /// Only these streamlets; empty: all.
    #[serde(default)]
    streamlets: Vec<u32>,
    /// Only tell what would be set.
    #[serde(default)]
    dry_run: bool,
}

/// `earliest`, `latest`, or a number of milliseconds since 1970.
#[derive(Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected `earliest`, `latest` or a number of milliseconds since 1970")]
enum ResetTo {
    /// Milliseconds since 1970.
    TimeMs(i64),
    /// `earliest` or `latest`.
    Word(String),
}

/// Where an application goes on in a lane.
#[derive(Serialize, ToSchema)]
pub(super) struct ResetPlace {
    /// The streamlet.
    streamlet: u32,
    /// The lane in it.
    lane: u32,
    /// Number of the next record to process.
    ordinal: u64,
}

/// Sets where an application goes on. It must have no consumers, and the node must own all streamlets that are meant: in a cluster
/// `kera application reset` asks all owners.
#[utoipa::path(post, path = "/v1/applications/{stream}/{application}/reset", tag = "applications", request_body = ResetRequest, params(
    ("stream" = String, Path, description = "The stream's name"), ("application" = String, Path, description = "Its name")), responses(
    (status = 200, description = "Where it goes on", body = Vec<ResetPlace>),
    (status = 400, description = "The place makes no sense", body = ErrorJson),
    (status = 404, description = "There is no such stream", body = ErrorJson),
    (status = 409, description = "It has consumers", body = ErrorJson),
    (status = 501, description = "Other nodes own some of the streamlets", body = ErrorJson),
    (status = 503, description = "The node still starts, or nobody owns some of the streamlets at the moment", body = ErrorJson),
))]
pub(super) async fn reset_application(
    State(door): State<Door>,
    Named((stream, application)): Named<(String, String)>,
    Told(reset): Told<ResetRequest>,
) -> Answer<Vec<ResetPlace>> {
    let ResetRequest { to, streamlets, dry_run } = reset;
    let to = match to {
        ResetTo::TimeMs(ms) => Start::TimeMs(ms),
        ResetTo::Word(word) if word == "earliest" => Start::Earliest,
        ResetTo::Word(word) if word == "latest" => Start::Latest,
        ResetTo::Word(word) => {
            let next = "give `earliest`, `latest` or a number of milliseconds since 1970";
            return Err(HttpError::field("to", format!("`{word}` is no place to go on at"), next));
        }
    };
    let inside = door.inside()?;
    let info = find(&inside, &stream).await?;
    let named = streamlets.iter().copied().map(StreamletId).collect();
    let message = ResetOffsets { application, stream: info.id, streamlets: named, to, dry_run };
    let set = as_only_owner(&inside, &info, &streamlets, "kera application reset", &message).await?;
    let place = |o: &kera_protocol::CommittedOffset| ResetPlace {
        streamlet: o.streamlet.0,
        lane: o.lane.0,
        ordinal: o.ordinal,
    };
    Ok(Json(set.offsets.iter().map(place).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nobody_owns_a_streamlet_passes_and_that_others_do_does_not() {
        let said = |nodes: &[u32]| at_others("a", &nodes.iter().copied().collect(), "kera application delete");
        assert_eq!(said(&[0]).code, StatusCode::SERVICE_UNAVAILABLE);
        for (nodes, named) in
            [(&[2][..], "node 2 owns "), (&[0, 2][..], "node 2 owns "), (&[2, 3][..], "nodes 2, 3 own ")]
        {
            let HttpError { code, body } = said(nodes);
            assert_eq!(code, StatusCode::NOT_IMPLEMENTED);
            assert!(body.error.starts_with(named), "{}", body.error);
        }
    }
}
