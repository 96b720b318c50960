//! How long work tells how far it is.

/// Is told how far a piece of work is.
pub trait Progress: Send + Sync {
    /// A stage begins; it has `total` parts, if that is known.
    fn stage(&self, what: &str, total: Option<u64>);

    /// The stage is `done` parts far.
    fn at(&self, done: u64);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Progress for Quiet {
    fn stage(&self, _: &str, _: Option<u64>) {}

    fn at(&self, _: u64) {}
}
