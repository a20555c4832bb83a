//! Every Rust file belongs to a module tree and says at its top what it is for.

use std::collections::BTreeSet;

use crate::source::{ModuleFile, Source};
use crate::tree::{Problem, Tree};

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut reached = BTreeSet::new();
    for (path, text) in tree.with_ending(".rs") {
        if let Err((line, error)) = Source::parse(text) {
            problems.push(Problem::new(path, line, "syntax", error));
        }
        if !has_module_doc(text) && !path.ends_with("/tests.rs") {
            let message = "no `//!` at the top: say what it is for, who calls it, on which thread, what it must not do";
            problems.push(Problem::new(path, 1, "module doc", message));
        }
        if is_root(path) {
            reach(tree, path, &mut reached);
        }
    }
    for (path, _) in tree.with_ending(".rs").filter(|(path, _)| !reached.contains(*path)) {
        problems.push(Problem::new(path, 0, "dead file", "no module names it: name it or remove it"));
    }
    problems
}

fn has_module_doc(text: &str) -> bool {
    text.lines().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with("//!"))
}

/// A file that cargo compiles by itself.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let Some((name, folders)) = parts.split_last() else { return false };
    match folders.last() {
        Some(&"src") => matches!(*name, "lib.rs" | "main.rs"),
        Some(&("tests" | "examples" | "benches" | "bin" | "fuzz_targets")) => !folders.ends_with(&["src", "tests"]),
        // A test or example may be a folder.
        _ => {
            *name == "build.rs"
                || (*name == "main.rs" && folders.iter().any(|f| matches!(*f, "tests" | "examples" | "bin")))
        }
    }
}

/// Adds `path` and every file that its modules name.
fn reach(tree: &Tree, path: &str, reached: &mut BTreeSet<String>) {
    let Some(text) = tree.text(path) else { return };
    if !reached.insert(path.to_owned()) {
        return;
    }
    let Ok(source) = Source::parse(text) else { return };
    for module in &source.modules {
        for candidate in candidates(path, module) {
            reach(tree, &candidate, reached);
        }
    }
}

/// Where the file of a module may be.
fn candidates(path: &str, module: &ModuleFile) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    if let Some(given) = &module.path {
        return vec![format!("{folder}/{given}")];
    }
    let own = is_root(path) || name == "mod.rs";
    let base = if own { folder.to_owned() } else { format!("{folder}/{}", name.trim_end_matches(".rs")) };
    let below = module.names.join("/");
    vec![format!("{base}/{below}.rs"), format!("{base}/{below}/mod.rs")]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(files: &[(&str, &str)]) -> Vec<(String, &'static str)> {
        check(&Tree::of(files)).into_iter().map(|problem| (problem.path, problem.rule)).collect()
    }

    #[test]
    fn files_that_no_module_names_are_found() {
        let files = [
            ("crates/log/src/lib.rs", "//! It.\nmod lane;\nmod store { mod disk; }\n#[cfg(test)]\nmod tests;\n"),
            ("crates/log/src/lane.rs", "//! It.\nmod deep;\n"),
            ("crates/log/src/lane/deep.rs", "//! It.\n"),
            ("crates/log/src/store/disk/mod.rs", "//! It.\nmod inner;\n"),
            ("crates/log/src/store/disk/inner.rs", "//! It.\n"),
            ("crates/log/src/tests.rs", "//! It.\n"),
            ("crates/log/src/dead.rs", "//! It.\n"),
            ("crates/log/tests/a.rs", "//! It.\nmod support;\n"),
            ("crates/log/tests/support/mod.rs", "//! It.\n"),
            ("crates/log/tests/support/dead.rs", "//! It.\n"),
            ("crates/log/tests/model/main.rs", "//! It.\nmod check;\n"),
            ("crates/log/tests/model/check.rs", "//! It.\n"),
            ("crates/log/examples/b.rs", "//! It.\n"),
            ("crates/log/src/bin/tool/main.rs", "//! It.\nmod part;\n"),
            ("crates/log/src/bin/tool/part.rs", "//! It.\n"),
        ];
        let dead = |path: &str| (path.to_owned(), "dead file");
        assert_eq!(rules(&files), [dead("crates/log/src/dead.rs"), dead("crates/log/tests/support/dead.rs")]);
    }

    #[test]
    fn files_without_a_module_doc_are_found() {
        let files = [("crates/log/src/lib.rs", "// It.\nmod a;\n"), ("crates/log/src/a.rs", "\n//! It.\n")];
        assert_eq!(rules(&files), [("crates/log/src/lib.rs".to_owned(), "module doc")]);
    }
}
