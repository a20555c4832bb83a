//! Messages to other nodes over connections of the native protocol, one to each address, opened when it is needed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use kera_broker::NOT_READ_BACK;
use kera_protocol::{DescribeCluster, Op, Status};
use kera_raft::{Group, NOT_SENT, Pending, Stranger, Transport};
use kera_rpc::{ClientConfig, Connection, RpcError};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use crate::identity::uuid_text;

/// How long a connection may take, and how long it waits for an answer.
const CONNECT: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(15);
/// A node that was cut off is heard again so soon after it is back: by a connection that has tried in vain for as long as the cut lasted, it would
/// take as long again, and it would join and be fenced for its silence all the while.
const UNNOTICED: Duration = Duration::from_secs(1);
/// What the error of a request begins with that the other node has refused for good.
pub(super) const REFUSED: &str = "refused: ";
/// What the error of a question about lanes begins with whose answer is too large: for the backup, or for this node if the backup is of a version that sends it all the same.
pub(super) const TOO_MUCH: &str = "too much at once: ";
/// And with that of one that nobody has answered in time.
pub(super) const LATE: &str = "too late: ";

/// See the module. Everything runs on the log's runtime.
///
/// A message for a node goes to who says to be that node. At an address another one may stand by now, as when a machine was replaced, and messages do not say whom they are
/// for: its vote would count as that of the coordinator who stood there, though it knows nothing of what that one has agreed to ([`Group::check_is`]).
pub(super) struct RpcTransport {
    runtime: Handle,
    connections: Arc<Mutex<HashMap<String, Connection>>>,
    known: Arc<Known>,
}

/// Who is who.
#[derive(Default)]
struct Known {
    members: OnceLock<Weak<Group>>,
    /// Which other node the log of this one has said last to answer under a number. Not all of them: machines are replaced for as long as this one lives.
    told: Mutex<BTreeMap<u64, [u8; 16]>>,
    /// Of which other nodes it has said that they refuse the coordinators' log of this one. Until they take something of it.
    refusing: Mutex<BTreeSet<u64>>,
}

impl RpcTransport {
    pub(super) fn new(runtime: Handle) -> RpcTransport {
        RpcTransport { runtime, connections: Arc::default(), known: Arc::default() }
    }

    /// From here on it is known who is who. Before, nothing is sent.
    pub(super) fn knows(&self, group: &Arc<Group>) {
        let _ = self.known.members.set(Arc::downgrade(group));
    }
}

impl Known {
    /// Whether it is to be said that a node refuses for good what this one sends it of the coordinators' log. Its reason says what a person has to do, and nobody else passes it on: what sends
    /// the log takes such a node for one that is not reached, and tries again without a word.
    fn refuses_newly<T>(&self, to: u64, told: &Result<T, String>) -> bool {
        match told {
            Ok(_) => {
                self.refusing.lock().remove(&to);
                false
            }
            Err(reason) => reason.starts_with(REFUSED) && self.refusing.lock().insert(to),
        }
    }

    /// Whether it is to be said that another node answers under a number.
    fn answers_newly(&self, to: u64, uuid: [u8; 16]) -> bool {
        self.told.lock().insert(to, uuid) != Some(uuid)
    }

    /// Whether who answers on a connection may be sent an operation for a node: it is the node of that number, or, for 0, it is of this node's cluster.
    async fn check(&self, to: u64, op: Op, connection: &Connection) -> Result<(), String> {
        let group = self.members.get().and_then(Weak::upgrade).ok_or("the node is starting, or stopping")?;
        if to == 0 {
            return check_cluster(&group, connection).await;
        }
        let (uuid, address) = (connection.hello().node_id, connection.address());
        group.check_is(to as u32, op, uuid).map_err(|stranger| {
            if matches!(stranger, Stranger::Another(_)) && self.answers_newly(to, uuid) {
                tracing::warn!(
                    node = to,
                    address,
                    answers = uuid_text(&uuid),
                    "another node than the one of this number answers at its address, and is told nothing; if the node was started there, it does not find its data directory"
                );
            }
            format!("{stranger} at {address}")
        })
    }
}

/// Whether who answers on a connection is of this node's cluster, or this one of none yet.
///
/// A cluster lets anybody join whose number is free, and its leader sends its log then: what a member of another cluster has in its own would be cut off, and
/// with that all that its cluster has decided. Who stands at the address to join may be such a one by mistake, or because a node that lost its data directory has founded another
/// cluster there. So it is asked first which cluster it is of, which nodes of all versions say, and on the connection on which it is asked to let this node join: a process is of one
/// cluster as long as it runs. One that does not know it yet can let nobody join either.
async fn check_cluster(group: &Group, connection: &Connection) -> Result<(), String> {
    let Some(own) = group.cluster() else { return Ok(()) };
    let address = connection.address();
    let described = connection.call(&DescribeCluster).await.map_err(|error| error.to_string())?;
    if described.cluster == own {
        return Ok(());
    }
    if described.cluster == [0; 16] {
        return Err(format!("the node at {address} does not know its cluster yet"));
    }
    Err(of_another(address, described.cluster, own, group.members().len() > 1))
}

/// What is said where a node of another cluster answers. Who is alone in its own would go on in that, beside the one that it was meant to join: that ends its start. With others it
/// goes on with them, for the one there may have founded a cluster only because it does not find its data directory.
fn of_another(address: &str, there: [u8; 16], own: [u8; 16], has_others: bool) -> String {
    let (there, own) = (uuid_text(&there), uuid_text(&own));
    if has_others {
        return format!(
            "the node at {address} is of cluster {there} and this one of cluster {own}, so it is not asked to let this one join; name a node of this one's cluster \
             with --join, and if that was one, see whether it finds its data directory"
        );
    }
    format!(
        "{REFUSED}the node at {address} is of cluster {there}, and this data directory is that of cluster {own}, in which this node is alone; use an empty one (--data) to \
         join that cluster, or leave out --join to go on with this one"
    )
}

/// What is said of an operation that was not done. Whoever is to be let in is told as a person reads it: it is what the start ends with. That clients are answered where it asks is the slip
/// that is made most: a node has several addresses, and `--join` names one that nothing else does.
fn failed(op: Op, address: &str, error: &RpcError) -> String {
    match (op, error) {
        (Op::JoinCluster, RpcError::Status { status: Status::NotSupported, .. }) => format!(
            "{REFUSED}--join {address}: a node answers there, and not at its cluster's address: name what it has for --cluster-listen, port 7072 unless it was set, and not \
             where its clients connect; if it has no --node it is in no cluster"
        ),
        (Op::JoinCluster, RpcError::Status { status, message, .. }) if !status.retryable() => {
            format!("{REFUSED}{message}")
        }
        (Op::ForwardCommand, error) if !error.could_duplicate() => unsent(op, error.to_string()),
        (Op::LaneStates, error) if error.is_answer_too_large() || error.status() == Some(Status::LimitReached) => {
            format!("{TOO_MUCH}{error}")
        }
        (Op::LaneStates, RpcError::Timeout { .. }) => format!("{LATE}{error}"),
        (Op::ReadBlocks, error) if error.status() == Some(Status::SegmentUnreadable) => {
            format!("{NOT_READ_BACK}{error}")
        }
        (_, error) if error.status().is_some_and(|status| !status.retryable()) => format!("{REFUSED}{error}"),
        (_, error) => error.to_string(),
    }
}

/// What is said of a command that has not come to the other node: whoever has handed it on knows by that that it is not done.
fn unsent(op: Op, reason: String) -> String {
    if op == Op::ForwardCommand { format!("{NOT_SENT}{reason}") } else { reason }
}

async fn connected(connections: &Mutex<HashMap<String, Connection>>, address: &str) -> Result<Connection, RpcError> {
    let known = connections.lock().get(address).filter(|known| !known.is_closed()).cloned();
    if let Some(known) = known {
        return Ok(known);
    }
    let config = ClientConfig {
        client_name: "kera-node".into(),
        connect_timeout: CONNECT,
        call_timeout: ANSWER,
        unnoticed_timeout: Some(UNNOTICED),
        ..ClientConfig::default()
    };
    let opened = Connection::connect(address, config).await?;
    keep(&mut connections.lock(), address, opened.clone(), Connection::is_closed);
    Ok(opened)
}

/// Keeps a connection, and lets those go that are closed: to an address that no node has any more nobody opens another one in its place.
fn keep<T>(connections: &mut HashMap<String, T>, address: &str, opened: T, is_closed: impl Fn(&T) -> bool) {
    connections.retain(|_, known| !is_closed(known));
    connections.insert(address.to_owned(), opened);
}

impl RpcTransport {
    /// Sends what `choose` makes of the version that both sides speak; the answer's body with its version.
    fn ask(
        &self,
        to: u64,
        address: &str,
        op: Op,
        choose: impl FnOnce(u8) -> Vec<u8> + Send + 'static,
    ) -> Pending<(u8, Vec<u8>)> {
        let (connections, known, address) = (self.connections.clone(), self.known.clone(), address.to_owned());
        let (sender, answer) = tokio::sync::oneshot::channel();
        // A caller that has lost patience does not end a connection that others wait for.
        self.runtime.spawn(async move {
            let asked = async {
                let connection = connected(&connections, &address).await?;
                if let Err(reason) = known.check(to, op, &connection).await {
                    // Who stands there may go, and the other one come back.
                    connections.lock().remove(&address);
                    return Ok(Err(reason));
                }
                // Without a version in common there is nothing to choose from: `send` reports it.
                let body = connection.hello().common_version(op).map_or_else(Vec::new, choose);
                let sent = connection.send(op, vec![body.into()]);
                let late = |_| RpcError::Timeout { address: address.clone(), after: ANSWER };
                tokio::time::timeout(ANSWER, sent).await.map_err(late)?.map(Ok)
            };
            let told = match asked.await {
                Ok(Ok(frame)) => Ok((frame.header.version, frame.body.to_vec())),
                Ok(Err(reason)) => Err(unsent(op, reason)),
                Err(error) => Err(failed(op, &address, &error)),
            };
            if matches!(op, Op::RaftVote | Op::RaftAppend | Op::RaftSnapshot)
                && known.refuses_newly(to, &told)
                && let Err(reason) = &told
            {
                tracing::error!(node = to, reason, "another node refuses the coordinators' log of this one");
            }
            let _ = sender.send(told);
        });
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err("the node is stopping".into())) })
    }
}

impl Transport for RpcTransport {
    fn call(&self, to: u64, address: &str, op: Op, body: Vec<u8>) -> Pending<Vec<u8>> {
        let asked = self.ask(to, address, op, |_| body);
        Box::pin(async move { asked.await.map(|(_, answer)| answer) })
    }

    fn call_versions(&self, to: u64, address: &str, op: Op, mut bodies: Vec<Vec<u8>>) -> Pending<(u8, Vec<u8>)> {
        let choose = move |version: u8| match usize::from(version) {
            at if (1..=bodies.len()).contains(&at) => bodies.swap_remove(at - 1),
            _ => Vec::new(),
        };
        self.ask(to, address, op, choose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_connections_to_addresses_that_are_gone_are_not_kept() {
        let mut connections = HashMap::new();
        for at in 0..1_000 {
            // All but the first one close.
            keep(&mut connections, &format!("10.0.0.{at}:7000"), at, |known| *known > 0);
        }
        let mut kept: Vec<i32> = connections.into_values().collect();
        kept.sort_unstable();
        assert_eq!(kept, [0, 999]);
    }

    #[test]
    fn of_nodes_that_answer_under_a_number_the_last_one_is_remembered() {
        let known = Known::default();
        for replaced in 1..=100 {
            assert!(known.answers_newly(2, [replaced; 16]) && !known.answers_newly(2, [replaced; 16]));
        }
        assert!(known.answers_newly(3, [100; 16]), "that is another number");
        assert_eq!(known.told.lock().len(), 2);
    }

    #[test]
    fn who_joins_where_clients_are_answered_is_told_which_address_is_meant() {
        let told = |op, status| {
            let message = "node 2 is there".to_owned();
            failed(op, "127.0.0.1:7070", &RpcError::Status { status, message, retry_after: None })
        };
        let said = told(Op::JoinCluster, Status::NotSupported);
        assert!(said.starts_with(&format!("{REFUSED}--join 127.0.0.1:7070: ")), "{said}");
        assert!(said.contains("--cluster-listen") && !said.contains("NotSupported"), "{said}");
        // What else is refused is for people, too; other operations are not theirs.
        assert_eq!(told(Op::JoinCluster, Status::InvalidArgument), format!("{REFUSED}node 2 is there"));
        assert_eq!(told(Op::JoinCluster, Status::NotReady), "NotReady: node 2 is there");
        assert_eq!(told(Op::RaftVote, Status::NotSupported), format!("{REFUSED}NotSupported: node 2 is there"));
    }

    /// Backups of a version before send all that lanes have, and the connection is closed for it.
    #[test]
    fn who_has_too_much_to_tell_of_lanes_is_known_whether_it_says_so_or_sends_it() {
        let closed = |reason: &str| RpcError::Closed {
            address: "127.0.0.1:7072".to_owned(),
            reason: reason.to_owned(),
            sent: true,
        };
        let says = |status| RpcError::Status { status, message: "64 MiB".to_owned(), retry_after: None };
        let sends = closed(&format!("{}: frame.frame_bytes is 300000000", kera_rpc::ANSWER_TOO_LARGE));
        for error in [&says(Status::LimitReached), &sends] {
            assert!(failed(Op::LaneStates, "127.0.0.1:7072", error).starts_with(TOO_MUCH), "{error}");
            assert!(!failed(Op::ReadBlocks, "127.0.0.1:7072", error).starts_with(TOO_MUCH), "{error}");
        }
        for error in [&says(Status::SegmentUnreadable), &closed("the server closed it")] {
            assert!(!failed(Op::LaneStates, "127.0.0.1:7072", error).starts_with(TOO_MUCH), "{error}");
        }
    }

    #[test]
    fn that_a_block_does_not_read_back_is_known_from_a_backup_that_gives_nothing() {
        let says = |status| {
            let message = "a disk".to_owned();
            failed(Op::ReadBlocks, "127.0.0.1:7072", &RpcError::Status { status, message, retry_after: None })
        };
        assert_eq!(says(Status::SegmentUnreadable), format!("{NOT_READ_BACK}SegmentUnreadable: a disk"));
        assert!(!says(Status::NotReady).starts_with(NOT_READ_BACK));
    }

    /// Who has handed a command on says with it whether the command may be done.
    #[test]
    fn of_a_command_that_has_not_left_this_node_that_is_said() {
        let (address, reason) = ("127.0.0.1:7072".to_owned(), "refused".to_owned());
        let connect = RpcError::Connect { address: address.clone(), reason: reason.clone() };
        let closed = |sent| RpcError::Closed { address: address.clone(), reason: reason.clone(), sent };
        for (error, is_unsent) in [(connect, true), (closed(false), true), (closed(true), false)] {
            assert_eq!(failed(Op::ForwardCommand, &address, &error).starts_with(NOT_SENT), is_unsent, "{error}");
            assert!(!failed(Op::RaftVote, &address, &error).starts_with(NOT_SENT), "{error}");
        }
        let late = RpcError::Timeout { address: address.clone(), after: ANSWER };
        assert!(!failed(Op::ForwardCommand, &address, &late).starts_with(NOT_SENT));
        assert_eq!([Op::ForwardCommand, Op::RaftVote].map(|op| unsent(op, "why".into())), ["not sent: why", "why"]);
    }

    #[test]
    fn who_tells_of_lanes_too_late_is_known_from_whoever_cannot_be_reached() {
        let address = "127.0.0.1:7072".to_owned();
        let late = RpcError::Timeout { address: address.clone(), after: ANSWER };
        let gone = RpcError::Connect { address: address.clone(), reason: "refused".to_owned() };
        assert!(failed(Op::LaneStates, &address, &late).starts_with(LATE));
        assert!(!failed(Op::LaneStates, &address, &gone).starts_with(LATE));
        assert!(!failed(Op::ReadBlocks, &address, &late).starts_with(LATE));
    }

    #[test]
    fn that_a_node_refuses_the_log_is_said_once_until_it_takes_some_of_it() {
        let known = Known::default();
        let (refused, silent): (Result<(), String>, Result<(), String>) =
            (Err(format!("{REFUSED}it has another one")), Err("it does not answer".to_owned()));
        assert!(known.refuses_newly(2, &refused) && known.refuses_newly(3, &refused));
        assert!(!known.refuses_newly(2, &refused) && !known.refuses_newly(2, &silent));
        assert!(!known.refuses_newly(2, &Ok(())));
        assert!(!known.refuses_newly(3, &refused), "that one has taken nothing");
        assert!(!known.refuses_newly(2, &silent) && known.refuses_newly(2, &refused));
    }
}
