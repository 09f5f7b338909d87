//! Encryption at rest: a store before the store, which keeps chosen resources encrypted.

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
    /// Reads the file again when it changes.
    pub reload: bool,
}
