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
    pub format: Format,
    /// A request fails whose arrival cannot be written down.
    pub strict: bool,
    /// Requests do not wait for the file.
    pub batch: Option<Batch>,
    pub truncate: Option<Truncate>,
}

/// How an event stands in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Json,
    /// One line of text, without objects.
    Legacy,
}

/// Bounds on what a backend is given, in bytes of JSON.
#[derive(Debug, Clone, Copy)]
pub struct Truncate {
    /// Larger events lose their objects, and are lost if that is not enough.
    pub event: usize,
    /// Larger batches are sent in parts.
    pub batch: usize,
}

impl Default for Truncate {
    fn default() -> Self {
        Self { event: 100 << 10, batch: 10 << 20 }
    }
}

/// How a backend gathers events.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Events that may wait; further ones are lost.
    pub buffer: usize,
    /// Events in one batch.
    pub size: usize,
    /// How long a batch may wait to be full.
    pub wait: Duration,
    pub throttle: Option<Throttle>,
}

/// Batches a second, and how many at once.
#[derive(Debug, Clone, Copy)]
pub struct Throttle {
    pub qps: f64,
    pub burst: u32,
}

/// Events that wait where nothing is said.
const BUFFER: usize = 10_000;

impl Batch {
    /// What upstream does for a file: no longer than for one event.
    pub fn of_log() -> Self {
        Self { buffer: BUFFER, size: 1, wait: Duration::ZERO, throttle: None }
    }

    /// What upstream does for a webhook.
    pub fn of_webhook() -> Self {
        let throttle = Some(Throttle { qps: 10.0, burst: 15 });
        Self { buffer: BUFFER, size: 400, wait: Duration::from_secs(30), throttle }
    }
}

#[derive(Debug, Clone)]
pub struct WebhookOptions {
    /// A kubeconfig.
    pub config_file: PathBuf,
    /// Requests do not wait for the webhook; `None`: they do.
    pub batch: Option<Batch>,
    /// A request fails whose arrival the webhook does not take.
    pub strict: bool,
    pub initial_backoff: Duration,
    pub truncate: Option<Truncate>,
}

impl WebhookOptions {
    pub fn new(config_file: PathBuf) -> Self {
        Self {
            config_file,
            batch: Some(Batch::of_webhook()),
            strict: false,
            initial_backoff: Duration::from_secs(10),
            truncate: None,
        }
    }
}
