//! Golden bytes: `spec/*.json`, one file per structure, read by the tests of every language.
//!
//! A test builds the cases of a file from code and demands that the file says the same, then decodes the file's bytes.
//! `KERA_UPDATE_GOLDEN=1` writes the files from the code instead: only for a structure that nobody stores or sends yet.

use kera_format::FormatError;
use serde_json::Value;
use std::path::PathBuf;

/// One field of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    pub(crate) at: usize,
    pub(crate) name: String,
    pub(crate) kind: String,
    /// JSON.
    pub(crate) value: String,
    pub(crate) bytes: Vec<u8>,
}

/// Bytes that are right, field by field.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) about: String,
    /// Whether encoders must give these very bytes; otherwise only decoders are held to them.
    pub(crate) encoders: bool,
    pub(crate) fields: Vec<Field>,
}

/// Bytes that must be refused.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// The message that the Rust reader gives.
    pub(crate) error: String,
}

/// The contents of one file.
#[derive(Clone, Debug)]
pub(crate) struct Golden {
    pub(crate) structure: String,
    pub(crate) document: String,
    pub(crate) cases: Vec<Case>,
    pub(crate) refused: Vec<Refused>,
}

impl Case {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.fields.iter().flat_map(|field| field.bytes.iter().copied()).collect()
    }

    /// The bytes of one field.
    pub(crate) fn field(&self, name: &str) -> &Field {
        let found = self.fields.iter().find(|field| field.name == name);
        found.unwrap_or_else(|| panic!("case `{}` has no field `{name}`", self.name))
    }
}

impl Golden {
    pub(crate) fn case(&self, name: &str) -> &Case {
        let found = self.cases.iter().find(|case| case.name == name);
        found.unwrap_or_else(|| panic!("{} has no case `{name}`", self.structure))
    }

    /// Whether a reader refuses with the message of the file whatever the file says is refused.
    pub(crate) fn check_refused<T>(&self, decode: impl Fn(&[u8]) -> Result<T, FormatError>) {
        for refused in &self.refused {
            let error = decode(&refused.bytes).err().map(|error| error.to_string());
            assert_eq!(error.as_ref(), Some(&refused.error), "{}", refused.name);
        }
    }
}

/// Bytes by name with the message that a reader refuses each with.
pub(crate) fn refused_by<T>(
    cases: Vec<(&str, Vec<u8>)>,
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
) -> Vec<Refused> {
    let refuse = |(name, bytes): (&str, Vec<u8>)| {
        let error = decode(&bytes).err().unwrap_or_else(|| panic!("`{name}` is not refused")).to_string();
        Refused { name: name.into(), bytes, error }
    };
    cases.into_iter().map(refuse).collect()
}

/// Takes encoded bytes apart by a list of names and sizes, independently of the code that wrote them.
pub(crate) struct Layout<'a> {
    bytes: &'a [u8],
    at: usize,
    fields: Vec<Field>,
}

impl<'a> Layout<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Layout<'a> {
        Layout { bytes, at: 0, fields: Vec::new() }
    }

    /// A record with one key, as the system's own streams have them, up to its value.
    pub(crate) fn of_record(bytes: &'a [u8]) -> Layout<'a> {
        let key_bytes = usize::from(bytes[8]);
        let head = Layout::of(bytes).u32("length").u8("flags").u8("key_count").u16("value_offset");
        head.u16("key length").text("key", key_bytes)
    }

    fn add(mut self, name: &str, kind: &str, size: usize, value: impl Fn(&[u8]) -> String) -> Self {
        let bytes = &self.bytes[self.at..self.at + size];
        let (at, value) = (self.at, value(bytes));
        self.fields.push(Field { at, name: name.into(), kind: kind.into(), value, bytes: bytes.to_vec() });
        self.at += size;
        self
    }

    fn number(bytes: &[u8]) -> u64 {
        bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
    }

    pub(crate) fn u8(self, name: &str) -> Self {
        self.add(name, "u8", 1, |b| Self::number(b).to_string())
    }
    pub(crate) fn u16(self, name: &str) -> Self {
        self.add(name, "u16", 2, |b| Self::number(b).to_string())
    }
    pub(crate) fn u32(self, name: &str) -> Self {
        self.add(name, "u32", 4, |b| Self::number(b).to_string())
    }
    pub(crate) fn u64(self, name: &str) -> Self {
        self.add(name, "u64", 8, |b| Self::number(b).to_string())
    }
    pub(crate) fn i64(self, name: &str) -> Self {
        self.add(name, "i64", 8, |b| (Self::number(b) as i64).to_string())
    }
    /// ASCII.
    pub(crate) fn text(self, name: &str, size: usize) -> Self {
        self.add(name, "text", size, |b| json_string(std::str::from_utf8(b).expect("ASCII")))
    }
    pub(crate) fn bytes(self, name: &str, size: usize) -> Self {
        self.add(name, "bytes", size, |b| json_string(&hex(b)))
    }
    /// Everything that is left.
    pub(crate) fn rest(self, name: &str) -> Self {
        let size = self.bytes.len() - self.at;
        self.bytes(name, size)
    }

    pub(crate) fn case(self, name: &str, about: &str) -> Case {
        assert_eq!(self.at, self.bytes.len(), "case `{name}` does not name all of its bytes");
        Case { name: name.into(), about: about.into(), encoders: true, fields: self.fields }
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "hex of odd length: {text}");
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

pub(crate) fn json_string(text: &str) -> String {
    Value::from(text).to_string()
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../spec").join(file)
}

fn render(golden: &Golden) -> String {
    let mut out = String::from("{\n");
    out += &format!("  \"structure\": {},\n", json_string(&golden.structure));
    out += &format!("  \"document\": {},\n", json_string(&golden.document));
    let cases: Vec<String> = golden.cases.iter().map(render_case).collect();
    out += &format!("  \"cases\": [\n{}\n  ]", cases.join(",\n"));
    if !golden.refused.is_empty() {
        let refused: Vec<String> = golden.refused.iter().map(render_refused).collect();
        out += &format!(",\n  \"refused\": [\n{}\n  ]", refused.join(",\n"));
    }
    out + "\n}\n"
}

fn render_case(case: &Case) -> String {
    let field = |field: &Field| {
        let Field { at, name, kind, value, bytes } = field;
        let (name, kind, hex) = (json_string(name), json_string(kind), hex(bytes));
        format!(
            "        {{ \"at\": {at}, \"name\": {name}, \"kind\": {kind}, \"value\": {value}, \"hex\": \"{hex}\" }}"
        )
    };
    let fields: Vec<String> = case.fields.iter().map(field).collect();
    let fields = if fields.is_empty() { "[]".into() } else { format!("[\n{}\n      ]", fields.join(",\n")) };
    format!(
        "    {{\n      \"name\": {},\n      \"about\": {},\n      \"encoders\": {},\n      \"fields\": {},\n      \"hex\": \"{}\"\n    }}",
        json_string(&case.name),
        json_string(&case.about),
        case.encoders,
        fields,
        hex(&case.bytes())
    )
}

fn render_refused(refused: &Refused) -> String {
    format!(
        "    {{ \"name\": {}, \"error\": {},\n      \"hex\": \"{}\" }}",
        json_string(&refused.name),
        json_string(&refused.error),
        hex(&refused.bytes)
    )
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("`{key}` is missing in {value}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn read_case(value: &Value) -> Case {
    let field = |value: &Value| Field {
        at: value["at"].as_u64().expect("at") as usize,
        name: text(value, "name").into(),
        kind: text(value, "kind").into(),
        value: value["value"].to_string(),
        bytes: unhex(text(value, "hex")),
    };
    let case = Case {
        name: text(value, "name").into(),
        about: text(value, "about").into(),
        encoders: value["encoders"].as_bool().expect("encoders"),
        fields: list(value, "fields").iter().map(field).collect(),
    };
    assert_eq!(hex(&case.bytes()), text(value, "hex"), "case `{}`: its fields are not its bytes", case.name);
    let mut at = 0;
    for field in &case.fields {
        assert_eq!(field.at, at, "case `{}`: field `{}` is not where it says", case.name, field.name);
        at += field.bytes.len();
    }
    case
}

/// Reads a file of `spec/`.
pub(crate) fn read(file: &str) -> Golden {
    let path = path(file);
    let text_read = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e}; KERA_UPDATE_GOLDEN=1 writes it", path.display());
    });
    let value: Value = serde_json::from_str(&text_read).unwrap_or_else(|e| panic!("{file}: {e}"));
    let refused = |value: &Value| Refused {
        name: text(value, "name").into(),
        bytes: unhex(text(value, "hex")),
        error: text(value, "error").into(),
    };
    Golden {
        structure: text(&value, "structure").into(),
        document: text(&value, "document").into(),
        cases: list(&value, "cases").iter().map(read_case).collect(),
        refused: list(&value, "refused").iter().map(refused).collect(),
    }
}

/// Demands that the file says what the code does, and returns what the file says.
pub(crate) fn check(file: &str, code: &Golden) -> Golden {
    if std::env::var_os("KERA_UPDATE_GOLDEN").is_some() {
        let path = path(file);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("spec/ can be written");
        std::fs::write(&path, render(code)).expect("spec/ can be written");
    }
    let golden = read(file);
    let names = |golden: &Golden| golden.cases.iter().map(|case| case.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&golden), names(code), "{file}: the cases");
    for (in_file, in_code) in golden.cases.iter().zip(&code.cases) {
        assert_eq!(difference(in_file, in_code), None, "{file}: case `{}`", in_file.name);
    }
    let names = |golden: &Golden| golden.refused.iter().map(|refused| refused.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&golden), names(code), "{file}: the refused bytes");
    for (in_file, in_code) in golden.refused.iter().zip(&code.refused) {
        assert_eq!(hex(&in_file.bytes), hex(&in_code.bytes), "{file}: refused `{}`", in_file.name);
        assert_eq!(in_file.error, in_code.error, "{file}: refused `{}`", in_file.name);
    }
    golden
}

/// The same for a structure of which all cases are decoded: each gives what `decoded` says, in their order.
pub(crate) fn check_decoded<T: PartialEq + std::fmt::Debug>(
    file: &str,
    code: &Golden,
    decode: impl Fn(&[u8]) -> Result<T, FormatError>,
    decoded: impl IntoIterator<Item = T>,
) {
    let golden = check(file, code);
    let mut decoded = decoded.into_iter();
    for case in &golden.cases {
        assert_eq!(decode(&case.bytes()).map(Some), Ok(decoded.next()), "{}", case.name);
    }
    assert_eq!(decoded.next(), None, "{file}: more is expected than there are cases");
    golden.check_refused(decode);
}

/// In which field the bytes of a case in a file are not what the code writes.
pub(crate) fn difference(in_file: &Case, in_code: &Case) -> Option<String> {
    if !in_code.encoders {
        return None;
    }
    for (f, c) in in_file.fields.iter().zip(&in_code.fields) {
        if f != c {
            return Some(format!("field `{}`: the file says {f:?}, the code {c:?}", f.name));
        }
    }
    let (f, c) = (in_file.fields.len(), in_code.fields.len());
    (f != c).then(|| format!("the file has {f} fields, the code {c}"))
}

/// A record with one key, as the system's own streams have them.
pub(crate) fn record(key: &str, value: Option<&[u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    kera_format::Record { keys: &[key.as_bytes()], value, ..Default::default() }.encode(&mut bytes);
    bytes
}

/// The bytes of the records that `push` puts into a chunk.
pub(crate) fn pushed(push: impl FnOnce(&mut kera_format::ChunkBuilder)) -> Vec<u8> {
    let mut chunk = kera_format::ChunkBuilder::default();
    push(&mut chunk);
    let sealed = chunk.seal(&Default::default(), Default::default()).expect("a chunk");
    kera_format::ChunkView::parse(&sealed).expect("a chunk").payload().to_vec()
}
