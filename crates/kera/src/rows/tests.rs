use super::*;

fn rows_of(
    text: &'static str,
    path: &str,
    format: Format,
    picks: Picks,
) -> Result<Vec<Result<Row, RowError>>, CliError> {
    let mut source = source(Box::new(text.as_bytes()), path, format, picks)?;
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
    Picks { key: some(key), timestamp: some(timestamp) }
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
