//! A node that starts itself again as its next incarnation, when the machine gives it no thread: nobody else may be there who would start it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::common::{Place, eventually};

/// Limits of threads do not hold for root: somebody else then, who has no processes.
const SOMEBODY: u32 = 61_234;

fn is_root() -> bool {
    uid() == 0
}

fn uid() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").expect("it is Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("it names users");
    line.split_whitespace().next().and_then(|uid| uid.parse().ok()).expect("a number")
}

/// As somebody for whom limits hold.
fn as_somebody(mut command: Command) -> Command {
    if is_root() {
        command.uid(SOMEBODY).gid(SOMEBODY);
    }
    command
}

/// Copies the binary. Others have no way into its folder, perhaps. What this process itself writes may still be open in a child that another test starts meanwhile, and cannot be executed then.
fn copy_binary(to: &Path) {
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_kera")).arg(to).status().expect("cp is there");
    assert!(copied.success(), "there is room");
}

/// Starts a node that has no more than one thread, as the node itself does that was declared lost (`again`), or as anybody does.
fn start(place: &Place, log: &str, again: bool) -> Child {
    let binary = place.file("kera");
    copy_binary(&binary);
    let mut command = as_somebody(Command::new("prlimit"));
    command.arg("--nproc=1:4096").arg(&binary).args(place.flags()).env_remove("RUST_BACKTRACE");
    if again {
        command.env("_KERA_NEXT_INCARNATION_TRY", "1");
    }
    let log = std::fs::File::create(place.file(log)).expect("there is room");
    command.stdout(Stdio::null()).stderr(log).spawn().expect("prlimit is there, of util-linux")
}

fn somebodys_place() -> Place {
    let place = Place::new();
    if is_root() {
        std::os::unix::fs::chown(place.file(""), Some(SOMEBODY), Some(SOMEBODY)).expect("root may");
    }
    place
}

/// How often it was said that the next incarnation is tried again.
fn tries(place: &Place) -> usize {
    std::fs::read_to_string(place.file("log")).map_or(0, |log| log.matches("it is tried again").count())
}

/// Gives the node the threads that it lacks, and waits until it is ready.
fn comes_up(place: &Place, node: &mut Child) {
    assert!(node.try_wait().expect("it is ours").is_none(), "it goes on trying");
    let mut allow = as_somebody(Command::new("prlimit"));
    allow.args(["--nproc=4096:4096", "--pid", &node.id().to_string()]);
    assert!(allow.status().expect("prlimit is there").success());
    let is_ready = || std::fs::read_to_string(place.file("log")).is_ok_and(|log| log.contains("\"message\":\"ready\""));
    eventually("it is ready", is_ready);
    node.kill().expect("it runs");
    node.wait().expect("it is ours");
}

#[test]
fn the_next_incarnation_of_a_node_waits_for_threads() {
    let place = somebodys_place();
    let mut node = start(&place, "log", true);
    eventually("it has tried more than once", || tries(&place) > 1);
    comes_up(&place, &mut node);
}

#[test]
fn a_node_whose_program_was_replaced_meanwhile_starts_itself_again() {
    let place = somebodys_place();
    let mut node = start(&place, "log", true);
    eventually("it has tried", || tries(&place) > 0);
    // As a package does it.
    copy_binary(&place.file("new"));
    std::fs::rename(place.file("new"), place.file("kera")).expect("it is there");
    let before = tries(&place);
    eventually("it goes on", || tries(&place) > before + 1);
    comes_up(&place, &mut node);
}

#[test]
fn a_node_that_somebody_else_starts_says_at_once_what_it_lacks() {
    let place = somebodys_place();
    let mut node = start(&place, "log", false);
    assert_eq!(node.wait().expect("it is ours").code(), Some(17));
    let log = std::fs::read_to_string(place.file("log")).expect("it is there");
    assert!(log.contains("ulimit -u") && !log.contains("it is tried again"), "{log}");
}
