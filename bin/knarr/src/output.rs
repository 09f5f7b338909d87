//! Output of commands that tolerates a closed pipe: a reader that leaves early, such as `head`, ends no
//! command and causes no panic.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a write failed for another reason than a closed pipe.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Replaces the standard macro, which panics when the pipe is closed. The command still finishes its work:
/// half a reset, or a server that ends with its terminal, would be worse than lost output.
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($words:tt)*) => { $crate::output::line(format_args!($($words)*)) };
}

/// Prints like `println`, without the newline.
macro_rules! print {
    ($($words:tt)*) => { $crate::output::write(format_args!($($words)*)) };
}

/// Replaces the standard macro; output is dropped if standard error cannot be written.
macro_rules! eprintln {
    ($($words:tt)*) => { $crate::output::complain(format_args!($($words)*)) };
}

pub fn line(words: Arguments) {
    note(writeln!(std::io::stdout(), "{words}"));
}

pub fn write(words: Arguments) {
    note(write!(std::io::stdout(), "{words}"));
}

pub fn complain(words: Arguments) {
    // If standard error fails as well, the failure cannot be reported.
    let _ = writeln!(std::io::stderr(), "{words}");
}

fn note(written: std::io::Result<()>) {
    if is_loss(&written) && !FAILED.swap(true, Ordering::Relaxed) {
        complain(format_args!("error: cannot write to the standard output: {}", words(&written)));
    }
}

fn words(written: &std::io::Result<()>) -> String {
    written.as_ref().err().map(ToString::to_string).unwrap_or_default()
}

/// Returns whether output was lost: a closed pipe means that the reader wants no more, any other error is a
/// loss.
fn is_loss(written: &std::io::Result<()>) -> bool {
    written.as_ref().is_err_and(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// Flushes standard output; returns whether everything was written, apart from what a closed pipe refused.
pub fn is_whole() -> bool {
    note(std::io::stdout().flush());
    !FAILED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reader_that_left_is_no_loss() {
        let failed = |kind: ErrorKind| is_loss(&Err(kind.into()));
        assert!(!failed(ErrorKind::BrokenPipe));
        assert!(failed(ErrorKind::StorageFull));
        assert!(!is_loss(&Ok(())));
    }
}
