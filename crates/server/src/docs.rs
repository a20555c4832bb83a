//! Pages that are generated from code: a test compares the page in the repository with what the code says.
//!
//! `KERA_UPDATE_DOCS=1 cargo test -p kera-server` writes them.

/// Compares `path` (from the root of the repository) with `expected`, or writes it when asked to.
///
/// # Panics
/// When they differ: this is what tests call.
pub(crate) fn compare(path: &str, expected: &str) {
    let file = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
    if std::env::var_os("KERA_UPDATE_DOCS").is_some() {
        std::fs::write(&file, expected).expect("the page can be written");
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is not what the code says; KERA_UPDATE_DOCS=1 cargo test -p kera-server writes it"
    );
}
