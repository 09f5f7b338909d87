//! `cargo xtask fuzz`: fuzzes the decoders for longer than the tests do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Counters on every edge of the program, and on comparisons with its input: the options of cargo-fuzz, as
/// far as a stable compiler supports them.
const COUNTERS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=16",
    "-Cdebug-assertions=on",
    "-Coverflow-checks=on",
];
/// The longest input, the same as that of seeded runs.
const INPUT_BYTES: u32 = 64 << 10;
/// The limits of one input.
const SECONDS: u32 = 10;
const MEGABYTES: u32 = 2048;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask fuzz                       # the names of all targets\n  \
    cargo xtask fuzz json --seconds 60\n  cargo xtask fuzz apply --seconds 600 --seed 7\n  \
    cargo xtask fuzz --coverage --minutes 60   # all targets, an hour each, under libFuzzer\n  \
    cargo xtask fuzz objects --coverage --minutes 5")]
pub struct Args {
    /// Target to fuzz; lists all targets if missing
    name: Option<String>,
    /// Number of seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Seed of the generator: runs with the same seed are the same
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Let libFuzzer choose inputs by the code that they reach (needs a C++ compiler); new ones are added to
    /// fuzz/corpus
    #[arg(long)]
    coverage: bool,
    /// Number of minutes for each target, with --coverage
    #[arg(long, value_name = "MINUTES", requires = "coverage", conflicts_with = "seconds")]
    minutes: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.coverage {
        return guided(args);
    }
    let mut command = seeded();
    if let Some(name) = &args.name {
        command.args([name, &args.seconds.to_string(), &args.seed.to_string()]);
    }
    crate::run(command)
}

fn seeded() -> Command {
    crate::cargo(&["run", "--quiet", "--release", "--package", "knarr-fuzz", "--bin", "knarr-fuzz", "--"])
}

/// Fuzzes one target after the other; a failure is printed, and the next target runs.
fn guided(args: &Args) -> Result<()> {
    let listed = seeded().stderr(Stdio::inherit()).output().context("cannot list the targets")?;
    let listed = String::from_utf8(listed.stdout)?;
    let names: Vec<&str> =
        listed.lines().filter(|name| args.name.as_deref().is_none_or(|wanted| wanted == *name)).collect();
    if names.is_empty() {
        bail!("{:?} is no target; there are {}", args.name, listed.replace('\n', " "));
    }
    let program = build()?;
    let seconds = args.minutes.map_or(args.seconds, |minutes| minutes * 60);
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for name in names {
        eprintln!("{name}: for {seconds} s");
        let outcome = Target::new(name)?.run(&program, seconds, args.seed)?;
        if let Some(input) = &outcome.failure {
            failed.push(format!("{name}: see {}", input.display()));
        }
        rows.push(format!("{name:<16} {outcome}"));
    }
    println!("{:<16} {:>12} {:>8} {:>8} {:>8}", "TARGET", "INPUTS", "EDGES", "CORPUS", "FAILED");
    rows.iter().for_each(|row| println!("{row}"));
    if failed.is_empty() { Ok(()) } else { bail!("{}", failed.join("\n")) }
}

/// Builds with counters, in a separate folder, because the flags would rebuild everything.
fn build() -> Result<PathBuf> {
    let folder = crate::root().join("target/fuzz");
    let mut command = crate::cargo(&["build", "--release", "--package", "knarr-fuzz"]);
    command.args(["--bin", "knarr-fuzz-guided", "--features", "coverage"]);
    command.env("RUSTFLAGS", COUNTERS.join(" ")).env("CARGO_TARGET_DIR", &folder);
    // The flags are set for the target only: build scripts and derives could not link the counters.
    command.args(["--target", &host()?]);
    crate::run(command)?;
    Ok(folder.join(host()?).join("release/knarr-fuzz-guided"))
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("cannot ask rustc for its host")?;
    let text = String::from_utf8(output.stdout)?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(ToOwned::to_owned).context("rustc does not name its host")
}

/// The folders of one target: the inputs in the repository, those of this run, and failures.
struct Target<'a> {
    name: &'a str,
    kept: PathBuf,
    found: PathBuf,
    failures: PathBuf,
}

struct Outcome {
    inputs: u64,
    edges: u64,
    corpus: usize,
    failure: Option<PathBuf>,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let failed = if self.failure.is_some() { "yes" } else { "no" };
        write!(f, "{:>12} {:>8} {:>8} {failed:>8}", self.inputs, self.edges, self.corpus)
    }
}

impl<'a> Target<'a> {
    fn new(name: &'a str) -> Result<Self> {
        let target = crate::root().join("target/fuzz");
        let target = Self {
            name,
            kept: crate::root().join("fuzz/corpus").join(name),
            found: target.join("found").join(name),
            failures: target.join("failures").join(name),
        };
        for folder in [&target.kept, &target.found, &target.failures] {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        Ok(target)
    }

    fn run(&self, program: &Path, seconds: u64, seed: u64) -> Result<Outcome> {
        crate::run({
            let mut command = seeded();
            command.arg("--write-corpus").arg(&self.found).arg(self.name);
            command
        })?;
        let before = count(&self.failures)?;
        let mut command = self.libfuzzer(program);
        command.args([format!("-max_total_time={seconds}"), format!("-seed={}", seed + 1)]);
        command.arg(&self.found).arg(&self.kept);
        let output = command.output().with_context(|| format!("cannot run {}", program.display()))?;
        let log = String::from_utf8_lossy(&output.stderr);
        fs::write(self.found.with_extension("log"), log.as_bytes())?;
        let stat = |name: &str| {
            let value = log.lines().find_map(|line| line.strip_prefix(&format!("stat::{name}:")));
            value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let failure = newest(&self.failures)?.filter(|_| !output.status.success());
        if !output.status.success() && count(&self.failures)? == before {
            bail!("{} ended with {}:\n{}", program.display(), output.status, tail(&log, 20));
        }
        self.keep(program)?;
        Ok(Outcome {
            inputs: stat("number_of_executed_units"),
            edges: edges(&log),
            corpus: count(&self.kept)?,
            failure,
        })
    }

    /// Copies the inputs that reach code which the stored inputs do not reach. How often they reach it is
    /// ignored: the repository would get thousands of similar inputs.
    fn keep(&self, program: &Path) -> Result<()> {
        let mut command = self.libfuzzer(program);
        command.args(["-merge=1", "-use_counters=0", "-max_len=4096"]).arg(&self.kept).arg(&self.found);
        command.stderr(Stdio::null()).status().context("cannot merge the inputs")?;
        Ok(())
    }

    fn libfuzzer(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("KNARR_FUZZ", self.name).current_dir(&self.failures);
        command.args([format!("-max_len={INPUT_BYTES}"), format!("-timeout={SECONDS}")]);
        command.args([format!("-rss_limit_mb={MEGABYTES}"), "-print_final_stats=1".to_owned()]);
        command.arg(format!("-artifact_prefix={}/", self.failures.display()));
        command
    }
}

/// Returns the last count that libFuzzer logs as `cov: N`.
fn edges(log: &str) -> u64 {
    let counts = log.lines().filter_map(|line| line.split_once(" cov: "));
    counts.filter_map(|(_, rest)| rest.split(' ').next()?.parse().ok()).next_back().unwrap_or(0)
}

fn count(folder: &Path) -> Result<usize> {
    Ok(fs::read_dir(folder)?.count())
}

fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = fs::read_dir(folder)?.collect::<Result<Vec<_>, _>>()?;
    let newest = entries.into_iter().max_by_key(|entry| entry.metadata().and_then(|m| m.modified()).ok());
    Ok(newest.map(|entry| entry.path()))
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
