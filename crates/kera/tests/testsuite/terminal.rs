//! What commands show at a terminal: what they draw, and what they leave there.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::{self, Node, sample, with_stream};

/// All that a command writes to a terminal of 100 columns; nothing if there is no terminal to be had.
fn at_terminal(node: &Node, line: &str) -> Option<String> {
    let there = Command::new("script").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_err() {
        common::lacks("`script` of util-linux, for a terminal");
        return None;
    }
    let mut command = Command::new("script");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KERA_")) {
        command.env_remove(name);
    }
    let kera = env!("CARGO_BIN_EXE_kera");
    command.args(["-qec", &format!("stty cols 100 rows 30; {kera} {line}"), "/dev/null"]);
    command.env("SHELL", "/bin/sh").env("TERM", "xterm").env("KERA_CONNECT", node.address());
    let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`script` is there");
    // Its end would be typed.
    let _typed = script.stdin.take();
    let output = script.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "kera {line}: {said}");
    Some(said)
}

/// The screen on which it was drawn goes, and whoever has asked for one look or for ten has nothing but what is behind that.
#[test]
fn the_last_look_stays_at_the_terminal() {
    let (_place, node) = with_stream("");
    node.ok(&format!("produce flights --file {}", sample("flights-sample.ndjson")));
    for count in [1, 2] {
        let Some(said) = at_terminal(&node, &format!("top --count {count} --interval-ms 100")) else { return };
        assert_eq!(said.contains("\u{1b}[?1049h"), count > 1, "one look is not drawn: {said:?}");
        let stays = said.rsplit("\u{1b}[?1049l").next().unwrap_or_default();
        assert!(stays.contains("stream flights in_records_s=0"), "{said:?}");
    }
    node.stop();
}

/// Whoever may write to a stream would otherwise have the terminals of those who read it.
#[test]
fn what_a_value_would_do_to_a_terminal_is_shown_there_and_kept_elsewhere() {
    let value = b"\x1b]0;gone\x07\xffend";
    let (place, node) = with_stream("");
    let file = place.file("value");
    std::fs::File::create(&file).and_then(|mut file| file.write_all(value)).expect("there is room");
    node.ok(&format!("produce flights --format raw --file {}", file.display()));
    assert_eq!(node.run("consume flights").stdout, [&value[..], b"\n"].concat());
    let Some(said) = at_terminal(&node, "consume flights") else { return };
    assert!(said.contains(r"\x1b]0;gone\x07\xffend"), "{said:?}");
    assert!(!said.contains('\u{1b}') && !said.contains('\u{7}'), "{said:?}");
    let raw = at_terminal(&node, "consume flights --format raw").expect("it was there before");
    assert!(raw.contains("\u{1b}]0;gone\u{7}"), "{raw:?}");
    // Of JSON all but this is escaped anyway.
    std::fs::write(&file, "\u{9b}2J").expect("there is room");
    node.ok(&format!("produce flights --format raw --file {}", file.display()));
    let last = "consume flights --json --last 1";
    assert!(node.ok(last).contains("\"value\":\"\u{9b}2J\""), "it is kept elsewhere");
    let json = at_terminal(&node, last).expect("it was there before");
    assert!(json.contains(r#""value":"\u009b2J""#), "{json:?}");
    node.stop();
}
