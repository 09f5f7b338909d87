//! Metric families in Prometheus' text format.

use std::fmt::Write;
use std::sync::Arc;

use jiff::Timestamp;

/// Returns the metrics of other parts of the process as text.
pub type OtherMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

struct Line {
    labels: Labels,
    value: f64,
    at: Option<Timestamp>,
}

/// One metric with its lines.
pub struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    lines: Vec<Line>,
}

impl Family {
    pub fn new(name: &'static str, kind: &'static str, help: &'static str) -> Self {
        Self { name, kind, help, lines: Vec::new() }
    }

    pub fn add(&mut self, labels: Labels, value: f64, at: Option<Timestamp>) {
        self.lines.push(Line { labels, value, at });
    }
}

/// Returns the text of all families that have lines.
pub fn render(families: &[Family]) -> String {
    let mut out = String::new();
    for family in families.iter().filter(|f| !f.lines.is_empty()) {
        let Family { name, kind, help, lines } = family;
        // Writing to a string cannot fail.
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for Line { labels, value, at } in lines {
            out.push_str(name);
            for (i, (label, text)) in labels.iter().enumerate() {
                let _ = write!(out, "{}{label}=\"{}\"", if i == 0 { "{" } else { "," }, escape(text));
            }
            out.push_str(if labels.is_empty() { "" } else { "}" });
            let _ = match value.is_infinite() {
                true => write!(out, " +Inf"),
                false => write!(out, " {value}"),
            };
            if let Some(at) = at {
                let _ = write!(out, " {}", at.as_millisecond());
            }
            out.push('\n');
        }
    }
    out
}

fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Converts nanoseconds to seconds.
pub fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_format() {
        let mut family = Family::new("a_b", "gauge", "Help.");
        family.add(vec![("x", "q\"\\\n".into()), ("y", "1".into())], 1.5, None);
        family.add(vec![], 2.0, Timestamp::from_millisecond(1234).ok());
        let empty = Family::new("none", "gauge", "x");
        assert_eq!(
            render(&[family, empty]),
            "# HELP a_b Help.\n# TYPE a_b gauge\na_b{x=\"q\\\"\\\\\\n\",y=\"1\"} 1.5\na_b 2 1234\n"
        );
    }
}
