//! `/logs/`: the files and folders of the node's log folder, read-only.
//!
//! Source: upstream's kubelet serves `/var/log` in this way if `enableSystemLogHandler` is set. Unlike upstream,
//! links that lead out of the folder are not followed: otherwise a pod with that folder as a volume could choose
//! which files of the node clients read.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use super::answer::{self, Answer};

const CHUNK: usize = 64 << 10;
/// The maximal number of names that are listed.
const MAX_NAMES: usize = 10_000;

enum Found {
    /// The names in a folder; those of folders end with a slash.
    Folder(Vec<String>),
    File(File, u64),
}

/// Answers for `path`, which is decoded and relative to `root`.
pub async fn answer(root: &Path, path: String) -> Answer {
    if path.split('/').any(|part| part == "..") {
        return answer::text(StatusCode::BAD_REQUEST, "invalid URL path\n");
    }
    let (root, wanted) = (root.to_owned(), path.clone());
    let found = tokio::task::spawn_blocking(move || find(&root, &wanted)).await;
    match found.map_err(io::Error::other).and_then(|found| found) {
        Ok(Found::Folder(_)) if !path.is_empty() && !path.ends_with('/') => {
            let name = path.rsplit('/').next().unwrap_or_default();
            redirect(&format!("{}/", escaped_url(name)))
        }
        Ok(Found::Folder(names)) => answer::html(listing(&names)),
        Ok(Found::File(..)) if path.ends_with('/') => not_found(),
        Ok(Found::File(file, size)) => stream(file, size),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            answer::text(StatusCode::FORBIDDEN, "403 Forbidden\n")
        }
        Err(_) => not_found(),
    }
}

fn not_found() -> Answer {
    answer::text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Returns a relative redirect, which works through the API server's proxy.
pub fn redirect(to: &str) -> Answer {
    let mut response = answer::text(StatusCode::MOVED_PERMANENTLY, "");
    if let Ok(to) = HeaderValue::from_str(to) {
        response.headers_mut().insert(header::LOCATION, to);
    }
    response
}

/// Opens regular files and folders only; opening a pipe does not block.
fn find(root: &Path, path: &str) -> io::Result<Found> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let root = open(root, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let inside = path.trim_matches('/');
    let inside = if inside.is_empty() { "." } else { inside };
    let beneath = OpenHow::new().resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let seen = File::from(openat2(&root, inside, beneath.flags(OFlag::O_PATH | OFlag::O_CLOEXEC))?);
    let kind = seen.metadata()?.file_type();
    if !kind.is_dir() && !kind.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let opened = File::from(reopen(&seen, flags)?);
    if kind.is_dir() {
        return Ok(Found::Folder(names(&opened)?));
    }
    let size = opened.metadata()?.len();
    Ok(Found::File(opened, size))
}

/// Opens the file of a descriptor again: it cannot be replaced by another one in between.
fn reopen(seen: &File, flags: OFlag) -> io::Result<OwnedFd> {
    Ok(open(format!("/proc/self/fd/{}", seen.as_raw_fd()).as_str(), flags, Mode::empty())?)
}

fn names(folder: &File) -> io::Result<Vec<String>> {
    let entries = std::fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))?;
    let mut names = Vec::new();
    for entry in entries.take(MAX_NAMES) {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names)
}

fn listing(names: &[String]) -> String {
    let mut text =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        // The dot prevents that a name with a colon is read as a scheme.
        text.push_str(&format!("<a href=\"./{}\">{}</a>\n", escaped_url(name), escaped_html(name)));
    }
    text.push_str("</pre>\n");
    text
}

fn escaped_url(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~/".contains(&b);
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn escaped_html(name: &str) -> String {
    name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;")
}

/// Streams the file up to its current size, even if it grows.
fn stream(file: File, size: u64) -> Answer {
    let (sender, chunks) = mpsc::channel(2);
    // The task ends with the file, or when the client disconnects. It holds a thread only during each read, as
    // clients may be slow.
    tokio::spawn(async move {
        let mut rest = tokio::fs::File::from_std(file).take(size);
        loop {
            let mut chunk = vec![0; CHUNK];
            match rest.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(count) => chunk.truncate(count),
            }
            if sender.send(Bytes::from(chunk)).await.is_err() {
                return;
            }
        }
    });
    answer::streamed(chunks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::os::unix::fs::symlink;

    #[test]
    fn who_does_not_read_holds_no_thread() {
        let root = std::env::temp_dir().join(format!("knarr-logs-{:016x}", fastrand::u64(..)));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join("long"), vec![b'x'; 4 << 20]).unwrap();
        std::fs::write(root.join("short"), "x").unwrap();
        let mut few_threads = tokio::runtime::Builder::new_current_thread();
        let runtime = few_threads.enable_all().max_blocking_threads(2).build().unwrap();
        let read = runtime.block_on(async {
            let mut unread = Vec::new();
            let reading = async {
                for _ in 0..8 {
                    unread.push(answer(&root, "long".to_owned()).await);
                }
                get(&root, "short").await
            };
            tokio::time::timeout(std::time::Duration::from_secs(10), reading).await
        });
        // A normal shutdown would wait for threads that wait for readers.
        runtime.shutdown_background();
        std::fs::remove_dir_all(root).unwrap();
        assert_eq!(read.expect("readers hold all threads"), (200, "x".to_owned()));
    }

    async fn get(root: &Path, path: &str) -> (u16, String) {
        let response = answer(root, path.to_owned()).await;
        let status = response.status().as_u16();
        let to = response.headers().get(header::LOCATION).map(|to| to.to_str().unwrap().to_owned());
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, to.unwrap_or_else(|| String::from_utf8_lossy(&body).into_owned()))
    }

    #[tokio::test]
    async fn files_and_folders_are_shown_and_nothing_outside() {
        let base = std::env::temp_dir().join(format!("knarr-logs-{:016x}", fastrand::u64(..)));
        let root = base.join("log");
        std::fs::create_dir_all(root.join("pods")).unwrap();
        std::fs::write(base.join("secret"), "secret").unwrap();
        std::fs::write(root.join("a<b>.log"), "line\n".repeat(50_000)).unwrap();
        std::fs::write(root.join("pods/x.log"), "x").unwrap();
        symlink("pods/x.log", root.join("inside")).unwrap();
        symlink("../secret", root.join("outside")).unwrap();
        symlink(base.join("secret"), root.join("absolute")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        nix::unistd::mkfifo(&root.join("pipe"), Mode::S_IRWXU).unwrap();

        let (status, list) = get(&root, "").await;
        assert_eq!(status, 200);
        assert!(list.contains("<a href=\"./a%3Cb%3E.log\">a&lt;b&gt;.log</a>\n"), "{list}");
        assert!(list.contains("<a href=\"./pods/\">pods/</a>\n"), "{list}");
        assert_eq!(get(&root, "a<b>.log").await, (200, "line\n".repeat(50_000)));
        assert_eq!(get(&root, "pods/x.log").await, (200, "x".to_owned()));
        assert_eq!(get(&root, "inside").await, (200, "x".to_owned()));
        assert_eq!(get(&root, "pods").await, (301, "pods/".to_owned()));
        assert_eq!(get(&root, "../secret").await.0, 400);
        for hidden in ["outside", "absolute", "magic", "magic/etc/passwd", "pipe", "missing", "pods/x.log/"] {
            assert_eq!(get(&root, hidden).await, (404, "404 page not found\n".to_owned()), "{hidden}");
        }
        std::fs::remove_dir_all(base).unwrap();
    }
}
