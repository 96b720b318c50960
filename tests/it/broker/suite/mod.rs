//! What every broker does, by subject.

pub(crate) mod crashing;
pub(crate) mod publishing;
pub(crate) mod receiving;
pub(crate) mod settling;
