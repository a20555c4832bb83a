//! The simulated cluster: it repeats, it finds what is planted, and it finds nothing else.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use kera_format::level;
use kera_sim::nodes::{Fault, Kind, Plan, Planted, run};

use crate::common::all;

/// Runs of a quarter of a minute, with faults all the time.
const SEEDS: u64 = 200;

fn short(seed: u64) -> Plan {
    Plan { trouble_ms: 15_000, records: 200, fault_us: 1_200_000, ..Plan::new(seed) }
}

/// Runs seeds: what went wrong, and how often something was done in all of them.
fn all_counting(seeds: std::ops::Range<u64>, plan: impl Fn(u64) -> Plan + Sync, what: &str) -> (Vec<String>, u64) {
    let done = AtomicU64::new(0);
    let violation = |seed| {
        let report = run(&plan(seed));
        done.fetch_add(report.did.get(what).copied().unwrap_or(0), Ordering::Relaxed);
        report.violation
    };
    (all(seeds, violation), done.into_inner())
}

#[test]
fn a_seed_repeats_itself() {
    let mut traces = Vec::new();
    for seed in 1..9 {
        let first = run(&short(seed));
        assert_eq!(first, run(&short(seed)), "two runs of seed {seed}");
        assert!(first.acknowledged > 0 && !first.faults.is_empty(), "{first:?}");
        traces.push(first.trace);
    }
    // Equal ones need not come one after the other.
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), 8, "seeds that do the same");
}

#[test]
fn many_seeds_keep_every_promise() {
    assert_eq!(all(1..1 + SEEDS / 2, |seed| run(&short(seed)).violation), Vec::<String>::new());
}

/// With applications that read all the time.
fn with_applications(seed: u64) -> Plan {
    Plan { applications: true, ..short(seed) }
}

#[test]
fn many_seeds_with_applications_keep_every_promise() {
    let seeds = 1 + SEEDS / 2..1 + SEEDS;
    assert_eq!(all(seeds, |seed| run(&with_applications(seed)).violation), Vec::<String>::new());
}

#[test]
fn a_seed_with_applications_repeats_itself_and_they_do_something() {
    let mut did = BTreeMap::new();
    for seed in 1..5 {
        let first = run(&with_applications(seed));
        assert_eq!(first, run(&with_applications(seed)), "two runs of seed {seed}");
        first.did.into_iter().for_each(|(name, count)| *did.entry(name).or_insert(0) += count);
    }
    assert!(["leased", "committed"].iter().all(|what| did.get(what) > Some(&10)), "{did:?}");
}

/// More chunks are under way than a lane remembers places, and they come again while nothing is durable: of most of them an owner
/// says only that they are there, and they must be.
#[test]
fn many_seeds_with_eager_producers_keep_every_promise() {
    let plan = |seed| Plan { eager: true, records: 600, retention: false, ..short(seed) };
    assert_eq!(all(1..1 + SEEDS / 4, |seed| run(&plan(seed)).violation), Vec::<String>::new());
    // Most seeds never come to it, some do it dozens of times.
    let told: u64 = (1..25).filter_map(|seed| run(&plan(seed)).did.get("told only that it is there").copied()).sum();
    assert!(told > 10, "nothing comes again, so nothing is shown: {told}");
}

/// Chunks are given up that were sent, and skipped if they are not there, through losses and moves; a node that stood still gets to what had come by the
/// connections of before when it has told others already what is missing.
#[test]
fn many_seeds_with_impatient_producers_keep_every_promise() {
    let plan = |seed| Plan { impatient: true, records: 600, fault_us: 700_000, retention: false, ..short(seed) };
    assert_eq!(all(1..1 + SEEDS / 4, |seed| run(&plan(seed)).violation), Vec::<String>::new());
    let did: Vec<_> = (1..25).map(|seed| run(&plan(seed)).did).collect();
    let did = |what| did.iter().filter_map(|did| did.get(what)).sum::<u64>();
    assert!(did("chunks given up") > 100 && did("skipped chunks") > 50, "nothing is given up, so nothing is shown");
}

/// Three nodes with two or three copies, all of which are killed, stopped and cut off one after the other and at once: what real nodes are
/// tormented with.
fn of_three_nodes(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![Kill, Stop, Freeze, KillAll, StopAll, CutOff, PairCut, DiskFull, Move, Drain, LeaderLost];
    Plan { three: true, eager: true, only, retention: false, ..short(seed) }
}

#[test]
fn many_seeds_of_three_nodes_keep_every_promise() {
    assert_eq!(all(1..1 + SEEDS / 8, |seed| run(&of_three_nodes(seed)).violation), Vec::<String>::new());
}

/// Backups refuse most of what who takes over asks for at first, and come, go and stand still while it asks for the parts.
#[test]
fn many_seeds_in_which_backups_tell_little_of_lanes_at_once_keep_every_promise() {
    let plan = |seed| Plan { tells_little: true, ..of_three_nodes(seed) };
    let (violations, parts) = all_counting(1..1 + SEEDS / 8, plan, "lanes asked for in parts");
    assert_eq!(violations, Vec::<String>::new());
    assert!(parts > 20, "all of it fits into an answer, so nothing is shown: {parts}");
    assert_eq!(run(&plan(3)), run(&plan(3)));
}

/// Faults that would change all other runs if they happened there.
fn has_own_runs(fault: Fault) -> bool {
    use Fault::*;
    let own_runs = [ChangeLog, ClockJump, ClockYears, Remove, LastCopy, BlocksLost, DeleteRecords, ChangeCopies];
    let of_streams = [MakeStream, DeleteStream, Unopened];
    let of_disks = [Rot, LogRot, DiskStuck, MajorityLost, DataFull];
    own_runs.contains(&fault) || of_streams.contains(&fault) || of_disks.contains(&fault)
}

/// Faults, without what people do.
fn without_people(seed: u64) -> Plan {
    let is_done_by_people =
        |fault: &Fault| matches!(fault, Fault::Move | Fault::Drain | Fault::Rebalance | Fault::Stop | Fault::StopAll);
    let is_wanted = |fault: &Fault| !is_done_by_people(fault) && !has_own_runs(*fault);
    let only = Fault::ALL.iter().copied().filter(is_wanted).collect();
    Plan { only, ..short(seed) }
}

/// What moves leave behind is more than what losses alone leave, so both are run.
#[test]
fn many_seeds_without_moves_keep_every_promise() {
    assert_eq!(all(1..1 + SEEDS / 2, |seed| run(&without_people(seed)).violation), Vec::<String>::new());
}

/// Streamlets move without anybody asking for it as soon as nothing goes wrong for a moment, and whatever goes wrong then goes wrong while they move.
#[test]
fn many_seeds_that_even_out_by_themselves_keep_every_promise() {
    let plan = |seed| Plan { balances: true, fault_us: 2_000_000, ..short(seed) };
    let (violations, moved) = all_counting(300..300 + SEEDS / 4, plan, "evened out");
    assert_eq!(violations, Vec::<String>::new());
    assert!(moved > 5, "nothing moves, so nothing is shown");
}

/// Where nothing is to be forgotten nothing may be, wherever it moves.
#[test]
fn many_seeds_without_retention_keep_every_promise() {
    let plan = |seed| Plan { retention: false, ..short(seed) };
    assert_eq!(all(50..50 + SEEDS / 2, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

/// There an application gets every record.
#[test]
fn many_seeds_without_retention_have_applications_read_everything() {
    let plan = |seed| Plan { retention: false, ..with_applications(seed) };
    assert_eq!(all(150..150 + SEEDS / 2, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

/// Records stay until the application has read them.
#[test]
fn many_seeds_of_streams_that_are_kept_until_they_are_read_keep_every_promise() {
    let plan = |seed| Plan { kind: Kind::Consumed, ..short(seed) };
    assert_eq!(all(1..1 + SEEDS / 5, |seed| run(&plan(seed)).violation), Vec::<String>::new());
    let gone: u64 = (1..9).filter_map(|seed| run(&plan(seed)).did.get("gone as read by both").copied()).sum();
    assert!(gone > 10, "nothing goes, so nothing is shown: {gone}");
}

/// What came last stays, as many bytes of it as a streamlet is to keep, over losses, moves and rebuilds.
fn bounded(seed: u64) -> Plan {
    Plan { retention_bytes: true, records: 600, applications: seed.is_multiple_of(3), ..short(seed) }
}

#[test]
fn many_seeds_of_streams_that_keep_so_many_bytes_keep_every_promise() {
    let (violations, gone) = all_counting(1..1 + SEEDS / 5, bounded, "gone for what came later");
    assert_eq!(violations, Vec::<String>::new());
    assert!(gone > 100, "nothing goes, so nothing is shown: {gone}");
}

#[test]
fn a_streamlet_that_keeps_too_few_bytes_is_found() {
    found_by(bounded, Planted::KeepsTooLittle, &["bytes are left of its streamlet"]);
}

#[test]
fn what_goes_before_it_is_read_is_found() {
    let only = [Fault::Move, Fault::Kill, Fault::Freeze];
    let plan = |seed| Plan { only: only.to_vec(), kind: Kind::Consumed, ..short(seed) };
    found_by(plan, Planted::ConsumesEarly, &["goes on at", "was read up to"]);
}

/// With `order = none`.
#[test]
fn many_seeds_of_streams_without_an_order_keep_every_promise() {
    let plan = |seed| Plan { kind: Kind::Unordered, ..short(seed) };
    assert_eq!(all(1..1 + SEEDS / 5, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

#[test]
fn positions_that_are_lost_are_found_without_an_order_too() {
    let plan = |only: &[Fault]| Plan { only: only.to_vec(), kind: Kind::Unordered, ..short(0) };
    let lost = plan(&[Fault::Freeze, Fault::CutOff]);
    found_by(|seed| Plan { seed, ..lost.clone() }, Planted::ForgetsPositions, &["was told"]);
    let moved = plan(&[Fault::Move]);
    found_by(|seed| Plan { seed, ..moved.clone() }, Planted::HandsOverNoPositions, &["was told"]);
}

/// Clocks of machines are set forward and back by up to an hour.
#[test]
fn many_seeds_with_clocks_that_jump_keep_every_promise() {
    let is_wanted = |fault: &Fault| *fault == Fault::ClockJump || !has_own_runs(*fault);
    let only: Vec<Fault> = Fault::ALL.iter().copied().filter(is_wanted).collect();
    let plan = |seed| Plan { only: only.clone(), ..with_applications(seed) };
    assert_eq!(all(1..1 + SEEDS / 5, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

/// The clock of a machine is years ahead for a while, and what is kept for a time is kept for it all the same.
#[test]
fn many_seeds_with_clocks_that_are_years_ahead_keep_every_promise() {
    let is_wanted = |fault: &Fault| *fault == Fault::ClockYears || !has_own_runs(*fault);
    let only: Vec<Fault> = Fault::ALL.iter().copied().filter(is_wanted).collect();
    let all_faults = |seed| Plan { only: only.clone(), ..short(seed) };
    assert_eq!(all(1..1 + SEEDS / 5, |seed| run(&all_faults(seed)).violation), Vec::<String>::new());
    // No process begins with such a clock and believes it.
    let clocks = [Fault::ClockYears, Fault::Move, Fault::PairCut];
    let plan = |seed| Plan { only: clocks.to_vec(), fault_us: 600_000, ..short(seed) };
    let (mut jumped, mut blind) = (0, 0);
    for seed in 1..1 + SEEDS / 10 {
        let report = run(&plan(seed));
        assert_eq!(report.violation, None, "seed {seed}");
        jumped += report.faults.get(Fault::ClockYears.name()).copied().unwrap_or(0);
        blind += u64::from(report.did.contains_key("believed a wrong clock"));
    }
    assert!(jumped > 50 && blind < SEEDS / 20, "{jumped} clocks are ahead, and {blind} runs know nothing of ages");
}

#[test]
fn what_goes_for_a_clock_that_is_years_ahead_is_found() {
    found(Planted::BelievesItsClock, &[Fault::ClockYears, Fault::Move], &["has gone after"]);
}

/// An owner that was started again told a reader of its end before it had written anything; and one that gathered what another node had held
/// took what its log of before had for all that it had itself.
#[test]
fn seeds_that_lost_or_passed_over_records_do_not() {
    let plan = |seed| Plan { retention: false, ..short(seed) };
    assert_eq!(all(6288..6289, |seed| run(&plan(seed)).violation), Vec::<String>::new());
    assert_eq!(all(6347..6348, |seed| run(&plan(seed)).violation), Vec::<String>::new());
    // A node took what it had left of a streamlet for what it holds, and owned it again.
    let three = |seed| Plan { three: true, trouble_ms: 60_000, fault_us: 700_000, ..Plan::new(seed) };
    let broken = [96004, 96089].into_iter().filter_map(|seed| run(&three(seed)).violation);
    assert_eq!(broken.collect::<Vec<String>>(), Vec::<String>::new());
}

/// Found by thousands of runs that nothing else had happened to: `docs/simulator.md` says what each was.
#[test]
fn seeds_of_long_searches_keep_every_promise() {
    let plan = |seed, fault_us| Plan { records: 200, trouble_ms: 15_000, fault_us, ..Plan::new(seed) };
    let plans = [
        plan(5_040_053, 300_000),
        Plan { applications: true, ..plan(5_020_036, 400_000) },
        Plan { three: true, ..plan(406_135, 700_000) },
        Plan { kind: Kind::Compacted, ..plan(7_000_232, 400_000) },
        Plan { impatient: true, ..plan(7_000_133, 400_000) },
        Plan { records: 300, trouble_ms: 60_000, ..plan(8_000_052, 700_000) },
        Plan { retention: false, applications: true, ..plan(8_000_066, 300_000) },
        Plan { three: true, applications: true, ..plan(9_000_018, 500_000) },
    ];
    let broken = plans.iter().filter_map(|plan| run(plan).violation);
    assert_eq!(broken.collect::<Vec<String>>(), Vec::<String>::new());
}

/// Who has looked at the owners before a node was lost asks it for groups that it has forgotten meanwhile, and others have rebuilt.
#[test]
fn what_others_have_rebuilt_is_not_passed_over() {
    let only = [Fault::Move, Fault::PowerCut, Fault::Freeze, Fault::Kill, Fault::CutOff];
    let plan = |seed| Plan { only: only.to_vec(), fault_us: 400_000, retention: false, ..short(seed) };
    let broken = [46, 214, 345, 390, 392].into_iter().filter_map(|seed| run(&plan(seed)).violation);
    assert_eq!(broken.collect::<Vec<String>>(), Vec::<String>::new());
}

/// A process that is killed while it stands still, and whose next one stands still when the first would have gone on.
#[test]
fn who_stands_still_goes_on_with_its_own_turns() {
    let plan = |seed| Plan { retention: false, ..short(seed) };
    assert_eq!(all(1061..1062, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

#[test]
fn every_fault_happens_and_the_cluster_does_something_about_it() {
    use Fault::*;
    let (mut faults, mut did) = (BTreeMap::new(), BTreeMap::new());
    // Nodes that are removed, what is given up, what is deleted, streams that come and go, clocks that are years ahead, coordinators' logs that rot, majorities of them that are lost, and disks that stand still or
    // take no data have tests that see that it happens, and so has what cannot be opened for a while.
    let is_elsewhere = |fault: &Fault| {
        let is_of_people = matches!(fault, Remove | LastCopy | BlocksLost | DeleteRecords | ChangeCopies | ClockYears);
        let is_of_streams = matches!(fault, MakeStream | DeleteStream | Unopened);
        is_of_people || is_of_streams || matches!(fault, LogRot | DiskStuck | MajorityLost | DataFull)
    };
    let only: Vec<Fault> = Fault::ALL.iter().copied().filter(|fault| !is_elsewhere(fault)).collect();
    for seed in 1..120 {
        let report = run(&Plan { only: only.clone(), ..short(seed) });
        report.faults.into_iter().for_each(|(name, count)| *faults.entry(name).or_insert(0) += count);
        report.did.into_iter().for_each(|(name, count)| *did.entry(name).or_insert(0) += count);
    }
    let missing: Vec<&str> = only.iter().map(|fault| fault.name()).filter(|name| !faults.contains_key(name)).collect();
    assert_eq!(missing, Vec::<&str>::new(), "{faults:?}");
    for what in [
        "fenced",
        "taken over",
        "rebuilt",
        "started again",
        "owner changes",
        "starts",
        "moved",
        "moved to its own node",
        "changed its log",
        "stopped",
    ] {
        assert!(did.get(what).is_some_and(|count| *count > 20), "{what}: {did:?}");
    }
}

/// What is found of a defect, with faults that bring it out.
fn found(planted: Planted, only: &[Fault], words: &[&str]) {
    found_by(|seed| Plan { only: only.to_vec(), ..short(seed) }, planted, words);
}

/// Some seed shows the defect in one of these words. What it does in others on the way there is told only if none does.
fn found_by(plan: impl Fn(u64) -> Plan, planted: Planted, words: &[&str]) {
    found_from(1, plan, planted, words);
}

/// The same beginning with the seed `first`: of defects that few seeds show, minutes go by in front of the first that does. It says which one that was.
fn found_from(first: u64, plan: impl Fn(u64) -> Plan, planted: Planted, words: &[&str]) {
    let mut otherwise = Vec::new();
    let is_found = (first..500).chain(1..first).any(|seed| {
        let found = run(&Plan { planted: Some(planted), ..plan(seed) }).violation;
        let says_so = found.iter().any(|found| words.iter().any(|words| found.contains(words)));
        otherwise.extend(found.filter(|_| !says_so));
        if says_so {
            println!("{planted:?}: seed {seed}");
        }
        says_so
    });
    assert!(is_found, "{planted:?} was not found by {words:?}; what was: {otherwise:?}");
}

#[test]
fn a_fence_that_does_not_hold_is_found() {
    found(Planted::NoFence, &[Fault::Freeze, Fault::CutOff, Fault::PairCut], &["acknowledged where", "read where"]);
}

#[test]
fn an_acknowledgement_before_the_last_copy_is_found() {
    let only = [Fault::Kill, Fault::CutOff, Fault::PairCut, Fault::Freeze];
    found(Planted::AcknowledgesEarly, &only, &["no backup says"]);
}

#[test]
fn a_recovery_that_forgets_producers_is_found() {
    found(Planted::ForgetsProducers, &[Fault::Freeze, Fault::CutOff, Fault::Kill], &["SequenceGap"]);
}

#[test]
fn a_view_that_begins_behind_what_was_written_is_found() {
    let only = [Fault::PairCut, Fault::Freeze, Fault::CutOff, Fault::Kill];
    found(Planted::ViewBehindWritten, &only, &["blocks behind"]);
}

#[test]
fn a_lost_log_that_goes_too_early_is_found() {
    found(Planted::GivesUpEarly, &[Fault::Kill, Fault::Freeze], &["still rebuilds streamlets"]);
}

/// What a backup told before a view does not count in it, and what it told of a fenced log is synced: so power has to go often.
#[test]
fn a_backup_that_does_not_know_of_a_loss_of_power_is_found() {
    found_from(
        215,
        lost_all_the_time,
        Planted::ForgetsPowerCuts,
        &["begins behind", "no backup says", "acknowledged where", "read where", "ends at"],
    );
}

#[test]
fn a_move_that_does_not_say_where_lanes_go_on_is_found() {
    found(Planted::HandsOverNoOrdinals, &[Fault::Move], &["acknowledged where", "came where"]);
}

#[test]
fn a_move_that_forgets_producers_is_found() {
    let only = [Fault::Move, Fault::CutOff, Fault::PairCut, Fault::Freeze];
    found(Planted::HandsOverNoProducers, &only, &["SequenceGap"]);
}

#[test]
fn a_node_that_forgets_what_it_holds_for_others_is_found() {
    found(Planted::ForgetsHeld, &[Fault::Move, Fault::Kill], &["begins behind"]);
}

#[test]
fn a_node_that_has_logs_given_up_of_what_only_it_holds_is_found() {
    let only = [Fault::Move, Fault::Kill, Fault::Destroyed, Fault::PowerCut];
    found(Planted::GivesUpHeld, &only, &["begins behind"]);
}

#[test]
fn a_stop_that_leaves_out_what_backups_have_not_answered_for_is_found() {
    let only = [Fault::StopAll, Fault::PairCut, Fault::CutOff, Fault::Move];
    found(Planted::StopsUnsettled, &only, &["SequenceGap", "acknowledged where", "ends at"]);
}

#[test]
fn a_move_that_loses_positions_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Move], ..with_applications(seed) };
    found_by(plan, Planted::HandsOverNoPositions, &["was told"]);
}

#[test]
fn a_take_over_that_forgets_positions_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Freeze, Fault::CutOff], ..with_applications(seed) };
    found_by(plan, Planted::ForgetsPositions, &["was told"]);
}

/// Logs change all the time, and owners are lost in between.
#[test]
fn many_seeds_in_which_logs_change_keep_every_promise() {
    let only = [Fault::ChangeLog, Fault::Kill, Fault::Freeze, Fault::CutOff, Fault::PairCut, Fault::Move];
    let plan = |seed| Plan { only: only.to_vec(), fault_us: 400_000, ..short(seed) };
    let (violations, changed) = all_counting(1..1 + SEEDS / 2, plan, "changed its log");
    assert_eq!(violations, Vec::<String>::new());
    // One in two runs at least; that a streamlet moves to its own node is no change yet.
    assert!(changed > SEEDS / 4, "no log changes, so nothing is shown: {changed}");
}

/// Behind an orderly change the first log is always settled when the second one is chosen: the defect begins where the node lets go of the streamlet
/// for itself.
#[test]
fn a_change_to_another_log_before_the_first_one_is_settled_is_found() {
    let only = [Fault::ChangeLog, Fault::Freeze, Fault::DiskSlow, Fault::Kill];
    let plan = |seed| Plan { only: only.to_vec(), fault_us: 200_000, ..short(seed) };
    found_by(plan, Planted::ChangesUnsettled, &["came where"]);
}

/// Owners are lost again before they have rebuilt what they took over, for as long as the run lasts.
fn lost_all_the_time(seed: u64) -> Plan {
    let only = vec![Fault::Kill, Fault::Freeze, Fault::CutOff, Fault::PowerCut];
    Plan { only, fault_us: 250_000, retention: false, ..short(seed) }
}

#[test]
fn many_seeds_with_losses_all_the_time_keep_every_promise() {
    assert_eq!(all(1..1 + SEEDS, |seed| run(&lost_all_the_time(seed)).violation), Vec::<String>::new());
}

/// Where losses follow one another within the time of a rebuild there is no moment without one, and logs must go all the same.
#[test]
fn logs_of_lost_nodes_go_although_something_is_always_rebuilt() {
    let mut meanwhile = [0; 2];
    for seed in 1..73 {
        for (at, level) in [level::REBUILD_NEEDS - 1, level::REBUILD_NEEDS].into_iter().enumerate() {
            let report = run(&Plan { level, ..lost_all_the_time(seed) });
            assert_eq!(report.violation, None, "seed {seed} at level {level}");
            meanwhile[at] += report.did["gave up logs while others were rebuilt from"];
        }
    }
    assert_eq!(meanwhile[0], 0, "nodes of an earlier level do not know what others need");
    assert!(meanwhile[1] > 40, "{meanwhile:?}");
}

#[test]
fn a_rebuild_that_names_no_log_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::Freeze], fault_us: 400_000, ..short(seed) };
    found_by(plan, Planted::NeedsNothing, &["begins behind", "has gone after"]);
}

#[test]
fn a_node_that_holds_again_what_is_not_all_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::Freeze], fault_us: 400_000, ..short(seed) };
    found_by(plan, Planted::TakesWhatIsNotAll, &["begins behind"]);
}

/// Machines burn while what they alone have is being taken over: what cannot be opened goes back to the node that has it, also of streams whose producers wait for no copies.
#[test]
fn what_nobody_can_open_goes_back_to_its_node() {
    let only = vec![Fault::Kill, Fault::Freeze, Fault::PowerCut, Fault::Destroyed, Fault::Move];
    let plan = |seed| {
        let kind = if seed % 2 == 0 { Kind::Async } else { Kind::Usual };
        let applications = kind == Kind::Async;
        Plan { only: only.clone(), fault_us: 400_000, kind, applications, three: true, ..short(seed) }
    };
    let (violations, given_back) = all_counting(1..1 + SEEDS / 2, plan, "given back");
    assert_eq!(violations, Vec::<String>::new());
    assert!(given_back > 10, "{given_back} go back, so next to nothing is shown");
}

/// Nodes are sent snapshots all the time. They give back what they have seen enough of, and nothing else.
#[test]
fn what_nobody_can_open_goes_back_from_nodes_that_are_sent_snapshots() {
    let only = vec![Fault::Kill, Fault::Freeze, Fault::PowerCut, Fault::Destroyed, Fault::Move];
    let plan = |seed| Plan { only: only.clone(), fault_us: 400_000, three: true, sends_snapshots: true, ..short(seed) };
    assert!(run(&plan(1)).did["knew it from a snapshot"] > 10, "next to nothing is shown");
    let (violations, given_back) = all_counting(1..1 + SEEDS / 2, plan, "given back");
    assert_eq!(violations, Vec::<String>::new());
    assert!(given_back > 0, "without what was seen before a snapshot none does");
}

/// Whoever takes over cannot open what it was given, or is killed when it has, and is started again before the node is back with all of it.
fn unopened(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![Unopened, Kill, Freeze, PairCut, Move];
    let kind = [Kind::Usual, Kind::Async, Kind::Usual, Kind::Compacted][seed as usize % 4];
    let applications = seed.is_multiple_of(3);
    Plan { only, kind, applications, three: seed % 8 < 4, trouble_ms: 20_000, fault_us: 1_000_000, ..short(seed) }
}

/// Owners that were started again since they took something over give it back as well, if its node has cut nothing of it.
#[test]
fn what_nobody_can_open_goes_back_from_owners_that_were_started_again() {
    let counts = [
        "killed while it took over",
        "given back",
        "given back by who was started again",
        "given back by who was started again and had opened it",
    ];
    let (away, sums): (AtomicU64, [AtomicU64; 4]) = Default::default();
    let violation = |seed| {
        let report = run(&unopened(seed));
        away.fetch_add(report.faults.get(Fault::Unopened.name()).copied().unwrap_or(0), Ordering::Relaxed);
        for (sum, what) in sums.iter().zip(counts) {
            sum.fetch_add(report.did.get(what).copied().unwrap_or(0), Ordering::Relaxed);
        }
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 2, violation), Vec::<String>::new());
    let (away, sums) = (away.into_inner(), sums.map(AtomicU64::into_inner));
    let told: Vec<_> = counts.iter().zip(sums).collect();
    println!("{away} nodes were away: {told:?}");
    assert!(sums[0] > 50 && sums[2] > 20, "so next to nothing is shown: {away} nodes were away, {told:?}");
    assert_eq!(run(&unopened(3)), run(&unopened(3)));
}

/// What an earlier life of the owner had opened was acknowledged by all backups, and the node that is back was not told of that before it was killed.
#[test]
fn a_streamlet_that_goes_back_although_its_node_has_cut_some_of_it_is_found() {
    let only = vec![Fault::Kill, Fault::Freeze];
    let plan = |seed| Plan { only: only.clone(), kind: Kind::Async, fault_us: 200_000, ..short(seed) };
    let words = ["all copies were there up to", "somebody has read it up to"];
    found_from(225, plan, Planted::GivesBackWhatWasCut, &words);
}

#[test]
fn a_streamlet_that_goes_back_although_it_was_opened_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::Freeze], fault_us: 400_000, ..short(seed) };
    found_by(plan, Planted::GivesBackBlindly, &["SequenceGap"]);
}

/// Nodes are killed and frozen so often that there is nearly always a log of a lost one whose end is not decided yet.
fn lost_before_ends_are_known(seed: u64) -> Plan {
    Plan { only: vec![Fault::Kill, Fault::Freeze], fault_us: 100_000, ..short(seed) }
}

/// Nodes come back with all they had, again and again, and each time before anybody has taken over. Below the level some of these seeds end with a log that has
/// no end and that only a person could give up.
#[test]
fn who_comes_back_in_time_goes_on() {
    use Fault::*;
    let burned = vec![Move, Kill, Freeze, PowerCut, Destroyed, Drain, Stop];
    let often = |seed| Plan { only: burned.clone(), fault_us: 500_000, ..compacted(seed) };
    let frozen = |seed| Plan { only: vec![PowerCut, Kill, Freeze, Stop], fault_us: 1_500_000, ..short(seed) };
    let eager = vec![Kill, Freeze, Destroyed, Move, PowerCut];
    let plans = [
        Plan { applications: true, ..often(2074) },
        Plan { only: vec![Move, Kill, Freeze, PowerCut, Destroyed], ..often(110) },
        frozen(51365),
        // It goes on for so long that what one backup alone has is to be copied at once.
        Plan { eager: true, only: eager, fault_us: 400_000, ..short(109_251) },
    ];
    for plan in plans {
        assert_eq!(run(&plan).violation, None, "{plan:?}");
    }
}

/// A part of a group that another node holds was rebuilt and compacted, and counted for the group once the holder was lost too.
#[test]
fn a_part_of_what_another_node_holds_is_not_taken_for_all() {
    use Fault::*;
    let only = vec![Move, Kill, Freeze, PowerCut, Destroyed, Drain, Stop];
    let plan = Plan { applications: true, only, fault_us: 500_000, ..compacted(101_272) };
    assert_eq!(run(&plan).violation, None);
}

/// A block of one view was damaged, and the backup said nothing of the next view, of which it was the only one.
#[test]
fn what_is_damaged_in_one_view_does_not_hold_up_the_next_one() {
    use Fault::*;
    let only = vec![DiskFull, Stop, PairCut, Drain, BitFlip];
    let plan = Plan { applications: true, retention: false, only, fault_us: 250_000, ..short(201_783) };
    assert_eq!(run(&plan).violation, None);
}

/// Backups stood still with as many blocks under way as may be. What waited for a block counted as new in it.
#[test]
fn what_waits_for_a_block_is_not_acknowledged_for_longer_than_it_may_lack_copies() {
    let only = vec![Fault::Kill, Fault::Freeze, Fault::Destroyed];
    let plan = Plan { kind: Kind::Async, only, fault_us: 500_000, ..short(107_110) };
    assert_eq!(run(&plan).violation, None);
}

/// A log without an end holds back who may need something of it, and nobody else.
#[test]
fn others_are_rebuilt_beside_a_log_without_an_end_and_it_goes() {
    let (beside, gone) = ("began to rebuild beside logs without an end", "gave up logs without an end");
    let (mut before, mut since) = ([0; 2], [0; 2]);
    for seed in 1..41 {
        for (level, did) in [(level::OPEN_ENDS - 1, &mut before), (level::OPEN_ENDS, &mut since)] {
            let report = run(&Plan { level, ..lost_before_ends_are_known(seed) });
            assert_eq!(report.violation, None, "seed {seed} at level {level}");
            (did[0], did[1]) = (did[0] + report.did[beside], did[1] + report.did[gone]);
        }
    }
    assert!(since[0] > 40 && since[1] > 10, "{since:?}");
    assert_eq!(before[1], 0, "below the level such a log stays, and {} had to wait for it", before[0]);
}

#[test]
fn an_owner_that_waits_for_no_end_is_found() {
    // From level 22 on it needs none of the logs that lack an end there.
    let plan = |seed| Plan { level: level::OWN_LIVES - 1, ..lost_before_ends_are_known(seed) };
    found_by(plan, Planted::WaitsForNoEnd, &["SequenceGap", "acknowledged where", "begins behind"]);
}

/// Owners are lost while they rebuild: what the next one needs is in the logs of several.
#[test]
fn an_owner_that_passes_over_logs_of_one_who_had_something_is_found() {
    found_by(lost_before_ends_are_known, Planted::PassesOverASource, &["begins behind", "acknowledged where"]);
}

/// Machines burn while backups are replaced all the time.
fn burning(seed: u64) -> Plan {
    let only = vec![Fault::PowerCut, Fault::Destroyed, Fault::Kill, Fault::Freeze, Fault::PairCut, Fault::CutOff];
    Plan { only, fault_us: 300_000, retention: false, ..short(seed) }
}

#[test]
fn many_seeds_in_which_machines_burn_keep_every_promise() {
    let (violations, burned) = all_counting(1..1 + SEEDS / 2, burning, "burned once more");
    assert_eq!(violations, Vec::<String>::new());
    assert!(burned > 20, "{burned} runs end with a machine that burns: that copies are enough is hardly shown");
}

/// Nothing is lost by that in these runs, for no other backup goes.
#[test]
fn a_log_that_takes_no_backup_in_the_place_of_one_is_found() {
    found(Planted::TakesNoneBack, &[Fault::Kill, Fault::Freeze], &["has fewer backups than"]);
}

/// A view with a backup that has burned, and nobody else, has no end if its log is lost too.
#[test]
fn a_log_that_takes_backups_to_be_there_without_an_answer_is_found() {
    found_from(
        170,
        |seed| Plan { fault_us: 200_000, ..burning(seed) },
        Planted::BelievesTheSilent,
        &["has no live owner"],
    );
}

/// Nodes are killed and frozen one after the other, and are back while others rebuild: some of what they had is held again.
#[test]
fn nodes_that_come_back_hold_again_what_they_had() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::Freeze, Fault::Stop], ..short(seed) };
    let mut left = [0; 2];
    for seed in 1..41 {
        for (at, level) in [level::RETURNED_GROUPS - 1, level::RETURNED_GROUPS].into_iter().enumerate() {
            let report = run(&Plan { level, ..plan(seed) });
            assert_eq!(report.violation, None, "seed {seed} at level {level}");
            left[at] += report.did.get("bytes left to who came back").copied().unwrap_or(0);
        }
    }
    assert_eq!(left[0], 0, "below its level nothing is offered");
    assert!(left[1] > 100_000, "{left:?}");
}

/// Streams with one copy, where the second of two may have more.
fn one_copy(seed: u64) -> Plan {
    Plan { kind: Kind::OneCopy, ..short(seed) }
}

#[test]
fn many_seeds_of_streams_with_one_copy_keep_every_promise() {
    assert_eq!(all(1..1 + SEEDS / 4, |seed| run(&one_copy(seed)).violation), Vec::<String>::new());
    let plan = |seed| Plan { applications: true, ..one_copy(seed) };
    assert_eq!(all(SEEDS..SEEDS + SEEDS / 5, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

/// Retention opened an empty group of the node's own epoch behind what a node held of a streamlet that had moved: its lanes were out of order, and whoever asked
/// for their groups was told of the same ones for ever.
#[test]
fn what_retention_leaves_of_one_copy_can_be_read() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::Move], ..one_copy(seed) };
    let broken = [8, 20, 27, 48, 53].into_iter().filter_map(|seed| run(&one_copy(seed)).violation);
    assert_eq!(broken.collect::<Vec<String>>(), Vec::<String>::new());
    assert_eq!(all(14..15, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

#[test]
fn an_acknowledgement_before_the_own_disk_has_it_is_found() {
    let plan = |seed| Plan { only: vec![Fault::PowerCut, Fault::PowerCutAll], ..one_copy(seed) };
    found_by(plan, Planted::AcknowledgesUnwritten, &["acknowledged where"]);
}

#[test]
fn a_start_without_the_own_virtual_logs_is_found() {
    let plan = |seed| Plan { only: vec![Fault::PowerCut, Fault::PowerCutAll], ..one_copy(seed) };
    found_by(plan, Planted::LeavesOutOwnLogs, &["SequenceGap"]);
}

#[test]
fn one_copy_that_is_given_to_others_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::Freeze], ..one_copy(seed) };
    found_by(plan, Planted::GivesOneCopyAway, &["SequenceGap"]);
}

#[test]
fn a_kill_that_takes_memory_is_found() {
    let of = |kind| move |seed| Plan { only: vec![Fault::Kill], kind, ..short(seed) };
    for kind in [Kind::OneCopy, Kind::Async] {
        found_by(of(kind), Planted::ForgetsMemory, &["acknowledged where", "SequenceGap"]);
    }
}

/// Streams whose producers do not wait for copies: owners are cut off from backups and lost all the time.
fn not_waited_for(seed: u64) -> Plan {
    let only = vec![Fault::CutOff, Fault::PairCut, Fault::Kill, Fault::Freeze, Fault::LeaderLost];
    Plan { kind: Kind::Async, only, records: 600, fault_us: 300_000, ..short(seed) }
}

#[test]
fn many_seeds_of_streams_whose_producers_do_not_wait_keep_every_promise() {
    let plan = |seed| Plan { kind: Kind::Async, ..short(seed) };
    assert_eq!(all(1..1 + SEEDS / 4, |seed| run(&plan(seed)).violation), Vec::<String>::new());
    let plan = |seed| Plan { applications: true, ..plan(seed) };
    assert_eq!(all(SEEDS..SEEDS + SEEDS / 5, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

#[test]
fn many_seeds_with_losses_of_what_has_no_copies_keep_every_promise() {
    assert_eq!(all(1..1 + SEEDS / 4, |seed| run(&not_waited_for(seed)).violation), Vec::<String>::new());
    let mut did = BTreeMap::new();
    for seed in 1..25 {
        run(&not_waited_for(seed)).did.into_iter().for_each(|(name, count)| *did.entry(name).or_insert(0) += count);
    }
    for what in ["chunks gone that were acknowledged", "told of forgotten chunks"] {
        assert!(did.get(what) > Some(&10), "{what}: {did:?}");
    }
}

/// With as many copies as nodes there is no other backup while one is away. Chunks come back without an answer, others behind them go on, and their lane remembers the places of the last
/// ones alone.
#[test]
fn a_producer_may_be_told_only_that_a_chunk_is_there_if_as_many_came_behind_it_as_lanes_remember() {
    let only = vec![Fault::Kill, Fault::Freeze, Fault::PowerCut, Fault::Destroyed, Fault::Move];
    let plan = |seed| Plan { only: only.clone(), fault_us: 300_000, kind: Kind::Async, three: true, ..short(seed) };
    assert_eq!(all(116..117, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

#[test]
fn copies_that_are_missing_for_long_are_found() {
    found_by(not_waited_for, Planted::NeverLate, &["what had no copies and is gone"]);
}

#[test]
fn what_readers_see_before_it_has_its_copies_is_found() {
    found_by(not_waited_for, Planted::AcknowledgesEarly, &["all copies were there", "has read it"]);
}

/// Of each key the last record is kept, and streamlets move so that what a tombstone hides is at another node.
fn compacted(seed: u64) -> Plan {
    Plan { kind: Kind::Compacted, ..short(seed) }
}

#[test]
fn many_seeds_of_compacted_streams_keep_every_promise() {
    assert_eq!(all(1..41, |seed| run(&compacted(seed)).violation), Vec::<String>::new());
    let read = |seed| run(&Plan { applications: true, ..compacted(seed) }).violation;
    assert_eq!(all(41..81, read), Vec::<String>::new());
    let mut did = BTreeMap::new();
    for seed in 1..9 {
        let first = run(&compacted(seed));
        assert_eq!(first, run(&compacted(seed)), "two runs of seed {seed}");
        first.did.into_iter().for_each(|(name, count)| *did.entry(name).or_insert(0) += count);
    }
    let removed = did.get("records removed by compaction").copied().unwrap_or(0);
    assert!(removed > 2_000 && did["compaction's passes"] > 20, "{did:?}");
}

/// What both applications have read goes there too, and compaction in what is left.
#[test]
fn many_seeds_of_compacted_streams_that_are_kept_until_they_are_read_keep_every_promise() {
    let plan = |seed| Plan { kind: Kind::CompactedConsumed, ..short(seed) };
    let (gone, removed) = (AtomicU64::new(0), AtomicU64::new(0));
    let violation = |seed| {
        let report = run(&plan(seed));
        let did = |what| report.did.get(what).copied().unwrap_or(0);
        gone.fetch_add(did("gone as read by both"), Ordering::Relaxed);
        removed.fetch_add(did("records removed by compaction"), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 8, violation), Vec::<String>::new());
    let (gone, removed) = (gone.into_inner(), removed.into_inner());
    assert!(gone > 20 && removed > 1_000, "{gone} gaps of what was read, {removed} records removed");
}

#[test]
fn many_seeds_of_compacted_streams_that_move_all_the_time_keep_every_promise() {
    let only = vec![Fault::Move, Fault::Kill, Fault::Freeze, Fault::PowerCut, Fault::Destroyed];
    let plan = |seed| Plan { only: only.clone(), fault_us: 500_000, ..compacted(seed) };
    assert_eq!(all(81..121, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

/// What a node had compacted came back from its log of before; and what stays for that reason needs copies.
#[test]
fn seeds_that_brought_back_what_compaction_had_removed_do_not() {
    let plan = |seed| Plan { fault_us: 1_500_000, ..compacted(seed) };
    let read = |seed| run(&Plan { applications: true, ..plan(seed) }).violation;
    assert_eq!(all(7033..7034, read), Vec::<String>::new());
    let broken = [9324, 9355, 9471, 9473].into_iter().filter_map(|seed| run(&plan(seed)).violation);
    assert_eq!(broken.collect::<Vec<String>>(), Vec::<String>::new());
    // Logs of nodes that were live told of a part of what these have, or a rewriting was told from an earlier one by its checksum alone.
    let long = |fault_us, seed| {
        run(&Plan { kind: Kind::Compacted, trouble_ms: 60_000, fault_us, ..Plan::new(seed) }).violation
    };
    let often = [80094, 80122, 80160, 80242].into_iter().filter_map(|seed| long(700_000, seed));
    let broken = often.chain([74000, 76409].into_iter().filter_map(|seed| long(1_500_000, seed)));
    assert_eq!(broken.collect::<Vec<String>>(), Vec::<String>::new());
}

#[test]
fn compaction_that_takes_everything_to_be_at_its_node_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Move], fault_us: 700_000, ..compacted(seed) };
    found_by(plan, Planted::RemovesBlindly, &["came back to life"]);
}

/// Nodes are removed for good, and other machines come, while all else goes wrong.
fn removed(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![Kill, PowerCut, Destroyed, Freeze, CutOff, PairCut, LeaderLost, Move, Drain, Stop, Remove];
    Plan { only, fault_us: 700_000, ..short(seed) }
}

#[test]
fn many_seeds_in_which_nodes_are_removed_keep_every_promise() {
    let did = |what: &'static str, report: &kera_sim::nodes::Report| report.did.get(what).copied().unwrap_or(0);
    let (gone, came) = (AtomicU64::new(0), AtomicU64::new(0));
    let violation = |seed| {
        let report = run(&removed(seed));
        gone.fetch_add(did("removed", &report), Ordering::Relaxed);
        let ways = ["came under a number of its own", "came under the same number", "came back after it was removed"];
        came.fetch_add(ways.map(|way| did(way, &report)).iter().sum(), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 2, violation), Vec::<String>::new());
    assert!(gone.into_inner() > 20 && came.into_inner() > 10, "nobody is removed, so nothing is shown");
    let with_applications = |seed| run(&Plan { applications: true, ..removed(seed) }).violation;
    assert_eq!(all(SEEDS..SEEDS + SEEDS / 8, with_applications), Vec::<String>::new());
}

/// Machines burn and are removed one after the other.
fn removed_again_and_again(seed: u64) -> Plan {
    let only = vec![Fault::Kill, Fault::Destroyed, Fault::Remove];
    Plan { only, trouble_ms: 30_000, fault_us: 300_000, retention: false, ..short(seed) }
}

#[test]
fn a_node_that_is_removed_before_there_are_copies_of_what_it_has_is_found() {
    found_by(removed_again_and_again, Planted::RemovesUncopied, &["no backup says", "is lost and not gathered"]);
}

#[test]
fn copies_that_are_looked_for_at_nodes_that_were_removed_are_found() {
    found_by(removed_again_and_again, Planted::BelievesTheRemoved, &["is named by", "is not copied again"]);
}

/// Another machine under the number of a node that was removed: its first epochs were fenced, and its logs had the names of others.
#[test]
fn a_number_that_was_that_of_another_node_and_is_taken_for_a_new_one_is_found() {
    found_by(removed_again_and_again, Planted::ForgetsNumbers, &["begins behind"]);
}

/// Records are deleted from the front of lanes, which move and are taken over.
fn deleted(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![Kill, PowerCut, Destroyed, Freeze, CutOff, PairCut, Move, Drain, Stop, DeleteRecords];
    Plan { only, fault_us: 600_000, retention: seed % 4 < 2, ..short(seed) }
}

#[test]
fn many_seeds_in_which_records_are_deleted_keep_every_promise() {
    let (violations, gone) = all_counting(1..1 + SEEDS / 2, deleted, "records deleted");
    assert_eq!(violations, Vec::<String>::new());
    assert!(gone > 50, "nothing is deleted, so nothing is shown");
}

#[test]
fn a_lane_that_comes_without_its_floor_is_found() {
    found_by(deleted, Planted::ForgetsFloors, &["were deleted", "its floor is"]);
}

/// Disks change what nodes have stored.
fn rotten(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![Rot, Kill, Move, Freeze, Stop];
    let kind = [Kind::Async, Kind::Compacted, Kind::Usual, Kind::Usual][seed as usize % 4];
    Plan { only, fault_us: 250_000, kind, applications: seed.is_multiple_of(3), ..short(seed) }
}

#[test]
fn many_seeds_with_disks_that_change_what_is_stored_keep_every_promise() {
    let (violations, mended) = all_counting(1..1 + SEEDS / 2, rotten, "mended");
    assert_eq!(violations, Vec::<String>::new());
    assert!(mended > 10, "nothing is mended, so nothing is shown");
    assert_eq!(run(&rotten(3)), run(&rotten(3)));
}

#[test]
fn a_disk_whose_losses_stay_is_found() {
    found_by(rotten, Planted::MendsNothing, &["SegmentUnreadable"]);
}

#[test]
fn a_node_that_does_not_know_what_its_disk_has_lost_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Rot, Fault::Kill], fault_us: 150_000, ..rotten(seed) };
    found_from(
        135,
        plan,
        Planted::BelievesItsDisk,
        &["begins behind", "has gone after", "came where", "acknowledged where", "read where"],
    );
}

/// Streams get another number of copies, half of them from one on, and when everything has several a machine burns.
fn copied(seed: u64) -> Plan {
    let kind = [Kind::Usual, Kind::Compacted, Kind::OneCopy][(seed % 3) as usize];
    Plan { changes_copies: true, kind, fault_us: 800_000, ..short(seed) }
}

#[test]
fn many_seeds_in_which_numbers_of_copies_change_keep_every_promise() {
    let (wanted, changed, held) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let violation = |seed| {
        let report = run(&copied(seed));
        let did = |what| report.did.get(what).copied().unwrap_or(0);
        // In the end all that has one copy gets more, in runs too in which nobody had asked for anything before.
        let asked = report.faults.get(Fault::ChangeCopies.name()).copied().unwrap_or(0);
        wanted.fetch_add(asked, Ordering::Relaxed);
        changed.fetch_add(did("got another number of copies"), Ordering::Relaxed);
        held.fetch_add(did("copied what is held"), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 2, violation), Vec::<String>::new());
    assert!(changed.into_inner() > 100 && held.into_inner() > 20, "nothing changes, so nothing is shown");
    assert!(wanted.into_inner() > 20, "nobody wants another number while something goes wrong");
}

#[test]
fn copies_that_were_not_made_are_found() {
    found_by(copied, Planted::SaysCopied, &["begins behind", "has gone after", "is the last of its key"]);
}

/// All of what people do at once.
#[test]
fn many_seeds_in_which_people_do_all_that_they_can_keep_every_promise() {
    use Fault::*;
    let torments = [Kill, PowerCut, Destroyed, Freeze, CutOff, PairCut, LeaderLost, Move, Drain, Stop];
    let people = [Remove, LastCopy, DeleteRecords];
    let only: Vec<Fault> = torments.into_iter().chain(people).collect();
    let plan = |seed| Plan { only: only.clone(), fault_us: 500_000, retention: false, ..short(seed) };
    assert_eq!(all(1..1 + SEEDS / 4, |seed| run(&plan(seed)).violation), Vec::<String>::new());
    assert_eq!(all(252..253, |seed| run(&plan(seed)).violation), Vec::<String>::new());
}

/// Machines burn that alone have something, and a person gives up what is gone.
fn last_copies(seed: u64) -> Plan {
    let only = vec![Fault::Kill, Fault::PowerCut, Fault::Freeze, Fault::CutOff, Fault::Move, Fault::LastCopy];
    Plan { only, fault_us: 700_000, retention: false, ..short(seed) }
}

#[test]
fn many_seeds_in_which_last_copies_are_given_up_lose_nothing_else() {
    let gone = AtomicU64::new(0);
    let violation = |seed| {
        let report = run(&last_copies(seed));
        let records = report.did.get("records gone that were given up").copied().unwrap_or(0);
        gone.fetch_add(
            records + report.did.get("began behind what was given up").copied().unwrap_or(0),
            Ordering::Relaxed,
        );
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 2, violation), Vec::<String>::new());
    assert!(gone.into_inner() > 100, "nothing is lost, so nothing is shown");
    // Nodes have to be stopped, one after the other, so that their logs can be given up.
    let only = vec![Fault::Kill, Fault::Freeze, Fault::Move, Fault::LastCopy];
    let stopped =
        [114, 138].into_iter().filter_map(|seed| run(&Plan { only: only.clone(), ..last_copies(seed) }).violation);
    assert_eq!(stopped.collect::<Vec<String>>(), Vec::<String>::new());
}

#[test]
fn what_is_taken_to_be_given_up_and_can_be_read_is_found() {
    found_by(last_copies, Planted::GivesUpReadable, &["nobody has given that up", "begins behind"]);
}

/// Disks of backups that live lose what nobody else has, and a person has one streamlet after the other go on without; now and then with a view named first that reads back.
fn blocks_lost(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![Kill, Freeze, CutOff, PairCut, Move, Drain, BlocksLost];
    Plan { only, fault_us: 700_000, trouble_ms: 25_000, retention: false, ..short(seed) }
}

/// Exactly that is lost which was accepted: of each streamlet, for itself.
#[test]
fn many_seeds_in_which_single_streamlets_go_on_without_blocks_lose_nothing_else() {
    let counts = ["views given up for one streamlet", "views given up that read back"];
    let ways = ["opened without what was given up for it", "went on without what was given up for it"];
    let losses = ["records gone that were given up", "began behind what was given up"];
    let sums: [AtomicU64; 5] = Default::default();
    let violation = |seed| {
        let report = run(&blocks_lost(seed));
        let did = |what: &str| report.did.get(what).copied().unwrap_or(0);
        let gone: u64 = losses.iter().map(|what| did(what)).sum();
        for (sum, count) in sums.iter().zip(counts.iter().chain(&ways).map(|what| did(what)).chain([gone])) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 2, violation), Vec::<String>::new());
    let [said, erred, opened, went_on, gone] = sums.map(AtomicU64::into_inner);
    assert!(said > 50 && said > erred && erred > 5, "{said} views were given up, {erred} of which read back");
    assert!(opened > 5 && went_on > 5, "{opened} streamlets were opened without, and {went_on} went on without");
    assert!(gone > 50, "next to nothing is lost, so nothing is shown: {gone}");
    assert_eq!(run(&blocks_lost(3)), run(&blocks_lost(3)));
}

#[test]
fn what_was_given_up_for_one_streamlet_and_left_out_for_others_is_found() {
    found_by(blocks_lost, Planted::GivesUpForAll, &["nobody has given that up", "begins behind"]);
}

/// A person names blocks that read back. Nobody loses anything by that who asks for them first.
#[test]
fn an_owner_that_goes_on_without_asking_for_what_was_given_up_is_found() {
    found_by(blocks_lost, Planted::GoesOnUnasked, &["nobody has given that up", "begins behind"]);
}

/// The coordinators have their log on disks, which fail and lose their power with all else that these have.
fn on_disks(seed: u64) -> Plan {
    Plan { coordinator_disks: true, fault_us: 700_000, ..short(seed) }
}

#[test]
fn many_seeds_with_coordinators_on_disks_keep_every_promise() {
    let (chosen, snapshots) = (AtomicU64::new(0), AtomicU64::new(0));
    let violation = |seed| {
        let report = run(&on_disks(seed));
        let did = |what| report.did.get(what).copied().unwrap_or(0);
        chosen.fetch_add(did("elections of coordinators"), Ordering::Relaxed);
        snapshots.fetch_add(did("snapshots of coordinators"), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 4, violation), Vec::<String>::new());
    assert!(chosen.into_inner() > SEEDS / 2 && snapshots.into_inner() > 10, "nothing is written, so nothing is shown");
}

#[test]
fn a_seed_with_coordinators_on_disks_repeats_itself() {
    for seed in 1..5 {
        assert_eq!(run(&on_disks(seed)), run(&on_disks(seed)), "two runs of seed {seed}");
    }
}

/// What they write fails and is torn, disks are full and change bits, and the power goes in the midst of it.
#[test]
fn many_seeds_of_coordinators_whose_disks_fail_keep_every_promise() {
    use Fault::*;
    let failing = [DiskFull, DiskBroken, WriteFails, WriteTorn, SyncFails, LogRot];
    let others = [Kill, KillAll, PowerCut, PowerCutAll, LeaderLost, CutOff, PairCut, Freeze, Move];
    let only: Vec<Fault> = failing.into_iter().chain(others).collect();
    let plan = |seed| Plan { only: only.clone(), fault_us: 300_000, ..on_disks(seed) };
    let (ended, rotted) = (AtomicU64::new(0), AtomicU64::new(0));
    let violation = |seed| {
        let report = run(&plan(seed));
        let by_disks = report.did.get("coordinators ended by their disks").copied().unwrap_or(0);
        ended.fetch_add(by_disks, Ordering::Relaxed);
        rotted.fetch_add(report.faults.get(LogRot.name()).copied().unwrap_or(0), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 4, violation), Vec::<String>::new());
    assert!(ended.into_inner() > 10, "no disk refuses anything, so nothing is shown");
    assert!(rotted.into_inner() > 5, "no log has a bit changed, so that is not shown");
}

#[test]
fn a_coordinator_that_forgets_its_vote_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::LeaderLost], ..on_disks(seed) };
    found_by(plan, Planted::ForgetsVotes, &["answered for the vote", "and did for"]);
}

#[test]
fn a_coordinator_that_forgets_what_it_has_answered_for_is_found() {
    let plan = |seed| Plan { only: vec![Fault::Kill, Fault::LeaderLost], ..on_disks(seed) };
    found_by(plan, Planted::AnswersUnwritten, &["answered for the entry", "without the entry"]);
}

/// Disks stand still for a while, and some for so long that their nodes fall silent.
fn stuck(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![DiskStuck, DiskSlow, Kill, PowerCut, Freeze, CutOff, LeaderLost, Move, Stop];
    let kind = [Kind::Usual, Kind::Async, Kind::Compacted, Kind::OneCopy][seed as usize % 4];
    Plan { only, kind, coordinator_disks: seed.is_multiple_of(3), fault_us: 500_000, trouble_ms: 25_000, ..short(seed) }
}

#[test]
fn many_seeds_with_disks_that_stand_still_keep_every_promise() {
    let times = AtomicU64::new(0);
    let violation = |seed| {
        let report = run(&stuck(seed));
        times.fetch_add(report.faults.get("disk-stuck").copied().unwrap_or(0), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 4, violation), Vec::<String>::new());
    assert!(times.into_inner() > 50, "no disk stands still, so nothing is shown");
    assert_eq!(run(&stuck(3)), run(&stuck(3)));
}

/// All coordinators but one are gone, and a person has that one go on.
fn without_majority(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![MajorityLost, Kill, PowerCut, PowerCutAll, Freeze, CutOff, PairCut, LeaderLost, DiskSlow, Move];
    Plan { only, trouble_ms: 25_000, applications: seed.is_multiple_of(3), ..on_disks(seed) }
}

#[test]
fn many_seeds_that_lose_most_coordinators_keep_every_promise() {
    let (alone, replaced) = (AtomicU64::new(0), AtomicU64::new(0));
    let violation = |seed| {
        let report = run(&without_majority(seed));
        let did = |what| report.did.get(what).copied().unwrap_or(0);
        alone.fetch_add(did("went on alone"), Ordering::Relaxed);
        replaced.fetch_add(did("took the snapshot of one that was left"), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 4, violation), Vec::<String>::new());
    let (alone, replaced) = (alone.into_inner(), replaced.into_inner());
    assert!(alone > SEEDS / 20 && replaced > alone, "{alone} went on, and {replaced} followed: so nothing is shown");
}

#[test]
fn a_seed_that_loses_most_coordinators_repeats_itself() {
    let went_on = |seed: &u64| run(&without_majority(*seed)).did.contains_key("went on alone");
    let seeds: Vec<u64> = (1..100).filter(went_on).take(2).collect();
    assert_eq!(seeds.len(), 2, "next to nobody goes on alone, so nothing is repeated");
    for seed in seeds {
        assert_eq!(run(&without_majority(seed)), run(&without_majority(seed)), "two runs of seed {seed}");
    }
}

#[test]
fn a_coordinator_that_goes_on_without_the_end_of_its_log_is_found() {
    found_by(without_majority, Planted::RecoversOld, &["makes another state"]);
}

#[test]
fn numbers_that_are_given_once_more_by_who_goes_on_alone_are_found() {
    found_by(without_majority, Planted::SkipsNoNumbers, &["may have been given before"]);
}

/// Disks have no room for data, and what is kept free of that for what the coordinators note.
fn full_for_data(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![DataFull, LeaderLost, Kill, Freeze, CutOff, Move];
    Plan { only, fault_us: 300_000, ..on_disks(seed) }
}

#[test]
fn many_seeds_with_disks_that_are_full_for_data_keep_every_promise() {
    let times = AtomicU64::new(0);
    let violation = |seed| {
        let report = run(&full_for_data(seed));
        times.fetch_add(report.faults.get("data-full").copied().unwrap_or(0), Ordering::Relaxed);
        report.violation
    };
    assert_eq!(all(1..1 + SEEDS / 8, violation), Vec::<String>::new());
    assert!(times.into_inner() > 50, "no disk is full, so nothing is shown");
}

#[test]
fn data_that_takes_a_disk_to_its_last_byte_is_found() {
    found_by(full_for_data, Planted::KeepsNothingFree, &["on a disk that is full for data"]);
}

/// Answers are held back as soon as one waits to be sent, and go on when it is.
#[test]
fn many_seeds_with_narrow_connections_keep_every_promise() {
    let plan = |seed| Plan { narrow: true, ..with_applications(seed) };
    let (violations, held_back) = all_counting(1..1 + SEEDS / 8, plan, "went on with what was held back");
    assert_eq!(violations, Vec::<String>::new());
    assert!(held_back > 200, "next to nothing is held back, so nothing is shown: {held_back}");
}

/// Nodes that are stopped answer what is under way before their connections end, as real ones do.
fn finishing(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![Stop, StopAll, Kill, Freeze, PairCut, CutOff, DiskSlow, Move];
    Plan { finishes: true, only, fault_us: 500_000, ..short(seed) }
}

#[test]
fn many_seeds_in_which_nodes_that_stop_answer_what_is_under_way_keep_every_promise() {
    let (violations, answered) = all_counting(1..1 + SEEDS / 4, finishing, "answered while it was being stopped");
    assert_eq!(violations, Vec::<String>::new());
    assert!(answered > 50, "next to nothing is under way when a node is stopped, so nothing is shown: {answered}");
    assert_eq!(run(&finishing(3)), run(&finishing(3)));
}

/// People make streams and delete them while nodes are down, stand still, are cut off or are behind, and nodes hear of all that becomes true in pieces. Whoever uses a stream begins at once.
fn made_and_deleted(seed: u64) -> Plan {
    use Fault::*;
    let only = vec![MakeStream, DeleteStream, Kill, Freeze, CutOff, PairCut, LeaderLost, Move, Drain, Stop, PowerCut];
    Plan { in_pieces: true, sends_snapshots: true, only, trouble_ms: 10_000, fault_us: 250_000, ..short(seed) }
}

#[test]
fn many_seeds_in_which_streams_are_made_and_deleted_while_nodes_are_away_keep_every_promise() {
    let counts = [
        "streams made while a node was away",
        "streams deleted while a node was away",
        "written to streams made while a node was away",
        "wrote to who had not heard of the stream",
        "asked for owners who had not heard of them",
        "told of a snapshot",
    ];
    let sums: [AtomicU64; 6] = Default::default();
    let violation = |seed| {
        let report = run(&made_and_deleted(seed));
        for (sum, what) in sums.iter().zip(counts) {
            sum.fetch_add(report.did.get(what).copied().unwrap_or(0), Ordering::Relaxed);
        }
        report.violation
    };
    assert_eq!(all(1..17, violation), Vec::<String>::new());
    let sums = sums.map(AtomicU64::into_inner);
    let missing: Vec<_> = counts.iter().zip(sums).filter(|(_, sum)| *sum == 0).collect();
    assert!(missing.is_empty() && sums[0] > 10 && sums[2] > 50, "so nothing is shown: {missing:?} of {sums:?}");
    assert_eq!(run(&made_and_deleted(3)), run(&made_and_deleted(3)));
}

#[test]
fn a_stream_that_is_served_before_it_is_known_whose_it_is_is_found() {
    found_by(made_and_deleted, Planted::ServesUnplaced, &["acknowledged in owner epoch"]);
}

#[test]
fn a_state_that_has_its_number_before_all_of_it_was_told_is_found() {
    found_by(made_and_deleted, Planted::NumbersEarly, &["it was in"]);
}

#[test]
fn a_node_that_has_heard_of_streams_which_it_is_still_to_be_told_of_is_found() {
    found_by(made_and_deleted, Planted::HeardAhead, &["nobody has deleted it"]);
}
