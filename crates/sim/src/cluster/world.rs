//! A run: a node, its clients and everything that goes wrong between them, from a seed.
//!
//! A run has three parts. In the first one faults happen. Then everything is healed, and all that producers want to write must
//! be acknowledged, and all that applications read be committed, within simulated minutes. Then the node is killed or loses power
//! once more, and every lane is read from its beginning to its end.

use std::collections::BTreeMap;

use bytes::Bytes;
use kera_env::{Clock, Random, SeededRandom};
use kera_format::{Durability, StreamOptions};
use kera_protocol::{CreateStream, FrameHeader, StreamInfo};

use super::client::{Answer, Around, Client, Wish};
use super::faults::{Fault, faults_of, pause_us};
use super::machine::{Machine, Said, StartError};
use super::member::Member;
use super::producer::Producer;
use super::reader::Reader;
use super::schedule::{Schedule, Trace};
use super::truth::{Place, Truth, Violation};
use crate::faults::Faults;

/// What a run is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Decides everything else.
    pub seed: u64,
    /// How long faults happen, in simulated milliseconds.
    pub trouble_ms: u64,
    /// Records that each producer writes to each streamlet.
    pub records: u64,
    /// Faults that may happen; all, if it is empty.
    pub only: Vec<Fault>,
    /// A defect that is put in, to see whether it is found.
    pub planted: Option<Planted>,
}

impl Plan {
    /// A run of a minute, with whatever may go wrong.
    pub fn new(seed: u64) -> Plan {
        Plan { seed, trouble_ms: 60_000, records: 300, only: Vec::new(), planted: None }
    }
}

/// A defect of a node, to show that a run would find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// What waits for the disk is acknowledged at once.
    AcknowledgedTooSoon,
    /// A process that is killed takes the arena with it.
    KillsTakeTheArena,
    /// What a producer sends again gets a new sequence.
    RetriesAreNew,
}

/// What a run has found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// The same for every run of this plan.
    pub trace: u64,
    /// Events that happened.
    pub events: u64,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
    /// Records that producers were told of.
    pub acknowledged: u64,
    /// How often something was compared with what must hold.
    pub checks: u64,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u64>,
    /// Starts of the node.
    pub starts: u64,
    /// What must not happen and did.
    pub violation: Option<String>,
}

/// Simulated time within which everything must be done once all is well, in microseconds.
const HEALED_US: u64 = 600_000_000;
const EVENTS_MAX: u64 = 50_000_000;
const STREAMLETS: u32 = 2;

#[derive(Debug)]
enum Event {
    /// A frame arrives at the node, or at the client.
    ToNode(u64, FrameHeader, Bytes),
    ToClient(u64, FrameHeader, Bytes),
    /// A connection is there, or is gone, for one side.
    Connected(u64),
    LostAtNode(u64),
    LostAtClient(u64),
    Timer(usize, u64),
    VirtualLog(u32, usize),
    Store(u32),
    Tick(u32),
    Deadline(u32),
    Fault,
    Start,
    Thaw,
    Heal(Fault),
}

/// A connection, as both sides see it.
struct Wire {
    client: usize,
    is_open_at_client: bool,
    is_open_at_node: bool,
    /// Nothing gets through any more, and nobody is told.
    is_dead: bool,
    /// When the last frame arrives at the node, and at the client: none overtakes another.
    last_us: [u64; 2],
}

struct Slot {
    client: Box<dyn Client>,
    wire: Option<u64>,
    correlation: u64,
    /// Only the timer set last counts.
    timer: u64,
}

struct World {
    plan: Plan,
    random: SeededRandom,
    schedule: Schedule<Event>,
    trace: Trace,
    machine: Machine,
    clients: Vec<Slot>,
    wires: BTreeMap<u64, Wire>,
    next_wire: u64,
    truth: Truth,
    faults: Faults<Fault>,
    counts: BTreeMap<&'static str, u64>,
    starts: u64,
    events: u64,
    frozen_until_us: u64,
    /// Events of the node that came while it stood still.
    held: Vec<Event>,
    cut_off_until_us: u64,
    disk_us: u64,
    deadline_at: Option<u64>,
    is_troubled: bool,
    power: bool,
    _dir: tempfile::TempDir,
}

/// Runs a plan.
pub fn run(plan: &Plan) -> Report {
    let mut world = World::new(plan);
    let violation = world.run().err().map(|violation| violation.0);
    Report {
        seed: plan.seed,
        trace: world.trace.value(),
        events: world.events,
        simulated_ms: world.schedule.now_us() / 1000,
        acknowledged: world.truth.acknowledged(),
        checks: world.truth.checks(),
        faults: world.counts,
        starts: world.starts,
        violation,
    }
}

impl World {
    fn new(plan: &Plan) -> World {
        let shared = std::path::Path::new("/dev/shm");
        let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        let dir = dir.expect("a directory for arenas");
        let random = SeededRandom::new(plan.seed);
        // A stream that survives kills only is not to be tried with power cuts: half of the seeds each.
        let power = plan.seed.is_multiple_of(2);
        World {
            machine: Machine::new(0, plan, dir.path()),
            faults: faults_of(&plan.only, power),
            plan: plan.clone(),
            random,
            schedule: Schedule::default(),
            trace: Trace::default(),
            clients: Vec::new(),
            wires: BTreeMap::new(),
            next_wire: 1,
            truth: Truth::default(),
            counts: BTreeMap::new(),
            starts: 0,
            events: 0,
            frozen_until_us: 0,
            held: Vec::new(),
            cut_off_until_us: 0,
            disk_us: 300,
            deadline_at: None,
            is_troubled: true,
            power,
            _dir: dir,
        }
    }

    fn below(&self, limit: u64) -> u64 {
        Random::below(&self.random, limit)
    }

    fn run(&mut self) -> Result<(), Violation> {
        self.start()?;
        let stream = self.create_stream()?;
        for number in 0..2 {
            let resequences = self.plan.planted == Some(Planted::RetriesAreNew);
            let producer = Producer::new(number, stream.id, STREAMLETS, self.plan.records, 2_000, resequences);
            self.add(Box::new(producer))?;
        }
        let place = |streamlet, lane| Place { stream: stream.id.0, streamlet, lane };
        let lanes = stream.options.lanes;
        let places: Vec<Place> = (0..STREAMLETS).flat_map(|s| (0..lanes).map(move |l| place(s, l))).collect();
        for place in &places {
            self.add(Box::new(Reader::new(*place)))?;
        }
        for _ in 0..2 {
            self.add(Box::new(Member::new("report", stream.id)))?;
        }
        self.schedule.after(pause_us(&self.random), Event::Fault);
        let trouble_us = self.plan.trouble_ms * 1000;
        while self.schedule.now_us() < trouble_us {
            self.step()?;
        }
        self.heal();
        self.until_done("everything is healed")?;
        // Once more: what is there must not depend on the process that has it in memory.
        match self.power {
            true => self.lose_power(),
            false => self.kill(),
        }
        self.clients.clear();
        self.wires.clear();
        for place in places {
            self.add(Box::new(Reader::last(place)))?;
        }
        self.until_done("the node was started once more")
    }

    fn until_done(&mut self, since: &str) -> Result<(), Violation> {
        let end_us = self.schedule.now_us() + HEALED_US;
        while !self.clients.iter().all(|slot| slot.client.is_done(&self.truth)) {
            if self.schedule.now_us() > end_us || self.events > EVENTS_MAX {
                let waiting = self.clients.iter().filter(|slot| !slot.client.is_done(&self.truth));
                let states: Vec<String> = waiting.map(|slot| slot.client.state()).collect();
                return Err(Violation(format!("not done for long after {since}: {}", states.join("; "))));
            }
            self.step()?;
        }
        Ok(())
    }

    /// A stream for the run: sizes and guarantees as the seed has them.
    fn create_stream(&mut self) -> Result<StreamInfo, Violation> {
        let options = StreamOptions {
            streamlets: STREAMLETS,
            lanes: 1 + self.below(2) as u32,
            segments_per_group: 1 + self.below(3) as u32,
            segment_bytes_max: 64 << (10 + self.below(3)),
            durability: if self.power { Durability::Power } else { Durability::Process },
            retention_ms: None,
            ..StreamOptions::default()
        };
        let request = CreateStream { name: "events".to_owned(), options, if_not_exists: true };
        let process = self.machine.process.as_mut().expect("it was started");
        let (header, body) = process.command(&request);
        let answer = Answer { header, body };
        if answer.status() != kera_protocol::Status::Ok {
            return Err(Violation(format!("the stream is refused: {}", answer.error())));
        }
        answer.decode()
    }

    fn add(&mut self, client: Box<dyn Client>) -> Result<(), Violation> {
        self.clients.push(Slot { client, wire: None, correlation: 0, timer: 0 });
        self.connect(self.clients.len() - 1);
        Ok(())
    }

    /// Takes one event.
    fn step(&mut self) -> Result<(), Violation> {
        self.events += 1;
        let before_us = self.schedule.now_us();
        let event = self.schedule.take().ok_or_else(|| Violation("nothing is left to happen".to_owned()))?;
        self.machine.clock.advance_us(self.schedule.now_us() - before_us);
        self.take(event)
    }

    fn take(&mut self, event: Event) -> Result<(), Violation> {
        let now_us = self.schedule.now_us();
        if now_us < self.frozen_until_us && event.is_of_node() {
            self.held.push(event);
            return Ok(());
        }
        self.note(&event);
        match event {
            Event::ToNode(wire, header, body) => {
                self.at_node(|process, said| process.request(wire, header, body, said))
            }
            Event::LostAtNode(wire) => {
                if let Some(process) = &mut self.machine.process {
                    process.lost(wire);
                }
                self.after_turn()
            }
            Event::Connected(wire) => self.connected(wire),
            Event::ToClient(wire, header, body) => {
                let Some(at) = self.client_of(wire) else { return Ok(()) };
                self.with(at, |client, around| client.answer(&Answer { header, body }, around))
            }
            Event::LostAtClient(wire) => {
                let Some(at) = self.client_of(wire) else { return Ok(()) };
                self.forget(wire);
                self.clients[at].wire = None;
                self.with(at, |client, around| client.lost(around))
            }
            Event::Timer(at, number) => {
                if self.clients.get(at).is_none_or(|slot| slot.timer != number) {
                    return Ok(());
                }
                self.with(at, |client, around| client.timer(around))
            }
            Event::VirtualLog(life, _) | Event::Store(life) | Event::Tick(life) => self.turn(life, event),
            Event::Deadline(life) => {
                if life == self.machine.life {
                    self.deadline_at = None;
                    return self.at_node(|process, said| process.settle(said));
                }
                Ok(())
            }
            Event::Fault => self.fault(),
            Event::Start => self.start(),
            Event::Thaw => {
                for event in std::mem::take(&mut self.held) {
                    self.take(event)?;
                }
                Ok(())
            }
            Event::Heal(fault) => {
                self.heal_one(fault);
                Ok(())
            }
        }
    }

    /// One of the node's threads has a turn, if the process that it was of still runs.
    fn turn(&mut self, life: u32, event: Event) -> Result<(), Violation> {
        let Some(process) = self.machine.process.as_ref().filter(|_| life == self.machine.life) else { return Ok(()) };
        let (more, idle_us) = match event {
            Event::VirtualLog(_, number) => (process.write_virtual_log(number), 1_000),
            Event::Store(_) => (process.step_store(), 10_000),
            _ => {
                process.tick(self.machine.clock.now_ms());
                (false, 1_000_000)
            }
        };
        let pause_us = if more { self.disk_us + self.below(self.disk_us) } else { idle_us };
        self.schedule.after(pause_us, event);
        self.after_disk()
    }

    fn note(&mut self, event: &Event) {
        self.trace.add(self.schedule.now_us());
        match event {
            Event::ToNode(wire, header, body) | Event::ToClient(wire, header, body) => {
                self.trace.add(*wire);
                self.trace.add(header.correlation);
                self.trace.add_bytes(body);
            }
            Event::VirtualLog(_, _) | Event::Store(_) | Event::Tick(_) | Event::Deadline(_) => {
                self.trace.add(self.machine.memory.steps());
            }
            _ => self.trace.add(self.events),
        }
    }

    /// The node does something; what it says is put on its way.
    fn at_node(&mut self, act: impl FnOnce(&mut super::machine::Process, &mut Vec<Said>)) -> Result<(), Violation> {
        let Some(process) = &mut self.machine.process else { return Ok(()) };
        let mut said = Vec::new();
        act(process, &mut said);
        self.send_all(said);
        self.after_turn()
    }

    /// A turn at the disk may have moved what sessions wait for; or it was the one at which the power went.
    fn after_disk(&mut self) -> Result<(), Violation> {
        if self.machine.memory.is_off() {
            self.lose_power();
            return Ok(());
        }
        self.at_node(|process, said| process.settle(said))
    }

    fn after_turn(&mut self) -> Result<(), Violation> {
        if self.machine.memory.is_off() {
            self.lose_power();
            return Ok(());
        }
        let Some(process) = &self.machine.process else { return Ok(()) };
        if let Some(at_us) = process.deadline_us()
            && self.deadline_at.is_none_or(|planned| at_us < planned)
        {
            self.deadline_at = Some(at_us);
            // The node's clock counts from its machine's first start, as the schedule does.
            self.schedule.at(at_us, Event::Deadline(self.machine.life));
        }
        Ok(())
    }

    fn send_all(&mut self, said: Vec<Said>) {
        for one in said {
            match one {
                Said::Frame(wire, header, body) => self.send(wire, 1, Event::ToClient(wire, header, body)),
                Said::Closed(wire) => {
                    if let Some(known) = self.wires.get_mut(&wire) {
                        known.is_open_at_node = false;
                    }
                    self.send(wire, 1, Event::LostAtClient(wire));
                }
            }
        }
    }

    /// Puts something on its way to one side of a connection, behind what is under way already.
    fn send(&mut self, wire: u64, side: usize, event: Event) {
        let (now_us, delay_us) = (self.schedule.now_us(), 50 + self.below(400));
        let held_until_us = self.cut_off_until_us;
        let Some(known) = self.wires.get_mut(&wire) else { return };
        if known.is_dead {
            return;
        }
        // What is cut off is sent again and again, and gets there when the network is whole.
        let at_us = (now_us + delay_us).max(known.last_us[side] + 1).max(held_until_us + delay_us);
        known.last_us[side] = at_us;
        self.schedule.at(at_us, event);
    }

    fn connect(&mut self, at: usize) {
        let wire = self.next_wire;
        self.next_wire += 1;
        if let Some(old) = self.clients[at].wire.take() {
            // The client has given it up: the node hears of it, if anything still gets there.
            self.send(old, 0, Event::LostAtNode(old));
            if let Some(known) = self.wires.get_mut(&old) {
                known.is_open_at_client = false;
            }
        }
        self.clients[at].wire = Some(wire);
        let known =
            Wire { client: at, is_open_at_client: true, is_open_at_node: false, is_dead: false, last_us: [0; 2] };
        self.wires.insert(wire, known);
        self.send(wire, 0, Event::Connected(wire));
    }

    fn connected(&mut self, wire: u64) -> Result<(), Violation> {
        let Some(process) = &mut self.machine.process else {
            // Refused: nobody listens.
            let delay_us = 10_000 + self.below(100_000);
            self.schedule.after(delay_us, Event::LostAtClient(wire));
            return Ok(());
        };
        let Some(known) = self.wires.get_mut(&wire).filter(|known| known.is_open_at_client) else { return Ok(()) };
        known.is_open_at_node = true;
        process.connect(wire);
        let Some(at) = self.client_of(wire) else { return Ok(()) };
        self.with(at, |client, around| client.connected(around))
    }

    fn client_of(&self, wire: u64) -> Option<usize> {
        let at = self.wires.get(&wire)?.client;
        (self.clients.get(at)?.wire == Some(wire)).then_some(at)
    }

    fn forget(&mut self, wire: u64) {
        self.wires.remove(&wire);
    }

    fn with(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut dyn Client, &mut Around<'_>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let slot = &mut self.clients[at];
        let mut around = Around {
            now_us: self.schedule.now_us(),
            random: &self.random,
            truth: &mut self.truth,
            wishes: Vec::new(),
            correlation: &mut slot.correlation,
        };
        let acted = act(&mut *slot.client, &mut around);
        let wishes = around.wishes;
        for wish in wishes {
            match wish {
                Wish::Connect => self.connect(at),
                Wish::Timer(delay_us) => {
                    self.clients[at].timer += 1;
                    let number = self.clients[at].timer;
                    self.schedule.after(delay_us, Event::Timer(at, number));
                }
                Wish::Send(header, body) => {
                    if let Some(wire) = self.clients[at].wire {
                        self.send(wire, 0, Event::ToNode(wire, header, body));
                    }
                }
            }
        }
        acted
    }

    fn start(&mut self) -> Result<(), Violation> {
        if self.machine.process.is_some() {
            return Ok(());
        }
        self.starts += 1;
        match self.machine.start() {
            Ok(()) => {
                let life = self.machine.life;
                let process = self.machine.process.as_ref().expect("it was started");
                for number in 0..process.virtual_logs() {
                    self.schedule.after(500, Event::VirtualLog(life, number));
                }
                self.schedule.after(700, Event::Store(life));
                self.schedule.after(1_000_000, Event::Tick(life));
                self.deadline_at = None;
                self.after_turn()
            }
            Err(StartError::Disk) => {
                if self.machine.memory.is_off() {
                    self.lose_power();
                } else {
                    self.kill();
                }
                Ok(())
            }
            Err(StartError::Unsound(why)) => Err(Violation(why)),
        }
    }

    /// The process ends; connections with it, and their clients learn of it, for the most part.
    fn end_process(&mut self) {
        let wires: Vec<u64> = self.wires.iter().filter(|(_, wire)| wire.is_open_at_node).map(|(id, _)| *id).collect();
        for wire in wires {
            self.send(wire, 1, Event::LostAtClient(wire));
            if let Some(known) = self.wires.get_mut(&wire) {
                known.is_open_at_node = false;
            }
        }
        self.deadline_at = None;
        self.frozen_until_us = 0;
        for event in std::mem::take(&mut self.held) {
            // Frames were for the process that is gone; the rest is for the world.
            if let Event::Connected(wire) = event {
                self.schedule.after(1_000, Event::LostAtClient(wire));
            }
        }
        let pause_us = 20_000 + self.below(1_000_000);
        self.schedule.after(pause_us, Event::Start);
    }

    fn kill(&mut self) {
        self.machine.kill();
        self.end_process();
    }

    fn lose_power(&mut self) {
        let seed = Random::next_u64(&self.random);
        self.machine.cut_power(seed);
        self.end_process();
    }

    fn count(&mut self, fault: Fault) {
        *self.counts.entry(fault.name()).or_default() += 1;
    }

    fn fault(&mut self) -> Result<(), Violation> {
        if !self.is_troubled {
            return Ok(());
        }
        self.schedule.after(pause_us(&self.random), Event::Fault);
        // There is nothing that may happen but the mildest of all.
        let fault = self.faults.draw(&self.random).unwrap_or(Fault::ConnectionLost);
        self.count(fault);
        self.trace.add(fault as u64);
        let now_us = self.schedule.now_us();
        let lasts_us = 50_000 + self.below(3_000_000);
        match fault {
            Fault::Kill => self.kill(),
            Fault::PowerCut => self.machine.memory.cut_power_at(1 + self.below(30)),
            Fault::Freeze => {
                if self.machine.process.is_some() && now_us >= self.frozen_until_us {
                    self.frozen_until_us = now_us + lasts_us;
                    self.schedule.after(lasts_us, Event::Thaw);
                }
            }
            Fault::ConnectionLost | Fault::ConnectionDead => {
                let open: Vec<u64> =
                    self.wires.iter().filter(|(_, w)| w.is_open_at_client).map(|(id, _)| *id).collect();
                let Some(wire) = open.get(self.below(open.len().max(1) as u64) as usize).copied() else {
                    return Ok(());
                };
                if fault == Fault::ConnectionLost {
                    self.send(wire, 0, Event::LostAtNode(wire));
                    self.send(wire, 1, Event::LostAtClient(wire));
                }
                if let Some(known) = self.wires.get_mut(&wire) {
                    known.is_dead = true;
                }
            }
            Fault::Partition => self.cut_off_until_us = now_us + lasts_us,
            Fault::DiskFull => {
                self.machine.disk.set_space(Some(self.below(64 << 10)));
                self.trouble_disk(fault, lasts_us);
            }
            Fault::DiskBroken => {
                self.machine.disk.set_broken(true);
                self.trouble_disk(fault, lasts_us);
            }
            Fault::WriteFails => {
                self.machine.disk.fail_write(1 + self.below(5));
                self.machine.is_troubled = true;
            }
            Fault::WriteTorn => {
                self.machine.disk.tear_write(1 + self.below(5));
                self.machine.is_troubled = true;
            }
            Fault::SyncFails => {
                self.machine.disk.fail_sync(1 + self.below(3));
                self.machine.is_troubled = true;
            }
            Fault::DiskSlow => {
                self.disk_us = 5_000 + self.below(100_000);
                self.schedule.after(lasts_us, Event::Heal(fault));
            }
            Fault::ClockJump => {
                let by_ms = self.below(7_200_000) as i64 - 3_600_000;
                self.machine.clock.set_now_ms(self.machine.clock.now_ms() + by_ms);
            }
        }
        Ok(())
    }

    fn trouble_disk(&mut self, fault: Fault, lasts_us: u64) {
        self.machine.is_troubled = true;
        self.schedule.after(lasts_us, Event::Heal(fault));
    }

    fn heal_one(&mut self, fault: Fault) {
        match fault {
            Fault::DiskFull => self.machine.disk.set_space(None),
            Fault::DiskBroken => self.machine.disk.set_broken(false),
            Fault::DiskSlow => self.disk_us = 300,
            _ => {}
        }
    }

    /// From here on nothing goes wrong.
    fn heal(&mut self) {
        self.is_troubled = false;
        self.machine.disk.heal();
        self.machine.memory.cut_power_at(u64::MAX / 2);
        for fault in [Fault::DiskFull, Fault::DiskBroken, Fault::DiskSlow] {
            self.heal_one(fault);
        }
        self.cut_off_until_us = 0;
    }
}

impl Event {
    /// Whether it is for the node's process, which may stand still.
    fn is_of_node(&self) -> bool {
        use Event::{Connected, Deadline, LostAtNode, Store, Tick, ToNode, VirtualLog};
        matches!(self, ToNode(..) | LostAtNode(_) | Connected(_) | VirtualLog(..) | Store(_) | Tick(_) | Deadline(_))
    }
}
