//! Reports on standard output, progress on standard error.

use super::args::Format;
use crate::ops::progress::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Prints a report. That nobody reads any more, as under `head`, is not an error.
pub(super) fn print(report: &(impl Serialize + Display), format: Format) -> anyhow::Result<()> {
    let text = match format {
        Format::Text => ended(report.to_string()),
        Format::Json => serde_json::to_string_pretty(report)? + "\n",
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The text with an end of its last line.
fn ended(mut text: String) -> String {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// A progress bar on a terminal, plain lines otherwise.
pub(super) fn progress() -> Box<dyn Progress> {
    if io::stderr().is_terminal() {
        Box::new(Bar(Mutex::new(None)))
    } else {
        Box::new(Lines(Mutex::new(Stage::default())))
    }
}

struct Bar(Mutex<Option<ProgressBar>>);

impl Progress for Bar {
    fn stage(&self, what: &str, total: Option<u64>) {
        let bar = match total {
            Some(total) => ProgressBar::new(total).with_style(
                ProgressStyle::with_template("{msg:30} [{bar:40}] {pos}/{len} {elapsed}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            ),
            None => ProgressBar::new_spinner(),
        };
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        if let Ok(mut shown) = self.0.lock()
            && let Some(before) = shown.replace(bar)
        {
            before.finish_and_clear();
        }
    }

    fn at(&self, done: u64) {
        if let Ok(shown) = self.0.lock()
            && let Some(bar) = &*shown
        {
            bar.set_position(done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Ok(shown) = self.0.get_mut()
            && let Some(bar) = shown
        {
            bar.finish_and_clear();
        }
    }
}

/// A line for each stage, and one every few seconds within it.
struct Lines(Mutex<Stage>);

#[derive(Default)]
struct Stage {
    what: String,
    total: Option<u64>,
    told: Option<Instant>,
}

const TELL_EVERY: Duration = Duration::from_secs(5);

impl Progress for Lines {
    fn stage(&self, what: &str, total: Option<u64>) {
        if let Ok(mut stage) = self.0.lock() {
            *stage = Stage {
                what: what.to_owned(),
                total,
                told: Some(Instant::now()),
            };
        }
        tell(what);
    }

    fn at(&self, done: u64) {
        if let Ok(mut stage) = self.0.lock()
            && stage.told.is_none_or(|told| told.elapsed() >= TELL_EVERY)
        {
            stage.told = Some(Instant::now());
            let total = stage
                .total
                .map_or(String::new(), |total| format!(" of {total}"));
            tell(&format!("{}: {done}{total}", stage.what));
        }
    }
}

/// Says something beside the report, on standard error.
pub(super) fn tell(line: &str) {
    // Nobody reads standard error: nothing to tell.
    let _ = writeln!(io::stderr(), "{line}");
}
