//! Wakes whoever follows a log file when something is written to it or to its folder.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tokio::io::unix::AsyncFd;

/// How often a log is looked at where the kernel gives no more watches.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A watch on the folder of a log file: writes to the file, and its renaming and making anew.
pub struct LogWatch {
    inotify: Option<AsyncFd<OwnedFd>>,
}

impl LogWatch {
    pub fn new(log: &Path) -> Self {
        let inotify = log.parent().and_then(|dir| open(dir).ok());
        Self { inotify }
    }

    /// Waits for a change after the last one that was waited for.
    pub async fn changed(&mut self) {
        let Some(inotify) = &self.inotify else {
            tokio::time::sleep(POLL_INTERVAL).await;
            return;
        };
        let Ok(mut ready) = inotify.readable().await else {
            self.inotify = None;
            return;
        };
        let mut buffer = [0u8; 4096];
        loop {
            // SAFETY: the buffer is valid for its length, the descriptor is open.
            let count = unsafe { libc::read(inotify.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
            if count <= 0 {
                break;
            }
        }
        ready.clear_ready();
    }
}

fn open(dir: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the call gives a fresh descriptor or -1.
    let inotify = unsafe {
        let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let mask =
        libc::IN_MODIFY | libc::IN_CREATE | libc::IN_MOVED_TO | libc::IN_MOVED_FROM | libc::IN_DELETE_SELF;
    // SAFETY: the path ends with NUL and lives through the call.
    if unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), mask) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is owned by the AsyncFd and neither replaced nor closed before it.
    Ok(unsafe { AsyncFd::register(inotify)? })
}
