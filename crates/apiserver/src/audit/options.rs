//! What is audited and where to, as the flags of upstream's names say it.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Audit {
    /// `--audit-policy-file`; `None`: nothing is audited.
    pub policy_file: Option<PathBuf>,
    /// `--audit-log-*`.
    pub log: Option<LogOptions>,
    /// `--audit-webhook-*`.
    pub webhook: Option<WebhookOptions>,
}

#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// `-`: standard output.
    pub path: PathBuf,
    /// 0: 100 MiB.
    pub max_size_mb: u64,
    /// Files kept beside the current one; 0: all.
    pub max_backups: usize,
    /// 0: for ever.
    pub max_age_days: u32,
    pub compress: bool,
    /// A request fails whose arrival cannot be written down.
    pub strict: bool,
}

#[derive(Debug, Clone)]
pub struct WebhookOptions {
    /// A kubeconfig.
    pub config_file: PathBuf,
    /// Events that may wait; further ones are lost.
    pub buffer: usize,
    pub batch_size: usize,
    pub batch_wait: Duration,
    pub initial_backoff: Duration,
}

impl WebhookOptions {
    pub fn new(config_file: PathBuf) -> Self {
        Self {
            config_file,
            buffer: 10_000,
            batch_size: 400,
            batch_wait: Duration::from_secs(30),
            initial_backoff: Duration::from_secs(10),
        }
    }
}
