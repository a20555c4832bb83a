//! Virtual logs of their own for streamlets that fill a shared one nearly alone (adaptive replication, thesis 5.3.3). What goes and what comes
//! back is chosen by [`kera_broker::Adaptive`]; here it is told what logs have taken, and a change is made as a move of the streamlet to
//! its own node (`docs/replication.md`, "A log for a streamlet that fills one"): it is let go, settles, gets a new owner epoch, and goes on in
//! the other log.

use std::sync::Arc;
use std::time::Duration;

use kera_broker::{Adaptive, AdaptiveConfig, AdaptiveStats, Broker, LogChange, LogKind, Wrote};
use kera_coordinator::CoordinatorError;
use kera_env::Clock;
use kera_format::{Cleanup, StreamId, StreamletId, level};
use kera_log::{DurabilitySink, Streamlet, Tenure};
use kera_protocol::{OwnLog, RenewOwner};
use kera_raft::Group;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::copies::Copies;

type Place = (StreamId, StreamletId);

/// See the module.
pub(super) struct Adapting {
    node: u32,
    epoch: u32,
    group: Arc<Group>,
    broker: Arc<Broker>,
    copies: Arc<Copies>,
    clock: Arc<dyn Clock>,
    adaptive: Mutex<Adaptive>,
}

impl Adapting {
    /// Begins to look, if any streamlet may have a log of its own. `runtime`: that of the coordinators' log.
    pub(super) fn start(
        (node, epoch): (u32, u32),
        config: AdaptiveConfig,
        group: &Arc<Group>,
        broker: &Arc<Broker>,
        (copies, clock): (&Arc<Copies>, &Arc<dyn Clock>),
        runtime: &Handle,
        mut stop: watch::Receiver<bool>,
    ) -> Arc<Adapting> {
        let adapting = Arc::new(Adapting {
            node,
            epoch,
            group: group.clone(),
            broker: broker.clone(),
            copies: copies.clone(),
            clock: clock.clone(),
            adaptive: Mutex::new(Adaptive::new(config)),
        });
        if config.logs_max > 0 {
            let (looking, pause) = (Arc::downgrade(&adapting), Duration::from_micros(config.interval_us));
            runtime.spawn(async move {
                loop {
                    tokio::select! {
                        _ = stop.wait_for(|stop| *stop) => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                    let Some(adapting) = looking.upgrade() else { return };
                    adapting.look().await;
                }
            });
        }
        adapting
    }

    /// Counters and sizes.
    pub(super) fn stats(&self) -> AdaptiveStats {
        self.adaptive.lock().stats()
    }

    /// A streamlet that is about to be opened has as many copies from here on as the coordinators say; how many that is.
    pub(super) fn set_copies(&self, stream: StreamId, streamlet: StreamletId) -> u32 {
        let copies = self.group.read(|state| state.copies_of(stream, streamlet.0));
        let Some(place) = self.streamlet((stream, streamlet)) else { return copies };
        if (place.own_log().is_none() || place.copies() != copies)
            && let Err(error) = self.broker.set_copies(stream, streamlet, copies)
            // One whose stream has gone meanwhile needs none.
            && self.streamlet((stream, streamlet)).is_some()
        {
            tracing::error!(%stream, %streamlet, copies, %error, "the streamlet stays in a log with another number of copies; restart the node");
        }
        copies
    }

    /// Puts a streamlet that is about to be opened into the log that is chosen for it.
    pub(super) fn opens(&self, stream: StreamId, streamlet: StreamletId) {
        let copies = self.set_copies(stream, streamlet);
        let Some(place) = self.streamlet((stream, streamlet)) else { return };
        let target = self.adaptive.lock().target((stream, streamlet)).filter(|(_, (kind, _))| *kind == copies);
        let own = target.map(|(number, kind)| (number, self.copies.own_log(number, kind) as Arc<dyn DurabilitySink>));
        if own.is_none() && place.own_log().is_none() {
            return;
        }
        match self.broker.put_in_log(stream, streamlet, own) {
            Ok(()) => {
                tracing::info!(%stream, %streamlet, own = ?place.own_log(), "the streamlet goes on in another log")
            }
            // It goes on in the log that it is in, which is always right.
            Err(error) => tracing::warn!(%stream, %streamlet, %error, "the streamlet does not change its log"),
        }
    }

    /// Streamlets that have logs of their own.
    pub(super) fn own_logs(&self) -> Vec<OwnLog> {
        let places = self.adaptive.lock().own();
        let one = |(stream, streamlet, kind): (StreamId, StreamletId, LogKind)| {
            let number = self.own_log((stream, streamlet))?;
            Some(OwnLog { stream, streamlet, log: self.copies.own_log(number, kind).id().vlog })
        };
        places.into_iter().filter_map(one).collect()
    }

    fn streamlet(&self, (stream, streamlet): Place) -> Option<Arc<Streamlet>> {
        self.broker.log().stream(stream)?.streamlet(streamlet).cloned()
    }

    /// Which log of its own a streamlet of this node is in.
    fn own_log(&self, place: Place) -> Option<u8> {
        self.streamlet(place).filter(|found| found.tenure() != Tenure::Elsewhere)?.own_log()
    }

    async fn look(&self) {
        let wrote = self.wrote();
        // Earlier versions would not know what is asked for.
        if self.group.level() < level::SELF_MOVES {
            return;
        }
        let now_us = self.clock.monotonic_us();
        let change = self.adaptive.lock().look(now_us, &wrote, &|place| self.own_log(place));
        let Some(LogChange { place: (stream, streamlet), own, kind }) = change else { return };
        if let Some(number) = own {
            // It has a view when the first chunk comes.
            drop(self.copies.own_log(number, kind));
        }
        let asked = RenewOwner { stream, streamlet, node: self.node, epoch: self.epoch };
        match self.group.ask(&asked).await {
            Ok(of) => tracing::info!(%stream, %streamlet, ?own, number = of.number, "a streamlet changes its log"),
            // It may be noted or not: the move tells, or the time does.
            Err(CoordinatorError::NoLeader(reason)) => {
                tracing::info!(%stream, %streamlet, reason, "a change of logs waits")
            }
            Err(error) => {
                tracing::info!(%stream, %streamlet, %error, "a streamlet does not change its log now");
                self.adaptive.lock().refused(self.clock.monotonic_us());
            }
        }
    }

    /// What has come into all logs since the last look.
    fn wrote(&self) -> Vec<Wrote> {
        let mut wrote = Vec::new();
        for (_, log) in self.copies.all() {
            for ((stream, streamlet), bytes) in log.take_shares() {
                let Some(found) = self.broker.log().stream(stream) else { continue };
                let Some(place) = found.streamlet(streamlet) else { continue };
                let options = found.options();
                // Compaction leaves streamlets alone that have moved, and those of the system are small.
                let may = options.replication > 1
                    && place.copies() == options.replication
                    && self.group.read(|state| state.wanted_copies(stream).is_none())
                    && options.virtual_logs == 0
                    && options.cleanup == Cleanup::Delete
                    && !found.is_system()
                    && place.tenure() == Tenure::Here;
                wrote.push(Wrote {
                    place: (stream, streamlet),
                    bytes,
                    shared_log: self.copies.log_with(place.copies(), stream, streamlet, &options).id().vlog,
                    own: place.own_log(),
                    kind: (place.copies(), Copies::kind(&options).1),
                    may,
                });
            }
        }
        wrote
    }
}
