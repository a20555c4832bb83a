//! Records through the command line: files in, records out, and where a consumer goes on.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::common::{
    self, Node, PATIENCE, Place, end_of, eventually, follow, lines, sample, sorted, terminate, with_stream,
};

#[test]
fn what_goes_in_comes_out() {
    let (_place, node) = with_stream("--streamlets 4 --lanes 2");
    let file = sample("flights-sample.ndjson");
    let said = node.ok(&format!("produce flights --file {file} --key-field origin --timestamp-field date"));
    assert!(said.starts_with("200 records") && said.contains("acknowledged"), "{said}");
    let written = lines(&std::fs::read_to_string(&file).unwrap());
    assert_eq!(sorted(lines(&node.ok("consume flights"))), sorted(written));

    let record = node.ok("consume flights --max 1 --format json");
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["key"], record["value"]["origin"]);
    let date = record["value"]["date"].as_str().unwrap().replace(' ', "T");
    assert_eq!(record["timestamp"], json!(format!("{date}:00.000Z")));
    assert_eq!(record["ordinal"], 0);
}

#[test]
fn one_key_stays_in_one_streamlet_in_order() {
    let (_place, node) = with_stream("--streamlets 8");
    let file = sample("flights-sample.csv");
    node.ok(&format!("produce flights --file {file} --key-field origin"));
    let records: Vec<Value> =
        node.ok("consume flights --format json").lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let mut homes = std::collections::HashMap::new();
    let mut dates = std::collections::HashMap::new();
    for record in &records {
        let key = record["key"].as_str().unwrap().to_owned();
        let home = homes.entry(key.clone()).or_insert_with(|| record["streamlet"].clone());
        assert_eq!(*home, record["streamlet"]);
        let date = record["value"]["date"].as_str().unwrap().to_owned();
        let before = dates.insert(key, date.clone());
        assert!(before.is_none_or(|before| before <= date));
    }
    assert_eq!(records.len(), 200);
    // CSV numbers are numbers.
    assert!(records[0]["value"]["distance"].is_u64());
}

#[test]
fn every_compression_and_chunk_size_reads_back() {
    let (_place, node) = with_stream("--streamlets 2");
    let file = sample("flights-sample.ndjson");
    for flags in ["--compression lz4", "--compression zstd --chunk-bytes 1MiB", "--chunk-bytes 256B --linger-ms 1"] {
        node.ok(&format!("produce flights --file {file} {flags}"));
    }
    assert_eq!(node.ok("consume flights").lines().count(), 600);
}

#[test]
fn standard_input_lines_and_raw() {
    let (place, node) = with_stream("");
    let mut child = node.command("produce flights").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"one\ntwo\n\nfour").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(node.ok("consume flights"), "one\ntwo\n\nfour\n");
    let file = place.file("raw");
    std::fs::write(&file, b"\x00\xff\n\n").unwrap();
    node.ok(&format!("produce flights --format raw --file {}", file.display()));
    let output = node.run("consume flights --format raw");
    assert_eq!(output.stdout, b"onetwofour\x00\xff\n\n");
    let last = node.ok("consume flights --format json");
    let last: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    assert_eq!(last["value_hex"], "00ff0a0a");
}

#[test]
fn what_was_printed_as_json_is_written_again_as_it_was() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    std::fs::write(&file, b"a:{\"b\":1,\"a\":1.50}\nb:null\n\xff:\xfe\n:\n").unwrap();
    node.ok(&format!("produce flights --file {} --key-separator : --null-value null", file.display()));
    node.ok("stream create copied");
    let printed = node.ok("consume flights --json");
    std::fs::write(&file, &printed).unwrap();
    node.ok(&format!("produce copied --file {} --format records", file.display()));
    let without_time = |text: &str| -> Vec<String> {
        let line = |line: &str| {
            let mut record: Value = serde_json::from_str(line).unwrap();
            record["appended"].take();
            record.to_string()
        };
        text.lines().map(line).collect()
    };
    assert_eq!(without_time(&node.ok("consume copied --json")), without_time(&printed));
    let records: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(printed.contains(r#""value":{"b":1,"a":1.50}"#), "{printed}");
    assert_eq!((&records[1]["key"], &records[1]["value"]), (&json!("b"), &Value::Null));
    assert_eq!((&records[2]["key_hex"], &records[2]["value_hex"]), (&json!("ff"), &json!("fe")));
}

/// Lines that a child writes to its standard error, as they come.
fn said_by(child: &mut Child) -> std::sync::mpsc::Receiver<String> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

#[test]
fn producing_ends_with_the_first_record_that_is_given_up_though_the_input_goes_on() {
    let (_place, node) = with_stream("");
    let mut command = node.command("produce flights");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\ntwo\n").unwrap();
    eventually("two records", || node.ok("consume flights") == "one\ntwo\n");
    node.ok("stream delete flights --yes");
    // The input stays open: the command ends by itself.
    input.write_all(b"three\n").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let said = said_by(&mut child).into_iter().collect::<Vec<_>>().join("\n");
    // The records were readable before the command heard that they are acknowledged: it may have sent the third by then.
    let parts = if said.contains("up to line") {
        ["up to line 2 the stream has everything (2 records)", "of 1 record after that none was", "from line 3 on"]
    } else {
        ["of 3 records", "acknowledged", "from line 1 on"]
    };
    for part in parts {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn producing_says_what_it_waits_for_and_that_it_goes_on() {
    let (place, node) = with_stream("");
    let address = node.address();
    let mut command = node.command("produce flights");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"one\n").unwrap();
    eventually("one record", || node.ok("consume flights") == "one\n");
    node.kill();
    input.write_all(b"two\n").unwrap();
    let said = said_by(&mut child);
    // A node that stands still for a while before it is killed is waited for as well, and goes on.
    let hears = |word: &str| loop {
        let line = said.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("it does not say `{word}`"));
        if line.contains(word) {
            break line;
        }
    };
    let waits = hears("refused");
    assert!(waits.contains("waiting") && waits.contains(&address), "{waits}");
    let mut flags = place.flags();
    let listen = flags.iter().position(|flag| flag == "--listen").unwrap() + 1;
    flags[listen] = address;
    let node = Node::start_flags(&flags);
    hears("it goes on");
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(node.ok("consume flights"), "one\ntwo\n");
}

#[test]
fn a_malformed_line_is_named_with_file_line_and_field() {
    let (place, node) = with_stream("");
    let file = place.file("flights.ndjson");
    let mut text: Vec<String> = lines(&std::fs::read_to_string(sample("flights-sample.ndjson")).unwrap());
    text[16] = text[16].replace("\"origin\"", "\"orign\"");
    text[40] = "{\"date\":".into();
    std::fs::write(&file, text.join("\n")).unwrap();
    let produce = format!("produce flights --file {} --key-field origin", file.display());

    let (status, said) = node.fails(&produce);
    assert_eq!(status, 1);
    for part in [
        "flights.ndjson, line 17, field `origin`: ",
        "`orign`",
        "--on-error skip",
        "the 16 records before it were written",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(node.ok("consume flights").lines().count(), 16);

    let output = node.run(&format!("{produce} --on-error skip --json"));
    let summary: Value = serde_json::from_str(&common::stdout(&output)).unwrap();
    assert_eq!((&summary["records"], &summary["skipped"]), (&json!(198), &json!(2)));
    let said = common::stderr(&output);
    assert!(said.contains("line 17, field `origin`") && said.contains("line 41: this is no JSON"), "{said}");
}

#[test]
fn what_stopped_at_a_malformed_line_goes_on_with_it_when_it_is_corrected() {
    let (place, node) = with_stream("");
    let file = place.file("people.csv");
    let text = |third: &str| format!("name;size\nann;1\nbob;2\n{third}\ndan;4\n");
    std::fs::write(&file, text("cid")).unwrap();
    let produce = format!("produce flights --file {} --delimiter ; --csv-types text", file.display());
    let (status, said) = node.fails(&produce);
    assert_eq!(status, 1);
    for part in ["line 4, field `size`", "the 2 records before it were written", "then go on with --from-line 4"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    std::fs::write(&file, text("cid;3")).unwrap();
    let said = node.ok(&format!("{produce} --from-line 4"));
    assert!(!said.contains("nothing begins"), "{said}");
    let said = node.ok(&format!("{produce} --from-line 6"));
    assert!(said.starts_with("0 records") && said.contains("; nothing begins on line 6 or behind it"), "{said}");
    let row = |(name, size)| format!("{{\"name\":\"{name}\",\"size\":\"{size}\"}}\n");
    let all: String = [("ann", 1), ("bob", 2), ("cid", 3), ("dan", 4)].map(row).concat();
    assert_eq!(node.ok("consume flights"), all);

    node.ok("stream create wrong");
    let output = node.run(&format!("produce wrong --file {}", file.display()));
    let said = common::stderr(&output);
    assert!(output.status.success() && said.contains("say --delimiter ';'"), "{said}");
    assert_eq!(node.ok("consume wrong --max 1"), "{\"name;size\":\"ann;1\"}\n");
}

#[test]
fn json_that_spreads_over_lines_is_written_a_value_a_record() {
    let (place, node) = with_stream("");
    let file = place.file("pretty.json");
    std::fs::write(&file, "{\n  \"a\": 1\n}\n{\n  \"a\": 2\n}\n").unwrap();
    node.ok(&format!("produce flights --file {} --key-field a", file.display()));
    assert_eq!(node.ok("consume flights"), "{   \"a\": 1 }\n{   \"a\": 2 }\n");
}

/// A script that checks the status alone must not take a file of which nothing was of use for one that was written.
#[test]
fn a_file_all_of_which_was_skipped_is_a_failure() {
    let (place, node) = with_stream("");
    let file = place.file("wrong.ndjson");
    std::fs::write(&file, "no\n{]\n").unwrap();
    let (status, said) = node.fails(&format!("produce flights --file {} --on-error skip", file.display()));
    assert!(status == 1 && said.contains("of 2 records nothing could be written"), "{said}");
    std::fs::write(&file, "no\n{}\n").unwrap();
    node.ok(&format!("produce flights --file {} --on-error skip", file.display()));
    std::fs::write(&file, "").unwrap();
    node.ok(&format!("produce flights --file {} --on-error skip", file.display()));
}

#[test]
fn unknown_names_come_with_what_was_meant() {
    let (_place, node) = with_stream("");
    for command in ["consume flihgts", "produce flight", "stream describe Flights", "stream delete flights2 --yes"] {
        let (status, said) = node.fails(command);
        assert_eq!(status, 1);
        assert!(said.contains("did you mean `flights`?"), "{command}: {said}");
    }
    for command in ["application delete report --stream flights", "application describe report --stream flights"] {
        let (_, said) = node.fails(command);
        assert!(
            said.contains("stream `flights` has no application `report`") && said.contains("kafka-consumer-groups"),
            "{said}"
        );
    }
    let (_, said) = node.fails("application reset report --to earliest");
    assert!(said.contains("--stream makes a new one"), "{said}");
    let reset = node.run("application reset report --stream flights --to earliest --dry-run");
    assert!(reset.status.success() && common::stderr(&reset).contains("would be made"), "{}", common::stderr(&reset));
    assert_eq!(node.json("application list"), json!([]));
    let (_, said) = node.fails(&format!("stream list --connect {}", node.http()));
    assert!(said.contains("port for HTTP"), "{said}");
    for command in ["--json nope", "--json serve --arena-bytes 1"] {
        let output = common::run(command.split_whitespace());
        let said: Value = serde_json::from_str(&common::stderr(&output)).unwrap();
        assert_eq!(said["exit"].as_i64(), output.status.code().map(i64::from), "{said}");
    }
    let (status, said) = node.fails("stream list --connect 127.0.0.1");
    assert!(status == 2 && said.contains("HOST:PORT"), "{said}");
    let (_, said) = node.fails("verify consume --stream nothing --log /dev/null");
    assert!(!said.contains("is a node running"), "{said}");
    let (_, said) = node.fails("produce _kera.applications");
    assert!(said.contains("only nodes write to it") && !said.contains("change the field"), "{said}");
    let (_, said) = node.fails("node drain 1 --no-wait");
    assert!(said.contains("alone") && !said.contains("change the field"), "{said}");
    let (_, said) = node.fails("consume payments");
    assert!(said.contains("kera stream create payments"), "{said}");
    let (_, said) = node.fails("stream create flights");
    assert!(said.contains("exists"), "{said}");
    let (status, said) = node.fails("stream create fli/ghts");
    assert_eq!(status, 2);
    assert!(said.contains("a-z A-Z 0-9"), "{said}");
    let (status, said) = node.fails("stream create x --streamlets 0 --lanes 9999 --segment-bytes 100KiB");
    assert_eq!(status, 2);
    for part in ["streamlets is 0", "lanes is 9999", "segment_bytes is 102400"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn without_a_node_the_error_says_how_to_get_one() {
    let output = common::run(["stream", "list", "--connect", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let said = common::stderr(&output);
    assert!(said.contains("127.0.0.1:1") && said.contains("kera serve") && said.contains("KERA_CONNECT"), "{said}");
    let output = common::run(["status", "--json", "--connect", "127.0.0.1:1"]);
    let error: Value = serde_json::from_str(&common::stderr(&output)).unwrap();
    assert!(error["next_step"].as_str().unwrap().contains("kera serve"));
}

/// Also where a variable names the node, as the guide advises.
#[test]
fn without_a_command_the_help_says_where_to_start() {
    for address in [None, Some("127.0.0.1:1")] {
        let mut command = common::kera([""; 0]);
        if let Some(address) = address {
            command.env("KERA_CONNECT", address);
        }
        let output = command.output().unwrap();
        let said = common::stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("Start here:") && !said.contains("error:"), "{said}");
    }
    let mut command = common::kera(["stream"]);
    let output = command.env("KERA_CONNECT", "127.0.0.1:1").output().unwrap();
    assert!(common::stderr(&output).contains("Make a stream"), "{}", common::stderr(&output));
    let mut command = common::kera(["consume"]);
    let said = common::stderr(&command.env("KERA_CONNECT", "127.0.0.1:1").output().unwrap());
    assert!(said.contains("Usage: kera consume") && !said.contains("--connect"), "the flag is not needed: {said}");
    let said = common::stderr(&common::run(["ls"]));
    assert!(said.contains("tip: `kera stream list` lists streams"), "{said}");
}

#[test]
fn an_application_goes_on_where_it_stopped() {
    let (_place, node) = with_stream("--streamlets 3");
    node.ok(&format!("produce flights --file {} --key-field origin", sample("flights-sample.ndjson")));
    let first = lines(&node.ok("consume flights --application report --max 37"));
    assert_eq!(first.len(), 37);
    let second = lines(&node.ok("consume flights --application report --max 100"));
    assert_eq!(second.len(), 100);
    let rest = lines(&node.ok("consume flights --application report"));
    assert_eq!(rest.len(), 63);
    assert_eq!(node.ok("consume flights --application report"), "");
    let all: Vec<String> = [first, second, rest].concat();
    assert_eq!(sorted(all), sorted(lines(&std::fs::read_to_string(sample("flights-sample.ndjson")).unwrap())));
    // Another application has its own place.
    assert_eq!(node.ok("consume flights --application other --max 5").lines().count(), 5);

    let list = node.json("application list");
    let lag = |name: &str| list.as_array().unwrap().iter().find(|a| a["name"] == name).unwrap()["lag"].clone();
    assert_eq!((lag("report"), lag("other")), (json!(0), json!(195)));
    let before = (lag("report"), lag("other"));
    let shown = node.json("application reset other --to latest --dry-run");
    let sum =
        |field: &str| shown["offsets"].as_array().unwrap().iter().map(|one| one[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("to"), sum("ordinal"), sum("skipped"), sum("read_again")), (200, 200, 195, 0), "{shown}");
    let shown = node.ok("application reset report --to earliest --dry-run");
    assert!(shown.contains("NOW") && shown.contains("200 records are read again"), "{shown}");
    for line in ["application reset report --to earliest", "application delete other"] {
        let (status, said) = node.fails(line);
        assert!(status == 2 && said.contains("forgotten") && said.contains("pass --yes"), "{line}: {said}");
    }
    let list = node.json("application list");
    let lag = |name: &str| list.as_array().unwrap().iter().find(|a| a["name"] == name).unwrap()["lag"].clone();
    assert_eq!((lag("report"), lag("other")), before, "nobody has agreed");
    node.ok("application reset report --to earliest --yes");
    assert_eq!(node.ok("consume flights --application report").lines().count(), 200);
    let described = node.json("application describe report");
    assert_eq!((&described["lag"], &described["state"]), (&json!(0), &json!("empty")));
    node.ok("application delete other --yes");
    let (_, said) = node.fails("application describe ohter");
    assert!(said.contains("there is no application `ohter`"), "{said}");
    // Advice is in the words of the command line.
    let (_, said) = node.fails("application describe ohter --stream flights");
    assert!(said.contains("`kera application list`"), "{said}");
    let (_, said) = node.fails("stream create flights");
    assert!(said.contains("--if-not-exists"), "{said}");
}

#[test]
fn after_a_kill_of_consumer_and_node_nothing_is_left_out() {
    let place = Place::new();
    let mut node = place.start();
    node.ok("stream create flights --streamlets 2");
    let file = sample("flights-sample.ndjson");
    node.ok(&format!("produce flights --file {file} --key-field origin"));

    let mut seen = Vec::new();
    for round in 0..3 {
        let (mut consumer, mut out) = follow(&node, "consume flights --application report --from earliest --follow");
        if round == 0 {
            seen.extend(out.by_ref().take(200));
        }
        // What was printed is committed within a second or so; then both die at once.
        eventually("the commit", || node.json("application list")[0]["lag"] == 0);
        node.ok(&format!("produce flights --file {file} --key-field origin"));
        consumer.kill().unwrap();
        consumer.wait().unwrap();
        seen.extend(out);
        node.kill();
        node = place.start();
    }
    // A killed consumer's groups are free when its lease has run out; until then nobody else reads them.
    let rest = lines(&node.ok("consume flights --application report"));
    seen.extend(rest);
    let written = lines(&std::fs::read_to_string(&file).unwrap());
    for line in &written {
        let times = seen.iter().filter(|s| *s == line).count();
        assert!(times >= 4, "`{line}` was written 4 times and read {times} times");
    }
    assert_eq!(node.json("application list")[0]["lag"], 0);
}

#[test]
fn following_sees_records_as_they_come_and_a_signal_commits() {
    let (_place, node) = with_stream("");
    let (mut consumer, mut out) = follow(&node, "consume flights --application report --follow");
    let mut producer = node.command("produce flights").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = producer.stdin.take().unwrap();
    for text in ["one", "two", "three"] {
        writeln!(input, "{text}").unwrap();
        // Not held back until there is more.
        assert_eq!(out.next().as_deref(), Some(text));
    }
    drop(input);
    assert!(producer.wait().unwrap().success());
    let killed = std::process::Command::new("kill").args(["-INT", &consumer.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert!(consumer.wait().unwrap().success());
    assert_eq!(node.ok("consume flights --application report"), "");
}

/// It has something to commit, and there is nobody who takes it.
#[test]
fn a_consumer_that_is_stopped_twice_does_not_wait_for_a_node_that_is_away() {
    let (_place, node) = with_stream("");
    let (mut consumer, mut out) = follow(&node, "consume flights --application report --follow --from earliest");
    node.ok(&format!("produce flights --file {}", sample("flights-sample.ndjson")));
    assert!(out.next().is_some());
    node.signal("STOP");
    let mut exit = None;
    while exit.is_none() {
        let stopped = std::process::Command::new("kill").args(["-INT", &consumer.id().to_string()]).status().unwrap();
        assert!(stopped.success());
        std::thread::sleep(std::time::Duration::from_millis(300));
        exit = consumer.try_wait().unwrap();
    }
    node.signal("CONT");
    assert!(exit.is_some_and(|exit| !exit.success()), "it says that it has not committed");
}

/// As `timeout` ends what it has started: it signals its child, and then the group that the child is in.
#[test]
fn a_signal_that_comes_twice_in_a_moment_keeps_no_consumer_from_committing() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    std::fs::write(&file, "one\ntwo\n").unwrap();
    node.ok(&format!("produce flights --file {}", file.display()));
    // A second that goes by before the other one is sent has them be two wishes: that says nothing.
    let has_committed = (0..5).any(|round| {
        let line = format!("consume flights --application report{round} --follow --from earliest");
        let (mut consumer, mut out) = follow(&node, &line);
        assert_eq!((out.next().as_deref(), out.next().as_deref()), (Some("one"), Some("two")));
        node.signal("STOP");
        for _ in 0..2 {
            let id = consumer.id().to_string();
            assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
        node.signal("CONT");
        consumer.wait().unwrap().success()
    });
    assert!(has_committed, "the second one has cut it off");
}

/// Its reader stands still: a consumer with an application commits nothing of what nobody has taken.
#[test]
fn a_consumer_that_is_stopped_does_not_wait_for_its_reader() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    let written: Vec<String> = (0..100_000).map(|line| format!("line number {line}")).collect();
    std::fs::write(&file, written.join("\n")).unwrap();
    node.ok(&format!("produce flights --file {}", file.display()));
    for (flags, status) in [("--from earliest --follow", 0), ("--application report --follow", 1)] {
        let mut command = node.command(&format!("consume flights {flags}"));
        let mut consumer = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let out = consumer.stdout.take().unwrap();
        // No more goes into a pipe unless somebody has made it larger.
        eventually("a full pipe", || rustix::io::ioctl_fionread(&out).unwrap() >= 60 << 10);
        terminate(&consumer);
        assert_eq!(end_of(&mut consumer), Some(status), "{flags}");
        let mut seen: Vec<String> = BufReader::new(out).lines().map_while(Result::ok).collect();
        assert!(seen.len() < written.len());
        if status == 1 {
            // The last line may be cut.
            seen.pop();
            seen.extend(lines(&node.ok("consume flights --application report")));
            let seen: std::collections::HashSet<String> = seen.into_iter().collect();
            assert!(written.iter().all(|line| seen.contains(line)), "what nobody has read is read by the next one");
        }
    }
}

/// As while its output is looked at in a pager: it lives, so that its leases do not end by themselves.
#[test]
fn a_member_whose_reader_stands_still_gives_groups_to_those_that_join() {
    let place = Place::new();
    let node = place.start_with(&["--lease", "1s"]);
    node.ok("stream create flights --streamlets 4");
    let file = place.file("lines");
    std::fs::write(&file, (0..100_000).map(|line| format!("line number {line}\n")).collect::<String>()).unwrap();
    node.ok(&format!("produce flights --chunk-bytes 1KiB --file {}", file.display()));
    let consume = |more: &str| {
        let mut command = node.command(&format!("consume flights --application report --follow {more}"));
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut first = consume("");
    let out = first.stdout.take().unwrap();
    eventually("a full pipe", || rustix::io::ioctl_fionread(&out).unwrap() >= 60 << 10);
    let mut second = consume("--max 1");
    assert_eq!(end_of(&mut second), Some(0));
    assert_eq!(first.try_wait().unwrap(), None);
    first.kill().unwrap();
    first.wait().unwrap();
}

/// How many groups the consumers of `report` have leased.
fn leased(node: &Node) -> u64 {
    let output = node.run("application describe report --json");
    let described: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let members = described["members"].as_array().cloned().unwrap_or_default();
    members.iter().filter_map(|member| member["leases"].as_u64()).sum()
}

/// It read nothing and ended well, for the nodes had nothing to give to it.
#[test]
fn what_a_killed_consumer_holds_is_waited_for_by_one_that_reads_to_the_end() {
    let place = Place::new();
    let node = place.start_with(&["--lease", "5s"]);
    node.ok("stream create flights --streamlets 2");
    let file = sample("flights-sample.ndjson");
    node.ok(&format!("produce flights --file {file} --key-field origin"));
    let (mut killed, _out) = follow(&node, "consume flights --application report --follow --from earliest");
    eventually("the commit", || leased(&node) == 2 && node.json("application list")[0]["lag"] == 0);
    killed.kill().unwrap();
    killed.wait().unwrap();
    node.ok(&format!("produce flights --file {file} --key-field origin"));
    assert_eq!(node.ok("consume flights --application report").lines().count(), 200);
}

/// It lives, so that its lease never ends: waiting for that would never end.
#[test]
fn what_a_consumer_holds_that_lives_is_left_to_it_with_a_word() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    std::fs::write(&file, (0..100_000).map(|line| format!("line number {line}\n")).collect::<String>()).unwrap();
    node.ok(&format!("produce flights --file {}", file.display()));
    // Its reader stands still.
    let mut command = node.command("consume flights --application report --follow --from earliest");
    let mut first = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let out = first.stdout.take().unwrap();
    eventually("a full pipe", || rustix::io::ioctl_fionread(&out).unwrap() >= 60 << 10);
    for flags in ["", " --json"] {
        let second = node.run(&format!("consume flights --application report{flags}"));
        let said = String::from_utf8(second.stderr).unwrap();
        assert!(second.status.success(), "{said}");
        // Where the machine stands still for a lease's time it is given what the other one does not read.
        assert!(said.contains("left to") || !second.stdout.is_empty(), "{said}");
    }
    // Where the machine stood still for a lease's time the first one is no member until it has joined again, and the application is deleted.
    let mut said = String::new();
    eventually("a refusal, since it lives", || {
        said = common::stderr(&node.run("application delete report --yes"));
        said.contains("has 1 member, with leases of up to")
    });
    assert_eq!(said.matches("stop").count(), 1, "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
}

#[test]
fn what_makes_no_sense_is_status_2_and_every_error_says_what_to_do() {
    let (_place, node) = with_stream("--streamlets 3");
    node.ok("stream create logs");
    node.ok(&format!("produce flights --file {} --max 5", sample("flights-sample.ndjson")));
    assert_eq!(node.ok("consume flights --application report").lines().count(), 5);
    for (line, words) in [
        ("consume flights --streamlets 3", "it has 3 streamlets, numbered from 0"),
        ("streamlet move flights/33 --to 1", "there is no streamlet 33 in flights"),
        ("consume flights --application a/b", "`a/b` cannot be the name of an application"),
        ("stream create _kera.mine", "kept for the system's own streams"),
        ("consume flights --from yesterday", "next: it is `earliest`, `latest`"),
        ("application reset report --to ordinal:x", "next: it is like ordinal:1000"),
    ] {
        let (status, said) = node.fails(line);
        assert!(status == 2 && said.contains(words) && said.contains("\n  next: "), "{line}: {status} {said}");
    }
    let (status, said) = node.fails("consume flights --streamlets 0-x");
    assert!(status == 2 && said.contains("like 0-3,7") && !said.contains("invalid digit"), "{said}");
    let (_, said) = node.fails("node drain 9");
    assert!(said.contains("\n  next: docs/operations.md says how to start several"), "{said}");
    assert!(node.ok("application list --stream logs").starts_with("no application reads logs"));
    assert!(node.ok("log list").contains("this node is alone"));
    let kafka = node.ready()["kafka"].as_str().unwrap().to_owned();
    let (_, said) = node.fails(&format!("stream list --connect {kafka}"));
    assert!(said.contains("it may be a port for Kafka"), "{said}");
}

/// A script must not take a part for all.
#[test]
fn a_consumer_that_is_stopped_before_the_end_is_an_interrupted_one() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    std::fs::write(&file, (0..100_000).map(|line| format!("line number {line}\n")).collect::<String>()).unwrap();
    node.ok(&format!("produce flights --file {}", file.display()));
    for flags in ["", "--application report"] {
        let mut command = node.command(&format!("consume flights {flags}"));
        let mut consumer = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = consumer.stdout.take().unwrap();
        eventually("a full pipe", || rustix::io::ioctl_fionread(&out).unwrap() >= 60 << 10);
        terminate(&consumer);
        assert_eq!(end_of(&mut consumer), Some(130), "{flags}");
        let said = std::io::read_to_string(consumer.stderr.take().unwrap()).unwrap();
        let lacking = if flags.is_empty() { "interrupted after" } else { "before what was printed last was committed" };
        assert!(said.contains(lacking), "{said}");
    }
}

#[test]
fn keys_are_printed_as_they_are_read() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    std::fs::write(&file, "ann:blue\nbob:red:dark\n").unwrap();
    node.ok(&format!("produce flights --key-separator : --file {}", file.display()));
    assert_eq!(node.ok("consume flights --key-separator :"), "ann:blue\nbob:red:dark\n");
    assert_eq!(node.ok("consume flights --from-beginning -n 1"), "blue\n");
    for line in ["consume flights --key-separator : --json", "--json consume flights --key-separator :"] {
        let (status, said) = node.fails(line);
        assert!(status == 2 && said.contains("--key-separator and --json cannot be had together"), "{status} {said}");
    }
}

/// The same flag reads what it has printed: no key and no value are neither cut from others nor taken for empty ones.
#[test]
fn records_without_keys_or_values_come_back_as_they_were() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    std::fs::write(&file, "at 12:30\n").unwrap();
    node.ok(&format!("produce flights --file {}", file.display()));
    std::fs::write(&file, "ann:null\n:empty\nbob:\n").unwrap();
    node.ok(&format!("produce flights --key-separator : --null-value null --file {}", file.display()));
    let printed = node.ok("consume flights --key-separator :");
    assert_eq!(printed, "null:at 12:30\nann:null\n:empty\nbob:\n");
    std::fs::write(&file, &printed).unwrap();
    node.ok("stream create copied");
    node.ok(&format!("produce copied --key-separator : --null-value null --file {}", file.display()));
    let parts = |stream: &str| -> Vec<(Value, Value)> {
        let line = |line: &str| serde_json::from_str::<Value>(line).unwrap();
        let printed = node.ok(&format!("consume {stream} --json"));
        printed.lines().map(line).map(|record| (record["key"].clone(), record["value"].clone())).collect()
    };
    assert_eq!(parts("copied"), parts("flights"));
    assert_eq!(parts("copied")[..2], [(Value::Null, json!("at 12:30")), (json!("ann"), Value::Null)]);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let (_place, node) = with_stream("");
    for _ in 0..20 {
        node.ok(&format!("produce flights --file {}", sample("flights-sample.ndjson")));
    }
    let mut child = node
        .command("consume flights --follow --from earliest")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    node.ok(&format!("produce flights --file {}", sample("flights-sample.ndjson")));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    assert_eq!(common::stderr(&output), "");
}

#[test]
fn following_ends_when_nobody_reads_any_more() {
    let (_place, node) = with_stream("");
    let file = sample("flights-sample.csv");
    node.ok(&format!("produce flights --file {file} --max 1"));
    let (mut child, mut out) = follow(&node, "consume flights --from earliest --follow");
    assert!(out.next().is_some());
    drop(out);
    assert!(child.wait().unwrap().success(), "without another record");
}

#[test]
fn time_and_latest_choose_where_to_start() {
    let (_place, node) = with_stream("");
    node.ok(&format!("produce flights --file {}", sample("flights-sample.ndjson")));
    assert_eq!(node.ok("consume flights --from latest"), "");
    assert_eq!(node.ok("consume flights --from 1h").lines().count(), 200);
    assert_eq!(node.ok("consume flights --from 2001-01-01T00:00:00Z").lines().count(), 200);
    let (status, said) = node.fails("consume flights --from yesterday");
    assert_eq!(status, 2);
    assert!(said.contains("`earliest`, `latest`"), "{said}");
}

#[test]
fn a_start_without_effect_and_one_behind_the_end_are_told() {
    let (_place, node) = with_stream("");
    node.ok(&format!("produce flights --file {} --max 5", sample("flights-sample.ndjson")));
    let said = |flags: &str| {
        let output = node.run(&format!("consume flights {flags}"));
        assert!(output.status.success(), "{flags}");
        (common::stdout(&output).lines().count(), common::stderr(&output))
    };
    // What the words need is not waited for where the node takes long, and then nothing is said.
    let said_in_the_end = |flags: &str| {
        let mut last = said(flags);
        eventually("the words", || {
            if last.1.is_empty() {
                last = said(flags);
            }
            !last.1.is_empty()
        });
        last
    };
    for (flags, printed) in
        [("", 5), ("--from ordinal:4", 1), ("--from ordinal:5", 0), ("--from 1h", 5), ("--from latest", 0)]
    {
        assert_eq!(said(flags), (printed, String::new()), "{flags}");
    }
    let (printed, words) = said_in_the_end("--from ordinal:100");
    assert!(
        printed == 0 && words.contains("--from ordinal:100 is behind the end (the longest lane ends at 5)"),
        "{words}"
    );
    assert!(said("--from 9999-01-01").1.contains("still to come"));

    assert_eq!(said("--application report --from ordinal:2"), (3, String::new()), "it is new");
    let (printed, words) = said_in_the_end("--application report --from earliest");
    assert!(printed == 0 && words.contains("report goes on where it was in flights"), "{words}");
    assert!(words.contains("`kera application reset report --stream flights --to earliest`"), "{words}");
    assert_eq!(said("--application report"), (0, String::new()));
}

#[test]
fn records_from_a_number_on_are_read() {
    let (place, node) = with_stream("--streamlets 2");
    let file = place.file("lines");
    std::fs::write(&file, (0..20).map(|number| format!("{number}:{number}\n")).collect::<String>()).unwrap();
    node.ok(&format!("produce flights --file {} --key-separator :", file.display()));
    let all = |flags: &str| sorted(lines(&node.ok(&format!("consume flights {flags}"))));
    let by_streamlet = |streamlet: u32| lines(&node.ok(&format!("consume flights --streamlets {streamlet}")));
    let (one, other) = (by_streamlet(0), by_streamlet(1));
    assert!(one.len() > 3 && other.len() > 3, "{one:?} {other:?}");
    assert_eq!(all("--from ordinal:3"), sorted([&one[3..], &other[3..]].concat()));
    assert_eq!(node.fails("consume flights --from ordinal:x").0, 2);
    node.ok("consume flights --application report");
    let reset = node.json("application reset report --to ordinal:2 --yes");
    let ordinals: Vec<&Value> = reset["offsets"].as_array().unwrap().iter().map(|offset| &offset["ordinal"]).collect();
    assert_eq!(ordinals, [2, 2], "{reset}");
}

#[test]
fn a_rate_and_a_most_are_taken() {
    let (_place, node) = with_stream("");
    let file = sample("flights-sample.ndjson");
    let summary = node.json(&format!("produce flights --file {file} --rate 200 --max 40"));
    assert_eq!(summary["records"], 40);
}

/// A script that loads a file must not take half of it for all.
#[test]
fn a_file_that_is_not_read_to_its_end_is_an_interrupted_one_and_says_where_to_go_on() {
    let (place, node) = with_stream("");
    let file = place.file("lines");
    std::fs::write(&file, (1..=1_000_000).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let line = format!("produce flights --rate 1000 --file {}", file.display());
    let mut written = 0;
    for as_stdin in [false, true] {
        let mut command = node.command(if as_stdin { "produce flights --rate 1000" } else { &line });
        if as_stdin {
            command.stdin(std::fs::File::open(&file).unwrap());
        }
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        eventually("records", || node.json("status")["appended_records"].as_u64() > Some(written));
        terminate(&child);
        let output = child.wait_with_output().unwrap();
        let (told, said) = (common::stdout(&output), common::stderr(&output));
        assert_eq!(output.status.code(), Some(130), "{told}{said}");
        let before = std::mem::replace(&mut written, node.ok("consume flights").lines().count() as u64);
        let last = written - before;
        assert!(told.contains("(interrupted)") && said.contains(&format!("line {last}")), "{last}: {told}{said}");
        assert!(said.contains(&format!("give the command again with --from-line {}\n", last + 1)), "{said}");
    }
    let written = written as usize;

    // Ctrl-C ends all of a pipeline, and whoever keeps what it says may be gone first.
    let mut child = node.command(&line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    eventually("records", || node.ok("consume flights").lines().count() > written);
    terminate(&child);
    assert_eq!(end_of(&mut child), Some(130));
    let written = node.ok("consume flights").lines().count();

    let mut child = node.command("produce flights").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "what comes from elsewhere ends so").unwrap();
    eventually("the line", || node.ok("consume flights").lines().count() > written);
    terminate(&child);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// What a producer has taken from a pipe nobody else gets.
#[test]
fn what_was_taken_from_a_pipe_is_written_before_a_signal_ends_the_producer() {
    let (_place, node) = with_stream("");
    let mut command = node.command("produce flights --rate 100 --json");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let written: Vec<String> = (1..=5000).map(|line| format!("line {line}")).collect();
    write!(input, "{}\nand half of", written.join("\n")).unwrap();
    eventually("all of it is taken", || rustix::io::ioctl_fionread(&input).unwrap() == 0);
    eventually("a record", || node.json("status")["appended_records"].as_u64() > Some(0));
    terminate(&child);
    let output = child.wait_with_output().unwrap();
    let (told, said) = (common::stdout(&output), common::stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{told}{said}");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["records"], &told["last_line"], &told["interrupted"]),
        (&json!(5000), &json!(5000), &json!(true))
    );
    assert_eq!(sorted(lines(&node.ok("consume flights"))), sorted(written));
}

/// It may be one record or all of them, which only a second line would tell: as at the end of the input it is all of them.
#[test]
fn an_array_that_was_taken_from_a_pipe_is_written_before_a_signal_ends_the_producer() {
    let (_place, node) = with_stream("");
    let mut command = node.command("produce flights --format ndjson --json");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "[1, 22, 333]").unwrap();
    // It listens for signals before it has a thread for this.
    let reads = |child: &Child| {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let mut names =
            tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
        names.any(|name| name.trim_end() == "kera-input")
    };
    eventually("it cuts what it has taken", || reads(&child));
    terminate(&child);
    let output = child.wait_with_output().unwrap();
    let (told, said) = (common::stdout(&output), common::stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{told}{said}");
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["records"], &told["interrupted"]), (&json!(3), &json!(true)));
    assert_eq!(sorted(lines(&node.ok("consume flights"))), ["1", "22", "333"]);
}

#[test]
fn a_second_signal_ends_a_producer_that_has_more_to_write_and_says_where_to_go_on() {
    let (_place, node) = with_stream("");
    let mut child = node.command("produce flights").stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "first").unwrap();
    eventually("a record", || node.json("status")["appended_records"].as_u64() > Some(0));
    node.signal("STOP");
    writeln!(input, "second").unwrap();
    eventually("it is taken", || rustix::io::ioctl_fionread(&input).unwrap() == 0);
    terminate(&child);
    let mut says = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(says.by_ref().any(|line| line.contains("another signal, after a second, ends that at once")));
    // Those that come within a second of the first are the same wish.
    eventually("its end", || {
        terminate(&child);
        child.try_wait().unwrap().is_some()
    });
    assert_eq!(end_of(&mut child), Some(130));
    let said = says.collect::<Vec<_>>().join("\n");
    assert!(said.contains("the command was stopped before the others were") && said.contains("on again"), "{said}");
}

#[test]
fn streams_are_described_altered_listed_and_deleted() {
    let (_place, node) =
        with_stream("--streamlets 4 --lanes 2 --retention-time 7d --retention-bytes 10GiB --order none");
    let described = node.json("stream describe flights");
    let options = &described["options"];
    assert_eq!((&options["streamlets"], &options["lanes"], &options["order"]), (&json!(4), &json!(2), &json!("none")));
    assert_eq!(options["retention_bytes"], json!(10u64 << 30));
    let altered = node.json("stream alter flights --retention-time none");
    assert_eq!(altered["options"]["retention_ms"], Value::Null);
    assert!(node.fails("stream alter flights").1.contains("no option to change"));
    assert!(node.ok("stream list").contains("flights"));
    assert_eq!(node.json("stream list").as_array().unwrap().len(), 1);
    let all = node.json("stream list --system");
    let of_system = |one: &&Value| one["name"].as_str().unwrap().starts_with("_kera.");
    assert_eq!(all.as_array().unwrap().iter().filter(|one| !of_system(one)).count(), 1, "{all}");
    assert!(all.as_array().unwrap().iter().any(|one| one["name"] == "_kera.applications"), "{all}");
    node.ok("stream delete flights --yes");
    assert!(node.ok("stream list").contains("no streams yet"));
    assert!(node.ok("stream delete flights --if-exists").contains("there is no stream"));
    // The name is free again, and the new stream is empty.
    node.ok("stream create flights");
    assert_eq!(node.ok("consume flights"), "");
}

#[test]
fn status_and_top_tell_how_it_is() {
    let (_place, node) = with_stream("");
    node.ok(&format!("produce flights --file {}", sample("flights-sample.ndjson")));
    let status = node.json("status");
    assert_eq!((&status["ready"], &status["appended_records"]), (&json!(true), &json!(200)));
    assert!(node.ok("status").contains("200 records"));
    node.ok("consume flights --application report");
    let top = node.ok("top --count 2 --interval-ms 100");
    assert!(top.contains("stream flights in_records_s=0"), "{top}");
    assert!(top.contains("application report stream=flights consumers=0"), "{top}");
    let first: Value = serde_json::from_str(node.ok("top --count 1 --json").lines().next().unwrap()).unwrap();
    assert_eq!(first["streams"][0]["records"], 200);
    let (status, said) = node.fails("cluster level");
    assert!(status == 1 && said.contains("next: docs/operations.md says how to start several"), "{said}");
}

#[test]
fn who_names_a_stream_that_cannot_be_is_not_told_to_make_it() {
    let (_place, node) = with_stream("");
    for line in ["consume a/b", "stream describe a/b"] {
        let (status, said) = node.fails(line);
        assert!(status == 1 && said.contains("there is no stream `a/b`"), "{said}");
        assert!(said.contains("use 1 to 249 of the characters") && !said.contains("stream create"), "{said}");
    }
    let (_, said) = node.fails("consume flight");
    assert!(said.contains("did you mean `flights`?"), "{said}");
    let (_, said) = node.fails("consume payments");
    assert!(said.contains("make it with `kera stream create payments`"), "{said}");
}

#[test]
fn the_demo_runs_to_its_end_and_nothing_is_lost() {
    let place = Place::new();
    let data = place.file("demo");
    let data = data.to_str().unwrap();
    for _ in 0..2 {
        let output = common::run(["demo", "--data", data, "--rate", "0", "--max", "20000", "--json"]);
        assert!(output.status.success(), "{}{}", common::stdout(&output), common::stderr(&output));
        let told: Value = serde_json::from_str(&common::stdout(&output)).unwrap();
        assert_eq!((&told["written"], &told["read"]), (&json!(20000), &json!(20000)));
    }
    let runs = kera_env::DirLock::acquire(&place.file("demo").join("LOCK")).unwrap();
    let refused = common::run(["demo", "--data", data]);
    assert_eq!(refused.status.code(), Some(11), "as a node that finds another one there");
    assert!(common::stderr(&refused).contains("--data"), "{}", common::stderr(&refused));
    drop(runs);
    let refused = common::run(["demo", "--data", env!("CARGO_MANIFEST_DIR")]);
    assert!(common::stderr(&refused).contains("no demo made"), "{}", common::stderr(&refused));
}
