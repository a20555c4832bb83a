//! Dependency arrows point down only: which of our crates, and which outside ones, a crate may use.

use serde_json::Value;

use crate::tree::{Problem, Tree};

/// A crate and those of ours that its product code may use. Roles meet only through the protocol; what users link
/// against never depends on a role.
const ARROWS: [(&str, &[&str]); 18] = [
    ("kera-format", &[]),
    ("kera-protocol", &["kera-format"]),
    ("kera-env", &["kera-format"]),
    ("kera-rpc", &["kera-format", "kera-protocol", "kera-env"]),
    ("kera-log", &["kera-format", "kera-env"]),
    ("kera-vlog", &["kera-format", "kera-env", "kera-log"]),
    ("kera-backup", &["kera-format", "kera-protocol", "kera-env", "kera-rpc"]),
    ("kera-link", &["kera-format", "kera-protocol", "kera-rpc", "kera-vlog"]),
    ("kera-coordinator", &["kera-format", "kera-protocol", "kera-env", "kera-rpc"]),
    ("kera-raft", &["kera-format", "kera-protocol", "kera-env", "kera-coordinator"]),
    ("kera-broker", &["kera-format", "kera-protocol", "kera-env", "kera-rpc", "kera-log", "kera-vlog"]),
    (
        "kera-kafka",
        &["kera-format", "kera-protocol", "kera-env", "kera-rpc", "kera-log", "kera-coordinator", "kera-broker"],
    ),
    ("kera-client", &["kera-format", "kera-protocol", "kera-env", "kera-rpc"]),
    ("kera-bench", &["kera-format", "kera-protocol", "kera-env", "kera-rpc", "kera-client"]),
    (
        "kera-server",
        &[
            "kera-format",
            "kera-protocol",
            "kera-env",
            "kera-rpc",
            "kera-log",
            "kera-vlog",
            "kera-coordinator",
            "kera-raft",
            "kera-backup",
            "kera-link",
            "kera-broker",
            "kera-kafka",
        ],
    ),
    ("kera", &["kera-format", "kera-protocol", "kera-env", "kera-rpc", "kera-client", "kera-bench", "kera-server"]),
    (
        "kera-sim",
        &[
            "kera-format",
            "kera-protocol",
            "kera-env",
            "kera-rpc",
            "kera-log",
            "kera-vlog",
            "kera-backup",
            "kera-coordinator",
            "kera-raft",
            "kera-broker",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that do without an event loop, sockets and HTTP: their logic is driven from outside.
const WITHOUT_SOCKETS: [&str; 8] = [
    "kera-format",
    "kera-protocol",
    "kera-env",
    "kera-log",
    "kera-vlog",
    "kera-backup",
    "kera-coordinator",
    "kera-broker",
];
const SOCKETS: [&str; 4] = ["tokio", "socket2", "axum", "hyper"];

pub(crate) fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let packages = tree.metadata()["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let path = manifest(package);
        let Some((_, allowed)) = ARROWS.iter().find(|(of, _)| *of == name) else {
            let message = format!("`{name}` is not in the table of xtask/src/arrows.rs: say there what it may use");
            problems.push(Problem::new(&path, 0, "arrows", message));
            continue;
        };
        // Tests may use what they like: they are built for nobody.
        let dependencies = package["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default();
        for dependency in dependencies.iter().filter(|dependency| dependency["kind"].is_null()) {
            let used = dependency["name"].as_str().unwrap_or_default();
            if ours.contains(&used) && !allowed.contains(&used) {
                let message = format!("`{name}` must not use `{used}`; it may use: {}", list(allowed));
                problems.push(Problem::new(&path, 0, "arrows", message));
            }
            if WITHOUT_SOCKETS.contains(&name) && SOCKETS.contains(&used) {
                let message =
                    format!("`{name}` is logic without sockets and must not use `{used}`; leave it to a shell");
                problems.push(Problem::new(&path, 0, "arrows", message));
            }
        }
    }
    problems
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "none of our crates".into() } else { names.join(", ") }
}

/// The manifest's path from the root.
fn manifest(package: &Value) -> String {
    let path = package["manifest_path"].as_str().unwrap_or_default();
    let at = path.find("/crates/").or_else(|| path.find("/xtask/")).map_or(0, |at| at + 1);
    path[at..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<_> =
            dependencies.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        json!({ "name": name, "manifest_path": format!("/x/crates/{name}/Cargo.toml"), "dependencies": dependencies })
    }

    fn problems(packages: &[Value]) -> Vec<String> {
        let tree = Tree::with_metadata(json!({ "packages": packages }));
        check(&tree).into_iter().map(|problem| problem.message).collect()
    }

    #[test]
    fn an_arrow_that_points_up_is_found() {
        let packages = [
            package("kera-log", &[("kera-format", None), ("kera-broker", None), ("bytes", None)]),
            package("kera-broker", &[("kera-log", None)]),
            package("kera-client", &[("kera-broker", Some("dev"))]),
        ];
        let found = problems(&packages);
        assert_eq!(found, ["`kera-log` must not use `kera-broker`; it may use: kera-format, kera-env"]);
    }

    #[test]
    fn logic_with_sockets_and_unknown_crates_are_found() {
        let found = problems(&[package("kera-vlog", &[("tokio", None)]), package("kera-more", &[])]);
        assert!(found[0].contains("must not use `tokio`") && found[1].contains("not in the table"), "{found:?}");
    }
}
