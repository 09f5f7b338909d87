//! Writes docs/CONFORMANCE.md: a table per special interest group, and every spec that does not pass with its
//! cause.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::causes;
use super::report::{Results, Run, Spec, State};
use super::upstream::VERSION;

/// The longest message that is shown for a failure without a known cause.
const MESSAGE: usize = 160;

pub fn page(results: &Results) -> String {
    let mut text = format!(
        "# Conformance\n\nHow Kubernetes {VERSION}'s own conformance suite fares against Knarr: a fresh cluster of two \
         nodes, the latest result of each spec. Written by `cargo xtask conformance`.\n\n{}\n\n\
         | group | passed | failed | skipped |\n| --- | ---: | ---: | ---: |\n",
        stamp(results)
    );
    let mut groups: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for spec in results.specs() {
        let column = match spec.state {
            State::Passed => 0,
            State::Failed => 1,
            State::Skipped => 2,
        };
        for group in [spec.sig(), "total"] {
            groups.entry(group).or_default()[column] += 1;
        }
    }
    let total = groups.remove("total").unwrap_or_default();
    for (group, counts) in groups.iter().map(|(g, c)| (*g, c)).chain([("**total**", &total)]) {
        let _ = writeln!(text, "| {group} | {} | {} | {} |", counts[0], counts[1], counts[2]);
    }
    let failed: Vec<&Spec> = results.specs().filter(|spec| spec.state == State::Failed).collect();
    if !failed.is_empty() {
        text.push_str("\n## What fails\n\n| spec | cause |\n| --- | --- |\n");
        for spec in failed {
            let _ = writeln!(text, "| {} | {} |", cell(&spec.name), cell(&cause(spec)));
        }
    }
    text
}

/// Returns the runs that the results are from.
fn stamp(results: &Results) -> String {
    let mut specs_of: BTreeMap<Option<&Run>, usize> = BTreeMap::new();
    results.specs().for_each(|spec| *specs_of.entry(spec.run.as_ref()).or_default() += 1);
    let all: usize = specs_of.values().sum();
    match specs_of.last_key_value() {
        Some((Some(run), count)) if *count == all => {
            format!("All {all} results are of one run, begun {}, of {}.", run.began, run.of)
        }
        Some((Some(run), count)) => format!(
            "The results are of several runs: {count} of the {all} are of the latest one, begun {}, of {}.",
            run.began, run.of
        ),
        _ => "It was not noted which runs the results are of.".to_owned(),
    }
}

fn cause(spec: &Spec) -> String {
    if let Some(cause) = causes::of(&spec.name) {
        return cause.to_owned();
    }
    let line = spec.message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown");
    let short: String = line.chars().take(MESSAGE).collect();
    format!("not yet looked into: `{}`", short.replace('`', "'"))
}

/// Escapes text for a table cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_and_failures_listed() {
        let spec = |name: &str, state| Spec {
            name: name.to_owned(),
            state,
            message: "\n  timed out | waiting\nmore".to_owned(),
            run: None,
        };
        let run = |began: &str| Run { began: began.to_owned(), of: "commit `c0ffee`".to_owned() };
        let mut results = Results::default();
        let specs = [
            spec("[sig-node] a", State::Passed),
            spec("[sig-node] b", State::Failed),
            spec("[sig-apps] c", State::Skipped),
        ];
        assert_eq!(stamp(&results), "It was not noted which runs the results are of.");
        results.replace(&specs, &run("2026-01-01"));
        assert_eq!(stamp(&results), "All 3 results are of one run, begun 2026-01-01, of commit `c0ffee`.");
        results.replace(&specs[1..], &run("2026-01-02"));
        let page = page(&results);
        let runs = "several runs: 2 of the 3 are of the latest one, begun 2026-01-02, of commit `c0ffee`.";
        assert!(page.contains(runs), "{page}");
        assert!(
            page.contains("| sig-apps | 0 | 0 | 1 |\n| sig-node | 1 | 1 | 0 |\n| **total** | 1 | 1 | 1 |"),
            "{page}"
        );
        assert!(page.contains("| [sig-node] b | not yet looked into: `timed out \\| waiting` |"), "{page}");
        assert_eq!(page.matches("not yet").count(), 1);
    }
}
