//! A group is rolled from the classic protocol to the consumer protocol and back, while members of both kinds come and go.

use super::*;

impl Play<'_> {
    pub(super) fn roll(&mut self) -> io::Result<()> {
        for _ in 0..1 + self.rng.below(2) {
            let mut member = self.newborn(false);
            self.introduce(&mut member)?;
            self.members.push(member);
            self.agree()?;
        }
        let classic = self.members.len();
        self.comes(false)?;
        self.kinds()?;
        // Who has not joined again yet.
        let stale = self.members[0].clone();
        let (beat, commit) = (self.beat(&stale, stale.generation)?, self.commit(&stale, stale.generation)?);
        let (other, sync) = (self.beat(&stale, stale.generation + 1)?, self.sync(0)?.0);
        self.say(&format!("stale beat {beat} commit {commit} in another {other} sync {sync}"));
        self.both_settle(classic)?;
        let count = self.roll_on(classic)?;
        self.wrong(count)?;
        // The last one that lets the coordinator assign goes, and the others agree again.
        while self.members.len() > count {
            let told = self.pulse(self.members.len() - 1, -1)?;
            self.members.pop();
            self.say(&format!("goes {told}"));
            if self.members.len() > count {
                self.both_settle(count)?;
            }
        }
        if self.members.is_empty() {
            return self.delete();
        }
        let mut answers = Vec::new();
        for member in self.members.clone() {
            let (beat, commit) = (self.beat(&member, member.generation)?, self.commit(&member, member.generation)?);
            answers.push(format!("beat {beat} commit {commit}"));
        }
        self.say_all("alone", answers);
        self.agree()?;
        self.chat()?;
        self.end()
    }

    /// Members of both kinds come and go: those of the classic protocol stand first. How many of these there are.
    fn roll_on(&mut self, mut classic: usize) -> io::Result<usize> {
        for _ in 0..2 + self.rng.below(4) {
            let count = self.members.len();
            match self.rng.below(4) {
                0 if count < MEMBERS_MAX => self.comes(false)?,
                1 if count < MEMBERS_MAX => {
                    let mut member = self.newborn(false);
                    self.introduce(&mut member)?;
                    self.members.insert(classic, member);
                    let told = self.join_again(classic)?;
                    let synced = self.sync(classic)?;
                    self.say(&format!("joins {told} synced {synced:?}"));
                    classic += 1;
                }
                2 if classic > 0 => {
                    let gone = self.members.remove(0);
                    let (told, beat) = (self.leave(&gone)?, self.beat(&gone, gone.generation)?);
                    classic -= 1;
                    self.say(&format!("left {told:?} beat {beat}"));
                }
                // One that lets the coordinator assign stays.
                3 if count - classic > 1 => {
                    let told = self.pulse(count - 1, -1)?;
                    self.members.pop();
                    self.say(&format!("goes {told}"));
                }
                _ => {}
            }
            self.both_settle(classic)?;
        }
        Ok(classic)
    }

    /// Requests that are one kind's, from the other, and what does not fit.
    fn wrong(&mut self, classic: usize) -> io::Result<()> {
        let consumer = self.members[classic].clone();
        let beat = self.beat(&consumer, consumer.generation)?;
        let left = self.leave(&Member { id: "nobody".into(), ..consumer.clone() })?;
        self.say(&format!("a consumer beats {beat} nobody leaves {left:?}"));
        if classic == 0 {
            return Ok(());
        }
        let ahead = self.members[0].generation + 7;
        let told = self.pulse(0, ahead)?;
        let late = self.commit(&self.members[0].clone(), ahead)?;
        let mut stranger = self.newborn(true);
        stranger.id = "stranger".into();
        self.members.push(stranger);
        let unknown = self.join_again(self.members.len() - 1)?;
        self.members.pop();
        self.say(&format!("a classic one ahead {told} commits {late} an unknown place {unknown}"));
        self.both_settle(classic)
    }

    /// All join, and the leader shares the partitions.
    fn agree(&mut self) -> io::Result<()> {
        // Who comes last asks first, so that the others have something to join again for.
        let mut asked = Vec::new();
        for (at, member) in self.members.clone().into_iter().enumerate().rev() {
            let join = self.join_of(&member, LONG_SESSION_MS);
            self.side.send(&member.name, &join)?;
            if asked.is_empty() && self.members.len() > 1 {
                self.wait_for("PreparingRebalance", self.members.len())?;
            }
            asked.push((at, join));
        }
        self.all_joined(&asked)?;
        self.members.sort_by_key(|member| !member.leads);
        let mut synced = Vec::new();
        for at in 0..self.members.len() {
            synced.push(format!("{:?}", self.sync(at)?));
        }
        self.say_all("agreed", synced);
        Ok(())
    }

    fn join_again(&mut self, at: usize) -> io::Result<String> {
        let mut member = self.members[at].clone();
        let join = self.join_of(&member, LONG_SESSION_MS);
        self.side.send(&member.name, &join)?;
        let told = self.joined(&mut member, &join)?;
        self.members[at] = member;
        Ok(told)
    }

    /// A member of the classic protocol asks for its assignment, a leader brings everybody's. The error, and how many partitions it has.
    fn sync(&mut self, at: usize) -> io::Result<(i16, usize)> {
        let member = self.members[at].clone();
        let share = SHARED.1 / self.members.len() as i32;
        let parts = self.members.iter().enumerate().map(|(at, one)| {
            let (first, is_last) = (at as i32 * share, at + 1 == self.members.len());
            let end = if is_last { SHARED.1 } else { first + share };
            sync_group_request::SyncGroupRequestAssignment::default()
                .with_member_id(text(&one.id))
                .with_assignment(assignment(first..end))
        });
        let parts = parts.collect();
        let asked = self.sync_of(&member, parts);
        let ResponseKind::SyncGroup(told) = self.call(&asked)? else { return Err(unexpected("SyncGroup")) };
        if told.error_code == 0 {
            self.members[at].owned = partitions(&told.assignment);
        }
        Ok((told.error_code, self.members[at].owned.len()))
    }

    /// Everybody does what it is asked for, until nothing is new.
    fn both_settle(&mut self, classic: usize) -> io::Result<()> {
        for _ in 0..12 {
            let state = |one: &Member| (one.generation, one.owned.len());
            let before: Vec<(i32, usize)> = self.members.iter().map(state).collect();
            for at in 0..self.members.len() {
                let member = self.members[at].clone();
                if at >= classic {
                    self.pulse(at, member.generation)?;
                } else if self.beat(&member, member.generation)? != 0 {
                    // It gives everything back before it joins again.
                    self.members[at].owned.clear();
                    self.join_again(at)?;
                    self.sync(at)?;
                }
            }
            if before == self.members.iter().map(state).collect::<Vec<_>>() {
                break;
            }
        }
        self.settled();
        self.kinds()
    }

    /// The group as a consumer group: its state, its epochs, and of which kind its members are.
    fn kinds(&mut self) -> io::Result<()> {
        let request = ConsumerGroupDescribeRequest::default().with_group_ids(vec![self.group_id()]);
        let asked = Asked::new(ApiKey::ConsumerGroupDescribe, 1, RequestKind::ConsumerGroupDescribe(request), "");
        let ResponseKind::ConsumerGroupDescribe(told) = self.call(&asked)? else {
            return Err(unexpected("ConsumerGroupDescribe"));
        };
        let group = told.groups.first().ok_or_else(|| unexpected("no group"))?;
        let mut kinds: Vec<i8> = group.members.iter().map(|member| member.member_type).collect();
        kinds.sort_unstable();
        self.say(&format!(
            "group {} {} epoch {} target {} kinds {kinds:?}",
            group.error_code, &*group.group_state, group.group_epoch, group.assignment_epoch
        ));
        Ok(())
    }
}

/// An assignment in version 0 of what consumers tell each other.
fn assignment(of: std::ops::Range<i32>) -> Bytes {
    let mut bytes = Vec::from(*b"\0\0\0\0\0\x01\0\x06grapes");
    bytes.extend_from_slice(&(of.len() as i32).to_be_bytes());
    of.for_each(|partition| bytes.extend_from_slice(&partition.to_be_bytes()));
    bytes.extend_from_slice(&(-1_i32).to_be_bytes());
    bytes.into()
}

/// The partitions of such an assignment, of one topic or none.
fn partitions(assignment: &[u8]) -> Vec<i32> {
    let partitions = assignment.get(18..).unwrap_or_default().chunks_exact(4);
    let count = assignment.get(14..18).map_or(0, |count| i32::from_be_bytes([count[0], count[1], count[2], count[3]]));
    partitions.take(count as usize).map(|of| i32::from_be_bytes([of[0], of[1], of[2], of[3]])).collect()
}
