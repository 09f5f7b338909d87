//! Encryption at rest: a wrapper around the store that encrypts the configured resources.

mod config;
mod health;
mod kms;
mod provider;
mod store;

use std::path::PathBuf;

pub use config::EncryptionConfig;
pub use health::KeyServices;
pub use provider::{KMS, RESERVED};
pub use store::EncryptedStore;

/// `--encryption-provider-config` and its automatic reload.
#[derive(Debug, Clone, Default)]
pub struct Encryption {
    pub config_file: Option<PathBuf>,
    /// Whether the file is read again when it changes.
    pub reload: bool,
}
