//! A process's working directory: made where it is missing, entered with the process's own rights.

use std::io;

use super::Failure;
use super::root::{self, Links, Root};

pub struct WorkingFolder<'a> {
    path: &'a str,
    /// Whether the process is in it already.
    entered: bool,
}

impl<'a> WorkingFolder<'a> {
    /// With the runtime's rights: makes what is missing, as runc does, and enters a folder of the image.
    ///
    /// Images whose working directory only root may enter are run by other users, too; runc allows it.
    /// Only the image's own file system is entered this way, because the image is the user's own choice:
    /// a volume may hold what the user must not reach.
    pub fn prepare(root: &Root, path: &'a str) -> Self {
        // A failure shows when the folder is entered.
        let _ = root.folder(path, Links::Follow);
        let entered = root.find_in_image(path).and_then(|folder| root::enter(&folder)).is_ok();
        Self { path, entered }
    }

    /// With the rights that the program will have.
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

/// The kernel names a current directory outside of the root "(unreachable)…".
fn verify() -> io::Result<()> {
    let mut buffer = vec![0u8; libc::PATH_MAX as usize];
    // SAFETY: the buffer is valid for its length.
    let length = unsafe { libc::syscall(libc::SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    if buffer[0] == b'/' { Ok(()) } else { Err(io::Error::other("it is outside of the container's root")) }
}
