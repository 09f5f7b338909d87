//! Runs the suite: selects specs, runs them in parallel, and prints the progress.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::cluster::Cluster;
use super::report::{self, Spec};
use super::upstream::Programs;

/// The selection of specs.
#[derive(Clone, Copy)]
pub struct Choice<'a> {
    /// Whether to include specs that are not part of conformance.
    pub all: bool,
    pub focus: Option<&'a str>,
    pub skip: Option<&'a str>,
}

impl Choice<'_> {
    fn flags(self, prefix: &str) -> Vec<String> {
        let mut flags = Vec::new();
        if !self.all {
            flags.push(format!("--{prefix}label-filter=Conformance"));
        }
        flags.extend(self.focus.map(|regex| format!("--{prefix}focus={regex}")));
        flags.extend(self.skip.map(|regex| format!("--{prefix}skip={regex}")));
        flags
    }
}

/// Returns the names of the specs that would run.
pub fn list(programs: &Programs, cache: &Path, choice: Choice) -> Result<Vec<String>> {
    let report = cache.join("list.json");
    let mut command = Command::new(programs.path("e2e.test"));
    command.args(choice.flags("ginkgo.")).args(["--ginkgo.dry-run", "--ginkgo.no-color"]);
    command.arg(format!("--ginkgo.json-report={}", report.display()));
    // Only the syntax of the address is checked.
    command.args(["--host=https://127.0.0.1:1", "--provider=skeleton"]);
    let output = command.current_dir(cache).output().context("the suite does not run")?;
    if !output.status.success() {
        bail!("the suite does not list its specs:\n{}", String::from_utf8_lossy(&output.stdout));
    }
    let specs = report::parse(&fs::read_to_string(&report)?)?;
    let mut names: Vec<String> = specs.into_iter().map(|spec| spec.name).collect();
    names.sort();
    Ok(names)
}

/// Runs the specs against the cluster; a failing spec is a result, not an error.
pub fn run(
    programs: &Programs,
    cluster: &Cluster,
    cache: &Path,
    choice: Choice,
    nodes: usize,
) -> Result<Vec<Spec>> {
    let report = cache.join("report.json");
    let _ = fs::remove_file(&report);
    let mut command = cluster.server.command(programs.path("ginkgo"));
    command.arg("run").args(choice.flags(""));
    command.args([format!("--procs={}", nodes.max(1)), "--timeout=24h".to_owned()]);
    command.args(["--no-color", "-v", "--silence-skips", "--json-report=report.json"]);
    command.arg(format!("--output-dir={}", cache.display()));
    command.arg(programs.path("e2e.test")).arg("--");
    command.arg(format!("--kubeconfig={}", cluster.kubeconfig().display()));
    command.arg(format!("--kubectl-path={}", programs.path("kubectl").display()));
    command.args(["--provider=skeleton", "--dump-logs-on-failure=false", "--disable-log-dump"]);
    // The suite and kubectl write to the sandbox's folder, not to a home folder.
    command.env("HOME", &cluster.server.folder).current_dir(cache);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("nsenter(1) of util-linux")?;
    let output = child.stdout.take().context("the suite's output")?;
    follow(BufReader::new(output), File::create(cache.join("suite.log"))?)?;
    child.wait()?;
    let text = fs::read_to_string(&report)
        .with_context(|| format!("the suite ended early: see {}", cache.join("suite.log").display()))?;
    report::parse(&text)
}

/// Writes the output to a file, and prints a line for each spec that has ended.
fn follow(output: impl BufRead, mut log: File) -> Result<()> {
    let mut progress = Progress::default();
    for line in output.split(b'\n') {
        let line = line?;
        log.write_all(&line)?;
        log.write_all(b"\n")?;
        if let Some(said) = progress.line(&String::from_utf8_lossy(&line)) {
            println!("{said}");
        }
    }
    Ok(())
}

/// Finds the ends of specs in the runner's verbose output: a line with a bullet has the result. The name is
/// on the line below, or else below the rule that began it.
#[derive(Default)]
struct Progress {
    passed: usize,
    failed: usize,
    after_rule: bool,
    name: String,
    verdict: Option<String>,
}

impl Progress {
    fn line(&mut self, line: &str) -> Option<String> {
        let ended = self.verdict.take().map(|verdict| {
            let name = if line.starts_with('[') { line.trim() } else { &self.name };
            format!("{:>4} {verdict} {name}", self.passed + self.failed)
        });
        let after_rule = std::mem::replace(&mut self.after_rule, line.starts_with("------"));
        if after_rule && line.starts_with('[') {
            line.trim().clone_into(&mut self.name);
        }
        if let Some(verdict) = line.strip_prefix("• [") {
            let word = verdict.split_once("] [").map(|(word, _)| word);
            *(if word.is_some() { &mut self.failed } else { &mut self.passed }) += 1;
            self.verdict = Some(word.unwrap_or("ok").to_owned());
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_spec_is_one_line() {
        let text = "Will run 2 of 9 specs\n------------------------------\n[sig-a] Thing works [Conformance]\n\
            file.go:12\n  STEP: do\n• [1.234 seconds]\n------------------------------\n[sig-a] Thing ends\nx.go:3\n\
            • [FAILED] [60.1 seconds]\n[sig-a] Thing [It] ends [Conformance]\nx.go:3\n\
            ------------------------------\n• [2 seconds]\n[sig-a] In parallel\n";
        let mut progress = Progress::default();
        let said: Vec<String> = text.lines().filter_map(|line| progress.line(line)).collect();
        assert_eq!(
            said,
            [
                "   1 ok [sig-a] Thing works [Conformance]",
                "   2 FAILED [sig-a] Thing [It] ends [Conformance]",
                "   3 ok [sig-a] In parallel"
            ]
        );
    }

    #[test]
    fn choices_become_flags() {
        let choice = Choice { all: false, focus: Some("a b"), skip: None };
        assert_eq!(choice.flags("ginkgo."), ["--ginkgo.label-filter=Conformance", "--ginkgo.focus=a b"]);
        assert_eq!(Choice { all: true, ..choice }.flags("ginkgo."), ["--ginkgo.focus=a b"]);
    }
}
