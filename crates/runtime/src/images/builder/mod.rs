//! Builds images from files of the machine, without a registry: programs with the libraries that they need,
//! files, links, and a configuration.

mod closure;
mod elf;
mod shell;
mod write;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::config::{Empty, ImageConfig};
use super::error::{ContentError, ErrorKind};
use super::reference::Reference;

pub use shell::{find_busybox, find_program};

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n";
const NSSWITCH: &str = "passwd: files\ngroup: files\nhosts: files dns\n";

/// Why an image could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("cannot {action} {}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} needs {library}, which is in none of the library folders", program.display())]
    Library { program: PathBuf, library: String },
    #[error("{} is not a usable program: {reason}", path.display())]
    Elf { path: PathBuf, reason: &'static str },
    #[error("{} needs more than {limit} libraries", program.display())]
    TooManyLibraries { program: PathBuf, limit: usize },
    #[error("{} returned no list of its applets", path.display())]
    Busybox { path: PathBuf },
    #[error("{0:?} is not an absolute path without dots")]
    Path(String),
    #[error("{0} changed while it was read")]
    Changed(String),
    #[error("the machine has no {0}")]
    NoProgram(String),
    #[error("cannot write the layer")]
    Tar(#[source] io::Error),
    #[error("cannot encode the image's documents")]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Content(#[from] ContentError),
}

impl BuildError {
    pub fn kind(&self) -> ErrorKind {
        match self {
            BuildError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => ErrorKind::NotFound,
            BuildError::Library { .. } | BuildError::NoProgram(_) => ErrorKind::NotFound,
            BuildError::Content(source) => source.kind(),
            BuildError::Elf { .. } | BuildError::Path(_) | BuildError::Busybox { .. } => {
                ErrorKind::InvalidImage
            }
            _ => ErrorKind::Io,
        }
    }

    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BuildError {
        let path = path.to_owned();
        move |source| BuildError::Io { action, path, source }
    }
}

/// An entry of the image's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Dir { mode: u32 },
    Bytes { content: Vec<u8>, mode: u32 },
    Host { path: PathBuf, mode: u32 },
    Symlink { target: String },
}

/// An image to build, with one layer. Building it twice from the same inputs gives the same digest.
#[derive(Debug, Clone)]
pub struct ImageBuild {
    name: Reference,
    config: ImageConfig,
    /// Programs by their absolute path in the image, with their path on the host.
    programs: BTreeMap<String, PathBuf>,
    nodes: BTreeMap<String, Node>,
}

impl ImageBuild {
    /// Starts with files that programs expect: `/etc/passwd`, `/etc/group`, `/tmp`, `/root`, and the mount
    /// points `/dev`, `/proc`, `/sys`.
    pub fn new(name: Reference) -> ImageBuild {
        let config = ImageConfig { env: vec![format!("PATH={DEFAULT_PATH}")], ..Default::default() };
        let mut build = ImageBuild { name, config, programs: BTreeMap::new(), nodes: BTreeMap::new() };
        for (path, mode) in [
            ("/dev", 0o755),
            ("/proc", 0o555),
            ("/sys", 0o555),
            ("/run", 0o755),
            ("/tmp", 0o1777),
            ("/root", 0o700),
            ("/var/tmp", 0o1777),
        ] {
            build = build.dir(path, mode);
        }
        build.file("/etc/passwd", PASSWD, 0o644).file("/etc/group", GROUP, 0o644).file(
            "/etc/nsswitch.conf",
            NSSWITCH,
            0o644,
        )
    }

    /// Adds a program of the host at `path`, with its loader and shared libraries.
    pub fn program(mut self, host: impl Into<PathBuf>, path: &str) -> ImageBuild {
        self.programs.insert(path.to_owned(), host.into());
        self
    }

    /// Adds a file with the given content.
    pub fn file(mut self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> ImageBuild {
        self.nodes.insert(path.to_owned(), Node::Bytes { content: content.into(), mode });
        self
    }

    /// Adds a copy of a file of the host.
    pub fn host_file(mut self, host: impl Into<PathBuf>, path: &str, mode: u32) -> ImageBuild {
        self.nodes.insert(path.to_owned(), Node::Host { path: host.into(), mode });
        self
    }

    /// Adds a folder.
    pub fn dir(mut self, path: &str, mode: u32) -> ImageBuild {
        self.nodes.insert(path.to_owned(), Node::Dir { mode });
        self
    }

    /// Adds a symbolic link.
    pub fn symlink(mut self, path: &str, target: &str) -> ImageBuild {
        self.nodes.insert(path.to_owned(), Node::Symlink { target: target.to_owned() });
        self
    }

    pub fn entrypoint<S: Into<String>>(mut self, command: impl IntoIterator<Item = S>) -> ImageBuild {
        self.config.entrypoint = command.into_iter().map(Into::into).collect();
        self
    }

    pub fn cmd<S: Into<String>>(mut self, command: impl IntoIterator<Item = S>) -> ImageBuild {
        self.config.cmd = command.into_iter().map(Into::into).collect();
        self
    }

    /// Sets one variable; `PATH` is set by default.
    pub fn env(mut self, name: &str, value: &str) -> ImageBuild {
        let prefix = format!("{name}=");
        self.config.env.retain(|entry| !entry.starts_with(&prefix));
        self.config.env.push(format!("{prefix}{value}"));
        self
    }

    /// Exposes a port, for example `8080/tcp`.
    pub fn port(mut self, port: &str) -> ImageBuild {
        self.config.exposed_ports.insert(port.to_owned(), Empty {});
        self
    }

    pub fn label(mut self, name: &str, value: &str) -> ImageBuild {
        self.config.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    pub fn user(mut self, user: &str) -> ImageBuild {
        user.clone_into(&mut self.config.user);
        self
    }

    pub fn working_dir(mut self, dir: &str) -> ImageBuild {
        dir.clone_into(&mut self.config.working_dir);
        self
    }

    pub fn stop_signal(mut self, signal: &str) -> ImageBuild {
        signal.clone_into(&mut self.config.stop_signal);
        self
    }
}

#[cfg(test)]
mod tests;
