//! `cargo xtask test`: runs every test, the end-to-end ones against the program built with them.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{cargo, release_binary, requirements};

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --release\n  cargo xtask test -- --package knarr --test e2e b5_"
)]
pub struct Args {
    /// Use the release binary in the end-to-end tests
    #[arg(long)]
    release: bool,
    /// Arguments for `cargo test` instead of `--workspace`
    #[arg(last = true, value_name = "ARGUMENTS")]
    cargo: Vec<String>,
}

/// With more failures than this, another run would not help.
const MOST_REPEATED: usize = 3;

pub fn run(args: &Args) -> Result<()> {
    // Reported before minutes of building are spent.
    let missing = requirements::missing();
    if !missing.is_empty() {
        bail!("the tests need:\n  {}\n`.ci/run` installs them on Debian", missing.join("\n  "));
    }
    let binary = args.release.then(release_binary).transpose()?;
    let command = |arguments: &[&str]| {
        let mut command = cargo(&["test"]);
        if let Some(binary) = &binary {
            command.env("KNARR_BIN", binary);
        }
        command.args(arguments);
        command
    };
    if !args.cargo.is_empty() {
        let mut command = command(&[]);
        command.args(&args.cargo);
        return crate::run(command);
    }
    // Every test program runs even if others fail, so that one run shows all failures.
    let everything = ["--workspace", "--no-fail-fast"];
    let mut first = Outcome::default();
    if followed(command(&everything), &mut first)? {
        return Ok(());
    }
    let failed: Vec<&str> = first.failed.iter().map(String::as_str).collect();
    if !first.is_worth_repeating() {
        bail!("{} tests failed: {}", failed.len(), failed.join(", "));
    }
    println!("\nagain, alone: {}", failed.join(", "));
    let mut second = Outcome::default();
    let passed = followed(command(&[&everything[..], &["--", "--exact"], &failed].concat()), &mut second)?;
    if !passed || !first.failed.is_subset(&second.passed) {
        bail!("failed twice: {}", failed.join(", "));
    }
    println!(
        "\npassed alone, failed among the others: {}\nA test that does not always pass has a fault, or shows one: look for it.",
        failed.join(", ")
    );
    Ok(())
}

/// Runs a command, prints its output and parses it; returns whether it succeeded.
fn followed(mut command: Command, outcome: &mut Outcome) -> Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo test")?;
    let mut shown = std::io::stdout().lock();
    for line in BufReader::new(child.stdout.take().context("no output of cargo test")?).split(b'\n') {
        let line = line.context("cannot read what cargo test says")?;
        shown.write_all(&line)?;
        shown.write_all(b"\n")?;
        outcome.read(&String::from_utf8_lossy(&line));
    }
    Ok(child.wait().context("cargo test")?.success())
}

/// What the output of test programs contains.
#[derive(Debug, Default)]
struct Outcome {
    passed: BTreeSet<String>,
    failed: BTreeSet<String>,
    programs_begun: usize,
    programs_ended: usize,
}

impl Outcome {
    fn read(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("test ") {
            if let Some(name) = test.strip_suffix(" ... ok") {
                self.passed.insert(name.to_owned());
            } else if let Some(name) = test.strip_suffix(" ... FAILED") {
                self.failed.insert(name.to_owned());
            }
        }
        let counts = |word: &str| line.starts_with("running ") && line.ends_with(word);
        self.programs_begun += usize::from(counts(" tests") || counts(" test"));
        self.programs_ended += usize::from(line.starts_with("test result: "));
    }

    /// Returns whether a second run may help: few tests failed, and no program crashed.
    fn is_worth_repeating(&self) -> bool {
        (1..=MOST_REPEATED).contains(&self.failed.len()) && self.programs_begun == self.programs_ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| outcome.read(line));
        outcome
    }

    #[test]
    fn what_failed_is_repeated_if_that_can_tell_something() {
        let one =
            "running 2 tests\ntest a::b ... ok\ntest c ... FAILED\ntest result: FAILED. 1 passed; 1 failed\n";
        let outcome = read(one);
        assert!(outcome.passed.contains("a::b") && outcome.failed.contains("c"), "{outcome:?}");
        assert!(outcome.is_worth_repeating());
        // A program that crashed prints no results of its tests.
        assert!(!read(&format!("{one}running 1 test\n")).is_worth_repeating());
        // Nothing was built.
        assert!(!read("error: could not compile").is_worth_repeating());
        let many: String = (0..9).map(|i| format!("test t{i} ... FAILED\n")).collect();
        assert!(!read(&many).is_worth_repeating());
    }
}
