//! An answer in a form that can be compared: a tree of its fields, without what may differ between two brokers.
//!
//! [`RULES`] is the list of fields that may differ, each with its reason; what only one of them tells of the rest, `Side::readable` takes
//! out.

use std::collections::HashMap;
use std::fmt::Write;

use super::batches::NOW_MS;

/// What is done with a field before answers are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deal {
    /// It is passed over.
    Drop,
    /// Each broker makes its own values: the first that is seen is #1, the second #2. `-1`, nothing and zeros stay.
    Name,
    /// The order of the list is nobody's business.
    Sort,
}

/// A field that may differ: of which answer (`""`: any), its name, and why.
struct Rule {
    of: &'static str,
    field: &'static str,
    deal: Deal,
    why: &'static str,
}

const fn rule(of: &'static str, field: &'static str, deal: Deal, why: &'static str) -> Rule {
    Rule { of, field, deal, why }
}

/// What may differ, and why.
const RULES: &[Rule] = &[
    rule("", "unknown_tagged_fields", Deal::Drop, "none are sent; the decoder shows an empty map"),
    rule("", "throttle_time_ms", Deal::Drop, "there are no quotas"),
    rule("", "error_message", Deal::Drop, "sentences are for people; the codes are compared"),
    rule("Produce", "batch_index_error_message", Deal::Drop, "sentences are for people; the places are compared"),
    rule("", "topic_id", Deal::Name, "each broker makes its own"),
    rule("", "producer_id", Deal::Name, "each broker makes its own"),
    rule("", "member_id", Deal::Name, "each broker makes its own"),
    rule("", "leader", Deal::Name, "member ids, each broker makes its own"),
    rule("Fetch", "session_id", Deal::Name, "each broker makes its own"),
    rule("", "cluster_id", Deal::Drop, "each broker makes its own"),
    rule("", "host", Deal::Drop, "where it listens"),
    rule("", "port", Deal::Drop, "where it listens"),
    rule("DescribeLogDirs", "log_dir", Deal::Drop, "where its data is"),
    rule(
        "DescribeLogDirs",
        "partition_size",
        Deal::Drop,
        "chunks have a header of their own, and batches of markers differ",
    ),
    rule("DescribeLogDirs", "total_bytes", Deal::Drop, "the size of a volume is not told"),
    rule("DescribeLogDirs", "usable_bytes", Deal::Drop, "the size of a volume is not told"),
    rule("DescribeLogDirs", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DescribeLogDirs", "partitions", Deal::Sort, "Kafka's order is that of a hash table"),
    rule(
        "",
        "configs",
        Deal::Drop,
        "each broker has settings of its own; which are served is in docs/kafka-compatibility.md",
    ),
    rule("DescribeTransactions", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DescribeTransactions", "partitions", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DescribeProducers", "active_producers", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DescribeProducers", "last_timestamp", Deal::Drop, "lanes do not keep it"),
    rule("DescribeProducers", "coordinator_epoch", Deal::Drop, "there is one coordinator"),
    rule("ListConfigResources", "config_resources", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DescribeTransactions", "transaction_start_time_ms", Deal::Drop, "a time of day"),
    rule("Metadata", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("Metadata", "partitions", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DescribeTopicPartitions", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("CreateTopics", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DeleteTopics", "responses", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DeleteRecords", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DeleteRecords", "partitions", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("Produce", "responses", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("Produce", "partition_responses", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("Fetch", "responses", Deal::Sort, "Kafka puts refused partitions first"),
    rule("Fetch", "partitions", Deal::Sort, "Kafka puts refused partitions first"),
    rule("ListOffsets", "topics", Deal::Sort, "Kafka puts refused topics first"),
    rule("ListOffsets", "partitions", Deal::Sort, "Kafka puts refused partitions first"),
    rule("OffsetForLeaderEpoch", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("OffsetCommit", "topics", Deal::Sort, "Kafka puts refused topics first"),
    rule("OffsetCommit", "partitions", Deal::Sort, "Kafka puts refused partitions first"),
    rule("OffsetFetch", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("OffsetFetch", "partitions", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("OffsetDelete", "topics", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("OffsetDelete", "partitions", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("TxnOffsetCommit", "topics", Deal::Sort, "Kafka puts refused topics first"),
    rule("AddPartitionsToTxn", "results_by_topic_v3_and_below", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("AddPartitionsToTxn", "results_by_partition", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("ListGroups", "groups", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DeleteGroups", "results", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("ListTransactions", "transaction_states", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("CreatePartitions", "results", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("AlterConfigs", "responses", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("IncrementalAlterConfigs", "responses", Deal::Sort, "Kafka's order is that of a hash table"),
    rule("DescribeConfigs", "results", Deal::Sort, "Kafka's order is that of a hash table"),
];

fn deal(of: &str, field: &str) -> Option<Deal> {
    let rule = RULES.iter().find(|rule| (rule.of.is_empty() || rule.of == of) && rule.field == field)?;
    debug_assert!(!rule.why.is_empty());
    Some(rule.deal)
}

/// A value of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Node {
    Leaf(String),
    Fields(Vec<(String, Node)>),
    List(Vec<Node>),
}

/// The names that one broker's own values have got.
#[derive(Default)]
pub(crate) struct Names(HashMap<String, HashMap<String, usize>>);

impl Names {
    /// The name that a value has already, nothing otherwise.
    fn known(&self, kind: &str, value: &str) -> String {
        let name = self.0.get(kind).and_then(|known| known.get(value));
        name.map_or(String::new(), |name| format!("#{name:09}"))
    }

    /// The name of a value of this kind.
    pub(crate) fn of(&mut self, kind: &str, value: &str) -> String {
        let nothing = ["-1", "\"\"", "None", "00000000-0000-0000-0000-000000000000"];
        // A producer's id may be 0 in Kafka.
        if nothing.contains(&value) || value == "0" && kind != "producer_id" {
            return value.to_owned();
        }
        let known = self.0.entry(kind.to_owned()).or_default();
        let next = known.len() + 1;
        format!("#{}", known.entry(value.to_owned()).or_insert(next))
    }
}

/// The tree of what `{:#?}` shows of a value.
pub(crate) fn tree(shown: &str) -> Node {
    let mut lines = shown.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    value(first, &mut lines)
}

fn value<'a>(text: &'a str, lines: &mut impl Iterator<Item = &'a str>) -> Node {
    let text = text.strip_suffix(',').unwrap_or(text);
    match text.as_bytes().last() {
        Some(b'{') => {
            let mut fields = Vec::new();
            while let Some(line) = lines.next().filter(|line| !line.starts_with('}')) {
                let (name, rest) = line.split_once(": ").unwrap_or(("?", line));
                fields.push((name.to_owned(), value(rest, lines)));
            }
            Node::Fields(fields)
        }
        Some(open @ (b'[' | b'(')) => {
            let close = if *open == b'[' { ']' } else { ')' };
            let mut all = Vec::new();
            while let Some(line) = lines.next().filter(|line| !line.starts_with(close)) {
                all.push(value(line, lines));
            }
            // `Some(…)` and names around a value say nothing.
            if *open == b'(' && all.len() == 1 { all.remove(0) } else { Node::List(all) }
        }
        _ => Node::Leaf(text.to_owned()),
    }
}

impl Node {
    /// Takes out what may differ in an answer to `of`, and puts what has no order into one.
    pub(crate) fn settle(&mut self, of: &str, names: &Names) {
        match self {
            Node::Leaf(_) => {}
            Node::List(all) => all.iter_mut().for_each(|one| one.settle(of, names)),
            Node::Fields(fields) => {
                fields.retain(|(name, _)| deal(of, name) != Some(Deal::Drop));
                let is_refused =
                    |(name, node): &(String, Node)| name == "error_code" && *node != Node::Leaf("0".to_owned());
                if fields.iter().any(is_refused) {
                    // With some of its refusals Kafka tells where the partition begins; and it has a producer 0, which is what
                    // stands for none in others. No client looks.
                    let untold = match of {
                        "Produce" => "log_start_offset",
                        "DescribeTransactions" => "producer_id",
                        _ => "",
                    };
                    fields.retain(|(name, _)| name != untold);
                }
                for (name, node) in fields {
                    node.settle(of, names);
                    if let (Node::Leaf(time), "timestamp" | "log_append_time_ms") = (&mut *node, name.as_str())
                        && let Ok(ms) = time.parse::<i64>()
                    {
                        // Markers have the time at which a transaction ended, and some topics keep the time of append. Of a
                        // batch that came again Kafka tells the time of its last record as if its topic did.
                        match ms {
                            NOW_MS.. => "a time of day".clone_into(time),
                            0.. if of == "Produce" => "-1".clone_into(time),
                            _ => {}
                        }
                    }
                    if let (Some(Deal::Sort), Node::List(all)) = (deal(of, name), node) {
                        all.sort_by_cached_key(|one| one.shown_with_known(of, names));
                    }
                }
            }
        }
    }

    /// With the names that are given already: new ones are given in this order.
    fn shown_with_known(&self, of: &str, names: &Names) -> String {
        let mut copy = self.clone();
        copy.each_named(of, &mut |kind, value| *value = names.known(kind, value));
        copy.shown()
    }

    /// Gives names to what each broker makes itself.
    pub(crate) fn name(&mut self, of: &str, names: &mut Names) {
        self.each_named(of, &mut |kind, value| *value = names.of(kind, value));
    }

    fn each_named(&mut self, of: &str, each: &mut impl FnMut(&str, &mut String)) {
        match self {
            Node::Leaf(_) => {}
            Node::List(all) => all.iter_mut().for_each(|one| one.each_named(of, each)),
            Node::Fields(fields) => {
                for (name, node) in fields {
                    match node {
                        Node::Leaf(value) if deal(of, name) == Some(Deal::Name) => {
                            each(if name == "leader" { "member_id" } else { name }, value);
                        }
                        _ => node.each_named(of, each),
                    }
                }
            }
        }
    }

    /// All codes of errors in it.
    pub(crate) fn errors(&self) -> Vec<i16> {
        let mut found = Vec::new();
        self.each_leaf("", &mut |path, value| {
            if path.ends_with("error_code") {
                found.extend(value.parse::<i16>());
            }
        });
        found
    }

    /// Calls `each` with the path and the text of every value.
    pub(crate) fn each_leaf(&self, path: &str, each: &mut impl FnMut(&str, &str)) {
        match self {
            Node::Leaf(value) => each(path, value),
            Node::List(all) => {
                all.iter().enumerate().for_each(|(at, one)| one.each_leaf(&format!("{path}[{at}]"), each));
                each(&format!("{path}.count"), &all.len().to_string());
            }
            Node::Fields(fields) => {
                fields.iter().for_each(|(name, node)| node.each_leaf(&format!("{path}.{name}"), each));
            }
        }
    }

    /// On one line.
    pub(crate) fn shown(&self) -> String {
        let mut out = String::new();
        self.put(&mut out);
        out
    }

    fn put(&self, out: &mut String) {
        match self {
            Node::Leaf(value) => out.push_str(value),
            Node::List(all) => {
                out.push('[');
                for (at, one) in all.iter().enumerate() {
                    out.push_str(if at > 0 { " " } else { "" });
                    one.put(out);
                }
                out.push(']');
            }
            Node::Fields(fields) => {
                out.push('{');
                for (at, (name, node)) in fields.iter().enumerate() {
                    let _ = write!(out, "{}{name}=", if at > 0 { " " } else { "" });
                    node.put(out);
                }
                out.push('}');
            }
        }
    }
}
