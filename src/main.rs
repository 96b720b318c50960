//! The `orderonce` binary.

use clap::Parser;
use orderonce::cli::{Cli, exit_code, run};
use std::io::Write;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(code) => code.into(),
        Err(error) => {
            // Nobody reads standard error: the exit code still tells.
            let _ = writeln!(std::io::stderr(), "orderonce: {error:#}");
            exit_code(&error).into()
        }
    }
}
