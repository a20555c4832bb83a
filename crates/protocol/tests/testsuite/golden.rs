//! Frames, messages and numbers against `spec/`.

use kera_protocol::frame::{FLAG_RESPONSE, FRAME_BYTES_MAX};
use kera_protocol::spec::{Source, Specified, TracedField, trace_error, trace_frame_header};
use kera_protocol::*;
use std::fmt::Debug;

use crate::examples::Example;
use crate::support::golden::{self, Case, Field, Golden, Refused, json_string};

fn fields(traced: Vec<TracedField>) -> Vec<Field> {
    let field = |f: TracedField| {
        let value: serde_json::Value = serde_json::from_str(&f.value).expect("JSON");
        Field { at: f.at, name: f.path, kind: f.kind, value: value.to_string(), bytes: f.bytes }
    };
    traced.into_iter().map(field).collect()
}

fn case(name: &str, about: &str, fields: Vec<Field>) -> Case {
    Case { name: name.into(), about: about.into(), encoders: true, fields }
}

/// Choices that make a sample with something in every list and every optional field, most of the time.
fn choices() -> Vec<u8> {
    (0..2_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect()
}

fn body_cases<B: Specified + Example>(kind: &str) -> Vec<Case> {
    let mut cases = vec![case(kind, "an example", fields(B::example().traced()))];
    let any = B::any(&mut Source::new(&choices()));
    if !any.traced().is_empty() {
        cases.push(case(&format!("{kind}, any"), "made up, to have something everywhere", fields(any.traced())));
    }
    cases
}

/// Encodes and decodes what the file says.
fn check_body<B: Specified + Example + PartialEq + Debug>(file: &Golden, version: u8, kind: &str) {
    let any = B::any(&mut Source::new(&choices()));
    for (name, body) in [(kind.to_owned(), B::example()), (format!("{kind}, any"), any)] {
        let Some(case) = file.cases.iter().find(|case| case.name == name) else { continue };
        let mut encoded = Vec::new();
        body.encode(version, &mut encoded);
        assert_eq!(golden::hex(&encoded), golden::hex(&case.bytes()), "{}: {name}", file.structure);
        assert_eq!(B::decode(version, &case.bytes()), Ok(body), "{}: {name}", file.structure);
    }
}

fn check_message<M>(name: &str)
where
    M: Message + Specified + Example + PartialEq + Debug,
    M::Response: Specified + Example + PartialEq + Debug,
{
    let version = M::OP.version_max();
    check_version::<M, M::Response>(name, version);
}

/// Version 1 is in the file that has the operation's name, later ones in files of their own.
fn check_version<Q, A>(name: &str, version: u8)
where
    Q: Specified + Example + PartialEq + Debug,
    A: Specified + Example + PartialEq + Debug,
{
    let mut cases = body_cases::<Q>("request");
    cases.extend(body_cases::<A>("response"));
    let code = Golden {
        structure: format!("{name}, version {version}"),
        document: "docs/protocol.md".into(),
        cases,
        refused: Vec::new(),
    };
    let of = if version == 1 { String::new() } else { format!(".v{version}") };
    let file = golden::check(&format!("messages/{name}{of}.json"), &code);
    check_body::<Q>(&file, version, "request");
    check_body::<A>(&file, version, "response");
}

#[test]
fn first_versions_are_the_golden_bytes_still() {
    use first::admin::{AlterStreamV1, CreateStreamV1, StreamInfoV1, StreamListV1};
    use first::cluster::{ClusterDescriptionV1, JoinClusterV1, NodeAliveV1, StreamletsRebuiltV1};
    check_version::<CreateStreamV1, StreamInfoV1>("CreateStream", 1);
    check_version::<GetStream, StreamInfoV1>("GetStream", 1);
    check_version::<ListStreams, StreamListV1>("ListStreams", 1);
    check_version::<AlterStreamV1, StreamInfoV1>("AlterStream", 1);
    check_version::<first::application::JoinApplicationV1, JoinedApplication>("JoinApplication", 1);
    check_version::<first::write::WriteChunksV1, WriteChunksResponse>("WriteChunks", 1);
    check_version::<JoinClusterV1, JoinedCluster>("JoinCluster", 1);
    check_version::<NodeAliveV1, NodeHeard>("NodeAlive", 1);
    check_version::<DescribeCopies, first::node::CopiesDescriptionV1>("DescribeCopies", 1);
    check_version::<StreamletsRebuiltV1, Empty>("StreamletsRebuilt", 1);
    check_version::<LaneStates, first::replication::LaneStateListV1>("LaneStates", 1);
    check_version::<FenceNode, first::replication::NodeFencedV1>("FenceNode", 1);
    check_version::<first::moves::OfferGroupsV1, first::moves::GroupsOfferedV1>("OfferGroups", 1);
    check_version::<first::moves::CopiesMadeV1, Empty>("CopiesMade", 1);
    check_version::<first::moves::GiveBackV1, Empty>("GiveBack", 1);
    check_version::<DescribeCluster, ClusterDescriptionV1>("DescribeCluster", 1);
}

#[test]
fn second_versions_are_the_golden_bytes_still() {
    use second::admin::{AlterStreamV2, CreateStreamV2, StreamInfoV2, StreamListV2};
    check_version::<CreateStreamV2, StreamInfoV2>("CreateStream", 2);
    check_version::<GetStream, StreamInfoV2>("GetStream", 2);
    check_version::<ListStreams, StreamListV2>("ListStreams", 2);
    check_version::<AlterStreamV2, StreamInfoV2>("AlterStream", 2);
    check_version::<second::moves::OfferGroupsV2, GroupsOffered>("OfferGroups", 2);
    // The third one has the same bytes.
    check_version::<LaneStates, LaneStateList>("LaneStates", 2);
}

macro_rules! check_all {
    ($($name:ident),+ $(,)?) => {
        #[test]
        fn messages_are_the_golden_bytes() {
            $(check_message::<$name>(stringify!($name));)+
        }
    };
}
for_each_message!(check_all);

/// What goes from one owner of a streamlet to the next, inside messages and logs of the cluster.
#[test]
fn the_state_of_a_streamlet_is_the_golden_bytes() {
    let code = Golden {
        structure: "StreamletState, version 1".into(),
        document: "docs/protocol.md".into(),
        cases: body_cases::<StreamletState>("state"),
        refused: Vec::new(),
    };
    check_body::<StreamletState>(&golden::check("messages/StreamletState.json", &code), 1, "state");
}

fn header(flags: u8, status: u16, body: usize) -> FrameHeader {
    let frame_bytes = (FRAME_HEADER_BYTES + body) as u32;
    FrameHeader { frame_bytes, op: Op::Hello as u16, version: 1, flags, correlation: 0x0102_0304, status }
}

fn frame_case(name: &str, about: &str, header: FrameHeader, body: Vec<TracedField>) -> Case {
    let header = trace_frame_header(&header).into_iter();
    let body =
        body.into_iter().map(|f| TracedField { at: f.at + FRAME_HEADER_BYTES, path: format!("body.{}", f.path), ..f });
    case(name, about, fields(header.chain(body).collect()))
}

fn error_example() -> ErrorBody {
    ErrorBody { message: "connections: 1000 are open, the limit is 1000".into(), retry_after_ms: 500 }
}

fn frame_cases() -> Vec<Case> {
    let (hello, error) = (Hello::example().traced(), trace_error(&error_example()));
    let size = |fields: &[TracedField]| fields.iter().map(|f| f.bytes.len()).sum::<usize>();
    let (hello_bytes, error_bytes) = (size(&hello), size(&error));
    let push = FrameHeader { op: Op::Subscribe as u16, flags: 3, ..header(0, 0, 8) };
    let nothing = ReadChunksResponse::default().traced();
    vec![
        frame_case("request", "a whole Hello", header(0, 0, hello_bytes), hello),
        frame_case("empty response", "a response that says no more than that it went well", header(1, 0, 0), vec![]),
        frame_case(
            "error response",
            "what could be the answer: the body is an error's",
            header(1, Status::Overloaded as u16, error_bytes),
            error,
        ),
        frame_case("push", "an answer to a subscription, without data", push, nothing),
    ]
}

fn refused_frames() -> Vec<Refused> {
    let with = |name: &str, changes: &[(usize, u8)]| {
        let mut bytes = header(0, 0, 0).to_bytes().to_vec();
        changes.iter().for_each(|(at, value)| bytes[*at] = *value);
        let error = FrameHeader::parse(&bytes, FRAME_BYTES_MAX).expect_err(name).to_string();
        Refused { name: name.into(), bytes, error }
    };
    vec![
        with("smaller than its header", &[(0, 23)]),
        with("larger than any frame", &[(3, 17)]),
        with("pushed request", &[(7, 2)]),
        with("unknown flag", &[(7, 4)]),
        with("request with a status", &[(16, 1)]),
        with("reserved byte", &[(20, 1)]),
    ]
}

#[test]
fn frames_are_the_golden_bytes() {
    let code = Golden {
        structure: "frame".into(),
        document: "docs/protocol.md".into(),
        cases: frame_cases(),
        refused: refused_frames(),
    };
    let file = golden::check("frame.json", &code);
    let mut encoded = Vec::new();
    encode_request(&Hello::example(), 1, 0x0102_0304, &mut encoded);
    assert_eq!(golden::hex(&encoded), golden::hex(&file.case("request").bytes()));
    let request = FrameHeader::parse(&encoded, FRAME_BYTES_MAX).expect("a header");
    assert_eq!(Hello::decode(1, &encoded[FRAME_HEADER_BYTES..]), Ok(Hello::example()));

    encoded.clear();
    encode_response(&request, &Empty, &mut encoded);
    assert_eq!(golden::hex(&encoded), golden::hex(&file.case("empty response").bytes()));

    encoded.clear();
    encode_error(&request, Status::Overloaded, &error_example(), &mut encoded);
    let bytes = file.case("error response").bytes();
    assert_eq!(golden::hex(&encoded), golden::hex(&bytes));
    let read = FrameHeader::parse(&bytes, FRAME_BYTES_MAX).expect("a header");
    assert_eq!((read.status, read.flags), (Status::Overloaded as u16, FLAG_RESPONSE));
    assert_eq!(ErrorBody::decode(&bytes[FRAME_HEADER_BYTES..]), Ok(error_example()));

    let push = FrameHeader::parse(&file.case("push").bytes(), FRAME_BYTES_MAX).expect("a header");
    assert!(push.is_push());
    for refused in &file.refused {
        let error = FrameHeader::parse(&refused.bytes, FRAME_BYTES_MAX).expect_err(&refused.name);
        assert_eq!(error.to_string(), refused.error);
    }
}

/// Operations and statuses by number, for clients in other languages.
#[test]
fn numbers_are_the_golden_ones() {
    let op = |op: &Op| {
        let (name, number, range) = (op.name(), *op as u16, op.versions());
        let (min, max) = (range.start(), range.end());
        format!("    {{ \"number\": {number}, \"name\": \"{name}\", \"version_min\": {min}, \"version_max\": {max} }}")
    };
    let status = |status: &Status| {
        let (number, name, hint) = (*status as u16, status.name(), json_string(status.hint()));
        let (retryable, could_duplicate) = (status.retryable(), status.could_duplicate());
        format!(
            "    {{ \"number\": {number}, \"name\": \"{name}\", \"retryable\": {retryable}, \"could_duplicate\": {could_duplicate},\n      \"hint\": {hint} }}"
        )
    };
    let ops: Vec<String> = Op::ALL.iter().map(op).collect();
    let statuses: Vec<String> = Status::ALL.iter().map(status).collect();
    let code = format!(
        "{{\n  \"operations\": [\n{}\n  ],\n  \"statuses\": [\n{}\n  ]\n}}\n",
        ops.join(",\n"),
        statuses.join(",\n")
    );
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../spec/numbers.json");
    if std::env::var_os("KERA_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &code).expect("spec/ can be written");
    }
    let file = std::fs::read_to_string(&path).expect("spec/numbers.json; KERA_UPDATE_GOLDEN=1 writes it");
    assert_eq!(file, code);
}

#[test]
fn any_changed_byte_in_a_golden_message_is_noticed() {
    let file = golden::read("messages/Hello.json");
    let case = file.case("request");
    for at in 0..case.fields[1].bytes.len() {
        let mut changed = case.clone();
        changed.fields[1].bytes[at] ^= 1;
        assert!(golden::difference(&changed, case).is_some());
    }
}
