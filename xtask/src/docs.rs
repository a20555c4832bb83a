//! Documents tell the truth: paths and links in them exist, and so do the functions of the two paths through the code.

use crate::source::Source;
use crate::tree::{Problem, Tree};

/// Folders whose paths are checked where they are quoted.
const FOLDERS: [&str; 8] = ["crates/", "docs/", "spec/", "xtask/", "peers/", "data/", ".ci/", "fuzz/"];
/// Documents that name a file and the functions of it that a write or a read goes through, a step per line.
const PATHS: [&str; 2] = ["docs/write-path.md", "docs/read-path.md"];
/// Steps of such a document at most.
const STEPS_MAX: usize = 7;

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.with_ending(".md") {
        let mut fenced = false;
        for (line, number) in text.lines().zip(1..) {
            fenced ^= line.trim_start().starts_with("```");
            if fenced {
                continue;
            }
            check_quotes(tree, path, number, line, &mut problems);
            check_links(tree, path, number, line, &mut problems);
        }
    }
    for (path, text) in tree.with_ending(".rs") {
        // The rules' own tests plant paths that are not there.
        for (line, number) in text.lines().zip(1..).filter(|_| !path.starts_with("xtask/src/")) {
            if let Some(at) = line.find("//") {
                check_quotes(tree, path, number, &line[at..], &mut problems);
            }
        }
    }
    for path in PATHS {
        check_steps(tree, path, &mut problems);
    }
    problems
}

/// The texts between backticks.
fn quotes(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn is_path(quote: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    FOLDERS.iter().any(|folder| quote.starts_with(folder)) && quote.chars().all(plain)
}

fn check_quotes(tree: &Tree, path: &str, number: usize, line: &str, problems: &mut Vec<Problem>) {
    for quote in quotes(line).filter(|quote| is_path(quote)) {
        if !tree.has(quote) {
            problems.push(Problem::new(path, number, "paths", format!("`{quote}` is not there")));
        }
    }
}

fn check_links(tree: &Tree, path: &str, number: usize, line: &str, problems: &mut Vec<Problem>) {
    for (at, _) in line.match_indices("](") {
        let target = line[at + 2..].split([')', '#', ' ']).next().unwrap_or_default();
        if target.is_empty() || target.contains(':') || target.starts_with('<') {
            continue;
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if !resolve(folder, target).is_some_and(|target| target.is_empty() || tree.has(&target)) {
            problems.push(Problem::new(path, number, "links", format!("`{target}` is not there")));
        }
    }
}

/// `target` as seen from `folder`, from the root; `None` if it leaves the root.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = if target.starts_with('/') { Vec::new() } else { folder.split('/').collect() };
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/").trim_start_matches('/').to_owned())
}

/// Steps are the lines of a table or list that quote a Rust file; the functions that the same line quotes as
/// `Type::function` or `function()` must be in it.
fn check_steps(tree: &Tree, path: &str, problems: &mut Vec<Problem>) {
    let Some(text) = tree.text(path) else {
        problems.push(Problem::new(path, 0, "steps", "is missing: list the steps with file and function"));
        return;
    };
    let mut steps = 0;
    for (line, number) in text.lines().zip(1..) {
        let Some(file) = quotes(line).find(|quote| is_path(quote) && quote.ends_with(".rs")) else { continue };
        steps += usize::from(line.starts_with('|') || line.starts_with(|c: char| c.is_ascii_digit()));
        let Some(source) = tree.text(file).and_then(|text| Source::parse(text).ok()) else { continue };
        for quote in quotes(line) {
            let name = quote.trim_end_matches("()");
            let (owner, function) = name.rsplit_once("::").map_or((None, name), |(owner, name)| (Some(owner), name));
            if (owner.is_none() && name == quote) || !name.chars().all(|c| c.is_alphanumeric() || "_:".contains(c)) {
                continue;
            }
            let owner = owner.map(|owner| owner.rsplit("::").next().unwrap_or(owner));
            if !has_function(&source, owner, function) {
                problems.push(Problem::new(path, number, "steps", format!("`{quote}` is not in `{file}`")));
            }
        }
    }
    if steps == 0 || steps > STEPS_MAX {
        let message = format!("{steps} steps with a file and function, allowed are 1 to {STEPS_MAX}");
        problems.push(Problem::new(path, 0, "steps", message));
    }
}

fn has_function(source: &Source, owner: Option<&str>, name: &str) -> bool {
    let declared = (0..source.tokens.len()).any(|at| source.is_at(at, &["fn", name]));
    declared && owner.is_none_or(|owner| source.tokens.iter().any(|token| token.text == owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::of(files);
        let problems = check(&tree).into_iter();
        problems
            .filter(|p| !(p.rule == "steps" && p.line == 0))
            .map(|p| format!("{}:{} {}", p.path, p.line, p.message))
            .collect()
    }

    #[test]
    fn paths_that_are_not_there_are_found_in_documents_and_comments() {
        let files = [
            ("docs/a.md", "see `docs/a.md` and `docs/b.md`\n`crates/` `docs/<name>.md` `kera serve`\n"),
            ("crates/log/src/lib.rs", "//! See `docs/notes/x.md`.\nconst A: &str = \"`docs/y.md`\";\n"),
        ];
        let expected =
            ["docs/a.md:1 `docs/b.md` is not there", "crates/log/src/lib.rs:1 `docs/notes/x.md` is not there"];
        assert_eq!(messages(&files), expected);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "[a](a.md) [b](formats/b.md#x) [up](../README.md) [web](https://x.y/z) [part](#here)\n[no](c.md)\n```\n[no](d.md)\n```\n";
        let files = [("docs/a.md", text), ("docs/formats/b.md", ""), ("README.md", "")];
        assert_eq!(messages(&files), ["docs/a.md:2 `c.md` is not there"]);
    }

    #[test]
    fn functions_of_the_paths_must_exist() {
        let steps = "| 1 | `crates/log/src/lane.rs` | `Lane::append`, `Lane::gone`, `copy()`, `lost()` |\n";
        let files = [
            ("docs/write-path.md", steps),
            ("docs/read-path.md", "1. `crates/log/src/lane.rs`: `Lane::append`\n"),
            ("crates/log/src/lane.rs", "struct Lane; impl Lane { fn append() {} } fn copy() {}"),
        ];
        let expected = [
            "docs/write-path.md:1 `Lane::gone` is not in `crates/log/src/lane.rs`",
            "docs/write-path.md:1 `lost()` is not in `crates/log/src/lane.rs`",
        ];
        assert_eq!(messages(&files), expected);
    }

    #[test]
    fn a_path_through_the_code_has_one_to_seven_steps() {
        let step = "| `crates/a/src/lib.rs` | `a()` |\n";
        let count = |steps: usize| {
            let text = step.repeat(steps);
            let files = [("docs/write-path.md", text.as_str()), ("crates/a/src/lib.rs", "//! It.\nfn a() {}")];
            check(&Tree::of(&files)).iter().filter(|p| p.path == "docs/write-path.md").count()
        };
        assert_eq!([count(0), count(1), count(7), count(8)], [1, 0, 0, 1]);
    }
}
