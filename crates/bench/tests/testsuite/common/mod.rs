//! The scripts in `bench`, with a `kera` that says what a test wants.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Mutex;

/// A program cannot be run while any process holds it open for writing, as one does that another test forks meanwhile.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs words of Python behind a script's own, with a `kera` that says and does `does`. `None`: there is no Python.
pub(crate) fn script(name: &str, does: &str, words: &str) -> Option<Output> {
    let _alone = ONE_AT_A_TIME.lock();
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("kera");
    std::fs::write(&program, format!("#!/bin/sh\n{does}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let words = format!("import sys, subprocess; sys.path.insert(0, 'bench')\nfrom {name} import *\n{words}");
    let mut python = Command::new("python3");
    python.args(["-B", "-c", &words]).arg(&program);
    let output = python.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).output().ok();
    let may_lack = std::env::var_os("CI").is_none();
    assert!(output.is_some() || may_lack, "python3 is not there, and `CI` is set: nothing may be left out");
    output
}
