//! The measurement of `examples/group_commit.rs`, small, so that it does not rot.

#[path = "../../examples/group_commit.rs"]
#[allow(dead_code)]
mod group_commit;

#[test]
fn group_commit_measures() {
    let folder = tempfile::tempdir().expect("a folder");
    let plan = group_commit::Plan { bytes: 8 << 20, directory: folder.path().to_owned() };
    group_commit::run(&plan).expect("measured");
    assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0, "it cleans up");
}
