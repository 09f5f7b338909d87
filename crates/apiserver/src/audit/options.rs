//! Audit options, named after upstream's flags.

use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Audit {
    /// `--audit-policy-file`; `None` disables auditing.
    pub policy_file: Option<PathBuf>,
    /// `--audit-log-*`.
    pub log: Option<LogOptions>,
    /// `--audit-webhook-*`.
    pub webhook: Option<WebhookOptions>,
}

#[derive(Debug, Clone, Default)]
pub struct LogOptions {
    /// The file; `-` means standard output.
    pub path: PathBuf,
    /// The size at which the file is rotated, in MiB; 0 means 100.
    pub max_size_mb: u64,
    /// How many rotated files to keep; 0 means all.
    pub max_backups: usize,
    /// How long to keep rotated files, in days; 0 means forever.
    pub max_age_days: u32,
    pub compress: bool,
    pub format: Format,
    /// Strict mode: a request fails if its RequestReceived event cannot be written.
    pub strict: bool,
    /// Batching options; `None` means blocking mode: requests wait for the file.
    pub batch: Option<Batch>,
    pub truncate: Option<Truncate>,
}

/// The format of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Json,
    /// One line of text, without the objects.
    Legacy,
}

/// Size limits of a backend, in bytes of JSON.
#[derive(Debug, Clone, Copy)]
pub struct Truncate {
    /// A larger event loses its objects, and is dropped if it is still too large.
    pub event: usize,
    /// A larger batch is split.
    pub batch: usize,
}

impl Default for Truncate {
    fn default() -> Self {
        Self { event: 100 << 10, batch: 10 << 20 }
    }
}

/// How a backend batches events.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The size of the queue; events beyond it are dropped.
    pub buffer: usize,
    /// The maximum number of events in one batch.
    pub size: usize,
    /// How long to wait for a batch to fill.
    pub wait: Duration,
    pub throttle: Option<Throttle>,
}

/// The maximum rate of batches per second, and the burst.
#[derive(Debug, Clone, Copy)]
pub struct Throttle {
    pub qps: f64,
    pub burst: u32,
}

/// The default size of the queue.
const BUFFER: usize = 10_000;

impl Batch {
    /// Returns upstream's defaults for a file: each event is a batch of its own.
    pub fn of_log() -> Self {
        Self { buffer: BUFFER, size: 1, wait: Duration::ZERO, throttle: None }
    }

    /// Returns upstream's defaults for a webhook.
    pub fn of_webhook() -> Self {
        let throttle = Some(Throttle { qps: 10.0, burst: 15 });
        Self { buffer: BUFFER, size: 400, wait: Duration::from_secs(30), throttle }
    }
}

#[derive(Debug, Clone)]
pub struct WebhookOptions {
    /// The kubeconfig of the webhook.
    pub config_file: PathBuf,
    /// Batching options; `None` means blocking mode: requests wait for the webhook.
    pub batch: Option<Batch>,
    /// Strict mode: a request fails if the webhook does not accept its RequestReceived event.
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
