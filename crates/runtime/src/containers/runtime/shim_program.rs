//! The shim's program, run so that containers cannot write to its executable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::containers::mount_api::{self, MOUNT_ATTR_RDONLY};
use crate::containers::state::SandboxFolder;
use crate::containers::sys::path_cstring;

/// A detached read-only mount of the executable alone.
///
/// Before a container's process has executed its program it is a copy of the shim, and /proc/PID/exe refers to
/// the shim's executable. On the host's file system, root in a container could wait until no process runs that
/// file and then write to it (CVE-2019-5736). This mount prevents that. It also keeps all shims of a server on
/// one version while the file on disk is replaced.
pub struct ShimProgram {
    path: PathBuf,
    args: Vec<String>,
    file: OwnedFd,
}

impl ShimProgram {
    /// `args` are passed before the sandbox's folder.
    pub fn open(path: &Path, args: &[String]) -> io::Result<Self> {
        let file = mount_api::open_tree(&path_cstring(path)?, false)?;
        mount_api::set_attributes(file.as_fd(), MOUNT_ATTR_RDONLY, 0, false)?;
        Ok(Self { path: path.to_owned(), args: args.to_vec(), file })
    }

    /// Returns the command that runs the shim for a sandbox.
    pub fn command(&self, folder: &SandboxFolder) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(&self.path).args(&self.args).arg(folder.path());
        command
    }
}
