use super::*;

fn rows_of(
    text: &'static str,
    path: &str,
    format: Format,
    picks: Picks,
) -> Result<Vec<Result<Row, RowError>>, CliError> {
    let mut source = source(Box::new(text.as_bytes()), path, format, picks, &Arc::default())?;
    let mut all = Vec::new();
    loop {
        let mut row = Row::default();
        match source.next(&mut row) {
            Ok(false) => return Ok(all),
            Ok(true) => all.push(Ok(row)),
            Err(error) => {
                let fatal = error.fatal;
                all.push(Err(error));
                if fatal {
                    return Ok(all);
                }
            }
        }
    }
}

fn picks(key: &str, timestamp: &str) -> Picks {
    let some = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    Picks { key: some(key), timestamp: some(timestamp), ..Picks::default() }
}

fn values(rows: &[Result<Row, RowError>]) -> Vec<String> {
    let show = |row: &Result<Row, RowError>| match row {
        Ok(row) => String::from_utf8(row.value.clone()).unwrap(),
        Err(error) => format!("! {}", error.report("f")),
    };
    rows.iter().map(show).collect()
}

#[test]
fn ndjson_keeps_values_as_they_are_written() {
    let text = "{\"a\": 1,  \"b\":\"x\"}\r\n\n  {\"b\":\"y\\u0041\",\"t\":1700000000}  \n[1]\n7";
    let rows = rows_of(text, "f.ndjson", Format::Auto, Picks::default()).unwrap();
    assert_eq!(values(&rows), ["{\"a\": 1,  \"b\":\"x\"}", "{\"b\":\"y\\u0041\",\"t\":1700000000}", "[1]", "7"]);
    let lines: Vec<u64> = rows.iter().map(|r| r.as_ref().unwrap().line).collect();
    assert_eq!(lines, [1, 3, 4, 5]);
}

/// As some programs write UTF-8, and however few bytes come at a time.
#[test]
fn a_byte_order_mark_is_no_part_of_a_record_where_it_can_be_told_from_one() {
    let all = |text: &'static str, path: &str, format| values(&rows_of(text, path, format, Picks::default()).unwrap());
    let object = ["{\"a\":1}", "2"];
    assert_eq!(all("\u{feff}{\"a\":1}\n2\n", "f.ndjson", Format::Auto), object);
    assert_eq!(all("\u{feff}{\"a\":1}\n2\n", "-", Format::Auto), object);
    assert_eq!(all("\u{feff}[{\"a\":1},\n2]", "f.json", Format::Auto), object);
    assert_eq!(all("\u{feff}a\n1\n", "f.csv", Format::Auto), ["{\"a\":1}"]);
    assert_eq!(all("\u{feff}{\"value\":\"x\"}\n", "-", Format::Records), ["x"]);
    for format in [Format::Auto, Format::Lines, Format::Raw] {
        assert_eq!(all("\u{feff}x", "-", format), ["\u{feff}x"], "{format:?}");
    }
    assert!(all("\u{feff}\u{feff}{}\n", "f.ndjson", Format::Auto)[0].starts_with("! f, line 1: this is no JSON"));
    // What only begins like one.
    assert_eq!(all("\u{fefe}x\n", "-", Format::Auto), ["\u{fefe}x"]);
    for (bytes, is_marked) in [(&b"\xef\xbb\xbf7"[..], true), (b"\xef\xbb7", false), (b"\xef", false), (b"", false)] {
        let mut input: Box<dyn BufRead + Send> = Box::new(BufReader::with_capacity(1, bytes));
        assert_eq!(take_mark(&mut input).unwrap(), is_marked);
        let mut left = Vec::new();
        input.read_to_end(&mut left).unwrap();
        assert_eq!(left, if is_marked { b"7" } else { bytes });
    }
}

#[test]
fn keys_and_timestamps_are_picked() {
    let text = "{\"b\":\"y\\u0041\",\"t\":\"2001-01-01 12:00\"}\n{\"t\":978350400,\"b\":17}";
    let rows = rows_of(text, "f.jsonl", Format::Auto, picks("b", "t")).unwrap();
    let rows: Vec<Row> = rows.into_iter().map(Result::unwrap).collect();
    assert_eq!(rows[0].key.as_deref(), Some(&b"yA"[..]));
    assert_eq!(rows[1].key.as_deref(), Some(&b"17"[..]));
    assert_eq!([rows[0].timestamp_ms, rows[1].timestamp_ms], [Some(978_350_400_000); 2]);
}

#[test]
fn one_field_can_be_key_and_timestamp() {
    let rows = rows_of("{\"t\":978350400}", "f.json", Format::Auto, picks("t", "t")).unwrap();
    let row = rows[0].as_ref().unwrap();
    assert_eq!((row.key.as_deref(), row.timestamp_ms), (Some(&b"978350400"[..]), Some(978_350_400_000)));
}

#[test]
fn malformed_lines_name_line_and_field_and_reading_goes_on() {
    let text = "{\"k\":1}\n{\"k\":\n{\"j\":1}\n{\"k\":null}\n[2]\n{\"k\":2} x\n{\"k\":3}";
    let rows = rows_of(text, "f.ndjson", Format::Auto, picks("k", "")).unwrap();
    assert_eq!(
        values(&rows),
        [
            "{\"k\":1}",
            "! f, line 2: this is no JSON: EOF while parsing a value (column 5)",
            "! f, line 3, field `k`: the key field is missing; the record has `j`",
            "! f, line 4, field `k`: the key field is null",
            "! f, line 5: this is no JSON: invalid type: sequence, expected a JSON object, because a field is picked from it (column 0)",
            "! f, line 6: this is no JSON: trailing characters (column 9)",
            "{\"k\":3}",
        ]
    );
}

#[test]
fn a_json_array_is_cut_into_its_elements() {
    let text = "[{\"a\":\"],[\",\"b\":[1,2]},\n {\"a\":\"\\\"\"},\n3\n]\n";
    let rows = rows_of(text, "f.json", Format::Auto, Picks::default()).unwrap();
    assert_eq!(values(&rows), ["{\"a\":\"],[\",\"b\":[1,2]}", "{\"a\":\"\\\"\"}", "3"]);
    let lines: Vec<u64> = rows.iter().map(|r| r.as_ref().unwrap().line).collect();
    assert_eq!(lines, [1, 2, 3]);
    assert!(rows_of("[]", "f.json", Format::Auto, Picks::default()).unwrap().is_empty());
}

#[test]
fn a_json_array_that_does_not_end_is_an_error() {
    let rows = rows_of("[1,\n2", "f.json", Format::Auto, Picks::default()).unwrap();
    assert_eq!(values(&rows), ["1", "! f, line 2: the JSON array does not end: `]` is missing"]);
}

#[test]
fn an_array_on_a_line_with_more_lines_behind_it_is_a_value() {
    let text = "\n [\"x\",1] \n\n  \n[\"y\",\n[\"z\",[3]]\n{}";
    for path in ["f.ndjson", "f.json"] {
        let rows = rows_of(text, path, Format::Auto, Picks::default()).unwrap();
        let wrong = "! f, line 5: this is no JSON: EOF while parsing a value (column 5)";
        assert_eq!(values(&rows), ["[\"x\",1]", wrong, "[\"z\",[3]]", "{}"]);
        let lines: Vec<u64> =
            rows.iter().map(|row| row.as_ref().map_or_else(|error| error.line, |row| row.line)).collect();
        assert_eq!(lines, [2, 5, 6, 7]);
    }
    let rows = rows_of("[1]\n[2]\n", "-", Format::Ndjson, Picks::default()).unwrap();
    assert_eq!(values(&rows), ["[1]", "[2]"]);
    for alone in ["[1,[2]]", "\n[1,[2]]\n\n ", "[1\n,[2]]\n"] {
        let rows = rows_of(alone, "f.ndjson", Format::Auto, Picks::default()).unwrap();
        assert_eq!(values(&rows), ["1", "[2]"], "{alone:?}");
    }
}

#[test]
fn json_values_that_spread_over_lines_are_taken_if_the_first_one_does() {
    let text = "\n{\r\n  \"a\": [\n    {\"b\": \"} x\"}\n  ]\n}\n\n{\"a\": 2}\n[\n3]\n7\n";
    let rows = rows_of(text, "-", Format::Auto, Picks::default()).unwrap();
    let first = "{    \"a\": [     {\"b\": \"} x\"}   ] }";
    assert_eq!(values(&rows), [first, "{\"a\": 2}", "[ 3]", "7"]);
    let lines: Vec<u64> = rows.iter().map(|row| row.as_ref().unwrap().line).collect();
    assert_eq!(lines, [2, 8, 9, 11]);
    let rows = rows_of("{\n\"k\": 1\n}\n{\n\"j\": 1\n}\n{\"k\":2}", "f.json", Format::Auto, picks("k", "")).unwrap();
    assert_eq!(rows[0].as_ref().unwrap().key.as_deref(), Some(&b"1"[..]));
    let wrong = "! f, line 4, field `k`: the key field is missing; the record has `j`";
    assert_eq!(values(&rows)[1..], [wrong.to_owned(), "{\"k\":2}".to_owned()]);
    // The last one does not end, and one has a slip in it.
    let rows = rows_of("{\n\"a\": 1\n}\n{\n\"a\" 2\n}\n{\n\"a\":", "f.json", Format::Auto, Picks::default()).unwrap();
    let said = values(&rows);
    assert!(said[1].starts_with("! f, line 4: this is no JSON: expected `:`"), "{said:?}");
    assert_eq!((said.len(), said[2].as_str()), (3, "! f, line 7: the JSON value does not end: `}` or `]` is missing"));
}

/// A line that is cut off spoils itself alone, wherever it is.
#[test]
fn lines_of_json_stay_lines_also_if_the_first_one_is_cut_off() {
    let all = |text: &'static str| values(&rows_of(text, "f.ndjson", Format::Auto, Picks::default()).unwrap());
    for cut in ["{\"a\": [1", "{\"a\": \"x", "{\"a\"", "{"] {
        let said = all(format!("{cut}\n{{\"b\": 1}}\n{{\"b\": 2}}\n").leak());
        assert!(said[0].starts_with("! f, line 1: this is no JSON"), "{said:?}");
        assert_eq!(said[1..], ["{\"b\": 1}".to_owned(), "{\"b\": 2}".to_owned()], "{cut}");
    }
    // Where the next line could be how it goes on, its end tells.
    let said = all("{\"a\":\n{\"b\": 1}\n{\"b\": 2}\n");
    assert!(said[0].starts_with("! f, line 1: this is no JSON"), "{said:?}");
    assert_eq!(said[1..], ["{\"b\": 1}".to_owned(), "{\"b\": 2}".to_owned()]);
    assert_eq!(all("{\"a\": [\n{\"b\": 1},\n{\"b\": 2}]}\n{}"), ["{\"a\": [ {\"b\": 1}, {\"b\": 2}]}", "{}"]);
}

#[test]
fn a_json_value_that_is_too_long_is_told_with_its_line_also_if_it_spreads_over_lines() {
    let line = "\"0123456789\",\n".repeat(ROW_BYTES_MAX / 14 + 1);
    let rows = rows_of(format!("\n{{\"a\": [\n{line}").leak(), "f.json", Format::Auto, Picks::default()).unwrap();
    assert_eq!(values(&rows), ["! f, line 2: the value is longer than 15728640 bytes, the limit of one record"]);
}

#[test]
fn rows_in_front_of_the_line_that_is_named_are_passed_over() {
    let from = |text: &'static str, path: &str, line| {
        let picks = Picks { from_line: Some(line), ..Picks::default() };
        values(&rows_of(text, path, Format::Auto, picks).unwrap())
    };
    assert_eq!(from("a\nb\nc", "f.txt", 2), ["b", "c"]);
    assert_eq!(from("a\nb\nc", "f.txt", 1), ["a", "b", "c"]);
    assert_eq!(from("a\nb", "f.txt", 3), Vec::<String>::new());
    assert_eq!(from("n\n1\n2\n\"x\ny\"\n3\n", "f.csv", 3), ["{\"n\":2}", "{\"n\":\"x\\ny\"}", "{\"n\":3}"]);
    // In the midst of a row: it began before.
    assert_eq!(from("n\n1\n2\n\"x\ny\"\n3\n", "f.csv", 5), ["{\"n\":3}"]);
    assert_eq!(from("{\"a\":\n{}\nno\n2\n", "f.ndjson", 4), ["2"]);
    assert_eq!(from("{\n\"a\": 1}\n{\n\"a\": 2}\n", "f.json", 2), ["{ \"a\": 2}"]);
    assert_eq!(from("[1,\n2, 3,\n4]", "f.json", 2), ["2", "3", "4"]);
    let mut rows = rows_of("[1]", "f.json", Format::Auto, Picks::default()).unwrap();
    assert!(rows.remove(0).unwrap().shares_line);
    let picks = Picks { from_line: Some(2), ..Picks::default() };
    assert_eq!(rows_of("a", "-", Format::Raw, picks).err().unwrap().exit, crate::error::EXIT_USAGE);
}

#[test]
fn nothing_of_a_json_array_is_left_out_or_joined() {
    let values = |text| values(&rows_of(text, "f.json", Format::Auto, Picks::default()).unwrap());
    assert_eq!(
        values("[1\n2,\n{\n\"a\":\r\n1}]"),
        ["! f, line 1: this is no JSON: trailing characters (column 3)", "{ \"a\":  1}"]
    );
    let empty = |line: u64| format!("! f, line {line}: an element of the JSON array is empty");
    assert_eq!(values("[1,\n , 2]"), ["1", &empty(2), "2"]);
    assert_eq!(values("[1,\n]"), ["1", &empty(2)]);
    assert_eq!(values("[,]"), [empty(1), empty(1)]);
    assert_eq!(values("[ \n ]\n"), Vec::<String>::new());
    let behind = |line: u64| format!("! f, line {line}: there is something behind the `]` that ends the JSON array");
    assert_eq!(values("[1,\n2]\n\n [3]\n[4]"), ["1", "2", &behind(4)]);
    assert_eq!(values("[1] 2"), ["1", &behind(1)]);
}

#[test]
fn csv_rows_become_json_objects() {
    let text = "name, size ,note\nx,12,\"a \"\"b\"\"\"\ny,007,\n";
    let rows = rows_of(text, "f.csv", Format::Auto, picks("name", "")).unwrap();
    assert_eq!(
        values(&rows),
        ["{\"name\":\"x\",\"size\":12,\"note\":\"a \\\"b\\\"\"}", "{\"name\":\"y\",\"size\":\"007\",\"note\":\"\"}"]
    );
    assert_eq!(rows[1].as_ref().unwrap().key.as_deref(), Some(&b"y"[..]));
}

#[test]
fn a_column_of_csv_can_be_all_text_and_what_stands_between_fields_can_be_said() {
    let text = "id;n\n007;12\n8;n/a\n";
    let with = |csv_types| Picks { delimiter: Some(b';'), csv_types, ..Picks::default() };
    let rows = |csv_types| values(&rows_of(text, "f.csv", Format::Auto, with(csv_types)).unwrap());
    let mixed = ["{\"id\":\"007\",\"n\":12}", "{\"id\":8,\"n\":\"n/a\"}"];
    assert_eq!(rows(None), mixed);
    assert_eq!(rows(Some(CsvTypes::Auto)), mixed);
    assert_eq!(rows(Some(CsvTypes::Text)), ["{\"id\":\"007\",\"n\":\"12\"}", "{\"id\":\"8\",\"n\":\"n/a\"}"]);
    // Said, it goes before the file's name.
    let rows = rows_of(text, "f.tsv", Format::Auto, with(None)).unwrap();
    assert_eq!(values(&rows), mixed);
    for path in ["f.ndjson", "f.txt"] {
        let error = rows_of(text, path, Format::Auto, with(None)).err().unwrap();
        assert_eq!((error.exit, error.message.as_str()), (crate::error::EXIT_USAGE, "--delimiter is for CSV"));
    }
}

#[test]
fn a_header_that_is_one_field_and_looks_like_several_is_told() {
    let told = |name: &str, delimiter| csv::other_delimiter(&[name.to_owned()], delimiter);
    assert!(
        told("id;name", b',')
            .is_some_and(|said| said.ends_with("`id;name`; if it is meant to be several, say --delimiter ';'"))
    );
    assert!(
        told("id\tname", b',').is_some_and(|said| said.contains("`id\\tname`") && said.ends_with("--delimiter tab"))
    );
    assert!(told("id,name", b'\t').is_some_and(|said| said.ends_with("--delimiter ','")));
    assert_eq!((told("name", b','), told("id;name", b';')), (None, None));
    assert_eq!(csv::other_delimiter(&["a;b".into(), "c".into()], b','), None);
}

/// However lines end, and whatever lies between and in rows.
#[test]
fn rows_of_csv_begin_on_the_lines_that_an_editor_shows() {
    for end in ["\n", "\r\n"] {
        for (piece, at_end) in [(1, ""), (2, end), (3, ""), (100, end)] {
            let text = ["a,b", "1,2", "", "", "\"x", "y\",3", "4", "5,6"].join(end) + at_end;
            let text: &'static [u8] = text.into_bytes().leak();
            // The reader is given a piece at a time, so that rows end at all places of what it has.
            let inner: Box<dyn Read + Send> = Box::new(Typed(text.chunks(piece).chain([&b""[..]]).collect()));
            let counted = Counted { inner, read: Arc::default(), tap: Arc::default(), is_over: false };
            let input = Box::new(BufReader::new(counted));
            let mut source = source(input, "f.csv", Format::Auto, Picks::default(), &Arc::default()).unwrap();
            let (mut row, mut begin) = (Row::default(), Vec::new());
            loop {
                match source.next(&mut row) {
                    Ok(true) => begin.push(row.line),
                    Ok(false) => break,
                    Err(error) => begin.push(error.line),
                }
            }
            assert_eq!(begin, [2, 5, 7, 8], "{end:?} {piece}");
        }
    }
}

#[test]
fn a_quote_that_is_not_closed_does_not_take_all_the_rest_into_memory() {
    let read = Arc::new(AtomicU64::new(0));
    for header in ["a,b\n1,2\n", ""] {
        let text = format!("{header}\"x,y\n").into_bytes();
        let inner = Box::new(io::Cursor::new(text).chain(io::repeat(b'z').take(8 * ROW_BYTES_MAX as u64)));
        let before = read.load(Ordering::Relaxed);
        let input =
            Box::new(BufReader::new(Counted { inner, read: read.clone(), tap: Arc::default(), is_over: false }));
        let opened = source(input, "f.csv", Format::Auto, Picks::default(), &Arc::default());
        let said = match opened {
            Err(error) => error.message,
            Ok(mut rows) => {
                let mut row = Row::default();
                assert_eq!(rows.next(&mut row), Ok(true));
                let error = rows.next(&mut row).unwrap_err();
                assert!(error.fatal);
                error.report("f")
            }
        };
        let line = if header.is_empty() { "line 1: the header is no CSV" } else { "f, line 3" };
        assert!(said.contains(line) && said.contains("longer than 15728640 bytes"), "{said}");
        assert!(read.load(Ordering::Relaxed) - before < 2 * ROW_BYTES_MAX as u64);
    }
}

#[test]
fn csv_names_line_and_field() {
    let text = "a,b\n1,2\n3\n4,x\n,5\n";
    let rows = rows_of(text, "f.csv", Format::Auto, picks("a", "b")).unwrap();
    assert_eq!(values(&rows)[1], "! f, line 3, field `b`: the row has 1 fields, the header has 2");
    assert!(values(&rows)[2].starts_with("! f, line 4, field `b`: `x` is no time"));
    let error = rows_of(text, "f.csv", Format::Auto, picks("c", "")).err().unwrap();
    assert_eq!(error.message, "line 1: the header has no field `c`, which --key-field names");
    assert_eq!(error.next_step, "take one of: a, b");
}

#[test]
fn numbers_of_csv_are_those_of_json() {
    for (text, is) in [
        ("1", true),
        ("-1.5", true),
        ("0.5", true),
        ("01", false),
        ("1.", false),
        ("", false),
        ("1e5", false),
        ("-", false),
    ] {
        assert_eq!(csv::is_number(text), is, "{text}");
    }
}

#[test]
fn lines_and_raw() {
    let rows = rows_of("a\r\n\nb", "f.txt", Format::Auto, Picks::default()).unwrap();
    assert_eq!(values(&rows), ["a", "", "b"]);
    let rows = rows_of("a\nb\n", "f", Format::Raw, Picks::default()).unwrap();
    assert_eq!(values(&rows), ["a\nb\n"]);
    let error = rows_of("a", "f.txt", Format::Auto, picks("k", "")).err().unwrap();
    assert_eq!(error.exit, crate::error::EXIT_USAGE);
}

#[test]
fn standard_input_is_recognised_by_its_first_byte() {
    assert_eq!(rows_of(" {\"a\":1}\n", "-", Format::Auto, picks("a", "")).unwrap().len(), 1);
    assert_eq!(values(&rows_of("hello\n", "-", Format::Auto, Picks::default()).unwrap()), ["hello"]);
}

#[test]
fn a_key_stands_in_front_of_the_separator_and_a_value_can_stand_for_none() {
    let picks = Picks { separator: Some("::".into()), null: Some("null".into()), ..Picks::default() };
    let rows = rows_of("a::1::2\nb::null\nc\n::\n", "-", Format::Auto, picks.clone()).unwrap();
    let shown = |row: &Row| (row.key.clone().unwrap(), (!row.no_value).then(|| row.value.clone()));
    assert_eq!(shown(rows[0].as_ref().unwrap()), (b"a".to_vec(), Some(b"1::2".to_vec())));
    assert_eq!(shown(rows[1].as_ref().unwrap()), (b"b".to_vec(), None));
    assert!(rows[2].as_ref().unwrap_err().message.contains("`::`"));
    assert_eq!(shown(rows[3].as_ref().unwrap()), (b"".to_vec(), Some(b"".to_vec())));
    let rows = rows_of("null::a\nnull::null\n", "-", Format::Auto, picks).unwrap();
    let parts = |row: &Row| (row.key.clone(), row.no_value);
    let parts: Vec<_> = rows.iter().map(|row| parts(row.as_ref().unwrap())).collect();
    assert_eq!(parts, [(None, false), (None, true)]);
    let picks = Picks { null: Some("null".into()), ..Picks::default() };
    let rows = rows_of("null\n{}\n", "f.ndjson", Format::Auto, picks).unwrap();
    assert_eq!(rows.iter().map(|row| row.as_ref().unwrap().no_value).collect::<Vec<_>>(), [true, false]);
    for (format, separator, null) in [(Format::Csv, ":", ""), (Format::Records, "", "x"), (Format::Raw, "", "x")] {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let picks = Picks { separator: some(separator), null: some(null), ..Picks::default() };
        let error = rows_of("a,b\n", "-", format, picks).err().unwrap();
        assert_eq!(error.exit, crate::error::EXIT_USAGE, "{format:?}");
    }
}

#[test]
fn keys_that_are_no_text_are_written_in_hexadecimal_or_base64() {
    let picks = |field: Option<&str>, separator: Option<&str>, key_encoding| Picks {
        key: field.map(String::from),
        separator: separator.map(String::from),
        null: separator.map(|_| "null".into()),
        key_encoding,
        ..Picks::default()
    };
    let lines = "00ff:x\nxy:y\nnull:z\n:\n";
    let rows = rows_of(lines, "-", Format::Auto, picks(None, Some(":"), KeyEncoding::Hex)).unwrap();
    let key = |at: usize| rows[at].as_ref().unwrap().key.clone();
    assert_eq!((key(0), key(2), key(3)), (Some(vec![0, 0xff]), None, Some(Vec::new())));
    let error = rows[1].as_ref().unwrap_err();
    assert_eq!((error.line, error.fatal), (2, false));
    assert!(error.message.contains("`xy` is not hexadecimal"), "{}", error.message);
    let named = picks(Some("k"), None, KeyEncoding::Base64);
    let rows = rows_of("{\"k\":\"AP8=\"}\n{\"k\":null}\n{\"k\":\"=\"}\n", "f.ndjson", Format::Auto, named).unwrap();
    assert_eq!(rows[0].as_ref().unwrap().key, Some(vec![0, 0xff]));
    assert!(rows[1].as_ref().unwrap_err().message.contains("null"));
    assert!(rows[2].as_ref().unwrap_err().report("f").contains("line 3, field `k`"));
    for format in [Format::Lines, Format::Ndjson, Format::Records] {
        let error = rows_of("a\n", "-", format, picks(None, None, KeyEncoding::Hex)).err().unwrap();
        assert!(error.message.contains("--key-encoding"), "{error}");
    }
}

#[test]
fn records_are_taken_over_as_they_were_printed() {
    let text = r#"{"ordinal":7,"key":"k","value":{"n":12345678901234567890123, "a":1e400},"timestamp":"2001-01-01T12:00:00.000Z"}
{"key_hex":"fFfe","value_hex":"00ff","version":9}

{"keys":["a","b"],"value":null,"headers":[["h","1"]]}
{"value":"a \"text\""}
{"key":"k"}
{"value_hex":"0"}
{"value":"x","timestamp":"soon"}
"#;
    let rows = rows_of(text, "-", Format::Records, Picks::default()).unwrap();
    let row = |at: usize| rows[at].as_ref().unwrap();
    assert_eq!(row(0).key.as_deref(), Some(&b"k"[..]));
    assert_eq!(row(0).value, br#"{"n":12345678901234567890123, "a":1e400}"#);
    assert_eq!(row(0).timestamp_ms, Some(978_350_400_000));
    assert_eq!((row(1).key.as_deref(), row(1).version), (Some(&b"\xff\xfe"[..]), Some(9)));
    assert_eq!((&row(1).value[..], row(1).timestamp_ms), (&b"\x00\xff"[..], None));
    assert_eq!((row(2).no_value, row(2).headers, row(2).line), (true, 1, 4));
    assert_eq!(row(2).more_keys, [b"b".to_vec()]);
    assert_eq!((&row(3).value[..], row(3).no_value), (&br#"a "text""#[..], false));
    let wrong = |at: usize| rows[at].as_ref().unwrap_err().report("f");
    assert!(wrong(4).contains("line 6: there is no `value`"), "{}", wrong(4));
    assert!(wrong(5).contains("field `value_hex`: `0` is not hexadecimal"), "{}", wrong(5));
    assert!(wrong(6).contains("field `timestamp`: `soon` is no time"), "{}", wrong(6));
}

/// A terminal: after Ctrl-D it goes on if somebody reads on.
struct Typed(Vec<&'static [u8]>);

impl Read for Typed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let next = self.0.remove(0);
        buffer[..next.len()].copy_from_slice(next);
        Ok(next.len())
    }
}

#[test]
fn an_end_that_was_seen_stays_one() {
    for (typed, rows) in [(vec![&b""[..], b"late\n"], 0), (vec![&b"x\n"[..], b"", b"late\n"], 1)] {
        for format in [Format::Auto, Format::Lines, Format::Ndjson, Format::Records] {
            let inner: Box<dyn Read + Send> = Box::new(Typed(typed.clone()));
            let counted = Counted { inner, read: Arc::default(), tap: Arc::default(), is_over: false };
            let input = Box::new(BufReader::new(counted));
            let mut source = source(input, "-", format, Picks::default(), &Arc::default()).unwrap();
            let mut seen = 0;
            while source.next(&mut Row::default()) != Ok(false) {
                seen += 1;
            }
            assert_eq!(seen, rows, "{format:?}");
        }
    }
}

#[test]
fn input_that_is_shut_ends_behind_its_last_whole_row() {
    let lines: [(Format, &[u8], &[&str]); 7] = [
        (Format::Lines, b"a\nb\nc", &["a", "b"]),
        (Format::Lines, b"a\nb\n", &["a", "b"]),
        (Format::Ndjson, b"{\"a\":1}\n23", &["{\"a\":1}"]),
        (Format::Ndjson, b"[1,\n2, 3", &["1", "2"]),
        (Format::Ndjson, b"[[1],2]\n", &["[1]", "2"]),
        (Format::Csv, b"a\n1\n23", &["{\"a\":1}"]),
        (Format::Records, b"{\"value\":\"x\"}\n{\"value\":", &["x"]),
    ];
    for (format, text, whole) in lines {
        let tap = Arc::new(Tap::default());
        let inner: Box<dyn Read + Send> = Box::new(Typed(vec![text]));
        let counted = Counted { inner, read: Arc::default(), tap: tap.clone(), is_over: false };
        let mut source = source(Box::new(BufReader::new(counted)), "-", format, Picks::default(), &tap).unwrap();
        assert!(!tap.shut(), "more has not been asked for");
        let mut row = Row::default();
        for value in whole {
            assert_eq!(source.next(&mut row), Ok(true), "{format:?}");
            assert_eq!(row.value, value.as_bytes());
        }
        assert!(source.next(&mut row).is_err() && tap.is_dry(), "{format:?}");
    }
}

/// Waits for more, and is shut meanwhile.
struct Waiting(Arc<Tap>);

impl Read for Waiting {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        assert!(self.0.shut(), "it is waited for");
        buffer[..2].copy_from_slice(b"x\n");
        Ok(2)
    }
}

#[test]
fn what_comes_through_no_more_is_no_row() {
    let tap = Arc::new(Tap::default());
    let counted =
        Counted { inner: Box::new(Waiting(tap.clone())), read: Arc::default(), tap: tap.clone(), is_over: false };
    let mut source = lines::LineRows::new(Box::new(BufReader::new(counted)), false, None);
    assert!(source.next(&mut Row::default()).is_err() && tap.is_dry());
}

/// An array on a line; when more is waited for it is shut, and another line comes all the same.
struct Handing {
    tap: Arc<Tap>,
    text: &'static [u8],
    handed: Arc<Mutex<Vec<(u64, String, bool)>>>,
}

impl Read for Handing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut text = std::mem::take(&mut self.text);
        if text.is_empty() {
            assert!(self.tap.shut(), "it is waited for");
            let (mut rows, mut row) = (self.tap.hand_over().expect("it is not cut"), Row::default());
            while rows.next(&mut row).unwrap() {
                let value = String::from_utf8(row.value.clone()).unwrap();
                self.handed.lock().unwrap().push((row.line, value, row.no_value));
            }
            text = b"[3]\n";
        }
        buffer[..text.len()].copy_from_slice(text);
        Ok(text.len())
    }
}

#[test]
fn an_array_that_is_waited_behind_is_cut_by_whoever_shuts_the_input_and_by_nobody_else() {
    let (tap, handed) = (Arc::new(Tap::default()), Arc::default());
    let inner = Box::new(Handing { tap: tap.clone(), text: b"\n[[1], null]\n", handed: Arc::clone(&handed) });
    let counted = Counted { inner, read: Arc::default(), tap: tap.clone(), is_over: false };
    let picks = Picks { null: Some("null".into()), ..Picks::default() };
    let mut source = source(Box::new(BufReader::new(counted)), "-", Format::Ndjson, picks, &tap).unwrap();
    assert!(source.next(&mut Row::default()).is_err() && tap.is_handed_over());
    assert_eq!(*handed.lock().unwrap(), [(2, "[1]".into(), false), (2, String::new(), true)]);
}

/// Something comes when it is shut, before it is handed over: it is not cut behind the end that is said then.
#[test]
fn an_array_is_cut_by_whoever_has_shut_the_input_also_if_more_comes_at_that_moment() {
    let tap = Arc::new(Tap::default());
    let inner = Box::new((&b"[1, 2]\n"[..]).chain(Waiting(tap.clone())));
    let counted = Counted { inner, read: Arc::default(), tap: tap.clone(), is_over: false };
    let input = Box::new(BufReader::new(counted));
    let mut source = source(input, "-", Format::Ndjson, Picks::default(), &tap).unwrap();
    assert!(source.next(&mut Row::default()).is_err() && tap.is_handed_over());
    let mut rows = tap.hand_over().expect("nobody has cut it");
    for value in ["1", "2"] {
        let mut row = Row::default();
        assert_eq!(rows.next(&mut row), Ok(true));
        assert_eq!(row.value, value.as_bytes());
    }
    assert_eq!(rows.next(&mut Row::default()), Ok(false));
}
