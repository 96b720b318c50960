//! `reconcile`: recomputes everything from the flows and compares.

use super::table::Table;
use crate::store::{Audit, Check, Difference, Result};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// How to reconcile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What waits longer than this is a difference; what is younger may be on its way.
    pub stuck_after: Duration,
    /// Differences to list of each check.
    pub limit: u32,
}

/// Five minutes, 20 differences of each check.
impl Default for Options {
    fn default() -> Self {
        Self {
            stuck_after: Duration::from_secs(300),
            limit: 20,
        }
    }
}

/// What reconciliation has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Every check that ran, in order.
    pub checks: Vec<Checked>,
    /// The differences of all checks that are listed; 0 means that there are none.
    pub differences: usize,
    /// Whether a check found more than it was to list.
    pub more: bool,
}

/// What one check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Its name.
    pub name: &'static str,
    /// What must be true.
    pub description: &'static str,
    /// Where it is not.
    pub differences: Vec<Difference>,
    /// Whether there are more than were to be listed.
    pub more: bool,
}

/// Runs every check of `store`; `on_check` hears the name of each before it runs. Nothing is
/// written, and workers may run meanwhile.
///
/// # Errors
/// [`crate::store::Error::Unavailable`] if the database is away.
pub async fn reconcile<A>(
    store: &A,
    options: &Options,
    mut on_check: impl FnMut(&str) + Send,
) -> Result<Report>
where
    A: Audit + Sync + ?Sized,
{
    let names = store.checks();
    let listed = usize::try_from(options.limit).unwrap_or(usize::MAX);
    let mut checks = Vec::with_capacity(names.len());
    for name in names {
        on_check(name);
        let one_more = options.limit.saturating_add(1);
        let mut differences = store.check(name, options.stuck_after, one_more).await?;
        let more = differences.len() > listed;
        differences.truncate(listed);
        checks.push(Checked {
            name,
            description: Check::named(name).map_or("", |check| check.description),
            differences,
            more,
        });
    }
    Ok(Report {
        differences: checks.iter().map(|check| check.differences.len()).sum(),
        more: checks.iter().any(|check| check.more),
        checks,
    })
}

impl Report {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.differences == 0 && !self.more
    }
}

/// The differences, check by check, and a last line that sums up.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.checks.iter();
        for check in failed.filter(|check| check.more || !check.differences.is_empty()) {
            writeln!(f, "{}: {}", check.name, check.description)?;
            let header = &["  of", "expected", "found", "look at"];
            let mut table = Table::new(header, &["expected", "found"]);
            for difference in &check.differences {
                let Difference {
                    subject,
                    expected,
                    found,
                    look,
                    check: _,
                } = difference;
                table.row([
                    format!("  {subject}"),
                    expected.clone(),
                    found.clone(),
                    look.clone(),
                ]);
            }
            write!(f, "{table}")?;
            if check.more {
                writeln!(f, "  ... and more")?;
            }
            writeln!(f)?;
        }
        let more = if self.more { "more than " } else { "" };
        let (differences, checks) = (self.differences, self.checks.len());
        writeln!(f, "{checks} checks, differences: {more}{differences}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{CHECKS, Subject};

    fn report(differences: Vec<Difference>, more: bool) -> Report {
        let checked = |name: &str, differences| {
            let check = Check::named(name).unwrap();
            Checked {
                name: check.name,
                description: check.description,
                differences,
                more,
            }
        };
        Report {
            differences: differences.len(),
            more,
            checks: vec![checked("stock_available", differences)],
        }
    }

    fn difference() -> Difference {
        let check = CHECKS[0];
        check.difference(
            Subject::Sku("85123A".into()),
            "44".into(),
            "45".into(),
            None,
        )
    }

    #[test]
    fn a_difference_shows_its_subject_both_figures_and_where_to_look() {
        let text = report(vec![difference()], true).to_string();
        assert_eq!(
            text,
            "stock_available: opening stock and all flows of a SKU add up to what is available
  of          expected  found  look at
─────────────────────────────────────────────────────────────────────
  SKU 85123A        44     45  stock and deduction_flow of SKU 85123A
  ... and more

1 checks, differences: more than 1
"
        );
    }

    #[test]
    fn a_clean_report_is_one_line() {
        let report = report(Vec::new(), false);
        assert!(report.is_clean());
        assert_eq!(report.to_string(), "1 checks, differences: 0\n");
    }
}
