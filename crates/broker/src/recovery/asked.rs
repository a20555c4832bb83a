//! What backups say of lanes, and what is served of that: all of it, or what is left without views of logs that a person has given up for one streamlet
//! (`docs/replication.md`, "One streamlet goes on without").
//!
//! It is asked once, and what is left out follows from these answers alone. Who asked again each time with something else left out would take what was silent
//! the first time, and not the second, for what the views between the two have spoiled.

use std::collections::BTreeSet;

use bytes::Bytes;
use kera_format::vlog_replica::LogId;
use kera_protocol::{ReplicatedLane, Status};

use super::decide::Source;
use super::{
    AllWanted, Copies, DecidedLanes, EndedLog, RangeOfLog, Several, ToldLanes, Wanted, fetch, names_of, ranges_of,
    shared_tails, with_last_blocks_alone,
};
use crate::broker::Broker;
use crate::failure::Failure;

/// Views of logs, each with its number from 1.
pub(super) type Views = BTreeSet<(LogId, u32)>;

/// Of so many views that were given up it is found out which ones contradict the others. Of more only if all but one do not.
const TOLD_APART_MAX: usize = 4;

/// What backups say of lanes in ranges of logs.
pub(super) struct Said {
    pub(super) ranges: Vec<RangeOfLog>,
    /// Of some of them, in pieces.
    pub(super) answers: Vec<(Source, Vec<ReplicatedLane>)>,
    /// Views that were given up, of which nobody says anything, or gives the last blocks.
    pub(super) lacks: Views,
}

/// What streamlets are opened with.
pub(super) struct Found {
    /// Where it was found.
    pub(super) ranges: Vec<RangeOfLog>,
    pub(super) decided: DecidedLanes,
    pub(super) several: Several,
    /// The last blocks of logs, as far as one backup alone may have them.
    pub(super) tails: Vec<Bytes>,
    /// Of views that were given up those that were left out.
    pub(super) left_out: Views,
}

/// Why streamlets are not opened with what was said.
enum NotFound {
    /// It contradicts itself.
    Contradicted(Failure),
    /// Nobody gives the last blocks of these views, which were given up.
    Lacks(Views),
    /// Something else does not come.
    Failed(Failure),
}

impl Said {
    /// The ranges that are left without these views, and what was said of lanes in them.
    fn without(&self, logs: &[EndedLog], left_out: &Views) -> (Vec<RangeOfLog>, ToldLanes) {
        let (mut left, mut sources) = (Vec::new(), Vec::new());
        for range in &self.ranges {
            let stays = left_out.is_empty() || !left_out.contains(&view_of(range, logs));
            sources.push(stays.then_some(left.len()));
            if stays {
                left.push(range.clone());
            }
        }
        let mut told = ToldLanes::new();
        for (source, lanes) in &self.answers {
            let Some(source) = sources[*source] else { continue };
            for lane in lanes {
                let of = told.entry((lane.streamlet.stream, lane.streamlet.streamlet, lane.lane)).or_default();
                of.parts.extend(lane.parts.iter().map(|part| (source, *part)));
                of.marks.extend(lane.producers.iter().map(|mark| (source, *mark)));
            }
        }
        (left, told)
    }
}

/// The view that blocks are of.
pub(super) fn view_of(range: &RangeOfLog, logs: &[EndedLog]) -> (LogId, u32) {
    let of_log = logs.iter().find(|known| known.log == range.log);
    let at = of_log.and_then(|known| known.views.iter().rposition(|view| view.first <= range.first));
    (range.log, at.map_or(0, |at| at as u32 + 1))
}

/// What is left out beside what is lacking, one after the other: as few views as will do. Of several that were given up some may contradict nothing: who has named one of these first,
/// and then the right one, loses nothing of it.
fn choices(lacking: &Views, given_up: &Views) -> Vec<Views> {
    let rest: Vec<(LogId, u32)> = given_up.difference(lacking).copied().collect();
    let with = |some: Vec<(LogId, u32)>| lacking.iter().copied().chain(some).collect::<Views>();
    if rest.len() > TOLD_APART_MAX {
        let single = rest.iter().map(|one| vec![*one]);
        return [Vec::new()].into_iter().chain(single).chain([rest.clone()]).map(with).collect();
    }
    let mut chosen: Vec<u32> = (0..1_u32 << rest.len()).collect();
    chosen.sort_by_key(|choice| choice.count_ones());
    let of = |choice: u32| (0_u32..).zip(&rest).filter(move |(at, _)| (choice >> *at) & 1 == 1).map(|(_, one)| *one);
    chosen.into_iter().map(|choice| with(of(choice).collect())).collect()
}

impl Broker {
    /// What is served of each lane, of what the logs have.
    ///
    /// An owner that goes on in another life may have cut what nobody had acknowledged, and begun behind that, while its log of before has all of it. Where that is backups
    /// do not tell, since they say together what follows one another; but it is where a block ends, one of those that may have been under way. And of these one backup may have more than
    /// another one, which has what a disk of the first has changed. So it is asked in two ways: of whole views, and, if that does not do, of the last blocks each for itself.
    ///
    /// Of what was given up nothing is left out unless all else was told when it was asked for last. Not both times: of whole views no backup may ever tell, where each lacks
    /// another block, while of the last blocks each is told by one. The other way around who tells all of it tells each part.
    pub(super) fn find(
        &self,
        wanted: &AllWanted,
        (logs, given_up): (&[EndedLog], &Views),
        copies: &dyn Copies,
    ) -> Result<Found, Failure> {
        let (mut ways, mut why, mut is_told) = (Vec::new(), None, true);
        for is_finer in [false, true] {
            let whole = ranges_of(logs);
            let ranges = if is_finer { with_last_blocks_alone(&whole, logs) } else { whole };
            if is_finer && ranges.is_empty() {
                break;
            }
            let mut said = match self.ask(wanted, ranges, (logs, given_up), copies) {
                Ok(said) => said,
                Err(failure) => {
                    (why, is_told) = (Some(failure), false);
                    continue;
                }
            };
            is_told = true;
            if said.lacks.is_empty() {
                match self.found_in(&said, &Views::new(), wanted, (logs, given_up), copies) {
                    Ok(found) => return Ok(found),
                    Err(NotFound::Contradicted(failure)) => why = Some(failure),
                    Err(NotFound::Lacks(views)) => said.lacks = views,
                    Err(NotFound::Failed(failure)) => return Err(failure),
                }
            }
            ways.push(said);
        }
        match why {
            Some(failure) if given_up.is_empty() || !is_told => Err(failure),
            _ => self.find_without(ways, wanted, (logs, given_up), copies),
        }
    }

    /// The same without as little as will do of what was given up, as it was said in one way or the other.
    fn find_without(
        &self,
        mut ways: Vec<Said>,
        wanted: &AllWanted,
        (logs, given_up): (&[EndedLog], &Views),
        copies: &dyn Copies,
    ) -> Result<Found, Failure> {
        loop {
            // Nobody is asked any more once the node stops. That is no word about what there is.
            fetch::must_go_on(copies)?;
            let of_way = |(way, said): (usize, &Said)| {
                choices(&said.lacks, given_up).into_iter().map(move |left_out| (way, left_out))
            };
            let mut tries: Vec<(usize, Views)> = ways.iter().enumerate().flat_map(of_way).collect();
            tries.sort_by_key(|(_, left_out)| left_out.len());
            let (mut why, mut lacking) = (None, None);
            for (way, left_out) in tries {
                match self.found_in(&ways[way], &left_out, wanted, (logs, given_up), copies) {
                    Ok(found) => return Ok(found),
                    Err(NotFound::Contradicted(failure)) => why = Some(failure),
                    Err(NotFound::Lacks(views)) => {
                        lacking = Some((way, views));
                        break;
                    }
                    Err(NotFound::Failed(failure)) => return Err(failure),
                }
            }
            match lacking {
                // Each time more of it, and of no view that is left out already.
                Some((way, views)) => ways[way].lacks.extend(views),
                None => {
                    let none = || Failure::later(Status::SegmentUnreadable, "no backup says what lanes have");
                    return Err(why.unwrap_or_else(none));
                }
            }
        }
    }

    /// What is served of each lane, of what was said without these views. Reads the last blocks of logs, before anybody is told of them.
    fn found_in(
        &self,
        said: &Said,
        left_out: &Views,
        wanted: &AllWanted,
        (logs, given_up): (&[EndedLog], &Views),
        copies: &dyn Copies,
    ) -> Result<Found, NotFound> {
        let (ranges, told) = said.without(logs, left_out);
        let (decided, several) = self.decide_all(told, wanted, &ranges).map_err(NotFound::Contradicted)?;
        let mut tails = Vec::new();
        if wanted.values().any(Wanted::is_elsewhere) {
            let may_lack = |range: &RangeOfLog| given_up.contains(&view_of(range, logs));
            let shared = shared_tails(&several, &ranges, logs);
            let read = fetch::tails(&shared, &names_of(wanted), copies, &may_lack);
            let (read, lacking) = read.map_err(NotFound::Failed)?;
            if !lacking.is_empty() {
                return Err(NotFound::Lacks(lacking.iter().map(|range| view_of(range, logs)).collect()));
            }
            tails = read;
        }
        Ok(Found { ranges, decided, several, tails, left_out: left_out.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[u32]) -> Views {
        numbers.iter().map(|number| (LogId { node: 1, epoch: 1, vlog: 0 }, *number)).collect()
    }

    #[test]
    fn of_several_that_were_given_up_as_few_are_left_out_as_will_do() {
        let told = |lacking: &[u32], given_up: &[u32]| choices(&of(lacking), &of(given_up));
        assert_eq!(told(&[1], &[1]), [of(&[1])], "nothing else may be left out");
        assert_eq!(told(&[], &[2]), [of(&[]), of(&[2])]);
        assert_eq!(told(&[1], &[1, 2, 3]), [of(&[1]), of(&[1, 2]), of(&[1, 3]), of(&[1, 2, 3])]);
        assert_eq!(told(&[], &[1, 2, 3, 4]).len(), 16);
        let many = told(&[], &[1, 2, 3, 4, 5]);
        assert_eq!((many.len(), &many[0], &many[1], &many[6]), (7, &of(&[]), &of(&[1]), &of(&[1, 2, 3, 4, 5])));
        assert_eq!(told(&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5]), [of(&[1, 2, 3, 4, 5])], "of those that nobody gives all");
    }
}
