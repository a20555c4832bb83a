//! `kera cluster up`: a cluster on this machine to try things out, each node a process of its own.

use std::fs::File;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{ClusterUpArgs, Globals};
use crate::error::CliError;
use crate::output;

/// How long a node may take to serve.
const START: Duration = Duration::from_secs(30);
/// How long all may take to stop.
const STOP: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

struct Member {
    number: u16,
    native: String,
    kafka: String,
    log: String,
    process: Child,
}

/// Starts the nodes, tells where they are, and stops them when it is told to.
///
/// # Errors
/// A node does not start, or ends by itself; the others are stopped then.
pub async fn up(args: &ClusterUpArgs, globals: &Globals) -> Result<(), CliError> {
    let cannot = |error| CliError::failure(format!("signals cannot be waited for: {error}"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut members = Vec::new();
    let started = tokio::select! {
        started = start(args, &mut members) => started,
        _ = interrupt.recv() => Err(CliError::failure("stopped before all nodes were there")),
        _ = terminate.recv() => Err(CliError::failure("stopped before all nodes were there")),
    };
    let ran = match started {
        Ok(()) => match tell(&members, globals) {
            Ok(()) => tokio::select! {
                _ = interrupt.recv() => Ok(()),
                _ = terminate.recv() => Ok(()),
                ended = first_end(&mut members) => Err(ended),
            },
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    stop(&mut members).await;
    ran
}

async fn start(args: &ClusterUpArgs, members: &mut Vec<Member>) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(|error| CliError::failure(format!("this program: {error}")))?;
    for number in 1..=args.nodes {
        members.push(spawn(args, &program, number)?);
        let began = Instant::now();
        loop {
            let member = members.last_mut().expect("just pushed");
            if let Ok(Some(status)) = member.process.try_wait() {
                return Err(ended(member, status));
            }
            if TcpStream::connect(&member.native).is_ok() {
                break;
            }
            if began.elapsed() > START {
                let message = format!("node {number} does not serve after {} s", START.as_secs());
                return Err(CliError::failure(message).next(format!("look at {}", member.log)));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

fn spawn(args: &ClusterUpArgs, program: &Path, number: u16) -> Result<Member, CliError> {
    let data = Path::new(&args.data).join(format!("node-{number}"));
    let failed = |what: &Path, error: std::io::Error| CliError::failure(format!("{}: {error}", what.display()));
    std::fs::create_dir_all(&data).map_err(|error| failed(&data, error))?;
    let log_path = data.join("log.txt");
    let log = File::options().create(true).append(true).open(&log_path).map_err(|error| failed(&log_path, error))?;
    let port = |first: u16, of: u16| -> Result<String, CliError> {
        let port = first.checked_add(of - 1);
        let port = port.ok_or_else(|| CliError::usage("--port, --kafka-port or --cluster-port is too high"))?;
        Ok(format!("127.0.0.1:{port}"))
    };
    let (native, kafka) = (port(args.port, number)?, port(args.kafka_port, number)?);
    let mut command = Command::new(program);
    command.arg("serve").args(["--data".as_ref(), data.as_os_str()]);
    command.args(["--node", &number.to_string(), "--listen", &native, "--kafka-listen", &kafka]);
    command.args(["--cluster-listen", &port(args.cluster_port, number)?, "--http-listen", "none"]);
    command.args(["--arena-bytes", &args.arena_bytes, "--rack", &format!("rack-{number}")]);
    if number > 1 {
        command.args(["--join", &port(args.cluster_port, 1)?]);
    }
    let out = log.try_clone().map_err(|error| failed(&log_path, error))?;
    let process = command.stdin(Stdio::null()).stdout(out).stderr(log).spawn();
    let process = process.map_err(|error| failed(program, error))?;
    Ok(Member { number, native, kafka, log: log_path.display().to_string(), process })
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
                    "log": member.log,
                })
            })
            .collect();
        return output::print_json(&serde_json::json!({ "nodes": nodes }));
    }
    let mut text = String::new();
    for member in members {
        let Member { number, native, log, .. } = member;
        text += &format!("node {number}  {native}  process {}  {log}\n", member.process.id());
    }
    let copies = members.len().min(3);
    text += &format!(
        "\nexport KERA_CONNECT={}\nkera stream create events --streamlets 6 --replication {copies}\nkera status\n\
         Kafka clients: {}\n\nkill -9 one of the processes while you write: the others go on. Ctrl-C stops all.\n",
        all.join(","),
        kafka.join(",")
    );
    output::print(&text)
}

/// Waits until a node that nobody has killed ends: one that is killed is what such a cluster is for.
async fn first_end(members: &mut [Member]) -> CliError {
    use std::os::unix::process::ExitStatusExt;
    let mut gone = vec![false; members.len()];
    loop {
        for (member, gone) in members.iter_mut().zip(&mut gone).filter(|(_, gone)| !**gone) {
            if let Ok(Some(status)) = member.process.try_wait() {
                if status.signal().is_none() {
                    return ended(member, status);
                }
                *gone = true;
            }
        }
        if gone.iter().all(|gone| *gone) {
            return CliError::failure("all nodes are gone");
        }
        tokio::time::sleep(LOOK * 5).await;
    }
}

fn ended(member: &Member, status: std::process::ExitStatus) -> CliError {
    let why = std::fs::read_to_string(&member.log).unwrap_or_default();
    let last = why.lines().rev().find(|line| line.contains("error")).unwrap_or_default().trim().to_owned();
    CliError::failure(format!("node {} has ended ({status}) {last}", member.number))
        .next(format!("look at {}", member.log))
}

/// Stops all gracefully, the first node last; those that do not stop are killed.
async fn stop(members: &mut [Member]) {
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
        tokio::time::sleep(LOOK).await;
    }
    for member in members {
        let _ = member.process.kill();
        let _ = member.process.wait();
    }
}
