//! The `orderonce` binary.

fn main() {}
