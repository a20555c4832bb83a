//! `bench/cluster_chaos.py` and the scripts like it: what they take for broken. Left out where there is no `python3`; continuous integration (`CI` is
//! set) has it.

use crate::common;

/// What words of Python print, and what they say of an end before that.
fn said(name: &str, does: &str, words: &str) -> Option<String> {
    let output = common::script(name, does, words)?;
    Some(format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
}

/// The same for each `kera`, and a word that has to be in it.
fn each(name: &str, words: &str, cases: &[(&str, &str)]) {
    for (does, word) in cases {
        let Some(said) = said(name, does, words) else { return };
        assert!(said.contains(word), "{does}: {said}");
    }
}

#[test]
fn a_cluster_in_which_copies_are_still_made_is_not_whole() {
    let cluster = |changes: &str| {
        let node = r#"{"node": 1, "state": "live", "votes": true, "problems": [], "copies": {"under_replicated_blocks": 0, "rebuild_left_bytes": 0}}"#;
        format!(
            r#"echo '{{"cluster": {{"waiting_streamlets": 0, "moves_under_way": 0, "copy_changes": [{changes}], "nodes": [{node}]}}}}'"#
        )
    };
    let change = r#"{"stream": "verify", "copies": 2, "wanted": 3, "streamlets": 6, "there": 4, "waits_for": []}"#;
    let words = "import types\nprint('lacks', [lacking([types.SimpleNamespace(kera=sys.argv[1], address='nowhere', number=1)])])";
    let cases = [(cluster(""), "lacks ['']"), (cluster(change), "of 6 streamlets of verify 4 have 3 copies")];
    each("cluster_chaos", words, &cases.each_ref().map(|(does, word)| (does.as_str(), *word)));
}

#[test]
fn a_torment_that_did_nothing_is_not_done() {
    let node = "import types, random\nnode = types.SimpleNamespace(address='nowhere', number=1)\n";
    let other = "types.SimpleNamespace(address='nowhere', number=2)";
    let moved = format!("{node}print('moved', move(sys.argv[1], [node, {other}], node, 'move', random.Random(1)))");
    let owned = r#"case "$*" in *"--to 1 "*) echo '{"state": "there"}';; *) echo '{"state": "moved"}';; esac"#;
    let cases = [
        (r#"echo '{"state": "moved"}'"#, "moved True"),
        (owned, "moved True"),
        (r#"echo '{"state": "there"}'"#, "moved False"),
        ("echo it was called off >&2; exit 1", "moved False"),
    ];
    each("cluster_chaos", &moved, &cases);
    let copies = format!("{node}print('taken', change_copies(sys.argv[1], [node], None, 'verify', 2))");
    let cases = [
        ("exit 0", "taken True"),
        (
            "echo 'error: replication is 3, which needs 3 live nodes to hold copies, and there are 2'; exit 1",
            "taken False",
        ),
        ("echo 'error: no answer'; echo '  next: try again in a moment; /readyz says'; exit 1", "taken False"),
        ("echo 'error: the leader cannot read it'; exit 1", "gets no other number of copies"),
    ];
    each("cluster_chaos", &copies, &cases);
}

#[test]
fn a_kind_that_could_never_be_done_is_a_fault() {
    let words = "\
tried = {'no move': 6, 'no drain': 5, 'no copies': 9, 'copies': 1, 'no wipe': 1, 'no rot': 1, 'rot': 2, 'kill': 3}
print([one.split()[0] for one in never_done(tried, KINDS)])";
    each("cluster_chaos", words, &[("exit 0", "['move', 'wipe']")]);
}

/// What was given up is in the producer's log as well, and is no acknowledgement.
#[test]
fn a_cluster_that_acknowledges_nothing_after_a_torment_is_at_fault() {
    let words = |line: &str| {
        format!(
            "\
import cluster_chaos
class Producer:
    def poll(self):
        log.write('{line}\\n'); log.flush()
class Clock:
    now, sleep, strftime = 0.0, lambda self, s: setattr(self, 'now', self.now + s), lambda self, _: 'now'
    monotonic = lambda self: self.now
cluster_chaos.time = Clock()
with tempfile.NamedTemporaryFile('w') as log:
    log.write('ack 1 0 0 0 10 - -\\n'); log.flush()
    print('broken', attempt(lambda: goes_on(Producer(), log.name)))"
        )
    };
    each("cluster_chaos", &words("ack 1 0 0 10 20 - -"), &[("exit 0", "broken []")]);
    let silent = words("lost-hope 1 0 0 10 20");
    each("cluster_chaos", &silent, &[("exit 0", "broken ['nothing is acknowledged 60 s after that']")]);
}

#[test]
fn a_producer_that_does_not_end_is_a_fault() {
    let words = "\
broken, process = [], subprocess.Popen(['sleep', '1000'], stdout=subprocess.PIPE, text=True)
print([output_of('the producer', process, 0.1, broken), broken])";
    each("cluster_chaos", words, &[("exit 0", "['', ['the producer has not ended 0.1 s after its time']]")]);
}

#[test]
fn a_loss_of_all_memory_is_for_those_who_were_promised_to_survive_it() {
    let words = "sys.argv[1:] += ['--kinds', 'kill,power-all']\nmain()";
    each("cluster_chaos", words, &[("exit 0", "add --durability power")]);
}

#[test]
fn what_a_reader_was_shown_as_committed_has_to_stay() {
    let words = "\
def broken(last):
    witness = Witness.__new__(Witness)
    witness.topic, witness.seen, witness.errors = 'copied', {}, []
    witness.take(0, 7, b'1'); witness.take(0, 8, b'2'); witness.take(0, 8, b'2')
    return list(witness.broken(last))
print([broken({(0, 7): b'1', (0, 8): b'2', (0, 9): b'3'}), len(broken({(0, 7): b'1'})), len(broken({(0, 7): b'1', (0, 8): b'3'}))])
witness = Witness.__new__(Witness)
witness.topic, witness.seen, witness.errors = 'copied', {}, []
print(list(witness.broken({(0, 0): b'1'})))
witness.take(0, 0, b'1'); witness.take(0, 0, b'2')
print(list(witness.broken({(0, 0): b'1'})))";
    for word in ["[[], 1, 1]", "nothing was shown", "offset 0 of partition 0 was b'1' when it was read first"] {
        each("kafka_clients", words, &[("exit 0", word)]);
    }
}

#[test]
fn an_upgrade_that_doubles_what_kafka_clients_wrote_has_failed() {
    let words = "\
import types, cluster_upgrade
cluster_upgrade.check_written = lambda bootstrap, writer: (['record 1 comes twice'], '')
kafka = Kafka.__new__(Kafka)
kafka.bootstrap, kafka.stop, kafka.read, kafka.lock, kafka.threads = '', threading.Event(), {1: 2}, threading.Lock(), []
kafka.writer = types.SimpleNamespace(end=lambda: None, delivered={1}, errors=[])
broken, told = kafka.end()
print(bool(broken), told)";
    for word in ["True Kafka clients: 1 records delivered, 0 of them not read, 1 read again", "record 1 comes twice"] {
        each("cluster_upgrade", words, &[("exit 0", word)]);
    }
}

#[test]
fn a_move_with_errors_of_the_reader_has_no_figures() {
    let words = "print(probe(sys.argv[1], 'nowhere', 1, 1, 0, -2, False))";
    let cases = [
        (r#"echo '{"errors": 0, "consume": {"errors": 0}}'"#, "[])"),
        (r#"echo '{"errors": 0, "consume": {"errors": 2}}'"#, "the load had 2 errors"),
    ];
    each("cluster_move", words, &cases);
}
