//! `bench/cluster_recovery.py`: what it takes for a figure. Left out where there is no `python3`, which only the scripts in `bench` need.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

/// A program cannot be run while any process holds it open for writing, as one does that another test forks meanwhile.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs words of Python behind the script's own, with a `kera` that says and does `does`. `None`: there is no Python.
fn script(does: &str, words: &str) -> Option<Output> {
    let _alone = ONE_AT_A_TIME.lock();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kera");
    std::fs::write(&program, format!("#!/bin/sh\n{does}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = format!("import sys, subprocess; sys.path.insert(0, 'bench')\nfrom cluster_recovery import *\n{words}");
    let mut python = Command::new("python3");
    python.args(["-B", "-c", &words]).arg(&program);
    python.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).output().ok()
}

fn read_back(says: &str) -> Option<(bool, String)> {
    let output = script(says, "print(read_back(sys.argv[1], 'nowhere', 100, True))")?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Some((output.status.success(), text(&output.stdout) + &text(&output.stderr)))
}

#[test]
fn what_was_rebuilt_counts_only_if_all_of_it_can_be_read() {
    for (says, passes, word) in [
        (r#"echo '{"records": 101, "removed": 0, "errors": 0}'"#, true, "101"),
        (r#"echo '{"records": 99, "removed": 0, "errors": 0}'"#, false, "of 100 records or more 99 could be read"),
        (r#"echo '{"records": 100, "removed": 1, "errors": 0}'"#, false, "1 are gone"),
        (r#"echo '{"records": 100, "removed": 0, "errors": 1, "first_error": "a gap"}'"#, false, "a gap"),
        (r#"echo '{"records": 100, "removed": 0, "errors": 0}'; echo no node >&2; exit 1"#, false, "no node"),
    ] {
        let Some((passed, told)) = read_back(says) else { return };
        assert!(passed == passes && told.contains(word), "{says}: {told}");
    }
}

#[test]
fn a_load_or_a_reader_that_fails_has_no_figures() {
    let load = "process = subprocess.Popen([sys.argv[1]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)\n\
                print(told_by(process)['latency_us']['max'])";
    let reader = "output_of('the application', reads(sys.argv[1], 'nowhere', 5))\nprint('it has them')";
    for (does, words, passes, word) in [
        (r#"echo '{"errors": 0, "consume": {"errors": 0}, "latency_us": {"max": 7}}'"#, load, true, "7"),
        (r#"echo '{"errors": 0, "consume": {"errors": 2}, "latency_us": {"max": 7}}'"#, load, false, "2 errors"),
        (r#"echo '{"errors": 0, "latency_us": {"max": 7}}'; exit 1"#, load, false, "status 1"),
        ("exit 0", reader, true, "it has them"),
        ("echo no such stream >&2; exit 1", reader, false, "no such stream"),
    ] {
        let Some(output) = script(does, words) else { return };
        let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() == passes && told.contains(word), "{does}: {told}");
    }
}
