//! Formats lines of a log in CRI's format for clients.

use jiff::Timestamp;

use super::log_options::{LogOptions, Wanted};

/// A line `<time> <stdout|stderr> <P|F> <content>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line<'a> {
    time: &'a str,
    stdout: bool,
    /// Whether the line continues in the next entry.
    partial: bool,
    content: &'a [u8],
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    let (time, rest) = split(line)?;
    let (stream, rest) = split(rest)?;
    let (tags, content) = split(rest).unwrap_or((rest, b""));
    let stdout = match stream {
        b"stdout" => true,
        b"stderr" => false,
        _ => return None,
    };
    let tag = tags.split(|b| *b == b':').next()?;
    Some(Line { time: std::str::from_utf8(time).ok()?, stdout, partial: tag == b"P", content })
}

fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|b| *b == b' ')?;
    Some((&text[..at], &text[at + 1..]))
}

/// Formats lines by the client's options.
#[derive(Debug)]
pub struct Formatter {
    since: Option<Timestamp>,
    timestamps: bool,
    stream: Wanted,
    /// The number of bytes that may still be written.
    left: Option<u64>,
    /// Whether the next content begins a line.
    at_line_start: bool,
}

impl Formatter {
    pub fn new(options: &LogOptions) -> Self {
        Self {
            since: options.since,
            timestamps: options.timestamps,
            stream: options.stream,
            left: options.limit_bytes,
            at_line_start: true,
        }
    }

    /// Returns whether the byte limit is reached.
    pub fn is_full(&self) -> bool {
        self.left == Some(0)
    }

    /// Appends the client's text for one line, which is given without its newline. Lines that cannot be parsed are
    /// left out.
    pub fn push(&mut self, line: &[u8], out: &mut Vec<u8>) {
        let Some(line) = parse(line) else { return };
        let wanted = match self.stream {
            Wanted::All => true,
            Wanted::Stdout => line.stdout,
            Wanted::Stderr => !line.stdout,
        };
        let is_old = |since: Timestamp| line.time.parse::<Timestamp>().is_ok_and(|time| time < since);
        if !wanted || self.since.is_some_and(is_old) {
            return;
        }
        // Times increase: later lines need no comparison.
        self.since = None;
        if self.timestamps && self.at_line_start {
            self.write(line.time.as_bytes(), out);
            self.write(b" ", out);
        }
        self.write(line.content, out);
        if !line.partial {
            self.write(b"\n", out);
        }
        self.at_line_start = !line.partial;
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let count = self
            .left
            .map_or(bytes.len(), |left| bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        out.extend_from_slice(&bytes[..count]);
        if let Some(left) = &mut self.left {
            *left -= count as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &[&str] = &[
        "2026-01-01T00:00:01.000000001Z stdout F one",
        "2026-01-01T00:00:02.000000001Z stderr F err",
        "nonsense",
        "2026-01-01T00:00:03.000000001Z stdout P thr",
        "2026-01-01T00:00:04.000000001Z stdout F ee",
        "2026-01-01T00:00:05.000000001Z stdout F ",
    ];

    fn shown(options: LogOptions) -> String {
        let (mut formatter, mut out) = (Formatter::new(&options), Vec::new());
        for line in LOG {
            if !formatter.is_full() {
                formatter.push(line.as_bytes(), &mut out);
            }
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn options_choose() {
        let none = LogOptions::default;
        let table = [
            (none(), "one\nerr\nthree\n\n"),
            (LogOptions { stream: Wanted::Stderr, ..none() }, "err\n"),
            (LogOptions { since: "2026-01-01T00:00:02.5Z".parse().ok(), ..none() }, "three\n\n"),
            (LogOptions { limit_bytes: Some(6), ..none() }, "one\ner"),
            (
                LogOptions { timestamps: true, since: "2026-01-01T00:00:03Z".parse().ok(), ..none() },
                "2026-01-01T00:00:03.000000001Z three\n2026-01-01T00:00:05.000000001Z \n",
            ),
        ];
        for (options, want) in table {
            assert_eq!(shown(options.clone()), want, "{options:?}");
        }
    }
}
