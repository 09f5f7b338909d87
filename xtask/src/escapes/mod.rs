//! `cargo xtask escapes`: attempts known container escapes, through the runtime's interface and with pods of
//! a server, on this machine's control groups and on pure cgroup v2.

mod guest;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::{cargo, root, run};
use guest::Guest;

#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask escapes\n  cargo xtask escapes --uml                  # also on pure cgroup v2 (Debian: user-mode-linux)\n  cargo xtask escapes --uml -- isolation::   # other tests of containers, without pods"
)]
pub struct Args {
    /// Run them again under this user-mode Linux, which has pure cgroup v2
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "linux.uml")]
    uml: Option<PathBuf>,
    /// Tests of containers to run instead
    #[arg(last = true, value_name = "FILTER")]
    filters: Vec<String>,
}

/// The tests of one program.
struct Suite {
    name: &'static str,
    program: PathBuf,
    filters: Vec<String>,
}

pub fn escapes(args: &Args) -> Result<()> {
    // The packages of the whole workspace are built, because another set of features would rebuild
    // everything.
    run(cargo(&["build", "--workspace", "--example", "shim"]))?;
    let programs = test_programs(&["containers", "e2e"])?;
    let suites = suites(&programs, &args.filters)?;
    for suite in &suites {
        println!("=== {} on this machine's control groups", suite.name);
        let begun = Instant::now();
        let mut here = Command::new(&suite.program);
        here.args(&suite.filters);
        run(here)?;
        println!("=== {} s", begun.elapsed().as_secs());
    }
    match &args.uml {
        Some(uml) => under_uml(uml, &suites),
        None => Ok(()),
    }
}

/// Returns what is run: both suites, or the selected tests of containers.
fn suites(programs: &[(String, PathBuf)], filters: &[String]) -> Result<Vec<Suite>> {
    let suite = |name, target: &str, filters: &[String]| {
        let program = programs.iter().find(|(found, _)| found == target).map(|(_, path)| path.clone());
        let program = program.with_context(|| format!("cargo names no program for the tests {target}"))?;
        anyhow::Ok(Suite { name, program, filters: filters.to_vec() })
    };
    if !filters.is_empty() {
        return Ok(vec![suite("containers", "containers", filters)?]);
    }
    let known = ["escapes::".to_owned(), "user_namespaces::".to_owned()];
    Ok(vec![suite("containers", "containers", &known)?, suite("pods", "e2e", &known[..1])?])
}

/// Builds the test programs of these names; returns each with its path.
fn test_programs(names: &[&str]) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo(&["test", "--workspace", "--no-run", "--message-format=json"]);
    command.args(names.iter().flat_map(|name| ["--test", name]));
    let output = command.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("the tests of containers and pods do not build");
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let programs = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let name = message["target"]["name"].as_str()?;
        let path = message["executable"].as_str()?;
        (names.contains(&name) && message["profile"]["test"] == true).then(|| (name.to_owned(), path.into()))
    });
    Ok(programs.collect())
}

/// Runs each suite in its own guest, all at the same time: a guest has one processor.
fn under_uml(uml: &Path, suites: &[Suite]) -> Result<()> {
    let begun = Instant::now();
    let names: Vec<&str> = suites.iter().map(|suite| suite.name).collect();
    println!("=== {} on pure cgroup v2, under {}", names.join(" and "), uml.display());
    let guests = suites.iter().map(|suite| {
        let folder = root().join("target/escapes").join(suite.name);
        Guest::prepare(suite.name, &folder, &suite.program, &suite.filters)
    });
    let guests = guests.collect::<Result<Vec<Guest>>>()?;
    let verdicts: Vec<Result<()>> = std::thread::scope(|scope| {
        let running: Vec<_> = guests.iter().map(|guest| scope.spawn(|| guest.run(uml))).collect();
        running
            .into_iter()
            .map(|guest| guest.join().unwrap_or_else(|_| bail!("a guest's thread panicked")))
            .collect()
    });
    println!("=== {} s", begun.elapsed().as_secs());
    verdicts.into_iter().collect()
}
