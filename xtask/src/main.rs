//! The house's own tools: `cargo xtask tidy` checks what compiler and lints do not.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy(),
        _ => {
            eprintln!("usage: cargo xtask tidy    checks the rules of CONTRIBUTING.md on the whole tree");
            ExitCode::from(2)
        }
    }
}

fn tidy() -> ExitCode {
    let tree = match xtask::Tree::of_workspace() {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error}");
            return ExitCode::from(2);
        }
    };
    let problems = xtask::tidy(&tree);
    for problem in &problems {
        println!("{problem}");
    }
    println!("tidy: {} files, {} problems", tree.files().count(), problems.len());
    if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
