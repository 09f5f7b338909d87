//! Containers that an OCI runtime (runc, crun, runsc, kata) runs instead of the shim's own clones.
//!
//! The shim keeps its tasks: it holds the sandbox's namespaces, creates cgroups and carries streams. It is the
//! parent of what runs, because it adopts the orphans of the runtime's short-lived commands. Source: the OCI
//! runtime specification 1.0, and the command line that runc and compatible runtimes share.

mod bundle;
mod command;
mod program;

use std::path::{Path, PathBuf};

use super::state::SandboxFolder;
pub use bundle::{Around, config, process};
pub use command::{Job, Task, delete, forget, run, signal};
pub use program::OciProgram;

/// The runtime's program, and the folder with its records of one sandbox.
#[derive(Debug, Clone)]
pub struct OciRuntime {
    pub program: PathBuf,
    pub root: PathBuf,
}

impl OciRuntime {
    pub fn of(program: &Path, folder: &SandboxFolder) -> Self {
        Self { program: program.to_owned(), root: folder.path().join("oci") }
    }
}
