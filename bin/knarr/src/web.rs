//! The example web server: a small static server with its pod's name in every answer, part of this binary so that
//! the examples need no registry.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

/// Serve files, and greet with the host name where no file is
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  knarr web --port 8080 --root /usr/share/web")]
pub struct Web {
    /// Port to listen on
    #[arg(long, default_value_t = 80)]
    port: u16,
    /// Folder with files to serve
    #[arg(long, default_value = "/usr/share/web")]
    root: PathBuf,
    /// Release shown in the greeting
    #[arg(long, env = "WEB_VERSION", default_value = "v1")]
    release: String,
}

/// Connections that are served at once; further ones wait in the kernel's backlog.
const MAX_CONNECTIONS: usize = 256;
const IO_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_REQUEST_BYTES: u64 = 16 << 10;
const MAX_FILE_BYTES: u64 = 64 << 20;

pub fn run(web: Web) -> Result<()> {
    stop_on_sigterm();
    let listener =
        TcpListener::bind(("0.0.0.0", web.port)).with_context(|| format!("cannot listen on {}", web.port))?;
    println!("web {} listening on port {}", web.release, web.port);
    let web = Arc::new(web);
    let slots = Arc::new(());
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        if Arc::strong_count(&slots) > MAX_CONNECTIONS {
            let _ = reply(&stream, 503, "text/plain", b"busy\n");
            continue;
        }
        let (web, slot) = (Arc::clone(&web), Arc::clone(&slots));
        std::thread::spawn(move || {
            let _slot = slot;
            // Errors of a client that disconnects early are ignored.
            let _ = serve(&web, &stream);
        });
    }
    Ok(())
}

/// Exits on SIGTERM. Process 1 of a container has no default action for signals: without a handler SIGTERM
/// would be ignored.
fn stop_on_sigterm() {
    extern "C" fn leave(_: libc::c_int) {
        // SAFETY: _exit may be called from a signal handler.
        unsafe { libc::_exit(0) }
    }
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler only calls an async-signal-safe function.
        unsafe { libc::signal(signal, leave as *const () as libc::sighandler_t) };
    }
}

fn serve(web: &Web, stream: &TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut reader = BufReader::new(stream.take(MAX_REQUEST_BYTES));
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let mut words = request.split_whitespace();
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or("/"));
    let path = target.split('?').next().unwrap_or("/");
    let (code, type_, body) = answer(web, method, path);
    println!("{} {method} {path} {code}", stream.peer_addr().map(|a| a.ip().to_string()).unwrap_or_default());
    reply(stream, code, type_, &body)
}

fn answer(web: &Web, method: &str, path: &str) -> (u16, &'static str, Vec<u8>) {
    if !matches!(method, "GET" | "HEAD") {
        return (405, "text/plain", b"method not allowed\n".to_vec());
    }
    if let Some(file) = file_at(&web.root, path) {
        return (200, content_type(path), file);
    }
    if path == "/" {
        let host = nix::unistd::gethostname().unwrap_or_default();
        return (200, "text/plain", format!("{} {}\n", host.to_string_lossy(), web.release).into_bytes());
    }
    (404, "text/plain", b"not found\n".to_vec())
}

/// Reads the file below `root`; `None` if the path leads out of it.
fn file_at(root: &Path, path: &str) -> Option<Vec<u8>> {
    let relative = Path::new(path.trim_start_matches('/'));
    if relative.components().any(|c| !matches!(c, Component::Normal(_))) {
        return None;
    }
    let mut target = root.join(relative);
    if target.is_dir() {
        target.push("index.html");
    }
    let meta = std::fs::metadata(&target).ok().filter(|m| m.is_file() && m.len() <= MAX_FILE_BYTES)?;
    let mut body = Vec::with_capacity(usize::try_from(meta.len()).ok()?);
    std::fs::File::open(&target).ok()?.take(MAX_FILE_BYTES).read_to_end(&mut body).ok()?;
    Some(body)
}

fn content_type(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("html") => "text/html",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        _ => "text/plain",
    }
}

fn reply(mut stream: &TcpStream, code: u16, type_: &str, body: &[u8]) -> std::io::Result<()> {
    let reason = match code {
        200 => "OK",
        404 => "Not Found",
        405 => "Method Not Allowed",
        _ => "Service Unavailable",
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {type_}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_root() {
        for path in ["/../etc/passwd", "/a/../../etc/passwd", "//etc/passwd/..", "/./x"] {
            assert_eq!(file_at(Path::new("/usr"), path), None, "{path}");
        }
    }
}
