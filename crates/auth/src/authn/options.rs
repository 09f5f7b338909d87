//! Authentication options, named after upstream's flags.

use std::path::PathBuf;
use std::time::Duration;

/// Authenticators in addition to client certificates and service-account tokens.
#[derive(Debug, Clone)]
pub struct Authentication {
    /// `--token-auth-file`: lines of `token,user,uid,"group1,group2"`.
    pub token_file: Option<PathBuf>,
    /// `--enable-bootstrap-token-auth`.
    pub bootstrap_tokens: bool,
    pub anonymous: Anonymous,
    pub request_header: RequestHeader,
    /// `--oidc-*`; excludes `config_file`.
    pub oidc: Oidc,
    /// `--authentication-config`: an `AuthenticationConfiguration` with JWT issuers and anonymous conditions.
    pub config_file: Option<PathBuf>,
    /// `--authentication-token-webhook-config-file`: a kubeconfig.
    pub webhook_config_file: Option<PathBuf>,
    /// `--authentication-token-webhook-cache-ttl`.
    pub webhook_cache_ttl: Duration,
    /// `--authentication-token-webhook-version`.
    pub webhook_version: String,
}

/// Which requests may be anonymous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anonymous {
    Off,
    /// Requests for these exact paths.
    Paths(Vec<String>),
    /// Only health checks and the paths below them: the default of a server that is started without such a setting.
    Health,
    On,
}

/// The settings of an authenticating proxy; disabled while `client_ca` is empty.
#[derive(Debug, Clone, Default)]
pub struct RequestHeader {
    /// The CA certificates of the proxy's client certificate, in PEM.
    pub client_ca_pem: String,
    /// `--requestheader-client-ca-file`: the CA certificates from a file, read again when it changes.
    pub client_ca_file: Option<PathBuf>,
    /// The common names that the certificate may have; empty allows any.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_header_prefixes: Vec<String>,
}

/// One issuer of ID tokens; disabled while `issuer_url` is empty.
#[derive(Debug, Clone, Default)]
pub struct Oidc {
    pub issuer_url: String,
    pub client_id: String,
    pub ca_file: Option<PathBuf>,
    /// The claim with the user's name; empty means `sub`.
    pub username_claim: String,
    /// The prefix of user names. `None` means the issuer and `#`, unless the claim is `email`; `-` means no prefix.
    pub username_prefix: Option<String>,
    pub groups_claim: String,
    pub groups_prefix: String,
    pub required_claims: Vec<(String, String)>,
    pub signing_algs: Vec<String>,
}

impl Default for Authentication {
    fn default() -> Self {
        Self {
            token_file: None,
            bootstrap_tokens: true,
            anonymous: Anonymous::Health,
            request_header: RequestHeader::default(),
            oidc: Oidc::default(),
            config_file: None,
            webhook_config_file: None,
            webhook_cache_ttl: Duration::from_secs(120),
            webhook_version: "v1".into(),
        }
    }
}

impl RequestHeader {
    pub fn is_on(&self) -> bool {
        self.client_ca_file.is_some() || !self.client_ca_pem.is_empty()
    }

    /// Returns the settings with the headers that upstream's documentation recommends for aggregators.
    pub fn usual(client_ca_pem: String, allowed_names: Vec<String>) -> Self {
        let one = |name: &str| vec![name.to_owned()];
        Self {
            client_ca_pem,
            client_ca_file: None,
            allowed_names,
            username_headers: one("X-Remote-User"),
            uid_headers: one("X-Remote-Uid"),
            group_headers: one("X-Remote-Group"),
            extra_header_prefixes: one("X-Remote-Extra-"),
        }
    }
}

impl Anonymous {
    pub fn admits(&self, path: &str) -> bool {
        const HEALTH: [&str; 3] = ["/livez", "/readyz", "/healthz"];
        match self {
            Self::Off => false,
            Self::On => true,
            Self::Paths(paths) => paths.iter().any(|p| p == path),
            Self::Health => HEALTH
                .iter()
                .any(|p| path.strip_prefix(p).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))),
        }
    }
}

/// The settings of service-account tokens: how they are signed, and which are accepted.
#[derive(Debug, Clone)]
pub struct ServiceAccounts {
    /// The private key that signs tokens, in PKCS#8 PEM: ECDSA P-256 or RSA. Empty disables issuing tokens.
    pub key_pem: String,
    /// Further public keys by which tokens are verified, in PEM.
    pub public_keys_pem: Vec<String>,
    pub issuer: String,
    /// Further issuers whose tokens are accepted: former names of this one.
    pub further_issuers: Vec<String>,
    /// `--service-account-jwks-uri`; empty means a URI at the advertised address.
    pub jwks_uri: String,
    /// Whether tokens that kubelets rotate are valid for a year, for clients that read them only once.
    pub extend_expiration: bool,
    /// The maximum lifetime of tokens; longer ones are shortened.
    pub max_expiration: Option<Duration>,
    /// The audiences of which a token must name one; empty means the issuer.
    pub audiences: Vec<String>,
}

impl Default for ServiceAccounts {
    fn default() -> Self {
        Self {
            key_pem: String::new(),
            public_keys_pem: Vec::new(),
            issuer: "https://kubernetes.default.svc.cluster.local".into(),
            further_issuers: Vec::new(),
            jwks_uri: String::new(),
            extend_expiration: true,
            max_expiration: None,
            audiences: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_conditions() {
        let paths = Anonymous::Paths(vec!["/livez".into()]);
        for (who, path, admitted) in [
            (&Anonymous::Off, "/livez", false),
            (&Anonymous::On, "/api", true),
            (&Anonymous::Health, "/livez/ping", true),
            (&Anonymous::Health, "/livezz", false),
            (&Anonymous::Health, "/version", false),
            (&paths, "/livez", true),
            (&paths, "/livez/ping", false),
        ] {
            assert_eq!(who.admits(path), admitted, "{who:?} {path}");
        }
    }
}
