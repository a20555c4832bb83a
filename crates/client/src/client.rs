//! The client: where the servers are, shared connections for short calls, who owns what, and the start of everything else.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kera_format::StreamId;
use kera_protocol::{FindOwners, GetStream, HelloResponse, Message, NodeInfo, Op, Role, Status, StreamInfo, StreamRef};
use kera_rpc::{Connection, RpcError, first_of};
use rand::seq::SliceRandom;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::backoff::{Backoff, within_reason};
use crate::lent::Lent;
use crate::placement::{HOME, Placement, Placements};
use crate::turn::InTurn;
use crate::{Admin, ClientError, ConsumerBuilder, ProducerBuilder};

/// How long a node may take to say who owns what before another one is asked too: any of them answers from memory.
const ASK_HEDGE: Duration = Duration::from_millis(100);
/// How long a node may take to say who owns what, if there are others to ask.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// So many others are asked for owners at one time.
const ASKED_MAX: usize = 3;
/// A stream that was made is known to all nodes within this time, unless one is cut off from the coordinators.
const HEARD_OF: Duration = Duration::from_secs(1);
/// For how long, at least, short calls are tried at other nodes, if there are any.
const OTHERS_TIMEOUT: Duration = Duration::from_secs(3);

/// Lookups under way by one connection. What they are for may have to come from disk, and of one connection a node has 64 requests wait, unless it was told
/// otherwise; earlier versions refuse one more as if it were one for good.
const LOOKUPS_MAX: usize = 32;

/// How to reach a server or a cluster. Made by [`Client::builder`].
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    address: String,
    rpc: kera_rpc::ClientConfig,
    retry_timeout: Duration,
}

impl ClientBuilder {
    /// What the program calls itself in the server's logs and listings.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.rpc.client_name = name.into();
        self
    }

    /// How long one try to connect may take; 10 s unless set.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.rpc.connect_timeout = within_reason(timeout);
        self
    }

    /// How long one call waits for its answer; 30 s unless set.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.rpc.call_timeout = within_reason(timeout);
        self
    }

    /// For how long short calls (admin, opening producers and consumers) are tried again while the server cannot be
    /// reached or asks to come back later; zero, the default: not at all, or 3 s if there are several nodes, since another one may do it.
    /// A call that may have been carried out is not tried again, unless it does no more the second time.
    pub fn retry_timeout(mut self, timeout: Duration) -> Self {
        self.retry_timeout = within_reason(timeout);
        self
    }

    /// Connects, so that a wrong address is found at once.
    pub async fn connect(self) -> Result<Client, ClientError> {
        let mut addresses: Vec<String> = self.address.split(',').map(|one| one.trim().to_owned()).collect();
        addresses.retain(|address| !address.is_empty());
        if addresses.is_empty() {
            return Err(ClientError::invalid(
                "client.address",
                &self.address,
                "host:port, several with commas between",
            ));
        }
        let client = self.unconnected(addresses);
        client.server().await?;
        Ok(client)
    }

    /// A client that has not connected to any of the addresses yet.
    pub(crate) fn unconnected(self, addresses: Vec<String>) -> Client {
        let inner = ClientInner {
            config: self,
            addresses,
            turn: AtomicUsize::new(0),
            connection: InTurn::default(),
            nodes: std::sync::Mutex::default(),
            placements: std::sync::Mutex::default(),
            asking: Mutex::new(()),
            lent: Lent::default(),
        };
        Client { inner: Arc::new(inner) }
    }
}

/// A server or a cluster, as a program sees it. Clones share a connection to each node for short calls. Each consumer has its own, and so
/// have the first 16 producers; those that come later share theirs: make one client for all streams that a program writes to.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<ClientInner>,
}

#[derive(Debug)]
struct ClientInner {
    config: ClientBuilder,
    /// Where the client was told to connect to.
    addresses: Vec<String>,
    /// Which of [all that are known](Client::known_addresses) is tried first, modulo their number.
    turn: AtomicUsize,
    /// A connection to one of them.
    connection: InTurn<Option<Shared>>,
    /// Connections to nodes of a cluster, by address.
    nodes: std::sync::Mutex<HashMap<String, Arc<InTurn<Option<Shared>>>>>,
    placements: std::sync::Mutex<Placements>,
    /// Held by whoever asks for owners, so that those who come meanwhile take what it finds.
    asking: Mutex<()>,
    lent: Lent,
}

/// A connection for short calls of whoever has some.
#[derive(Clone, Debug)]
struct Shared {
    connection: Connection,
    /// A permit for each lookup that may be under way. Closed once one was not answered, or was given up.
    lookups: Arc<Semaphore>,
    /// It was given up by who asked, which says nothing of the node.
    given_up: Arc<AtomicBool>,
}

/// A lookup under way. One that is given up before it is answered waits at the node for as long as it may, and is one of those that may wait there by the
/// connection: so nobody looks anything up by that one any more.
struct UnderWay<'a> {
    shared: &'a Shared,
    is_answered: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.shared.given_up.store(true, Ordering::SeqCst);
            self.shared.lookups.close();
        }
    }
}

impl Shared {
    fn new(connection: Connection) -> Shared {
        Shared { connection, lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)), given_up: Arc::default() }
    }

    /// Asks once. A lookup has its turn first. `None`: it was not asked, and is to be asked by another connection, because somebody has given up one that was under way
    /// by this one.
    ///
    /// Nobody waits for that without end: those in front have as long as any call has. When one of them was not answered in that time, all that are in line
    /// have failed with it, as if they had been under way too: each [`LOOKUPS_MAX`] of them would take as long again, at a node that may be gone.
    async fn call<M: Message>(&self, message: &M, timeout: Duration) -> Option<Result<M::Response, RpcError>> {
        if M::OP != Op::Lookup {
            return Some(self.connection.call_within(message, timeout).await);
        }
        let Ok(_turn) = self.lookups.acquire().await else {
            if self.given_up.load(Ordering::SeqCst) {
                return None;
            }
            let reason = "a lookup in front of this one was not answered".to_owned();
            return Some(Err(RpcError::Closed { address: self.connection.address().to_owned(), reason, sent: false }));
        };
        let mut under_way = UnderWay { shared: self, is_answered: false };
        let answer = self.connection.call_within(message, timeout).await;
        under_way.is_answered = true;
        if matches!(answer, Err(RpcError::Timeout { .. })) {
            self.lookups.close();
        }
        Some(answer)
    }
}

impl Client {
    /// Connects to `address` with default settings: `host:port`, or several nodes of a cluster with commas between, of which one must
    /// answer.
    pub async fn connect(address: impl Into<String>) -> Result<Client, ClientError> {
        Client::builder(address).connect().await
    }

    /// Settings for a connection to `address`: `host:port`, or several with commas between.
    pub fn builder(address: impl Into<String>) -> ClientBuilder {
        ClientBuilder { address: address.into(), rpc: kera_rpc::ClientConfig::default(), retry_timeout: Duration::ZERO }
    }

    /// Where the server is, as the client was told.
    pub fn address(&self) -> &str {
        &self.inner.config.address
    }

    /// What the server said about itself when it was last connected to.
    pub async fn server(&self) -> Result<HelloResponse, ClientError> {
        let mut tries = Tries::new(self.inner.config.retry_timeout);
        loop {
            match self.shared().await {
                Ok(connection) => return Ok(connection.hello().clone()),
                Err(error) => tries.again(error, true).await?,
            }
        }
    }

    /// Streams, applications, statistics.
    pub fn admin(&self) -> Admin {
        Admin { client: self.clone() }
    }

    /// A producer for `stream`.
    pub fn producer(&self, stream: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder::new(self.clone(), stream.into())
    }

    /// A consumer of `stream`.
    pub fn consumer(&self, stream: impl Into<String>) -> ConsumerBuilder {
        ConsumerBuilder::new(self.clone(), stream.into())
    }

    /// Asks the server anything, over the shared connection, which is made again if it is broken.
    pub async fn call<M: Message>(&self, message: &M) -> Result<M::Response, ClientError> {
        self.call_for(message, self.inner.config.retry_timeout).await
    }

    /// What a stream is. One that was made a moment ago by way of another node is heard of at this one a little later: who does not know
    /// it is asked again for [`HEARD_OF`], and the others in turn, since one that is cut off, or was until just now, hears of it later than that.
    pub(crate) async fn find_stream(&self, name: &str) -> Result<StreamInfo, ClientError> {
        let asked = GetStream { stream: StreamRef::Name(name.to_owned()) };
        let mut hearing = Hearing::new();
        loop {
            let found = self.call(&asked).await;
            let is_unknown = found.as_ref().is_err_and(|error| error.status() == Some(Status::UnknownStream));
            let Some(wait) = hearing.again(is_unknown) else { return found };
            if self.known_addresses().len() > 1
                && let Ok(here) = self.shared().await
            {
                self.turn_from(&here).await;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Who owns the streamlets of a stream that was [found](Client::find_stream) just now: the node that knows of the stream may be told a moment later whose they are, and
    /// others are asked as well, which may not have heard of it.
    pub(crate) async fn placement_of_found(&self, stream: StreamId) -> Result<Arc<Placement>, RpcError> {
        let mut hearing = Hearing::new();
        loop {
            let found = self.placement(stream).await;
            let untold = [Some(Status::NotReady), Some(Status::UnknownStream)];
            let is_untold = found.as_ref().is_err_and(|error| untold.contains(&error.status()));
            let Some(wait) = hearing.again(is_untold) else { return found };
            tokio::time::sleep(wait).await;
        }
    }

    /// As [`call`](Client::call), tried again for so long.
    ///
    /// Where there are others that may know as well, and asking twice does no harm, the node that is asked first is not waited for as long as a call may take: it may only
    /// seem to be there. All that are asked after it have that time: it may be the question that takes long, at whichever node. A lookup has to wait for a disk, and in
    /// line behind others, at the node that has the lane.
    pub(crate) async fn call_for<M: Message>(
        &self,
        message: &M,
        retry_for: Duration,
    ) -> Result<M::Response, ClientError> {
        self.call_if(message, retry_for, is_repeatable(M::OP)).await
    }

    /// As [`call`](Client::call), of what does no more the second time, though others of its kind may.
    pub(crate) async fn call_again<M: Message>(&self, message: &M) -> Result<M::Response, ClientError> {
        self.call_if(message, self.inner.config.retry_timeout, true).await
    }

    async fn call_if<M: Message>(
        &self,
        message: &M,
        retry_for: Duration,
        repeatable: bool,
    ) -> Result<M::Response, ClientError> {
        let has_others = self.inner.addresses.len() > 1 || self.placements().addresses().nth(1).is_some();
        let retry_for = if has_others { retry_for.max(OTHERS_TIMEOUT) } else { retry_for };
        let call_timeout = self.inner.config.rpc.call_timeout;
        let is_short = has_others && is_repeatable(M::OP) && M::OP != Op::Lookup;
        let mut tries = Tries::new(retry_for);
        loop {
            let is_first = is_short && tries.backoff.is_first();
            let timeout = if is_first { call_timeout.min(ASK_TIMEOUT) } else { call_timeout };
            let error = match self.for_calls().await {
                Ok(shared) => match shared.call(message, timeout).await {
                    None => continue,
                    Some(Ok(answer)) => return Ok(answer),
                    Some(Err(error)) => {
                        // One that is alone may only seem to be there: the next call makes another connection.
                        let is_silent = matches!(error, RpcError::Timeout { .. });
                        if is_silent || (has_others && is_for_others(&error)) {
                            self.turn_from(&shared.connection).await;
                        }
                        error
                    }
                },
                Err(error) => error,
            };
            tries.again(error, repeatable).await?;
        }
    }

    /// How long what fails is tried again.
    pub(crate) fn retry_timeout(&self) -> Duration {
        self.inner.config.retry_timeout
    }

    /// How long something is waited for that is tried again.
    pub(crate) fn patience(&self) -> Duration {
        self.inner.config.rpc.call_timeout.max(self.inner.config.retry_timeout)
    }

    /// Where nodes are: what the client was told, then what nodes have told since.
    fn known_addresses(&self) -> Vec<String> {
        let mut all = self.inner.addresses.clone();
        let mut learned: Vec<String> =
            self.placements().addresses().filter(|one| !all.contains(one)).cloned().collect();
        // Otherwise each look would have an order of its own, and the next one would be anybody.
        learned.sort_unstable();
        all.extend(learned);
        all
    }

    /// The same from the one that answered last on. Those that nodes have told of have their turn like the others: who was told one address only would have no other
    /// node to turn to, and would go back to the one that it has just turned from.
    fn addresses(&self) -> Vec<String> {
        let mut all = self.known_addresses();
        let turn = self.inner.turn.load(Ordering::Relaxed) % all.len();
        all.rotate_left(turn);
        all
    }

    /// A connection of its own to whichever node of all that are known answers first; one try each.
    pub(crate) async fn dedicated(&self) -> Result<Connection, RpcError> {
        let addresses = self.addresses();
        let connection = connect_any(&addresses, &self.inner.config.rpc).await?;
        if let Some(at) = self.known_addresses().iter().position(|known| *known == connection.address()) {
            self.inner.turn.store(at, Ordering::Relaxed);
        }
        Ok(connection)
    }

    /// A connection of its own to a node, one try.
    pub(crate) async fn dedicated_to(&self, placement: &Placement, node: u32) -> Result<Connection, RpcError> {
        match placement.address(node) {
            Some(address) => self.connect_to(placement, address).await,
            None if node == HOME => self.dedicated().await,
            None => Err(no_owner()),
        }
    }

    pub(crate) fn lent(&self) -> &Lent {
        &self.inner.lent
    }

    /// The connection for short calls.
    pub(crate) async fn shared(&self) -> Result<Connection, RpcError> {
        Ok(self.for_calls().await?.connection)
    }

    async fn for_calls(&self) -> Result<Shared, RpcError> {
        let make = async { self.dedicated().await.map(Shared::new) };
        self.inner.connection.get(open, make, keep).await
    }

    /// The node that short calls go to could not be asked, or cannot do what others perhaps can: the next one has its turn.
    async fn turn_from(&self, failed: &Connection) {
        let mut shared = self.inner.connection.lock().await;
        if shared.as_ref().is_some_and(|shared| shared.connection.address() == failed.address()) {
            *shared = None;
            self.inner.turn.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The shared connection to a node.
    async fn shared_to(&self, placement: &Placement, node: u32) -> Result<Shared, RpcError> {
        let Some(address) = placement.address(node) else {
            return if node == HOME { self.for_calls().await } else { Err(no_owner()) };
        };
        let node = self.node_at(address);
        let make = async { self.connect_to(placement, address).await.map(Shared::new) };
        node.get(open, make, keep).await
    }

    /// A connection to where a node is, if who answers there is [of its cluster](Placement::check_who_answers).
    async fn connect_to(&self, placement: &Placement, address: &str) -> Result<Connection, RpcError> {
        let connection = Connection::connect(address, self.inner.config.rpc.clone()).await?;
        let checked = placement.check_who_answers(&connection, ASK_TIMEOUT).await;
        if checked.is_err() {
            connection.close();
        }
        checked.map(|()| connection)
    }

    /// A connection of its own to whichever node answers first, if that is of the cluster of which `placement` tells. Otherwise another one is tried first the next time.
    pub(crate) async fn dedicated_within(
        &self,
        placement: &Placement,
        timeout: Duration,
    ) -> Result<Connection, RpcError> {
        let connection = self.dedicated().await?;
        let checked = placement.check_who_answers(&connection, timeout).await;
        if checked.is_err() {
            connection.close();
            self.inner.turn.fetch_add(1, Ordering::Relaxed);
        }
        checked.map(|()| connection)
    }

    /// Where the shared connection to a node is, or will be.
    fn node_at(&self, address: &str) -> Arc<InTurn<Option<Shared>>> {
        let mut nodes = self.inner.nodes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !nodes.contains_key(address) {
            let is_used = |node: &Arc<InTurn<_>>| {
                Arc::strong_count(node) > 1 || node.try_lock().is_some_and(|mut shared| open(&mut shared).is_some())
            };
            nodes.retain(|_, node| is_used(node));
        }
        Arc::clone(nodes.entry(address.to_owned()).or_default())
    }

    /// Who owns the streamlets of a stream as a node knows it, whatever others know.
    pub(crate) async fn placement_at(
        &self,
        placement: &Placement,
        node: u32,
        stream: StreamId,
    ) -> Result<Placement, RpcError> {
        let shared = self.shared_to(placement, node).await?;
        Placement::ask(&shared.connection, stream, None, self.inner.config.rpc.call_timeout).await
    }

    /// Asks one node, once.
    pub(crate) async fn call_node<M: Message>(
        &self,
        placement: &Placement,
        node: u32,
        message: &M,
    ) -> Result<M::Response, RpcError> {
        let (shared, answer) = loop {
            let shared = self.shared_to(placement, node).await?;
            if let Some(answer) = shared.call(message, self.inner.config.rpc.call_timeout).await {
                break (shared, answer);
            }
        };
        if matches!(answer, Err(RpcError::Timeout { .. })) {
            // It may only seem to be there: the next call makes another one.
            shared.connection.close();
        }
        answer
    }

    /// The nodes of the cluster that serve streamlets and are not lost, and where they are; none if the server is alone.
    pub(crate) async fn all_nodes(&self) -> Result<Vec<(u32, String)>, ClientError> {
        let found = self.call(&FindOwners { streams: Vec::new(), after: None, limit: 1 }).await?;
        let serves = |node: &NodeInfo| node.roles.contains(&Role::Broker) && !node.address.is_empty();
        let nodes = found.nodes.into_iter().filter(|_| found.node != 0);
        Ok(nodes.filter(serves).map(|node| (node.node, node.address)).collect())
    }

    /// Asks whoever is at an address, once.
    pub(crate) async fn call_at<M: Message>(&self, address: &str, message: &M) -> Result<M::Response, RpcError> {
        let connection = Connection::connect(address, self.inner.config.rpc.clone()).await?;
        let answer = connection.call(message).await;
        connection.close();
        answer
    }

    fn placements(&self) -> std::sync::MutexGuard<'_, Placements> {
        self.inner.placements.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Who owns the streamlets of a stream, as far as is known; asks if nothing is.
    pub(crate) async fn placement(&self, stream: StreamId) -> Result<Arc<Placement>, RpcError> {
        let known = self.placements().get(stream);
        match known {
            Some(known) => Ok(known),
            None => self.ask_placement(stream, None).await,
        }
    }

    /// Who owns the streamlets of a stream, asked again unless something else than `seen` is known already.
    pub(crate) async fn refresh(&self, stream: StreamId, seen: &Arc<Placement>) -> Result<Arc<Placement>, RpcError> {
        self.ask_placement(stream, Some(seen)).await
    }

    /// Finds out who owns what, unless something else than `seen` is known already.
    async fn ask_placement(&self, stream: StreamId, seen: Option<&Arc<Placement>>) -> Result<Arc<Placement>, RpcError> {
        let _asking = self.inner.asking.lock().await;
        let known = self.placements().get(stream);
        if let Some(known) = known.as_ref().filter(|known| seen.is_none_or(|seen| !Arc::ptr_eq(known, seen))) {
            return Ok(Arc::clone(known));
        }
        self.ask_nodes(stream, known, ASK_TIMEOUT).await
    }

    /// Asks until somebody knows something later than what is known: the node that short calls go to, and then others, each when the one
    /// before it has failed, knows nothing new or takes long.
    ///
    /// A node that is gone is not waited for when the others have answered, though they know nothing new: they may in a moment, and are not asked
    /// again before this ends. It is not asked first the next time.
    async fn ask_nodes(
        &self,
        stream: StreamId,
        known: Option<Arc<Placement>>,
        timeout: Duration,
    ) -> Result<Arc<Placement>, RpcError> {
        let mut others = self.addresses();
        if others.len() == 1 {
            others.clear();
        }
        others.shuffle(&mut rand::rng());
        others.truncate(ASKED_MAX);
        let (has_others, mut others) = (!others.is_empty(), others.into_iter());
        let (mut best, mut asked) = (None, JoinSet::new());
        let timeout = if others.len() == 0 { self.inner.config.rpc.call_timeout } else { timeout };
        let home = self.inner.connection.try_lock().and_then(|shared| Some(shared.as_ref()?.connection.clone()));
        let asked_home = asked.spawn(self.clone().ask_at(None, stream, known.clone(), timeout));
        loop {
            let has_answer = matches!(best, Some(Ok(_)));
            let found = match asked.is_empty() {
                true => None,
                false if others.len() == 0 && !has_answer => asked.join_next().await,
                false => tokio::time::timeout(ASK_HEDGE, asked.join_next()).await.ok().flatten(),
            };
            if found.is_none() && others.len() == 0 && has_answer {
                break;
            }
            match found.map(|found| found.unwrap_or_else(|error| Err(ended(&error)))) {
                Some(Ok(found)) if found.is_news(known.as_ref()) => {
                    best = Some(Ok(found));
                    break;
                }
                Some(Err(_)) if best.is_some() => {}
                Some(found) => best = Some(found),
                None => {}
            }
            match others.next() {
                Some(address) => {
                    asked.spawn(self.clone().ask_at(Some(address), stream, known.clone(), timeout));
                }
                None if asked.is_empty() => break,
                None => {}
            }
        }
        if let Some(home) = home.filter(|home| has_others && !home.is_closed() && !asked_home.is_finished()) {
            self.turn_from(&home).await;
        }
        let best = best.unwrap_or_else(|| Err(no_owner()));
        best.map(|found| self.placements().put(stream, found))
    }

    /// Asks one node, that for short calls unless another is named.
    async fn ask_at(
        self,
        address: Option<String>,
        stream: StreamId,
        known: Option<Arc<Placement>>,
        timeout: Duration,
    ) -> Result<Placement, RpcError> {
        let Some(address) = address else {
            let Ok(connection) = tokio::time::timeout(timeout, self.shared()).await else {
                return Err(RpcError::Timeout { address: self.address().to_owned(), after: timeout });
            };
            let connection = connection?;
            let found = Placement::ask(&connection, stream, known.as_ref(), timeout).await;
            if found.as_ref().is_err_and(|error| matches!(error, RpcError::Timeout { .. })) {
                connection.close();
                self.turn_from(&connection).await;
            }
            return found;
        };
        let rpc = self.inner.config.rpc.clone();
        let connecting = Connection::connect(&address, rpc);
        let Ok(connection) = tokio::time::timeout(timeout, connecting).await else {
            return Err(RpcError::Timeout { address, after: timeout });
        };
        let connection = connection?;
        let found = Placement::ask(&connection, stream, known.as_ref(), timeout).await;
        connection.close();
        found
    }
}

/// A shared connection, if there is one that can be used.
fn open(shared: &mut Option<Shared>) -> Option<Shared> {
    shared.clone().filter(|shared| !shared.connection.is_closed() && !shared.lookups.is_closed())
}

/// A connection is shared from here on.
fn keep(shared: &mut Option<Shared>, made: &Shared) {
    *shared = Some(made.clone());
}

/// What the node that is asked has not heard of is asked for again, for [`HEARD_OF`] since it was unknown first.
struct Hearing {
    until: Option<Instant>,
    backoff: Backoff,
}

impl Hearing {
    fn new() -> Hearing {
        Hearing { until: None, backoff: Backoff::for_owners() }
    }

    /// After how long it is asked for again; not any more, if it was told or would have been by now.
    fn again(&mut self, is_unknown: bool) -> Option<Duration> {
        let now = Instant::now();
        if !is_unknown || now >= *self.until.get_or_insert(now + HEARD_OF) {
            return None;
        }
        Some(self.backoff.next(None))
    }
}

/// How long something is tried.
struct Tries {
    retry_for: Duration,
    /// From the first failure on: a try that was not answered may have taken longer than all tries are to take, and then none would have followed it.
    until: Option<Instant>,
    backoff: Backoff,
}

impl Tries {
    fn new(retry_for: Duration) -> Tries {
        Tries { retry_for, until: None, backoff: Backoff::default() }
    }

    /// Waits until it may be tried again; the error if it is for good, the time is up, or it could have had an effect that may not be
    /// had twice.
    async fn again(&mut self, error: RpcError, repeatable: bool) -> Result<(), ClientError> {
        let wait = self.backoff.next(error.retry_after());
        let is_final = !error.retryable() || (error.could_duplicate() && !repeatable);
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.retry_for);
        if is_final || now + wait > until {
            return Err(error.into());
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// A connection to whichever of several addresses answers first: each is tried when the one before it has failed or takes long.
async fn connect_any(addresses: &[String], rpc: &kera_rpc::ClientConfig) -> Result<Connection, RpcError> {
    if let [address] = addresses {
        return Connection::connect(address, rpc.clone()).await;
    }
    let connecting = addresses.iter().cloned().map(|address| {
        let rpc = rpc.clone();
        async move { Connection::connect(&address, rpc).await.map_err(|error| (address, error)) }
    });
    let mut failed = Vec::new();
    let why = |error: Result<(String, RpcError), JoinError>| match error {
        Ok((_, RpcError::Connect { address, reason })) => format!("{address}: {reason}"),
        Ok((address, error)) => format!("{address}: {error}"),
        Err(ended) => ended.to_string(),
    };
    if let Some(connection) = first_of(connecting, |error| failed.push(why(error))).await {
        return Ok(connection);
    }
    Err(RpcError::Connect { address: addresses.join(", "), reason: failed.join("; ") })
}

/// A task of the client ended without an answer.
pub(crate) fn ended(error: &JoinError) -> RpcError {
    RpcError::Closed { address: String::new(), reason: error.to_string(), sent: false }
}

/// A streamlet has no owner at the moment.
fn no_owner() -> RpcError {
    let message = "no node owns the streamlet at the moment".to_owned();
    RpcError::Status { status: Status::NotOwner, message, retry_after: None }
}

/// Whether another node may do what one could not.
fn is_for_others(error: &RpcError) -> bool {
    match error {
        RpcError::Status { status, .. } => {
            matches!(status, Status::NotReady | Status::ShuttingDown | Status::Fenced | Status::Timeout)
        }
        RpcError::Timeout { .. } | RpcError::Closed { .. } => true,
        _ => false,
    }
}

/// Whether asking twice does no more than asking once: what only looks, and a producer's id, of which there are enough.
fn is_repeatable(op: Op) -> bool {
    matches!(
        op,
        Op::GetStream
            | Op::ListStreams
            | Op::StreamStats
            | Op::Lookup
            | Op::AvailableGroups
            | Op::AvailableSegments
            | Op::ListApplications
            | Op::DescribeApplication
            | Op::FetchOffsets
            | Op::NodeStatus
            | Op::DescribeCopies
            | Op::DescribeLogs
            | Op::DescribeCluster
            | Op::DescribeMoves
            | Op::DescribeLostLogs
            | Op::DescribeCopyChanges
            | Op::PlanRebalance
            | Op::PlanBalance
            | Op::AllocateProducer
            | Op::FindOwners
    )
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::OnceLock;

    use kera_env::SystemClock;
    use kera_format::{StreamOptions, StreamletId};
    use kera_protocol::{ErrorBody, FrameHeader, Owner, OwnerRun, Owners, StreamOwners};
    use kera_rpc::{Flow, Outbox, Peer, RunningServer, Server, ServerConfig, Session, SessionWaker};

    use super::*;
    use crate::testing::hello;

    const VERSION: u64 = 5;

    /// A node that knows nothing new.
    struct Behind;

    impl Session for Behind {
        fn on_frame(&mut self, header: &FrameHeader, _: &[u8], out: &mut Outbox) -> Flow {
            let (nodes, streams) = (Vec::new(), Vec::new());
            out.respond(header, &Owners { cluster: [1; 16], version: VERSION, node: 1, nodes, streams, more: false });
            Flow::Done
        }

        fn on_wake(&mut self, _: &mut Outbox) {}
    }

    /// Answers as it is told to.
    struct Says<F>(F);

    impl<F: Fn(&FrameHeader, &mut Outbox) -> Flow> Session for Says<F> {
        fn on_frame(&mut self, header: &FrameHeader, _: &[u8], out: &mut Outbox) -> Flow {
            (self.0)(header, out)
        }

        fn on_wake(&mut self, _: &mut Outbox) {}
    }

    fn serving(says: impl Fn(&FrameHeader, &mut Outbox) -> Flow + Clone + Send + Sync + 'static) -> RunningServer {
        let config = ServerConfig::new(([127, 0, 0, 1], 0).into(), hello(), Arc::new(SystemClock::new()));
        let factory = Arc::new(move |_: Peer, _: SessionWaker| Box::new(Says(says.clone())) as Box<dyn Session>);
        Server::start(config, factory).unwrap()
    }

    fn refused(header: &FrameHeader, status: Status, out: &mut Outbox) -> Flow {
        out.error(header, status, &ErrorBody::new("it has not heard of it"));
        Flow::Done
    }

    fn told(header: &FrameHeader, out: &mut Outbox) -> Flow {
        let (name, options) = ("new".to_owned(), StreamOptions::default());
        out.respond(header, &StreamInfo { id: StreamId(7), name, created_ms: 1, options });
        Flow::Done
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    /// One that is cut off, or was until just now, has not heard of what was made meanwhile.
    #[test]
    fn a_stream_that_one_node_does_not_know_is_looked_for_at_the_others() {
        // Whichever is asked first is that one.
        let behind = Arc::new(OnceLock::new());
        let [one, other] = [1, 2].map(|node| {
            let behind = Arc::clone(&behind);
            serving(move |header, out| match *behind.get_or_init(|| node) == node {
                true => refused(header, Status::UnknownStream, out),
                false => told(header, out),
            })
        });
        block_on(async {
            let client = Client::connect(format!("{},{}", one.local_addr(), other.local_addr())).await.unwrap();
            assert_eq!(client.admin().find_stream("new").await.unwrap().id, StreamId(7));
        });
    }

    /// The node knows of the stream a moment before it is told whose its streamlets are, and another one that is asked beside it knows of neither.
    #[test]
    fn owners_of_a_stream_that_was_just_found_are_asked_for_again() {
        for status in [Status::NotReady, Status::UnknownStream] {
            let asked = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&asked);
            let server = serving(move |header, out| match counted.fetch_add(1, Ordering::SeqCst) {
                0 => refused(header, status, out),
                _ => Behind.on_frame(header, &[], out),
            });
            block_on(async {
                let client = Client::connect(server.local_addr().to_string()).await.unwrap();
                assert_eq!(client.placement_of_found(StreamId(7)).await.unwrap().version(), VERSION);
            });
            assert_eq!(asked.load(Ordering::SeqCst), 2);
        }
    }

    /// Both have one number. Between them the owners have changed, and the run that was to come begins on the first one by then.
    #[test]
    fn pages_of_owners_of_which_none_has_some_streamlet_are_asked_for_again() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let server = serving(move |header, out| {
            let run = |count| OwnerRun { first: StreamletId(0), count, step: 1, node: 1, epoch: 4, older: Vec::new() };
            let (runs, more) = match counted.fetch_add(1, Ordering::SeqCst) {
                0 => (vec![run(1)], true),
                1 => (Vec::new(), false),
                _ => (vec![run(2)], false),
            };
            let streams = vec![StreamOwners { stream: StreamId(7), streamlets: 2, runs }];
            let nodes = Vec::new();
            out.respond(header, &Owners { cluster: [1; 16], version: VERSION, node: 1, nodes, streams, more });
            Flow::Done
        });
        block_on(async {
            let client = Client::connect(server.local_addr().to_string()).await.unwrap();
            let found = client.placement(StreamId(7)).await.unwrap();
            assert_eq!([0, 1].map(|streamlet| found.owner(streamlet).1), [4; 2]);
        });
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    /// A node that is of no cluster says so of all streams. Where it is the only one that answers a consumer ended for which its cluster was only down.
    #[test]
    fn only_a_node_of_its_cluster_says_that_a_stream_is_gone() {
        let said = |cluster: [u8; 16]| {
            let asked = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&asked);
            let server = serving(move |header, out| match counted.fetch_add(1, Ordering::SeqCst) {
                0 => refused(header, Status::UnknownStream, out),
                _ => {
                    let (node, nodes, streams) = (u32::from(cluster != [0; 16]), Vec::new(), Vec::new());
                    out.respond(header, &Owners { cluster, version: VERSION, node, nodes, streams, more: false });
                    Flow::Done
                }
            });
            let found = block_on(async {
                let client = Client::connect(server.local_addr().to_string()).await.unwrap();
                let known = Arc::new(Placement::of_three(VERSION, vec![Owner::default()]));
                client.ask_nodes(StreamId(7), Some(known), ASK_TIMEOUT).await
            });
            (found.unwrap_err().status(), asked.load(Ordering::SeqCst))
        };
        assert_eq!(said([1; 16]), (Some(Status::UnknownStream), 2));
        assert_eq!([[0; 16], [2; 16]].map(said), [(Some(Status::NotReady), 2); 2]);
    }

    #[test]
    fn a_stream_that_may_be_there_is_asked_for_again_and_one_that_may_not_is_not() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        // Of two requests one finds a node that is killed.
        let server = serving(move |header, out| match counted.fetch_add(1, Ordering::SeqCst) % 2 {
            0 => Flow::Close("it is killed".into()),
            _ => told(header, out),
        });
        block_on(async {
            let builder = Client::builder(server.local_addr().to_string()).retry_timeout(Duration::from_secs(600));
            let admin = builder.connect().await.unwrap().admin();
            let ensured = admin.ensure_stream("new", StreamOptions::default()).await;
            assert_eq!((ensured.unwrap().id, asked.load(Ordering::SeqCst)), (StreamId(7), 2));
            let created = admin.create_stream("new", StreamOptions::default()).await;
            assert!(created.is_err_and(|error| error.could_duplicate()), "it may have been made");
            assert_eq!(asked.load(Ordering::SeqCst), 3);
        });
    }

    #[test]
    fn a_failure_that_took_longer_than_is_tried_is_tried_again() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut tries = Tries::new(OTHERS_TIMEOUT);
            let silent = || RpcError::Timeout { address: "host:1".into(), after: Duration::from_secs(30) };
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert!(tries.again(silent(), false).await.is_err(), "it may have been done");
            let mut tries = Tries::new(OTHERS_TIMEOUT);
            tokio::time::sleep(Duration::from_secs(30)).await;
            assert!(tries.again(silent(), true).await.is_ok());
            tokio::time::sleep(OTHERS_TIMEOUT).await;
            assert!(tries.again(silent(), true).await.is_err(), "its time is up");
        });
    }

    #[test]
    fn a_node_that_does_not_answer_is_not_waited_for_when_others_know_nothing_new() {
        let config = ServerConfig::new(([127, 0, 0, 1], 0).into(), hello(), Arc::new(SystemClock::new()));
        let factory = Arc::new(|_: Peer, _: SessionWaker| Box::new(Behind) as Box<dyn Session>);
        let server = Server::start(config, factory).unwrap();
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // Nothing here may be saved by a time that is up.
            let never = Duration::from_secs(600);
            let addresses = vec![gone.local_addr().unwrap().to_string(), server.local_addr().to_string()];
            let client = Client::builder(addresses.join(",")).connect_timeout(never).unconnected(addresses);
            let known = Arc::new(Placement::of_three(VERSION, Vec::new()));
            let asking = client.ask_nodes(StreamId(7), Some(known), never);
            let found = tokio::time::timeout(Duration::from_secs(60), asking)
                .await
                .expect("it waits for the node that is gone");
            assert_eq!(found.unwrap().version(), VERSION);
        });
    }
}
