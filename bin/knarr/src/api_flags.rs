//! The API server's flags under upstream's names, and the configuration that they select.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use knarr_apiserver::{
    Anonymous, Audit, AuditBatch, AuditFormat, AuditLog, AuditThrottle, AuditTruncate, AuditWebhook,
    Authentication, Authorization, AuthorizationMode, Config, Encryption, Features, Oidc, RequestHeader,
};
use knarr_serving::Limits;

use crate::node::NodeArgs;
use crate::open_files;
use crate::shown_flags::ShownFlags;

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "API server")]
pub struct ApiArgs {
    /// Treat requests that no authenticator rejects as system:anonymous; by default only health checks
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    anonymous_auth: Option<bool>,
    /// File of static tokens: token,user,uid,"group1,group2"
    #[arg(long, value_name = "FILE")]
    token_auth_file: Option<PathBuf>,
    /// Accept bootstrap tokens: Secrets of type bootstrap.kubernetes.io/token in kube-system
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    enable_bootstrap_token_auth: bool,
    /// AuthenticationConfiguration with JWT issuers and anonymous conditions
    #[arg(long, value_name = "FILE", conflicts_with = "oidc_issuer_url")]
    authentication_config: Option<PathBuf>,
    /// Kubeconfig of a webhook that reviews tokens
    #[arg(long, value_name = "FILE")]
    authentication_token_webhook_config_file: Option<PathBuf>,
    /// How long to cache its answers
    #[arg(long, value_name = "DURATION", default_value = "2m0s", value_parser = duration)]
    authentication_token_webhook_cache_ttl: Duration,
    /// Version of the TokenReviews sent to it
    #[arg(long, value_name = "VERSION", default_value = "v1")]
    authentication_token_webhook_version: String,
    /// URL of an OpenID issuer
    #[arg(long, value_name = "URL", default_value = "")]
    oidc_issuer_url: String,
    /// Client that the issuer's tokens must be issued for
    #[arg(long, value_name = "ID", default_value = "")]
    oidc_client_id: String,
    /// Authorities that sign the issuer's certificate
    #[arg(long, value_name = "FILE")]
    oidc_ca_file: Option<PathBuf>,
    /// Claim that holds the user's name
    #[arg(long, value_name = "CLAIM", default_value = "sub")]
    oidc_username_claim: String,
    /// Prefix of user names; "-" for none
    #[arg(long, value_name = "PREFIX")]
    oidc_username_prefix: Option<String>,
    /// Claim that holds the user's groups
    #[arg(long, value_name = "CLAIM", default_value = "")]
    oidc_groups_claim: String,
    /// Prefix of group names
    #[arg(long, value_name = "PREFIX", default_value = "")]
    oidc_groups_prefix: String,
    /// Claim that a token must have, key=value
    #[arg(long, value_name = "KEY=VALUE")]
    oidc_required_claim: Vec<String>,
    /// Algorithms that tokens may be signed with
    #[arg(long, value_name = "ALG", value_delimiter = ',', default_value = "RS256")]
    oidc_signing_algs: Vec<String>,
    /// Authorities that sign client certificates, besides the cluster's own; read again when the file changes
    #[arg(long, value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Authorities that sign the certificates of authenticating proxies
    #[arg(long, value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names that such proxies may have; any name if empty
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    requestheader_allowed_names: Vec<String>,
    #[arg(long, value_name = "HEADER", value_delimiter = ',', default_value = "X-Remote-User")]
    requestheader_username_headers: Vec<String>,
    #[arg(long, value_name = "HEADER", value_delimiter = ',', default_value = "X-Remote-Uid")]
    requestheader_uid_headers: Vec<String>,
    #[arg(long, value_name = "HEADER", value_delimiter = ',', default_value = "X-Remote-Group")]
    requestheader_group_headers: Vec<String>,
    #[arg(long, value_name = "PREFIX", value_delimiter = ',', default_value = "X-Remote-Extra-")]
    requestheader_extra_headers_prefix: Vec<String>,
    /// Issuer of service account tokens; tokens of further issuers are accepted too
    #[arg(long, value_name = "URL")]
    service_account_issuer: Vec<String>,
    /// Key that signs service account tokens
    #[arg(long, value_name = "FILE")]
    service_account_signing_key_file: Option<PathBuf>,
    /// Keys that verify service account tokens
    #[arg(long, value_name = "FILE")]
    service_account_key_file: Vec<PathBuf>,
    /// URL of the public keys, for the discovery document
    #[arg(long, value_name = "URL", default_value = "")]
    service_account_jwks_uri: String,
    /// Longest lifetime of a service account token
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    service_account_max_token_expiration: Option<Duration>,
    /// Issue projected tokens for a year, for clients that do not read them again
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    service_account_extend_token_expiration: bool,
    /// Audiences of which tokens must name at least one
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    api_audiences: Vec<String>,
    /// AlwaysAllow, AlwaysDeny, Node, RBAC, Webhook
    #[arg(long, value_name = "MODE", value_delimiter = ',', default_value = "Node,RBAC")]
    authorization_mode: Vec<String>,
    /// AuthorizationConfiguration, in place of the modes
    #[arg(long, value_name = "FILE")]
    authorization_config: Option<PathBuf>,
    /// Kubeconfig of a webhook that authorizes
    #[arg(long, value_name = "FILE")]
    authorization_webhook_config_file: Option<PathBuf>,
    #[arg(long, value_name = "VERSION", default_value = "v1")]
    authorization_webhook_version: String,
    #[arg(long, value_name = "DURATION", default_value = "5m0s", value_parser = duration)]
    authorization_webhook_cache_authorized_ttl: Duration,
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Audit policy; nothing is audited without one
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// File to write audit events to; "-" for standard output
    #[arg(long, value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Size in MiB at which the audit log is rotated
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    audit_log_maxsize: u64,
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    audit_log_maxbackup: usize,
    #[arg(long, value_name = "DAYS", default_value_t = 0)]
    audit_log_maxage: u32,
    #[arg(long)]
    audit_log_compress: bool,
    /// blocking; batch: requests do not wait; blocking-strict: requests that cannot be logged fail
    #[arg(long, value_name = "MODE", default_value = "blocking")]
    audit_log_mode: String,
    /// Events that are buffered in batch mode
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    audit_log_batch_buffer_size: usize,
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    audit_log_batch_max_size: usize,
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    audit_log_batch_max_wait: Duration,
    #[arg(long)]
    audit_log_batch_throttle_enable: bool,
    #[arg(long, value_name = "COUNT", default_value_t = 0.0)]
    audit_log_batch_throttle_qps: f64,
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    audit_log_batch_throttle_burst: u32,
    /// json, or legacy: one line of text without objects
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = ["json", "legacy"])]
    audit_log_format: String,
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"])]
    audit_log_version: String,
    /// Truncate events and batches that are too large
    #[arg(long)]
    audit_log_truncate_enabled: bool,
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_log_truncate_max_batch_size: usize,
    /// Size in bytes above which an event loses its objects
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    audit_log_truncate_max_event_size: usize,
    /// Kubeconfig of a webhook that receives audit events
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// batch: requests do not wait; blocking; blocking-strict: requests fail if the webhook does not accept
    /// their RequestReceived event
    #[arg(long, value_name = "MODE", default_value = "batch")]
    audit_webhook_mode: String,
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1", value_parser = ["audit.k8s.io/v1"])]
    audit_webhook_version: String,
    #[arg(long)]
    audit_webhook_truncate_enabled: bool,
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_webhook_truncate_max_batch_size: usize,
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    audit_webhook_truncate_max_event_size: usize,
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    audit_webhook_batch_buffer_size: usize,
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    audit_webhook_batch_max_size: usize,
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    audit_webhook_batch_max_wait: Duration,
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    audit_webhook_batch_throttle_enable: bool,
    /// Batches per second
    #[arg(long, value_name = "COUNT", default_value_t = 10.0)]
    audit_webhook_batch_throttle_qps: f64,
    /// Batches in one burst
    #[arg(long, value_name = "COUNT", default_value_t = 15)]
    audit_webhook_batch_throttle_burst: u32,
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    audit_webhook_initial_backoff: Duration,
    /// EncryptionConfiguration: which resources to encrypt in the store
    #[arg(long, value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Read it again when it changes
    #[arg(long)]
    encryption_provider_config_automatic_reload: bool,
    /// Feature gates, such as A=true,B=false
    #[arg(long, value_name = "GATES", default_value = "")]
    feature_gates: String,
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    enable_priority_and_fairness: bool,
    /// Read-only requests in flight
    #[arg(long, value_name = "COUNT", default_value_t = 400)]
    max_requests_inflight: usize,
    /// Mutating requests in flight
    #[arg(long, value_name = "COUNT", default_value_t = 200)]
    max_mutating_requests_inflight: usize,
    /// Concurrent connections, as far as the limit of open files allows
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    max_connections: usize,
    /// Concurrent connections from one address other than this machine's own
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    max_connections_per_address: usize,
    /// Concurrent requests of one HTTP/2 connection; 0 for the default of 100
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    http2_max_streams_per_connection: u32,
    /// How long a request may take
    #[arg(long, value_name = "DURATION", default_value = "1m0s", value_parser = duration)]
    request_timeout: Duration,
    /// How long to keep events
    #[arg(long, value_name = "DURATION", default_value = "1h0m0s", value_parser = duration)]
    event_ttl: Duration,
    /// Probability that a request ends its connection
    #[arg(long, value_name = "0..0.02", default_value_t = 0.0)]
    goaway_chance: f64,
    /// How long to keep serving after the server has become unready
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    shutdown_delay_duration: Duration,
    /// Serving certificate, read again when the file changes
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
}

/// Connections may take this fraction (one in N) of the files that the process may open.
const OPEN_FILES_SHARE: u64 = 2;

/// The feature gate of pod groups.
pub const GENERIC_WORKLOAD: &str = "GenericWorkload";
/// The feature gate with which the API server elects the holders of leases (coordinated leader election).
pub const COORDINATED_LEADER_ELECTION: &str = "CoordinatedLeaderElection";
/// The feature gate with which each API server keeps a lease that makes it known to the others.
pub const API_SERVER_IDENTITY: &str = "APIServerIdentity";
/// The feature gate with which API servers record in which versions they store resources.
pub const STORAGE_VERSION_API: &str = "StorageVersionAPI";

/// Returns the features as `--feature-gates` sets them.
pub fn features(text: &str) -> Result<Features> {
    let mut features = Features::default();
    features.set(text).map_err(|e| anyhow::anyhow!("--feature-gates: {e}"))?;
    Ok(features)
}

/// Parses a duration in Go's form: `1h30m`, `90s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("time: invalid duration {text:?}");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut seconds, mut rest) = (0.0, text);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..end].parse().map_err(|_| wrong())?;
        rest = &rest[end..];
        let units = [("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9), ("h", 3600.0), ("m", 60.0), ("s", 1.0)];
        let (unit, factor) = units.iter().find(|(unit, _)| rest.starts_with(unit)).ok_or_else(wrong)?;
        seconds += number * factor;
        rest = &rest[unit.len()..];
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

impl ApiArgs {
    /// Returns the features as the flags set them.
    pub fn features(&self) -> Result<Features> {
        features(&self.feature_gates)
    }

    /// Returns the file that configures encryption at rest.
    pub fn encryption_config(&self) -> Option<&Path> {
        self.encryption_provider_config.as_deref()
    }

    /// Sets the configuration that the flags select.
    pub fn apply(&self, config: &mut Config) -> Result<()> {
        self.service_accounts(config)?;
        config.authentication = self.authentication(config)?;
        config.authorization = self.authorization()?;
        config.audit = self.audit()?;
        config.encryption = Encryption {
            config_file: self.encryption_provider_config.clone(),
            reload: self.encryption_provider_config_automatic_reload,
        };
        if let Some(file) = &self.client_ca_file {
            // Client certificates of the cluster's own components stay accepted.
            config.client_ca_file = Some(file.clone());
        }
        if let (Some(certificate), Some(key)) = (&self.tls_cert_file, &self.tls_private_key_file) {
            config.serving_files = Some((certificate.clone(), key.clone()));
        }
        config.features = self.features()?;
        config.flags = ShownFlags::of_process().without::<NodeArgs>();
        if !(0.0..=0.02).contains(&self.goaway_chance) {
            bail!("--goaway-chance can not be less than 0 or greater than 0.02");
        }
        if self.request_timeout.is_zero() {
            bail!("--request-timeout must be greater than 0");
        }
        config.goaway_chance = self.goaway_chance;
        config.priority_and_fairness = self.enable_priority_and_fairness;
        config.max_requests_inflight = self.max_requests_inflight;
        config.max_mutating_requests_inflight = self.max_mutating_requests_inflight;
        if config.priority_and_fairness
            && self.max_requests_inflight + self.max_mutating_requests_inflight == 0
        {
            bail!(
                "--max-requests-inflight and --max-mutating-requests-inflight can not both be 0 with priority and fairness"
            );
        }
        config.connection_limits = self.connection_limits(open_files::limit())?;
        config.request_timeout = self.request_timeout;
        config.event_ttl = self.event_ttl;
        config.shutdown_delay = self.shutdown_delay_duration;
        Ok(())
    }

    /// Returns the limits on peers of the listener, for a process that may open `open_files` files.
    fn connection_limits(&self, open_files: u64) -> Result<Limits> {
        let (connections, per_address) = (self.max_connections, self.max_connections_per_address);
        if connections == 0 || per_address == 0 {
            bail!("--max-connections and --max-connections-per-address must be greater than 0");
        }
        let mut limits = Limits { connections, per_address, ..Limits::default() };
        if self.http2_max_streams_per_connection > 0 {
            limits.streams = self.http2_max_streams_per_connection;
        }
        Ok(limits.within_open_files(open_files, OPEN_FILES_SHARE))
    }

    /// Returns the certificate files that an external process renews.
    pub fn certificate_files(&self) -> Vec<PathBuf> {
        let files = [
            &self.tls_cert_file,
            &self.client_ca_file,
            &self.requestheader_client_ca_file,
            &self.oidc_ca_file,
        ];
        files.into_iter().flatten().cloned().collect()
    }

    fn service_accounts(&self, config: &mut Config) -> Result<()> {
        if let Some((first, further)) = self.service_account_issuer.split_first() {
            config.service_accounts.issuer.clone_from(first);
            config.service_accounts.further_issuers = further.to_vec();
        }
        if let Some(file) = &self.service_account_signing_key_file {
            let own = std::mem::replace(&mut config.service_accounts.key_pem, read(file)?);
            // Tokens that the cluster's own key signed before stay valid.
            config.service_accounts.public_keys_pem.push(own);
        }
        for file in &self.service_account_key_file {
            config.service_accounts.public_keys_pem.push(read(file)?);
        }
        config.service_accounts.jwks_uri.clone_from(&self.service_account_jwks_uri);
        config.service_accounts.max_expiration = self.service_account_max_token_expiration;
        config.service_accounts.extend_expiration = self.service_account_extend_token_expiration;
        config.service_accounts.audiences.clone_from(&self.api_audiences);
        Ok(())
    }

    fn authentication(&self, config: &Config) -> Result<Authentication> {
        let mut required_claims = Vec::new();
        for pair in &self.oidc_required_claim {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("--oidc-required-claim: {pair} must be formatted as key=value");
            };
            required_claims.push((key.to_owned(), value.to_owned()));
        }
        if self.oidc_issuer_url.is_empty() != self.oidc_client_id.is_empty() {
            bail!(
                "oidc-issuer-url and oidc-client-id must be specified together when any oidc flag is specified"
            );
        }
        let request_header = RequestHeader {
            client_ca_file: self.requestheader_client_ca_file.clone(),
            allowed_names: self.requestheader_allowed_names.clone(),
            username_headers: self.requestheader_username_headers.clone(),
            uid_headers: self.requestheader_uid_headers.clone(),
            group_headers: self.requestheader_group_headers.clone(),
            extra_header_prefixes: self.requestheader_extra_headers_prefix.clone(),
            ..RequestHeader::default()
        };
        let given = self.requestheader_client_ca_file.is_some();
        Ok(Authentication {
            token_file: self.token_auth_file.clone(),
            bootstrap_tokens: self.enable_bootstrap_token_auth,
            anonymous: match self.anonymous_auth {
                None => Anonymous::Health,
                Some(true) => Anonymous::On,
                Some(false) => Anonymous::Off,
            },
            request_header: if given { request_header } else { config.authentication.request_header.clone() },
            oidc: Oidc {
                issuer_url: self.oidc_issuer_url.clone(),
                client_id: self.oidc_client_id.clone(),
                ca_file: self.oidc_ca_file.clone(),
                username_claim: self.oidc_username_claim.clone(),
                username_prefix: self.oidc_username_prefix.clone(),
                groups_claim: self.oidc_groups_claim.clone(),
                groups_prefix: self.oidc_groups_prefix.clone(),
                required_claims,
                signing_algs: self.oidc_signing_algs.clone(),
            },
            config_file: self.authentication_config.clone(),
            webhook_config_file: self.authentication_token_webhook_config_file.clone(),
            webhook_cache_ttl: self.authentication_token_webhook_cache_ttl,
            webhook_version: self.authentication_token_webhook_version.clone(),
        })
    }

    fn authorization(&self) -> Result<Authorization> {
        let mut modes = Vec::new();
        for text in &self.authorization_mode {
            let Some(mode) = AuthorizationMode::parse(text) else {
                bail!("authorization-mode {text:?} is not a valid mode");
            };
            if modes.contains(&mode) {
                bail!("authorization-mode {text:?} is specified more than once");
            }
            modes.push(mode);
        }
        let webhook = modes.contains(&AuthorizationMode::Webhook);
        if webhook && self.authorization_webhook_config_file.is_none() {
            bail!("authorization-mode's Webhook requires --authorization-webhook-config-file");
        }
        if !webhook && self.authorization_webhook_config_file.is_some() {
            bail!("cannot specify --authorization-webhook-config-file without mode Webhook");
        }
        Ok(Authorization {
            modes,
            config_file: self.authorization_config.clone(),
            webhook_config_file: self.authorization_webhook_config_file.clone(),
            webhook_version: self.authorization_webhook_version.clone(),
            webhook_authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
            webhook_unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
        })
    }

    fn log_batch(&self) -> AuditBatch {
        let throttle = self.audit_log_batch_throttle_enable.then_some(AuditThrottle {
            qps: self.audit_log_batch_throttle_qps,
            burst: self.audit_log_batch_throttle_burst,
        });
        AuditBatch {
            buffer: self.audit_log_batch_buffer_size,
            size: self.audit_log_batch_max_size,
            wait: self.audit_log_batch_max_wait,
            throttle,
        }
    }

    fn webhook_batch(&self) -> AuditBatch {
        let throttle = self.audit_webhook_batch_throttle_enable.then_some(AuditThrottle {
            qps: self.audit_webhook_batch_throttle_qps,
            burst: self.audit_webhook_batch_throttle_burst,
        });
        AuditBatch {
            buffer: self.audit_webhook_batch_buffer_size,
            size: self.audit_webhook_batch_max_size,
            wait: self.audit_webhook_batch_max_wait,
            throttle,
        }
    }

    fn audit(&self) -> Result<Audit> {
        let (log_waits, strict) = audit_mode("log", &self.audit_log_mode)?;
        let log_truncate = audit_truncation(
            self.audit_log_truncate_enabled,
            self.audit_log_truncate_max_event_size,
            self.audit_log_truncate_max_batch_size,
        )?;
        let format = if self.audit_log_format == "legacy" { AuditFormat::Legacy } else { AuditFormat::Json };
        let log = self.audit_log_path.clone().map(|path| AuditLog {
            path,
            max_size_mb: self.audit_log_maxsize,
            max_backups: self.audit_log_maxbackup,
            max_age_days: self.audit_log_maxage,
            compress: self.audit_log_compress,
            format,
            strict,
            batch: (!log_waits).then(|| self.log_batch()),
            truncate: log_truncate,
        });
        let (webhook_waits, strict) = audit_mode("webhook", &self.audit_webhook_mode)?;
        let truncate = audit_truncation(
            self.audit_webhook_truncate_enabled,
            self.audit_webhook_truncate_max_event_size,
            self.audit_webhook_truncate_max_batch_size,
        )?;
        let webhook = self.audit_webhook_config_file.clone().map(|file| AuditWebhook {
            batch: (!webhook_waits).then(|| self.webhook_batch()),
            strict,
            initial_backoff: self.audit_webhook_initial_backoff,
            truncate,
            ..AuditWebhook::new(file)
        });
        Ok(Audit { policy_file: self.audit_policy_file.clone(), log, webhook })
    }
}

/// Returns whether requests wait for the backend, and whether they fail when the backend fails.
fn audit_mode(backend: &str, mode: &str) -> Result<(bool, bool)> {
    match mode {
        "batch" => Ok((false, false)),
        "blocking" => Ok((true, false)),
        "blocking-strict" => Ok((true, true)),
        other => bail!(
            "invalid audit {backend} mode {other}, allowed modes are \"batch,blocking,blocking-strict\""
        ),
    }
}

fn audit_truncation(enabled: bool, event: usize, batch: usize) -> Result<Option<AuditTruncate>> {
    if !enabled {
        return Ok(None);
    }
    if event == 0 || batch < event {
        bail!("audit events of {event} bytes do not fit into batches of {batch} bytes");
    }
    Ok(Some(AuditTruncate { event, batch }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flag_is_given_twice() {
        #[derive(clap::Parser)]
        struct Program {
            #[command(flatten)]
            server: crate::server::ServerArgs,
        }
        <Program as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn durations_read_as_go_writes_them() {
        for (text, seconds) in [("1m0s", 60.0), ("1h30m", 5400.0), ("500ms", 0.5), ("0", 0.0), ("1.5s", 1.5)]
        {
            assert_eq!(duration(text).unwrap(), Duration::from_secs_f64(seconds), "{text}");
        }
        for wrong in ["", "5", "x", "1d", "-1s"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
