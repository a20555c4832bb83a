//! No giants: a file stays under a thousand lines without its tests, a function under seventy.

use crate::source::Source;
use crate::tree::{Problem, Tree};

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.with_ending(".rs").filter(|(path, _)| is_product(path)) {
        // What does not parse is reported by the rule on modules.
        let Ok(source) = Source::parse(text) else { continue };
        let lines = text.lines().count().saturating_sub(source.test_line_count());
        if lines > FILE_LINES_MAX {
            let message =
                format!("{lines} lines without tests, the limit is {FILE_LINES_MAX}: it is two ideas, split it");
            problems.push(Problem::new(path, 0, "file length", message));
        }
        for function in source.functions.iter().filter(|function| !function.in_test) {
            if function.lines > FUNCTION_LINES_MAX {
                let (name, lines) = (&function.name, function.lines);
                let message = format!("`{name}` has {lines} lines, the limit is {FUNCTION_LINES_MAX}: name its parts");
                problems.push(Problem::new(path, function.line, "function length", message));
            }
        }
    }
    problems
}

/// Not a test, bench or example.
pub(crate) fn is_product(path: &str) -> bool {
    let tests = path.ends_with("/tests.rs") || path.contains("/tests/");
    !tests && !path.contains("/benches/") && !path.contains("/examples/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<(&'static str, usize)> {
        let tree = Tree::of(&[("crates/log/src/a.rs", text)]);
        check(&tree).into_iter().map(|problem| (problem.rule, problem.line)).collect()
    }

    #[test]
    fn long_functions_are_found_but_not_in_tests() {
        let body = "    a();\n".repeat(69);
        assert_eq!(rules(&format!("\nfn a() {{\n{body}}}\n")), [("function length", 2)]);
        assert_eq!(rules(&format!("#[cfg(test)]\nmod tests {{\nfn a() {{\n{body}}}\n}}\n")), []);
        let body = "    a();\n".repeat(68);
        assert_eq!(rules(&format!("\nfn a() {{\n{body}}}\n")), []);
    }

    #[test]
    fn long_files_are_found_without_their_tests() {
        assert_eq!(rules(&"const A: u8 = 0;\n".repeat(1001)), [("file length", 0)]);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "const A: u8 = 0;\n".repeat(900));
        assert_eq!(rules(&format!("{}{tests}", "const A: u8 = 0;\n".repeat(1000))), []);
    }

    #[test]
    fn tests_and_examples_may_be_long() {
        let body = "    a();\n".repeat(100);
        let text = format!("fn a() {{\n{body}}}\n");
        for path in ["crates/log/tests/a.rs", "crates/log/examples/a.rs", "crates/log/src/lane/tests.rs"] {
            assert_eq!(check(&Tree::of(&[(path, &text)])), [], "{path}");
        }
    }
}
