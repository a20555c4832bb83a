//! What a start finds on disk: the containers of every disk, and in them the segments.
//!
//! Of a finished container only the first page and the footer are read; of one without a footer the indexes of its
//! batches, one after the other, and then the images of the last batch, because only those can be torn
//! ([`kera_format::container`]). So a start costs time by the number of segments, not of bytes.
//!
//! What a disk has changed of all this costs a start time and nothing else, as long as it is one place: the footer and the indexes say the same, the header says
//! what each of them repeats, and of a batch without an index, in a container without a footer, the images say what the index did.

mod last;
mod look;
mod marks;
mod notes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use kera_env::{AlignedBuffer, Disk, DiskFile, OpenMode, is_unreadable, read_readable};
use kera_format::container::{
    BatchHeader, CONTAINER_BYTES_MAX, CONTAINER_HEADER_BYTES, CONTAINER_MARKS_MAX, ContainerEntry, ContainerHeader,
    PAGE_BYTES, ReleasedMap, Trailer, index_bytes, pages, verify_image,
};
use kera_format::extent::ExtentMarker;
use kera_format::segment::{SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, SegmentHeader, SegmentProgress, SegmentState};
use kera_format::{LaneId, SegmentId, StreamId, StreamletId};

pub(crate) use self::look::Looked;
pub(crate) use self::notes::{KNOWN, LOST, SYNCED, note};
use self::notes::{Noted, noted, write_notes};
use super::StoreError;
use super::container::{
    CONTAINER_DIR, Container, DiskContainers, Slot, container_number, container_path, give_back_ahead, write_footer,
};
use super::persist::BATCH_MARKS_MAX;
use super::through::location;
use crate::producers::{ProducerMark, marks_of};
use crate::storage::{Location, StoredSegment};

/// What was found on all disks.
#[derive(Debug, Default)]
pub struct StoreRecovery {
    /// Each segment once, in no order.
    pub segments: Vec<StoredSegment>,
    /// Containers that were found.
    pub containers: u64,
    /// Of those, the ones without a footer: writing them was cut off.
    pub unfinished: u64,
    /// Lanes of which this node has let go of what was in front of an ordinal: for [`Log::let_go_before`](crate::Log::let_go_before).
    pub let_go: Vec<((StreamId, StreamletId, LaneId), u64)>,
    /// What cannot be read, so that nobody can tell which segments were in it, but for what is [known](super::DiskStore::others_have).
    pub lacks: Vec<Lack>,
    /// What is not as it should be, a sentence each; the start goes on without it.
    pub problems: Vec<String>,
}

/// A place in a container that cannot be read and tells of segments.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lack {
    /// The disk, by its place in the list that the store was opened with.
    pub disk: u16,
    /// The container.
    pub container: u64,
    /// Where in it, in bytes; 0: all of it.
    pub at: u64,
}

/// The segments in an arena that has outlived its process, if it has: nothing was lost then of what was written, synced or not.
pub(crate) type InMemory<'a> = Option<&'a HashSet<SegmentId>>;

/// What a start knows of what was synced before it.
#[derive(Clone, Copy)]
struct Before<'a> {
    in_memory: InMemory<'a>,
    /// An earlier start has synced a container up to there; zero: none has.
    synced_to: u64,
    /// Places of the disk of which others [know](KNOWN) that they could not be read.
    known: &'a BTreeSet<(u64, u64)>,
}

/// What recovery hands to the store beside [`StoreRecovery`].
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) recovery: StoreRecovery,
    /// Copies of segments that are there twice: their space is given back.
    pub(crate) duplicates: Vec<Location>,
    /// Copies that a kill has cut off, beside what they were to replace: of them too the space is given back.
    torn: Vec<Location>,
    /// Containers with a copy of which this start cannot say whether it was cut off.
    undecided: HashSet<(u16, u64)>,
    /// Places of segments of which it is not known who wrote them.
    unmarked: HashSet<(u16, u64, u64)>,
    /// What segments tell of who wrote them, so that it is not kept several times.
    told: marks::Told,
    /// The other copies of what is in those. Nobody reads them, and the next start asks again: they go when their segments do.
    pub(crate) others: HashMap<SegmentId, Vec<Location>>,
    /// Of each disk the containers without a footer, and up to where a start has synced them.
    synced: Vec<BTreeMap<u64, u64>>,
    /// What cannot be read may have the other copy of anything, and segments of which nothing else is left.
    pub(crate) lacks_some: bool,
    /// Segments that were being written through, and where.
    pub(crate) extents: HashMap<SegmentId, Location>,
    /// The next container's number.
    pub(crate) container_next: u64,
}

/// Reads what is on `disks`, in their order, and fills in their containers.
///
/// A container is done without only if its disk says that it has lost it ([`is_unreadable`]). Any other error may pass (no more files may be open, no memory is left, a
/// file system was mounted for reading alone): lanes that went on without what is in it would give ordinals of acknowledged records once more. It ends the start.
///
/// So does a container that is found twice. Numbers are given once in a node, and keys are random: both are the same only where two disks are one directory, or one is a
/// copy of the other. Every segment would have two places then, and the space of one of them be [given back](Found::duplicates): in one directory that of the other, too.
pub(crate) fn recover(node: [u8; 16], disks: &[&DiskContainers], in_memory: InMemory<'_>) -> Result<Found, StoreError> {
    let mut found = Found { container_next: 1, ..Found::default() };
    let (mut by_id, mut unsure, mut seen) = (ById::new(), Vec::new(), HashMap::new());
    for (number, disk) in disks.iter().enumerate() {
        let failed = |action, error| StoreError::Disk { path: disk.disk.root().to_owned(), action, error };
        disk.disk.create_dir_all(CONTAINER_DIR).map_err(|e| failed("make the directory of containers", e))?;
        let names = disk.disk.list(CONTAINER_DIR).map_err(|e| failed("list its containers", e))?;
        let containers: BTreeSet<u64> = names.iter().filter_map(|name| container_number(name)).collect();
        let of_notes = |error| failed("read what is noted of its containers", error);
        found.read_synced(&*disk.disk, &containers).map_err(of_notes)?;
        let known = noted(&*disk.disk, KNOWN).map_err(of_notes)?.places;
        for container in containers {
            found.container_next = found.container_next.max(container.saturating_add(1));
            let synced_to = found.synced[number].get(&container).copied().unwrap_or(0);
            let before = Before { in_memory, synced_to, known: &known };
            let scan = match Scan::of((number as u16, &*disk.disk), node, container, before, &mut found.recovery) {
                Ok(Some(scan)) => scan,
                Ok(None) => continue,
                Err(error) => {
                    let path = disk.disk.root().join(container_path(container));
                    if !is_unreadable(&error) {
                        return Err(StoreError::Container { path, error });
                    }
                    let problem = format!("{} cannot be read, its segments are missing: {error}", path.display());
                    found.recovery.problems.push(problem);
                    found.recovery.lacks.push(Lack { disk: number as u16, container, at: 0 });
                    continue;
                }
            };
            if let Some(foreign) = scan.foreign {
                let path = disk.disk.root().join(container_path(container));
                return Err(StoreError::Foreign { path, found: foreign, expected: node });
            }
            if let Some(first) = seen.insert((container, scan.header.key), number) {
                let at = |number: usize| disks[number].disk.root().join(container_path(container));
                return Err(StoreError::Twice { path: at(first), other: at(number) });
            }
            if !scan.has_footer {
                scan.sync().map_err(|error| failed("sync a container", error))?;
            }
            found.recovery.containers += 1;
            found.recovery.unfinished += u64::from(!scan.has_footer);
            for (id, marker) in &scan.open {
                found.add_extent(*id, location(number as u16, marker));
            }
            found.unmarked.extend(scan.unmarked.iter().map(|at| (number as u16, container, *at)));
            if !scan.unsure.is_empty() {
                for (of, entry) in scan.live() {
                    let is_unsure = scan.unsure.contains(of);
                    found.add(&mut by_id, disks, (number as u16, container), (entry.clone(), is_unsure));
                }
                unsure.push((number, container, scan));
                continue;
            }
            let (known, entries) = scan.finish((number, disk), container, &mut found);
            for entry in entries {
                found.add(&mut by_id, disks, (number as u16, container), (entry, false));
            }
            disk.containers.lock().insert(container, known);
        }
        found.read_notes(number, disk).map_err(of_notes)?;
    }
    found.finish_unsure(disks, unsure);
    found.note_synced(disks);
    Ok(found)
}

/// Where each segment is in the list of those that were found, and whether a kill may have cut it off.
type ById = HashMap<SegmentId, (usize, bool)>;

impl Found {
    /// Reads up to where the containers of the next disk were synced; of those that are gone it says nothing.
    fn read_synced(&mut self, disk: &dyn Disk, containers: &BTreeSet<u64>) -> io::Result<()> {
        let Noted { places: synced, problem } = noted(disk, SYNCED)?;
        self.recovery.problems.extend(problem);
        let last = synced.last().map_or(0, |(container, _)| *container);
        self.container_next = self.container_next.max(last.saturating_add(1));
        self.synced.push(synced.into_iter().filter(|(container, _)| containers.contains(container)).collect());
        Ok(())
    }

    /// Notes which containers stay without a footer, before the node goes on as if all that they have were stored. The virtual log lets go of it, and the arena that
    /// had it goes with the next stop: a later start must not take for torn what the disk has changed since.
    fn note_synced(&mut self, disks: &[&DiskContainers]) {
        for (disk, synced) in disks.iter().zip(&self.synced) {
            let all: BTreeSet<(u64, u64)> = synced.iter().map(|(container, to)| (*container, *to)).collect();
            let is_noted = noted(&*disk.disk, SYNCED).is_ok_and(|noted| noted.places == all);
            if !is_noted && let Err(error) = write_notes(&disk.folder, SYNCED, &all) {
                let path = disk.disk.root().join(CONTAINER_DIR).join(SYNCED);
                self.recovery.problems.push(format!("{} could not be written: {error}", path.display()));
            }
        }
    }

    /// Reads what is noted of a disk that cannot be read any more.
    ///
    /// That others know is true as long as the place is lacking. One that reads back the node may come back with: it offers what it has, and holds it again
    /// where others have not rebuilt it. From then on nobody else needs to have it. So its note goes before anybody hears of this start, and when the
    /// place does not read once more they are told once more.
    fn read_notes(&mut self, number: usize, disk: &DiskContainers) -> io::Result<()> {
        // That others have what was in it too does not say that it is gone here.
        self.lacks_some |= self.recovery.lacks.iter().any(|lack| usize::from(lack.disk) == number);
        let (lost, known) = (noted(&*disk.disk, LOST)?, noted(&*disk.disk, KNOWN)?);
        self.recovery.problems.extend(lost.problem.into_iter().chain(known.problem));
        let (lost, known) = (lost.places, known.places);
        // A container may be gone and its note still there: another one of its number would pass for known when it does not read back.
        let last = lost.iter().chain(&known).map(|(container, _)| *container).max().unwrap_or(0);
        self.container_next = self.container_next.max(last.saturating_add(1));
        let lost = self.still_lost((number as u16, disk), &lost);
        self.recovery.lacks.extend(lost);
        let lacks = &mut self.recovery.lacks;
        let of_disk = lacks.iter().filter(|lack| usize::from(lack.disk) == number);
        let still: BTreeSet<(u64, u64)> =
            of_disk.map(|lack| (lack.container, lack.at)).filter(|place| known.contains(place)).collect();
        lacks.retain(|lack| usize::from(lack.disk) < number || !still.contains(&(lack.container, lack.at)));
        if still != known
            && let Err(error) = write_notes(&disk.folder, KNOWN, &still)
        {
            let path = disk.disk.root().join(CONTAINER_DIR).join(KNOWN);
            self.recovery.problems.push(format!("{} could not be written: {error}", path.display()));
        }
        Ok(())
    }

    /// Adds a segment that was being written through. Of two extents of one segment the one counts that was begun last: its
    /// container's number is higher, for the other one was there already.
    ///
    /// A life begins an extent only for a segment of which no replay has met the first chunk, and puts all of it there, from that chunk on.
    /// So in an earlier one nothing was acknowledged: a process was killed before the trace of it was in a block, and the
    /// space was not given back yet when the next one was gone too. What was acknowledged since is in the last alone.
    fn add_extent(&mut self, id: SegmentId, at: Location) {
        let begun = |at: &Location| (at.container, at.offset);
        let before = self.extents.insert(id, at);
        if let Some(before) = before {
            let (first, last) = if begun(&before) < begun(&at) { (before, at) } else { (at, before) };
            self.extents.insert(id, last);
            self.duplicates.push(first);
        }
    }

    /// At which of the places that were noted as lost a segment is still, and does not read back: what it was given up for may have passed, and others may have rebuilt it
    /// since.
    fn still_lost(&self, (number, disk): (u16, &DiskContainers), noted: &BTreeSet<(u64, u64)>) -> Vec<Lack> {
        let is_noted = |segment: &&StoredSegment| {
            segment.at.disk == number && noted.contains(&(segment.at.container, segment.at.offset))
        };
        let there = self.recovery.segments.iter().filter(is_noted);
        let lost = there.filter(|segment| !reads_back(disk, segment).unwrap_or(false));
        let lost = lost.map(|segment| Lack { disk: number, container: segment.at.container, at: segment.at.offset });
        lost.collect::<BTreeSet<Lack>>().into_iter().collect()
    }

    /// Adds a segment; of two copies the one rewritten more often stays. Of those that never were the longer stays, of others
    /// the one written later, whatever a write that failed has left of it before; then the one on the first disk.
    ///
    /// That one may be half there if it is [unsure](Scan::unsure): a process was killed while it compacted a segment that had left memory, so that the arena does not
    /// tell of it. The other is there because the space of what was replaced is given back behind the sync of what replaces it: it has
    /// every record that a reader may ask for, unless it is shorter. So it stays if it reads back and the first does not. Any other first one was synced,
    /// and readers have seen it: the older one may show what was deleted since, so the first stays, to be [mended](crate::Mender) if the disk has changed it.
    ///
    /// If the disk does not give one of the two that had to be compared, both stay where they are, for a later start to [say](Found::finish_unsure). This one
    /// goes on with what is the better guess: not with one that is known not to be whole.
    fn add(
        &mut self,
        by_id: &mut ById,
        disks: &[&DiskContainers],
        (disk, container): (u16, u64),
        (entry, is_unsure): (ContainerEntry, bool),
    ) {
        let at = Location { disk, container, offset: entry.at, bytes: entry.image_bytes() };
        let producers = entry.marks.iter().map(ProducerMark::from).collect();
        let (header, progress) = (entry.header, entry.progress);
        let lacks_marks = self.unmarked.contains(&(disk, container, entry.at));
        let segment = StoredSegment { header, progress, at, producers, lacks_marks };
        let segments = &mut self.recovery.segments;
        match by_id.entry(segment.header.id) {
            std::collections::hash_map::Entry::Vacant(vacant) => {
                vacant.insert((segments.len(), is_unsure));
                segments.push(segment);
                self.told.found(segments);
            }
            std::collections::hash_map::Entry::Occupied(mut occupied) => {
                let (place, is_kept_unsure) = *occupied.get();
                let kept = &mut segments[place];
                let is_first = rank(&segment) > rank(kept);
                let (first, other) = if is_first { (&segment, &*kept) } else { (&*kept, &segment) };
                let is_comparable = (if is_first { is_unsure } else { is_kept_unsure })
                    && first.progress.next_ordinal == other.progress.next_ordinal;
                let reads_back = |segment: &StoredSegment| reads_back(disks[usize::from(segment.at.disk)], segment);
                // What the disk does not give was not cut off by a kill, as far as anybody knows.
                let is_whole = if is_comparable { reads_back(first).map_err(drop) } else { Ok(true) };
                let is_other_whole = if is_whole == Ok(false) { reads_back(other).map_err(drop) } else { Ok(true) };
                let (id, first) = (first.header.id, first.at);
                let (is_torn, is_undecided) = (
                    is_whole == Ok(false) && is_other_whole != Ok(false),
                    is_whole.is_err() || is_other_whole.is_err(),
                );
                let mut gone = at;
                if is_first != is_torn {
                    gone = std::mem::replace(kept, segment).at;
                    occupied.insert((place, is_unsure));
                }
                if is_undecided {
                    tracing::warn!(segment = %id, at = ?first, "nobody can tell yet whether a segment was cut off by a kill");
                    self.undecided.insert((first.disk, first.container));
                    self.others.entry(id).or_default().push(gone);
                    return;
                }
                if is_torn {
                    tracing::warn!(segment = %id, at = ?first, "a segment was cut off by a kill; what it was to replace is there");
                    self.torn.push(gone);
                }
                self.duplicates.push(gone);
            }
        }
    }

    /// Finishes containers of which something was unsure until all copies were seen. With a footer nothing in them is: so what turned out to be torn is marked
    /// as released before it is written, like anything else that is.
    ///
    /// As long as one of them may be torn and its other copy may be where this start cannot read, the container gets no footer: with one it would be
    /// taken for what was synced as soon as the other can be read, and that one would go. The next start asks again.
    fn finish_unsure(&mut self, disks: &[&DiskContainers], unsure: Vec<(usize, u64, Scan)>) {
        for (number, container, mut scan) in unsure {
            let is_torn = |entry: &ContainerEntry| {
                let is_it = |at: &Location| (at.disk, at.container, at.offset) == (number as u16, container, entry.at);
                self.torn.iter().any(is_it)
            };
            let torn = scan.entries.iter().filter(|(_, entry)| is_torn(entry)).map(|(of, _)| *of);
            let torn: Vec<u32> = torn.collect();
            scan.torn.extend(torn);
            // What is whole was synced by now.
            scan.is_undecided = self.undecided.contains(&(number as u16, container))
                || self.lacks_some
                    && scan
                        .live()
                        .any(|(of, entry)| scan.unsure.contains(of) && !scan.is_whole(entry).unwrap_or(false));
            let (known, _) = scan.finish((number, disks[number]), container, self);
            disks[number].containers.lock().insert(container, known);
        }
    }
}

/// Which of two copies of a segment counts: the higher one. In one container the one behind was written later.
fn rank(segment: &StoredSegment) -> (u32, u64, u64, u16, u64) {
    let rewrites = segment.header.rewrites();
    let bytes = if rewrites == 0 { segment.at.bytes } else { 0 };
    (rewrites, bytes, segment.at.container, u16::MAX - segment.at.disk, segment.at.offset)
}

/// Whether what is on disk of a segment is what its entry tells of. An error: the disk does not give it.
fn reads_back(disk: &DiskContainers, segment: &StoredSegment) -> io::Result<bool> {
    let mut image = AlignedBuffer::zeroed(pages(segment.at.bytes) as usize);
    match disk.read(segment.at.container, segment.at.offset, &mut [io::IoSliceMut::new(&mut image)]) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        read => read?,
    }
    let is_it = |(header, progress): (SegmentHeader, SegmentProgress)| {
        header == segment.header && progress.head == segment.progress.head
    };
    Ok(verify_image(&image).is_ok_and(is_it))
}

/// One container, as it was found.
struct Scan {
    header: ContainerHeader,
    file: Arc<dyn DiskFile>,
    released: ReleasedMap,
    /// With their numbers; none are left out but those of batches that cannot be read.
    entries: Vec<(u32, ContainerEntry)>,
    /// Segments that were being written through: not finished, whether closed or open.
    open: Vec<(SegmentId, ExtentMarker)>,
    /// Numbers of segments whose images did not reach the disk, or that follow one of those in their lane.
    torn: Vec<u32>,
    /// Numbers of segments of the last batch, without a footer behind it, that were cut off if another copy is there and they are not whole, and stay
    /// otherwise: a kill may have torn them though the arena does not tell of them, or an earlier start has synced them.
    unsure: Vec<u32>,
    /// Where images of segments are of which it is not known who wrote them.
    unmarked: Vec<u64>,
    /// Places that the disk cannot read, of what may have been cut off.
    unread: Vec<u64>,
    /// Of those that count as torn the ones that are not marked as released: a later start may read what this one could not.
    kept: Vec<u32>,
    /// What it ends with, but for a footer, is a batch.
    ends_in_batch: bool,
    /// Its first page is as it was written, but for the map.
    has_header: bool,
    has_footer: bool,
    /// Some batch in the middle cannot be read.
    has_gap: bool,
    /// That is told as a [`Lack`]: it may have been anything.
    lacks_some: bool,
    /// What is [unsure](Scan::unsure) stays so.
    is_undecided: bool,
    /// Where the last batch ends.
    end: u64,
    /// The node that it belongs to, if that is another one.
    foreign: Option<[u8; 16]>,
}

impl Scan {
    /// Nothing of it has been read but its first page.
    fn new(header: ContainerHeader, file: Arc<dyn DiskFile>, released: ReleasedMap) -> Scan {
        Scan {
            header,
            file,
            released,
            entries: Vec::new(),
            open: Vec::new(),
            torn: Vec::new(),
            unsure: Vec::new(),
            unmarked: Vec::new(),
            unread: Vec::new(),
            kept: Vec::new(),
            ends_in_batch: false,
            has_header: true,
            has_footer: false,
            has_gap: false,
            lacks_some: false,
            is_undecided: false,
            end: CONTAINER_HEADER_BYTES as u64,
            foreign: None,
        }
    }

    /// `None` if there is nothing to be had from the file: it is removed if it never held anything, else left alone.
    fn of(
        (number, disk): (u16, &dyn Disk),
        node: [u8; 16],
        container: u64,
        before: Before<'_>,
        found: &mut StoreRecovery,
    ) -> io::Result<Option<Scan>> {
        let StoreRecovery { problems, lacks, .. } = found;
        let (path, lacks_all) = (container_path(container), Lack { disk: number, container, at: 0 });
        let file = disk.open(&path, OpenMode::ReadWrite, true)?;
        let file_bytes = file.len()?;
        let mut page = AlignedBuffer::zeroed(CONTAINER_HEADER_BYTES);
        let read = read(&*file, 0, &mut page)?;
        let mut has_header = true;
        let header = match ContainerHeader::parse(&page[..read]) {
            Ok(header) if header.container == container => header,
            // The first batch is written after the header was synced: without a header there is none.
            _ if file_bytes <= CONTAINER_HEADER_BYTES as u64 => {
                disk.remove(&path)?;
                return Ok(None);
            }
            Ok(header) => {
                problems.push(format!("{path} says that it is container {}; it is left alone", header.container));
                lacks.push(lacks_all);
                return Ok(None);
            }
            Err(error) => {
                let Some(key) = key_of(&*file, file_bytes, container)? else {
                    problems.push(format!("{path} has no readable header and is left alone: {error}"));
                    lacks.push(lacks_all);
                    return Ok(None);
                };
                tracing::warn!(path, %error, "a container's header does not read back; what follows it says the same");
                has_header = false;
                ContainerHeader { node, container, key, created_ms: 0 }
            }
        };
        let (released, damaged) = ReleasedMap::parse(&page).unwrap_or_default();
        let foreign = (header.node != node).then_some(header.node);
        let mut scan = Scan { has_header, foreign, ..Scan::new(header, file, released) };
        if scan.foreign.is_none() && !scan.read_footer(file_bytes)? {
            scan.read_batches(file_bytes, (number, &path), before, found)?;
        }
        let problems = &mut found.problems;
        // Of a container without a batch the first page may be torn: it was being made when the power went.
        if damaged > 0 && !scan.entries.is_empty() {
            problems.push(format!(
                "{path}: {damaged} sectors of its released map are damaged; what was released comes back"
            ));
        }
        Ok(Some(scan))
    }

    /// Reads the footer. False if there is none that is whole.
    fn read_footer(&mut self, file_bytes: u64) -> io::Result<bool> {
        let least = (CONTAINER_HEADER_BYTES + PAGE_BYTES) as u64;
        if file_bytes < least || file_bytes > CONTAINER_BYTES_MAX || !file_bytes.is_multiple_of(PAGE_BYTES as u64) {
            return Ok(false);
        }
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = self.read(file_bytes - PAGE_BYTES as u64, &mut page)?;
        let Ok(trailer) = Trailer::parse(&page[..read], file_bytes) else { return Ok(false) };
        if trailer.container != self.header.container || trailer.key != self.header.key {
            return Ok(false);
        }
        let mut footer = AlignedBuffer::zeroed(trailer.footer_bytes() as usize);
        let read = self.read(trailer.at, &mut footer)?;
        let Ok(entries) = trailer.entries(&footer[..read]) else { return Ok(false) };
        self.entries = (0..).zip(entries).collect();
        self.end = trailer.at;
        self.has_footer = true;
        Ok(true)
    }

    /// Follows the batches, then verifies the images of the last one.
    ///
    /// After a kill nothing can be torn that is not in memory, where a segment stays until its batch is synced, but for what was to
    /// take the place of another image, which is [there still](Found::add). Then an image that is not what it should be was
    /// changed by the disk, and stays, to be [mended](crate::Mender). So does one that an earlier start has synced. Where neither
    /// is known a sector that cannot be read counts as cut off: some disks leave one where the power went, and the virtual log still has what was not synced. But it
    /// may have been, so it is a lack like any other, and [stays](Scan::keep) for a start that can read it.
    fn read_batches(
        &mut self,
        file_bytes: u64,
        (disk, path): (u16, &str),
        before: Before<'_>,
        found: &mut StoreRecovery,
    ) -> io::Result<()> {
        let (Before { in_memory, synced_to, .. }, mut last) = (before, 0..0);
        loop {
            let mut batch = self.read_batch(self.end, file_bytes)?;
            if batch.is_none() && self.read_extent(file_bytes)? {
                last = 0..0;
                continue;
            }
            if batch.is_none() {
                batch = self.find_batch(file_bytes)?;
                if let Some((header, _)) = &batch
                    && !self.read_images(header)?
                    && !self.are_let_go(self.next_number()..header.first)
                {
                    let of = format!("{path}: what is between {} and {}", self.end, header.at);
                    self.lack(disk, &of, found);
                }
            }
            let Some((header, entries)) = batch else { break };
            last = self.entries.len()..self.entries.len() + entries.len();
            self.entries.extend((header.first..).zip(entries));
            self.end = header.at + header.batch_bytes;
        }
        // Of extents.
        self.unread.clone().into_iter().for_each(|at| self.keep(at, disk, found));
        let has_more = |scan: &Scan| {
            let has_more = scan.end < synced_to || in_memory.is_some() && scan.has_more(file_bytes)?;
            Ok::<bool, io::Error>(has_more)
        };
        while has_more(self)? && self.pass_let_go()? {}
        if has_more(self)? {
            // Without a footer the next start sees it as well.
            self.lack(disk, &format!("{path}: what begins at {}", self.end), found);
        } else if in_memory.is_none() {
            self.look_at_end(file_bytes, disk, found)?;
        }
        self.ends_in_batch = !last.is_empty();
        self.look_at_last(last, (disk, path), before, found)
    }

    /// Reads the extent that starts at the end so far, if one does: a segment that was finished, or one that a virtual log's
    /// replay asks for, or room that was never written to.
    ///
    /// Finishing a segment writes its index and its first page, after all its chunks were synced. A power cut may leave one
    /// of the two, so both are looked at; the chunks need not be.
    fn read_extent(&mut self, file_bytes: u64) -> io::Result<bool> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = self.read(self.end, &mut page)?;
        let Ok(marker) = ExtentMarker::parse(&page[..read]) else { return Ok(false) };
        if (marker.container, marker.key, marker.at) != (self.header.container, self.header.key, self.end) {
            return Ok(false);
        }
        self.end = marker.end();
        let read = self.read(marker.image_at(), &mut page)?;
        let first_page = &page[..read];
        // A power cut leaves the one or the other of the first page: what is neither was changed by the disk since, as anything in the
        // image may have been, to be mended.
        let is_other =
            SegmentHeader::parse(first_page).is_ok() && SegmentProgress::parse(first_page, marker.image_bytes).is_ok();
        if let Some((header, entries)) = self.read_batch(marker.index_at(), file_bytes)?
            && entries.len() == 1
            && header.first == marker.number
            && (!is_other || is_first_page(&entries[0], first_page))
        {
            self.entries.extend((header.first..).zip(entries));
            return Ok(true);
        }
        if !self.released.get(marker.number)
            && let Some((entry, is_whole)) = self.closed_extent(&marker, first_page)?
        {
            if !is_whole {
                // A footer would have it as one that was written by nobody.
                self.unmarked.push(entry.at);
                self.has_gap = true;
            }
            self.entries.push((marker.number, entry));
            return Ok(true);
        }
        // A number is missing among the entries, so the container gets no footer.
        self.has_gap = true;
        if !self.released.get(marker.number) {
            match SegmentHeader::parse(first_page) {
                Ok(header) => self.open.push((header.id, marker)),
                Err(_) => {
                    self.torn.push(marker.number);
                    if self.is_lost(marker.image_at(), PAGE_BYTES as u64)? {
                        self.unread.push(marker.image_at());
                        self.kept.push(marker.number);
                    }
                }
            }
        }
        Ok(true)
    }

    /// What the first page of an extent says, if it is that of a closed segment, and whether the image reads back. It was written with the index, and says where the
    /// image ends: of the two one is enough.
    ///
    /// All chunks were synced before. So an image that does not read back was changed by the disk since, and stays, to be
    /// [mended](crate::Mender): nobody knows who wrote it, and the lane [is told](StoredSegment::lacks_marks). No replay need ask for it, since the virtual log may have let go of
    /// it: it is not given back with what is of nobody.
    fn closed_extent(&self, marker: &ExtentMarker, first_page: &[u8]) -> io::Result<Option<(ContainerEntry, bool)>> {
        let header = SegmentHeader::parse(first_page);
        let progress = SegmentProgress::parse(first_page, marker.image_bytes);
        let (Ok(header), Ok(progress)) = (header, progress) else { return Ok(None) };
        if progress.state == SegmentState::Open {
            return Ok(None);
        }
        let at = marker.image_at();
        let whole = self.images_up_to(at, at + pages(progress.head), 1)?.and_then(|mut entries| entries.pop());
        let progress = SegmentProgress { durable_head: progress.head, ..progress };
        Ok(Some(match whole {
            Some(entry) => (entry, true),
            None => (ContainerEntry { header, progress, at, marks: Vec::new() }, false),
        }))
    }

    /// Makes durable what was read of a file without a footer, before anything of it counts.
    ///
    /// A process that was killed may have written it and not synced it. From here on it is taken for what is on the disk: chunks of an
    /// extent are durable, so that readers see them, a retry of them is a duplicate, and what is acknowledged next follows them; a segment with an index is stored, so
    /// that the virtual log lets go of it. A loss of power that took it then would take what was acknowledged. In front of a
    /// footer everything was synced. An arena that is not there says nothing about what the system has not written yet, so it
    /// makes no difference here; and where there is nothing to write, this takes no time.
    ///
    /// A disk that refuses ends the start: to go on without what is in the file would be to lose it.
    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn read(&self, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        read(&*self.file, at, bytes)
    }

    /// Whether all segments of some numbers were let go of, of which nothing else is known; then they are passed over, and the file gets no footer, since they are missing
    /// in it.
    ///
    /// What tells of them does not read back, and their images are holes. But a number is marked only when its segment was dropped, or was found to be cut off, and that was synced
    /// before anything else was done with it: a marked one counts nowhere, whatever it was. A part of the map that is damaged says nothing, as if all were live. So
    /// nothing is lost here, nobody need be asked, and the file goes like any other one when the rest of it is let go of.
    fn are_let_go(&mut self, mut numbers: Range<u32>) -> bool {
        let are_let_go = !numbers.is_empty() && numbers.all(|number| self.released.get(number));
        self.has_gap |= are_let_go;
        are_let_go
    }

    /// Passes over the batch at the end, if it has begun and its header says which segments it had, all of which [were let go of](Scan::are_let_go). What is behind it
    /// is looked at next.
    fn pass_let_go(&mut self) -> io::Result<bool> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = self.read(self.end, &mut page)?;
        let batch = BatchHeader::parse(&page[..read]).ok().filter(|batch| self.is_at_end(batch));
        let Some(batch) = batch else { return Ok(false) };
        let are_let_go = self.are_let_go(batch.first..batch.first.saturating_add(batch.count()));
        if are_let_go {
            self.end = batch.at.saturating_add(batch.batch_bytes);
        }
        Ok(are_let_go)
    }

    /// What follows cannot be read, and may have been anything.
    fn lack(&mut self, disk: u16, what: &str, found: &mut StoreRecovery) {
        self.keep(self.end, disk, found);
        found.problems.push(format!("{what} cannot be read; its segments are lost"));
    }

    /// Whether the disk cannot read some of so many bytes.
    fn is_lost(&self, at: u64, bytes: u64) -> io::Result<bool> {
        let (mut buffer, mut is_lost) = (AlignedBuffer::zeroed(bytes as usize), false);
        read_readable(&*self.file, at, &mut buffer, &mut |_| is_lost = true)?;
        Ok(is_lost)
    }

    /// The batch that starts at a place, if one does.
    fn read_batch(&self, at: u64, file_bytes: u64) -> io::Result<Option<(BatchHeader, Vec<ContainerEntry>)>> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let read = self.read(at, &mut page)?;
        let Ok(header) = BatchHeader::parse(&page[..read]) else { return Ok(None) };
        let is_mine = header.container == self.header.container && header.key == self.header.key && header.at == at;
        let follows = self.entries.last().is_none_or(|(number, _)| header.first > *number);
        if !is_mine || !follows || at.saturating_add(header.index_bytes()) > file_bytes {
            return Ok(None);
        }
        let mut index = AlignedBuffer::zeroed(header.index_bytes() as usize);
        let read = self.read(at, &mut index)?;
        Ok(header.entries(&index[..read]).ok().map(|entries| (header, entries)))
    }

    /// The number of the segment that comes next.
    fn next_number(&self) -> u32 {
        let of_entries = self.entries.last().map(|(number, _)| *number);
        let others = self.open.iter().map(|(_, marker)| marker.number).chain(self.torn.iter().copied());
        others.chain(of_entries).max().map_or(0, |last| last + 1)
    }

    /// Makes up for an index that does not read back, in front of a batch that does: its images lie from behind the index up to that, back to back, and are as many
    /// as there are numbers between. Tells whether that worked, or nothing was between but the marker of an extent.
    ///
    /// The batch was synced before the next one was written, so what is there is what was written. Nothing within an image is taken for one: only
    /// pages of the index come before the first. The producers' marks of a compacted segment are not in its image, so one such image keeps this from working.
    fn read_images(&mut self, next: &BatchHeader) -> io::Result<bool> {
        let first = self.next_number();
        let count = next.first.saturating_sub(first);
        if count == 0 {
            return Ok(next.first == first);
        }
        let (least, most) = (index_bytes(count, 0), index_bytes(count, CONTAINER_MARKS_MAX));
        let last = next.at.min(self.end.saturating_add(most));
        let mut at = self.end + least;
        while at < last {
            if let Some(entries) = self.images_up_to(at, next.at, count)? {
                tracing::warn!(
                    container = self.header.container,
                    at = self.end,
                    "an index does not read back; its images do"
                );
                self.entries.extend((first..).zip(entries));
                return Ok(true);
            }
            at += PAGE_BYTES as u64;
        }
        Ok(false)
    }

    /// `count` images, back to back from one place to another, as their index had them.
    fn images_up_to(&self, mut at: u64, end: u64, count: u32) -> io::Result<Option<Vec<ContainerEntry>>> {
        let (mut entries, mut page) = (Vec::new(), AlignedBuffer::zeroed(PAGE_BYTES));
        while at < end && (entries.len() as u32) < count {
            let read = self.read(at, &mut page)?;
            let Ok(header) = SegmentHeader::parse(&page[..read]) else { return Ok(None) };
            let Ok(progress) = SegmentProgress::parse(&page[..read], header.capacity_bytes) else { return Ok(None) };
            let bytes = pages(progress.head);
            if header.is_compacted() || progress.state == SegmentState::Open || at + bytes > end {
                return Ok(None);
            }
            let mut image = AlignedBuffer::zeroed(bytes as usize);
            let read = self.read(at, &mut image)?;
            if verify_image(&image[..read]).is_err() {
                return Ok(None);
            }
            let marks = marks_of(&image[SEGMENT_HEADER_BYTES..progress.head as usize]);
            let marks = marks[marks.len().saturating_sub(BATCH_MARKS_MAX)..].iter().map(Into::into).collect();
            let progress = SegmentProgress { durable_head: progress.head, ..progress };
            entries.push(ContainerEntry { header, progress, at, marks });
            at += bytes;
        }
        Ok((at == end && entries.len() as u32 == count).then_some(entries))
    }

    /// The next batch behind one that cannot be read. There is none unless bytes have rotted: a write that was cut off is
    /// the last of its file.
    fn find_batch(&self, file_bytes: u64) -> io::Result<Option<(BatchHeader, Vec<ContainerEntry>)>> {
        let mut at = self.end + PAGE_BYTES as u64;
        let mut window = AlignedBuffer::zeroed(1 << 20);
        while at < file_bytes.min(CONTAINER_BYTES_MAX) {
            let read = self.read(at, &mut window)?;
            for (n, page) in window[..read].chunks_exact(PAGE_BYTES).enumerate() {
                if BatchHeader::parse(page).is_ok()
                    && let Some(batch) = self.read_batch(at + (n * PAGE_BYTES) as u64, file_bytes)?
                {
                    return Ok(Some(batch));
                }
            }
            at += window.len() as u64;
        }
        Ok(None)
    }

    /// Whether something is behind the last batch that is none: all that follows is zeros otherwise, a footer whose end does not read back, or what was
    /// never written to its end.
    fn has_more(&self, file_bytes: u64) -> io::Result<bool> {
        let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
        let mut is_lost = false;
        let lost = &mut |_| is_lost = true;
        let read = if self.end < file_bytes { read_readable(&*self.file, self.end, &mut page, lost)? } else { 0 };
        let page = &page[..read];
        let is_nothing = page.iter().all(|byte| *byte == 0)
            || page.starts_with(&SEGMENT_MAGIC.to_le_bytes())
            || self.is_cut_off(page, file_bytes);
        Ok(is_lost || !is_nothing)
    }

    /// Whether a page begins a batch whose write a kill has cut off, in the middle of its index. Bytes go into a file from the first to the last: one that was
    /// synced has all of them, whatever the disk has changed of them since, and of one that was not nothing counts.
    fn is_cut_off(&self, page: &[u8], file_bytes: u64) -> bool {
        let batch = BatchHeader::parse(page).ok().filter(|batch| self.is_at_end(batch));
        batch.is_some_and(|batch| file_bytes < batch.at.saturating_add(batch.batch_bytes))
    }

    /// Whether a batch is of this container, and begins at the end so far.
    fn is_at_end(&self, batch: &BatchHeader) -> bool {
        (batch.container, batch.key, batch.at) == (self.header.container, self.header.key, self.end)
    }

    /// Whether a segment's image is on disk as it was in memory: one of which the disk has lost something is not. An error says nothing of it.
    fn is_whole(&self, entry: &ContainerEntry) -> io::Result<bool> {
        let mut image = AlignedBuffer::zeroed(pages(entry.image_bytes()) as usize);
        let read = match self.file.read_at(entry.at, &mut image) {
            Err(error) if is_unreadable(&error) => return Ok(false),
            read => read?,
        };
        let is_it = |(header, progress): (SegmentHeader, SegmentProgress)| {
            header == entry.header && progress.head == entry.progress.head
        };
        Ok(verify_image(&image[..read]).is_ok_and(is_it))
    }

    /// Segments that were not released.
    fn live(&self) -> impl Iterator<Item = &(u32, ContainerEntry)> {
        self.entries.iter().filter(|(number, _)| !self.released.get(*number) && !self.torn.contains(number))
    }

    /// Gives the file a footer if it has none and nothing stands against it, and returns what is in it.
    fn finish(
        mut self,
        (disk_number, disk): (usize, &DiskContainers),
        number: u64,
        found: &mut Found,
    ) -> (Container, Vec<ContainerEntry>) {
        let (disk, problems) = (&*disk.disk, &mut found.recovery.problems);
        let (lacks_some, has_footer) = (self.lacks_some, self.has_footer);
        let mut known = Container { lacks_some, has_footer, ..Container::new(self.header, false) };
        let synced = &mut found.synced[disk_number];
        let released = self.released.clone();
        self.torn.iter().filter(|number| !self.kept.contains(number)).for_each(|number| self.released.set(*number));
        for (number, entry) in &self.entries {
            let is_released = self.released.get(*number);
            known.add(Slot { number: *number, at: entry.at, image_bytes: entry.image_bytes(), is_released });
        }
        for (_, marker) in &self.open {
            let (number, at, image_bytes) = (marker.number, marker.image_at(), marker.image_bytes.into());
            known.add(Slot { number, at, image_bytes, is_released: false });
        }
        known.slots.sort_unstable_by_key(|slot| slot.at);
        if self.released != ReleasedMap::default() {
            known.released = Some(self.released.clone());
        }
        if self.has_footer || known.is_empty() {
            synced.remove(&number);
        } else if self.has_gap || self.is_undecided {
            // With a batch missing in the middle the numbers of the segments would change, so it stays as it is. Not being able to give
            // back what was for more is no reason to say anything: the next start tries again.
            let _ = give_back_ahead(&*self.file);
            self.note_end(released, synced);
        } else if let Err(error) = self.write_end(&known) {
            // What is left of it looks like a batch that does not read back.
            let _ = self.file.set_len(self.end);
            self.note_end(released, synced);
            let path = disk.root().join(container_path(number));
            problems.push(format!("{} could not be given a footer: {error}", path.display()));
        } else {
            known.has_footer = true;
            synced.remove(&number);
        }
        if !self.has_header
            && let Err(error) = self.file.write_at(0, &known.first_page()).and_then(|()| self.file.sync_data())
        {
            let path = disk.root().join(container_path(number));
            problems.push(format!("{} could not be given its header back: {error}", path.display()));
        }
        let is_live = |number: &u32| !self.released.get(*number) && !self.kept.contains(number);
        let live = self.entries.into_iter().filter(|(number, _)| is_live(number));
        (known, live.map(|(_, entry)| entry).collect())
    }

    /// A file that stays without a footer is [noted](Found::note_synced), with what was cut off marked as released: whatever else is in its last batch counts from
    /// here on. Where that cannot be marked the next start judges once more.
    fn note_end(&self, mut released: ReleasedMap, synced: &mut BTreeMap<u64, u64>) {
        if !self.ends_in_batch {
            return;
        }
        let numbers = self.entries.iter().map(|(number, _)| *number);
        let is_torn = |number: &u32| self.torn.contains(number) && !self.kept.contains(number);
        let torn: Vec<u32> = numbers.filter(is_torn).collect();
        if !torn.is_empty() {
            torn.into_iter().for_each(|number| released.set(number));
            let marked = Container { released: Some(released), ..Container::new(self.header, false) };
            if self.file.write_at(0, &marked.first_page()).and_then(|()| self.file.sync_data()).is_err() {
                return;
            }
        }
        if !self.kept.is_empty() {
            // The next start is to look once more what is whole.
            return;
        }
        let to = synced.entry(self.header.container).or_default();
        *to = self.end.max(*to);
    }

    /// First what is torn is marked as released; what is not is [synced](Scan::sync). Then the footer, which is believed, names everything.
    fn write_end(&self, known: &Container) -> io::Result<()> {
        if !self.torn.is_empty() {
            self.file.write_at(0, &known.first_page())?;
            self.file.sync_data()?;
        }
        let entries: Vec<ContainerEntry> = self.entries.iter().map(|(_, entry)| entry.clone()).collect();
        write_footer(&*self.file, &self.header, self.end, &entries)?;
        self.file.sync_data()
    }
}

/// Reads a place of a container. What the disk cannot read is zeros, which nothing that tells of segments is: it is damaged like anything that was changed.
fn read(file: &dyn DiskFile, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
    read_readable(file, at, bytes, &mut |_| {})
}

/// The key of a container whose header does not read back, as what follows the header repeats it, or the end of the file. Nobody but the node writes at
/// either place of a file that was finished.
fn key_of(file: &dyn DiskFile, file_bytes: u64, container: u64) -> io::Result<Option<u64>> {
    let mut page = AlignedBuffer::zeroed(PAGE_BYTES);
    let at = CONTAINER_HEADER_BYTES as u64;
    let read = read(file, at, &mut page)?;
    let batch = BatchHeader::parse(&page[..read]).ok().map(|batch| (batch.container, batch.at, batch.key));
    let extent = ExtentMarker::parse(&page[..read]).ok().map(|extent| (extent.container, extent.at, extent.key));
    if let Some((.., key)) = batch.or(extent).filter(|(of, from, _)| (*of, *from) == (container, at)) {
        return Ok(Some(key));
    }
    let read = self::read(file, file_bytes.saturating_sub(PAGE_BYTES as u64), &mut page)?;
    let trailer = Trailer::parse(&page[..read], file_bytes).ok().filter(|trailer| trailer.container == container);
    Ok(trailer.map(|trailer| trailer.key))
}

/// Whether the first page of an image is that of the closed segment that its entry tells of.
fn is_first_page(entry: &ContainerEntry, page: &[u8]) -> bool {
    let header = SegmentHeader::parse(page);
    let progress = SegmentProgress::parse(page, entry.header.capacity_bytes);
    header == Ok(entry.header)
        && progress.is_ok_and(|progress| progress.state == entry.progress.state && progress.head == entry.progress.head)
}
