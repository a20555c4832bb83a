//! `docs/protocol.md` against the code.

use kera_format::cluster::RaftPlace;
use kera_format::vlog_replica::LogId;
use kera_format::{Cursor, StreamOptions};
use kera_protocol::groups::LeasedGroup;
use kera_protocol::placement::{ChunkMark, KeptGroup, LaneState, ProducerState};
use kera_protocol::spec::{Documented, FieldDoc};
use kera_protocol::*;

use crate::support::documents;

/// A doc comment as it reads in a document.
fn prose(doc: &str) -> String {
    let doc = doc.replace("[`crate::limits::PAGE_ITEMS_MAX`]", &limits::PAGE_ITEMS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::WAIT_MS_MAX`]", &limits::WAIT_MS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::READ_ENTRIES_MAX`]", &limits::READ_ENTRIES_MAX.to_string());
    let doc = doc.replace("[`crate::limits::OWNER_STREAMS_MAX`]", &limits::OWNER_STREAMS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::COMMIT_ENTRIES_MAX`]", &limits::COMMIT_ENTRIES_MAX.to_string());
    let doc = doc.replace("[`crate::limits::FLOORS_MAX`]", &limits::FLOORS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::REBUILD_RUNS_MAX`]", &limits::REBUILD_RUNS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::REBUILD_LOGS_MAX`]", &limits::REBUILD_LOGS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::USED_ENDS_MAX`]", &limits::USED_ENDS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::LOAD_STREAMLETS_MAX`]", &limits::LOAD_STREAMLETS_MAX.to_string());
    let doc = doc.replace("[`crate::limits::BALANCE_MOVES_MAX`]", &limits::BALANCE_MOVES_MAX.to_string());
    let doc = doc.replace("[`GroupId::NONE`]", "zero").replace("[`ENTRY_FOLLOW_GROUPS`]", "1: follow groups");
    let doc = doc.replace("[`ENTRY_UNCOMMITTED`]", "2: also what is not committed");
    let doc = doc.replace("[`crate::PlanBalance`]", "`PlanBalance`");
    let doc = doc.replace(", see [`kera_format::limits::name_is_valid`]", ": 1 to 249 of `a-z A-Z 0-9 . _ -`");
    let doc = doc.replace(", see [`StreamOptions::check`]", "").replace(", see [`crate::Status`]", "");
    let doc = doc.replace("`Some(None)`", "present, but with an absent value,").replace("`None`", "absent");
    let doc = doc.replace("`Some`", "present").replace("[`crate::Status::", "[`");
    assert!(!doc.contains("crate::") && !doc.contains("::"), "a link that a document cannot have: {doc}");
    doc.replace("[`", "`").replace("`]", "`")
}

fn table(fields: &[FieldDoc]) -> String {
    if fields.is_empty() {
        return "No fields.\n".into();
    }
    let row = |field: &FieldDoc| format!("| `{}` | {} | {} |\n", field.name, field.kind, prose(&field.doc));
    let rows: String = fields.iter().map(row).collect();
    format!("| field | kind | meaning |\n| --- | --- | --- |\n{rows}")
}

/// What a body has; of one that is not written field by field, where the document shows its layout.
fn section<T: Documented>(title: &str) -> String {
    let elsewhere = match T::NAME {
        "Empty" | "NodeStatus" => Some("no body."),
        "WriteChunks" | "WriteChunksResponse" => Some("see [Producing](#producing)."),
        "ReadChunksResponse" => Some("see [Consuming freely](#consuming-freely)."),
        _ => None,
    };
    if let Some(elsewhere) = elsewhere {
        return format!("{title}: {elsewhere}\n\n");
    }
    let name = if title == "Request" { String::new() } else { format!(" `{}`", T::NAME) };
    format!("{title}{name}: {}\n\n{}\n", prose(&T::doc()), table(&T::fields()))
}

macro_rules! all_messages {
    ($($name:ident),+ $(,)?) => {
        fn messages() -> String {
            let mut out = String::new();
            $(
                out += &format!("### {} = {}\n\n", stringify!($name), $name::OP as u16);
                out += &section::<$name>("Request");
                out += &section::<<$name as Message>::Response>("Response");
            )+
            out + &parts()
        }
    };
}
for_each_message!(all_messages);

/// Structs that are parts of messages.
fn parts() -> String {
    macro_rules! structs {
        ($($name:ident),+) => { [$((<$name as Documented>::NAME, prose(&$name::doc()), $name::fields())),+] };
    }
    let parts = structs!(
        ApplicationSummary,
        BlockHead,
        BlockRange,
        ChunkMark,
        CommitEntry,
        CommittedOffset,
        Cursor,
        DiskStatus,
        GroupInfo,
        KeptGroup,
        LaneProgress,
        LaneState,
        LaneStats,
        LeaseInfo,
        LeasedGroup,
        LogEnd,
        LogId,
        LogView,
        LostLog,
        MemberInfo,
        MemberNode,
        MissingBlocks,
        NodeInfo,
        OlderGroups,
        OpRange,
        OwnLog,
        PlannedMove,
        PlannedNode,
        ProducerPlace,
        RebuildRange,
        ReplicaInfo,
        ReplicatedLane,
        SegmentPart,
        SharedSetting,
        StreamletRef,
        OwnerRun,
        ProducerState,
        RaftBallot,
        RaftPlace,
        ReadEntry,
        SegmentInfo,
        StreamChanges,
        StreamInfo,
        StreamOptions,
        StreamOwners,
        StreamletLoad,
        StreamletRange,
        StreamletState,
        UsedEnd
    );
    let section =
        |(name, doc, fields): &(&str, String, Vec<FieldDoc>)| format!("#### {name}\n\n{doc}\n\n{}\n", table(fields));
    let sections: String = parts.iter().map(section).collect();
    format!("### Parts of messages\n\n{sections}")
}

fn operations() -> String {
    let row = |op: &Op| {
        let range = op.versions();
        format!(
            "| {} | [{op}](#{}--{}) | {} to {} |\n",
            *op as u16,
            op.name().to_lowercase(),
            *op as u16,
            range.start(),
            range.end()
        )
    };
    let rows: String = Op::ALL.iter().map(row).collect();
    format!("| number | operation | versions |\n| --- | --- | --- |\n{rows}")
}

fn statuses() -> String {
    let yes = |yes: bool| if yes { "yes" } else { "" };
    let row = |status: &Status| {
        let (retry, twice) = (yes(status.retryable()), yes(status.could_duplicate()));
        format!("| {} | {status} | {retry} | {twice} | {} |\n", *status as u16, status.hint())
    };
    let rows: String = Status::ALL.iter().map(row).collect();
    format!("| number | status | retry | twice | what to do |\n| --- | --- | --- | --- | --- |\n{rows}")
}

#[test]
fn the_protocols_page_says_what_the_code_does() {
    documents::check("protocol.md", |what| match what {
        "operations" => Some(operations()),
        "messages" => Some(messages()),
        "statuses" => Some(statuses()),
        _ => None,
    });
}
