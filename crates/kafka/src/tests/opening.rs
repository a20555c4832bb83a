//! A start: streams that the node knows of, and its broker not yet.

use kera_coordinator::catalog::Catalog;
use kera_coordinator::{ClusterLog, CoordinatorError, LiveNode};
use kera_format::catalog::Entry;
use kera_format::{StreamId, kafka_groups, level};
use kera_protocol::{Op, StreamInfo};

use super::*;
use crate::state_log::{StateLog, state_stream_options};

const NAME: &str = "_kera.floors";
const STREAM: StreamId = StreamId(1);

/// The coordinators' log, as a node knows it whose broker is told later.
struct Known(Catalog);

impl ClusterLog for Known {
    fn request(&self, op: Op, _: u8, _: &[u8], _: bool) -> Result<Vec<u8>, CoordinatorError> {
        panic!("{op} is not asked for");
    }
    fn level(&self) -> u32 {
        level::NEWEST
    }
    fn read(&self, read: &mut dyn FnMut(&Catalog)) {
        read(&self.0);
    }
    fn copies_of(&self, _: StreamId, _: u32) -> u32 {
        0
    }
    fn wanted_copies(&self, _: StreamId) -> Option<u32> {
        None
    }
    fn live_nodes(&self) -> Vec<LiveNode> {
        Vec::new()
    }
    fn observe(&self, _: Arc<dyn StreamObserver>, _: Vec<StreamInfo>) {}
}

/// A start ended with the advice to move the data directory away.
#[test]
fn a_stream_that_the_node_knows_of_is_waited_for_until_its_broker_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unit.arena");
    let (arena, _) = Arena::create_or_attach(ArenaConfig { path, bytes: 16 << 20, node: [3; 16] }).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(1_700_000_000_000));
    let log = Log::new(LogConfig::default(), arena);
    log.set_sinks(Arc::new(vec![Arc::new(Instant) as Arc<dyn DurabilitySink>]));
    let broker = Broker::new(BrokerConfig::default(), log, clock.clone());
    let mut known = Catalog::default();
    let made =
        Entry::StreamCreated { stream: STREAM, at_ms: 1_000, options: state_stream_options(), name: NAME.into() };
    known.apply(&made).unwrap();
    let coordinator = Coordinator::of_cluster(Arc::new(Known(known)), clock.clone());
    let mut rests = 0;
    let opened = StateLog::<kafka_groups::Entry>::open_when_told(NAME, &coordinator, &broker, &clock, || {
        rests += 1;
        if rests == 3 {
            broker.stream_created(STREAM, state_stream_options()).unwrap();
        }
    });
    assert!(opened.is_ok(), "{:?}", opened.err());
    assert_eq!(rests, 3);
    // That it is told of nothing says nothing of its disk.
    broker.log().delete_stream(STREAM).unwrap();
    let opened = StateLog::<kafka_groups::Entry>::open_when_told(NAME, &coordinator, &broker, &clock, || {});
    assert_eq!(opened.err().expect("nobody tells it").kind(), crate::NOT_GIVEN);
}
