//! The command line of `kera-bench`: what it lists, how it refuses, and that Ctrl-C leaves nothing behind.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kera_bench::experiment::definition::load_all;
use rustix::process::{Pid, Signal, kill_process};

fn kera_bench() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kera-bench"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    kera_bench().args(words).output().expect("the binary runs")
}

fn refused(words: &[&str]) -> String {
    let output = run(words);
    assert!(!output.status.success(), "{words:?} should have been refused");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn list_says_what_each_shows_and_which_figure_it_follows() {
    let output = run(&["list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in ["icdcs-fig4", "ICDCS 2018, figure 7", "thesis, figure 8.17", "slides-cluster-streams"] {
        assert!(text.contains(words), "{words} is missing in:\n{text}");
    }
    let about = String::from_utf8(run(&["list", "icdcs-fig7"]).stdout).unwrap();
    assert!(about.contains("64 streamlets of 16 lanes") && about.contains("differs"), "{about}");
    let json: serde_json::Value = serde_json::from_slice(&run(&["list", "--json"]).stdout).unwrap();
    assert!(json.as_array().is_some_and(|all| all.len() > 15));
}

#[test]
fn mistakes_come_back_with_what_there_is() {
    let known = refused(&["run", "icdcs-fig99"]);
    assert!(known.contains("icdcs-fig4") && known.contains("cluster"), "{known}");
    assert!(refused(&["run", "icdcs-fig4", "--peer", "pulsar"]).contains("kafka"));
    assert!(refused(&["run", "icdcs-fig4", "--values", "5"]).contains("kera-bench list"));
    assert!(refused(&["run", "icdcs-fig4", "--kera", "/nowhere/kera"]).contains("cargo build"));
    assert!(refused(&["list", "--experiments", "/nowhere"]).contains("repository's root"));
    assert!(refused(&["report", "/nowhere"]).contains("kera-bench run"));
    assert!(refused(&["diff", "/nowhere", "/nowhere"]).contains("kera-bench record"));
}

#[test]
fn a_run_is_compared_with_the_ratios_that_were_recorded_last() {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/performance/ratios.json");
    let text = std::fs::read_to_string(&recorded).expect("ratios are recorded");
    let mut ratios: serde_json::Value = serde_json::from_str(&text).unwrap();
    let all = ratios["ratios"].as_array_mut().unwrap();
    let known = load_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments")).unwrap();
    let is_known = |ratio: &serde_json::Value| known.iter().any(|one| ratio["experiment"] == one.name.as_str());
    assert!(all.iter().all(is_known), "ratios of an experiment that is gone; record a tour again");
    for against in ["kafka", "kafka-java", "nats", "redis", "limit: a bare server", "limit: appending to disk"] {
        assert!(all.iter().any(|ratio| ratio["against"] == against), "nothing is recorded against {against}");
    }
    let dir = tempfile::tempdir().unwrap();
    let same = dir.path().join("same.json");
    std::fs::write(&same, &text).unwrap();
    let output = run(&["diff", same.to_str().unwrap()]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).starts_with("0 slower"), "{output:?}");
    // The first that single runs did not differ by as much anyhow.
    let steady = all.iter_mut().find(|ratio| ratio["width"].as_f64().unwrap() < 1.0).unwrap();
    steady["ratio"] = (steady["ratio"].as_f64().unwrap() / 10.0).into();
    let name = steady["experiment"].as_str().unwrap().to_owned();
    let slower = dir.path().join("slower.json");
    std::fs::write(&slower, ratios.to_string()).unwrap();
    let output = run(&["diff", slower.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{told}");
    assert!(told.contains("SLOWER") && told.contains(&name) && told.contains("1 slower"), "{told}");
}

#[test]
fn ctrl_c_ends_what_was_started_and_removes_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let place = |name: &str| dir.path().join(name);
    let program = place("kera");
    // A node that writes down its process, and a load that never ends.
    let script = format!(
        "#!/bin/sh\ncase $1 in\n--version) echo kera 0;;\n\
         serve) echo $$ >> {0}; trap 'exit 0' TERM INT; echo '{{\"message\":\"ready\"}}' >&2; while true; do sleep 0.02; done;;\n\
         bench) echo $$ >> {0}; touch {1}; exec sleep 60;;\nesac\n",
        place("pids").display(),
        place("loading").display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (data, out) = (place("data"), place("out"));
    let mut command = kera_bench();
    command.args(["run", "thesis-fig8-4", "--quick", "--seconds", "60"]);
    command.arg("--kera").arg(&program).arg("--dir").arg(&data).arg("--out").arg(&out).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    let started = Instant::now();
    while !place("loading").exists() {
        assert!(
            started.elapsed() < Duration::from_secs(240) && running.try_wait().unwrap().is_none(),
            "it never got there"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&running), Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert!(!data.exists(), "the node's directory is gone");
    assert!(out.join("results.jsonl").is_file(), "what was measured stays");
    for pid in std::fs::read_to_string(place("pids")).unwrap().lines() {
        assert!(!Path::new("/proc").join(pid).exists(), "process {pid} is still there");
    }
}
