//! How requests are authenticated, as the flags of upstream's names say it.

use std::path::PathBuf;
use std::time::Duration;

/// Authentication beside client certificates and service-account tokens.
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

/// Who may come without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Anonymous {
    Off,
    /// For these exact paths.
    Paths(Vec<String>),
    /// Only for the health checks and what lies below them: how a server starts that is told nothing.
    Health,
    On,
}

/// A proxy in front that has authenticated its users; off while `client_ca` is empty.
#[derive(Debug, Clone, Default)]
pub struct RequestHeader {
    /// PEM of the authorities that sign the proxy's client certificate.
    pub client_ca_pem: String,
    /// `--requestheader-client-ca-file`: the same from a file, read again when it changes.
    pub client_ca_file: Option<PathBuf>,
    /// Common names that the certificate may have; empty: any.
    pub allowed_names: Vec<String>,
    pub username_headers: Vec<String>,
    pub uid_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_header_prefixes: Vec<String>,
}

/// One issuer of ID tokens; off while `issuer_url` is empty.
#[derive(Debug, Clone, Default)]
pub struct Oidc {
    pub issuer_url: String,
    pub client_id: String,
    pub ca_file: Option<PathBuf>,
    /// Empty: `sub`.
    pub username_claim: String,
    /// `None`: the issuer and `#`, unless the claim is `email`; `-`: none.
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

    /// The headers that upstream's documentation has every aggregator send.
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

/// How tokens of service accounts are signed, and which are accepted.
#[derive(Debug, Clone)]
pub struct ServiceAccounts {
    /// PKCS#8 PEM of the key that signs tokens: ECDSA P-256 or RSA; empty: no tokens.
    pub key_pem: String,
    /// PEM of further public keys that tokens may be signed with.
    pub public_keys_pem: Vec<String>,
    pub issuer: String,
    /// Issuers whose tokens are accepted as well: former names of this one.
    pub further_issuers: Vec<String>,
    /// `--service-account-jwks-uri`; empty: below the advertised address.
    pub jwks_uri: String,
    /// Tokens that kubelets rotate live for a year, for clients that read them once.
    pub extend_expiration: bool,
    /// Longer lives of tokens are cut to this.
    pub max_expiration: Option<Duration>,
    /// Audiences that tokens must name one of; empty: the issuer.
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
