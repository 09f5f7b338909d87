//! What became of each spec: read from the runner's report, kept between runs.

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

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    pub name: String,
    pub state: State,
    /// Why it failed or was skipped, in the suite's words.
    pub message: String,
}

impl Spec {
    /// `sig-node` of `[sig-node] Pods …`.
    pub fn sig(&self) -> &str {
        self.name.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or("other", |(sig, _)| sig)
    }
}

/// The conformance specs of a report that ran, or that skipped themselves; not those that were not chosen.
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
    Some(Spec { name: name.join(" "), state, message: message.to_owned() })
}

/// The last line of a run.
pub fn summary(specs: &[Spec]) -> String {
    let count = |state| specs.iter().filter(|spec| spec.state == state).count();
    format!("{} passed, {} failed", count(State::Passed), count(State::Failed))
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
        results.replace(&specs);
        Ok(results)
    }

    pub fn replace(&mut self, specs: &[Spec]) {
        self.specs.extend(specs.iter().map(|spec| (spec.name.clone(), spec.clone())));
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
    json!({"name": spec.name, "state": state, "message": spec.message})
}

fn read(value: &Value) -> Option<Spec> {
    let state = match value["state"].as_str()? {
        "passed" => State::Passed,
        "failed" => State::Failed,
        "skipped" => State::Skipped,
        _ => return None,
    };
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    Some(Spec { name: text("name")?, state, message: text("message")? })
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
        assert_eq!(summary(&specs), "1 passed, 2 failed");
        assert!(parse("{}").is_err() && parse("").is_err());
    }

    #[test]
    fn a_later_result_replaces_an_earlier_one() {
        let spec = |state| Spec { name: "[sig-a] x".into(), state, message: String::new() };
        let mut results = Results::default();
        results.replace(&[spec(State::Failed)]);
        results.replace(&[spec(State::Passed)]);
        let kept: Vec<Spec> = results.specs().map(write).filter_map(|value| read(&value)).collect();
        assert_eq!(kept, [spec(State::Passed)]);
    }
}
