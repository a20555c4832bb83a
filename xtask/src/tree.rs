//! The files that are checked, in memory, and what is found in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fmt, fs, io};

/// Something that breaks a rule.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Problem {
    /// The file, from the root.
    pub path: String,
    /// Its line, from 1; 0: the whole file.
    pub line: usize,
    /// The rule's short name.
    pub rule: &'static str,
    /// What is wrong and what to do instead.
    pub message: String,
}

impl Problem {
    pub(crate) fn new(path: &str, line: usize, rule: &'static str, message: impl Into<String>) -> Problem {
        Problem { path: path.to_owned(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": [{}] {}", self.rule, self.message)
    }
}

/// The text files of the workspace by their paths from the root, the names of all others, and the crates' metadata.
#[derive(Default, Debug)]
pub struct Tree {
    texts: BTreeMap<String, String>,
    others: Vec<String>,
    metadata: serde_json::Value,
}

impl Tree {
    /// Reads the workspace that this program was built from: what git tracks or would track.
    pub fn of_workspace() -> io::Result<Tree> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let root = root.parent().ok_or_else(|| io::Error::other("xtask has no folder above it"))?;
        let mut tree = Tree::default();
        for path in tracked(root)? {
            match fs::read_to_string(root.join(&path)) {
                Ok(text) => drop(tree.texts.insert(path, text)),
                // Deleted and not committed yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(_) => tree.others.push(path),
            }
        }
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
            .current_dir(root)
            .output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("cargo metadata failed: {text}")));
        }
        tree.metadata = serde_json::from_slice(&output.stdout).map_err(io::Error::other)?;
        Ok(tree)
    }

    /// A tree for a rule's own tests.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        let texts = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Tree { texts, ..Tree::default() }
    }

    #[cfg(test)]
    pub(crate) fn with_metadata(metadata: serde_json::Value) -> Tree {
        Tree { metadata, ..Tree::default() }
    }

    /// All text files: path from the root, contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Text files with this ending.
    pub(crate) fn with_ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter(move |(path, _)| path.ends_with(ending))
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }

    /// Whether a file or folder is there.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let below = format!("{path}/");
        let mut all = self.texts.keys().chain(&self.others);
        all.any(|file| file == path || file.starts_with(&below))
    }

    pub(crate) fn metadata(&self) -> &serde_json::Value {
        &self.metadata
    }
}

/// What git tracks or would track; without git, every file outside the folders that only builds make.
fn tracked(root: &Path) -> io::Result<Vec<String>> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output();
    if let Ok(output) = listed
        && output.status.success()
        && !output.stdout.is_empty()
    {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        return Ok(text.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect());
    }
    let mut found = Vec::new();
    walk(root, "", &mut found)?;
    Ok(found)
}

fn walk(root: &Path, below: &str, found: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if matches!(name.as_str(), "target" | ".git" | "kera-data" | "results") {
            continue;
        }
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        if entry.file_type()?.is_dir() {
            walk(root, &path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
