//! Images: references, archives, registries, the content store, overlayfs snapshots.
//!
//! ```text
//! root/
//!   oci-layout, index.json    which names there are (an OCI image layout that other tools can read)
//!   blobs/sha256/<hex>        content, verified and synced before it is renamed here
//!   layers/<chain id>/fs      each layer unpacked once, an overlayfs lower directory
//!   snapshots/<name>/         upper, work and rootfs (the mount point) of one container
//!   ingest/, trash/           unfinished and discarded files; emptied at the next start
//!   index.lock, lease.lock    keep processes apart, see `catalog` and `collect`
//! ```
//!
//! Everything appears by rename, so a process may be killed at any moment.

mod archive;
mod builder;
mod catalog;
mod collect;
mod config;
mod content;
mod content_error;
mod credentials;
mod digest;
mod error;
mod error_kind;
mod layers;
mod locks;
mod measured;
mod oci;
mod overlay;
mod reference;
mod refs;
mod registry;
mod snapshot;
mod store;
mod usage;
mod user;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use archive::{ArchiveError, ImportOptions};
pub use builder::{BuildError, DEFAULT_PATH, ImageBuild, find_busybox, find_program};
pub use catalog::Image;
pub use collect::Collected;
pub use config::{Empty, ImageConfig, ImageUser};
pub use credentials::{Credential, CredentialError, Keyring};
pub use digest::{Digest, DigestError};
pub use error::{ContentError, ErrorKind, ImageError};
pub use layers::LayerError;
pub use oci::{DocumentError, Platform};
pub use overlay::MappedIds;
pub use reference::{Reference, ReferenceError};
pub use registry::{
    Mirror, MirrorError, NetworkError, Pace, Progress, ProgressFn, PullOptions, Pulled, RegistryError,
};
pub use snapshot::Snapshot;
pub use store::{ImageStore, Removed};
pub use usage::{DiskUsage, FsInfo, fs_info};
pub use user::{ResolvedUser, UserError, resolve_user};
