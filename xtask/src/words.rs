//! Words that do not belong into the tree: notes to oneself, names that age, paths of somebody's machine, what a merge left to decide.

use crate::tree::{Problem, Tree};

/// What to look for, as a whole word, and why it is not there. In code, comments and documents.
const WORDS: [(&str, &str); 8] = [
    ("FIXME", "do it, or say in plain words what does not work"),
    ("TODO", "do it, or say in plain words what does not work"),
    ("XXX", "do it, or say in plain words what does not work"),
    ("HACK", "say why it must be so"),
    ("legacy", "say what it is; history lives in commits"),
    ("/home/", "a path of one machine helps nobody else"),
    ("/root/", "a path of one machine helps nobody else"),
    ("/work/", "a path of one machine helps nobody else"),
];

/// What a line begins with where a merge has left it to somebody which side holds, in any text file.
const MERGE_MARKS: [&str; 2] = ["<<<<<<< ", ">>>>>>> "];

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.files() {
        for (line, number) in text.lines().zip(1..) {
            if let Some(mark) = MERGE_MARKS.iter().find(|mark| line.starts_with(**mark)) {
                let message = format!("`{}`: a merge is not done here; keep what holds of its sides", mark.trim_end());
                problems.push(Problem::new(path, number, "merge", message));
            }
        }
    }
    for (path, text) in tree.files().filter(|(path, _)| is_checked(path)) {
        for (line, number) in text.lines().zip(1..) {
            for (word, reason) in WORDS {
                if has_word(line, word) {
                    problems.push(Problem::new(path, number, "words", format!("`{word}`: {reason}")));
                }
            }
        }
    }
    problems
}

/// Everything that is written by hand, but not this list.
fn is_checked(path: &str) -> bool {
    let endings = [".rs", ".md", ".toml", ".sh", ".py", "Makefile", ".ci/run"];
    endings.iter().any(|ending| path.ends_with(ending)) && path != "xtask/src/words.rs" && !path.starts_with("data/")
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |character: Option<char>| character.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        // A path may have anything behind it, and starts a word.
        if word.starts_with('/') {
            !is_part(before) && before != Some('.')
        } else {
            !is_part(before) && !is_part(after)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<usize> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn words_are_found_whole_and_with_their_line() {
        assert_eq!(found("crates/log/src/a.rs", "fn a() {}\n// TODO more\nlet legacy_x = XXXL;\n"), [2]);
        assert_eq!(found("docs/a.md", "see /home/me/x\nsee target/home/x\n"), [1]);
    }

    #[test]
    fn what_a_merge_left_to_decide_is_found_in_any_file() {
        let text = "<<<<<<< HEAD\na\n=======\nb\n>>>>>>> other\n";
        for path in ["crates/log/src/a.rs", "spec/a.json", "data/a.csv"] {
            assert_eq!(found(path, text), [1, 5], "{path}");
        }
        assert_eq!(found("docs/a.md", "A title\n=======\na <<<<<<< b\n<<<<<<<<\n"), [0; 0]);
    }

    #[test]
    fn data_and_other_files_are_left_alone() {
        assert_eq!(found("data/a.md", "TODO"), [0; 0]);
        assert_eq!(found("spec/a.json", "TODO"), [0; 0]);
    }
}
