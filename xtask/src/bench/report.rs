//! The result of a bench: rows for people, one line of JSON for programs.

use std::time::Duration;

use serde_json::{Map, Value, json};

pub struct Report {
    name: &'static str,
    /// Description, name in the JSON, value and unit of each measurement.
    rows: Vec<(String, String, f64, &'static str)>,
}

impl Report {
    pub fn new(name: &'static str) -> Self {
        Self { name, rows: Vec::new() }
    }

    /// Adds a value; `unit` becomes the end of the JSON name: `first_start_p50_ms`.
    pub fn add(&mut self, what: &str, value: f64, unit: &'static str) {
        let words: String = what
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
            .collect();
        let words = words.split('_').filter(|w| !w.is_empty()).collect::<Vec<_>>().join("_");
        self.rows.push((what.to_owned(), words, value, unit));
    }

    /// Adds the median, the 99th percentile and the maximum.
    pub fn add_times(&mut self, what: &str, times: &[Duration]) {
        for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
            self.add(&format!("{what} {name}"), percentile(times, share).as_secs_f64() * 1000.0, "ms");
        }
    }

    pub fn table(&self) -> String {
        let width = self.rows.iter().map(|r| r.0.chars().count()).max().unwrap_or(0);
        let line = |(what, _, value, unit): &(String, String, f64, &str)| {
            format!("{what:<width$}  {:>12}  {unit}\n", human(*value))
        };
        self.rows.iter().map(line).collect()
    }

    pub fn json(&self) -> Value {
        let mut results = Map::new();
        for (_, name, value, unit) in &self.rows {
            let unit = unit.replace('%', "percent").replace("/s", "_per_second").to_lowercase();
            let unit = unit.trim_start_matches('_');
            results.insert(format!("{name}_{unit}"), json!((value * 1000.0).round() / 1000.0));
        }
        json!({"bench": self.name, "cores": cores(), "results": results})
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn human(value: f64) -> String {
    if value >= 1000.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Returns the value that the given share of the times do not exceed; zero if there are none.
pub fn percentile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        for (share, expected) in [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)] {
            assert_eq!(percentile(&times, share), Duration::from_millis(expected), "{share}");
        }
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
        assert_eq!(percentile(&times[..1], 0.5), Duration::from_millis(100));
    }

    #[test]
    fn names_in_json_carry_their_unit() {
        let mut report = Report::new("x");
        report.add("first start, p50", 1.5, "ms");
        report.add("CPU", 0.25, "%");
        report.add("8 writers", 10.0, "creates/s");
        report.add("wake-ups", 1.0, "/s");
        let names: Vec<String> =
            report.json()["results"].as_object().expect("object").keys().cloned().collect();
        assert_eq!(
            names,
            ["8_writers_creates_per_second", "cpu_percent", "first_start_p50_ms", "wake_ups_per_second"]
        );
    }
}
