//! Every message of the protocol: what is written is read again, what is cut or longer or of another version is an
//! error, and no bytes make a reader panic.

use kera_protocol::spec::{Source, Specified};
use kera_protocol::*;
use proptest::prelude::*;
use std::fmt::Debug;

fn encoded<B: Body>(body: &B) -> Vec<u8> {
    encoded_as(1, body)
}

fn encoded_as<B: Body>(version: u8, body: &B) -> Vec<u8> {
    let mut out = Vec::new();
    body.encode(version, &mut out);
    out
}

/// What holds for every body in its newest version, whatever its fields are.
fn check_body<B: Specified + PartialEq + Debug>(version: u8, choices: &[u8]) {
    let body = B::any(&mut Source::new(choices));
    let bytes = encoded_as(version, &body);
    assert_eq!(B::decode(version, &bytes).as_ref(), Ok(&body));

    let fields = body.traced();
    let traced: Vec<u8> = fields.iter().flat_map(|field| field.bytes.iter().copied()).collect();
    assert_eq!(traced, bytes, "the fields of {body:?}");

    for length in 0..bytes.len() {
        assert!(B::decode(version, &bytes[..length]).is_err(), "{body:?} cut at {length} of {}", bytes.len());
    }
    let longer = [&bytes[..], &[0; 8]].concat();
    assert!(B::decode(version, &longer).is_err(), "{body:?} with bytes behind it");
    if let Ok(read) = B::decode(version, choices) {
        assert_eq!(B::decode(version, &encoded_as(version, &read)), Ok(read));
    }
}

fn check_message<M: Message + Specified + PartialEq + Debug>(choices: &[u8])
where
    M::Response: Specified + PartialEq + Debug,
{
    let newest = M::OP.version_max();
    check_body::<M>(newest, choices);
    check_body::<M::Response>(newest, choices);
    let bytes = encoded_as(newest, &M::any(&mut Source::new(choices)));
    for version in [0, newest + 1, 255] {
        let refused = M::decode(version, &bytes).expect_err("a version that is not spoken");
        assert_eq!(refused.status(), Status::UnsupportedVersion);
    }
}

/// What holds for a first version that has had a second one: bytes of it are read into the current struct, and what that gives to those who
/// speak the first version only are the same bytes.
fn check_first<F, C>(choices: &[u8])
where
    F: Specified + PartialEq + Debug + Into<C>,
    C: Body + PartialEq + Debug,
{
    let (bytes, current) = check_turns::<F, C>(choices);
    assert_ne!(encoded_as(2, &current), bytes, "the second version says more");
}

/// The same, where the second version does not say more of everything.
fn check_turns<F, C>(choices: &[u8]) -> (Vec<u8>, C)
where
    F: Specified + PartialEq + Debug + Into<C>,
    C: Body + PartialEq + Debug,
{
    check_body::<F>(1, choices);
    let bytes = encoded(&F::any(&mut Source::new(choices)));
    let current = C::decode(1, &bytes).expect("a first version");
    assert_eq!(current, F::decode(1, &bytes).expect("itself").into());
    assert_eq!(encoded_as(1, &current), bytes);
    (bytes, current)
}

/// The same of a second version.
fn check_second<S, C>(choices: &[u8])
where
    S: Specified + PartialEq + Debug + Into<C>,
    C: Body + PartialEq + Debug,
{
    check_body::<S>(2, choices);
    let bytes = encoded(&S::any(&mut Source::new(choices)));
    let current = C::decode(2, &bytes).expect("a second version");
    assert_eq!(current, S::decode(2, &bytes).expect("itself").into());
    assert_eq!(encoded_as(2, &current), bytes);
    assert_ne!(encoded_as(3, &current), bytes, "the third version says more");
}

fn check_all_second(choices: &[u8]) {
    use second::admin::{AlterStreamV2, CreateStreamV2, StreamInfoV2};
    check_second::<CreateStreamV2, CreateStream>(choices);
    check_second::<StreamInfoV2, StreamInfo>(choices);
    check_second::<AlterStreamV2, AlterStream>(choices);
    check_second::<second::moves::OfferGroupsV2, OfferGroups>(choices);
}

fn check_all_first(choices: &[u8]) {
    use first::admin::{AlterStreamV1, CreateStreamV1, StreamInfoV1};
    use first::cluster::{ClusterDescriptionV1, JoinClusterV1, NodeAliveV1, StreamletsRebuiltV1};
    check_first::<CreateStreamV1, CreateStream>(choices);
    check_first::<StreamInfoV1, StreamInfo>(choices);
    check_first::<AlterStreamV1, AlterStream>(choices);
    check_first::<first::application::JoinApplicationV1, JoinApplication>(choices);
    check_first::<first::write::WriteChunksV1, WriteChunks>(choices);
    check_first::<JoinClusterV1, JoinCluster>(choices);
    check_first::<NodeAliveV1, NodeAlive>(choices);
    check_first::<first::node::CopiesDescriptionV1, CopiesDescription>(choices);
    check_first::<first::moves::OfferGroupsV1, OfferGroups>(choices);
    check_first::<first::moves::GroupsOfferedV1, GroupsOffered>(choices);
    check_first::<first::moves::CopiesMadeV1, CopiesMade>(choices);
    check_first::<first::moves::GiveBackV1, GiveBack>(choices);
    check_turns::<StreamletsRebuiltV1, StreamletsRebuilt>(choices);
    check_turns::<first::replication::LaneStateListV1, LaneStateList>(choices);
    check_turns::<first::replication::NodeFencedV1, NodeFenced>(choices);
    check_first::<ClusterDescriptionV1, ClusterDescription>(choices);
}

macro_rules! check_all {
    ($($name:ident),+ $(,)?) => {
        fn check_all(choices: &[u8]) {
            $(check_message::<$name>(choices);)+
        }
        fn all_ops() -> Vec<Op> {
            vec![$($name::OP),+]
        }
    };
}
for_each_message!(check_all);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_message_is_read_as_it_was_written(choices in proptest::collection::vec(any::<u8>(), 0..400)) {
        check_all(&choices);
        check_all_first(&choices);
        check_all_second(&choices);
    }

    #[test]
    fn every_message_survives_small_numbers(choices in proptest::collection::vec(0u8..3, 0..200)) {
        check_all(&choices);
    }

    #[test]
    fn an_error_body_is_read_as_it_was_written(message in ".{0,50}", retry_after_ms in any::<u32>(), more in any::<[u8; 3]>()) {
        let error = ErrorBody { message, retry_after_ms };
        let mut bytes = Vec::new();
        error.encode(&mut bytes);
        for length in 0..bytes.len() {
            prop_assert!(ErrorBody::decode(&bytes[..length]).is_err());
        }
        bytes.extend(more);
        prop_assert_eq!(ErrorBody::decode(&bytes), Ok(error));
    }

    #[test]
    fn an_error_body_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = ErrorBody::decode(&bytes);
    }
}

#[test]
fn every_operation_has_a_message() {
    assert_eq!(all_ops(), Op::ALL);
}

#[test]
fn who_speaks_the_first_version_is_of_the_first_level() {
    let alive = NodeAlive { node: 2, epoch: 7, level_max: 9 };
    assert_eq!(NodeAlive::decode(1, &encoded_as(1, &alive)), Ok(NodeAlive { level_max: 1, ..alive }));
    assert_eq!(NodeAlive::decode(2, &encoded_as(2, &alive)), Ok(alive));
}

#[test]
fn a_long_error_message_is_cut_at_a_character() {
    let error = ErrorBody::new(format!("x{}", "流".repeat(limits::ERROR_MESSAGE_BYTES_MAX)));
    let mut bytes = Vec::new();
    error.encode(&mut bytes);
    let read = ErrorBody::decode(&bytes).expect("what was written");
    assert!(read.message.len() > limits::ERROR_MESSAGE_BYTES_MAX - 4);
    assert!(error.message.starts_with(&read.message));
}

#[test]
fn a_count_that_cannot_fit_is_refused_before_memory_is_taken() {
    let mut body = vec![0; 12];
    body.extend(u32::MAX.to_le_bytes());
    body.extend([0; 100]);
    let refused = ReadChunks::decode(1, &body).expect_err("four billion entries in 100 bytes");
    assert_eq!(refused, ProtocolError::Count { field: "ReadChunks.entries", count: u32::MAX.into(), fits: 2 });
    assert_eq!(
        refused.to_string(),
        "ReadChunks.entries announces 4294967295 items, the bytes that are left hold at most 2"
    );
}

#[test]
fn errors_name_the_field() {
    let hello = Hello { client_name: "é".into(), client_version: String::new() };
    let mut bytes = encoded(&hello);
    bytes[5] = b'x';
    assert_eq!(Hello::decode(1, &bytes), Err(ProtocolError::NotUtf8 { field: "Hello.client_name", at: 0 }));
    let cut = Hello::decode(1, &bytes[..2]).expect_err("cut");
    assert_eq!(cut.to_string(), "Hello.client_name: 2 bytes are left, 4 are needed");
    let create = CreateStream { name: "x".into(), options: Default::default(), if_not_exists: false };
    let mut bytes = encoded_as(3, &create);
    *bytes.last_mut().expect("a body") = 2;
    let refused = CreateStream::decode(3, &bytes).expect_err("not a bool").to_string();
    assert_eq!(refused, "CreateStream.if_not_exists is 2, allowed is 0 or 1");
}

#[test]
fn changes_of_a_stream_apply_to_what_they_name_only() {
    let options = kera_format::StreamOptions::default();
    assert!(StreamChanges::default().is_empty());
    assert_eq!(StreamChanges::default().apply(&options), options);
    let changes = StreamChanges { retention_ms: Some(None), lanes: Some(4), ..StreamChanges::default() };
    assert!(!changes.is_empty());
    let changed = changes.apply(&options);
    assert_eq!(changed, kera_format::StreamOptions { retention_ms: None, lanes: 4, ..options });
}
