//! What `cargo xtask tidy` checks: the rules of the house that neither compiler nor lints know.
//!
//! Each rule is a module with one `check` over a [`Tree`] of files in memory, so that its own tests plant violations
//! without touching a disk. A [`Problem`] says where, which rule, and what to do instead.

mod arrows;
mod banned;
mod docs;
mod lengths;
mod modules;
mod source;
mod tree;
mod words;

pub use tree::{Problem, Tree};

/// Runs all rules. Problems come in the order of their files.
pub fn tidy(tree: &Tree) -> Vec<Problem> {
    let rules = [arrows::check, banned::check, docs::check, lengths::check, modules::check, words::check];
    let mut problems: Vec<Problem> = rules.iter().flat_map(|rule| rule(tree)).collect();
    problems.sort();
    problems
}
