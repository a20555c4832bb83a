//! The state of a replicated log: what is on its way to whom, which view holds, what is acknowledged.
//!
//! State of one thread, the log's. Nothing here waits, and nothing here knows sockets or clocks: it is told what happened
//! and when, and it says what is to be sent. The rules are those of `docs/replication.md`; the two that everything stands on
//! are [`Core::acknowledge`] and [`Core::begin_change`].

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use kera_format::SegmentId;
use kera_format::cluster::Rack;
use kera_format::vlog::QUESTIONS;
use kera_format::vlog_replica::LogId;

use super::choice::{Choice, Next, who_leaves};
use super::kept::KeptBlocks;
use super::{Answer, BackupId, Block, Event, ReplicatedConfig, View, ViewAnswer};

/// Time until it is logged again that a backup is to be replaced, and why.
const SAY_AGAIN_US: u64 = 5_000_000;
/// What was sent to a backup that says nothing is sent again after twice as long each time, up to so long: it may take all of it and never come
/// to an answer.
const RESEND_US_MAX: u64 = 5_000_000;

/// A backup that is in trouble and has stored nothing for so long is not there. Longer than it takes to replace one, or to start a node again
/// that was only stopped: what producers are told then costs each of them a try, of which some have few.
const NOT_THERE_AFTER_US: u64 = 5_000_000;

/// A backup of the current view.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// It has all blocks of the view up to here.
    stored: u64,
    /// Which of its lives has said so, or is the last that has said anything of the view's blocks; zero: none has.
    life: u64,
    /// The next block to send.
    next: u64,
    /// The highest block that was sent.
    sent: u64,
    /// When it last stored something, or was sent something while it had nothing to do.
    progress_us: u64,
    /// When something was sent last, or it stored something.
    sent_us: u64,
    /// How often what it has not stored was sent again since it has answered, or its connection broke.
    tries: u32,
    /// Nothing is sent before.
    hold_until_us: u64,
    /// Why it is to be replaced.
    trouble: Option<String>,
    /// Since when it has stored nothing and is in trouble, or was, and is tried again since there is no other.
    missing_since_us: Option<u64>,
    /// The first block that it does not have any more, of those that it had. It is as good as a new one for a view that begins behind them.
    lost: Option<u64>,
}

impl Peer {
    fn new(first: u64, now_us: u64) -> Peer {
        let (stored, next) = (first - 1, first);
        let times = (now_us, now_us);
        let (progress_us, sent_us) = times;
        let (life, tries, hold_until_us, lost) = (0, 0, 0, None);
        let (sent, trouble, missing_since_us) = (stored, None, None);
        Peer { stored, life, next, sent, progress_us, sent_us, tries, hold_until_us, trouble, missing_since_us, lost }
    }

    /// Whether it has not stored what is under way for longer than it takes to replace it. One to which nothing is under way is never: nothing would
    /// show that it is back.
    fn is_not_there(&self, last: u64, now_us: u64) -> bool {
        let is_long = |since_us: u64| now_us.saturating_sub(since_us) > NOT_THERE_AFTER_US;
        self.stored < last && self.missing_since_us.is_some_and(is_long)
    }

    /// Whether it has said nothing for so long that all it has not stored is to be sent again.
    fn is_silent(&self, now_us: u64, resend_us: u64) -> bool {
        let after_us = resend_us.saturating_mul(1 << self.tries.min(16)).min(RESEND_US_MAX.max(resend_us));
        now_us.saturating_sub(self.sent_us) > after_us
    }

    /// What it has not stored is sent again as soon as anything is.
    fn begin_again(&mut self) {
        (self.next, self.tries) = (self.stored + 1, 0);
    }
}

/// A view that the coordinator was asked for and has not agreed to yet.
struct Change {
    view: View,
    asked_us: u64,
}

/// A view that another one has followed, and that somebody needs yet.
struct Older {
    view: View,
    /// The block in front of the next view's first one.
    last: u64,
    /// All its backups are there and have all of it, as was seen last.
    complete: bool,
    /// One of them does not have all of it, as was seen last.
    lacking: bool,
    /// Those that have said that they do not have all of it. That stays true whatever they say later: what is damaged a backup notes in its memory, and a start of it may
    /// take the block for whole again.
    lost: BTreeSet<BackupId>,
}

/// What is to be done outside, in this order.
pub(crate) enum Effect {
    Send(BackupId, Arc<Block>),
    Ask(View),
    Release(BackupId, u64),
    GiveUpView(u32),
    Fenced,
}

/// See the module.
pub(crate) struct Core {
    config: ReplicatedConfig,
    log: LogId,
    pub(crate) view: View,
    peers: BTreeMap<BackupId, Peer>,
    change: Option<Change>,
    /// All views that were asked for since the last one that holds, `change`'s included. That one of them was refused says nothing of the same question that
    /// is still on its way: any of them may be agreed to yet, and nothing is acknowledged before it is known which.
    unsettled: Vec<View>,
    /// It looks for backups for the next view.
    choice: Option<Choice>,
    /// Who is to leave a view that is whole, for one in another rack; it does if that one answers.
    leaving: Option<BackupId>,
    /// When that is looked at again.
    spread_at_us: u64,
    /// Questions that were put.
    questions: u64,
    /// Backups that were replaced, and until when they are not chosen again.
    suspects: BTreeMap<BackupId, u64>,
    /// When it was last logged that one is to be replaced.
    said_us: BTreeMap<BackupId, u64>,
    /// All that ever had blocks and may have to give them back.
    holders: BTreeMap<BackupId, u64>,
    next_block: u64,
    pub(crate) acknowledged: u64,
    /// The broker's own copy is as durable as it must be up to here.
    own: u64,
    /// From `acknowledged + 1` on.
    blocks: VecDeque<Arc<Block>>,
    /// Since when the first chunk of each of them has waited.
    since_us: VecDeque<u64>,
    bytes_under_way: u64,
    pub(crate) kept: KeptBlocks,
    /// When the view was agreed to.
    view_since_us: u64,
    /// Since when the view has had fewer backups than the least number of copies needs, as that of a log has that begins: looked at from the first turn on.
    too_few_since_us: Option<u64>,
    /// Views before the present one, the oldest first.
    older: Vec<Older>,
    pub(crate) fenced: bool,
    pub(crate) effects: Vec<Effect>,
    pub(crate) views_changed: u64,
    pub(crate) resent: u64,
    /// No view is asked for before: the last one was refused, or there was nobody to choose.
    choose_after_us: u64,
}

impl Core {
    pub(crate) fn new(config: ReplicatedConfig, view: View, now_us: u64) -> Core {
        let peers = view.backups.iter().map(|backup| (*backup, Peer::new(view.first, now_us))).collect();
        let holders = view.backups.iter().map(|backup| (*backup, 0)).collect();
        Core {
            log: config.log,
            kept: KeptBlocks::new(config.stretch_bytes),
            config,
            next_block: view.first,
            acknowledged: view.first - 1,
            own: view.first - 1,
            view,
            peers,
            change: None,
            unsettled: Vec::new(),
            choice: None,
            leaving: None,
            spread_at_us: 0,
            questions: 0,
            suspects: BTreeMap::new(),
            said_us: BTreeMap::new(),
            holders,
            blocks: VecDeque::new(),
            since_us: VecDeque::new(),
            bytes_under_way: 0,
            view_since_us: now_us,
            too_few_since_us: None,
            older: Vec::new(),
            fenced: false,
            effects: Vec::new(),
            views_changed: 0,
            resent: 0,
            choose_after_us: 0,
        }
    }

    pub(crate) fn next_block(&self) -> u64 {
        self.next_block
    }

    pub(crate) fn under_way(&self) -> (usize, u64) {
        (self.blocks.len(), self.bytes_under_way)
    }

    /// For how long the oldest chunk that is in a block under way has waited, for that block and in it. What waits for a block is younger than it, for there is
    /// always room for a block when none is under way.
    pub(crate) fn lag_us(&self, now_us: u64) -> u64 {
        // Few, and those of what nobody waits for are as young as they are themselves.
        self.since_us.iter().min().map_or(0, |since_us| now_us.saturating_sub(*since_us))
    }

    /// Whether another block may be made now.
    pub(crate) fn has_room(&self) -> bool {
        !self.fenced
            && self.blocks.len() < self.config.blocks_under_way_max
            && self.bytes_under_way < self.config.bytes_under_way_max
    }

    /// Blocks under way of what nobody waits for.
    pub(crate) fn behind_under_way(&self) -> usize {
        self.blocks.iter().filter(|block| block.is_behind).count()
    }

    /// Why nothing can be acknowledged for the moment, if the stream's least number of copies cannot be had.
    pub(crate) fn too_few(&self) -> Option<String> {
        let copies = 1 + self.peers.values().filter(|peer| peer.trouble.is_none()).count() as u32;
        (copies < self.config.copies_min).then(|| {
            let why = self.peers.values().filter_map(|peer| peer.trouble.clone()).next().unwrap_or_default();
            let least = self.config.copies_min;
            format!("{} has {copies} copies, writes wait for {least} ({why}); start backups", self.log)
        })
    }

    /// The same where it has lasted, and is not over for a moment since backups that do not answer are tried again. While it says so nothing need be appended,
    /// and it ends all the same: the blocks under way, of which one has waited for as long, go on being sent to who does not have them. In a log whose view has too few
    /// backups nothing is under way, for nothing was taken: backups are looked for at each turn, whether or not anything waits, and a view with enough of them ends it.
    pub(crate) fn too_few_for_long(&self, now_us: u64) -> Option<String> {
        let is_long = |since_us: u64| now_us.saturating_sub(since_us) > NOT_THERE_AFTER_US;
        if self.lag_us(now_us) <= NOT_THERE_AFTER_US && !self.too_few_since_us.is_some_and(is_long) {
            return None;
        }
        let last = self.next_block - 1;
        let there = self.peers.values().filter(|peer| !peer.is_not_there(last, now_us)).count() as u32;
        let (copies, least) = (1 + there, self.config.copies_min);
        (copies < least).then(|| {
            let seconds = NOT_THERE_AFTER_US / 1_000_000;
            format!(
                "{} has had {copies} copies for more than {seconds} s, and writes need {least}; start backups",
                self.log
            )
        })
    }

    /// A block was made, the first chunk of which has waited since then: it goes to everybody.
    pub(crate) fn push(&mut self, block: Arc<Block>, since_us: u64) {
        debug_assert_eq!(block.number, self.next_block);
        self.next_block += 1;
        self.bytes_under_way += u64::from(block.chunk_bytes);
        self.kept.note(block.number, block.chunk_bytes.into(), &block.references);
        self.blocks.push_back(block);
        self.since_us.push_back(since_us);
    }

    pub(crate) fn event(&mut self, event: Event, now_us: u64) {
        if self.fenced {
            return;
        }
        match event {
            Event::Answered(backup, life, number, answer) => self.answered((backup, life), number, answer, now_us),
            Event::Broken(backup, why) => {
                if let Some(choice) = &mut self.choice {
                    choice.told(backup, false);
                }
                self.peers.get_mut(&backup).into_iter().for_each(Peer::begin_again);
                self.trouble(backup, why, now_us);
            }
            Event::View(answer) => self.view_answered(answer, now_us),
            Event::Lost(backup, view, block) if view == self.view.number => self.lost(backup, block, now_us),
            Event::Lost(backup, view, block) => self.lost_of_older(backup, view, block),
            Event::Own(through) => self.own = through.max(self.own),
        }
    }

    /// A backup has answered to block `number`, in one of its lives.
    ///
    /// A backup that asks for a block which it has said to have either asks late, for answers overtake each other, or has lost the block: its
    /// machine's power went before it was synced. Taken for a loss, a late question costs a view; taken for a late one, a loss leaves
    /// acknowledged blocks with a copy less than anybody knows, and with none if the others go. What tells the two apart is the *life* of
    /// the backup that answers: from opening its files to its end, with the blocks that it has in memory and in its files.
    ///
    /// * *Within a life a backup loses nothing that it has answered for.* What it answers for is written, and neither a failed write nor
    ///   a failed sync takes that back; it gives back what the log lets go, and does not ask for that. So of two answers of one life of which
    ///   one says that a block is there and the other one asks for it, the question was asked before. It is late, whenever it comes.
    /// * *An earlier life says nothing of a later one.* Its answers do not count any more as soon as a later one has told of the view's
    ///   blocks: that may have less, by a loss, or more.
    /// * *A later life is believed in what it says itself.* Where that is less than what an earlier one has answered for, the blocks are lost.
    ///   So what is known of the backup is never put together from two lives: either the later one has shown that it has as much, or
    ///   it has lost something, and all that counts is what it has.
    fn answered(&mut self, (backup, life): (BackupId, u64), number: u64, answer: Answer, now_us: u64) {
        if let Answer::Fenced(_) = answer {
            return self.fence();
        }
        if Block::asks(number) {
            self.told_of_itself(backup, number, &answer);
        }
        let Some(peer) = self.peers.get_mut(&backup) else { return };
        // Up to where it says that it has the view's blocks, if it does.
        let told = match answer {
            Answer::Stored(through) if (self.view.first..self.next_block).contains(&number) => Some(through),
            Answer::Next(next) if next >= self.view.first => Some(next - 1),
            _ => None,
        };
        if life < peer.life {
            return;
        }
        if let Some(through) = told {
            let is_another = std::mem::replace(&mut peer.life, life) != life;
            if is_another && through < peer.stored {
                return self.lost(backup, through + 1, now_us);
            }
        }
        // That it answers questions says nothing of blocks: its disk may stand still.
        if !Block::asks(number) {
            peer.tries = 0;
        }
        match answer {
            // It has all blocks up to there from the first one of the view in which this was sent; that view began no later than the
            // current one, or this backup is new in the current one. That it has the block itself says less: a loss of power, with durability
            // `process`, may have left it blocks behind a hole.
            Answer::Stored(_) => {
                let through = told.map_or(0, |through| through.min(self.next_block - 1));
                if through > peer.stored {
                    (peer.stored, peer.progress_us, peer.sent_us) = (through, now_us, now_us);
                    peer.missing_since_us = None;
                }
            }
            // Looked at above; it has taken nothing, and nothing is to be sent again.
            _ if Block::asks(number) => {}
            Answer::Fenced(_) => {}
            Answer::Next(next) => {
                // Late, or of an older try: it asks for what it has since. It did not take the block that it was asked about.
                let next = next.max(peer.stored + 1);
                if next <= number && next < peer.next {
                    peer.next = next.max(self.view.first);
                    self.resent += 1;
                }
            }
            Answer::Busy(_) => {
                peer.begin_again();
                peer.hold_until_us = now_us + self.config.busy_us;
            }
            Answer::Refused(why) => {
                peer.begin_again();
                self.trouble(backup, why, now_us);
            }
        }
    }

    fn trouble(&mut self, backup: BackupId, why: String, now_us: u64) {
        if let Some(peer) = self.peers.get_mut(&backup)
            && peer.trouble.is_none()
        {
            // Where nobody is left to choose it is asked again ten times a second: a full disk need not be filled with that.
            let said_us = self.said_us.get(&backup);
            if said_us.is_none_or(|said_us| now_us.saturating_sub(*said_us) > SAY_AGAIN_US) {
                self.said_us.insert(backup, now_us);
                tracing::warn!(log = %self.log, backup, why, "a backup is to be replaced");
            }
            peer.trouble = Some(why);
            peer.missing_since_us = peer.missing_since_us.or(Some(now_us));
        }
    }

    /// A backup does not have a block any more that it had: it lost its power before it was synced.
    fn lost(&mut self, backup: BackupId, block: u64, now_us: u64) {
        if let Some(peer) = self.peers.get_mut(&backup) {
            peer.lost = Some(peer.lost.map_or(block, |known| known.min(block)));
            peer.stored = peer.stored.min(block - 1);
        }
        self.trouble(backup, format!("backup {backup} has lost block {block}, which it had"), now_us);
    }

    /// A backup does not have a block of an older view any more.
    fn lost_of_older(&mut self, backup: BackupId, view: u32, block: u64) {
        let has_it = |older: &&mut Older| older.view.number == view && block <= older.last;
        let Some(older) = self.older.iter_mut().find(has_it) else { return };
        if older.view.backups.contains(&backup) && older.lost.insert(backup) {
            tracing::warn!(log = %self.log, view, backup, block, "a backup has lost a block of an older view; what is needed of that is copied again");
        }
    }

    /// Blocks of this log are not taken any more: this node was declared lost. What is not acknowledged never will be.
    fn fence(&mut self) {
        if !self.fenced {
            self.fenced = true;
            self.blocks.clear();
            self.since_us.clear();
            self.bytes_under_way = 0;
            self.effects.push(Effect::Fenced);
        }
    }

    /// Takes the blocks that are acknowledged now: those that the own copy and **every** backup of the current view have, in
    /// their order, and none while a view change is under way.
    ///
    /// Why none: recovery believes any backup of the newest view. Once the coordinator was asked for a view it may be the newest
    /// one at any moment, and its backups need have nothing before its first block *c* + 1. As *c* was fixed when it was asked
    /// for, everything that is acknowledged later must be at the backups of that view, and so waits for the answer. A refusal is none: the same
    /// question may have been put twice, by whoever carries it, and be agreed to the second time, when a backup that was not there is back.
    pub(crate) fn acknowledge(&mut self) -> Vec<Arc<Block>> {
        let mut acknowledged = Vec::new();
        if !self.unsettled.is_empty() || self.fenced || (self.view.backups.len() as u32) + 1 < self.config.copies_min {
            return acknowledged;
        }
        let through = self.peers.values().map(|peer| peer.stored).min().unwrap_or(u64::MAX).min(self.own);
        while self.blocks.front().is_some_and(|block| block.number <= through) {
            let Some(block) = self.blocks.pop_front() else { break };
            self.since_us.pop_front();
            self.acknowledged = block.number;
            self.bytes_under_way -= u64::from(block.chunk_bytes);
            acknowledged.push(block);
        }
        acknowledged
    }

    /// Notes who is late, asks for another view if somebody is to be replaced, sends what is to be sent. `candidates` is called
    /// when backups are to be chosen.
    pub(crate) fn turn(&mut self, now_us: u64, candidates: &dyn Fn() -> Vec<(BackupId, Rack)>) {
        if self.fenced {
            return;
        }
        let is_too_small = (self.view.backups.len() as u32) + 1 < self.config.copies_min;
        self.too_few_since_us = is_too_small.then(|| self.too_few_since_us.unwrap_or(now_us));
        self.note_late(now_us);
        match &mut self.change {
            Some(change) if now_us >= change.asked_us + self.config.ask_again_us => {
                // Asking twice is answered like asking once.
                change.asked_us = now_us;
                self.effects.push(Effect::Ask(change.view.clone()));
            }
            Some(_) => {}
            None => self.begin_change(now_us, candidates),
        }
        self.send(now_us);
    }

    fn note_late(&mut self, now_us: u64) {
        let late: Vec<BackupId> = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.stored < peer.sent && peer.trouble.is_none())
            .filter(|(_, peer)| now_us.saturating_sub(peer.progress_us) > self.config.late_us)
            .map(|(backup, _)| *backup)
            .collect();
        for backup in late {
            let why = format!("backup {backup} has stored nothing for {} ms", self.config.late_us / 1000);
            self.trouble(backup, why, now_us);
        }
    }

    /// A backup has answered whether it takes blocks. One that is busy may be there in a moment.
    fn told_of_itself(&mut self, backup: BackupId, question: u64, answer: &Answer) {
        let Some(choice) = self.choice.as_mut().filter(|choice| choice.question == question) else { return };
        match answer {
            Answer::Stored(_) | Answer::Next(_) => choice.told(backup, true),
            Answer::Refused(_) => choice.told(backup, false),
            Answer::Busy(_) | Answer::Fenced(_) => {}
        }
    }

    /// Chooses backups in place of those that are to be replaced, asks whether they are there, and asks for the view.
    fn begin_change(&mut self, now_us: u64, candidates: &dyn Fn() -> Vec<(BackupId, Rack)>) {
        let wanted = self.config.copies.saturating_sub(1) as usize;
        let mut healthy: Vec<BackupId> =
            self.peers.iter().filter(|(_, peer)| peer.trouble.is_none()).map(|(backup, _)| *backup).collect();
        if healthy.len() >= wanted && self.unsettled.is_empty() {
            if self.leaving.is_none() {
                self.choice = None;
                self.leaving = self.who_leaves(now_us, &healthy, candidates);
            }
            let Some(leaving) = self.leaving else { return };
            healthy.retain(|backup| *backup != leaving);
        } else {
            self.leaving = None;
        }
        if now_us < self.choose_after_us {
            return;
        }
        if self.choice.is_none() {
            self.begin_choice(now_us, healthy, wanted, candidates());
        }
        let least = self.config.copies_min.saturating_sub(1) as usize;
        let times = (self.config.ask_again_us, self.config.late_us);
        let Some(choice) = &mut self.choice else { return };
        match choice.next(now_us, least, times) {
            Next::Wait => {}
            Next::Ask(silent) => {
                let question = Arc::new(Block::question(self.log, choice.question));
                self.effects.extend(silent.into_iter().map(|to| Effect::Send(to, Arc::clone(&question))));
            }
            Next::Name(there) => {
                (self.choice, self.leaving) = (None, None);
                let live = candidates();
                let is_well = |backup: &BackupId| {
                    let peer = self.peers.get(backup);
                    live.iter().any(|(known, _)| known == backup)
                        && peer.is_none_or(|peer| peer.trouble.is_none() || peer.lost.is_some())
                };
                self.ask_for(there.into_iter().filter(is_well).collect(), now_us);
            }
            Next::Late(silent) => {
                (self.choice, self.leaving) = (None, None);
                for backup in silent {
                    let why = format!("backup {backup} has not answered for {} ms", self.config.late_us / 1000);
                    self.suspects.insert(backup, now_us + self.config.suspect_us);
                    self.trouble(backup, why, now_us);
                }
                self.begin_change(now_us, candidates);
            }
        }
    }

    /// Of a view that is whole, who shares a rack that it need not share: while one was down its place was taken by somebody, and nothing else makes a log
    /// take another view. What lies in older blocks stays where it is.
    fn who_leaves(
        &mut self,
        now_us: u64,
        healthy: &[BackupId],
        candidates: &dyn Fn() -> Vec<(BackupId, Rack)>,
    ) -> Option<BackupId> {
        let since_us = now_us.saturating_sub(self.view_since_us);
        if now_us < self.spread_at_us || since_us < self.config.spread_after_us {
            return None;
        }
        self.spread_at_us = now_us + self.config.spread_after_us;
        let (view, others): (Vec<_>, Vec<_>) =
            candidates().into_iter().partition(|(backup, _)| healthy.contains(backup));
        let is_free = |(backup, _): &(BackupId, Rack)| self.suspects.get(backup).is_none_or(|until| *until <= now_us);
        let others: Vec<_> = others.into_iter().filter(is_free).collect();
        // One of the view that the coordinators have lost is replaced for that reason.
        who_leaves(&view, &others).filter(|_| view.len() == healthy.len())
    }

    /// Looks whom to ask. In a log to which nothing is written a backup that is lost looks healthy; the coordinators would refuse a view with it, if
    /// they know.
    fn begin_choice(&mut self, now_us: u64, healthy: Vec<BackupId>, wanted: usize, live: Vec<(BackupId, Rack)>) {
        self.suspects.retain(|_, until| *until > now_us);
        for (backup, _) in self.peers.iter().filter(|(_, peer)| peer.trouble.is_some() && peer.lost.is_none()) {
            self.suspects.insert(*backup, now_us + self.config.suspect_us);
        }
        let stays = |backup: &BackupId| healthy.contains(backup);
        let is_suspect = |backup: &BackupId| self.suspects.contains_key(backup);
        let is_reserve = |backup: &BackupId| is_suspect(backup) && !self.peers.contains_key(backup);
        let reserve = live.iter().map(|(backup, _)| *backup).filter(is_reserve).collect();
        let staying = live.iter().copied().filter(|(backup, _)| stays(backup)).collect();
        let others = live.into_iter().filter(|(backup, _)| !stays(backup) && !is_suspect(backup)).collect();
        self.questions += 1;
        let question = QUESTIONS + self.questions;
        let choice = Choice::new(question, staying, (others, reserve), wanted, now_us);
        if self.is_another(&choice.may_be(self.config.copies_min.saturating_sub(1) as usize)) {
            self.choice = Some(choice);
        } else {
            self.ask_for(Vec::new(), now_us);
        }
    }

    /// Whether a view of some of these would be one of enough copies, and not the one there is, unless there is to be another one in any case.
    fn is_another(&self, backups: &[BackupId]) -> bool {
        let is_same =
            backups.len() == self.view.backups.len() && backups.iter().all(|backup| self.view.backups.contains(backup));
        let is_due = !self.unsettled.is_empty() || self.peers.values().any(|peer| peer.lost.is_some());
        let is_enough = !backups.is_empty() && backups.len() as u32 + 1 >= self.config.copies_min;
        is_enough && (!is_same || is_due)
    }

    /// Asks for a view. Its first block is fixed here, as the one behind the last that was acknowledged, and from here on nothing is acknowledged
    /// until the coordinator has answered.
    fn ask_for(&mut self, mut backups: Vec<BackupId>, now_us: u64) {
        backups.sort_unstable();
        self.choose_after_us = now_us + self.config.ask_again_us;
        if !self.is_another(&backups) {
            // The ones there are may come back: they are sent to again, the later the longer they have said nothing, and counted if they answer.
            for peer in self.peers.values_mut().filter(|peer| peer.trouble.is_some() && peer.lost.is_none()) {
                (peer.trouble, peer.progress_us) = (None, now_us);
            }
            return;
        }
        let view = View { number: self.view.number + 1, first: self.acknowledged + 1, backups };
        self.effects.push(Effect::Ask(view.clone()));
        if !self.unsettled.contains(&view) {
            self.unsettled.push(view.clone());
        }
        self.change = Some(Change { view, asked_us: now_us });
    }

    fn view_answered(&mut self, answer: ViewAnswer, now_us: u64) {
        match answer {
            ViewAnswer::Fenced => self.fence(),
            ViewAnswer::Agreed(view) => self.settle(view, now_us),
            ViewAnswer::Refused { newest, .. } if newest.number > self.view.number => {
                if self.unsettled.contains(&newest) {
                    return self.settle(newest, now_us);
                }
                if !self.unsettled.is_empty() {
                    // Only this log asks for its views: somebody else is this node.
                    tracing::error!(log = %self.log, newest = newest.number, "the coordinator knows a view that was never asked for");
                    self.fence();
                }
            }
            ViewAnswer::Refused { asked, newest } => {
                let Some(change) = self.change.as_ref().filter(|change| change.view == asked && newest == self.view)
                else {
                    // A late answer to an older question, or by somebody who knows less than this log.
                    return;
                };
                tracing::warn!(log = %self.log, view = change.view.number, "a view was refused; others are chosen");
                let new: Vec<BackupId> =
                    change.view.backups.iter().copied().filter(|backup| !self.peers.contains_key(backup)).collect();
                self.change = None;
                for backup in new {
                    self.suspects.insert(backup, now_us + self.config.suspect_us);
                }
                self.choose_after_us = now_us + self.config.ask_again_us;
            }
        }
    }

    /// One of the views that were asked for is agreed to. All of them have one number and one first block, so each of them follows the one that
    /// holds; an answer that is late speaks of none of them.
    fn settle(&mut self, view: View, now_us: u64) {
        if self.unsettled.contains(&view) {
            self.unsettled.clear();
            (self.change, self.choice) = (None, None);
            self.use_view(view, now_us);
        }
    }

    /// The coordinator has agreed. Blocks from the view's first one on go to all: those that stay have most of them and say so again. What
    /// they answered before does not count, for they may have lost their power since and not know of it: with the backup that is
    /// replaced nobody but this node would have what was acknowledged then.
    fn use_view(&mut self, view: View, now_us: u64) {
        let before = std::mem::replace(&mut self.view, view);
        if before.number > 0 {
            // Who has lost something may be in this view as well, and lacks some of what is before.
            let last = self.view.first - 1;
            let has_lost = |peer: &Peer| peer.lost.is_some_and(|block| block <= last);
            let lost = self.peers.iter().filter(|(_, peer)| has_lost(peer)).map(|(backup, _)| *backup).collect();
            self.older.push(Older { view: before, last, complete: false, lacking: false, lost });
        }
        self.view_since_us = now_us;
        // Somebody was lost, and may be in any of them.
        self.older.iter_mut().for_each(|older| older.complete = false);
        self.kept.seal();
        let mut peers = BTreeMap::new();
        for backup in &self.view.backups {
            let peer = match self.peers.remove(backup) {
                Some(Peer { trouble, missing_since_us, life, lost, .. }) => {
                    let (trouble, missing_since_us) =
                        if lost.is_some() { (None, None) } else { (trouble, missing_since_us) };
                    Peer { trouble, missing_since_us, life, ..Peer::new(self.view.first, now_us) }
                }
                None => Peer::new(self.view.first, now_us),
            };
            peers.insert(*backup, peer);
            self.holders.entry(*backup).or_default();
        }
        self.peers = peers;
        self.views_changed += 1;
        tracing::info!(log = %self.log, view = self.view.number, first = self.view.first, backups = ?self.view.backups,
            "the log has another view");
    }

    fn send(&mut self, now_us: u64) {
        let last = self.next_block - 1;
        let first_here = self.acknowledged + 1;
        for (backup, peer) in &mut self.peers {
            if peer.trouble.is_some() || now_us < peer.hold_until_us {
                continue;
            }
            if peer.stored < last && peer.next > last && peer.is_silent(now_us, self.config.resend_us) {
                (peer.next, peer.tries) = (peer.stored + 1, peer.tries + 1);
                self.resent += 1;
            }
            peer.next = peer.next.max(first_here);
            if peer.next > last {
                continue;
            }
            if peer.stored >= peer.sent {
                // It had nothing to do.
                peer.progress_us = now_us;
            }
            for block in self.blocks.iter().skip((peer.next - first_here) as usize) {
                self.effects.push(Effect::Send(*backup, Arc::clone(block)));
            }
            (peer.next, peer.sent, peer.sent_us) = (last + 1, last, now_us);
        }
    }

    /// Files that nobody needs go, at every backup that has ever had blocks.
    pub(crate) fn release(&mut self) {
        let Some(through) = self.kept.release(self.acknowledged) else { return };
        for (backup, released) in &mut self.holders {
            *released = through;
            self.effects.push(Effect::Release(*backup, through));
        }
    }

    /// The blocks of the present view that all its backups have said to have, as far as they are not given back.
    pub(crate) fn held(&self) -> RangeInclusive<u64> {
        self.view.first.max(self.kept.released() + 1)..=self.acknowledged
    }

    /// The older views that have blocks which are not given back, each with all of its blocks that are acknowledged: those that are given back as well, for whoever
    /// takes over asks for all.
    pub(crate) fn held_before(&self) -> Vec<(View, RangeInclusive<u64>)> {
        let of_view =
            |(older, blocks): (&Older, RangeInclusive<u64>)| (older.view.clone(), older.view.first..=*blocks.end());
        self.older_blocks().map(of_view).collect()
    }

    /// The blocks of each older view that are not given back, as far as they are acknowledged.
    fn older_blocks(&self) -> impl Iterator<Item = (&Older, RangeInclusive<u64>)> {
        let blocks = self.older.iter().map(|older| {
            let first = older.view.first.max(self.kept.released() + 1);
            (older, first..=older.last.min(self.acknowledged))
        });
        blocks.filter(|(_, blocks)| !blocks.is_empty())
    }

    /// See [`blocks_of`](super::ReplicatedLog::blocks_of). Blocks that were under way when a view began are in a stretch with those before, and at its backups.
    pub(crate) fn blocks_of(&self, segment: SegmentId) -> Vec<(RangeInclusive<u64>, Vec<BackupId>)> {
        let older = self.older.iter().map(|older| (&older.view, older.last));
        let views: Vec<(&View, u64)> = older.chain([(&self.view, u64::MAX)]).collect();
        let mut found = Vec::new();
        for stretch in self.kept.blocks_of(segment) {
            for (view, last) in views.iter().rev() {
                let through = (*last).min(*stretch.end()).min(self.acknowledged);
                let blocks = view.first.max(*stretch.start())..=through;
                if !blocks.is_empty() {
                    found.push((blocks, view.backups.clone()));
                }
            }
        }
        found
    }

    /// See [`look_at_copies`](super::ReplicatedLog::look_at_copies).
    pub(crate) fn look_at_copies(
        &mut self,
        has: &dyn Fn(BackupId, &RangeInclusive<u64>) -> bool,
        lacks: &dyn Fn(BackupId, &RangeInclusive<u64>) -> bool,
    ) {
        let look = |(older, blocks): (&Older, RangeInclusive<u64>)| {
            let backups = || older.view.backups.iter().copied();
            let (complete, lacking) =
                (backups().all(|backup| has(backup, &blocks)), backups().any(|backup| lacks(backup, &blocks)));
            (older.view.number, (complete, lacking))
        };
        let seen: BTreeMap<u32, (bool, bool)> = self.older_blocks().map(look).collect();
        for older in &mut self.older {
            (older.complete, older.lacking) = seen.get(&older.view.number).copied().unwrap_or_default();
        }
    }

    /// Blocks that are needed and have fewer copies than they should, or others than the present view if it is not known that those have them: of older views, and
    /// of this one while a backup of it is in trouble or there are too few.
    pub(crate) fn under_replicated(&self) -> u64 {
        let is_well = self.view.backups.len() + 1 >= self.config.copies as usize
            && self.peers.values().all(|peer| peer.trouble.is_none());
        let now = if is_well { 0 } else { self.kept.needed(&(self.view.first..=self.acknowledged)) };
        let lacks = |older: &Older| {
            let backups = &older.view.backups;
            backups.len() + 1 < self.config.copies as usize
                || older.lacking
                || !older.lost.is_empty()
                || (!older.complete && backups.iter().any(|backup| !self.view.backups.contains(backup)))
        };
        let older = self.older_blocks().filter(|(older, _)| lacks(older));
        now + older.map(|(_, blocks)| self.kept.needed(&blocks)).sum::<u64>()
    }

    /// Segments that are to be copied again. Those of blocks that lack copies only while the view has all its backups, and has had
    /// them for a while: what is copied again need not be at any other backup that may come back. `lacks`: whether a backup does not have all of a range of blocks any more.
    pub(crate) fn to_copy_again(
        &self,
        now_us: u64,
        most: usize,
        without: &HashSet<SegmentId>,
        lacks: &dyn Fn(BackupId, &RangeInclusive<u64>) -> bool,
    ) -> Vec<SegmentId> {
        if self.fenced || self.change.is_some() {
            return Vec::new();
        }
        let wanted = (self.config.copies as usize).saturating_sub(1);
        let is_whole = self.view.backups.len() >= wanted;
        let has_held = now_us.saturating_sub(self.view_since_us) >= self.config.copy_again_after_us;
        let is_lacking = |(older, blocks): &(&Older, RangeInclusive<u64>)| {
            let Older { view, lost, .. } = older;
            view.backups.len() < wanted || !lost.is_empty() || view.backups.iter().any(|backup| lacks(*backup, blocks))
        };
        let lacking: Vec<_> = match is_whole && has_held {
            true => self.older_blocks().filter(is_lacking).map(|(_, blocks)| blocks).collect(),
            false => Vec::new(),
        };
        self.kept.to_copy_again(&lacking, most, without)
    }

    /// Has the coordinator told of older views in whose blocks nothing lives, and forgets them: nobody asks where those blocks are.
    pub(crate) fn give_up_views(&mut self) {
        let Core { older, kept, effects, acknowledged, .. } = self;
        older.retain(|older| {
            let is_needed = older.last > *acknowledged || kept.needed(&(older.view.first..=older.last)) > 0;
            if !is_needed {
                effects.push(Effect::GiveUpView(older.view.number));
            }
            is_needed
        });
    }

    /// The coordinators name backups for these views: those that nobody needs any more are given up once more. What was told of them got lost, or was refused, and this log has
    /// forgotten them.
    pub(crate) fn give_up_again(&mut self, named: &[u32]) {
        let Core { view, older, effects, fenced, .. } = self;
        let is_over = |number: &&u32| **number < view.number && older.iter().all(|of| of.view.number != **number);
        if !*fenced {
            effects.extend(named.iter().filter(is_over).map(|number| Effect::GiveUpView(*number)));
        }
    }

    /// A backup that was started again is told once more what was given back: it may not have heard it.
    pub(crate) fn release_again(&mut self, backup: BackupId) {
        if let Some(released) = self.holders.get(&backup).filter(|released| **released > 0) {
            self.effects.push(Effect::Release(backup, *released));
        }
    }

    /// When a turn is due although nothing happens.
    pub(crate) fn wait_us(&self) -> u64 {
        self.config.resend_us.min(self.config.ask_again_us).min(self.config.late_us) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_that_were_given_up_are_forgotten() {
        let log = LogId { node: 1, epoch: 7, vlog: 0 };
        let view = |number| View { number, first: 1, backups: vec![number] };
        let mut core = Core::new(ReplicatedConfig::new(log, 2), view(1), 0);
        for number in 2..=200 {
            core.use_view(view(number), 0);
            core.give_up_views();
            assert!(core.older.is_empty(), "nothing lives in view {}", number - 1);
        }
        assert_eq!(core.effects.len(), 199);
    }
}
