//! `cargo xtask cis`: runs kube-bench with the profile in `xtask/cis`, against a server without special
//! flags.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::bench::cluster::Cluster;
use crate::sandbox::NODE_IP;

#[derive(clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask cis --kube-bench /usr/local/bin/kube-bench\n  \
    cargo xtask cis --kube-bench ./kube-bench -- --audit-log-path audit.log")]
pub struct Args {
    /// Program kube-bench (`go build` in its repository)
    #[arg(long, value_name = "FILE")]
    kube_bench: PathBuf,
    /// Flags of the server [default: only those that keep it in its namespaces]
    #[arg(last = true)]
    flags: Vec<String>,
}

/// kube-bench's result for one recommendation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    number: String,
    text: String,
    status: String,
    /// Whether only a person can decide it: the profile has `type: manual`.
    manual: bool,
    actual: String,
}

pub fn run(args: &Args) -> Result<()> {
    let program = args.kube_bench.canonicalize().with_context(|| format!("{}", args.kube_bench.display()))?;
    let mut cluster = Cluster::new(&crate::release_binary()?)?;
    let kubelet = cluster.sandbox.path("kubelet");
    let flags: Vec<&str> = ["--kubelet-dir", kubelet.to_str().context("a path of UTF-8")?]
        .into_iter()
        .chain(args.flags.iter().map(String::as_str))
        .collect();
    cluster.start(&flags)?;
    let mut command = cluster.sandbox.command(program);
    command
        .args(["run", "--json", "--benchmark", "knarr-1", "--config-dir"])
        .arg(crate::root().join("xtask/cis"));
    command.env("KNARR_DATA_DIR", cluster.data_dir()).env("KNARR_KUBELET_DIR", &kubelet);
    command.env("KNARR_ADDRESS", NODE_IP);
    let output = command.output().context("kube-bench")?;
    let report = serde_json::from_slice(&output.stdout).with_context(|| {
        format!("kube-bench ({}): {}", output.status, String::from_utf8_lossy(&output.stderr))
    })?;
    let findings = findings(&report);
    print!("{}", table(&findings));
    let wrong: Vec<&Finding> = findings.iter().filter(|f| is_wrong(f)).collect();
    for finding in &wrong {
        println!("{} {}: {}: {}", finding.status, finding.number, finding.text, finding.actual);
    }
    if findings.is_empty() || !wrong.is_empty() {
        bail!("{} of {} checks failed or warn without a reason", wrong.len(), findings.len());
    }
    Ok(())
}

/// Returns whether the result is a failure, or a warning that is not left to a person.
fn is_wrong(finding: &Finding) -> bool {
    match finding.status.as_str() {
        "PASS" | "INFO" => false,
        "WARN" => !finding.manual,
        _ => true,
    }
}

/// Parses the output of kube-bench's `--json`.
fn findings(report: &Value) -> Vec<Finding> {
    let items = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let results = items(report, "Controls").into_iter().flat_map(|control| items(&control, "tests"));
    let results = results.flat_map(|group| items(&group, "results"));
    let text = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
    results
        .map(|result| Finding {
            number: text(&result["test_number"]),
            text: text(&result["test_desc"]),
            status: text(&result["status"]),
            manual: result["type"] == "manual",
            actual: [text(&result["actual_value"]), text(&result["reason"])].join(" ").trim().to_owned(),
        })
        .collect()
}

/// Returns the counts by section, such as `1.2`.
fn table(findings: &[Finding]) -> String {
    let section =
        |f: &Finding| f.number.rsplit_once('.').map_or(f.number.clone(), |(section, _)| section.to_owned());
    let mut sections: Vec<String> = findings.iter().map(section).collect();
    sections.dedup();
    let row = |name: &str, of: Vec<&Finding>| {
        let count = |status: &str| of.iter().filter(|f| f.status == status).count();
        let manual = of.iter().filter(|f| f.status == "WARN" && f.manual).count();
        let numbers = [count("PASS"), count("FAIL"), count("WARN") - manual, manual, count("INFO")];
        let cells: Vec<String> = numbers.iter().map(|n| format!("{n:>14}")).collect();
        format!("{name:<8}{}\n", cells.concat())
    };
    let mut text = format!(
        "{:<8}{:>14}{:>14}{:>14}{:>14}{:>14}\n",
        "section", "pass", "fail", "warn", "to decide", "not there"
    );
    for name in &sections {
        text += &row(name, findings.iter().filter(|f| section(f) == *name).collect());
    }
    text + &row("all", findings.iter().collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_and_warnings_without_a_reason_are_wrong() {
        let result = |number: &str, status: &str, kind: &str| json!({"test_number": number, "test_desc": "t", "status": status, "type": kind, "actual_value": "a"});
        let report = json!({"Controls": [
            {"tests": [{"results": [result("1.1.1", "PASS", ""), result("1.1.2", "FAIL", "")]}]},
            {"tests": [{"results": [
                result("5.1.1", "WARN", "manual"), result("5.1.2", "WARN", ""), result("5.1.3", "INFO", "skip"),
            ]}]},
        ]});
        let findings = findings(&report);
        let wrong: Vec<&str> = findings.iter().filter(|f| is_wrong(f)).map(|f| f.number.as_str()).collect();
        assert_eq!(wrong, ["1.1.2", "5.1.2"]);
        let table = table(&findings);
        let counts = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let rows: Vec<_> = table.lines().skip(1).map(counts).collect();
        assert_eq!(rows[0], ["1.1", "1", "1", "0", "0", "0"]);
        assert_eq!(rows[1], ["5.1", "0", "0", "1", "1", "1"]);
        assert_eq!(rows[2], ["all", "1", "1", "1", "1", "1"]);
    }
}
