//! Every way in which a node ends on purpose, with its exit status. Scripts and service managers rely on the numbers; a
//! number is never used again for something else. `docs/guide.md` lists them.
//!
//! Statuses 0, 1 and 2 belong to the command line (done, failed, not understood); a node's own start at 10.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kera_env::LockError;

use crate::config::Mistakes;

/// Why a node does not start, or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum Fatal {
    /// The configuration has mistakes.
    #[error("{0}")]
    Config(#[from] Mistakes),
    /// Another process uses the data directory.
    #[error("the data directory {} is in use by {}", path.display(), holder(*pid))]
    DirectoryLocked {
        /// The directory.
        path: PathBuf,
        /// The process that uses it, if it says so.
        pid: Option<u32>,
    },
    /// A directory cannot be used.
    #[error("the directory {} cannot be used: {error}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the operating system says.
        error: io::Error,
    },
    /// Addresses are taken.
    #[error("{}", in_use(taken))]
    PortInUse {
        /// Who wanted to listen, and where, and who else of the node has that port, if it is one of them.
        taken: Vec<(Door, String, Option<Door>)>,
    },
    /// An address cannot be used.
    #[error("{door} cannot listen on {address}: {error}")]
    Address {
        /// Who wanted to listen.
        door: Door,
        /// Where.
        address: String,
        /// What the operating system says.
        error: io::Error,
    },
    /// The arena cannot be made or attached.
    #[error("{message}")]
    Arena {
        /// What is wrong, with the file and the limit.
        message: String,
        /// What to do.
        next_step: String,
    },
    /// Data on disk is damaged.
    #[error("{message}")]
    Data {
        /// What is wrong, with the file.
        message: String,
    },
    /// What is on disk does not belong here, is not all there, or the cluster does not take the node as it is. Nothing is damaged.
    #[error("{message}")]
    NotHere {
        /// What does not fit.
        message: String,
        /// What to do.
        next_step: String,
    },
    /// Another build of KerA has left something that this one does not know. Nothing is damaged.
    #[error("{message}")]
    OtherBuild {
        /// What, with the file and the versions.
        message: String,
    },
    /// The operating system gives no thread or no memory.
    #[error("cannot start {what}: {error}")]
    Resources {
        /// What was to be started.
        what: &'static str,
        /// What the operating system says.
        error: io::Error,
    },
    /// A part of the node ended that should not have.
    #[error("{what} ended unexpectedly: {reason}")]
    PartEnded {
        /// The part.
        what: &'static str,
        /// Why, as far as known.
        reason: String,
    },
}

/// Who listens at a node, with the flag that says where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Clients.
    Native,
    /// Health, metrics and the REST API.
    Http,
    /// Kafka clients.
    Kafka,
    /// Other nodes.
    Cluster,
}

impl Door {
    /// The flag that says where it listens.
    pub fn flag(self) -> &'static str {
        match self {
            Door::Native => "--listen",
            Door::Http => "--http-listen",
            Door::Kafka => "--kafka-listen",
            Door::Cluster => "--cluster-listen",
        }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Door::Native => "the node",
            Door::Http => "HTTP",
            Door::Kafka => "Kafka clients",
            Door::Cluster => "other nodes",
        })
    }
}

fn in_use(taken: &[(Door, String, Option<Door>)]) -> String {
    let one = |(door, address, by): &(Door, String, Option<Door>)| match by {
        Some(by) => format!("{door} cannot listen on {address}: the port is that of {} of this node", by.flag()),
        None => format!("{door} cannot listen on {address}: the port is in use"),
    };
    taken.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or("another process".into(), |pid| format!("process {pid}"))
}

/// What to do where something on a disk cannot be read, and the disk does not say that it has lost it: this may pass.
pub(crate) const MAY_PASS: &str = "nothing of it is given up: see to what the system says (whether its file system can be written, owner and mode, how many files may be open), and start again";
/// What to do where a disk has files of another node.
pub(crate) const OWN_DISKS: &str = "name this node's own disks with --disks, and its own data directory with --data";

impl Fatal {
    /// The exit status.
    pub fn exit_status(&self) -> u8 {
        match self {
            Fatal::Config(_) => 10,
            Fatal::DirectoryLocked { .. } => 11,
            Fatal::Directory { .. } => 12,
            Fatal::PortInUse { .. } => 13,
            Fatal::Address { .. } => 14,
            Fatal::Arena { .. } => 15,
            Fatal::Data { .. } | Fatal::NotHere { .. } => 16,
            Fatal::Resources { .. } => 17,
            Fatal::PartEnded { .. } => 18,
            Fatal::OtherBuild { .. } => 19,
        }
    }

    /// What to do about it.
    pub fn next_step(&self) -> String {
        match self {
            Fatal::Config(_) => {
                "correct them; `kera config check` looks without starting, docs/configuration.md explains".into()
            }
            Fatal::DirectoryLocked { .. } => "stop that process, or choose another directory with --data".into(),
            Fatal::Directory { .. } => {
                "check owner, mode and free space, or choose another directory with --data".into()
            }
            Fatal::PortInUse { taken } => {
                let others = taken.iter().filter(|(_, _, by)| by.is_none());
                let flags: Vec<&str> = others.map(|(door, _, _)| door.flag()).collect();
                let stop = || format!("stop what listens there, or choose another port with {}", flags.join(" and "));
                let own = |(door, _, by): &(Door, String, Option<Door>)| {
                    by.map(|by| format!("give {} or {} another port", door.flag(), by.flag()))
                };
                let stop = (!flags.is_empty()).then(stop);
                stop.into_iter().chain(taken.iter().filter_map(own)).collect::<Vec<_>>().join("; ")
            }
            Fatal::Address { error, .. } if error.kind() == io::ErrorKind::PermissionDenied => {
                "ports below 1024 need privileges; choose a higher one".into()
            }
            Fatal::Address { .. } => "name an address of this machine; 0.0.0.0 is every IPv4 address it has".into(),
            Fatal::Arena { next_step, .. } => next_step.clone(),
            Fatal::Data { .. } => {
                "restore the file from a copy; only if what this node has may be lost, move the data directory away to start empty".into()
            }
            Fatal::NotHere { next_step, .. } => next_step.clone(),
            Fatal::OtherBuild { .. } => {
                "start that build once more and stop it gracefully: then this one can go on; move nothing away".into()
            }
            Fatal::Resources { .. } => {
                "raise the limits of the process (ulimit -u, memory), or lower io_threads".into()
            }
            Fatal::PartEnded { .. } => "see the log above; start again: what was acknowledged is still there".into(),
        }
    }

    /// The error of a server that does not listen: of a failed bind, or of threads that it does not get for its connections.
    pub fn listen(door: Door, address: &str, error: io::Error) -> Fatal {
        let address = address.to_owned();
        match error.kind() {
            io::ErrorKind::AddrInUse => Fatal::PortInUse { taken: vec![(door, address, None)] },
            // No address is refused with these.
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => {
                Fatal::Resources { what: "a thread for connections", error }
            }
            _ => Fatal::Address { door, address, error },
        }
    }

    /// What is on disk does not belong here, or is not all there.
    pub fn not_here(message: impl Into<String>, next_step: impl Into<String>) -> Fatal {
        Fatal::NotHere { message: message.into(), next_step: next_step.into() }
    }

    /// The error of a directory that cannot be used.
    pub fn directory(path: &Path, error: io::Error) -> Fatal {
        Fatal::Directory { path: path.to_owned(), error }
    }

    /// The lock of a data directory cannot be had.
    pub fn locked(data: &Path, error: LockError) -> Fatal {
        match error {
            LockError::Held { held_by_pid, .. } => Fatal::DirectoryLocked { path: data.to_owned(), pid: held_by_pid },
            LockError::Io { error, .. } => Fatal::directory(data, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_exit_has_its_own_status_and_advice() {
        let io = || io::Error::other("x");
        let all = [
            Fatal::Config(Mistakes(Vec::new())),
            Fatal::DirectoryLocked { path: "d".into(), pid: Some(7) },
            Fatal::directory(Path::new("d"), io()),
            Fatal::listen(Door::Http, "a:1", io::ErrorKind::AddrInUse.into()),
            Fatal::listen(Door::Http, "a:1", io()),
            Fatal::Arena { message: "m".into(), next_step: "n".into() },
            Fatal::Data { message: "m".into() },
            Fatal::Resources { what: "x", error: io() },
            Fatal::PartEnded { what: "x", reason: "r".into() },
            Fatal::OtherBuild { message: "m".into() },
        ];
        let statuses: Vec<u8> = all.iter().map(Fatal::exit_status).collect();
        assert_eq!(statuses, (10..20).collect::<Vec<u8>>());
        assert!(all.iter().all(|f| !f.next_step().is_empty()));
        let guide = include_str!("../../../docs/guide.md");
        assert!(statuses.iter().all(|status| guide.contains(&format!("\n| {status} | "))), "the guide lists each");
        assert!(all[1].to_string().contains("process 7"));
    }

    #[test]
    fn who_finds_ports_taken_is_told_of_all_of_them_and_of_their_flags_only() {
        let mut taken = vec![(Door::Native, "a:1".to_owned(), None), (Door::Cluster, "a:2".to_owned(), None)];
        let fatal = Fatal::PortInUse { taken: taken.clone() };
        let said =
            "the node cannot listen on a:1: the port is in use; other nodes cannot listen on a:2: the port is in use";
        assert_eq!(fatal.to_string(), said);
        assert!(fatal.next_step().ends_with("with --listen and --cluster-listen"), "{}", fatal.next_step());
        // Nobody else listens at the second one: there is nothing to stop.
        taken[1].2 = Some(Door::Http);
        let step = Fatal::PortInUse { taken: taken.clone() }.next_step();
        assert!(
            step.ends_with("another port with --listen; give --cluster-listen or --http-listen another port"),
            "{step}"
        );
        taken.remove(0);
        let step = Fatal::PortInUse { taken }.next_step();
        assert_eq!(step, "give --cluster-listen or --http-listen another port");
    }

    #[test]
    fn a_server_that_gets_no_thread_does_not_blame_its_address() {
        for kind in [io::ErrorKind::WouldBlock, io::ErrorKind::OutOfMemory] {
            let fatal = Fatal::listen(Door::Native, "a:1", kind.into());
            assert!(matches!(fatal, Fatal::Resources { .. }), "{fatal}");
        }
        let fatal = Fatal::listen(Door::Native, "a:1", io::ErrorKind::PermissionDenied.into());
        assert!(matches!(fatal, Fatal::Address { .. }), "{fatal}");
    }

    #[test]
    fn nobody_is_told_to_move_data_away_that_is_not_damaged() {
        let fatal = Fatal::not_here("a disk is not mounted", "mount it");
        assert_eq!((fatal.exit_status(), fatal.next_step().as_str()), (16, "mount it"));
    }
}
