//! `kera consume`: records of a stream onto standard output.
//!
//! What was printed is committed, never what was not: output is flushed before every commit. So after a kill records may
//! be printed twice, and none is left out. Output is written by a thread of its own ([`Printing`]): a reader that stands still keeps the
//! command neither from signals nor from its leases.
//!
//! Streamlets whose node is lost do not keep the others from being printed. Without --follow the command says at its end which were left
//! out, and fails; with it they are read as soon as the node is back, with what they have taken before that was noticed.
//!
//! Which records --last begins with, [`Last`] finds out before anything is printed.

use std::future::ready;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kera_client::{Client, ClientError, CommitMode, ConsumedRecord, Consumer, ConsumerBuilder, Start, StreamInfo};
use kera_server::Wishes;
use tokio::io::Interest;
use tokio::net::unix::pipe;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::cli::{ConsumeArgs, Globals, Show};
use crate::commands::away::{self, Away, TAKE_OVER_MAX};
use crate::commands::held::{self, Others, Then};
use crate::commands::last::{Ends, Last};
use crate::commands::printing::Printing;
use crate::commands::starts;
use crate::connect::{check_lanes, check_streamlets, connect, explain, find_stream};
use crate::encoding::KeyEncoding;
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::numbers;
use crate::output::{make_harmless, make_json_harmless, on_terminal, records_of, say};
use crate::records::RecordJson;
use crate::signals;
use crate::when::{now_ms, parse_start};

/// Time between commits while records come.
const COMMIT_EVERY: Duration = Duration::from_secs(1);
/// Records between two looks at the clock while records come without a pause.
const LOOK_EVERY: u64 = 256;
/// When nothing has come for so long, it is looked for a reason.
pub(super) const WONDER_EVERY: Duration = Duration::from_secs(3);
/// How long the owners may take to say what other consumers hold. The client asks one that cannot be asked for 10 s before it gives up: what is
/// cut off before that says only that it is late, and never why.
const DESCRIBED_MAX: Duration = Duration::from_secs(15);
/// For how long owners that cannot be asked are waited for behind the end: as long as that, and for a lease, as it is unless it is set. Who could take
/// over from them has done so by then, and nobody else can say whether there is more.
const UNHEARD_MAX: Duration = Duration::from_secs(40);
/// What is printed with --key-separator for a key or a value that there is not.
const NONE: &[u8] = b"null";

/// How long whoever stops the command waits for a reader to take what was printed, so that it can be committed.
const READER_MAX: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// What the node says, or that it cannot be reached. A closed pipe is none.
pub async fn run(args: &ConsumeArgs, globals: &Globals) -> Result<(), CliError> {
    let format = format_of(args, globals)?;
    let keys = keys_of(args)?;
    args.application.as_deref().map_or(Ok(()), check_name)?;
    let client = connect(globals).await?;
    let stream = find_stream(&client, &args.stream).await?;
    check_streamlets(&stream, &numbers::highest(&args.streamlets))?;
    check_lanes(&stream, &numbers::highest(&args.lanes))?;
    let from = match &args.from {
        Some(text) => parse_start(text).map_err(|said| CliError::value(&said))?,
        None if args.from_beginning => Start::Earliest,
        None if args.last.is_some() => Start::Latest,
        None if args.follow && args.application.is_none() => Start::Latest,
        None => Start::Earliest,
    };
    let begun_ms = now_ms();
    if let Some(word) = starts::word(&client, &stream, args, from, begun_ms).await {
        say(word);
    }
    let (streamlets, lanes) = (numbers::each(&args.streamlets), numbers::each(&args.lanes));
    let (args, behind) = (args.clone(), Arc::default());
    let is_seen = on_terminal();
    let mut source = Source { client, stream, streamlets, lanes, keys, from, behind, begun_ms, format, is_seen, args };
    let Begun { consumer, last, out: Out { left_out, away, said } } = source.begin().await?;
    let (commits, max) = (source.args.application.is_some(), source.args.max.unwrap_or(u64::MAX));
    let mut consuming = Consuming {
        source,
        consumer,
        last,
        late: Vec::new(),
        left_out,
        returning: JoinSet::new(),
        others: Others::default(),
        heard_at_end: None,
        being_begun: Away::default(),
        trouble: String::new(),
        said,
        wondered: Instant::now(),
        out: Printing::start()?,
        commits,
        seen: 0,
        printed: 0,
        uncommitted: 0,
        committed: Instant::now(),
    };
    consuming.begin_with_what_is_back(&away);
    let mut wishes = signals::listen(&[])?;
    let outcome = tokio::select! {
        outcome = consuming.all(max) => Some(outcome),
        _ = wishes.next() => None,
    };
    consuming.finish(outcome, wishes).await
}

/// How records are printed. What only one of two flags could have its way of is refused.
fn format_of(args: &ConsumeArgs, globals: &Globals) -> Result<Show, CliError> {
    let wrong = |flag: &str| {
        let message = format!("{flag} and --json cannot be had together");
        Err(CliError::usage(message).next("JSON has keys and values in fields of their own; leave one of the two out"))
    };
    match (args.format, &args.key_separator) {
        (_, Some(_)) if globals.json => wrong("--key-separator"),
        (Some(Show::Raw), _) if globals.json => wrong("--format raw"),
        (Some(Show::Value), _) if globals.json => wrong("--format value"),
        _ if globals.json => Ok(Show::Json),
        (format, _) => Ok(format.unwrap_or(Show::Value)),
    }
}

/// The keys that are named, as they are in records.
fn keys_of(args: &ConsumeArgs) -> Result<Vec<Vec<u8>>, CliError> {
    let encoding = args.key_encoding;
    if encoding != KeyEncoding::Text && args.keys.is_empty() && args.key_separator.is_none() {
        let message = "--key-encoding is for keys that --key names, or --key-separator prints";
        return Err(CliError::usage(message).next("give one of the two, or leave it out: JSON has `key_hex` by itself"));
    }
    let decode = |key: &String| encoding.decode(key.as_bytes());
    let keys: Result<Vec<Vec<u8>>, String> = args.keys.iter().map(decode).collect();
    keys.map_err(|wrong| CliError::usage(format!("--key: {wrong}, which --key-encoding names")))
}

/// Refuses a name that no application can have, before a node does.
fn check_name(name: &str) -> Result<(), CliError> {
    if kera_format::limits::name_is_valid(name) {
        return Ok(());
    }
    let message = format!("`{name}` cannot be the name of an application");
    Err(CliError::usage(message).next("use 1 to 249 of the characters a-z A-Z 0-9 . _ -"))
}

/// How it begins.
struct Begun {
    consumer: Consumer,
    /// The last records, as they are printed before those of the consumer.
    last: Vec<Vec<u8>>,
    out: Out,
}

/// What a consumer leaves out.
#[derive(Default)]
struct Out {
    /// Of a follower also what was away and is back.
    left_out: Away,
    /// What is away still.
    away: Away,
    /// What was said of it.
    said: String,
}

/// What is read, and from where on.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) client: Client,
    pub(super) stream: StreamInfo,
    /// Those that are named, in order; none: all.
    streamlets: Vec<u32>,
    /// Those of each streamlet that are named, in order; none: all.
    lanes: Vec<u32>,
    /// Records with one of these keys are wanted; none: all are.
    keys: Vec<Vec<u8>>,
    from: Start,
    /// Of lanes that the last records are of, where these end: there they are followed from.
    behind: Arc<Ends>,
    /// When the command began, in milliseconds since 1970.
    begun_ms: i64,
    format: Show,
    /// It is printed at a terminal.
    is_seen: bool,
    args: ConsumeArgs,
}

/// A consumer of streamlets that were left out and are back, or why there is none yet.
type Returned = (Away, Result<Consumer, ClientError>);

impl Source {
    /// A consumer of streamlets that were left out and are back.
    async fn late_consumer(self, back: Away) -> Returned {
        let consumer = self.consumer_of_these(back.streamlets()).await;
        (back, consumer)
    }

    async fn consumer_of_these(&self, streamlets: Vec<u32>) -> Result<Consumer, ClientError> {
        let until_end = !self.args.follow;
        let mut consumer = self.consumer(self.start_when_back(), until_end, |of| of.streamlets(streamlets)).await?;
        for at in consumer.positions() {
            let end = self.behind.get(&(at.streamlet, at.lane)).filter(|end| **end != at.ordinal);
            if let Some(end) = end {
                consumer.seek(at.streamlet, at.lane, Start::Ordinal(*end)).await?;
            }
        }
        Ok(consumer)
    }

    /// From where on streamlets are read that nobody could read when the command began. Where they ended then nobody could say: what they have
    /// taken since is read.
    fn start_when_back(&self) -> Start {
        if self.from == Start::Latest { Start::TimeMs(self.begun_ms) } else { self.from }
    }

    /// A consumer of a part.
    async fn consumer(
        &self,
        from: Start,
        until_end: bool,
        part: impl FnOnce(ConsumerBuilder) -> ConsumerBuilder,
    ) -> Result<Consumer, ClientError> {
        let builder = self.client.consumer(&self.stream.name).from(from);
        let mut builder = part(builder.until_end(until_end).commit(CommitMode::Manual));
        if !self.lanes.is_empty() {
            builder = builder.lanes(self.lanes.iter().copied());
        }
        if let Some(application) = &self.args.application {
            builder = builder.application(application).member_name(member_name());
        }
        builder.build().await
    }

    /// Whether a record is to be printed: it has one of the keys, if some are named.
    pub(super) fn wants(&self, record: &ConsumedRecord) -> bool {
        let keys = &self.keys;
        keys.is_empty() || record.view().key().is_some_and(|key| keys.iter().any(|wanted| wanted == key))
    }

    /// Adds a record to `out` as it is printed. A value may be anything, and a person has not asked for what it does to a terminal.
    pub(super) fn write(&self, record: &ConsumedRecord, out: &mut Vec<u8>) -> Result<(), CliError> {
        let begin = out.len();
        self.write_as_it_is(record, out)?;
        match self.format {
            Show::Value if self.is_seen => make_harmless(out, begin),
            Show::Json if self.is_seen => make_json_harmless(out, begin),
            Show::Value | Show::Json | Show::Raw => {}
        }
        Ok(())
    }

    fn write_as_it_is(&self, record: &ConsumedRecord, out: &mut Vec<u8>) -> Result<(), CliError> {
        let view = record.view();
        if let Some(separator) = &self.args.key_separator {
            // As lines have it that `kera produce` reads, and Kafka's tools: an empty key or value is another thing than none.
            match view.key() {
                Some(key) => self.args.key_encoding.write(key, out),
                None => out.extend_from_slice(NONE),
            }
            out.extend_from_slice(separator.as_bytes());
            out.extend_from_slice(view.value().unwrap_or(NONE));
            out.push(b'\n');
            return Ok(());
        }
        match self.format {
            Show::Raw | Show::Value => out.extend_from_slice(view.value().unwrap_or_default()),
            Show::Json => serde_json::to_writer(&mut *out, &RecordJson::new(record, &view))
                .map_err(|error| CliError::failure(error.to_string()))?,
        }
        if self.format != Show::Raw {
            out.push(b'\n');
        }
        Ok(())
    }

    /// Which of the streamlets that are wanted nobody can read at the moment.
    async fn away(&self) -> Result<Away, ClientError> {
        Ok(Away::of(&self.client, &self.stream).await?.among(&self.streamlets))
    }

    /// What is away, or why nobody says it.
    async fn what_is_away(&self) -> Result<Away, String> {
        let address = self.client.address();
        match timeout(WONDER_EVERY, self.away()).await {
            Ok(Ok(away)) => Ok(away),
            Ok(Err(error)) => Err(format!("waiting for {address}: {}", explain(&error).message)),
            Err(_) => Err(format!("waiting for {address}: it does not answer")),
        }
    }

    /// Nothing has come for a while: says why, if there is a reason, and it is not the one that was `said` last.
    pub(super) async fn say_why(&self, said: &mut String) {
        let why = match self.what_is_away().await {
            Ok(away) if away.is_nothing() => String::new(),
            Ok(away) => away.sentence(),
            Err(why) => why,
        };
        if !why.is_empty() && why != *said {
            say(&why);
        }
        *said = why;
    }

    /// Whether more is wanted than these.
    fn has_others(&self, out: &Away) -> bool {
        let is_here = |streamlet: u32| !out.has(streamlet);
        match self.streamlets.is_empty() {
            true => (0..self.stream.options.streamlets).any(is_here),
            false => self.streamlets.iter().copied().any(is_here),
        }
    }

    /// A consumer of all that is wanted but these. It reads what the stream gets, too, unless streamlets are named; so it does if there is nothing
    /// else, and then also what the stream has got since the command began.
    async fn consumer_of_others(&self, out: &Away, until_end: bool) -> Result<Consumer, ClientError> {
        let from = if self.has_others(out) { self.from } else { self.start_when_back() };
        let named = &self.streamlets;
        let here = named.iter().copied().filter(|streamlet| !out.has(*streamlet));
        let part = |builder: ConsumerBuilder| match named.is_empty() {
            true => builder.without_streamlets(out.streamlets()),
            false => builder.streamlets(here),
        };
        self.consumer(from, until_end, part).await
    }

    /// Looks at the stream anew: which streamlets it has got since the last look. While it cannot be asked it is as it was.
    async fn grown(&mut self) -> std::ops::Range<u32> {
        let before = self.stream.options.streamlets;
        match self.client.admin().stream(self.stream.id).await {
            Ok(now) => self.stream = now,
            Err(_) => return 0..0,
        }
        before..self.stream.options.streamlets
    }

    /// A consumer of what can be read, and what it leaves out. An application leaves nothing out: its members wait.
    ///
    /// Whoever follows waits for nothing that has been away since the command began, even if it is back: a node is live before it listens, and
    /// has taken records meanwhile that are to be seen, wherever the others are read from. It is begun with beside the others. But of what is back
    /// before the last records are looked for these are wanted like those of the others.
    async fn begin(&mut self) -> Result<Begun, CliError> {
        let begun = Instant::now();
        let is_application = self.args.application.is_some();
        let (mut said, mut been_away) = (String::new(), Away::default());
        loop {
            let away = if is_application { Away::default() } else { self.away().await? };
            been_away.add(&away);
            let is_late = begun.elapsed() >= TAKE_OVER_MAX;
            if is_late && !away.is_nothing() && said.is_empty() {
                said = away.sentence();
                say(&said);
            }
            if is_late || away.is_nothing() {
                let wants_last = self.args.last.is_some();
                let left_out = if self.args.follow && !wants_last { &been_away } else { &away };
                if !self.args.follow && !self.has_others(left_out) {
                    return Err(left_out_error(&away));
                }
                match self.consumer_of_others(left_out, !self.args.follow || wants_last).await {
                    Ok(consumer) => {
                        let out = Out { left_out: left_out.clone(), away, said };
                        return self.with_last(Begun { consumer, last: Vec::new(), out }).await;
                    }
                    Err(error) if is_application || !error.retryable() => return Err(error.into()),
                    // What it looked for may be at a node that is found to be lost by now.
                    Err(error) => match self.away().await?.without(&away).is_nothing() {
                        true => return Err(error.into()),
                        false => continue,
                    },
                }
            }
            tokio::time::sleep(away::LOOK_EVERY).await;
            // What the stream has got has taken records since the command began, like what is back.
            let grown = self.grown().await;
            if self.streamlets.is_empty() {
                been_away.add_streamlets(grown);
            }
        }
    }

    /// With the last records, if they are wanted, and who goes on behind them: the consumer that is there, which stops where its lanes ended when it was
    /// built, and is there by then, or one that follows from there on.
    async fn with_last(&mut self, mut begun: Begun) -> Result<Begun, CliError> {
        let Some(most) = self.args.last else { return Ok(begun) };
        let last = Last::read(self, &mut begun.consumer, most).await?;
        if self.args.follow {
            self.behind = Arc::new(last.ends());
            let follow = async |out: &Away| -> Result<Consumer, ClientError> {
                let mut consumer = self.consumer_of_others(out, false).await?;
                last.go_on(&mut consumer).await?;
                Ok(consumer)
            };
            begun.consumer = built(follow, async || self.what_is_away().await, &mut begun.out).await?;
        }
        begun.last = last.lines();
        Ok(begun)
    }
}

/// Builds what follows. A node that is lost meanwhile is waited for; where nobody takes over from it its streamlets are left out too, with a word, as
/// if it had been away from the beginning. `build` leaves out what it is given, and `look` says what is away, or why nobody says it.
async fn built<C>(
    mut build: impl AsyncFnMut(&Away) -> Result<C, ClientError>,
    mut look: impl AsyncFnMut() -> Result<Away, String>,
    out: &mut Out,
) -> Result<C, CliError> {
    let begun = tokio::time::Instant::now();
    loop {
        let error = match build(&out.left_out).await {
            Ok(consumer) => return Ok(consumer),
            Err(error) if !error.retryable() => return Err(error.into()),
            Err(error) => error,
        };
        let mut lost = Away::default();
        if begun.elapsed() >= TAKE_OVER_MAX
            && let Ok(away) = look().await
        {
            lost = away.clone().without(&out.left_out);
            out.away = away;
        }
        if !lost.is_nothing() {
            out.said = lost.sentence();
            say(&out.said);
            out.left_out.add(&lost);
        } else if !is_asked_again(Some(&error), begun.elapsed()) {
            return Err(error.into());
        }
        tokio::time::sleep(away::LOOK_EVERY).await;
    }
}

/// Commits and then closes what is left of it, unless somebody does not want to wait. `cut_off`: how it ends if it was not committed; who has only not
/// waited for the close lacks nothing.
async fn committed_and_closed<T, C: Future<Output = Result<(), CliError>>>(
    commit: impl Future<Output = (T, Result<(), CliError>)>,
    close: impl FnOnce(T) -> C,
    stop: impl Future<Output = ()>,
    cut_off: Result<(), CliError>,
) -> Result<(), CliError> {
    tokio::pin!(stop);
    let (left, committed) = tokio::select! {
        biased;
        committed = commit => committed,
        () = &mut stop => return cut_off,
    };
    tokio::select! {
        biased;
        closed = close(left) => committed.and(closed),
        () = stop => committed,
    }
}

/// Streamlets were left out.
fn left_out_error(away: &Away) -> CliError {
    let message = format!("{}: nothing of that was read", away.sentence());
    CliError::failure(message).next("start that node again; `kera status` shows what is lost and what waits for it")
}

/// Whether owners are asked again what others hold, when they have not said it for so long. `error`: why; nothing if it only took too long.
fn is_asked_again(error: Option<&ClientError>, unheard: Duration) -> bool {
    error.is_none_or(ClientError::retryable) && unheard < UNHEARD_MAX
}

/// All was printed that could be had, and not all owners say whether there is more.
fn unheard_error(application: &str, why: &str) -> CliError {
    let message = format!("{why}: nobody knows whether {application} has more to read there");
    CliError::failure(message)
        .next("`kera status` shows what is lost; then run it again: the application goes on behind what was printed")
}

/// All was read, and somebody did not want to wait until its reader has taken it.
fn not_all_out(printed: u64) -> CliError {
    let message = format!("interrupted before all was written: {} had been read", records_of(printed));
    CliError { exit: EXIT_INTERRUPTED, ..CliError::failure(message) }
}

/// How the consumer is called in listings: host and process.
fn member_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}-{}", host.trim(), std::process::id())
}

struct Consuming {
    source: Source,
    consumer: Consumer,
    /// The last records, to be printed before those of the consumer.
    last: Vec<Vec<u8>>,
    /// Of streamlets that were left out: one for all of a node that were found to be back at one look.
    late: Vec<Consumer>,
    left_out: Away,
    /// Makes consumers of what was left out and is back.
    returning: JoinSet<Returned>,
    /// Other members of the application, while they hold something.
    others: Others,
    /// Since the end was reached: when all owners have said last what others hold, or the end was reached. Nothing: there is more to print.
    heard_at_end: Option<Instant>,
    /// What they are being made of.
    being_begun: Away,
    /// What kept one from being made the last time; empty: nothing.
    trouble: String,
    /// What was said last about why nothing comes; empty: nothing, or that it goes on.
    said: String,
    /// When it was looked for a reason last, or a record came after a pause.
    wondered: Instant,
    out: Printing,
    commits: bool,
    /// Records that have come, printed or not.
    seen: u64,
    printed: u64,
    /// Records printed since the last commit.
    uncommitted: u64,
    committed: Instant,
}

impl Consuming {
    /// Prints everything. Dropped before it is done, as by a signal, it has lost nothing that was not printed.
    async fn all(&mut self, max: u64) -> Result<(), CliError> {
        let gone = reader_gone();
        tokio::pin!(gone);
        self.print_last(max).await?;
        while self.printed < max {
            // What is there is printed without looking at anything else; only a pause flushes.
            let at_hand = tokio::select! {
                biased;
                next = next_of(&mut self.consumer, &mut self.late) => Some(next),
                () = ready(()) => None,
            };
            let next = match at_hand {
                Some(next) => next,
                None => {
                    self.hand_over().await?;
                    let pause = if self.uncommitted > 0 {
                        COMMIT_EVERY.saturating_sub(self.committed.elapsed())
                    } else {
                        Duration::MAX
                    };
                    let wonder = WONDER_EVERY.saturating_sub(self.wondered.elapsed());
                    tokio::select! {
                        next = next_of(&mut self.consumer, &mut self.late) => {
                            self.heard();
                            next
                        }
                        () = sleep(pause) => {
                            self.commit_meanwhile().await?;
                            continue;
                        }
                        () = sleep(wonder) => {
                            self.wonder().await?;
                            continue;
                        }
                        Some(returned) = self.returning.join_next() => {
                            self.take_back(returned)?;
                            continue;
                        }
                        () = &mut gone => return Err(CliError::pipe_closed()),
                    }
                }
            };
            let Some(record) = next? else {
                if self.may_get_more().await? {
                    continue;
                }
                return if self.left_out.is_nothing() { Ok(()) } else { Err(left_out_error(&self.left_out)) };
            };
            self.print(&record)?;
            if self.out.is_full() {
                self.hand_over().await?;
            }
            if self.seen.is_multiple_of(LOOK_EVERY) {
                tokio::select! {
                    biased;
                    // Where few of those that come are printed, writing would not find that out.
                    () = &mut gone => return Err(CliError::pipe_closed()),
                    looked = self.look_up() => looked?,
                }
            }
        }
        Ok(())
    }

    /// Prints the last records that were there when the command began, `max` at most.
    async fn print_last(&mut self, max: u64) -> Result<(), CliError> {
        for line in std::mem::take(&mut self.last).into_iter().take(usize::try_from(max).unwrap_or(usize::MAX)) {
            self.out.gathered().extend_from_slice(&line);
            self.count_printed();
            if self.out.is_full() {
                self.hand_over().await?;
            }
        }
        Ok(())
    }

    fn count_printed(&mut self) {
        self.printed += 1;
        self.uncommitted += 1;
    }

    /// All was printed that the nodes give to this member. Whether there may be more: what others have leased that are not heard of. That is waited for a
    /// while, and then the nodes are asked again.
    ///
    /// While an owner cannot be asked nobody knows what is left there, so this is not the end yet; and where it stays away that is an error, for a script must not take
    /// a part for all.
    async fn may_get_more(&mut self) -> Result<bool, CliError> {
        let Some(application) = self.source.args.application.clone() else { return Ok(false) };
        let heard = *self.heard_at_end.get_or_insert_with(Instant::now);
        // What is not committed counts as left.
        self.commit_meanwhile().await?;
        let admin = self.source.client.admin();
        let asking = timeout(DESCRIBED_MAX, admin.application_by_owner(self.source.stream.id, &application));
        let asked = tokio::select! {
            asked = asking => asked,
            never = self.consumer.idle() => match never {},
        };
        let (then, said) = match asked {
            Ok(Ok(described)) => {
                self.heard_at_end = Some(Instant::now());
                self.others.look(&described, &self.consumer.ends(), &member_name(), Instant::now())
            }
            unheard => {
                let error = unheard.ok().and_then(Result::err);
                let why = self.why_unheard(error.as_ref()).await;
                if !is_asked_again(error.as_ref(), heard.elapsed()) {
                    return Err(unheard_error(&application, &why));
                }
                (Then::Wait, Some(why))
            }
        };
        if let Some(said) = said.filter(|said| *said != self.said) {
            say(&said);
            self.said = said;
        }
        if then == Then::Wait {
            tokio::select! {
                () = tokio::time::sleep(held::LOOK_EVERY) => {}
                never = self.consumer.idle() => match never {},
            }
        }
        self.consumer.look_again();
        Ok(then != Then::End)
    }

    /// Why the owners have not said what others hold: the node that is asked first may be well, and another one be lost. `error`: nothing if they have only not
    /// answered in time.
    async fn why_unheard(&self, error: Option<&ClientError>) -> String {
        match self.source.what_is_away().await {
            Ok(away) if !away.is_nothing() => away.sentence(),
            Err(why) => why,
            Ok(_) => {
                let why = error.map_or_else(|| "it does not answer".to_owned(), |error| explain(error).message);
                format!("waiting for an owner of streamlets of {}: {why}", self.source.stream.name)
            }
        }
    }

    /// Records come without a pause: looks at everything else.
    async fn look_up(&mut self) -> Result<(), CliError> {
        while let Some(returned) = self.returning.try_join_next() {
            self.take_back(returned)?;
        }
        let may_be_back = self.source.args.follow && !self.left_out.is_nothing();
        if may_be_back && self.wondered.elapsed() >= WONDER_EVERY {
            self.wonder().await?;
        }
        match self.committed.elapsed() >= COMMIT_EVERY {
            true => self.commit_meanwhile().await,
            false => {
                tokio::task::yield_now().await;
                Ok(())
            }
        }
    }

    /// Hands over what was printed. While its reader stands still groups that are asked back for other members are given to these.
    async fn hand_over(&mut self) -> Result<(), CliError> {
        tokio::select! {
            biased;
            done = self.out.hand_over() => done,
            never = self.consumer.idle() => match never {},
        }
    }

    /// Waits until what was printed is out; see [`hand_over`](Consuming::hand_over).
    async fn flush(&mut self) -> Result<(), CliError> {
        tokio::select! {
            biased;
            done = self.out.flush() => done,
            never = self.consumer.idle() => match never {},
        }
    }

    /// A record has come after a pause.
    fn heard(&mut self) {
        if self.left_out.is_nothing() {
            self.wondered = Instant::now();
            self.said.clear();
        }
    }

    /// Nothing has come for a while, or streamlets were left out: looks whether there is a reason, says it once, and begins with what is back. Behind the end a
    /// reason is not waited for without end, as when [others are asked for](Consuming::may_get_more): the node may be lost between two such looks.
    async fn wonder(&mut self) -> Result<(), CliError> {
        let looked = self.source.what_is_away().await;
        self.wondered = Instant::now();
        let reason = match looked {
            Err(reason) => reason,
            Ok(away) => {
                self.begin_with_what_is_back(&away);
                if away.is_nothing() { self.trouble.clone() } else { away.sentence() }
            }
        };
        if !reason.is_empty() && reason != self.said {
            say(&reason);
        }
        self.said = reason;
        match (self.heard_at_end, &self.source.args.application) {
            (Some(heard), Some(application)) if !self.said.is_empty() && !is_asked_again(None, heard.elapsed()) => {
                Err(unheard_error(application, &self.said))
            }
            _ => Ok(()),
        }
    }

    /// Begins, for whoever follows, with that which was left out and is not away any more; the rest waits on. In tasks of their own, one for each
    /// node that was waited for: one may be live and not listen yet, and is then tried for as long as another one may take over from it. That holds up
    /// neither the records of the others nor what is back at other nodes.
    fn begin_with_what_is_back(&mut self, away: &Away) {
        if !self.source.args.follow {
            return;
        }
        for back in self.left_out.clone().without(away).without(&self.being_begun).by_node() {
            self.being_begun.add(&back);
            self.returning.spawn(self.source.clone().late_consumer(back));
        }
    }

    /// One of these tasks has ended: reads what was begun with. If it could not be, the next look is the next try.
    fn take_back(&mut self, returned: Result<Returned, JoinError>) -> Result<(), CliError> {
        let (back, consumer) = returned.map_err(|_| ClientError::Closed)?;
        self.wondered = Instant::now();
        self.being_begun = std::mem::take(&mut self.being_begun).without(&back);
        match consumer {
            Ok(consumer) => {
                self.late.push(consumer);
                self.left_out = std::mem::take(&mut self.left_out).without(&back);
                self.trouble.clear();
            }
            Err(error) => self.trouble = format!("{}: {}", back.that_wait(), explain(&error).message),
        }
        Ok(())
    }

    /// Commits while there is more to come: a server that is away is no reason to stop, what was printed is committed when it is back.
    async fn commit_meanwhile(&mut self) -> Result<(), CliError> {
        self.flush().await?;
        let done = match self.commits && self.uncommitted > 0 {
            true => self.consumer.commit().await,
            false => Ok(()),
        };
        self.committed = Instant::now();
        match done {
            Err(error) if error.retryable() => return Ok(()),
            done => done?,
        }
        self.uncommitted = 0;
        Ok(())
    }

    /// Commits what was printed, gives the groups back, and passes on how it went; nothing: somebody has stopped it. Whoever does not want to
    /// wait for a server that is away, or for a reader, stops it once more.
    async fn finish(mut self, outcome: Option<Result<(), CliError>>, mut wishes: Wishes) -> Result<(), CliError> {
        let is_stopped = outcome.is_none();
        let cut_off = self.cut_off(is_stopped);
        let outcome = outcome.unwrap_or_else(|| self.interrupted());
        let is_pipe_closed = outcome == Err(CliError::pipe_closed());
        let not_out = cut_off.clone();
        let commit = async move {
            let committed = match is_stopped {
                // Printed records that did not get through a closed pipe are not committed.
                _ if is_pipe_closed => Ok(()),
                true => match timeout(READER_MAX, self.out.flush()).await {
                    Ok(_) => self.commit().await,
                    Err(_) => not_out,
                },
                false => self.commit().await,
            };
            (self.consumer, committed)
        };
        let close = |consumer: Consumer| async move { consumer.close().await.map_err(|error| explain(&error)) };
        let again = async move {
            wishes.next().await;
        };
        let finished = committed_and_closed(commit, close, again, cut_off).await;
        match (outcome, finished) {
            // What is not committed matters more than that it was stopped.
            (Err(stopped), Err(lacking)) if is_stopped => Err(CliError { exit: stopped.exit, ..lacking }),
            (outcome, finished) => outcome.and(finished),
        }
    }

    /// How it ends when somebody has stopped it: well if it would have gone on for ever.
    fn interrupted(&self) -> Result<(), CliError> {
        if self.source.args.follow && self.source.args.max.is_none() {
            return Ok(());
        }
        let error = CliError::failure(format!("interrupted after {}, before the end", records_of(self.printed)));
        let next = match self.commits {
            true => "run it again: the application goes on behind what was printed",
            false => "",
        };
        Err(CliError { exit: EXIT_INTERRUPTED, ..error.next(next) })
    }

    /// Commits what was printed, once it is out.
    async fn commit(&mut self) -> Result<(), CliError> {
        self.flush().await?;
        if self.commits && self.uncommitted > 0 {
            self.consumer.commit().await?;
        }
        Ok(())
    }

    /// How it ends when what was printed last may not be out, and is not committed. `is_stopped`: before all was read.
    fn cut_off(&self, is_stopped: bool) -> Result<(), CliError> {
        if !self.commits || self.uncommitted == 0 {
            return match is_stopped {
                true => self.interrupted(),
                // What is committed was out before.
                false if self.commits => Ok(()),
                false => Err(not_all_out(self.printed)),
            };
        }
        let error = CliError::failure("stopped before what was printed last was committed");
        Err(error.next("the application's next consumer prints it again"))
    }

    /// A record has come: prints it, if it is wanted.
    fn print(&mut self, record: &ConsumedRecord) -> Result<(), CliError> {
        self.heard_at_end = None;
        self.seen += 1;
        if self.source.wants(record) {
            self.source.write(record, self.out.gathered())?;
            self.count_printed();
        }
        Ok(())
    }
}

/// The next record of any of them. Who has none yet loses nothing by being dropped.
async fn next_of(one: &mut Consumer, others: &mut [Consumer]) -> Result<Option<ConsumedRecord>, ClientError> {
    match others.split_first_mut() {
        None => one.next().await,
        // Either may be looked at first: none keeps the others from being heard.
        Some((other, others)) => tokio::select! {
            next = one.next() => next,
            next = Box::pin(next_of(other, others)) => next,
        },
    }
}

/// Completes when nobody can read any more what is printed: of a pipe. Without it that would be found out with the next record.
async fn reader_gone() {
    // Unchecked: it is neither written to by this nor made not to block. Files cannot be waited for, and nobody goes away from them.
    let out = io::stdout().as_fd().try_clone_to_owned().and_then(pipe::Sender::from_owned_fd_unchecked);
    if let Ok(out) = out
        && out.ready(Interest::ERROR).await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

async fn sleep(pause: Duration) {
    if pause == Duration::MAX { std::future::pending().await } else { tokio::time::sleep(pause).await }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn format(line: &str) -> Result<Show, CliError> {
        let cli =
            Cli::try_parse_from(std::iter::once("kera").chain(line.split_whitespace())).expect("it is understood");
        let Command::Consume(args) = cli.command else { panic!("{line}") };
        format_of(&args, &cli.globals)
    }

    #[test]
    fn no_flag_is_left_out_of_account_without_a_word() {
        assert_eq!(format("consume s"), Ok(Show::Value));
        assert_eq!(format("consume s --key-separator :"), Ok(Show::Value));
        for line in
            ["consume s --json", "--json consume s", "consume s --format json", "consume s --format json --json"]
        {
            assert_eq!(format(line), Ok(Show::Json), "{line}");
        }
        for flag in ["--key-separator :", "--format raw", "--format value"] {
            for line in [format!("consume s --json {flag}"), format!("--json consume s {flag}")] {
                let error = format(&line).expect_err(&line);
                assert_eq!(error.exit, crate::error::EXIT_USAGE, "{line}");
                assert!(error.message.contains(flag.trim_end_matches(" :")), "{}", error.message);
            }
        }
    }

    #[test]
    fn keys_that_are_no_text_are_named_in_hexadecimal_or_base64() {
        let keys = |line: &str| {
            let cli = Cli::try_parse_from(std::iter::once("kera").chain(line.split_whitespace())).expect(line);
            let Command::Consume(args) = cli.command else { panic!("{line}") };
            keys_of(&args)
        };
        assert_eq!(keys("consume s --key 00ff"), Ok(vec![b"00ff".to_vec()]));
        assert_eq!(keys("consume s --key 00ff --key a1 --key-encoding hex"), Ok(vec![vec![0, 0xff], vec![0xa1]]));
        assert_eq!(keys("consume s --key AP8= --key-encoding base64"), Ok(vec![vec![0, 0xff]]));
        assert_eq!(keys("consume s --key-separator : --key-encoding hex"), Ok(Vec::new()));
        for wrong in ["consume s --key ann --key-encoding hex", "consume s --key-encoding hex"] {
            let error = keys(wrong).expect_err(wrong);
            assert!(error.exit == crate::error::EXIT_USAGE && error.message.starts_with("--key"), "{error}");
        }
    }

    /// Somebody who waits for the end must not wait for a node for ever, and must not take what was printed for all.
    #[test]
    fn owners_that_cannot_be_asked_behind_the_end_are_asked_for_a_while_and_then_named() {
        // One that may pass, and one for good.
        let (streamlet, after, reason) = (kera_client::StreamletId(0), Duration::ZERO, String::new());
        let away = ClientError::DeliveryTimeout { records: 1, streamlet, after, reason };
        let for_good = ClientError::Closed;
        for error in [None, Some(&away)] {
            assert!(is_asked_again(error, Duration::ZERO) && is_asked_again(error, UNHEARD_MAX / 2));
            assert!(!is_asked_again(error, UNHEARD_MAX));
        }
        assert!(!is_asked_again(Some(&for_good), Duration::ZERO));
        let error = unheard_error("report", "streamlet 0 waits for node 2, which is lost");
        assert!(error.message.starts_with("streamlet 0 waits for node 2, which is lost: nobody knows"), "{error}");
        assert_eq!(error.exit, CliError::failure("it fails").exit);
    }

    /// A node may be lost after the last records were read, and before what follows them is there.
    #[tokio::test(start_paused = true)]
    async fn who_follows_goes_on_without_a_node_that_is_lost_before_that_is_built() {
        let retryable = || {
            let (streamlet, after, reason) = (kera_client::StreamletId(0), Duration::ZERO, String::new());
            ClientError::DeliveryTimeout { records: 1, streamlet, after, reason }
        };
        let mut lost = Away::default();
        lost.add_streamlets([1]);
        let without_lost = async |out: &Away| if out.has(1) { Ok(out.clone()) } else { Err(retryable()) };
        let mut out = Out::default();
        assert_eq!(built(without_lost, async || Ok(lost.clone()), &mut out).await, Ok(lost.clone()));
        assert_eq!((&out.left_out, &out.away), (&lost, &lost));
        assert!(out.said.starts_with("streamlet 1 waits"), "{}", out.said);

        // Another node takes over: nothing is left out.
        let (mut tries, mut out) = (0, Out::default());
        let taken_over = async |_: &Away| {
            tries += 1;
            if tries > 3 { Ok(()) } else { Err(retryable()) }
        };
        assert_eq!(built(taken_over, async || Ok(Away::default()), &mut out).await, Ok(()));
        assert_eq!((tries, out.left_out.is_nothing(), out.said.as_str()), (4, true, ""));

        // What does not pass ends it at once, and what no loss explains in the end.
        let closed = async |_: &Away| -> Result<(), ClientError> { Err(ClientError::Closed) };
        assert!(built(closed, async || Ok(Away::default()), &mut Out::default()).await.is_err());
        let silent = async |_: &Away| -> Result<(), ClientError> { Err(retryable()) };
        assert!(built(silent, async || Err("nobody answers".to_owned()), &mut Out::default()).await.is_err());
    }

    #[test]
    fn who_does_not_wait_for_the_close_is_not_told_that_something_is_lacking() {
        use std::future::pending;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let cut_off = || Err(not_all_out(1));
        let lacking = Err(CliError::failure("not committed"));
        let committed = |how: Result<(), CliError>| ready(((), how));
        let close = |()| pending::<Result<(), CliError>>();
        let cut = |how| runtime.block_on(committed_and_closed(committed(how), close, ready(()), cut_off()));
        assert_eq!(cut(Ok(())), Ok(()));
        assert_eq!(cut(lacking.clone()), lacking);
        let cut = committed_and_closed(pending::<((), Result<(), CliError>)>(), close, ready(()), cut_off());
        assert_eq!(runtime.block_on(cut), cut_off());
        let whole = committed_and_closed(committed(Ok(())), |()| ready(lacking.clone()), pending::<()>(), cut_off());
        assert_eq!(runtime.block_on(whole), lacking, "it could not be closed");
    }

    #[test]
    fn who_is_stopped_after_everything_was_read_is_not_told_that_it_was_before_the_end() {
        let error = not_all_out(1);
        assert_eq!(error.message, "interrupted before all was written: 1 record had been read");
        assert_eq!(error.exit, EXIT_INTERRUPTED);
    }
}
