//! Time that processors were busy.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Busy time so far, or between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cpu {
    /// Of all threads of this process.
    pub(super) process: Duration,
    /// Of all processes of the machine and its kernel, if the system tells.
    pub(super) machine: Option<Duration>,
}

impl Cpu {
    pub(super) fn now() -> Self {
        let process = clock_gettime(ClockId::ProcessCPUTime);
        let seconds = u64::try_from(process.tv_sec).unwrap_or(0);
        let nanoseconds = u32::try_from(process.tv_nsec).unwrap_or(0);
        let stat = std::fs::read_to_string("/proc/stat");
        let ticks = stat.ok().and_then(|stat| busy_ticks(&stat));
        let of_ticks = |ticks: u64| {
            let per_second = rustix::param::clock_ticks_per_second().max(1);
            Duration::from_millis(ticks.saturating_mul(1_000) / per_second)
        };
        Self {
            process: Duration::new(seconds, nanoseconds),
            machine: ticks.map(of_ticks),
        }
    }

    /// What was added since an earlier look.
    pub(super) fn since(self, earlier: Self) -> Self {
        let machine = self.machine.zip(earlier.machine);
        Self {
            process: self.process.saturating_sub(earlier.process),
            machine: machine.map(|(now, then)| now.saturating_sub(then)),
        }
    }
}

/// Ticks in which any processor did something, of the first line of `/proc/stat`: `cpu`, then user,
/// nice, system, idle, iowait, irq, softirq, and what other virtual machines took. Guests are within
/// user and nice.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
    match ticks.ok()?.as_slice() {
        [user, nice, system, _idle, _iowait, irq, softirq, ..] => {
            Some(user + nice + system + irq + softirq)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_is_not_busy() {
        let stat = "cpu  100 20 3 5000 600 7 8 9000 50 1\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_ticks(stat), Some(138));
    }

    #[test]
    fn what_is_no_such_line_tells_nothing() {
        for other in [
            "",
            "cpu",
            "cpu 1 2 3",
            "cpu  a b c d e f g",
            "intr 1 2 3 4 5 6 7",
        ] {
            assert_eq!(busy_ticks(other), None, "{other}");
        }
    }

    #[test]
    fn work_of_another_thread_counts() {
        let before = Cpu::now();
        let work = std::thread::spawn(|| (0..5_000_000_u64).fold(0, u64::wrapping_add));
        std::hint::black_box(work.join().unwrap());
        assert!(Cpu::now().since(before).process > Duration::ZERO);
    }
}
