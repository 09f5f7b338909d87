//! The findings of a check, as a table and as JSON.

use serde::Serialize;
use serde_json::{Value, json};

use crate::picture::{Output, print_table};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Something is wrong: the command exits with code 1.
    Error,
    /// An administrator should know of it.
    Warning,
}

/// One finding of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub severity: Severity,
    /// `store`, `object`, `encryption`, `certificate`, `file` or `backup`.
    pub area: &'static str,
    /// The key, file or resource that it concerns.
    pub name: String,
    pub problem: String,
    /// What `--repair` does about it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repair: Option<&'static str>,
    pub repaired: bool,
}

impl Finding {
    pub fn error(area: &'static str, name: impl Into<String>, problem: impl Into<String>) -> Self {
        let (name, problem) = (name.into(), problem.into());
        Self { severity: Severity::Error, area, name, problem, repair: None, repaired: false }
    }

    pub fn warning(area: &'static str, name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(area, name, problem) }
    }

    pub fn repair(self, repair: Option<&'static str>) -> Self {
        Self { repair, ..self }
    }

    pub fn is_left(&self) -> bool {
        self.severity == Severity::Error && !self.repaired
    }
}

/// What was checked, and the findings.
#[derive(Debug, Default)]
pub struct Report {
    /// What was checked, in a few words each: `store: 120 keys at revision 4711`.
    pub looked_at: Vec<String>,
    pub findings: Vec<Finding>,
    /// Where the copies from before the repair are.
    pub kept: Option<String>,
}

impl Report {
    /// Returns the number of errors that are not repaired.
    pub fn left(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_left()).count()
    }

    pub fn print(&self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Json => println!("{}", serde_json::to_string_pretty(&self.json())?),
            Output::Table => {
                self.looked_at.iter().for_each(|line| println!("{line}"));
                if !self.findings.is_empty() {
                    println!();
                    print_table(&self.table());
                }
                if let Some(kept) = &self.kept {
                    println!("\nwhat was there before the repair is kept in {kept}");
                }
            }
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "ok": self.left() == 0,
            "checked": self.looked_at,
            "findings": self.findings,
            "keptIn": self.kept,
        })
    }

    fn table(&self) -> Vec<Vec<String>> {
        let mut rows = vec![["SEVERITY", "AREA", "NAME", "PROBLEM", "REPAIR"].map(str::to_owned).to_vec()];
        for finding in &self.findings {
            let severity = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let repair = match finding.repair {
                None => "-".to_owned(),
                Some(repair) if finding.repaired => format!("done: {repair}"),
                Some(repair) => format!("--repair: {repair}"),
            };
            let cells = [severity, finding.area, &finding.name, &finding.problem, &repair];
            rows.push(cells.map(one_line).to_vec());
        }
        rows
    }
}

/// Replaces control characters in text that keys and errors contain.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_and_what_was_repaired_shows() {
        let mut report = Report::default();
        assert_eq!(report.json()["ok"], true);
        report.findings.push(Finding::warning("file", "a", "b"));
        assert_eq!((report.left(), report.json()["ok"].clone()), (0, true.into()));
        report.findings.push(Finding::error("store", "k\n1", "x").repair(Some("written anew")));
        assert_eq!((report.left(), report.json()["ok"].clone()), (1, false.into()));
        let table = report.table();
        assert_eq!(table[1], ["warning", "file", "a", "b", "-"]);
        assert_eq!(table[2], ["error", "store", "k\u{fffd}1", "x", "--repair: written anew"]);
        report.findings[1].repaired = true;
        assert_eq!((report.left(), report.table()[2][4].as_str()), (0, "done: written anew"));
        assert_eq!(report.json()["findings"][1]["repair"], "written anew");
    }
}
