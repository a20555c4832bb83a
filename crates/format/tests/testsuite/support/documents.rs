//! Parts of documents that are made from the code and the golden files:
//!
//! ```text
//! <!-- generated: golden record.json "key and value" -->
//! …
//! <!-- /generated -->
//! ```
//! A test demands that what stands between the marks is what would be made; `KERA_UPDATE_DOCS=1` writes it.

use super::golden::{self, Case};
use std::path::Path;

const OPEN: &str = "<!-- generated: ";
const CLOSE: &str = "<!-- /generated -->";

/// Checks or rewrites a document of `docs/`. `make` gives the text for what stands in the mark; golden cases are made
/// here.
pub(crate) fn check(document: &str, make: impl Fn(&str) -> Option<String>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(document);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("docs/{document}: {e}"));
    let mut made = String::new();
    let mut rest = &text[..];
    while let Some(at) = rest.find(OPEN) {
        let (before, after) = rest.split_at(at);
        let (mark, after) = after.split_once(" -->\n").unwrap_or_else(|| panic!("docs/{document}: a mark without end"));
        let what = &mark[OPEN.len()..];
        let Some(close) = after.find(CLOSE) else { panic!("docs/{document}: `{what}` is not closed") };
        let content = golden_case(what).or_else(|| make(what));
        let content = content.unwrap_or_else(|| panic!("docs/{document}: nobody knows how to make `{what}`"));
        made += &format!("{before}{mark} -->\n\n{}\n\n", content.trim_end());
        rest = &after[close..];
    }
    made += rest;
    if std::env::var_os("KERA_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &made).expect("docs/ can be written");
    } else if made != text {
        let line = made.lines().zip(text.lines()).position(|(a, b)| a != b).unwrap_or(0) + 1;
        panic!("docs/{document} is not what the code says from line {line} on; KERA_UPDATE_DOCS=1 rewrites it");
    }
}

fn golden_case(what: &str) -> Option<String> {
    let (file, name) = what.strip_prefix("golden ")?.split_once(' ')?;
    Some(render_case(golden::read(file).case(name.trim_matches('"'))))
}

/// A case as text: where, the bytes, the field, its value.
pub(crate) fn render_case(case: &Case) -> String {
    const PER_LINE: usize = 12;
    let mut out = String::from("```text\n  at  bytes                                field = value\n");
    for field in case.fields.iter().filter(|field| !field.bytes.is_empty()) {
        let hex: Vec<String> = field.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        for (i, line) in hex.chunks(PER_LINE).enumerate() {
            let at = field.at + i * PER_LINE;
            let is_hex = field.kind == "bytes" || field.kind.ends_with(" bytes");
            let value = if is_hex { String::new() } else { format!(" = {}", field.value) };
            let what = if i == 0 { format!("{}{value}", field.name) } else { String::new() };
            out += format!("{at:>4}  {:<35}  {what}", line.join(" ")).trim_end();
            out.push('\n');
        }
    }
    out + "```"
}
