//! The text of an expression, and errors with positions in it.

use std::fmt;

/// Further errors are counted, but not kept.
const MOST_ERRORS: usize = 100;
/// Longer lines are not shown under an error.
const LONGEST_SNIPPET: usize = 16384;

/// The position of errors that have none.
pub const NOWHERE: usize = usize::MAX;

/// One error at a position in the expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// The offset in code points.
    pub at: usize,
    pub message: String,
}

/// The errors of an expression, in the order of their positions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Issues {
    pub list: Vec<Issue>,
    dropped: usize,
    source: Box<str>,
}

impl Issues {
    pub fn of(source: &str) -> Self {
        Self { list: Vec::new(), dropped: 0, source: source.into() }
    }

    pub fn report(&mut self, at: usize, message: impl Into<String>) {
        if self.list.len() < MOST_ERRORS {
            self.list.push(Issue { at, message: message.into() });
        } else {
            self.dropped += 1;
        }
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the 1-based line and the 0-based column.
    fn place(&self, at: usize) -> (usize, usize) {
        let (mut line, mut column) = (1, 0);
        for c in self.source.chars().take(at) {
            if c == '\n' {
                line += 1;
                column = 0;
            } else {
                column += 1;
            }
        }
        (line, column)
    }
}

/// Returns a dot for each character before the position and a caret at it; below wide characters, wide ones.
fn pointer(line: &str, column: usize) -> String {
    let mut out = String::new();
    let mut chars = line.chars();
    for _ in 0..column {
        let Some(c) = chars.next() else { break };
        out.push(if c.len_utf8() > 1 { '\u{ff0e}' } else { '.' });
    }
    let wide = chars.next().is_some_and(|c| c.len_utf8() > 1);
    out.push(if wide { '\u{ff3e}' } else { '^' });
    out
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sorted: Vec<&Issue> = self.list.iter().collect();
        sorted.sort_by_key(|i| i.at.wrapping_add(1));
        for (n, issue) in sorted.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            if issue.at == NOWHERE {
                write!(f, "ERROR: <input>:-1:0: {}", issue.message)?;
                continue;
            }
            if self.source.is_empty() {
                // The error has no position to point at.
                write!(f, "ERROR: <input>:1:0: {}", issue.message)?;
                continue;
            }
            let (line, column) = self.place(issue.at);
            write!(f, "ERROR: <input>:{line}:{}: {}", column + 1, issue.message)?;
            let Some(text) = self.source.split('\n').nth(line - 1) else { continue };
            if text.len() <= LONGEST_SNIPPET {
                let text = text.replace('\t', " ");
                write!(f, "\n | {text}\n | {}", pointer(&text, column))?;
            }
        }
        if self.dropped > 0 {
            write!(f, "\n{} more errors were truncated", self.dropped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issues_point_at_their_place() {
        let mut issues = Issues::of("a +\n\té.b");
        issues.report(6, "second");
        issues.report(0, "first");
        let text = "ERROR: <input>:1:1: first\n | a +\n | ^\n\
                    ERROR: <input>:2:3: second\n |  é.b\n | .\u{ff0e}^";
        assert_eq!(issues.to_string(), text);
    }
}
