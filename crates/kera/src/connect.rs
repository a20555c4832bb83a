//! From the command line to a node: connecting, and errors that say what to do next.

use std::time::Duration;

use kera_client::{Client, ClientError, Status, StreamInfo};
use kera_format::limits::name_is_valid;
use kera_protocol::NO_MAJORITY;
use kera_server::suggest::nearest;
use tokio::time::{sleep, timeout};

use crate::cli::Globals;
use crate::error::CliError;
use crate::output::{counted, say};

/// A command that takes no longer is not looked after.
const WAITS_AFTER: Duration = Duration::from_millis(1500);
/// Looks at what a command waits for: a node that most coordinators have left knows it after five seconds.
const LOOKS: usize = 6;

/// Connects to the node that the flags name. If the command takes long because most coordinators are away, that is said meanwhile.
///
/// # Errors
/// It cannot be reached.
pub async fn connect(globals: &Globals) -> Result<Client, CliError> {
    let client = Client::builder(&globals.connect).client_name("kera").connect().await;
    if client.is_ok() {
        // Ends with the command.
        tokio::spawn(say_if_no_majority(globals.connect.clone()));
    }
    client.map_err(|error| {
        let explained = explain(&error);
        match (&error, error.status()) {
            // Who speaks something else hangs up, and so does a node that stops.
            (ClientError::Rpc(error), None) if error.to_string().contains("the handshake was not answered") => explained.next(
                "it may be a port for Kafka: --connect names the one for clients, 7070 unless it was set; if it is that, the node has stopped: \
                 start a node with `kera serve`, or name a running one",
            ),
            (ClientError::Rpc(error), None) if error.retryable() => explained
                .next("start a node with `kera serve`, or name a running one with --connect HOST:PORT or KERA_CONNECT"),
            (ClientError::Rpc(_), None) => explained.next(
                "something else than a KerA node answers there, or its port for HTTP or Kafka: --connect names the one for clients, \
                 7070 unless it was set",
            ),
            _ => explained,
        }
    })
}

/// Says once that most coordinators are away, if the node says so: what they decide is waited for without a word for as long as it takes a node to give up.
///
/// By a connection of its own: what the command asks is not in front of it.
async fn say_if_no_majority(address: String) {
    sleep(WAITS_AFTER).await;
    let connected = timeout(WAITS_AFTER, Client::builder(&address).client_name("kera").connect()).await;
    let Ok(Ok(client)) = connected else { return };
    for _ in 0..LOOKS {
        let looked = timeout(WAITS_AFTER, client.admin().node_status()).await;
        let problems = looked.ok().and_then(Result::ok).map(|status| status.problems).unwrap_or_default();
        if let Some(said) = problems.iter().find_map(|problem| lacking(problem)) {
            return say(format_args!("{said}: what they decide waits for most of them"));
        }
        sleep(WAITS_AFTER).await;
    }
}

/// What a node says of who is there and who is not, where it says that most coordinators are away.
pub fn lacking(problem: &str) -> Option<&str> {
    let from = problem.find(NO_MAJORITY)?;
    let (said, rest) = problem[from..].split_at(NO_MAJORITY.len());
    match rest.strip_prefix(": ") {
        Some(who) => {
            let end = who.find([':', ';']).unwrap_or(who.len());
            Some(&problem[from..from + said.len() + 2 + end])
        }
        None => Some(said),
    }
}

/// What a stream may be called.
pub const NAMES: &str = "use 1 to 249 of the characters a-z A-Z 0-9 . _ -";

/// A stream by name, if there is one. A node of a cluster may not have heard of it yet: then the others are asked, and for a moment. One that is alone knows all that there are.
///
/// # Errors
/// The node cannot be asked.
pub async fn look_for(client: &Client, name: &str) -> Result<Option<StreamInfo>, CliError> {
    let is_unknown = |error: &ClientError| error.status() == Some(Status::UnknownStream);
    let mut found = client.admin().stream(name).await;
    if found.as_ref().is_err_and(is_unknown) {
        let is_alone = client.admin().describe_cluster().await.is_ok_and(|cluster| cluster.nodes.is_empty());
        if !is_alone {
            found = client.admin().find_stream(name).await;
        }
    }
    match found {
        Ok(info) => Ok(Some(info)),
        Err(error) if is_unknown(&error) => Ok(None),
        Err(error) => Err(explain(&error)),
    }
}

/// The same, or an error with the name that was meant.
///
/// # Errors
/// There is none, or the node cannot be asked.
pub async fn find_stream(client: &Client, name: &str) -> Result<StreamInfo, CliError> {
    match look_for(client, name).await? {
        Some(info) => Ok(info),
        None => Err(no_such_stream(client, name).await),
    }
}

/// There is no stream of a name: what to do about it.
pub async fn no_such_stream(client: &Client, name: &str) -> CliError {
    let streams = client.admin().streams("", false).await.unwrap_or_default();
    let error = CliError::failure(format!("there is no stream `{name}`"));
    match nearest(name, streams.iter().map(|s| s.name.as_str())) {
        Some(meant) => error.next(format!("did you mean `{meant}`? `kera stream list` shows all")),
        None if !name_is_valid(name) => error.next(format!("{NAMES}; `kera stream list` shows all that there are")),
        None if streams.is_empty() => {
            error.next(format!("there are no streams yet; make it with `kera stream create {name}`"))
        }
        None => error.next(format!("make it with `kera stream create {name}`, or look at `kera stream list`")),
    }
}

/// Refuses streamlets that a stream does not have.
///
/// # Errors
/// It has not all of them.
pub fn check_streamlets(stream: &StreamInfo, named: &[u32]) -> Result<(), CliError> {
    check_numbers("streamlet", stream.options.streamlets, named, (&stream.name, "it has"))
}

/// Refuses lanes that the streamlets of a stream do not have.
///
/// # Errors
/// They have not all of them.
pub fn check_lanes(stream: &StreamInfo, named: &[u32]) -> Result<(), CliError> {
    check_numbers("lane", stream.options.lanes, named, (&format!("the streamlets of {}", stream.name), "each has"))
}

fn check_numbers(what: &str, has: u32, named: &[u32], (place, it_has): (&str, &str)) -> Result<(), CliError> {
    let Some(wrong) = named.iter().find(|number| **number >= has) else { return Ok(()) };
    let error = CliError::usage(format!("there is no {what} {wrong} in {place}"));
    Err(error.next(format!("{it_has} {}, numbered from 0", counted(has.into(), what))))
}

/// What a client's error means at the command line.
pub fn explain(error: &ClientError) -> CliError {
    if let ClientError::Partly { error: inner, .. } = error {
        let (text, why) = (error.to_string(), inner.to_string());
        let what = text.strip_suffix(&why).unwrap_or(&text);
        let of_rest = explain(&ClientError::Rpc((**inner).clone()));
        let again = "give the command again: where it is done it is only done once more";
        let next = match of_rest.next_step.as_str() {
            "" => again.to_owned(),
            first => format!("{first}; then {again}"),
        };
        return CliError::failure(format!("{what}{}", of_rest.message)).next(next);
    }
    let text = error.to_string();
    // The status is for programs; its hint says the same to people.
    let prefix = error.status().map_or(String::new(), |status| format!("{status:?}: "));
    let failure = CliError::failure(text.strip_prefix(&prefix).unwrap_or(&text));
    if text.contains(NO_MAJORITY) {
        let first = error.status().filter(|status| *status == Status::Timeout).map(next_step);
        return failure.next(first.map_or_else(|| OF_MAJORITY.to_owned(), |first| format!("{first}; {OF_MAJORITY}")));
    }
    match (error, error.status()) {
        (_, Some(status)) if next_step(status).is_empty() => with_own_advice(&failure.message),
        (_, Some(status)) => failure.next(next_step(status)),
        // A node answered at first: this is another one of its cluster, or it has gone away meanwhile.
        (ClientError::Rpc(error), None) if error.retryable() => {
            failure.next("`kera status` shows which nodes are lost and what waits for them; start that one again")
        }
        _ => failure,
    }
}

/// A message that ends with what to do, as a command or a document to look at.
fn with_own_advice(message: &str) -> CliError {
    match message.rsplit_once("; ") {
        Some((what, next)) if next.starts_with("`kera ") || next.starts_with("docs/") => {
            CliError::failure(what).next(next)
        }
        _ => CliError::failure(message),
    }
}

/// The message of a node without its status, which is for programs, and what to do next; for who has it only as text.
pub fn told(text: &str) -> (&str, Option<&'static str>) {
    let status = |status: &&Status| text.starts_with(&format!("{status:?}: "));
    match Status::ALL.iter().find(status) {
        Some(status) => {
            let message = text.split_once(": ").map_or(text, |(_, message)| message);
            (message, Some(if message.contains(NO_MAJORITY) { OF_MAJORITY } else { next_step(*status) }))
        }
        None => (text, None),
    }
}

/// What to do where a node hears no majority of the coordinators. It does not pass by itself, as other things do of the same status.
pub const OF_MAJORITY: &str = "if they run, the node that was asked is cut off: ask another one; otherwise start one of them, or as many as make a majority; only if they are gone for good: `kera cluster recover`";

/// What to do next, in the words of the command line where it has its own.
fn next_step(status: Status) -> &'static str {
    match status {
        Status::StreamExists => "choose another name, or pass --if-not-exists",
        Status::UnknownApplication => {
            "`kera application list` shows all; `kera consume STREAM --application` makes one"
        }
        Status::UnknownStream => "`kera stream list` shows all; `kera stream create` makes one",
        // What was asked for may be done by now, and is refused then.
        Status::Timeout => "look whether it is done before you give the command again",
        // What is refused is not always a field, and the message says what would be right.
        Status::InvalidArgument | Status::InvalidName => "",
        other => other.hint(),
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> CliError {
        explain(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_not_followed_by_advice_that_makes_no_sense() {
        for status in [Status::InvalidArgument, Status::InvalidName] {
            assert_eq!(next_step(status), "", "{status}");
        }
        assert!(!next_step(Status::DiskFull).is_empty());
    }

    #[test]
    fn what_a_node_advises_in_its_message_is_the_next_step() {
        let told = |message: &str| {
            let CliError { message, next_step, .. } = with_own_advice(message);
            (message, next_step)
        };
        let said = told("there is no node 9 in the cluster; `kera status` shows all");
        assert_eq!(said, ("there is no node 9 in the cluster".into(), "`kera status` shows all".into()));
        assert_eq!(told("one; two").0, "one; two");
    }

    #[test]
    fn where_most_coordinators_are_away_it_is_said_who_and_what_to_do() {
        let who = "no majority of the coordinators: node 1 does not hear nodes 2 and 3";
        for rest in ["", ": nothing is read here", "; a node that has not heard from most of them"] {
            let message = format!("{who}{rest}");
            assert_eq!(lacking(&message), Some(who));
            assert_eq!(told(&format!("Fenced: {message}")), (message.as_str(), Some(OF_MAJORITY)));
        }
        assert_eq!(lacking("no majority of the coordinators has been heard of"), Some(NO_MAJORITY));
        assert_eq!(lacking("the disk is full"), None);
    }
}
