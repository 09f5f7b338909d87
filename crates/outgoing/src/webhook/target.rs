//! The address of a webhook: a URL or a Service, with its CAs and our credentials.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_client::kubeconfig::Identity;
use serde_json::Value;

use super::CallError;

/// A webhook from the client's point of view. Equal targets share connections.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Target {
    pub address: Address,
    /// The CA certificates of its server certificate, in PEM; empty means the system's.
    pub ca_pem: Vec<u8>,
    /// The name in its certificate, if it differs from the host's.
    pub server_name: Option<String>,
    /// Whether any certificate is accepted. Only a configuration file may set this, never an API object.
    pub insecure: bool,
    /// The API server's credentials for it; `None` means no authentication.
    pub identity: Option<Identity>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    Url(String),
    Service { namespace: String, name: String, path: String, port: u16 },
}

const HTTPS: u16 = 443;
const HTTP: u16 = 80;

impl Target {
    /// Creates the target of a URL whose certificate these CAs sign.
    pub fn url(url: impl Into<String>, ca_pem: impl Into<Vec<u8>>) -> Self {
        Self {
            address: Address::Url(url.into()),
            ca_pem: ca_pem.into(),
            server_name: None,
            insecure: false,
            identity: None,
        }
    }

    /// Reads a `clientConfig` of the API: `{url | service: {namespace, name, path, port}, caBundle}`.
    pub fn from_client_config(config: &Value) -> Result<Self, CallError> {
        let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
        let bundle = STANDARD.decode(text(&config["caBundle"]));
        let ca_pem = bundle.map_err(|e| CallError::Target(format!("invalid caBundle: {e}")))?;
        let service = &config["service"];
        let url = text(&config["url"]);
        if service.is_object() {
            let port = match service["port"].as_u64() {
                None | Some(0) => HTTPS,
                Some(port) => u16::try_from(port)
                    .map_err(|_| CallError::Target(format!("invalid service port {port}")))?,
            };
            let address = Address::Service {
                namespace: text(&service["namespace"]),
                name: text(&service["name"]),
                path: text(&service["path"]),
                port,
            };
            return Ok(Self { address, ..Self::url("", ca_pem) });
        }
        if url.is_empty() {
            let why = "webhook configuration must have either service or URL";
            return Err(CallError::Target(why.into()));
        }
        Ok(Self::url(url, ca_pem))
    }

    /// Returns the host and port; for a Service, its DNS name in the cluster. `None` if the URL is invalid.
    pub fn host_and_port(&self) -> Option<(String, u16)> {
        self.place().ok().map(|place| (place.host, place.port))
    }

    /// Returns the parts of the target that a connection and a request need.
    pub(super) fn place(&self) -> Result<Place, CallError> {
        match &self.address {
            Address::Service { namespace, name, path, port } => {
                let host = format!("{name}.{namespace}.svc");
                let authority = format!("{host}:{port}");
                let path = if path.starts_with('/') { path.clone() } else { format!("/{path}") };
                let server_name = self.server_name.clone().unwrap_or_else(|| host.clone());
                let origin = format!("https://{authority}");
                Ok(Place { secure: true, origin, authority, host, port: *port, server_name, path })
            }
            Address::Url(url) => self.place_of_url(url),
        }
    }

    fn place_of_url(&self, url: &str) -> Result<Place, CallError> {
        let wrong = |why: &str| CallError::Target(format!("Unparsable URL: parse {url:?}: {why}"));
        let uri: http::Uri = url.parse().map_err(|e: http::uri::InvalidUri| wrong(&e.to_string()))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("unsupported protocol scheme")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("no Host in request URL"))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        let port = authority.port_u16().unwrap_or(if secure { HTTPS } else { HTTP });
        // A user name in a URL is neither sent nor shown.
        let shown = authority.as_str().rsplit('@').next().unwrap_or("").to_owned();
        Ok(Place {
            secure,
            origin: format!("{}://{shown}", if secure { "https" } else { "http" }),
            authority: shown,
            port,
            server_name: self.server_name.clone().unwrap_or_else(|| host.clone()),
            host,
            path: uri.path_and_query().map_or("/", |p| p.as_str()).to_owned(),
        })
    }
}

/// The parts of a target.
pub(super) struct Place {
    pub secure: bool,
    /// The scheme and authority, for errors.
    pub origin: String,
    pub authority: String,
    pub host: String,
    pub port: u16,
    pub server_name: String,
    /// The path with a leading slash, and the query if there is one.
    pub path: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reads_client_configs() {
        for (config, origin, path, name) in [
            (json!({"url": "https://a.example/x/y"}), "https://a.example", "/x/y", "a.example"),
            (json!({"url": "https://[::1]:8443"}), "https://[::1]:8443", "/", "::1"),
            (json!({"service": {"namespace": "n", "name": "s"}}), "https://s.n.svc:443", "/", "s.n.svc"),
            (
                json!({"service": {"namespace": "n", "name": "s", "path": "/p", "port": 8443}, "caBundle": "QQ=="}),
                "https://s.n.svc:8443",
                "/p",
                "s.n.svc",
            ),
        ] {
            let place = Target::from_client_config(&config).and_then(|t| t.place()).ok();
            let place = place.map(|p| (p.origin, p.path, p.server_name));
            assert_eq!(place, Some((origin.into(), path.into(), name.into())), "{config}");
        }
        for (config, expected) in [
            (json!({}), "webhook configuration must have either service or URL"),
            (json!({"url": "ftp://a"}), "Unparsable URL: parse \"ftp://a\": unsupported protocol scheme"),
            (json!({"url": "https://a", "caBundle": "?"}), "invalid caBundle: Invalid symbol 63, offset 0."),
        ] {
            let error = Target::from_client_config(&config).and_then(|t| t.place()).err();
            assert_eq!(error.map(|e| e.to_string()).as_deref(), Some(expected), "{config}");
        }
    }
}
