//! A start: what a backup has, from what its disks have. On the starting thread.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use kera_env::{
    AlignedBuffer, Clock, Disk, DiskFile, OpenMode, Random, is_unreadable, read_readable, read_twice, replace_twice,
};
use kera_format::vlog::{BlockHeader, PAGE_BYTES};
use kera_format::vlog_replica::{FENCES_MAX, Fences, Footer, LogId, POWER_LOSSES_MAX, PowerLosses, ReplicaHeader};

use crate::backup::BackupConfig;
use crate::disks::FOLDER;
use crate::error::OpenError;
use crate::files::{ASIDE, DiskWriter, FilesConfig, UNSYNCED_MAX, first_page, path, write_footer};
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
    /// Of those, the ones whose blocks were read: without a footer, or perhaps not synced, before a loss of power or by a sync that failed.
    pub scanned: u64,
    /// Blocks that are there.
    pub blocks: u64,
    /// Nodes that are fenced.
    pub fences: u64,
    /// Rows of blocks that may have gone on before a loss of power took what was not synced.
    pub uncertain: u64,
    /// Blocks that were there and are not any more, a sentence each: their owners must be told that they have a copy less. The
    /// files are kept.
    pub damage: Vec<String>,
}

pub(crate) struct Opened {
    pub(crate) fences: BTreeMap<u32, u32>,
    pub(crate) logs: BTreeMap<LogId, Replica>,
    /// Of files of which nobody knows whose they are: the virtual log, if that is known, and the last block that may be in them.
    pub(crate) headless: Vec<(Option<u32>, u64)>,
    pub(crate) writers: Vec<DiskWriter>,
    pub(crate) next_file: u64,
    pub(crate) report: OpenReport,
}

pub(crate) fn open(
    config: &BackupConfig,
    disks: &[Arc<dyn Disk>],
    clock: &Arc<dyn Clock>,
    random: &Arc<dyn Random>,
) -> Result<Opened, OpenError> {
    if disks.is_empty() {
        return Err(OpenError::NoDisk);
    }
    let power = Power::read(config.boot_id, disks)?;
    let (parts, headless, report) = (BTreeMap::new(), Vec::new(), OpenReport::default());
    let mut opening = Opening { config, power, parts, headless, next_file: 1, report };
    let (mut spares, mut files) = (Vec::new(), Vec::new());
    let of_opening = |error| match error {
        Trouble::Disk(path, error) => OpenError::Disk { path, error },
        Trouble::Foreign(path) => OpenError::Foreign { path },
    };
    for (disk, number) in disks.iter().zip(0..) {
        spares.push(opening.disk(&**disk, number, &mut files).map_err(of_opening)?);
    }
    for (file, behind) in last_of_rows(files) {
        opening.file(&*disks[file.disk], file, &behind).map_err(of_opening)?;
    }
    // What is there counts as synced, and so must its names: the process before may have been killed in between.
    for disk in disks {
        disk.sync_dir(FOLDER).map_err(|error| OpenError::Disk { path: FOLDER.to_owned(), error })?;
    }
    let fences = read_fences(disks)?;
    let files = FilesConfig {
        cluster: config.cluster,
        node: config.node,
        file_bytes: config.file_bytes,
        spares: config.spares,
    };
    let writer = |(disk, spares): (&Arc<dyn Disk>, Vec<u64>)| {
        DiskWriter::new(
            files.clone(),
            Arc::clone(disk),
            (clock.clone(), config.processors.clone()),
            random.clone(),
            spares,
        )
    };
    let writers = disks.iter().zip(spares).map(writer).collect();
    let mut next_run = 0;
    let Opening { power, parts, headless, next_file, mut report, .. } = opening;
    let made = |(log, parts): (LogId, Vec<Found>)| {
        let perhaps: Vec<&Headless> = headless.iter().filter(|of| of.may_be_of(log)).collect();
        (log, replica(parts, |row_synced, last| power.lost_behind(log, row_synced, last), &perhaps, &mut next_run))
    };
    let logs: BTreeMap<LogId, Replica> = parts.into_iter().map(made).collect();
    let rows = logs.iter().flat_map(|(log, replica)| replica.runs.iter().map(|run| (*log, run)));
    let ends: Vec<(LogId, u64)> = rows.filter_map(|(log, run)| Some((log, run.lost_behind?))).collect();
    (report.logs, report.fences, report.uncertain) = (logs.len() as u64, fences.len() as u64, ends.len() as u64);
    power.write(disks, ends)?;
    let headless = headless.iter().map(|of| (of.vlog, of.last)).collect();
    Ok(Opened { fences, logs, headless, writers, next_file, report })
}

/// The first disk has all fences, in a file or its copy, one of which has to read back if there is one. Builds before this one wrote them to all disks: what others
/// still have counts as well, and has to read back if the first one has none.
fn read_fences(disks: &[Arc<dyn Disk>]) -> Result<BTreeMap<u32, u32>, OpenError> {
    let mut fences = BTreeMap::new();
    let path = format!("{FOLDER}/fences");
    let failed = |error| OpenError::Disk { path: path.clone(), error };
    let (mut first_changed, mut first_has) = (false, false);
    for (number, disk) in disks.iter().enumerate() {
        let (mut found, mut unreadable) = (false, None);
        let both = match read_twice(&**disk, &path, 16 + 8 * FENCES_MAX) {
            Ok(both) => both,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if first_has => {
                tracing::warn!(path, disk = number, %error, "older fences cannot be read; the first disk has all of them");
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        first_changed |= number == 0 && !both.are_same();
        for bytes in [both.file, both.copy].iter().filter(|bytes| !bytes.is_empty()) {
            match Fences::parse(bytes) {
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
        if let Some(reason) = unreadable.filter(|_| !first_has && !found) {
            return Err(OpenError::Fences { path, reason });
        }
        first_has |= number == 0 && found;
    }
    let entries = fences.iter().map(|(node, epoch)| (*node, *epoch)).collect();
    if first_changed && let Err(error) = replace_twice(&*disks[0], &path, &Fences { entries }.encode()) {
        tracing::warn!(path, %error, "the fences are there once; the next ones are written twice");
    }
    Ok(fences)
}

/// What is known of losses of power.
struct Power {
    /// The machine's run now; nothing if the power is never lost.
    boot_id: Option<[u8; 16]>,
    /// It went since the files were written.
    was_lost: bool,
    /// It went before, in an earlier run of the process: what may have been behind these blocks is gone since.
    ends: Vec<(LogId, u64)>,
    /// Disks that do not say so yet.
    unaware: bool,
}

impl Power {
    fn path() -> String {
        format!("{FOLDER}/power")
    }

    fn read(boot_id: Option<[u8; 16]>, disks: &[Arc<dyn Disk>]) -> Result<Power, OpenError> {
        let mut power = Power { boot_id, was_lost: false, ends: Vec::new(), unaware: false };
        let Some(boot_id) = boot_id else { return Ok(power) };
        for disk in disks {
            let path = Power::path();
            let known = match disk.read_all(&path, PowerLosses::bytes(POWER_LOSSES_MAX)) {
                Ok(bytes) => PowerLosses::parse(&bytes).ok(),
                Err(error) if error.kind() == io::ErrorKind::NotFound || is_unreadable(&error) => None,
                Err(error) => return Err(OpenError::Disk { path, error }),
            };
            match known.filter(|known| known.boot_id == boot_id && boot_id != [0; 16]) {
                Some(known) => power.ends.extend(known.ends),
                None => {
                    // A disk without files was put in since.
                    power.was_lost |= disk.list(FOLDER).is_ok_and(|names| !names.is_empty());
                    power.unaware = true;
                }
            }
        }
        Ok(power)
    }

    /// The last block of a row if more may have been there.
    fn lost_behind(&self, log: LogId, row_synced: bool, last: u64) -> Option<u64> {
        let is_lost = !row_synced && (self.was_lost || self.ends.contains(&(log, last)));
        is_lost.then_some(last)
    }

    /// Has the disks say what a start has found, before anybody is told anything.
    fn write(&self, disks: &[Arc<dyn Disk>], ends: Vec<(LogId, u64)>) -> Result<(), OpenError> {
        let Some(boot_id) = self.boot_id.filter(|_| self.unaware) else { return Ok(()) };
        let (bytes, path) = (PowerLosses { boot_id, ends }.encode(), Power::path());
        for disk in disks {
            disk.replace(&path, &bytes).map_err(|error| OpenError::Disk { path: path.clone(), error })?;
        }
        Ok(())
    }
}

/// A file whose header does not read back, nor a copy of it: its blocks say which virtual log they are of, but not of which node. Or one that cannot even be opened, since the disk
/// has lost what it knew of the file: any blocks may be in it.
struct Headless {
    /// `None`: of any.
    vlog: Option<u32>,
    sequence: u64,
    first: u64,
    last: u64,
}

impl Headless {
    /// One that could be opened for its header, and then could not be any more.
    fn of(header: &ReplicaHeader, sequence: u64) -> Headless {
        Headless { vlog: Some(header.log.vlog), sequence, first: header.first_block, last: u64::MAX }
    }

    fn may_be_of(&self, log: LogId) -> bool {
        self.vlog.is_none_or(|vlog| vlog == log.vlog)
    }
}

/// A file with its header.
struct Headed {
    disk: usize,
    sequence: u64,
    header: ReplicaHeader,
}

/// What of its row is behind a file.
struct Behind {
    /// Only a few files: a loss of power may have taken something of this one although it has a footer.
    is_last: bool,
    /// The first block of the next one, if there is one.
    next_first: Option<u64>,
}

/// What of its row is behind each file, those that were written first in front.
fn last_of_rows(mut files: Vec<Headed>) -> Vec<(Headed, Behind)> {
    let mut rows: BTreeMap<(LogId, u64), (usize, Option<u64>)> = BTreeMap::new();
    files.sort_by_key(|file| std::cmp::Reverse(file.sequence));
    let mut found: Vec<(Headed, Behind)> = Vec::with_capacity(files.len());
    for file in files {
        let (count, next_first) = rows.entry((file.header.log, file.header.run_first)).or_default();
        *count += 1;
        let next_first = next_first.replace(file.header.first_block);
        found.push((file, Behind { is_last: *count <= UNSYNCED_MAX + 2, next_first }));
    }
    found.reverse();
    found
}

/// A file without a hole, or what is behind a hole in it.
struct Found {
    part: FilePart,
    /// Its blocks are synced before they are answered.
    synced: bool,
    /// First block of the row that the file goes on.
    run_first: u64,
    /// The last block that was begun behind it and does not read back; zero: none.
    begun: u64,
    /// A part of the same file in front of it does not read back. Files are given back whole, so that was not.
    is_behind_damage: bool,
}

/// The header of a file whose first one does not read back, as it is in its first page once more, and in that of its mark.
fn copy_of_header(file: &dyn DiskFile, first: &[u8], sequence: u64) -> io::Result<Option<ReplicaHeader>> {
    let copy_in = |page: &[u8]| ReplicaHeader::parse_copy(page).ok().filter(|header| header.file == sequence);
    let (in_first, bytes) = (copy_in(first), file.len()?);
    if in_first.is_some() || bytes < PAGE_BYTES as u64 {
        return Ok(in_first);
    }
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    let read = read_readable(file, bytes - PAGE_BYTES as u64, &mut page, &mut |_| {})?;
    Ok(copy_in(&page[..read]))
}

/// The header of a file of which the page cache alone has it: a sync that failed has not written it, or the disk has lost the page since. It is written once more, so that what is behind it can be found
/// without power in between; whether that went well. An error: nobody could look.
fn header_from_cache(
    disk: &dyn Disk,
    file: &dyn DiskFile,
    sequence: u64,
) -> io::Result<Option<(ReplicaHeader, io::Result<()>)>> {
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    disk.open(&path(sequence), OpenMode::Read, false)?.read_at(0, &mut page)?;
    let header = ReplicaHeader::parse(&page).ok().filter(|header| header.file == sequence);
    Ok(header.map(|header| (header, file.write_at(0, &page).and_then(|()| file.sync_data()))))
}

/// A file, and its blocks. In a row that is synced before it is answered those count that are on the disk: what a sync that failed has not written
/// is in the page cache still, the next sync says nothing of it, and nobody was answered for it.
fn open_both(
    disk: &dyn Disk,
    name: &str,
    sequence: u64,
    header: &ReplicaHeader,
) -> io::Result<(Arc<dyn DiskFile>, Source)> {
    let file = disk.open(name, OpenMode::ReadWrite, false)?;
    let open = if header.synced { Source::open_direct } else { Source::open };
    Ok((file, open(disk, sequence, header.key, header.log.vlog)?))
}

enum Trouble {
    Disk(String, io::Error),
    Foreign(String),
}

struct Opening<'a> {
    config: &'a BackupConfig,
    power: Power,
    parts: BTreeMap<LogId, Vec<Found>>,
    headless: Vec<Headless>,
    next_file: u64,
    report: OpenReport,
}

impl Opening<'_> {
    /// Looks through a disk, and at the headers of its files. Returns its spares.
    fn disk(&mut self, disk: &dyn Disk, number: usize, files: &mut Vec<Headed>) -> Result<Vec<u64>, Trouble> {
        let of_folder = |error| Trouble::Disk(FOLDER.to_owned(), error);
        disk.create_dir_all(FOLDER).map_err(of_folder)?;
        let (mut spares, aside) = (Vec::new(), format!(".replica{ASIDE}"));
        for name in disk.list(FOLDER).map_err(of_folder)? {
            let sequence = |suffix: &str| name.strip_suffix(suffix).and_then(|digits: &str| digits.parse::<u64>().ok());
            if let Some(sequence) = sequence(".replica") {
                self.next_file = self.next_file.max(sequence + 1);
                files.extend(self.header(disk, sequence)?.map(|header| Headed { disk: number, sequence, header }));
            } else if let Some(sequence) = sequence(".replica.damaged") {
                self.next_file = self.next_file.max(sequence + 1);
                self.headless(disk, &name, sequence)?;
            } else if let Some(sequence) = sequence(&aside) {
                // It may get its name again.
                self.next_file = self.next_file.max(sequence + 1);
            } else if let Some(sequence) = sequence(".spare") {
                self.next_file = self.next_file.max(sequence + 1);
                spares.push(sequence);
            }
        }
        Ok(spares)
    }

    /// The header of a file that has one, on its disk: it is read past the page cache.
    fn header(&mut self, disk: &dyn Disk, sequence: u64) -> Result<Option<ReplicaHeader>, Trouble> {
        let name = path(sequence);
        let failed = |error| Trouble::Disk(name.clone(), error);
        let file = match disk.open(&name, OpenMode::ReadWrite, true) {
            Err(error) if is_unreadable(&error) => {
                self.unopened(&name, Headless { vlog: None, sequence, first: 0, last: u64::MAX }, &error);
                return Ok(None);
            }
            opened => opened.map_err(failed)?,
        };
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = file.read_at(0, &mut page);
        let found = match &read {
            Ok(_) => ReplicaHeader::parse(&page).map_err(|error| error.to_string()),
            Err(error) if is_unreadable(error) => Err(error.to_string()),
            Err(_) => return read.map(|_| None).map_err(failed),
        };
        let found = match found {
            Ok(header) if header.file == sequence => Ok(header),
            found => match header_from_cache(disk, &*file, sequence) {
                Ok(Some((header, written))) => {
                    // All that is in the file can be read until then.
                    let alone =
                        |error| format!("{name}: its header is in memory alone, and goes with the power: {error}");
                    self.report.damage.extend(written.err().map(alone));
                    Ok(header)
                }
                Ok(None) => found,
                // A page that cannot be read past the cache can often not be read through it either.
                Err(_) if read.is_err() => found,
                Err(error) => return Err(failed(error)),
            },
        };
        let header = match found {
            Ok(header) if header.file == sequence => header,
            // A name without a header of its own: no block was answered before its file had both.
            Ok(_) => return disk.remove(&name).map(|()| None).map_err(failed),
            Err(_) if read.is_ok() && page.iter().all(|byte| *byte == 0) => {
                return disk.remove(&name).map(|()| None).map_err(failed);
            }
            Err(error) => match copy_of_header(&*file, &page, sequence).map_err(failed)? {
                Some(header) => {
                    // What cannot be written is found by whoever reads it next.
                    let _ = file.write_at(0, &first_page(&header)).and_then(|()| file.sync_data());
                    header
                }
                None => {
                    self.report.damage.push(format!("{name}: {error}; nobody knows whose blocks are in it"));
                    let damaged = format!("{name}.damaged");
                    disk.rename(&name, &damaged).map_err(failed)?;
                    let of_file = damaged.strip_prefix(FOLDER).unwrap_or(&damaged).trim_start_matches('/');
                    return self.headless(disk, of_file, sequence).map(|()| None);
                }
            },
        };
        if header.cluster != self.config.cluster || header.backup != self.config.node {
            return Err(Trouble::Foreign(name));
        }
        Ok(Some(header))
    }

    /// A file cannot be opened, since its disk has lost what it knew of it. It counts as lost with all that is in it, and keeps its name: what cannot be opened can often not be renamed either,
    /// and what was not for a moment only comes back with the next start. Until then nobody is told that a log ends for sure where the file may go on.
    fn unopened(&mut self, name: &str, of: Headless, error: &io::Error) {
        self.report.damage.push(format!("{name} cannot be opened: {error}; what is in it is missing"));
        self.headless.push(of);
    }

    /// Which blocks are in a file without a header: those that are missing of a log may be these, and were not given back.
    fn headless(&mut self, disk: &dyn Disk, name: &str, sequence: u64) -> Result<(), Trouble> {
        let name = format!("{FOLDER}/{name}");
        let failed = |error| Trouble::Disk(name.clone(), error);
        let file = match disk.open(&name, OpenMode::Read, false) {
            Err(error) if is_unreadable(&error) => {
                self.unopened(&name, Headless { vlog: None, sequence, first: 0, last: u64::MAX }, &error);
                return Ok(());
            }
            opened => opened.map_err(failed)?,
        };
        let (mut page, bytes) = (AlignedBuffer::zeroed(PAGE_BYTES), file.len().map_err(failed)?);
        let mut found: Option<Headless> = None;
        for at in (0..bytes).step_by(PAGE_BYTES) {
            let read = read_readable(&*file, at, &mut page, &mut |_| {}).map_err(failed)?;
            let Ok(header) = BlockHeader::parse(&page[..read]) else { continue };
            if header.file == sequence {
                let (vlog, block) = (header.vlog, header.block);
                let known = found.get_or_insert(Headless { vlog: Some(vlog), sequence, first: block, last: block });
                (known.first, known.last) = (known.first.min(header.block), known.last.max(header.block));
            }
        }
        self.headless.extend(found);
        Ok(())
    }

    /// Whether all blocks are there that a footer tells of. The power may have taken some. And of a row that is synced before it is answered a file
    /// gets its footer before its sync, which may fail: then either no other file follows, or one with the same blocks.
    fn believes(&self, header: &ReplicaHeader, footer: &Footer, behind: &Behind) -> bool {
        let was_synced = || behind.next_first.is_some_and(|next| footer.last_block < next);
        !(behind.is_last && self.power.was_lost) && (!header.synced || was_synced())
    }

    fn file(
        &mut self,
        disk: &dyn Disk,
        Headed { disk: number, sequence, header }: Headed,
        behind: &Behind,
    ) -> Result<(), Trouble> {
        let name = path(sequence);
        let failed = |error| Trouble::Disk(name.clone(), error);
        let (file, mut source) = match open_both(disk, &name, sequence, &header) {
            Err(error) if is_unreadable(&error) => {
                self.unopened(&name, Headless::of(&header, sequence), &error);
                return Ok(());
            }
            opened => opened.map_err(failed)?,
        };
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
            anchored: true,
        };
        self.report.files += 1;
        // What a killed process has written counts from here on: it is said to be synced.
        file.sync_data().map_err(failed)?;
        let footer = source.footer().map_err(failed)?;
        if let Some((at, footer)) = footer.as_ref().filter(|(_, footer)| self.believes(&header, footer, behind)) {
            self.report.blocks += (footer.last_block + 1).saturating_sub(part.first);
            let part = FilePart { last: footer.last_block, footer: Some(*at), ..part };
            let (synced, run_first) = (header.synced, header.run_first);
            let found = Found { part, synced, run_first, begun: 0, is_behind_damage: false };
            self.parts.entry(header.log).or_default().push(found);
            return Ok(());
        }
        let told = footer.map(|(at, footer)| (at, footer.last_block));
        let mut scan = self.scan(&mut source, part, (header.synced, told.map(|(_, last)| last))).map_err(failed)?;
        // A row may be known by an empty file alone, of which the power has taken what was answered, or given back.
        let is_needed = self.power.was_lost && (!header.synced || part.first > header.run_first) || scan.begun > 0;
        if scan.is_empty() && !is_needed {
            drop((source, file));
            self.report.files -= 1;
            return disk.remove(&name).map_err(failed);
        }
        scan.close(&*file, &header, told, behind).map_err(failed)?;
        self.report.damage.append(&mut scan.damage);
        self.parts.entry(header.log).or_default().extend(scan.found(&header));
        Ok(())
    }

    /// What is in a file without a footer, or one that is not believed. `last`: the last block that its footer tells of.
    fn scan(&mut self, source: &mut Source, part: FilePart, (synced, last): (bool, Option<u64>)) -> io::Result<Scan> {
        self.report.scanned += 1;
        let mut scan = Scan::of(part);
        scan.blocks(source)?;
        scan.begun(source, last)?;
        if self.power.was_lost && synced {
            scan.cut_torn();
        }
        self.report.blocks += scan.parts.iter().map(|part| part.last + 1 - part.first).sum::<u64>();
        Ok(scan)
    }
}

/// A file without a footer, block by block.
struct Scan {
    parts: Vec<FilePart>,
    /// Of each part the highest block that was synced when one in it was written.
    synced: Vec<u64>,
    /// What is known of the chunks in the first part, and where that ends in the file.
    index: FileIndex,
    first_end: u64,
    end: u64,
    /// The last block that was begun, whether or not it reads back; zero: none that does not.
    begun: u64,
    /// It can be seen where the last one ends, not from a footer alone.
    is_begun: bool,
    /// Blocks that read back were taken for torn.
    is_cut: bool,
    damage: Vec<String>,
}

impl Scan {
    fn of(part: FilePart) -> Scan {
        let (parts, synced) = (vec![part], vec![0]);
        let (index, damage) = (FileIndex::default(), Vec::new());
        Scan {
            parts,
            synced,
            index,
            first_end: part.start,
            end: part.start,
            begun: 0,
            is_begun: false,
            is_cut: false,
            damage,
        }
    }

    /// Looks for a block that was begun behind the last one. Torn by a loss of power it was answered to nobody; changed by the disk it was, and looks the
    /// same. `last`: what the file's footer says, of one that is read all the same.
    fn begun(&mut self, source: &mut Source, last: Option<u64>) -> io::Result<()> {
        let here = self.parts.last().map_or(0, |part| part.last);
        // Nothing was begun where a file was closed, be it that its footer does not read back.
        if self.end < source.bytes && source.closed_at()? != Some(self.end) && source.was_begun(self.end)? {
            (self.begun, self.is_begun) = (here + 1, true);
        }
        self.begun = self.begun.max(last.filter(|last| *last > here).unwrap_or(0));
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.damage.is_empty() && matches!(&self.parts[..], [part] if !part.has_blocks())
    }

    /// Leaves the file such that the next start finds what this one has found. `told`: where its footer is, and the last block that this tells of.
    fn close(
        &mut self,
        file: &dyn DiskFile,
        header: &ReplicaHeader,
        told: Option<(u64, u64)>,
        behind: &Behind,
    ) -> io::Result<()> {
        // Of a block of which nothing is left the footer alone says that it was begun. While no other file of the row follows no start believes it, and it stays.
        let last = self.parts.last().map_or(0, |part| part.last);
        let is_alone = header.synced && behind.next_first.is_none() && !self.is_cut;
        if is_alone && told.is_some_and(|(_, told)| told > last) {
            return Ok(());
        }
        // What is left of an earlier use of the space behind the last block is written over, but not a block that was begun: the next start is to know of it. It must
        // find no others that follow and do read back, though. Where a footer tells of more than there is, another one says how far it goes.
        if let [part] = &mut self.parts[..]
            && self.damage.is_empty()
            && (!self.is_begun || self.is_cut)
        {
            if told == Some((self.first_end, part.last)) {
                part.footer = Some(self.first_end);
                return Ok(());
            }
            let closed = write_footer(file, header, part.last, self.first_end, &self.index)?;
            file.sync_data()?;
            (part.footer, part.bytes) = (Some(closed.footer), closed.bytes);
        } else if let Some((at, _)) = told {
            // The next start would believe it: all of these blocks would be there again, and the log would end behind them for certain.
            file.set_len(at)?;
            file.sync_data()?;
            self.parts.iter_mut().for_each(|part| part.bytes = at);
        }
        Ok(())
    }

    /// Its parts. In front of damage an empty one stays: its blocks were there, and are not those that were given back.
    fn found(self, header: &ReplicaHeader) -> impl Iterator<Item = Found> {
        let (synced, run_first, begun) = (header.synced, header.run_first, self.begun);
        let last = self.parts.len().saturating_sub(1);
        let parts = self.parts.into_iter().zip(0_usize..).filter(|(part, at)| part.first <= part.last || *at == 0);
        parts.map(move |(part, at)| Found {
            part,
            synced,
            run_first,
            begun: if at == last { begun } else { 0 },
            is_behind_damage: at > 0,
        })
    }

    /// A block that does not read back, and behind which all were written before it was synced, was torn by the loss of power: nobody
    /// was answered for it, nor for those behind it. They go.
    fn cut_torn(&mut self) {
        let is_torn = |at: &usize| self.synced[*at..].iter().all(|synced| *synced <= self.parts[*at - 1].last);
        if let Some(at) = (1..self.parts.len()).find(is_torn) {
            let torn = self.parts.drain(at..).map(|part| part.last).max();
            (self.begun, self.is_cut) = (self.begun.max(torn.unwrap_or(0)), true);
            self.damage.truncate(at - 1);
        }
    }

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
                        if self.parts.len() == 1 {
                            self.first_end = self.end;
                            self.index.note_block(source.chunks());
                        }
                        // One that does not say so was written by who did not know: all before it may have been synced.
                        let unsynced = if header.unsynced == 0 { 1 } else { u64::from(header.unsynced) };
                        if let Some(synced) = self.synced.last_mut() {
                            *synced = header.block.saturating_sub(unsynced).max(*synced);
                        }
                        continue;
                    }
                }
                Err(reason) => reason,
            };
            let Some((at, header)) = source.search(self.end + PAGE_BYTES as u64)? else { return Ok(()) };
            self.damage.push(format!("{} is damaged at byte {}: {reason}; it is kept", source.path, self.end));
            let Some(part) = self.parts.last().copied() else { return Ok(()) };
            self.parts.push(FilePart { start: at, first: header.block, last: header.block - 1, ..part });
            self.synced.push(0);
            self.end = at;
        }
        Ok(())
    }
}

/// Puts the parts of a log, each with the first block of its row, into runs without holes. `lost_behind`: the last block of a row, if more
/// may have been there, by whether the row's blocks are synced.
///
/// `headless`: files without headers that may be this log's.
fn replica(
    mut parts: Vec<Found>,
    lost_behind: impl Fn(bool, u64) -> Option<u64>,
    headless: &[&Headless],
    next_run: &mut u64,
) -> Replica {
    parts.sort_by_key(|found| (found.part.first, found.part.last));
    let mut replica = Replica::default();
    for Found { part, synced, run_first, begun, is_behind_damage } in parts {
        if let Some(run) = replica.runs.last_mut().filter(|run| part.first <= run.taken + 1) {
            // A file whose sync failed may have blocks that were written again to the next.
            let through = run.taken.max(part.last);
            (run.taken, run.written, run.synced, run.answered) = (through, through, through, through);
            run.disk = part.disk;
            run.lost_behind = lost_behind(synced, through);
            run.begun = begun;
            run.files.push_back(part);
            continue;
        }
        // Files are given back from the front of a row on: behind a hole within a row something is missing that should not.
        let is_missing = |of: &&Headless| run_first.max(of.first) < part.first && run_first <= of.last;
        let has_hole = is_behind_damage
            || replica.runs.iter().any(|run| run_first <= run.taken.max(run.first))
            || headless.iter().any(is_missing);
        *next_run += 1;
        let (through, id) = (part.last, *next_run);
        replica.runs.push(Run {
            first: part.first,
            origin: if has_hole { part.first } else { run_first },
            doubtful: has_hole,
            lost_behind: lost_behind(synced, through),
            begun,
            taken: through,
            taken_back: 0,
            written: through,
            synced: through,
            answered: through,
            to_sync: false,
            disk: part.disk,
            id,
            files: VecDeque::from([part]),
            given_back_on: None,
            refused: VecDeque::new(),
        });
    }
    // Blocks are written in their order: what is in front of its newest file it has told of there.
    let newest = replica.runs.iter().flat_map(|run| &run.files).map(|part| part.sequence).max().unwrap_or(0);
    replica.perhaps_through = headless.iter().filter(|of| of.sequence > newest).map(|of| of.last).max().unwrap_or(0);
    replica
}
