//! What `kera consume` says of where it was told to begin, where that has no effect, or where there is nothing behind it yet. What it has to ask for
//! that it asks once and does not wait for: without an answer nothing is said.

use kera_client::{Client, Start, StreamInfo};

use crate::cli::ConsumeArgs;
use crate::commands::status::soon;
use crate::numbers::are_meant;

/// What to say before it begins; nothing if it begins where it was told to.
pub async fn word(
    client: &Client,
    stream: &StreamInfo,
    args: &ConsumeArgs,
    from: Start,
    begun_ms: i64,
) -> Option<String> {
    let asked = args.from.as_deref().or(args.from_beginning.then_some("earliest"))?;
    if let Some(application) = &args.application
        && let Some(Ok(_)) = soon(client.admin().offsets(stream.id, application)).await
    {
        return Some(goes_on(application, &stream.name, asked));
    }
    match from {
        Start::Ordinal(ordinal) => {
            let held = soon(client.admin().stream_stats(stream.id)).await?.ok()?;
            let of_streamlets = held.lanes.iter().filter(|lane| are_meant(&args.streamlets, lane.streamlet.0));
            let meant = of_streamlets.filter(|lane| are_meant(&args.lanes, lane.lane.0));
            let end = meant.map(|lane| lane.durable_ordinal).max().unwrap_or(0);
            let is_known = held.unheard.is_empty();
            (is_known && ordinal > end).then(|| behind_the_end(asked, &format!("the longest lane ends at {end}"), args))
        }
        Start::TimeMs(ms) => (ms > begun_ms).then(|| behind_the_end(asked, "that time is still to come", args)),
        Start::Earliest | Start::Latest => None,
    }
}

/// An application that is there goes on where it was: its first consumer said where it begins, in what it has not read as well.
fn goes_on(application: &str, stream: &str, asked: &str) -> String {
    format!(
        "{application} goes on where it was in {stream}: --from {asked} counts only for the first consumer of an application; \
         `kera application reset {application} --stream {stream} --to {asked}` has it go on there, while it has no consumers"
    )
}

fn behind_the_end(asked: &str, why: &str, args: &ConsumeArgs) -> String {
    let then = match (args.follow, &args.application) {
        (true, None) => "what comes from now on is read",
        (true, Some(_)) => "nothing is read before there is more",
        (false, None) => "there is nothing to read; --last N reads the last records",
        (false, Some(_)) => "there is nothing to read",
    };
    format!("--from {asked} is behind the end ({why}): {then}")
}
