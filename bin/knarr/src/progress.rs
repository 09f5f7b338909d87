//! Progress on the terminal while a cluster starts: one line per part, with its duration.

use std::future::Future;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::Result;

/// Prints steps as they end. Lines go to standard output; colours only to a terminal.
pub struct Progress {
    started: Instant,
    colour: bool,
}

impl Progress {
    pub fn start() -> Self {
        Self { started: Instant::now(), colour: std::io::stdout().is_terminal() }
    }

    /// Runs one part of the start and prints its result.
    pub async fn step<T>(&self, what: &str, work: impl Future<Output = Result<(T, String)>>) -> Result<T> {
        let begun = Instant::now();
        match work.await {
            Ok((value, detail)) => {
                self.line(self.paint("32", "✓"), what, &detail, begun.elapsed());
                Ok(value)
            }
            Err(error) => {
                self.line(self.paint("31", "✗"), what, "", begun.elapsed());
                Err(error)
            }
        }
    }

    fn line(&self, mark: String, what: &str, detail: &str, took: Duration) {
        println!("{mark} {what:<22} {:>8}  {detail}", human(took));
    }

    /// Prints the last lines: the total time, then what to do next.
    pub fn ready(&self, lines: &[String]) {
        println!("\n{} in {}", self.paint("1", "Ready"), human(self.started.elapsed()));
        for line in lines {
            println!("{line}");
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

fn human(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    if ms < 1000.0 { format!("{ms:.0} ms") } else { format!("{:.2} s", ms / 1000.0) }
}
