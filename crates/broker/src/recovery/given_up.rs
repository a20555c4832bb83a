//! Blocks that a person has given up while streamlets were being rebuilt from them: nobody has them any more, and readers, and the logs of lost nodes,
//! would wait for them for ever (`docs/replication.md`, "Nobody is left who has it").

use std::collections::BTreeSet;

use kera_format::vlog_replica::LogId;
use kera_log::Streamlet;
use kera_protocol::{Status, StreamletRef};

use super::{Copies, EndedLog, ReadFor, Rebuild, RecoveryProgress, fetch, ranges_of};
use crate::broker::Broker;
use crate::failure::Failure;

impl Rebuild {
    /// What is to be rebuilt of one of its streamlets.
    fn of(&self, name: StreamletRef) -> Rebuild {
        let its = self.ranges.iter().filter(|(_, names)| names.contains(&name));
        let ranges = its.map(|(range, _)| (range.clone(), vec![name])).collect();
        Rebuild { streamlets: vec![name], ranges, ..Rebuild::default() }
    }
}

impl Broker {
    /// Goes on with one streamlet of a rebuild without blocks that a person has given up for it alone, whether or not there are backups that should have them: those of views of
    /// `without` without backups. `logs` are the same with all who may give something of it: they are asked once more, and whatever of these views comes stays, also what the
    /// rebuild had no room for. The others of the rebuild are left as they are. False: nothing of it is awaited. To be called when the [rebuild](Broker::rebuild) has failed; blocks
    /// the thread as that does. An error of status `SegmentUnreadable`: it waits for something else as well, and all of it stays as it is.
    pub fn go_on_without(
        &self,
        rebuild: &Rebuild,
        name: StreamletRef,
        (logs, without): (&[EndedLog], &[EndedLog]),
        copies: &dyn Copies,
        progress: &RecoveryProgress,
    ) -> Result<bool, Failure> {
        let is_awaiting = || self.place_of(name).is_some_and(|place| place.is_awaiting());
        if !is_awaiting() {
            return Ok(false);
        }
        let (one, missing, mut errors) = (rebuild.of(name), BTreeSet::from([name]), Vec::new());
        let ranges = one.ranges_now(without);
        let with_all = one.ranges_now(logs).into_iter().zip(&ranges);
        let given_up = with_all.filter(|(_, (left, _))| left.backups.is_empty()).map(|(range, _)| range);
        let given_up: Vec<ReadFor> = given_up.collect();
        give_up(self, (&one, &ranges, without), &given_up, &missing, (copies, progress), &mut errors)?;
        if is_awaiting() {
            let StreamletRef { stream, streamlet } = name;
            let why = if errors.is_empty() { "none of it was given up".to_owned() } else { errors.join("; ") };
            let message =
                format!("streamlet {streamlet} of stream {stream} still waits for blocks of lost logs: {why}");
            return Err(Failure::later(Status::SegmentUnreadable, message));
        }
        Ok(true)
    }
}

/// The same logs with nobody who has these views of them, each with its number from 1: what was given up for one streamlet is left out for it like that.
pub fn logs_without(logs: &[EndedLog], given_up: &BTreeSet<(LogId, u32)>) -> Vec<EndedLog> {
    let mut left = logs.to_vec();
    for EndedLog { log, views, .. } in &mut left {
        let gone = views.iter_mut().zip(1..).filter(|(_, number)| given_up.contains(&(*log, *number)));
        gone.for_each(|(view, _)| view.backups.clear());
    }
    left
}

/// Lets streamlets go on without what does not come for that reason, each when all blocks that there are were looked through for it, those of logs
/// that it does not need by what was decided too. Those of which some are at nobody who answers are waited for: what is said of that goes to `errors`. `asked`: of what was given up
/// what is read once more, from whoever gives it.
pub(super) fn give_up(
    broker: &Broker,
    (rebuild, ranges, logs): (&Rebuild, &[ReadFor], &[EndedLog]),
    asked: &[ReadFor],
    missing: &BTreeSet<StreamletRef>,
    (copies, progress): (&dyn Copies, &RecoveryProgress),
    errors: &mut Vec<String>,
) -> Result<(), Failure> {
    let is_given_up =
        |name: &&StreamletRef| ranges.iter().any(|(range, names)| range.backups.is_empty() && names.contains(name));
    for name in missing.iter().filter(is_given_up) {
        let all: Vec<_> = ranges_of(logs).into_iter().map(|range| (range, vec![*name])).collect();
        let wanted = BTreeSet::from([*name]);
        let read = |ranges: &[ReadFor], asks_all| {
            fetch::pass(broker, &rebuild.streamlets, ranges, &wanted, (copies, asks_all), progress)
        };
        let pass = |asks_all| {
            // Nobody waits for those who do not give it.
            read(asked, asks_all)?;
            read(&all, asks_all)
        };
        let Some(place) = broker.place_of(*name) else { continue };
        place.look_anew();
        let is_looked_through = look_through(broker, rebuild, &place, &pass, errors);
        place.look_anew();
        if !is_looked_through? {
            continue;
        }
        let records = place.give_up_awaited();
        if records > 0 {
            let StreamletRef { stream, streamlet } = name;
            tracing::warn!(%stream, %streamlet, records, "older records go that no node has any more, as a person has said");
            broker.ownership.wake();
        }
    }
    Ok(())
}

/// Reads all that there is of a streamlet until each segment that is awaited had room in memory and lacks something all the same: one that was put off since others
/// are begun may come whole. False if that cannot be said yet.
fn look_through(
    broker: &Broker,
    rebuild: &Rebuild,
    place: &Streamlet,
    pass: &dyn Fn(bool) -> Result<Vec<String>, Failure>,
    errors: &mut Vec<String>,
) -> Result<bool, Failure> {
    let mut left_before = usize::MAX;
    loop {
        let silent = pass(false)?;
        if !silent.is_empty() {
            errors.extend(silent);
            return Ok(false);
        }
        // One of several backups may have a front that another one has given back. Who does not answer now was not the only one.
        pass(true)?;
        let left = place.looked_through();
        if left == 0 || left == left_before {
            if left > 0 {
                errors.push(format!(
                    "{left} segments had no room in memory, which others take: nothing is given up before"
                ));
            }
            return Ok(left == 0);
        }
        left_before = left;
        broker.give_back_begun(rebuild);
    }
}

#[cfg(test)]
mod tests {
    use kera_format::{StreamId, StreamletId};

    use super::*;
    use crate::recovery::{EndedView, RangeOfLog};

    #[test]
    fn of_one_streamlet_there_are_its_ranges_alone() {
        let range = |first| RangeOfLog {
            log: LogId { node: 1, epoch: 2, vlog: 0 },
            first,
            last: first + 9,
            backups: vec![11, 12],
        };
        let [one, other] = [0, 1].map(|at| StreamletRef { stream: StreamId(7), streamlet: StreamletId(at) });
        let ranges = vec![(range(1), vec![one, other]), (range(11), vec![other]), (range(21), vec![one])];
        let both = Rebuild { streamlets: vec![one, other], ranges, ..Rebuild::default() };
        let its = both.of(one);
        assert_eq!(its.streamlets, [one]);
        assert_eq!(its.ranges, [(range(1), vec![one]), (range(21), vec![one])]);
    }

    #[test]
    fn of_views_that_are_left_out_nobody_is_asked_for_anything() {
        let log = |epoch| LogId { node: 1, epoch, vlog: 0 };
        let view = |first, backups: &[u32]| EndedView { first, backups: backups.to_vec() };
        let ended = |epoch, backups: &[u32]| EndedLog {
            log: log(epoch),
            views: vec![view(1, backups), view(6, &[3, 4])],
            end: 9,
            at_all: true,
        };
        let left = logs_without(&[ended(7, &[3, 4]), ended(6, &[3, 4])], &BTreeSet::from([(log(7), 1)]));
        assert_eq!(left, [ended(7, &[]), ended(6, &[3, 4])]);
    }
}
