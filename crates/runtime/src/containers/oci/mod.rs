//! Containers run by an OCI runtime (runc, crun, runsc, kata) in place of the shim's own clones.
//!
//! The shim stays what it is: it holds the sandbox's namespaces, makes cgroups, carries streams, and is the parent of
//! what runs, because orphans of the runtime's short-lived commands are handed to it. Source: the OCI runtime
//! specification 1.0, and the command line that runc and its kin share.

mod bundle;
mod command;
mod program;

use std::path::{Path, PathBuf};

use super::state::SandboxFolder;
pub use bundle::{Around, config, process};
pub use command::{Job, Task, delete, forget, run, signal};
pub use program::OciProgram;

/// Where the runtime is, and where it keeps its records of one sandbox.
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
