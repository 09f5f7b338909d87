//! Notifications of the kernel about changes in folders.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use tokio::io::unix::AsyncFd;

/// Watches any number of folders. Reports that something has changed, but not what.
pub struct Inotify(AsyncFd<OwnedFd>);

impl Inotify {
    /// Creates an instance without watches. To be called inside a tokio runtime.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the call gives a fresh descriptor or -1.
        let inotify = unsafe {
            let fd = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        // SAFETY: the descriptor is owned by the AsyncFd and neither replaced nor closed before it.
        Ok(Self(unsafe { AsyncFd::register(inotify)? }))
    }

    /// Watches a folder for the events of `mask`; one that is watched already gets the new mask.
    pub fn watch(&self, folder: &Path, mask: u32) -> io::Result<()> {
        let path = CString::new(folder.as_os_str().as_bytes())?;
        // SAFETY: the path ends with NUL and lives through the call.
        if unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), mask) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits for a change since the previous call.
    pub async fn changed(&mut self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        let mut buffer = [0u8; 4096];
        loop {
            let fd = ready.get_inner().as_raw_fd();
            // SAFETY: the buffer is valid for its length, the descriptor is open.
            let count = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
            if count <= 0 {
                break;
            }
        }
        ready.clear_ready();
        Ok(())
    }
}
