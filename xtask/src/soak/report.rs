//! The results of a run: a line while it runs, a table at its end, or JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::faults::Fault;
use super::history::{Answer, Request};
use super::round::Outcome;

/// Sums over rounds.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    rounds: u64,
    pub kills: u64,
    writes: u64,
    deletions: u64,
    reads: u64,
    refused: u64,
    unknown: u64,
    keys: u64,
    revisions: u64,
    events: u64,
    resumed: u64,
    expired: u64,
    refused_starts: u64,
    slowest: Duration,
    violations: u64,
}

#[derive(Default)]
pub struct Report {
    by_fault: BTreeMap<Fault, Sums>,
    pub total: Sums,
    /// The first violations, and the files of the histories.
    pub wrong: Vec<String>,
}

const HEAD: [&str; 16] = [
    "fault",
    "rounds",
    "kills",
    "writes",
    "deletions",
    "reads",
    "refused",
    "unknown",
    "keys",
    "revisions",
    "events",
    "resumed",
    "expired",
    "failed starts",
    "slowest start",
    "violations",
];

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        self.rounds += 1;
        self.kills += outcome.effect.kills;
        self.refused_starts += outcome.effect.refused_starts;
        self.slowest = self.slowest.max(outcome.effect.recovery);
        self.expired += outcome.expired as u64;
        self.violations += outcome.wrong.len() as u64;
        self.reads += outcome.history.lists.len() as u64;
        self.keys += outcome.history.keys() as u64;
        self.revisions += outcome.history.revisions() as u64;
        for op in &outcome.history.ops {
            match (op.answer, op.request) {
                (Answer::Wrote(_), _) => self.writes += 1,
                (Answer::Deleted, _) => self.deletions += 1,
                (Answer::Unknown, _) => self.unknown += 1,
                (Answer::Refused, _) => self.refused += 1,
                (_, Request::Get) => self.reads += 1,
                _ => {}
            }
        }
        for stream in &outcome.history.streams {
            self.events += stream.events.len() as u64;
            self.resumed += u64::from(stream.older_than_server);
        }
    }

    fn cells(&self) -> Vec<String> {
        let numbers = [
            self.rounds,
            self.kills,
            self.writes,
            self.deletions,
            self.reads,
            self.refused,
            self.unknown,
            self.keys,
            self.revisions,
            self.events,
            self.resumed,
            self.expired,
            self.refused_starts,
        ];
        let mut cells: Vec<String> = numbers.iter().map(u64::to_string).collect();
        cells.push(format!("{:.2} s", self.slowest.as_secs_f64()));
        cells.push(self.violations.to_string());
        cells
    }

    fn json(&self) -> Value {
        json!({
            "rounds": self.rounds, "kills": self.kills, "acknowledgedWrites": self.writes,
            "acknowledgedDeletions": self.deletions, "reads": self.reads, "refused": self.refused,
            "unknown": self.unknown, "keys": self.keys, "watchedRevisions": self.revisions, "watchEvents": self.events, "resumedOlderThanServer": self.resumed,
            "expired": self.expired, "failedStarts": self.refused_starts,
            "slowestStartSeconds": self.slowest.as_secs_f64(), "violations": self.violations,
        })
    }
}

impl Report {
    pub fn add(&mut self, fault: Fault, outcome: &Outcome) {
        self.by_fault.entry(fault).or_default().add(outcome);
        self.total.add(outcome);
    }

    /// Adds violations that belong to no round.
    pub fn add_wrong(&mut self, wrong: Vec<String>) {
        self.total.violations += wrong.len() as u64;
        self.wrong.extend(wrong);
    }

    pub fn progress(&self) -> String {
        let t = &self.total;
        format!(
            "{} rounds, {} kills, {} writes, {} watch events, {} violations",
            t.rounds, t.kills, t.writes, t.events, t.violations
        )
    }

    pub fn table(&self) -> String {
        let mut rows: Vec<Vec<String>> = vec![HEAD.iter().map(|h| (*h).to_owned()).collect()];
        let named = self.by_fault.iter().map(|(fault, sums)| (format!("{fault:?}").to_lowercase(), sums));
        for (name, sums) in named.chain([("all".to_owned(), &self.total)]) {
            rows.push([vec![name], sums.cells()].concat());
        }
        let width = |column: usize| rows.iter().map(|r| r[column].len()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            format!("{}\n", cells.join("  "))
        };
        rows.iter().map(line).collect()
    }

    pub fn json(&self, seed: u64, took: Duration) -> Value {
        let faults: serde_json::Map<String, Value> = self
            .by_fault
            .iter()
            .map(|(fault, sums)| (format!("{fault:?}").to_lowercase(), sums.json()))
            .collect();
        json!({"seed": seed, "seconds": took.as_secs_f64(), "total": self.total.json(), "faults": faults,
            "violations": self.wrong})
    }
}
