//! `kera cluster up`: a cluster on this machine to try things out, each node a process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Seek, SeekFrom};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kera_server::Wishes;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc;

use crate::cli::{ClusterUpArgs, Globals};
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::output;
use crate::signals;

/// How long a node may take to serve: disks that stand still for seconds have it wait at each of its steps.
const START: Duration = Duration::from_secs(120);
/// How long all may take to stop.
const STOP: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

struct Member {
    number: u16,
    native: String,
    kafka: String,
    http: String,
    log: String,
    /// Where in the log begins what this process says.
    log_from: u64,
    /// What to type to start it again.
    again: String,
    process: Child,
    is_gone: bool,
}

/// Starts the nodes, tells where they are, and stops them when it is told to.
///
/// # Errors
/// A node does not start, or fails by itself; the others are stopped then. One that is killed or told to stop takes nobody with it, unless all are gone
/// and nobody can type to start one again. Somebody has stopped it before all were there.
pub async fn up(args: &ClusterUpArgs, globals: &Globals) -> Result<(), CliError> {
    // The terminal that goes away ends the command too: the nodes do not get its signals.
    let mut wishes = signals::listen(&[SignalKind::hangup()])?;
    let program = this_program()?;
    let mut members = Vec::new();
    let started = tokio::select! {
        started = start(args, &program, &mut members) => started,
        _ = wishes.next() => {
            Err(CliError { exit: EXIT_INTERRUPTED, ..CliError::failure("stopped before all nodes were there") })
        }
    };
    let ran = match started.and_then(|()| tell(&members, globals)) {
        Ok(()) => tokio::select! {
            _ = wishes.next() => Ok(()),
            ended = first_end(args, &program, &mut members) => Err(ended),
        },
        Err(error) => Err(error),
    };
    stop(&mut members, &mut wishes).await;
    ran
}

/// Nodes that were in the cluster before are all started before any is waited for: none of them serves before a majority of them is there.
/// The others join one after the other, each when those before it serve.
async fn start(args: &ClusterUpArgs, program: &Path, members: &mut Vec<Member>) -> Result<(), CliError> {
    check_made_so(args)?;
    check_doors(args)?;
    for number in (1..=args.nodes).filter(|number| was_member(args, *number)) {
        members.push(spawn(args, program, number)?);
    }
    for number in 1..=args.nodes {
        let at = members.iter().position(|member| member.number == number);
        let at = match at {
            Some(at) => at,
            None => {
                members.push(spawn(args, program, number)?);
                members.len() - 1
            }
        };
        serves(members, at).await?;
        note_made(args);
    }
    members.sort_by_key(|member| member.number);
    Ok(())
}

/// Where this program is. Asked at the beginning only: once another build has been put there the system names a file that is gone.
fn this_program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|error| CliError::failure(format!("this program: {error}")))
}

/// Waits until a node serves. One that ends meanwhile is told first: others may wait for it in vain.
async fn serves(members: &mut [Member], at: usize) -> Result<(), CliError> {
    let began = Instant::now();
    loop {
        for member in members.iter_mut() {
            if let Ok(Some(status)) = member.process.try_wait() {
                return Err(ended(member, status));
            }
        }
        let member = &members[at];
        if TcpStream::connect(&member.native).is_ok() {
            return Ok(());
        }
        if began.elapsed() > START {
            let message = format!("node {} does not serve after {} s", member.number, START.as_secs());
            return Err(CliError::failure(message).next(format!("look at {}", member.log)));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn data_of(args: &ClusterUpArgs, number: u16) -> PathBuf {
    Path::new(&args.data).join(format!("node-{number}"))
}

/// Whether a node has a part of the coordinators' log.
fn was_member(args: &ClusterUpArgs, number: u16) -> bool {
    let files = std::fs::read_dir(data_of(args, number).join(kera_server::COORDINATORS_DIR));
    files.is_ok_and(|mut files| files.next().is_some())
}

/// How a cluster was made, in its folder: what has to stay as it is.
#[derive(Serialize, Deserialize, PartialEq, Eq)]
struct Made {
    /// Nodes know each other by these ports: those that are stopped and started at others all find nobody.
    cluster_port: u16,
}

fn made_file(args: &ClusterUpArgs) -> PathBuf {
    Path::new(&args.data).join("cluster-up.json")
}

/// Refuses other ports among the nodes than those that they know each other by: each would end over it, with the names of its own flags, which are none of
/// this command.
fn check_made_so(args: &ClusterUpArgs) -> Result<(), CliError> {
    let made = std::fs::read(made_file(args)).ok().and_then(|noted| serde_json::from_slice::<Made>(&noted).ok());
    let is_made = (1..=args.nodes).any(|number| was_member(args, number));
    match made.map(|made| made.cluster_port).filter(|was| is_made && *was != args.cluster_port) {
        Some(was) => {
            let message =
                format!("{} was made with --cluster-port {was}, and this is {}", args.data, args.cluster_port);
            Err(CliError::usage(message).next(format!("keep --cluster-port {was}, or use another --data")))
        }
        None => Ok(()),
    }
}

/// Notes how the cluster was made, once a node has served: what was said before may have been a mistake. What is noted there otherwise is of a cluster that is
/// gone, for this one would have been refused, or cannot be read. Where it cannot be noted a node says itself that it is known at another address.
fn note_made(args: &ClusterUpArgs) {
    let (file, made) = (made_file(args), Made { cluster_port: args.cluster_port });
    if let Ok(text) = serde_json::to_vec(&made)
        && std::fs::read(&file).ok().as_ref() != Some(&text)
    {
        let _ = std::fs::write(&file, text);
    }
}

/// Where a node listens.
struct Doors {
    native: String,
    kafka: String,
    http: String,
    cluster: String,
}

impl Doors {
    fn of(args: &ClusterUpArgs, number: u16) -> Result<Doors, CliError> {
        let port = |flag: &str, first: u16| -> Result<String, CliError> {
            let port = first.checked_add(number - 1);
            let port = port.ok_or_else(|| CliError::usage(format!("{flag} {first} is too high for node {number}")))?;
            Ok(format!("127.0.0.1:{port}"))
        };
        Ok(Doors {
            native: port("--port", args.port)?,
            kafka: port("--kafka-port", args.kafka_port)?,
            http: port("--http-port", args.http_port)?,
            cluster: port("--cluster-port", args.cluster_port)?,
        })
    }

    /// Each with the flag of this command that moves it.
    fn by_flag(&self) -> [(&'static str, &str); 4] {
        [
            ("--port", &self.native),
            ("--kafka-port", &self.kafka),
            ("--http-port", &self.http),
            ("--cluster-port", &self.cluster),
        ]
    }

    /// Refuses where something listens: the node would end over it, with the names of its own flags, and what answers clients there would be taken for the node.
    fn check_free(&self, number: u16) -> Result<(), CliError> {
        let is_in_use = |address: &str| TcpListener::bind(address).is_err_and(|e| e.kind() == ErrorKind::AddrInUse);
        match self.by_flag().into_iter().find(|(_, address)| is_in_use(address)) {
            Some((flag, address)) => {
                let message =
                    format!("node {number}: {address} is in use, perhaps by a node of an earlier `kera cluster up`");
                Err(CliError::failure(message).next(format!("stop that one, or choose other ports with {flag}")))
            }
            None => Ok(()),
        }
    }
}

/// Looks at where all nodes are to listen before any is started.
fn check_doors(args: &ClusterUpArgs) -> Result<(), CliError> {
    let mut taken: BTreeMap<String, &'static str> = BTreeMap::new();
    for number in 1..=args.nodes {
        let doors = Doors::of(args, number)?;
        for (flag, address) in doors.by_flag() {
            if let Some(other) = taken.insert(address.to_owned(), flag) {
                let message = format!("{address} would be a port of both {other} and {flag}");
                let next = format!("each has as many ports as there are nodes, {}: choose others", args.nodes);
                return Err(CliError::usage(message).next(next));
            }
        }
        doors.check_free(number)?;
    }
    Ok(())
}

fn spawn(args: &ClusterUpArgs, program: &Path, number: u16) -> Result<Member, CliError> {
    let doors = Doors::of(args, number)?;
    doors.check_free(number)?;
    let Doors { native, kafka, http, cluster } = doors;
    let data = data_of(args, number);
    let failed = |what: &Path, error: std::io::Error| CliError::failure(format!("{}: {error}", what.display()));
    std::fs::create_dir_all(&data).map_err(|error| failed(&data, error))?;
    let log_path = data.join("log.txt");
    let mut log =
        File::options().create(true).append(true).open(&log_path).map_err(|error| failed(&log_path, error))?;
    let log_from = log.seek(SeekFrom::End(0)).map_err(|error| failed(&log_path, error))?;
    let mut words: Vec<String> = ["serve", "--data"].map(String::from).to_vec();
    words.push(data.display().to_string());
    let mut say = |flag: &str, value: &str| words.extend([flag.to_owned(), value.to_owned()]);
    say("--node", &number.to_string());
    say("--listen", &native);
    say("--kafka-listen", &kafka);
    say("--http-listen", &http);
    say("--cluster-listen", &cluster);
    say("--arena-bytes", &args.arena_bytes);
    say("--rack", &format!("rack-{number}"));
    if number > 1 {
        say("--join", &Doors::of(args, 1)?.cluster);
    }
    let out = log.try_clone().map_err(|error| failed(&log_path, error))?;
    let mut command = Command::new(program);
    // A group of its own: Ctrl-C at the terminal is for this command, which stops the nodes, and would be a second signal to them.
    command.args(&words).process_group(0).stdin(Stdio::null()).stdout(out).stderr(log);
    // Killed, this command stops nothing itself. It starts nodes from its main thread only, which lives as long as it does.
    kera_bench::server::end_with_parent(&mut command);
    let process = command.spawn().map_err(|error| failed(program, error))?;
    let again = format!("kera {}", words.iter().map(|word| as_typed(word)).collect::<Vec<_>>().join(" "));
    Ok(Member {
        number,
        native,
        kafka,
        http,
        log: log_path.display().to_string(),
        log_from,
        again,
        process,
        is_gone: false,
    })
}

/// A word as it is typed in a shell.
fn as_typed(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:,=+".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

fn tell(members: &[Member], globals: &Globals) -> Result<(), CliError> {
    let all: Vec<&str> = members.iter().map(|member| member.native.as_str()).collect();
    let kafka: Vec<&str> = members.iter().map(|member| member.kafka.as_str()).collect();
    if globals.json {
        let nodes: Vec<_> = members
            .iter()
            .map(|member| {
                serde_json::json!({
                    "node": member.number,
                    "pid": member.process.id(),
                    "address": member.native,
                    "kafka": member.kafka,
                    "http": member.http,
                    "log": member.log,
                    "start_again": member.again,
                })
            })
            .collect();
        return output::print_json(&serde_json::json!({ "nodes": nodes }));
    }
    let mut text = String::new();
    for member in members {
        let Member { number, native, http, log, .. } = member;
        text += &format!("node {number}  {native}  http://{http}  process {}  {log}\n", member.process.id());
    }
    let copies = members.len().min(3);
    text += &format!(
        "\nexport KERA_CONNECT={}\nkera stream create events --streamlets 6 --replication {copies}\nkera status\n\
         Kafka clients: {}\n\nkill -9 one of the processes while you write: the others go on, and it is said here how to start it again. \
         Ctrl-C stops all that were started here.\n",
        all.join(","),
        kafka.join(",")
    );
    output::print(&text)
}

/// Waits until a node ends that nobody has stopped: one that is killed, or told to stop, is what such a cluster is for. It is started again when
/// somebody asks for it, at a terminal; elsewhere it is said how. One that was started again so and does not come up takes nobody with it.
async fn first_end(args: &ClusterUpArgs, program: &Path, members: &mut [Member]) -> CliError {
    let mut lines = lines_typed();
    let mut again: BTreeSet<u16> = BTreeSet::new();
    loop {
        let can_type = lines.is_some() && is_in_front();
        for member in members.iter_mut().filter(|member| !member.is_gone) {
            if let Ok(Some(status)) = member.process.try_wait() {
                let has_failed = status.signal().is_none() && !status.success();
                if has_failed && !again.contains(&member.number) {
                    return ended(member, status);
                }
                member.is_gone = true;
                if has_failed {
                    output::say(ended(member, status));
                }
                output::say(how_again(member, status, can_type));
            }
        }
        if !can_type && members.iter().all(|member| member.is_gone) {
            return CliError::failure("all nodes are gone");
        }
        let typed = async {
            match &mut lines {
                Some(typed) => typed.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = tokio::time::sleep(LOOK * 5) => {}
            typed = typed => match typed {
                Some(()) => again.extend(start_again(args, program, members)),
                // Nobody types any more.
                None => lines = None,
            },
        }
    }
}

/// What has become of a node, and how it is started again.
fn how_again(member: &Member, status: std::process::ExitStatus, can_type: bool) -> String {
    let Member { number, again, .. } = member;
    let what = match status.signal() {
        Some(_) => "was killed",
        None if status.success() => "was stopped",
        None => "is not there",
    };
    match can_type {
        true => format!("node {number} {what}; press Enter to start it again"),
        false => {
            format!("node {number} {what}; to start it again, in another terminal and in this folder:\n{again}")
        }
    }
}

/// Starts again what is gone, and tells of what it has started. What cannot be started, as it may run already where somebody has typed its command,
/// is said, and stays as it is.
fn start_again(args: &ClusterUpArgs, program: &Path, members: &mut [Member]) -> Vec<u16> {
    let mut started = Vec::new();
    for member in members.iter_mut().filter(|member| member.is_gone) {
        match spawn(args, program, member.number) {
            Ok(new) => {
                *member = new;
                started.push(member.number);
                output::say(format_args!("node {} starts, process {}", member.number, member.process.id()));
            }
            Err(error) => {
                let next = match TcpStream::connect(&member.native) {
                    Ok(_) => {
                        "all is well if it was started in another terminal; if not, see to that first and press Enter again"
                    }
                    Err(_) => "see to that first and press Enter again",
                };
                output::say(error.next(next));
            }
        }
    }
    started
}

/// Whether somebody can type: there is a terminal, and this runs in front of it. Who reads from it in the background (`&`, or Ctrl-Z and bg) is
/// stopped for it, and the nodes would be left alone. That of somebody else stops nobody.
fn is_in_front() -> bool {
    let typed = std::io::stdin();
    let in_front = rustix::termios::tcgetpgrp(&typed);
    typed.is_terminal() && in_front.map_or(true, |group| group == rustix::process::getpgrp())
}

/// Tells of each line that is typed, if there is a terminal at which they can be.
fn lines_typed() -> Option<mpsc::Receiver<()>> {
    let (typed, lines) = mpsc::channel(1);
    let read = move || {
        let from = std::io::stdin();
        while from.is_terminal() && !typed.is_closed() {
            // Only what is there already is read, so that whoever goes to the background is not found waiting for it.
            if is_in_front() && rustix::io::ioctl_fionread(&from).is_ok_and(|bytes| bytes > 0) {
                let read = rustix::io::read(&from, &mut [0; 4096][..]);
                if read.is_ok_and(|bytes| bytes > 0) && typed.blocking_send(()).is_err() {
                    return;
                }
            } else {
                std::thread::sleep(LOOK * 5);
            }
        }
    };
    // Detached: it looks for lines until the process ends.
    let is_read =
        std::io::stdin().is_terminal() && std::thread::Builder::new().name("kera-typed".into()).spawn(read).is_ok();
    is_read.then_some(lines)
}

/// What a node that has ended has said last: its error, all lines of it.
fn ended(member: &Member, status: std::process::ExitStatus) -> CliError {
    let said = said_since(&member.log, member.log_from).unwrap_or_default();
    let why = said.rfind("error: ").map_or("", |at| &said[at + "error: ".len()..]);
    let (why, next) = why.split_once("\n  next: ").unwrap_or((why, ""));
    let what = format!("node {} has ended ({status})", member.number);
    let message = if why.is_empty() { what } else { format!("{what}: {}", why.trim_end()) };
    let next = if next.is_empty() { String::new() } else { format!("{}; ", next.trim_end()) };
    CliError::failure(message).next(format!("{next}look at {}", member.log))
}

/// What a log has from a place on.
fn said_since(log: &str, from: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(from))?;
    let mut said = Vec::new();
    file.read_to_end(&mut said)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

/// Stops all gracefully, the first node last; those that do not stop are killed, and all when it is asked for once more.
async fn stop(members: &mut [Member], wishes: &mut Wishes) {
    for member in members.iter_mut().rev() {
        if matches!(member.process.try_wait(), Ok(None))
            && let Some(pid) = rustix::process::Pid::from_raw(member.process.id() as i32)
        {
            // Gone in between is as good.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
    let began = Instant::now();
    while began.elapsed() < STOP && members.iter_mut().any(|member| matches!(member.process.try_wait(), Ok(None))) {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            _ = wishes.next() => break,
        }
    }
    for member in members {
        let _ = member.process.kill();
        let _ = member.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nodes' folders were removed and the note was not: it stayed, and the next start at the right ports was refused for those of a cluster that is gone.
    #[test]
    fn the_ports_that_a_cluster_was_made_with_are_those_of_the_one_that_is_there() {
        let place = tempfile::tempdir().expect("a folder");
        let at = |cluster_port| ClusterUpArgs {
            nodes: 1,
            data: place.path().to_str().expect("a name").to_owned(),
            port: 7081,
            kafka_port: 9081,
            http_port: 7281,
            cluster_port,
            arena_bytes: "256MiB".to_owned(),
        };
        for gone in [r#"{"cluster_port":7181}"#, "half of"] {
            std::fs::write(made_file(&at(8181)), gone).expect("it is written");
            note_made(&at(8181));
            let coordinators = data_of(&at(8181), 1).join(kera_server::COORDINATORS_DIR);
            std::fs::create_dir_all(&coordinators).expect("a folder");
            std::fs::write(coordinators.join("log"), b"entries").expect("a file");
            assert_eq!(check_made_so(&at(8181)), Ok(()));
            let refused = check_made_so(&at(7181)).expect_err("its nodes know each other by other ports");
            assert!(refused.message.contains("made with --cluster-port 8181"), "{refused}");
        }
    }
}
