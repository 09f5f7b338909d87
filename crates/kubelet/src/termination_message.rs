//! Termination messages of containers: from the termination message file, or from the end of the log.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use crate::config::PodDirs;
use crate::labels;
use crate::plain_file;
use crate::runtime::ContainerStatus;

const MAX_FILE: u64 = 4096;
const MAX_LOG: usize = 2048;
const MAX_LOG_LINES: usize = 80;
/// How many bytes are read from the end of the log: lines contain their time and stream as well.
const LOG_TAIL: u64 = 16 << 10;

/// Returns the message of an ended container; `None` keeps the runtime's. Blocks.
pub fn read(dirs: &PodDirs, uid: &str, status: &ContainerStatus) -> Option<String> {
    let path = status.annotations.get(labels::TERMINATION_MESSAGE_PATH).filter(|p| !p.is_empty())?;
    let file = dirs.container_dir(uid, &status.name).join(status.attempt.to_string());
    let message = match read_file(&file) {
        Ok(message) => message,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => format!("Error on reading termination log {path}: {error}"),
    };
    let from_log = status
        .annotations
        .get(labels::TERMINATION_MESSAGE_POLICY)
        .is_some_and(|p| p == "FallbackToLogsOnError");
    if message.is_empty() && from_log && status.exit_code != Some(0) {
        return log_tail(&status.log_path).ok().filter(|text| !text.is_empty());
    }
    Some(message).filter(|text| !text.is_empty())
}

/// Reads the file. The container may have replaced it by anything: only a regular file is read, up to the limit.
fn read_file(path: &Path) -> io::Result<String> {
    let file = match plain_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(String::new()),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn log_tail(path: &Path) -> io::Result<String> {
    let mut file = plain_file::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(LOG_TAIL);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    if start > 0 && !lines.is_empty() {
        lines.remove(0);
    }
    let content: String =
        lines[lines.len().saturating_sub(MAX_LOG_LINES)..].iter().map(|l| content(l)).collect();
    let mut at = content.len().saturating_sub(MAX_LOG);
    while !content.is_char_boundary(at) {
        at += 1;
    }
    Ok(content[at..].to_owned())
}

/// Returns the text of a CRI log line, which has time, stream, tag and text; tag `P` means that the line
/// continues.
fn content(line: &str) -> String {
    let mut parts = line.splitn(4, ' ');
    let (tag, text) = (parts.nth(2).unwrap_or("F"), parts.next().unwrap_or(""));
    if tag.starts_with('P') { text.to_owned() } else { format!("{text}\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_give_their_text() {
        let dir = std::env::temp_dir().join(format!("knarr-tail-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("0.log");
        let lines = "2026-01-01T00:00:00Z stdout F one two\n2026-01-01T00:00:00Z stderr P half\n\
                     2026-01-01T00:00:00Z stderr F done\n";
        std::fs::write(&path, lines).unwrap();
        assert_eq!(log_tail(&path).unwrap(), "one two\nhalfdone\n");
        let many: String = (0..500).map(|n| format!("2026-01-01T00:00:00Z stdout F line {n}\n")).collect();
        std::fs::write(&path, many).unwrap();
        let tail = log_tail(&path).unwrap();
        assert!(tail.ends_with("line 499\n") && tail.lines().count() == 80, "{tail}");
        std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).unwrap();
        assert!(read_file(&dir.join("link")).is_err() && log_tail(&dir.join("link")).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
