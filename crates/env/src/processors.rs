//! How busy the machine's processors are: for choices between what costs their time and what costs other things, never for what is right.

use std::fmt;

/// What the processors of the machine have done since it was started, all together, in a unit of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProcessorTimes {
    /// All of it.
    pub total: u64,
    /// Had nothing to do, whether or not something waited for a disk.
    pub idle: u64,
}

impl ProcessorTimes {
    /// For how much of the time since `before` they had nothing to do, in percent. 0 if no time has passed that can be told.
    pub fn idle_percent_since(&self, before: &ProcessorTimes) -> u64 {
        let total = self.total.saturating_sub(before.total);
        let idle = self.idle.saturating_sub(before.idle).min(total);
        (idle * 100).checked_div(total).unwrap_or(0)
    }
}

/// Tells how busy they are. Asked some ten times a second.
pub trait Processors: Send + Sync + fmt::Debug {
    /// What they have done so far. `None`: it cannot be told here.
    fn times(&self) -> Option<ProcessorTimes>;
}

/// Those of this machine, as `/proc/stat` has them. A container that may use a part of them only is told of all.
#[derive(Debug, Default)]
pub struct MachineProcessors;

impl Processors for MachineProcessors {
    fn times(&self) -> Option<ProcessorTimes> {
        parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }
}

/// The first line: user, nice, system, idle, waiting for disks, interrupts, soft interrupts, taken by the machine below; guests are part of
/// user.
fn parse(stat: &str) -> Option<ProcessorTimes> {
    let numbers = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = numbers.split_whitespace().take(8).map_while(|number| number.parse().ok()).collect();
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some(ProcessorTimes { total: ticks.iter().sum(), idle })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_understood_and_others_are_not() {
        let stat = "cpu  100 1 50 700 49 0 60 40 90 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse(stat), Some(ProcessorTimes { total: 1000, idle: 749 }));
        for other in ["", "cpu", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  1 2 three 4 5 6 7 8"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn percent_of_what_has_passed() {
        let times = |total, idle| ProcessorTimes { total, idle };
        assert_eq!(times(300, 150).idle_percent_since(&times(100, 100)), 25);
        assert_eq!(times(100, 100).idle_percent_since(&times(100, 100)), 0);
        assert_eq!(times(90, 300).idle_percent_since(&times(100, 100)), 0);
        assert_eq!(times(200, 300).idle_percent_since(&times(100, 100)), 100);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells() {
        let times = MachineProcessors.times().unwrap();
        assert!(times.total > 0 && times.idle <= times.total);
    }
}
