//! Containers: sandboxes, the shim process that outlives the server, exec, logs, cgroups.
//!
//! The server side is [`Runtime`], an async facade that starts one shim process per pod sandbox and talks to it
//! over a unix socket. The shim side is [`shim_main`]: it is single-threaded, holds the sandbox's namespaces,
//! starts containers as its children and records their exit codes in the state folder, so that none is lost
//! while no server runs.

mod capabilities;
pub mod cgroups;
mod client;
mod error;
mod exec_path;
mod init;
mod log;
pub(crate) mod mount_api;
mod net_dev;
mod oci;
mod protocol;
mod purge;
mod runtime;
pub mod seccomp;
mod shim;
mod signal;
mod socket;
mod spec;
mod state;
mod status;
mod streams;
pub(crate) mod sys;
mod user;

pub use cgroups::{Cgroups, Resources, Stats};
pub use error::{Error, Result};
pub use init::{MASKED as MASKED_PATHS, READ_ONLY as READONLY_PATHS};
pub use net_dev::{InterfaceCounts, InterfaceStats, interfaces_of};
pub use oci::OciProgram;
pub use purge::{PurgeCgroups, PurgeReport, purge};
pub use runtime::{AttachRequest, Container, ExecOutput, ExecRequest, Runtime, RuntimeOptions};
pub use shim::shim_main;
pub use signal::signal_number;
pub use spec::{
    Bind, CapabilityChange, ContainerSpec, Device, IdRange, Mount, MountKind, PidMode, Propagation, Rlimit,
    SandboxConfig, SeccompProfile, User,
};
pub use status::{ContainerState, ContainerStatus, Event, SandboxState, SandboxStatus, TerminalSize};
pub use streams::{AttachStreams, ExecStreams, Reader, Writer};
