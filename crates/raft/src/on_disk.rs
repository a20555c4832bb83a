//! What a coordinator has on its disk, without anything that runs: the files that [`Group`](crate::Group) has, opened, written and cut as it does, by whoever calls and
//! while he waits. For the simulator, which has coordinators take turns in one thread and plays itself what they say to each other.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use kera_coordinator::cluster::ClusterState;
use kera_env::{Disk, Folder};
use kera_format::cluster::{NodeNumber, RaftPlace};
use kera_format::raft::{LogEntry, Record};

use crate::file::{DIR, LogFile, OpenError, check_number, folder};
use crate::machine::Current;
use crate::snapshot;
use crate::types::{StoredMembers, from_format, log_id, members, place_of};

/// A vote: the term, the node, and whether that one leads for sure.
pub type Ballot = (u64, u64, bool);

/// See the module.
pub struct OnDisk {
    folder: Arc<Folder>,
    uuid: [u8; 16],
    log: LogFile,
    /// What the newest snapshot said when this was opened.
    began: Current,
}

impl OnDisk {
    /// Reads what is there, and writes anew what of two copies is not as it was written. Blocks, as all others do.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged.
    pub fn open(disk: Arc<dyn Disk>, node: NodeNumber, uuid: [u8; 16]) -> Result<OnDisk, OpenError> {
        let folder = folder(disk);
        check_number(&folder, node)?;
        let mut log = LogFile::open(folder.clone(), uuid)?;
        let began = Current::of_newest(&folder)?;
        log.check_cut(began.applied.map(|place| place.index))?;
        let last = log.contents().last();
        if let Some(place) = began.applied.as_ref().map(place_of)
            && last.is_some_and(|last| last.index < place.index)
        {
            // Whoever wrote the snapshot did not live to cut the log.
            let cut = log.write(vec![Record::Purged { place }]);
            cut.map_err(|error| OpenError::Disk { path: DIR.to_owned(), error })?;
            log.copy();
        }
        Ok(OnDisk { folder, uuid, log, began })
    }

    /// The last vote that was written.
    pub fn ballot(&self) -> Option<Ballot> {
        self.log.contents().vote
    }

    /// The entries that are in no snapshot, or are kept beside it.
    pub fn entries(&self) -> &BTreeMap<u64, LogEntry> {
        &self.log.contents().entries
    }

    /// The last entry.
    pub fn last(&self) -> RaftPlace {
        let applied = self.began.applied.as_ref().map(place_of);
        self.log.contents().last().or(applied).unwrap_or_default()
    }

    /// Up to which entry the snapshot went that was there when this was opened.
    pub fn snapshot(&self) -> u64 {
        self.began.applied.map_or(0, |place| place.index)
    }

    /// What that snapshot and the entries behind it make, up to this one.
    ///
    /// # Errors
    /// The snapshot goes further, an entry is not there, or the rules refuse it.
    pub fn state_at(&self, index: u64) -> Result<ClusterState, String> {
        let Current { state, applied, members } = &self.began;
        let mut current = Current { state: state.clone(), applied: *applied, members: members.clone() };
        let from = self.snapshot();
        if from > index {
            return Err(format!("the snapshot goes to entry {from}, which is behind entry {index}"));
        }
        for next in from + 1..=index {
            let Some(entry) = self.entries().get(&next) else { return Err(format!("entry {next} is not there")) };
            let (answer, _) = current.apply(from_format(entry.clone()));
            if let Some(refused) = answer.refused {
                return Err(format!("entry {next} is refused: {refused}"));
            }
        }
        Ok(Arc::unwrap_or_clone(current.state))
    }

    /// Writes records, all or none of them.
    ///
    /// # Errors
    /// The disk refuses, and nothing has happened; or they do not follow on what is there.
    pub fn write(&mut self, records: Vec<Record>) -> io::Result<()> {
        self.log.write(records)?;
        self.log.copy();
        Ok(())
    }

    /// Writes a snapshot of the state at `place`, in a group of these voters, and cuts the log behind `cut`, which must not be behind `place`.
    ///
    /// # Errors
    /// The disk refuses. The snapshot may be there, and the log is not cut then.
    pub fn keep(&mut self, state: &ClusterState, place: RaftPlace, cut: RaftPlace, voters: &[u64]) -> io::Result<()> {
        let nodes: Vec<(u64, String)> = voters.iter().map(|node| (*node, node.to_string())).collect();
        let group = StoredMembers::new(Some(log_id(&place)), members(&[voters.to_vec()], &nodes));
        let bytes = snapshot::encode(self.uuid, state, log_id(&place), &group);
        snapshot::write(&self.folder, place.index, &bytes)?;
        self.write(vec![Record::Purged { place: cut }])
    }
}

#[cfg(test)]
mod tests {
    use kera_env::MemoryDisk;
    use kera_format::cluster::ClusterEntry;
    use kera_format::raft::Payload;

    use super::*;

    fn place(index: u64) -> RaftPlace {
        RaftPlace { term: 1, leader: 1, index }
    }

    /// One that raises the level to two is refused a second time.
    fn raised(index: u64) -> Record {
        let level = index as u32 + 1;
        let payload = Payload::Entries(vec![ClusterEntry::LevelRaised { level }]);
        Record::Appended(LogEntry { place: place(index), payload })
    }

    #[test]
    fn what_was_written_is_there_at_the_next_start_from_a_snapshot_and_the_entries_behind_it() {
        let disk = Arc::new(MemoryDisk::new());
        let mut kept = OnDisk::open(disk.clone(), 1, [1; 16]).unwrap();
        kept.write(vec![Record::Vote { term: 1, node: 1, committed: true }]).unwrap();
        (1..=5).for_each(|index| kept.write(vec![raised(index)]).unwrap());
        let at_four = kept.state_at(4).unwrap();
        kept.keep(&at_four, place(4), place(2), &[1, 2, 3]).unwrap();
        disk.crash(1);
        let again = OnDisk::open(disk, 1, [1; 16]).unwrap();
        assert_eq!((again.ballot(), again.last(), again.snapshot()), (Some((1, 1, true)), place(5), 4));
        assert_eq!(again.entries().keys().copied().collect::<Vec<_>>(), [3, 4, 5]);
        assert_eq!(again.state_at(4).unwrap().snapshot(), at_four.snapshot());
        assert_eq!(again.state_at(5).unwrap().level(), 6);
        assert!(again.state_at(3).is_err() && again.state_at(6).is_err());
    }
}
