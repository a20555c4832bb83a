//! Redis Streams, loaded by `peers/redis`: a stream is a key, records are entries with one field, pipelined.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Places;
use super::peer::{About, Peer, needed, script};
use crate::BenchError;
use crate::experiment::workload::Safety;

static REDIS: About = About {
    name: "redis",
    loaded_by: "peers/redis (the crate redis)",
    settings: "one server, appendonly yes, snapshots off, otherwise its own settings; each partition is a stream (a key) that XADD trims \
               with MAXLEN ~; a producer pipelines as many records as a request of KerA has",
    guarantees: |safety| match safety {
        Safety::Process => {
            "one copy, appendfsync no: written to the page cache before it is acknowledged, survives kill -9"
        }
        Safety::Power => "one copy, appendfsync always: synced before it is acknowledged",
    },
    partitions_max: None,
    serve,
};

/// Looks for the server and the load generator.
pub(super) fn open(places: &Places) -> Result<Peer, BenchError> {
    let path = needed(places.peers.join("redis/redis.sh"), "run it in the repository's root, or give --peers-dir")?;
    let how = "build it: cargo build --release --manifest-path peers/redis/Cargo.toml";
    Ok(Peer {
        about: &REDIS,
        program: PathBuf::from(script(&path, &["program"])?),
        load: needed(places.peers.join("redis/target/release/redis-bench"), how)?,
        dir: places.dir.join("redis"),
        version: script(&path, &["version"])?,
        server: None,
    })
}

fn serve(command: &mut Command, address: SocketAddr, dir: &Path, safety: Safety) -> Result<(), BenchError> {
    let fsync = if safety == Safety::Power { "always" } else { "no" };
    command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""]);
    command.arg("--dir").arg(dir).args(["--appendonly", "yes", "--appendfsync", fsync]);
    Ok(())
}
