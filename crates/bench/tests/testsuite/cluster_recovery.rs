//! `bench/cluster_recovery.py`: what it takes for a figure. Left out where there is no `python3`, which only the scripts in `bench` need; continuous
//! integration (`CI` is set) has it.

use std::process::Output;

use crate::common;

fn script(does: &str, words: &str) -> Option<Output> {
    common::script("cluster_recovery", does, words)
}

fn read_back(says: &str, keeps_all: &str) -> Option<(bool, String)> {
    let output = script(says, &format!("print(read_back(sys.argv[1], 'nowhere', 100, {keeps_all}))"))?;
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
        let Some((passed, told)) = read_back(says, "True") else { return };
        assert!(passed == passes && told.contains(word), "{says}: {told}");
    }
}

#[test]
fn retention_takes_records_and_no_more_than_it_must() {
    for (says, passes, word) in [
        (r#"echo '{"records": 100, "removed": 7, "errors": 0}'"#, true, "100"),
        (r#"echo '{"records": 99, "removed": 8, "errors": 0}'"#, false, "of 100 records or more 99 could be read"),
    ] {
        let Some((passed, told)) = read_back(says, "False") else { return };
        assert!(passed == passes && told.contains(word), "{says}: {told}");
    }
    let words = "print([kept_of(9000, None), kept_of(9000, 16), kept_of(9000, 8), kept_of(9000, 100)])";
    let Some(output) = script("exit 0", words) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[9000, 8192, 0, 9000]");
}

#[test]
fn a_node_that_came_back_and_of_which_nothing_is_told_has_no_figures() {
    let words = "\
import cluster_recovery
class Lost:
    start = wait = lambda self: None
class Clock:
    now, sleep, time = 0.0, lambda self, s: setattr(self, 'now', self.now + s), lambda self: self.now
    monotonic = time
cluster_recovery.time = Clock()
cluster_recovery.told_by = lambda process: {'latency_us': {'max': 0}, 'records': 1}
cluster_recovery.back([], Lost(), 0, 1, None)
print('figures')";
    let Some(output) = script("exit 0", words) else { return };
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("there are no figures"), "{told}");
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
