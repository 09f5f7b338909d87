//! What commands print: a reader that has heard enough, such as `head`, ends nothing and panics nothing.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether something could not be written, and the reader was not the one who left.
static FAILED: AtomicBool = AtomicBool::new(false);

/// In place of the standard one, which panics when nobody reads. A command finishes its work all the same: half a
/// reset, or a server without its terminal, would be worse than words unread.
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($words:tt)*) => { $crate::output::line(format_args!($($words)*)) };
}

/// See `println`; without the end of the line.
macro_rules! print {
    ($($words:tt)*) => { $crate::output::write(format_args!($($words)*)) };
}

/// In place of the standard one: with nowhere to complain, nothing is said.
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
    // Nowhere is left to say that this failed.
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

/// A reader that left wanted no more; anything else loses what was to be kept.
fn is_loss(written: &std::io::Result<()>) -> bool {
    written.as_ref().is_err_and(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// Whether all that was printed went out, or was not wanted.
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
