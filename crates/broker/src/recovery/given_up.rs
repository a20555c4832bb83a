//! Blocks that a person has given up while streamlets were being rebuilt from them: nobody has them any more, and readers, and the logs of lost nodes,
//! would wait for them for ever (`docs/replication.md`, "Nobody is left who has it").

use std::collections::BTreeSet;

use kera_protocol::StreamletRef;

use super::{Copies, EndedLog, ReadFor, Rebuild, RecoveryProgress, fetch, ranges_of};
use crate::broker::Broker;
use crate::failure::Failure;

/// Lets streamlets go on without what does not come for that reason, each when all blocks that there are were looked through for it, those of logs
/// that it does not need by what was decided too. Those of which some are at nobody who answers are waited for: what is said of that goes to `errors`.
pub(super) fn give_up(
    broker: &Broker,
    (rebuild, ranges, logs): (&Rebuild, &[ReadFor], &[EndedLog]),
    missing: &BTreeSet<StreamletRef>,
    (copies, progress): (&dyn Copies, &RecoveryProgress),
    errors: &mut Vec<String>,
) -> Result<(), Failure> {
    let is_given_up =
        |name: &&StreamletRef| ranges.iter().any(|(range, names)| range.backups.is_empty() && names.contains(name));
    for name in missing.iter().filter(is_given_up) {
        let all: Vec<_> = ranges_of(logs).into_iter().map(|range| (range, vec![*name])).collect();
        let wanted = BTreeSet::from([*name]);
        let pass = |asks_all| fetch::pass(broker, &rebuild.streamlets, &all, &wanted, (copies, asks_all), progress);
        let silent = pass(false)?;
        if !silent.is_empty() {
            errors.extend(silent);
            continue;
        }
        // One of several backups may have a front that another one has given back. Who does not answer now was not the only one.
        pass(true)?;
        let Some(place) = broker.place_of(*name) else { continue };
        let records = place.give_up_awaited();
        if records > 0 {
            let StreamletRef { stream, streamlet } = name;
            tracing::warn!(%stream, %streamlet, records, "older records go that no node has any more, as a person has said");
            broker.ownership.wake();
        }
    }
    Ok(())
}
