//! A process's working directory: created if missing, entered with the process's own rights.

use std::io;

use super::Failure;
use super::root::{self, Links, Root};

/// The working directory of a process that is being set up.
pub struct WorkingFolder<'a> {
    path: &'a str,
    /// Whether the process has already entered it.
    entered: bool,
}

impl<'a> WorkingFolder<'a> {
    /// Creates missing folders with the runtime's rights, as runc does, and enters the folder if it is part of
    /// the image.
    ///
    /// Images whose working directory only root may enter are also run by other users; runc allows that. Only
    /// the image's own file system is entered this way, because the user chose the image: a volume may contain
    /// folders that the user must not reach.
    pub fn prepare(root: &Root, path: &'a str) -> Self {
        // A failure is reported when the folder is entered.
        let _ = root.folder(path, Links::Follow);
        let entered = root.find_in_image(path).and_then(|folder| root::enter(&folder)).is_ok();
        Self { path, entered }
    }

    /// Enters the folder with the rights that the program will have.
    pub fn enter(&self, root: &Root) -> Result<(), Failure> {
        let entered = root.find(self.path, Links::Follow).and_then(|folder| root::enter(&folder));
        let entered = match entered {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && self.entered => Ok(()),
            other => other,
        };
        entered
            .and_then(|()| verify())
            .map_err(Failure::step(format!("chdir to cwd ({:?}) set in config.json failed", self.path)))
    }
}

/// Verifies that the current directory is inside the root; for one outside, the kernel returns
/// "(unreachable)…".
fn verify() -> io::Result<()> {
    let mut buffer = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    if buffer[0] == b'/' { Ok(()) } else { Err(io::Error::other("it is outside of the container's root")) }
}
