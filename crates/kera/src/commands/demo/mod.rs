//! `kera demo`: a node in this process, three weeks of real flights streamed through it, a live view, and proof that a
//! consumer that was stopped goes on where it was.
//!
//! The node runs on threads of its own; the producer, the two consumers and the view are tasks of the main thread.

mod board;
mod flights;
mod story;
mod view;

use std::fs;
use std::path::Path;

use kera_server::config::{Config, Sources, load};
use kera_server::fatal::Fatal;
use kera_server::units::{MIB, human_bytes, human_count};
use kera_server::{Node, forget_arena};
use serde_json::json;

use crate::cli::{DemoArgs, Globals};
use crate::error::{CliError, EXIT_INTERRUPTED};
use crate::output::{print, print_json};
use crate::signals;
use story::{Outcome, Story};

/// Marks a directory as made by a demo: only such a one is ever emptied.
const MARK: &str = "made-by-kera-demo";
/// Enough for all flights several times.
const ARENA_BYTES: u64 = 256 * MIB;

/// Runs the demo.
///
/// # Errors
/// The directory is not the demo's, the node does not start, or something was lost.
pub fn run(args: &DemoArgs, globals: &Globals) -> Result<(), CliError> {
    let config = demo_config(&args.data)?;
    prepare(&config)?;
    let node = Node::start(&config).map_err(|fatal| CliError::from(&fatal))?;
    node.tell_ready();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::failure(format!("cannot start: {error}")))?;
    let address = node.address().to_string();
    let done = runtime.block_on(async {
        let mut wishes = signals::listen(&[])?;
        let outcome = tokio::select! {
            outcome = Story::run(&address, args, globals.json) => outcome?,
            _ = wishes.next() => return Err(CliError { exit: EXIT_INTERRUPTED, ..CliError::failure("the demo was interrupted") }),
        };
        tell(&outcome, args, globals, &node)?;
        if args.keep {
            wishes.next().await;
        }
        Ok(())
    });
    runtime.shutdown_background();
    node.stop();
    done
}

/// A directory that is empty or an earlier demo's, emptied and marked.
fn prepare(config: &Config) -> Result<(), CliError> {
    let data: &Path = &config.node.data;
    let cannot = |error: std::io::Error| {
        CliError::failure(format!("{} cannot be used: {error}", data.display()))
            .next("choose another directory with --data")
    };
    let entries = match fs::read_dir(data) {
        Ok(entries) => entries.count(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(error) => return Err(cannot(error)),
    };
    if entries > 0 {
        if !data.join(MARK).exists() {
            let message = format!("{} holds something that no demo made", data.display());
            return Err(CliError::failure(message).next("choose another directory with --data, or empty it yourself"));
        }
        // A node that still runs there keeps its lock; deleting under it would be rude.
        drop(
            kera_env::DirLock::acquire(&data.join("LOCK"))
                .map_err(|error| CliError::from(&Fatal::locked(data, error)))?,
        );
        forget_arena(config);
        fs::remove_dir_all(data).map_err(cannot)?;
    }
    fs::create_dir_all(data).map_err(cannot)?;
    fs::write(data.join(MARK), "`kera demo` empties this directory when it starts.\n").map_err(cannot)
}

fn demo_config(data: &str) -> Result<Config, CliError> {
    let flag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let sources = Sources {
        flags: vec![
            flag("data", data),
            flag("listen", "127.0.0.1:0"),
            flag("http-listen", "127.0.0.1:0"),
            flag("kafka-listen", "127.0.0.1:0"),
        ],
        ..Sources::default()
    };
    let mut config = load(&sources).map_err(|mistakes| CliError::failure(mistakes.to_string()))?.config;
    let room = kera_server::arena_bytes_auto(&config);
    config.arena.bytes = Some(room.min(ARENA_BYTES));
    Ok(config)
}

fn tell(outcome: &Outcome, args: &DemoArgs, globals: &Globals, node: &Node) -> Result<(), CliError> {
    let Outcome { written, read, stopped_at, caught_up, seconds, bytes } = *outcome;
    if globals.json {
        print_json(&json!({
            "written": written, "read": read, "stopped_at": stopped_at, "caught_up_records": caught_up,
            "seconds": seconds, "value_bytes": bytes, "nothing_lost": written == read,
        }))?;
    } else {
        let rate = (written as f64 / seconds.max(1e-9)) as u64;
        let mut text = format!(
            "\n{} flights ({}) were written and read in {seconds:.1} s, {} a second.\n",
            human_count(written),
            human_bytes(bytes),
            human_count(rate)
        );
        text.push_str(&format!(
            "The consumers were stopped after flight {}, and {} more came in meanwhile.\n\
             Started again, they went on at flight {}: none lost, none twice.\n\nTry next:\n",
            human_count(stopped_at),
            human_count(caught_up),
            human_count(stopped_at + 1),
        ));
        let (data, address) = (&args.data, node.address());
        if args.keep {
            let http = node.http_address().map_or(String::new(), |http| format!("  curl http://{http}/metrics\n"));
            text.push_str(&format!(
                "  export KERA_CONNECT={address}       this node keeps running until Ctrl-C\n\
                 \x20 kera top                                  watch it\n{http}"
            ));
        } else {
            text.push_str(&format!("  kera serve --data {data}             the same node with the same flights, then in another terminal:\n"));
        }
        text.push_str(
            "  kera stream describe flights\n\
             \x20 kera consume flights --from earliest --max 5 --format json\n\
             \x20 kera consume flights --application report --from earliest --follow\n\
             \x20 kera application list\n\
             \nThe guide is docs/guide.md.\n",
        );
        print(&text)?;
    }
    if written == read {
        Ok(())
    } else {
        Err(CliError::failure(format!("{written} were written and {read} were read")))
    }
}
