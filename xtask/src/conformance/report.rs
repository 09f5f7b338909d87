//! The result of each spec: read from the runner's report, and stored between runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Passed,
    Failed,
    Skipped,
}

/// One run of specs on one fresh cluster.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Run {
    /// `2026-11-25T20:00:00Z`.
    pub began: String,
    /// The commit that the binary was built from, as far as it is known.
    pub of: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    pub name: String,
    pub state: State,
    /// The suite's message about a failure or skip.
    pub message: String,
    /// The run of this result; `None` for results that were stored before runs were recorded.
    pub run: Option<Run>,
}

impl Spec {
    /// Returns the special interest group: `sig-node` of `[sig-node] Pods …`.
    pub fn sig(&self) -> &str {
        self.name.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or("other", |(sig, _)| sig)
    }
}

/// Parses the specs of a report that ran or skipped themselves, without those that were not selected.
pub fn parse(text: &str) -> Result<Vec<Spec>> {
    let suites: Value = serde_json::from_str(text).context("the suite's report is no JSON")?;
    let suites = suites.as_array().context("the suite's report is no list")?;
    let reports = suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten();
    Ok(reports.filter_map(spec).collect())
}

fn spec(report: &Value) -> Option<Spec> {
    if report["LeafNodeType"] != "It" {
        return None;
    }
    let message = report["Failure"]["Message"].as_str().unwrap_or_default();
    let state = match report["State"].as_str()? {
        "passed" => State::Passed,
        "skipped" if message.is_empty() => return None,
        "skipped" => State::Skipped,
        "pending" => return None,
        _ => State::Failed,
    };
    let containers = report["ContainerHierarchyTexts"].as_array().map_or(&[][..], Vec::as_slice);
    let mut name: Vec<&str> = containers.iter().filter_map(Value::as_str).collect();
    name.push(report["LeafNodeText"].as_str()?);
    Some(Spec { name: name.join(" "), state, message: message.to_owned(), run: None })
}

/// Returns the last lines of a run: failures, skips, and their counts.
pub fn summary(specs: &[Spec]) -> String {
    let of = |state| specs.iter().filter(move |spec| spec.state == state);
    let mut lines = Vec::new();
    for (word, state) in [("failed", State::Failed), ("skipped", State::Skipped)] {
        lines.extend(of(state).map(|spec| {
            let why = spec.message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown");
            format!("{word}: {}: {why}", spec.name)
        }));
    }
    let count = |state| of(state).count();
    let mut last = format!("{} passed, {} failed", count(State::Passed), count(State::Failed));
    if count(State::Skipped) > 0 {
        last.push_str(&format!(", {} skipped", count(State::Skipped)));
    }
    lines.push(last);
    lines.join("\n")
}

/// The latest result of every spec that ever ran, by name.
#[derive(Default)]
pub struct Results {
    specs: BTreeMap<String, Spec>,
}

impl Results {
    pub fn open(path: &Path) -> Result<Self> {
        let Ok(text) = fs::read_to_string(path) else { return Ok(Self::default()) };
        let values: Vec<Value> = serde_json::from_str(&text)
            .with_context(|| format!("{} is no list of results", path.display()))?;
        let mut results = Self::default();
        let specs: Vec<Spec> = values.iter().filter_map(read).collect();
        results.specs.extend(specs.into_iter().map(|spec| (spec.name.clone(), spec)));
        Ok(results)
    }

    /// Replaces earlier results by those of a run.
    pub fn replace(&mut self, specs: &[Spec], run: &Run) {
        let of_run = |spec: &Spec| Spec { run: Some(run.clone()), ..spec.clone() };
        self.specs.extend(specs.iter().map(|spec| (spec.name.clone(), of_run(spec))));
    }

    pub fn save(&self, path: &Path) -> Result<()> {
        let values: Vec<Value> = self.specs.values().map(write).collect();
        fs::write(path, format!("{:#}\n", Value::Array(values)))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub fn specs(&self) -> impl Iterator<Item = &Spec> {
        self.specs.values()
    }
}

fn write(spec: &Spec) -> Value {
    let state = match spec.state {
        State::Passed => "passed",
        State::Failed => "failed",
        State::Skipped => "skipped",
    };
    let mut value = json!({"name": spec.name, "state": state, "message": spec.message});
    if let Some(Run { began, of }) = &spec.run {
        value["run"] = json!({"began": began, "of": of});
    }
    value
}

fn read(value: &Value) -> Option<Spec> {
    let state = match value["state"].as_str()? {
        "passed" => State::Passed,
        "failed" => State::Failed,
        "skipped" => State::Skipped,
        _ => return None,
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let run = &value["run"];
    let run = text(&run["began"]).zip(text(&run["of"])).map(|(began, of)| Run { began, of });
    Some(Spec { name: text(&value["name"])?, state, message: text(&value["message"])?, run })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(state: &str, text: &str, message: Option<&str>) -> Value {
        let mut report = json!({"ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It",
            "LeafNodeText": text, "State": state});
        if let Some(message) = message {
            report["Failure"] = json!({"Message": message});
        }
        report
    }

    #[test]
    fn reports_are_read() {
        let setup = json!({"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed", "LeafNodeText": ""});
        let text = json!([{"SpecReports": [
            setup,
            report("passed", "run", None),
            report("failed", "stop", Some("timed out")),
            report("timedout", "hang", Some("too long")),
            report("skipped", "need a cloud", Some("no cloud")),
            report("skipped", "were not chosen", None),
        ]}])
        .to_string();
        let specs = parse(&text).expect("a report");
        let found: Vec<(&str, State)> = specs.iter().map(|s| (s.name.as_str(), s.state)).collect();
        assert_eq!(
            found,
            [
                ("[sig-node] Pods run", State::Passed),
                ("[sig-node] Pods stop", State::Failed),
                ("[sig-node] Pods hang", State::Failed),
                ("[sig-node] Pods need a cloud", State::Skipped),
            ]
        );
        assert_eq!(specs[1].message, "timed out");
        assert_eq!(specs[0].sig(), "sig-node");
        assert_eq!(
            summary(&specs),
            "failed: [sig-node] Pods stop: timed out\nfailed: [sig-node] Pods hang: too long\n\
             skipped: [sig-node] Pods need a cloud: no cloud\n1 passed, 2 failed, 1 skipped"
        );
        assert_eq!(summary(&specs[..1]), "1 passed, 0 failed");
        assert!(parse("{}").is_err() && parse("").is_err());
    }

    #[test]
    fn a_later_result_replaces_an_earlier_one() {
        let spec = |state| Spec { name: "[sig-a] x".into(), state, message: String::new(), run: None };
        let run = |began: &str| Run { began: began.into(), of: "c0ffee".into() };
        let mut results = Results::default();
        results.replace(&[spec(State::Failed)], &run("a"));
        results.replace(&[spec(State::Passed)], &run("b"));
        let kept: Vec<Spec> = results.specs().map(write).filter_map(|value| read(&value)).collect();
        assert_eq!(kept, [Spec { run: Some(run("b")), ..spec(State::Passed) }]);
        let old = json!({"name": "[sig-a] x", "state": "passed", "message": ""});
        assert_eq!(read(&old), Some(spec(State::Passed)));
    }
}
