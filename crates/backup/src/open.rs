//! A start: what a backup has, from what its disks have. On the starting thread.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use kera_env::{AlignedBuffer, Disk, OpenMode, Random};
use kera_format::vlog::PAGE_BYTES;
use kera_format::vlog_replica::{FENCES_MAX, Fences, LogId, ReplicaHeader};

use crate::backup::BackupConfig;
use crate::disks::FOLDER;
use crate::error::OpenError;
use crate::files::{DiskWriter, FilesConfig, path, write_footer};
use crate::index::FileIndex;
use crate::replica::{FilePart, Replica, Run};
use crate::scan::Source;

/// What a start has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct OpenReport {
    /// Virtual logs of which there are blocks.
    pub logs: u64,
    /// Their files.
    pub files: u64,
    /// Of those, the ones without a footer, whose blocks were read.
    pub scanned: u64,
    /// Blocks that are there.
    pub blocks: u64,
    /// Nodes that are fenced.
    pub fences: u64,
    /// Blocks that were there and are not any more, a sentence each: their owners must be told that they have a copy less. The
    /// files are kept.
    pub damage: Vec<String>,
}

pub(crate) struct Opened {
    pub(crate) fences: BTreeMap<u32, u32>,
    pub(crate) logs: BTreeMap<LogId, Replica>,
    pub(crate) writers: Vec<DiskWriter>,
    pub(crate) next_file: u64,
    pub(crate) report: OpenReport,
}

pub(crate) fn open(
    config: &BackupConfig,
    disks: &[Arc<dyn Disk>],
    random: &Arc<dyn Random>,
) -> Result<Opened, OpenError> {
    if disks.is_empty() {
        return Err(OpenError::NoDisk);
    }
    let mut opening = Opening { config, parts: BTreeMap::new(), next_file: 1, report: OpenReport::default() };
    let mut spares = Vec::new();
    for (disk, number) in disks.iter().zip(0..) {
        spares.push(opening.disk(&**disk, number).map_err(|error| match error {
            Trouble::Disk(path, error) => OpenError::Disk { path, error },
            Trouble::Foreign(path) => OpenError::Foreign { path },
        })?);
    }
    let fences = read_fences(disks)?;
    let files = FilesConfig {
        cluster: config.cluster,
        node: config.node,
        file_bytes: config.file_bytes,
        spares: config.spares,
    };
    let writer = |(disk, spares): (&Arc<dyn Disk>, Vec<u64>)| {
        DiskWriter::new(files.clone(), Arc::clone(disk), Arc::clone(random), spares)
    };
    let writers = disks.iter().zip(spares).map(writer).collect();
    let mut next_run = 0;
    let logs: BTreeMap<LogId, Replica> =
        opening.parts.into_iter().map(|(log, parts)| (log, replica(parts, &mut next_run))).collect();
    let mut report = opening.report;
    (report.logs, report.fences) = (logs.len() as u64, fences.len() as u64);
    Ok(Opened { fences, logs, writers, next_file: opening.next_file, report })
}

/// Every disk has all fences, for one is answered when all have it: any copy that reads back will do.
fn read_fences(disks: &[Arc<dyn Disk>]) -> Result<BTreeMap<u32, u32>, OpenError> {
    let (mut fences, mut found, mut unreadable) = (BTreeMap::new(), false, None);
    let path = format!("{FOLDER}/fences");
    for disk in disks {
        let bytes = match disk.read_all(&path, 16 + 8 * FENCES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(OpenError::Disk { path, error }),
        };
        match Fences::parse(&bytes) {
            Ok(read) => {
                found = true;
                for (node, epoch) in read.entries {
                    let highest = fences.entry(node).or_insert(epoch);
                    *highest = epoch.max(*highest);
                }
            }
            Err(error) => unreadable = Some(error.to_string()),
        }
    }
    match unreadable {
        Some(reason) if !found => Err(OpenError::Fences { path, reason }),
        _ => Ok(fences),
    }
}

/// A file without a hole, or what is behind a hole in it.
struct Found {
    part: FilePart,
    /// First block of the row that the file goes on.
    run_first: u64,
    /// A part of the same file in front of it does not read back. Files are given back whole, so that was not.
    is_behind_damage: bool,
}

enum Trouble {
    Disk(String, io::Error),
    Foreign(String),
}

struct Opening<'a> {
    config: &'a BackupConfig,
    parts: BTreeMap<LogId, Vec<Found>>,
    next_file: u64,
    report: OpenReport,
}

impl Opening<'_> {
    /// Looks through a disk. Returns its spares.
    fn disk(&mut self, disk: &dyn Disk, number: usize) -> Result<Vec<u64>, Trouble> {
        let of_folder = |error| Trouble::Disk(FOLDER.to_owned(), error);
        disk.create_dir_all(FOLDER).map_err(of_folder)?;
        let mut spares = Vec::new();
        for name in disk.list(FOLDER).map_err(of_folder)? {
            let sequence = |suffix| name.strip_suffix(suffix).and_then(|digits: &str| digits.parse::<u64>().ok());
            if let Some(sequence) = sequence(".replica") {
                self.next_file = self.next_file.max(sequence + 1);
                self.file(disk, number, sequence)?;
            } else if let Some(sequence) = sequence(".spare") {
                self.next_file = self.next_file.max(sequence + 1);
                spares.push(sequence);
            }
        }
        // What is there counts as synced, and so must its names: the process before may have been killed in between.
        disk.sync_dir(FOLDER).map_err(of_folder)?;
        Ok(spares)
    }

    fn file(&mut self, disk: &dyn Disk, number: usize, sequence: u64) -> Result<(), Trouble> {
        let name = path(sequence);
        let failed = |error| Trouble::Disk(name.clone(), error);
        let file = disk.open(&name, OpenMode::ReadWrite, false).map_err(failed)?;
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        file.read_at(0, &mut page).map_err(failed)?;
        let header = match ReplicaHeader::parse(&page) {
            Ok(header) if header.file == sequence => header,
            // A name without a header of its own: no block was answered before its file had both.
            Ok(_) => return disk.remove(&name).map_err(failed),
            Err(_) if page.iter().all(|byte| *byte == 0) => return disk.remove(&name).map_err(failed),
            Err(error) => {
                self.report.damage.push(format!("{name}: {error}; nobody knows whose blocks are in it"));
                return disk.rename(&name, &format!("{name}.damaged")).map_err(failed);
            }
        };
        if header.cluster != self.config.cluster || header.backup != self.config.node {
            return Err(Trouble::Foreign(name));
        }
        let mut source = Source::open(disk, sequence, header.key, header.log.vlog).map_err(failed)?;
        let part = FilePart {
            disk: number,
            sequence,
            key: header.key,
            start: PAGE_BYTES as u64,
            first: header.first_block,
            last: header.first_block - 1,
            bytes: source.bytes,
            footer: None,
            open: false,
        };
        self.report.files += 1;
        // What a killed process has written counts from here on: it is said to be synced.
        file.sync_data().map_err(failed)?;
        if let Some((at, footer)) = source.footer().map_err(failed)? {
            self.report.blocks += (footer.last_block + 1).saturating_sub(part.first);
            let part = FilePart { last: footer.last_block, footer: Some(at), ..part };
            let found = Found { part, run_first: header.run_first, is_behind_damage: false };
            self.parts.entry(header.log).or_default().push(found);
            return Ok(());
        }
        self.report.scanned += 1;
        let mut scan = Scan { end: part.start, index: FileIndex::default(), parts: vec![part], damage: Vec::new() };
        scan.blocks(&mut source).map_err(failed)?;
        self.report.blocks += scan.parts.iter().map(|part| part.last + 1 - part.first).sum::<u64>();
        if let [part] = &mut scan.parts[..]
            && scan.damage.is_empty()
        {
            if part.last < part.first {
                drop((source, file));
                self.report.files -= 1;
                return disk.remove(&name).map_err(failed);
            }
            // What is torn behind the last block is written over.
            let closed = write_footer(&*file, header.log, sequence, header.key, part.last, scan.end, &scan.index);
            let closed = closed.and_then(|closed| file.sync_data().map(|()| closed)).map_err(failed)?;
            (part.footer, part.bytes) = (Some(closed.footer), closed.bytes);
        }
        self.report.damage.extend(scan.damage);
        let parts = scan.parts.into_iter().zip(0..).filter(|(part, _)| part.first <= part.last);
        let found = parts.map(|(part, at)| Found { part, run_first: header.run_first, is_behind_damage: at > 0 });
        self.parts.entry(header.log).or_default().extend(found);
        Ok(())
    }
}

/// A file without a footer, block by block.
struct Scan {
    parts: Vec<FilePart>,
    index: FileIndex,
    end: u64,
    damage: Vec<String>,
}

impl Scan {
    /// A block that does not read back is what a loss of power has torn, unless another one follows: then it was there, and the
    /// disk has changed it. What follows is a part of its own, for nobody may be told that there is no hole.
    fn blocks(&mut self, source: &mut Source) -> io::Result<()> {
        while self.end < source.bytes {
            let reason = match source.block(self.end)? {
                Ok(header) => {
                    let Some(part) = self.parts.last_mut() else { return Ok(()) };
                    if header.block != part.last + 1 {
                        format!("block {} follows block {}", header.block, part.last)
                    } else {
                        part.last = header.block;
                        self.end += header.total_bytes() as u64;
                        self.index.note_block(source.chunks());
                        continue;
                    }
                }
                Err(reason) => reason,
            };
            let Some((at, header)) = source.search(self.end + PAGE_BYTES as u64)? else { return Ok(()) };
            self.damage.push(format!("{} is damaged at byte {}: {reason}; it is kept", source.path, self.end));
            let Some(part) = self.parts.last().copied() else { return Ok(()) };
            self.parts.push(FilePart { start: at, first: header.block, last: header.block - 1, ..part });
            self.end = at;
        }
        Ok(())
    }
}

/// Puts the parts of a log, each with the first block of its row, into runs without holes.
fn replica(mut parts: Vec<Found>, next_run: &mut u64) -> Replica {
    parts.sort_by_key(|found| (found.part.first, found.part.last));
    let mut replica = Replica::default();
    for Found { part, run_first, is_behind_damage } in parts {
        if let Some(run) = replica.runs.last_mut().filter(|run| part.first <= run.taken + 1) {
            // A file whose sync failed may have blocks that were written again to the next.
            let through = run.taken.max(part.last);
            (run.taken, run.written, run.synced, run.answered) = (through, through, through, through);
            run.disk = part.disk;
            run.files.push_back(part);
            continue;
        }
        // Files are given back from the front of a row on: behind a hole within a row something is missing that should not.
        let has_hole = is_behind_damage || replica.runs.iter().any(|run| run_first <= run.taken);
        *next_run += 1;
        let (through, id) = (part.last, *next_run);
        replica.runs.push(Run {
            first: part.first,
            origin: if has_hole { part.first } else { run_first },
            doubtful: has_hole,
            taken: through,
            written: through,
            synced: through,
            answered: through,
            to_sync: false,
            disk: part.disk,
            id,
            files: VecDeque::from([part]),
        });
    }
    replica
}
