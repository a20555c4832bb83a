//! What a process costs, from `/proc`.

use serde::{Deserialize, Serialize};

/// Kernel clock ticks per second in `/proc`, the same on every Linux that KerA runs on.
const TICKS_PER_S: f64 = 100.0;

/// CPU time and memory of a process at one moment.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// CPU seconds since it started, user and system.
    pub cpu_seconds: f64,
    /// Memory that is in RAM, in bytes, shared memory (an arena) included.
    pub resident_bytes: u64,
    /// The part of it that is shared memory.
    pub resident_shared_bytes: u64,
    /// The most that was ever in RAM.
    pub resident_bytes_max: u64,
}

impl ProcessUsage {
    /// Reads a process of this host. `None` if there is no such process or it may not be looked at.
    pub fn of(pid: u32) -> Option<ProcessUsage> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        ProcessUsage::parse(&stat, &status)
    }

    fn parse(stat: &str, status: &str) -> Option<ProcessUsage> {
        // The second field is the program's name in parentheses and may hold anything; utime and stime are fields 14
        // and 15 of the line, 12 and 13 behind the name.
        let behind_name = stat.rsplit_once(')')?.1;
        let mut fields = behind_name.split_whitespace().skip(11);
        let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        let kib = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse().ok()
        };
        Some(ProcessUsage {
            cpu_seconds: ticks as f64 / TICKS_PER_S,
            resident_bytes: kib("VmRSS")? * 1024,
            resident_shared_bytes: kib("RssShmem").unwrap_or(0) * 1024,
            resident_bytes_max: kib("VmHWM").unwrap_or(0) * 1024,
        })
    }

    /// What was used since `before`: CPU time as the difference, memory as it is now.
    pub fn since(&self, before: &ProcessUsage) -> ProcessUsage {
        ProcessUsage { cpu_seconds: (self.cpu_seconds - before.cpu_seconds).max(0.0), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_and_spaces_do_not_confuse() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 150 50 0 0 20 0 1 0 100 200 300";
        let status = "Name:\ta\nVmHWM:\t    2000 kB\nVmRSS:\t    1000 kB\nRssShmem:\t     300 kB\n";
        let usage = ProcessUsage::parse(stat, status).unwrap();
        assert_eq!(usage.cpu_seconds, 2.0);
        assert_eq!((usage.resident_bytes, usage.resident_shared_bytes), (1000 << 10, 300 << 10));
        assert_eq!(usage.resident_bytes_max, 2000 << 10);
        assert_eq!(ProcessUsage::parse("", ""), None);
    }

    #[test]
    fn this_process_is_there_and_no_process_has_number_zero() {
        assert!(ProcessUsage::of(std::process::id()).unwrap().resident_bytes > 0);
        assert_eq!(ProcessUsage::of(0), None);
    }
}
