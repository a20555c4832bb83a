//! A node as its operator sees it: starts, stops, refusals, what survives.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::common::members::free_ports;
use crate::common::{self, Node, Place, change_a_bit, eventually, exists, files, run, stderr, stdout};

#[test]
fn a_graceful_stop_leaves_everything_on_disk_and_no_arena() {
    let place = Place::new();
    let node = place.start();
    node.ok("stream create flights --streamlets 4 --lanes 2");
    node.ok(&format!("produce flights --file {} --key-field origin", common::sample("flights-sample.ndjson")));
    assert_eq!(place.arena_files().len(), 1);
    assert_eq!(node.stop(), 0);
    assert_eq!(place.arena_files(), Vec::<std::path::PathBuf>::new());

    let node = place.start();
    assert_eq!(node.ready()["epoch"], 2);
    assert_eq!(node.ok("consume flights").lines().count(), 200);
    assert_eq!(node.stop(), 0);
}

#[test]
fn after_a_kill_everything_acknowledged_is_there() {
    let place = Place::new();
    let node = place.start();
    node.ok("stream create flights --streamlets 2");
    node.ok("stream create payments --durability power");
    node.ok(&format!("produce flights --file {}", common::sample("flights-sample.ndjson")));
    node.ok(&format!("produce payments --file {}", common::sample("flights-sample.csv")));
    node.kill();
    assert_eq!(place.arena_files().len(), 1);

    let node = place.start();
    assert_eq!(node.ready()["arena"], "attached");
    assert_eq!(node.ok("consume flights").lines().count(), 200);
    assert_eq!(node.ok("consume payments").lines().count(), 200);
    // Writing goes on where it was.
    node.ok(&format!("produce flights --file {}", common::sample("flights-sample.ndjson")));
    node.kill();

    let node = place.start();
    assert_eq!(node.ok("consume flights").lines().count(), 400);
}

#[test]
fn without_the_arena_what_was_synced_is_there() {
    let place = Place::new();
    let node = place.start();
    node.ok("stream create payments --durability power --streamlets 3");
    node.ok(&format!("produce payments --file {} --key-field origin", common::sample("flights-sample.csv")));
    node.kill();
    for file in place.arena_files() {
        std::fs::remove_file(file).unwrap();
    }

    let node = place.start();
    assert_eq!(node.ready()["arena"], "created");
    assert_eq!(node.ok("consume payments").lines().count(), 200);
}

/// Who it is and which streams there are is nowhere else: a disk that changes a bit of it takes nothing.
#[test]
fn a_bit_that_a_disk_has_changed_keeps_no_node_from_starting() {
    let place = Place::new();
    let node = place.start();
    node.ok("stream create flights --streamlets 2");
    node.ok(&format!("produce flights --file {}", common::sample("flights-sample.ndjson")));
    let name = node.ready()["node"].clone();
    node.kill();
    let changed: Vec<String> = files(&place.data().join("catalog"))
        .into_iter()
        .chain([place.data().join("node.json"), place.data().join("node.json.copy")])
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    assert_eq!(changed.len(), 6, "{changed:?}");
    for (epoch, file) in (2..).zip(changed) {
        // A start that has mended something goes on in other files, of the same kinds.
        let kind = file.split_once('.').expect("it has an end").1;
        let all = files(&place.data().join("catalog")).into_iter().chain(files(&place.data()));
        let path = all.filter(|path| path.is_file()).find(|path| path.to_string_lossy().ends_with(&format!(".{kind}")));
        change_a_bit(&path.unwrap_or_else(|| panic!("{file} is there")));
        let mut node = place.start();
        node.expect_warning("");
        assert_eq!((&node.ready()["node"], &node.ready()["epoch"]), (&name, &epoch.into()), "{file}");
        assert_eq!(node.ok("consume flights").lines().count(), 200, "{file}");
        node.kill();
    }
}

/// While it runs, before the other one is changed as well.
#[test]
fn a_bit_that_a_disk_has_changed_is_found_by_the_look_at_what_is_on_the_disks() {
    let place = Place::new();
    let mut node = place.start_with(&["--scrub-every", "1s"]);
    node.expect_warning("");
    node.ok("stream create flights");
    let is_whole = |ends: [&str; 2]| {
        let all = files(&place.data()).into_iter().chain(files(&place.data().join("catalog")));
        let found: Vec<_> = all.filter(|path| ends.iter().any(|end| path.to_string_lossy().ends_with(end))).collect();
        let [one, other] = &found[..] else { return false };
        let (one, other) = (std::fs::read(one), std::fs::read(other));
        one.is_ok_and(|one| other.is_ok_and(|other| other.starts_with(&one)))
    };
    for ends in [[".snapshot", ".snapshot.copy"], [".journal", ".journal.copy"], ["node.json", "node.json.copy"]] {
        eventually("both are there", || is_whole(ends));
        let all = files(&place.data()).into_iter().chain(files(&place.data().join("catalog")));
        change_a_bit(&all.into_iter().find(|path| path.to_string_lossy().ends_with(ends[1])).expect("it is there"));
        eventually("both are the same again", || is_whole(ends));
    }
    assert!(node.log().contains("both are written anew"), "{}", node.log());
    assert_eq!(node.stop(), 0);
    assert!(place.start().ok("stream list").contains("flights"));
}

#[test]
fn a_second_node_on_the_same_directory_is_refused() {
    let place = Place::new();
    let node = place.start();
    let refused = run(place.flags());
    assert_eq!(refused.status.code(), Some(11));
    let said = stderr(&refused);
    assert!(said.contains(&format!("in use by process {}", node.pid())) && said.contains("--data"), "{said}");
    assert_eq!(node.stop(), 0);
}

/// As `timeout` ends what it has started: it signals its child, and then the group that the child is in.
#[test]
fn a_signal_that_comes_twice_in_a_moment_stops_a_node_gracefully() {
    let place = Place::new();
    // A second that goes by before the other one is sent has them be two wishes: that says nothing.
    let is_graceful = (0..5).any(|_| {
        let mut node = place.start();
        node.expect_warning("stopped at once");
        node.ok("stream create flights --streamlets 4 --if-not-exists");
        node.ok(&format!("produce flights --file {} --key-field origin", common::sample("flights-sample.ndjson")));
        node.signal("TERM");
        node.stop() == 0
    });
    assert!(is_graceful, "the second one has stopped it at once");
    assert_eq!(place.arena_files(), Vec::<std::path::PathBuf>::new());
}

/// A start that fails because of its ports leaves nothing behind that takes room.
#[test]
fn all_ports_that_are_taken_are_named_before_anything_is_made() {
    let (place, other) = (Place::new(), Place::new());
    let node = place.start();
    let mut flags = other.flags();
    for (flag, address) in [("--listen", node.address()), ("--http-listen", node.http())] {
        let at = flags.iter().position(|known| known == flag).expect("it is there") + 1;
        flags[at] = address;
    }
    let refused = run(&flags);
    assert_eq!(refused.status.code(), Some(13));
    let said = stderr(&refused);
    assert!(said.contains(&node.address()) && said.contains(&node.http()), "{said}");
    assert!(said.contains("--listen and --http-listen") && !said.contains("--kafka-listen"), "{said}");
    assert!(!exists(&other.data()) && other.arena_files().is_empty(), "nothing was made");
}

#[test]
fn a_port_in_use_is_named() {
    let (place, other) = (Place::new(), Place::new());
    let node = place.start();
    for (flag, address) in [("--listen", node.address()), ("--http-listen", node.http())] {
        let mut flags = other.flags();
        let at = flags.iter().position(|f| f == flag).unwrap();
        flags[at + 1] = address.clone();
        let refused = run(&flags);
        assert_eq!(refused.status.code(), Some(13), "{}", stderr(&refused));
        assert!(stderr(&refused).contains(&format!("{address}: the port is in use")), "{}", stderr(&refused));
    }
}

#[test]
fn why_a_node_ends_is_said_also_where_nothing_is_logged() {
    let place = Place::new();
    let node = place.start();
    for level in ["off", "error", "kera_broker=debug"] {
        let mut flags = Place::new().flags();
        let at = flags.iter().position(|flag| flag == "--listen").expect("it is there") + 1;
        flags[at] = node.address();
        flags.extend(["--log-level".into(), level.into()]);
        let refused = run(&flags);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(13), "{level}: {said}");
        let line: serde_json::Value =
            serde_json::from_str(said.trim()).unwrap_or_else(|error| panic!("{level}: {error}: {said}"));
        assert!(line["message"].as_str().is_some_and(|text| text.contains("the port is in use")), "{level}: {said}");
        assert!(line["level"] == "ERROR" && line["status"] == 13, "{level}: {said}");
        assert!(line["next_step"].as_str().is_some_and(|step| step.contains("--listen")), "{level}: {said}");
    }
    assert_eq!(node.stop(), 0);
}

#[test]
fn all_mistakes_of_a_configuration_are_told_at_once() {
    let place = Place::new();
    let file = place.file("kera.toml");
    std::fs::write(&file, "[network]\nlistne = \"a:1\"\n[arena]\nbytes = \"1KiB\"\n[logs]\nformat = \"xml\"\n")
        .unwrap();
    let file = file.to_str().unwrap();
    for command in [vec!["serve", "--config", file, "--data", "/proc/none"], vec!["config", "check", "--config", file]]
    {
        let refused = run(&command);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(10), "{said}");
        for part in ["3 mistakes", "kera.toml:2", "did you mean network.listen?", "1KiB is too small", "`text`, `json`"]
        {
            assert!(said.contains(part), "{part} in {said}");
        }
    }
}

#[test]
fn settings_come_from_flags_environment_and_file() {
    let place = Place::new();
    let file = place.file("kera.toml");
    std::fs::write(&file, "[streams]\nstreams_max = 7\n").unwrap();
    let shown = common::kera(["config", "show", "--config", file.to_str().unwrap(), "--listen", "127.0.0.1:9"])
        .env("KERA_LEASE", "5s")
        .output()
        .unwrap();
    let said = stdout(&shown);
    for line in
        ["streams_max = 7  # ", "listen = \"127.0.0.1:9\"  # --listen", "lease = \"5s\"  # KERA_LEASE", "# default"]
    {
        assert!(said.contains(line), "{line} in {said}");
    }
}

#[test]
fn a_variable_that_is_no_text_is_a_mistake_with_its_name() {
    use std::os::unix::ffi::OsStrExt;
    let value = std::ffi::OsStr::from_bytes(b"/nowhere/\xff");
    for command in ["serve", "config check", "config show"] {
        let refused = common::kera(command.split(' ')).env("KERA_DATA", value).env("KERA_SOMEBODYS", value).output();
        let refused = refused.expect("the binary runs");
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(10), "{command}: {said}");
        assert!(said.contains("KERA_DATA: node.data: its value is not UTF-8"), "{command}: {said}");
        assert!(said.contains("1 mistake:"), "{command}: {said}");
    }
}

#[test]
fn a_directory_that_cannot_be_used_is_named() {
    let mut flags = Place::new().flags();
    let at = flags.iter().position(|f| f == "--data").unwrap();
    flags[at + 1] = "/proc/none".into();
    let refused = run(&flags);
    assert_eq!(refused.status.code(), Some(12));
    assert!(stderr(&refused).contains("/proc/none"), "{}", stderr(&refused));
}

#[test]
fn http_can_be_turned_off() {
    let place = Place::new();
    let node = place.start();
    assert_ne!(node.http(), "none");
    assert_eq!(node.stop(), 0);
    let mut flags = place.flags();
    let at = flags.iter().position(|f| f == "--http-listen").unwrap();
    flags[at + 1] = "none".into();
    let more: Vec<&str> = flags[at..at + 2].iter().map(String::as_str).collect();
    assert_eq!(more, ["--http-listen", "none"]);
    let node = Node::start_flags(&flags);
    assert_eq!(node.http(), "none");
    node.ok("stream list");
    assert_eq!(node.stop(), 0);
}

#[test]
fn a_node_is_small_when_it_is_idle() {
    let place = Place::new();
    let node = place.start();
    node.ok("status");
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    // Not optimised, and with the code of the tests' build: the promise of 20 MiB is measured on a release.
    assert!(kib < 64 << 10, "{kib} KiB are resident");
    assert!(exists(&place.data().join("node.json")));
}

#[test]
fn http_tells_how_it_is() {
    let place = Place::new();
    let node = place.start();
    assert_eq!(node.get("/healthz"), (200, "ok\n".into()));
    assert_eq!(node.get("/readyz"), (200, "ready\n".into()));
    node.ok("stream create flights");
    node.ok(&format!("produce flights --file {}", common::sample("flights-sample.csv")));
    node.ok("consume flights --application report --max 150");
    let (status, text) = node.get("/metrics");
    assert_eq!(status, 200);
    for line in [
        "kera_records_appended_total 2",
        "kera_stream_records{stream=\"flights\"} 200",
        "kera_application_lag_records{stream=\"flights\",application=\"report\"} 50",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let (status, made) = node.http_request("POST", "/v1/streams", "{\"name\":\"made-by-http\"}");
    assert_eq!(status, 201, "{made}");
    assert!(node.ok("stream list").contains("made-by-http"));
    assert!(node.get("/openapi.json").1.contains("/v1/applications/{stream}/{application}/reset"));
    assert_eq!(node.stop(), 0);
}

/// Whoever collects the log may be gone, and the disk that it is on full: what cannot be said ends neither a node nor a command.
#[test]
fn what_cannot_be_written_to_standard_error_ends_nothing() {
    let place = Place::new();
    let [http] = free_ports();
    let mut flags = place.flags();
    let at = flags.iter().position(|flag| flag == "--http-listen").expect("it is there");
    flags[at + 1] = format!("127.0.0.1:{http}");
    let full = || File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut node = common::kera(&flags).stderr(full()).spawn().expect("the binary runs");
    let answers = || {
        let mut answer = String::new();
        let asked = TcpStream::connect(("127.0.0.1", http)).and_then(|mut stream| {
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            stream.read_to_string(&mut answer)
        });
        asked.is_ok() && answer.starts_with("HTTP/1.1 200")
    };
    eventually("it ends or serves", || answers() || node.try_wait().expect("it is a child").is_some());
    assert_eq!(node.try_wait().expect("it is a child"), None, "it serves");
    let stopped = std::process::Command::new("kill").arg(node.id().to_string()).status();
    assert!(stopped.expect("kill runs").success());
    assert_eq!(node.wait().expect("it ends").code(), Some(0));

    for flags in
        [&["stream", "list", "--connect", "127.0.0.1:1"][..], &["status", "--json", "--connect", "127.0.0.1:1"]]
    {
        let failed = common::kera(flags).stderr(full()).status().expect("the binary runs");
        assert_eq!(failed.code(), Some(1), "{flags:?}");
    }
    let refused = common::kera(["serve", "--arena-bytes", "1"]).stderr(full()).status().expect("the binary runs");
    assert_eq!(refused.code(), Some(10));
}

/// Takes one connection, and passes on what the client says only after a while.
fn slow_way_to(address: String) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let way = listener.local_addr().expect("it is bound").to_string();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (client, node) = (client.expect("a client"), TcpStream::connect(&address).expect("the node listens"));
            let (mut asked, mut answered) = (client.try_clone().expect("a clone"), node.try_clone().expect("a clone"));
            let (mut to_node, mut to_client) = (node, client);
            std::thread::spawn(move || {
                let mut part = [0; 4096];
                while let Ok(bytes @ 1..) = asked.read(&mut part) {
                    std::thread::sleep(std::time::Duration::from_millis(1500));
                    if to_node.write_all(&part[..bytes]).is_err() {
                        return;
                    }
                }
            });
            std::thread::spawn(move || std::io::copy(&mut answered, &mut to_client));
        }
    });
    way
}

#[test]
fn a_stream_is_made_by_a_node_that_takes_its_time_as_any_other_call_is() {
    let place = Place::new();
    let node = place.start();
    let output = node.command("stream create flights").env("KERA_CONNECT", slow_way_to(node.address())).output();
    let output = output.expect("the binary runs");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("created flights"), "{}", stdout(&output));
    node.stop();
}

/// What a person sees who starts it. In a file it is the whole line, which programs wait for.
#[test]
fn at_a_terminal_a_node_says_on_one_short_line_where_it_listens() {
    let there = Command::new("script").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if there.is_err() {
        return common::lacks("`script` of util-linux, for a terminal");
    }
    let place = Place::new();
    let mut flags = place.flags();
    let format = flags.iter().position(|flag| flag == "--log-format").unwrap();
    flags.drain(format..format + 2);
    let node = format!("{} {}", env!("CARGO_BIN_EXE_kera"), flags.join(" "));
    let mut command = Command::new("script");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KERA_")) {
        command.env_remove(name);
    }
    command.args(["-qec", &format!("{node} & echo process $!; wait $!"), "/dev/null"]).env("SHELL", "/bin/sh");
    let mut script = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let _typed = script.stdin.take();
    let (mut process, mut ready) = (None, None);
    for line in BufReader::new(script.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if let Some(number) = line.strip_prefix("process ") {
            process = Some(number.trim().to_owned());
        }
        if line.contains(" ready") {
            ready = Some(line);
        }
        // Once: another signal would end it at once. The lines end with it.
        if ready.is_some()
            && let Some(process) = process.take()
        {
            assert!(Command::new("kill").arg(process).status().unwrap().success());
        }
    }
    assert!(script.wait().unwrap().success());
    let ready = ready.expect("it says so");
    let (_, said) = ready.split_once("ready: clients 127.0.0.1:").unwrap_or_else(|| panic!("{ready}"));
    for part in [", HTTP 127.0.0.1:", ", Kafka 127.0.0.1:", &format!(", data {}", place.data().display())] {
        assert!(said.contains(part), "{part} in {ready}");
    }
    assert!(!said.contains('='), "{ready}");
}
