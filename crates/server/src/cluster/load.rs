//! What this node's broker takes and gives, told to the leader of the coordinators each few seconds, and at once to one that is new: it evens out the nodes by
//! that (`docs/replication.md`, "Nodes are evened out").
//!
//! What is told is measured on a thread that nobody waits for: it looks at every lane that was used. A byte that a reader gets counts half of one that is appended: it is
//! sent once, and neither copied, checked, nor sent to backups. What is old is read where it is wherever its streamlet goes, so only what is new counts.

use std::sync::Arc;
use std::time::Duration;

use kera_broker::{Broker, Meter};
use kera_env::Clock;
use kera_log::Tenure;
use kera_protocol::NodeLoad;
use kera_raft::Group;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How often it is looked who leads.
const LOOK: Duration = Duration::from_secs(1);
/// Looks from one measurement to the next.
const LOOKS: u32 = 5;

/// Begins to tell. `runtime`: that of the coordinators' log.
pub(super) fn tell(
    (node, epoch): (u32, u32),
    group: &Arc<Group>,
    broker: &Arc<Broker>,
    clock: &Arc<dyn Clock>,
    runtime: &Handle,
    mut stop: watch::Receiver<bool>,
) {
    let (group, broker, clock) = (Arc::downgrade(group), Arc::downgrade(broker), clock.clone());
    runtime.spawn(async move {
        let (mut meter, mut said, mut told, mut looks) = (Meter::default(), None, None, 0);
        loop {
            let (Some(group), Some(broker)) = (group.upgrade(), broker.upgrade()) else { return };
            if looks == 0 {
                let now_us = clock.monotonic_us();
                let measured = tokio::task::spawn_blocking(move || {
                    let load = measure(&mut meter, &broker, now_us);
                    (meter, load)
                });
                let Ok((next, (bytes_per_s, streamlets))) = measured.await else { return };
                meter = next;
                (said, told, looks) = (Some(NodeLoad { node, epoch, bytes_per_s, streamlets }), None, LOOKS);
            }
            looks -= 1;
            let leader = group.leader().map(|(leader, _)| leader);
            if let Some(said) = said.as_ref().filter(|_| leader.is_some() && told != leader) {
                match group.tell_load(said).await {
                    Ok(by) => told = Some(by),
                    Err(reason) => {
                        tracing::debug!(reason, "the leader does not take what this node's load is");
                        // One that is of an earlier version never does: it is told with the next measurement.
                        told = leader;
                    }
                }
            }
            drop(group);
            tokio::select! {
                _ = stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    });
}

fn measure(meter: &mut Meter, broker: &Broker, now_us: u64) -> (u64, Vec<kera_protocol::StreamletLoad>) {
    let streams = broker.log().streams();
    let here = streams.iter().flat_map(|stream| {
        let mine = stream.streamlets().filter(|place| place.tenure() != Tenure::Elsewhere);
        mine.map(|place| ((stream.id(), place.id()), place.appended_bytes() + place.followed_bytes() / 2))
    });
    meter.look(now_us, here.filter(|(_, bytes)| *bytes > 0))
}
