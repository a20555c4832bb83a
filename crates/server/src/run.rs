//! `kera serve` behind the command line: a node, and the signals that end it.

use std::future::Future;
use std::process;

use tokio::signal::unix::SignalKind;

use crate::again;
use crate::config::Config;
use crate::fatal::Fatal;
use crate::node::Node;
use crate::signals::Wishes;

/// Exit status after a second signal, as shells report an interrupt.
const EXIT_AT_ONCE: i32 = 130;

/// What is said of a node that had started: its arena is there.
const ATTACHES: &str = "the next start attaches the arena";
/// What is said of one that had not: there may be no arena, and its records are wherever they were.
const GOES_ON: &str = "the next start finds all that there was before this one";

/// Runs a node until SIGINT or SIGTERM, then stops it gracefully. Another signal, unless it goes with the first one ([`Wishes`]), ends the
/// process at once.
///
/// # Errors
/// The node does not start, or signals cannot be waited for.
pub fn serve(config: &Config) -> Result<(), Fatal> {
    let cannot = |error| Fatal::Resources { what: "waiting for signals", error };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(cannot)?;
    let mut wishes = {
        let _inside = runtime.enter();
        Wishes::listen(&[SignalKind::interrupt(), SignalKind::terminate()]).map_err(cannot)?
    };
    let node = match start_unless_signalled(&runtime, &mut wishes, config) {
        Ok(node) => node,
        Err(error) => return Err(not_started(&runtime, &mut wishes, error)),
    };
    // Not before the start is over: until then a signal ends the process at once.
    node.tell_ready();
    let name = runtime.block_on(wishes.next());
    tracing::info!(signal = name, "stopping; another signal, after a second, stops at once");
    let (done, stopped) = tokio::sync::oneshot::channel();
    let stopping = std::thread::Builder::new().name("kera-stop".into()).spawn(move || {
        node.stop();
        let _ = done.send(());
    });
    let stopping = stopping.map_err(cannot)?;
    runtime.block_on(at_once_on(&mut wishes, stopped, ATTACHES));
    if stopping.join().is_err() {
        let reason = "it panicked".to_owned();
        return Err(Fatal::PartEnded { what: "the graceful stop", reason });
    }
    Ok(())
}

/// The node does not start. If it has started itself, and what it lacks may be there in a moment, the program is executed once more: that
/// leaves nothing of what had started already.
fn not_started(runtime: &tokio::runtime::Runtime, wishes: &mut Wishes, error: Fatal) -> Fatal {
    let Some(next) = again::next_try(again::this_try(), &error) else { return error };
    tracing::warn!(%error, next, "the next incarnation of this node does not start; it is tried again");
    runtime.block_on(async { at_once_on(wishes, tokio::time::sleep(again::PAUSE), GOES_ON).await });
    let cannot = again::execute(next);
    tracing::error!(error = %cannot, "the node cannot start again by itself; start it");
    error
}

/// A start may take long; a signal meanwhile ends the process, which loses nothing.
fn start_unless_signalled(
    runtime: &tokio::runtime::Runtime,
    wishes: &mut Wishes,
    config: &Config,
) -> Result<Node, Fatal> {
    let config = config.clone();
    let (done, started) = tokio::sync::oneshot::channel();
    let starting = std::thread::Builder::new().name("kera-start".into()).spawn(move || {
        let node = Node::start(&config);
        let _ = done.send(());
        node
    });
    let starting = starting.map_err(|error| Fatal::Resources { what: "the start", error })?;
    runtime.block_on(at_once_on(wishes, started, GOES_ON));
    let panicked = |_| Fatal::PartEnded { what: "the start", reason: "it panicked".to_owned() };
    starting.join().map_err(panicked)?
}

/// Ends the process at a signal that comes before something is done, and says what the next start does.
async fn at_once_on<T>(wishes: &mut Wishes, done: impl Future<Output = T>, next: &'static str) {
    tokio::select! {
        biased;
        _ = done => {}
        name = wishes.next() => {
            tracing::warn!(signal = name, "stopped at once; {next}");
            process::exit(EXIT_AT_ONCE);
        }
    }
}
