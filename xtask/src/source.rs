//! A Rust file as tokens with their places: what the rules look at instead of text, so that comments and strings do
//! not count.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// One token. Groups are there as their opening and closing delimiters.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    /// An identifier, a literal, one punctuation character, or a delimiter.
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
    /// Within something that only tests have.
    pub(crate) in_test: bool,
}

/// A function and the lines that it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
    pub(crate) in_test: bool,
}

/// `mod name;`, a file of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ModuleFile {
    /// Names of the inline modules around it, then its own.
    pub(crate) names: Vec<String>,
    /// From `#[path = "…"]`.
    pub(crate) path: Option<String>,
    pub(crate) in_test: bool,
}

/// A file that was read.
#[derive(Default, Debug)]
pub(crate) struct Source {
    pub(crate) tokens: Vec<Token>,
    pub(crate) functions: Vec<Function>,
    pub(crate) modules: Vec<ModuleFile>,
    /// Lines that only tests have: from line, up to and including line.
    pub(crate) test_lines: Vec<(usize, usize)>,
}

/// What is known of the item that is being walked: its attributes, and what it declares. It ends with a group in braces
/// or with a semicolon.
#[derive(Default)]
struct Item {
    /// The line of `#[cfg(test)]` or `#[test]`.
    test_from: Option<usize>,
    path: Option<String>,
    function: Option<(String, usize)>,
    module: Option<String>,
}

impl Item {
    fn attribute(&mut self, stream: &TokenStream, line: usize) {
        if is_test_attribute(stream) {
            self.test_from.get_or_insert(line);
        }
        if let Some(path) = path_attribute(stream) {
            self.path = Some(path);
        }
    }
}

impl Source {
    /// Reads a file. An error, with its line, if it is not Rust.
    pub(crate) fn parse(text: &str) -> Result<Source, (usize, String)> {
        let stream: TokenStream =
            text.parse().map_err(|error: proc_macro2::LexError| (error.span().start().line, error.to_string()))?;
        let mut source = Source::default();
        source.items(stream, false, &mut Vec::new());
        Ok(source)
    }

    fn push(&mut self, text: String, line: usize, in_test: bool) {
        self.tokens.push(Token { text, line, in_test });
    }

    /// Walks the trees of one group.
    fn items(&mut self, stream: TokenStream, in_test: bool, around: &mut Vec<String>) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let mut item = Item::default();
        for (at, tree) in trees.iter().enumerate() {
            let line = tree.span().start().line;
            let tested = in_test || item.test_from.is_some();
            match tree {
                TokenTree::Group(group) => {
                    if is_punct(trees.get(at.wrapping_sub(1)), '#') {
                        item.attribute(&group.stream(), line);
                    }
                    self.group(group, in_test, &mut item, around);
                }
                TokenTree::Punct(punct) => {
                    self.push(punct.as_char().to_string(), line, tested);
                    if punct.as_char() == ';' {
                        if let Some(name) = item.module.take() {
                            let names = around.iter().cloned().chain([name]).collect();
                            self.modules.push(ModuleFile { names, path: item.path.take(), in_test: tested });
                        }
                        self.end(&mut item, line);
                    }
                }
                TokenTree::Ident(ident) => {
                    let text = ident.to_string();
                    if let Some(TokenTree::Ident(next)) = trees.get(at + 1) {
                        match text.as_str() {
                            "fn" => item.function = Some((next.to_string(), line)),
                            "mod" => item.module = Some(next.to_string()),
                            _ => {}
                        }
                    }
                    self.push(text, line, tested);
                }
                TokenTree::Literal(literal) => self.push(literal.to_string(), line, tested),
            }
        }
    }

    /// A group: what is in it, and the end of an item if it is in braces.
    fn group(&mut self, group: &Group, in_test: bool, item: &mut Item, around: &mut Vec<String>) {
        let (open, close) = delimiters(group.delimiter());
        let (first, last) = (group.span_open().start().line, group.span_close().end().line);
        let in_test = in_test || item.test_from.is_some();
        let braces = group.delimiter() == Delimiter::Brace;
        let module = item.module.take().filter(|_| braces);
        let inside = module.is_some();
        around.extend(module);
        self.push(open.into(), first, in_test);
        self.items(group.stream(), in_test, around);
        self.push(close.into(), last, in_test);
        if inside {
            around.pop();
        }
        if braces {
            if let Some((name, line)) = item.function.take() {
                self.functions.push(Function { name, line, lines: last - line + 1, in_test });
            }
            self.end(item, last);
        }
    }

    /// The item ends in `line`, and with it what its attributes said.
    fn end(&mut self, item: &mut Item, line: usize) {
        if let Some(from) = item.test_from.take() {
            self.test_lines.push((from, line));
        }
        *item = Item::default();
    }

    /// Whether the tokens from `at` on are these.
    pub(crate) fn is_at(&self, at: usize, texts: &[&str]) -> bool {
        self.tokens.get(at..at + texts.len()).is_some_and(|found| found.iter().zip(texts).all(|(f, t)| f.text == *t))
    }

    /// Lines that only tests have.
    pub(crate) fn test_line_count(&self) -> usize {
        self.test_lines.iter().map(|(from, to)| to - from + 1).sum()
    }
}

fn delimiters(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

fn is_punct(tree: Option<&TokenTree>, character: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

/// `test`, `cfg(test)`, `tokio::test`, `cfg(all(test, …))`; not `cfg(not(test))`.
fn is_test_attribute(stream: &TokenStream) -> bool {
    let text: String = stream.to_string().split_whitespace().collect();
    text == "test"
        || text.ends_with("::test")
        || text.contains("::test(")
        || text == "cfg(test)"
        || text.starts_with("cfg(all(test")
        || text.starts_with("cfg(any(test")
}

fn path_attribute(stream: &TokenStream) -> Option<String> {
    let text = stream.to_string();
    let value = text.strip_prefix("path = ").or_else(|| text.strip_prefix("path="))?;
    Some(value.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_with_their_lines_and_what_only_tests_have() {
        let text = "fn a() {\n    b();\n}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn c() {\n    }\n}\ntrait T { fn d(); }\n";
        let source = Source::parse(text).expect("rust");
        let found: Vec<_> = source.functions.iter().map(|f| (f.name.as_str(), f.line, f.lines, f.in_test)).collect();
        assert_eq!(found, [("a", 1, 3, false), ("c", 8, 2, true)]);
        assert!(source.test_lines.contains(&(5, 10)));
    }

    #[test]
    fn modules_with_files_of_their_own_are_found() {
        let text = "mod a;\npub mod b { mod c; }\n#[cfg(test)]\nmod t;\n#[path = \"x.rs\"]\nmod y;\nmod z {}\n";
        let modules = Source::parse(text).expect("rust").modules;
        let names: Vec<_> = modules.iter().map(|m| (m.names.join("::"), m.in_test, m.path.as_deref())).collect();
        let expected = [("a", false, None), ("b::c", false, None), ("t", true, None), ("y", false, Some("x.rs"))];
        assert_eq!(names, expected.map(|(name, test, path)| (name.to_owned(), test, path)));
    }

    #[test]
    fn comments_and_strings_are_no_tokens() {
        let source = Source::parse("// todo!()\nfn a() { let s = \"todo!()\"; }\n").expect("rust");
        assert!(!source.tokens.iter().any(|token| token.text == "todo"));
    }

    #[test]
    fn what_is_not_rust_is_an_error_with_its_line() {
        assert_eq!(Source::parse("fn a() {\n\n").map(drop).map_err(|(line, _)| line > 0), Err(true));
    }
}
