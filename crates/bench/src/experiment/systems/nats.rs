//! NATS JetStream, loaded by `peers/nats`: a partition is a stream of its own, because a JetStream stream is one log.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Places;
use super::peer::{About, Peer, needed, script};
use crate::BenchError;
use crate::experiment::workload::Safety;

static NATS: About = About {
    name: "nats",
    loaded_by: "peers/nats (its own Go client)",
    settings: "one server, file storage, one replica, otherwise its own settings; each partition is a stream of its own with max_bytes; \
               producers publish asynchronously with as many messages under way as KerA has in its requests, at most 4,000 each",
    guarantees: |safety| match safety {
        Safety::Process => {
            "one copy, sync_interval 2m (its default): written to the page cache before it is acknowledged"
        }
        Safety::Power => "one copy, sync_interval always: synced before it is acknowledged",
    },
    partitions_max: Some((1024, "so many streams take long to make")),
    serve,
};

/// Looks for the server and the load generator.
pub(super) fn open(places: &Places) -> Result<Peer, BenchError> {
    let path = needed(places.peers.join("nats/nats.sh"), "run it in the repository's root, or give --peers-dir")?;
    Ok(Peer {
        about: &NATS,
        program: PathBuf::from(script(&path, &["program"])?),
        load: PathBuf::from(script(&path, &["load"])?),
        dir: places.dir.join("nats"),
        version: script(&path, &["version"])?,
        server: None,
    })
}

fn serve(command: &mut Command, address: SocketAddr, dir: &Path, safety: Safety) -> Result<(), BenchError> {
    let sync = if safety == Safety::Power { "always" } else { "2m" };
    let settings = format!(
        "listen: \"{address}\"\njetstream {{\n  store_dir: \"{}\"\n  sync_interval: {sync}\n  max_file_store: 100GB\n}}\n",
        dir.display()
    );
    let file = dir.join("nats.conf");
    std::fs::write(&file, settings).map_err(|e| BenchError::io_at("writing", &file, e))?;
    command.arg("-c").arg(&file);
    Ok(())
}
