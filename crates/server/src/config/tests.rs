use super::*;

fn from_file(text: &str) -> Result<Loaded, Mistakes> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kera.toml");
    std::fs::write(&path, text).unwrap();
    load(&Sources { file: Some(path), ..Sources::default() })
}

fn lines(result: Result<Loaded, Mistakes>) -> Vec<String> {
    let mistakes = result.expect_err("it has mistakes").0;
    mistakes.iter().map(|m| m.to_string().split_once("kera.toml:").map_or(m.to_string(), |(_, l)| l.into())).collect()
}

#[test]
fn the_table_is_sound() {
    assert!(SETTINGS.len() < 60, "fewer than sixty settings, there are {}", SETTINGS.len());
    let config = Config::default();
    for (index, setting) in SETTINGS.iter().enumerate() {
        let name = setting.name();
        let written = Written::Text(setting.default.into());
        let value = setting.kind.read(&written).unwrap_or_else(|e| panic!("{name}: default: {e}"));
        assert_eq!((setting.get)(&config), value, "{name}: its type holds its default");
        let mut copy = config.clone();
        copy.assign(index, value);
        assert_eq!(copy, config, "{name}: set and get are the same field");
        assert!(setting.doc_line().ends_with(['.', '`']), "{name}: its documentation is a sentence");
        assert!(SETTINGS.iter().filter(|s| s.flag == setting.flag).count() == 1, "{name}: its flag is its own");
    }
}

#[test]
fn the_page_of_settings_is_up_to_date() {
    crate::docs::compare("docs/configuration.md", &page_text());
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kera.toml");
    std::fs::write(&path, "[network]\nlisten = \"h:1\"\nconnections_max = 5\n[node]\nio_threads = 3\n").unwrap();
    let mut sources = Sources {
        file: Some(path),
        environment: vec![("KERA_LISTEN".into(), "h:2".into()), ("KERA_CONNECTIONS_MAX".into(), "6".into())],
        flags: vec![("listen".into(), "h:3".into())],
        ..Sources::default()
    };
    let loaded = load(&sources).unwrap();
    assert_eq!(loaded.config.network.listen, "h:3");
    assert_eq!(loaded.config.network.connections_max, 6);
    assert_eq!(loaded.config.node.io_threads, Some(3));
    assert_eq!(loaded.config.http.listen.as_deref(), Some("127.0.0.1:7071"));
    let origin = |name: &str| loaded.origins[SETTINGS.iter().position(|s| s.name() == name).unwrap()].to_string();
    assert_eq!(origin("network.listen"), "--listen");
    assert_eq!(origin("network.connections_max"), "KERA_CONNECTIONS_MAX");
    assert!(origin("node.io_threads").ends_with("kera.toml:5"));
    assert_eq!(origin("http.listen"), "default");
    sources.flags.clear();
    assert_eq!(load(&sources).unwrap().config.network.listen, "h:2");
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let found = lines(from_file(
        "listen = \"127.0.0.1:1\"\n\
         [network]\nlistne = \"a:1\"\nframe_bytes_max = \"1GiB\"\nconnections_max = \"many\"\n\
         [arean]\nbytes = 1\n\
         [arena]\nbytes = true\n[logs]\nformat = \"xml\"\nlisten = \"a:1\"\n",
    ));
    let expected = [
        "1: `listen` belongs into the section [network]",
        "3: network.listne: there is no such setting; did you mean network.listen?",
        "4: network.frame_bytes_max: 1GiB is too large; allowed is 64KiB to 256MiB",
        "5: network.connections_max: `many` is not a number; allowed is 1 to 1000000",
        "6: there is no `arean`; did you mean the section [arena]?",
        "9: arena.bytes: true or false stands where 16MiB to 1TiB, or `auto` belongs",
        "11: logs.format: `xml` is none of `text`, `json`",
        "12: logs.listen: there is no such setting; did you mean network.listen?",
    ];
    assert_eq!(found, expected);
}

#[test]
fn which_roles_there_are_is_said_and_others_are_refused() {
    let roles = SETTINGS.iter().find(|setting| setting.name() == "cluster.roles").expect("there is one");
    assert_eq!(roles.kind.allowed(), "`coordinator`, `broker`, `backup`; several are separated by commas");
    let with = |roles: &str| load(&Sources { flags: vec![("roles".into(), roles.into())], ..Sources::default() });
    assert_eq!(with("broker, backup").unwrap().config.cluster.roles, "broker, backup");
    let text = with("broker, keeper").unwrap_err().to_string();
    assert!(text.contains("--roles: cluster.roles: `keeper` is no role"), "{text}");
}

/// What is allowed here and refused there ends a start that a check has found well.
#[test]
fn an_arena_may_be_as_large_as_one_can_be_and_no_larger() {
    let with = |bytes: u64| {
        let flags = vec![("arena-bytes".to_owned(), format!("{bytes}B"))];
        load(&Sources { flags, ..Sources::default() })
    };
    assert_eq!(with(kera_log::ARENA_BYTES_MAX).unwrap().config.arena.bytes, Some(kera_log::ARENA_BYTES_MAX));
    let text = with(kera_log::ARENA_BYTES_MAX + 1).unwrap_err().to_string();
    assert!(text.contains("--arena-bytes: arena.bytes: ") && text.contains("allowed is 16MiB to 1TiB"), "{text}");
}

#[test]
fn a_file_that_is_no_toml_says_the_line_and_the_rest_is_still_checked() {
    let found = lines(from_file("[network]\nlisten = 127.0.0.1:7070\n[logs]\nformat = \"xml\"\n"));
    assert!(found.iter().any(|m| m.starts_with("2: ")), "{found:?}");
    assert!(found.iter().any(|m| m.contains("`xml` is none of")), "{found:?}");
}

#[test]
fn a_file_that_is_not_there_says_what_to_do() {
    let sources = Sources { file: Some("/nowhere/kera.toml".into()), ..Sources::default() };
    let text = load(&sources).unwrap_err().to_string();
    assert!(text.contains("/nowhere/kera.toml: cannot be read") && text.contains("--config"), "{text}");
}

#[test]
fn values_that_contradict_each_other_are_named_with_their_places() {
    let sources = Sources {
        flags: vec![("listen".into(), "h:1".into()), ("http-listen".into(), "h:1".into())],
        ..Sources::default()
    };
    let text = load(&sources).unwrap_err().to_string();
    assert!(text.contains("--listen, --http-listen: network.listen and http.listen: both are h:1"), "{text}");
}

#[test]
fn no_two_doors_of_a_node_are_at_one_address() {
    let doors = [
        ("listen", "network.listen"),
        ("http-listen", "http.listen"),
        ("kafka-listen", "kafka.listen"),
        ("cluster-listen", "cluster.listen"),
    ];
    let with = |flags: &[(&str, &str)]| {
        let flags = flags.iter().map(|(flag, value)| ((*flag).into(), (*value).into())).collect();
        load(&Sources { flags, ..Sources::default() })
    };
    for (at, (flag, name)) in doors.iter().enumerate() {
        for (other_flag, other) in &doors[at + 1..] {
            let text = with(&[("node", "1"), (*flag, "h:1"), (*other_flag, "h:1")]).unwrap_err().to_string();
            assert!(text.contains(&format!("--{flag}, --{other_flag}: {name} and {other}: both are h:1")), "{text}");
        }
    }
    // Who is in no cluster has no door for other nodes.
    with(&[("http-listen", "h:1"), ("cluster-listen", "h:1")]).unwrap();
    with(&[("listen", "h:0"), ("http-listen", "h:0"), ("kafka-listen", "h:0")]).unwrap();
}

#[test]
fn a_misspelt_variable_is_a_notice_and_a_foreign_one_is_none() {
    let environment =
        [("KERA_LISTNE", "a:1"), ("KERA_PORT_7070_TCP_ADDR", "10.0.0.1"), ("KERA_UPDATE_DOCS", "1"), ("HOME", "/")];
    let sources =
        Sources { environment: environment.map(|(k, v)| (k.into(), v.into())).to_vec(), ..Sources::default() };
    let notices = load(&sources).unwrap().notices;
    assert_eq!(notices, ["KERA_LISTNE is not a setting and was not used; did you mean KERA_LISTEN?"]);
}

#[test]
fn what_show_prints_reads_back_as_the_same_configuration() {
    let mut config = Config::default();
    config.node.disks = vec!["/a b".into(), "/c\"d".into()];
    config.http.listen = None;
    config.arena.bytes = Some(3 << 30);
    let loaded = from_file(&file_text(&config, &vec![Origin::Flag("a".into()); SETTINGS.len()])).unwrap();
    assert_eq!(loaded.config, config);
}

/// A port for Kafka clients that nobody has asked for gives way to whoever has it.
#[test]
fn what_nobody_has_set_is_set_by_nobody_in_what_show_prints() {
    let before = load(&Sources { flags: vec![("listen".into(), "h:1".into())], ..Sources::default() }).unwrap();
    let text = file_text(&before.config, &before.origins);
    assert!(text.contains("\n# listen = \"127.0.0.1:9092\"  # default\n"), "{text}");
    assert!(text.contains("\nlisten = \"h:1\"  # --listen\n"), "{text}");
    let after = from_file(&text).unwrap();
    assert!(after.config.kafka_by_default);
    assert_eq!(after.config, before.config);
    let set = |loaded: &Loaded| loaded.origins.iter().map(|origin| *origin != Origin::Default).collect::<Vec<_>>();
    assert_eq!(set(&after), set(&before));
}

#[test]
fn many_virtual_logs_have_smaller_files_unless_somebody_says_how_large() {
    let mut config = Config::default();
    let bytes = [1, 2, 3, 4, 8, 32, 64].map(|count| {
        config.virtual_logs.count = count;
        config.virtual_log_file_bytes() >> 20
    });
    assert_eq!(bytes, [128, 128, 64, 64, 32, 32, 32]);
    config.virtual_logs.file_bytes = Some(100 << 20);
    assert_eq!(config.virtual_log_file_bytes(), 100 << 20);
}

#[test]
fn a_node_of_a_cluster_tells_nobody_an_address_that_is_none() {
    let flags = |more: &[(&str, &str)]| Sources {
        flags: more.iter().chain(&[("node", "1")]).map(|(flag, value)| ((*flag).into(), (*value).into())).collect(),
        ..Sources::default()
    };
    let text = load(&flags(&[("listen", "0.0.0.0:7070"), ("cluster-listen", "[::]:7072")])).unwrap_err().to_string();
    assert!(
        text.contains("nobody can connect to 0.0.0.0:7070, which others are told; say with --advertised"),
        "{text}"
    );
    assert!(text.contains("nobody can connect to [::]:7072") && text.contains("--cluster-advertised"), "{text}");
    let advertised = [("listen", "0.0.0.0:7070"), ("advertised", "node-1:7070")];
    let config = load(&flags(&advertised)).unwrap().config;
    assert_eq!((config.native_address(), config.cluster_address()), ("node-1:7070", "127.0.0.1:7072"));
    let text = load(&flags(&[("cluster-listen", "127.0.0.1:0")])).unwrap_err().to_string();
    assert!(text.contains("cluster.listen") && text.contains("must know the port"), "{text}");
    let text = load(&flags(&[("kafka-listen", "127.0.0.1:0")])).unwrap_err().to_string();
    assert!(text.contains("--kafka-listen: kafka.listen: other nodes must know the port"), "{text}");
    // Who is alone tells nobody.
    for (flag, address) in [("listen", "0.0.0.0:7070"), ("cluster-listen", "127.0.0.1:0")] {
        load(&Sources { flags: vec![(flag.into(), address.into())], ..Sources::default() }).unwrap();
    }
}

#[test]
fn a_level_that_is_none_is_a_mistake_of_the_configuration() {
    let level = |level: &str| load(&Sources { flags: vec![("log-level".into(), level.into())], ..Sources::default() });
    let text = level("warning").unwrap_err().to_string();
    assert!(text.contains("--log-level: logs.level: `warning` is no level"), "{text}");
    assert_eq!(level("info,kera_broker=debug").unwrap().config.logs.level, "info,kera_broker=debug");
}

/// Also one that is alone tells them: they connect to nothing else.
#[test]
fn kafka_clients_are_told_no_address_that_is_none() {
    let flags = |more: &[(&str, &str)]| {
        let flags = more.iter().map(|(flag, value)| ((*flag).into(), (*value).into())).collect();
        load(&Sources { flags, ..Sources::default() })
    };
    for address in ["0.0.0.0:9092", "[::]:9092"] {
        let text = flags(&[("kafka-listen", address)]).unwrap_err().to_string();
        assert!(text.contains(&format!("nobody can connect to {address}")), "{text}");
        assert!(text.contains("say with --kafka-advertised"), "{text}");
        let told = flags(&[("kafka-listen", address), ("kafka-advertised", "node-1:9092")]).unwrap().config;
        assert_eq!(told.kafka_address(), Some("node-1:9092"));
    }
    let none = flags(&[("kafka-listen", "none"), ("kafka-advertised", "node-1:9092")]).unwrap().config;
    assert_eq!(none.kafka_address(), None);
}
