//! What the system knows of this process, read from `/proc`. Elsewhere nothing is told.

use super::metrics::gauged;
use std::fs;

/// What is told; `None` where it cannot be read.
pub(super) struct Process {
    pub(super) resident_bytes: Option<f64>,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) open_files: Option<f64>,
    /// Since 1970.
    pub(super) start_seconds: Option<f64>,
}

impl Process {
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let ticks = gauged(rustix::param::clock_ticks_per_second());
        let seconds = |passed: Option<f64>| passed.map(|passed| passed / ticks);
        let boot = fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "));
        let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let pages = statm
            .split_whitespace()
            .nth(1)
            .and_then(|pages| pages.parse::<f64>().ok());
        let page = size(rustix::param::page_size());
        Self {
            resident_bytes: pages.map(|pages| pages * page),
            cpu_seconds: seconds(
                field(&stat, 14)
                    .zip(field(&stat, 15))
                    .map(|(user, system)| user + system),
            ),
            open_files: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|files| size(files.count())),
            start_seconds: seconds(field(&stat, 22))
                .zip(boot.and_then(|boot| boot.trim().parse::<f64>().ok()))
                .map(|(after, boot)| boot + after),
        }
    }
}

/// A field of `/proc/self/stat`, counted from 1 as in proc(5). The second is the name of the program, which may
/// hold spaces and brackets.
fn field(stat: &str, number: usize) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let text = after_name.split_whitespace().nth(number.checked_sub(3)?)?;
    text.parse().ok()
}

fn size(size: usize) -> f64 {
    gauged(u64::try_from(size).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_moves_no_field() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 4 0 987654 1 2";
        assert_eq!(field(stat, 14), Some(250.0));
        assert_eq!(field(stat, 15), Some(50.0));
        assert_eq!(field(stat, 22), Some(987_654.0));
        assert_eq!(field("", 14), None);
    }

    #[test]
    fn this_process_is_told_of() {
        let process = Process::read();
        assert!(process.resident_bytes.unwrap() > 100_000.0);
        assert!(process.open_files.unwrap() > 2.0);
        assert!(process.cpu_seconds.unwrap() >= 0.0);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let age = now.unwrap().as_secs_f64() - process.start_seconds.unwrap();
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }
}
