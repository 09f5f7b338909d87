//! The administrator's access to a running server: a socket in the data folder that hands out backups.
//!
//! A client sends one line with its command (`backup`) and gets one line back: `ok`, followed by the archive,
//! or an error text. Only root and the server's own user get an answer.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use knarr_apimachinery::clock::Clock;
use knarr_storage::{Store, snapshot};
use tokio::io::AsyncReadExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::archive::{ArchiveError, Manifest, Reader, Writer};
use super::contents::{self, Source};
use super::seal::Passphrase;
use crate::layout::Layout;

const BACKUP: &[u8] = b"backup\n";
const OK: &[u8] = b"ok\n";
/// How long either side waits for the other to continue.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a client waits for the server to begin: it reads its whole store first.
const FIRST: Duration = Duration::from_secs(600);
/// Clients that are answered at the same time. Each one holds the values that were overwritten since its
/// backup began.
const CLIENTS: usize = 4;
/// How long to wait after an error of accept.
const RETRY: Duration = Duration::from_secs(1);
const ANSWER_BYTES: u64 = 4096;

/// The listening socket.
pub struct AdminSocket {
    listener: tokio::net::UnixListener,
    path: PathBuf,
}

impl AdminSocket {
    /// Binds the socket, replacing one that an earlier server has left.
    pub fn bind(layout: &Layout) -> Result<Self> {
        let path = layout.admin_socket();
        let bind = || -> std::io::Result<tokio::net::UnixListener> {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let (short, _folder) = short_path(&path)?;
            let listener = tokio::net::UnixListener::bind(&short)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = bind().with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Self { listener, path })
    }

    /// Answers clients until `stop`.
    pub async fn serve(
        self: Arc<Self>,
        store: Arc<dyn Store>,
        source: Source,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) {
        let failed = |error: anyhow::Error| {
            tracing::warn!("a request at the administrator's socket failed: {error:#}");
        };
        let mut clients = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(answered) = clients.join_next() => {
                    if let Err(error) = answered.map_err(Into::into).flatten() {
                        failed(error);
                    }
                }
                accepted = self.listener.accept(), if clients.len() < CLIENTS => match accepted {
                    Ok((stream, _)) => {
                        let (store, source, clock) = (Arc::clone(&store), source.clone(), Arc::clone(&clock));
                        clients.spawn(async move { answer(stream, &store, &source, &clock).await });
                    }
                    Err(error) => {
                        failed(error.into());
                        clock.sleep(RETRY).await;
                    }
                }
            }
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn answer(
    mut stream: tokio::net::UnixStream,
    store: &Arc<dyn Store>,
    source: &Source,
    clock: &Arc<dyn Clock>,
) -> Result<()> {
    let user = stream.peer_cred()?.uid();
    if user != 0 && user != nix::unistd::geteuid().as_raw() {
        bail!("it came from user {user}");
    }
    let mut request = [0; BACKUP.len()];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut request)).await.context("no request came")??;
    let taken = if request == BACKUP {
        snapshot(&**store).await.context("cannot read the store")
    } else {
        Err(anyhow::anyhow!("the request is unknown: is the knarr that asks of another version?"))
    };
    let stream = stream.into_std()?;
    let (source, now) = (source.clone(), clock.now());
    tokio::task::spawn_blocking(move || {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let send = |line: &[u8]| (&stream).write_all(line);
        // Faults of the files are found before the archive begins.
        match taken.and_then(|taken| contents::prepare(&source, taken, now)) {
            Ok(contents) => {
                send(OK)?;
                let output = BufWriter::with_capacity(super::BUFFER_BYTES, &stream);
                contents.write(None, output)?.1.flush()?;
                Ok(())
            }
            Err(error) => {
                send(format!("{error:#}\n").as_bytes())?;
                Err(error)
            }
        }
    })
    .await?
}

/// Connects to the server that runs on this data folder; `None` if none runs.
pub fn connect(layout: &Layout) -> Result<Option<UnixStream>> {
    let path = layout.admin_socket();
    let connected = short_path(&path).and_then(|(short, _folder)| UnixStream::connect(short));
    match connected {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot connect to {}", path.display())),
    }
}

/// Requests a backup. The archive is read from the returned reader, and is complete if it can be read to its
/// end.
pub fn ask(mut stream: UnixStream) -> Result<Result<Reader<impl Read>, ArchiveError>> {
    let failed = "the server broke off";
    stream.set_read_timeout(Some(FIRST))?;
    stream.write_all(BACKUP).context(failed)?;
    let mut head = [0; OK.len()];
    stream.read_exact(&mut head).context(failed)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    if head != OK {
        let mut reason = head.to_vec();
        stream.take(ANSWER_BYTES).read_to_end(&mut reason).context(failed)?;
        bail!("the server answered: {}", String::from_utf8_lossy(&reason).trim());
    }
    Ok(Reader::new(std::io::BufReader::with_capacity(super::BUFFER_BYTES, stream), None))
}

/// Requests a backup and writes it while it arrives; the contents are checked.
pub fn receive<W: Write>(
    stream: UnixStream,
    passphrase: Option<&Passphrase>,
    output: W,
) -> Result<(Manifest, W)> {
    let mut reader = ask(stream)?.context("what the server sends is no backup")?;
    let manifest = reader.manifest().clone();
    let in_words = "cannot write the backup";
    let mut writer = Writer::new(output, passphrase, &manifest).context(in_words)?;
    while let Some(record) = reader.next().context("what the server sends is not whole")? {
        writer.write(&record).context(in_words)?;
    }
    Ok((manifest, writer.finish().context(in_words)?))
}

/// Returns a path of the socket that is short enough for a socket address, however long the folder's path is.
/// It is valid while the returned folder is open.
fn short_path(path: &Path) -> std::io::Result<(PathBuf, File)> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default();
    let held = OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECTORY).open(folder)?;
    Ok((PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd())).join(name), held))
}
