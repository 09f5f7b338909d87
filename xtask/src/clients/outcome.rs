//! The result of one client, and the reason of a failure from its output.

use super::facts::Client;

/// A line of a script that begins like this names its next step.
const STEP: &str = "try: ";
/// The longest reason.
const REASON: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Works,
    Failed(String),
    /// The client could not be installed, which says nothing about Knarr.
    Unavailable(String),
}

impl Outcome {
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed(_))
    }

    pub fn word(&self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Failed(_) => "failed",
            Self::Unavailable(_) => "unavailable",
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Works => "",
            Self::Failed(reason) | Self::Unavailable(reason) => reason,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub client: String,
    pub version: String,
    /// The steps that were tried; if the client failed, the last one is the one that failed.
    pub tried: Vec<String>,
    pub outcome: Outcome,
    pub seconds: u64,
}

impl Row {
    pub fn new(client: &Client, outcome: Outcome) -> Self {
        let (name, version) = (client.name.clone(), client.version.clone());
        Self { client: name, version, tried: Vec::new(), outcome, seconds: 0 }
    }
}

/// How a client's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Success,
    Failure,
    TimeLimit,
}

/// Returns the steps that a script's output names.
pub fn steps(output: &str) -> Vec<String> {
    output.lines().filter_map(|line| line.strip_prefix(STEP)).map(|step| step.trim().to_owned()).collect()
}

/// Judges a client: it works if its script succeeded and tried at least one step.
pub fn judge(end: End, output: &str) -> Outcome {
    let steps = steps(output);
    match (end, steps.last()) {
        (End::Success, Some(_)) => Outcome::Works,
        (End::Success, None) => Outcome::Failed("nothing was tried".to_owned()),
        (End::Failure, step) => Outcome::Failed(at(step, &error(output))),
        (End::TimeLimit, step) => Outcome::Failed(at(step, "not within the time limit")),
    }
}

fn at(step: Option<&String>, reason: &str) -> String {
    step.map_or_else(|| reason.to_owned(), |step| format!("{step}: {reason}"))
}

/// What registries' clients print if a package is not available.
const ABSENT: [&str; 12] = [
    "No matching distribution found",
    "No matching version found",
    "Not compatible with your version",
    "ENOTFOUND",
    "ECONNREFUSED",
    "403 Forbidden",
    "404 Not Found",
    "410 Gone",
    "unknown revision",
    "dial tcp",
    "requires go >=",
    "No module named pip",
];

/// Judges a client that could not be fetched or built: it is unavailable if a registry does not have it,
/// otherwise the fault is in this repository.
pub fn not_fetched(output: &str) -> Outcome {
    match output.lines().find(|line| ABSENT.iter().any(|word| line.contains(word))) {
        Some(line) => Outcome::Unavailable(shortened(line)),
        None => Outcome::Failed(format!("it was not built: {}", last_line(output))),
    }
}

/// Returns the last error after the last step, or the last line if there is none.
fn error(output: &str) -> String {
    let is_error = |line: &&str| line.contains("Error") && !line.starts_with(char::is_whitespace);
    let since = output.lines().rev().take_while(|line| !line.starts_with(STEP)).find(is_error);
    since.map_or_else(|| last_line(output), shortened)
}

fn last_line(output: &str) -> String {
    let line = output.lines().rev().find(|line| !line.trim().is_empty() && !line.starts_with(STEP));
    line.map_or_else(|| "it said nothing".to_owned(), shortened)
}

fn shortened(line: &str) -> String {
    let line = line.trim();
    let short: String = line.chars().take(REASON).collect();
    if short.len() < line.len() { format!("{short}…") } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_and_the_last_line_are_the_reason() {
        let failed = |text: &str| Outcome::Failed(text.to_owned());
        let output = "try: create\ntry: watch\nTraceback\nValueError: no event\n\n";
        assert_eq!(steps(output), ["create", "watch"]);
        assert_eq!(judge(End::Success, output), Outcome::Works);
        assert_eq!(judge(End::Failure, output), failed("watch: ValueError: no event"));
        assert_eq!(judge(End::TimeLimit, output), failed("watch: not within the time limit"));
        let node = "try: a\nSyntaxError: not JSON\n    at Error.parse\n\nNode.js v20\n";
        assert_eq!(judge(End::Failure, node), failed("a: SyntaxError: not JSON"));
        let before = "try: a\nan Error that was wanted\ntry: b\nno event\n";
        assert_eq!(judge(End::Failure, before), failed("b: no event"));
        assert_eq!(judge(End::Success, "hello\n"), failed("nothing was tried"));
        assert_eq!(judge(End::Failure, "try: a\n"), failed("a: it said nothing"));
        assert_eq!(judge(End::Failure, "no such program\n"), failed("no such program"));
    }

    #[test]
    fn what_a_registry_does_not_have_is_no_failure() {
        for output in [
            "ERROR: Could not find a version that satisfies x\nERROR: No matching distribution found for x==9\n",
            "npm error code ETARGET\nnpm error notarget No matching version found for x@9.\n",
            "npm error code EBADENGINE\nnpm error engine Not compatible with your version of node/npm: x@9\n",
            "npm error code E404\nnpm error 404 Not Found - GET x - Not found\n",
            "go: m.example/x@v9 requires go >= 1.99 (running go 1.26.8; GOTOOLCHAIN=local)\n",
            "go: m.example/x@v9: reading the proxy: 403 Forbidden\n\tserver response: not available.\n",
        ] {
            assert!(matches!(not_fetched(output), Outcome::Unavailable(_)), "{output}");
        }
        assert!(not_fetched("# x\n./main.go:3:1: syntax error\n").is_failure());
    }

    #[test]
    fn reasons_are_short() {
        let long = "é".repeat(REASON + 1);
        assert_eq!(shortened(&long).chars().count(), REASON + 1);
        assert_eq!(shortened(" as it is "), "as it is");
    }
}
