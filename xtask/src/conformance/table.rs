//! docs/CONFORMANCE.md: a table per special interest group, and every spec that does not pass with its cause.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::causes;
use super::report::{Results, Spec, State};
use super::upstream::VERSION;

/// The longest message that is shown for a failure without a known cause.
const MESSAGE: usize = 160;

pub fn page(results: &Results) -> String {
    let mut text = format!(
        "# Conformance\n\nHow Kubernetes {VERSION}'s own conformance suite fares against Knarr: a fresh cluster of two \
         nodes, the latest result of each spec. Written by `cargo xtask conformance`.\n\n\
         | group | passed | failed | skipped |\n| --- | ---: | ---: | ---: |\n"
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

fn cause(spec: &Spec) -> String {
    if let Some(cause) = causes::of(&spec.name) {
        return cause.to_owned();
    }
    let line = spec.message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("unknown");
    let short: String = line.chars().take(MESSAGE).collect();
    format!("not yet looked into: `{}`", short.replace('`', "'"))
}

/// Text that cannot end its cell.
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
        };
        let mut results = Results::default();
        results.replace(&[
            spec("[sig-node] a", State::Passed),
            spec("[sig-node] b", State::Failed),
            spec("[sig-apps] c", State::Skipped),
        ]);
        let page = page(&results);
        assert!(
            page.contains("| sig-apps | 0 | 0 | 1 |\n| sig-node | 1 | 1 | 0 |\n| **total** | 1 | 1 | 1 |"),
            "{page}"
        );
        assert!(page.contains("| [sig-node] b | not yet looked into: `timed out \\| waiting` |"), "{page}");
        assert_eq!(page.matches("not yet").count(), 1);
    }
}
