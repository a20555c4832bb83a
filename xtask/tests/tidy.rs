//! The rules hold for the tree as it is.

#[test]
fn the_tree_is_tidy() {
    let tree = xtask::Tree::of_workspace().expect("the workspace is readable");
    let problems: Vec<String> = xtask::tidy(&tree).iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}
