//! Container logs in the CRI's line format: `<time> <stdout|stderr> <P|F> <content>`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// Longer lines are split into partial ones, as containerd does.
const MAX_LINE_BYTES: usize = 16 << 10;

/// An output stream of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Splits one stream into lines.
#[derive(Debug, Default)]
pub struct LineCutter {
    rest: Vec<u8>,
}

impl LineCutter {
    /// Appends to `out` the log lines that `bytes` complete.
    pub fn push(&mut self, stream: Stream, now: Timestamp, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let room = MAX_LINE_BYTES - self.rest.len();
            let window = &bytes[..bytes.len().min(room)];
            if let Some(end) = window.iter().position(|b| *b == b'\n') {
                write_line(stream, now, b'F', &self.rest, &bytes[..end], out);
                self.rest.clear();
                bytes = &bytes[end + 1..];
            } else if window.len() == room {
                // A newline right after a full line ends that line; it does not add an empty one.
                let (tag, skip) = if bytes.get(room) == Some(&b'\n') { (b'F', 1) } else { (b'P', 0) };
                write_line(stream, now, tag, &self.rest, window, out);
                self.rest.clear();
                bytes = &bytes[room + skip..];
            } else {
                self.rest.extend_from_slice(bytes);
                return;
            }
        }
    }

    /// Appends the remaining bytes as an unfinished line, after the stream has ended.
    pub fn finish(&mut self, stream: Stream, now: Timestamp, out: &mut Vec<u8>) {
        if !self.rest.is_empty() {
            write_line(stream, now, b'P', &self.rest, b"", out);
            self.rest = Vec::new();
        }
    }
}

fn write_line(stream: Stream, now: Timestamp, tag: u8, head: &[u8], tail: &[u8], out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{now:.9} {} {} ", stream.name(), char::from(tag));
    out.extend_from_slice(head);
    out.extend_from_slice(tail);
    out.push(b'\n');
}

/// A container's log file. Lines that cannot be written are dropped: a full disk must not stop the container.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: File,
}

impl LogFile {
    /// Opens the file for appending; creates it if missing.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        Ok(Self { path: path.to_owned(), file: open(path)? })
    }

    /// Continues in a new file, after a rotation has renamed the old one.
    pub fn reopen(&mut self) -> io::Result<()> {
        self.file = open(&self.path)?;
        Ok(())
    }

    /// Appends complete log lines.
    pub fn write(&mut self, lines: &[u8]) {
        let _ = self.file.write_all(lines);
    }
}

/// Opens the log file. A user who can write to the log folder may have put a link, a FIFO or a device there:
/// such files are refused without waiting for them.
fn open(path: &Path) -> io::Result<File> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_NOCTTY;
    let file = OpenOptions::new().append(true).create(true).mode(0o640).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the path of the log is not a regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (mut cutter, mut out) = (LineCutter::default(), Vec::new());
        for chunk in chunks {
            cutter.push(Stream::Stdout, now, chunk, &mut out);
        }
        cutter.finish(Stream::Stdout, now, &mut out);
        let text = String::from_utf8(out).unwrap();
        text.lines()
            .map(|line| line.strip_prefix("2026-01-01T00:00:00.000000000Z stdout ").unwrap().to_owned())
            .collect()
    }

    #[test]
    fn cuts_lines() {
        assert_eq!(lines(&[b"a\nb", b"c\n\nd"]), ["F a", "F bc", "F ", "P d"]);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn long_lines_are_partial() {
        let long = vec![b'x'; MAX_LINE_BYTES];
        let full = format!("P {}", "x".repeat(MAX_LINE_BYTES));
        assert_eq!(lines(&[&long, b"y\n"]), [full.as_str(), "F y"]);
        assert_eq!(lines(&[&[long.as_slice(), b"\n"].concat()]), [full.replacen('P', "F", 1)]);
        assert_eq!(lines(&[b"a", &long[1..], b"\n"]).len(), 2);
    }
}
