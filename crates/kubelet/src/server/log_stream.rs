//! Reads a container's log file from the requested position, and follows it as it grows and is rotated.

use std::io::{self, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::mpsc;

use super::log_line::Formatter;
use super::log_options::LogOptions;
use super::log_watch::LogWatch;
use crate::plain_file;

const BUFFER: usize = 64 << 10;
/// The maximal length of a line without a newline that is kept; runtimes split lines at 16 KiB.
const MAX_LINE: usize = 1 << 20;

/// The state of the container whose log is followed.
pub trait Running: Send {
    fn is_running(&mut self) -> impl Future<Output = bool> + Send;
    /// Resolves when the container may have stopped.
    fn stopped(&mut self) -> impl Future<Output = ()> + Send;
}

/// Sends the log by the client's options; ends when everything is sent or the client disconnects. With `follow`,
/// it ends when the container has ended and its whole output is sent.
pub async fn send<R: Running>(
    path: &Path,
    options: &LogOptions,
    mut container: R,
    chunks: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let mut watch = options.follow.then(|| LogWatch::new(path));
    let mut file = open(path).await?;
    if let Some(lines) = options.tail_lines {
        let start = tail_start(&mut file, lines).await?;
        file.seek(SeekFrom::Start(start)).await?;
    }
    let mut sender = Sender { formatter: Formatter::new(options), line: Vec::new(), chunks };
    if options.limit_bytes == Some(0) {
        return Ok(());
    }
    loop {
        // The state is read before the file: if the container has ended by then, the file is complete.
        let running = match &watch {
            Some(_) => container.is_running().await,
            None => false,
        };
        if !sender.rest_of(&mut file).await? {
            return Ok(());
        }
        if let Some(next) = rotated(path, &file).await? {
            sender.rest_of(&mut file).await?;
            file = next;
            continue;
        }
        match &mut watch {
            Some(watch) if running => tokio::select! {
                () = watch.changed() => {}
                () = container.stopped() => {}
                () = chunks.closed() => return Ok(()),
            },
            _ => return sender.end().await,
        }
    }
}

/// Opens a regular file without following links: containers that mount the log folder may have put anything there.
async fn open(path: &Path) -> io::Result<File> {
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || plain_file::open(&path)).await;
    opened.map_err(io::Error::other)?.map(File::from_std)
}

/// Returns the new file if the log was rotated.
async fn rotated(path: &Path, file: &File) -> io::Result<Option<File>> {
    let next = match open(path).await {
        Ok(next) => next,
        // The file was renamed, and the new one does not exist yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let (old, new) = (file.metadata().await?, next.metadata().await?);
    Ok(((old.dev(), old.ino()) != (new.dev(), new.ino())).then_some(next))
}

/// Returns the offset at which the last `lines` lines of the file begin.
async fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let mut end = file.metadata().await?.len();
    if lines == 0 {
        return Ok(end);
    }
    let mut buffer = vec![0; BUFFER];
    let mut newlines = 0u64;
    let size = end;
    while end > 0 {
        let begin = end.saturating_sub(BUFFER as u64);
        let part = &mut buffer[..(end - begin) as usize];
        file.seek(SeekFrom::Start(begin)).await?;
        file.read_exact(part).await?;
        for (at, byte) in part.iter().enumerate().rev() {
            let offset = begin + at as u64;
            // The newline at the end of the file terminates the last line.
            if *byte == b'\n' && offset + 1 < size {
                newlines += 1;
                if newlines == lines {
                    return Ok(offset + 1);
                }
            }
        }
        end = begin;
    }
    Ok(0)
}

struct Sender<'a> {
    formatter: Formatter,
    /// The beginning of a line that has no newline yet.
    line: Vec<u8>,
    chunks: &'a mpsc::Sender<Bytes>,
}

impl Sender<'_> {
    /// Sends the rest of the file. Returns false when no more output is needed.
    async fn rest_of(&mut self, file: &mut File) -> io::Result<bool> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let count = file.read(&mut buffer).await?;
            if count == 0 {
                return Ok(true);
            }
            let mut out = Vec::with_capacity(count);
            self.take(&buffer[..count], &mut out);
            if !self.flush(out).await || self.formatter.is_full() {
                return Ok(false);
            }
        }
    }

    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            if self.line.is_empty() {
                self.formatter.push(&bytes[..end], out);
            } else {
                self.line.extend_from_slice(&bytes[..end]);
                self.formatter.push(&self.line, out);
                self.line.clear();
            }
            bytes = &bytes[end + 1..];
            if self.formatter.is_full() {
                return;
            }
        }
        let room = MAX_LINE.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Sends the last line without a newline: its writer was killed.
    async fn end(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.formatter.push(&line, &mut out);
        }
        self.flush(out).await;
        Ok(())
    }

    async fn flush(&self, out: Vec<u8>) -> bool {
        out.is_empty() || self.chunks.send(out.into()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::time::Duration;
    use tokio::sync::watch;

    struct Flag(watch::Receiver<bool>);

    impl Running for Flag {
        async fn is_running(&mut self) -> bool {
            *self.0.borrow()
        }

        async fn stopped(&mut self) {
            if self.0.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    struct Dir(std::path::PathBuf);

    impl Dir {
        fn new() -> Self {
            let path = std::env::temp_dir().join(format!("knarr-log-{:016x}", fastrand::u64(..)));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn line(n: usize) -> String {
        format!("2026-01-01T00:00:{n:02}Z stdout F line {n}\n")
    }

    async fn read_all(path: &Path, options: LogOptions) -> String {
        let (chunks, mut got) = mpsc::channel(1);
        let path = path.to_owned();
        let (_on, flag) = watch::channel(false);
        let task = tokio::spawn(async move { send(&path, &options, Flag(flag), &chunks).await });
        let mut out = Vec::new();
        while let Some(chunk) = got.recv().await {
            out.extend_from_slice(&chunk);
        }
        task.await.unwrap().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[tokio::test]
    async fn tails_and_limits() {
        let dir = Dir::new();
        let path = dir.0.join("0.log");
        std::fs::write(&path, (0..5).map(line).collect::<String>()).unwrap();
        for (lines, want) in [
            (None, "line 0\nline 1\nline 2\nline 3\nline 4\n"),
            (Some(2), "line 3\nline 4\n"),
            (Some(0), ""),
            (Some(5), "line 0\nline 1\nline 2\nline 3\nline 4\n"),
            (Some(99), "line 0\nline 1\nline 2\nline 3\nline 4\n"),
        ] {
            let options = LogOptions { tail_lines: lines, ..LogOptions::default() };
            assert_eq!(read_all(&path, options).await, want, "{lines:?}");
        }
        let options = LogOptions { limit_bytes: Some(9), ..LogOptions::default() };
        assert_eq!(read_all(&path, options).await, "line 0\nli");
        assert_eq!(
            read_all(&path, LogOptions { follow: true, ..LogOptions::default() }).await.lines().count(),
            5
        );
        std::fs::write(&path, "").unwrap();
        assert_eq!(read_all(&path, LogOptions::default()).await, "");
    }

    #[tokio::test]
    async fn a_tail_across_buffers() {
        let dir = Dir::new();
        let path = dir.0.join("0.log");
        let long = format!("2026-01-01T00:00:00Z stdout F {}\n", "x".repeat(BUFFER));
        std::fs::write(&path, format!("{}{long}{}", line(1), line(2))).unwrap();
        let options = LogOptions { tail_lines: Some(2), ..LogOptions::default() };
        assert_eq!(read_all(&path, options).await.len(), BUFFER + 1 + "line 2\n".len());
    }

    #[tokio::test]
    async fn follows_through_rotation_to_the_end() {
        let dir = Dir::new();
        let path = dir.0.join("0.log");
        std::fs::write(&path, line(0)).unwrap();
        let (running, flag) = watch::channel(true);
        let (chunks, mut got) = mpsc::channel(4);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let log = path.clone();
        let task = tokio::spawn(async move { send(&log, &options, Flag(flag), &chunks).await });
        let mut next = async || {
            let chunk = tokio::time::timeout(Duration::from_secs(5), got.recv()).await.unwrap();
            chunk.map(|c| String::from_utf8(c.to_vec()).unwrap())
        };
        assert_eq!(next().await.as_deref(), Some("line 0\n"));
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(line(1).as_bytes()).unwrap();
        assert_eq!(next().await.as_deref(), Some("line 1\n"));
        std::fs::rename(&path, dir.0.join("0.log.20260101")).unwrap();
        file.write_all(line(2).as_bytes()).unwrap();
        std::fs::write(&path, line(3)).unwrap();
        let mut rest = String::new();
        while !rest.ends_with("line 3\n") {
            rest.push_str(&next().await.unwrap());
        }
        assert_eq!(rest, "line 2\nline 3\n");
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"2026-01-01T00:00:04Z stdout F last words").unwrap();
        running.send(false).unwrap();
        assert_eq!(next().await.as_deref(), Some("last words\n"));
        assert_eq!(next().await, None);
        task.await.unwrap().unwrap();
    }
}
