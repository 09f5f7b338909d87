//! Reads and writes kubeconfig files.
//!
//! Source: `k8s.io/client-go/tools/clientcmd/api/v1`. Exec plugins and auth providers are not supported.

mod users;

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

pub use users::{Identity, Users};

/// Why a kubeconfig cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{} holds no token", path.display())]
    NoToken { path: PathBuf },
    #[error("client certificate and key belong together, and one of them is missing")]
    HalfAPair,
    #[error("kubeconfig does not parse: {0}")]
    Parse(String),
    #[error("kubeconfig has no {0}")]
    Missing(String),
    #[error("{field} is not base64")]
    Base64 {
        field: &'static str,
        #[source]
        source: base64::DecodeError,
    },
}

/// The data needed to connect, from one context of a kubeconfig. Certificates and keys are PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// `https://host:port`.
    pub server: String,
    pub certificate_authority: Option<Vec<u8>>,
    pub insecure_skip_tls_verify: bool,
    pub tls_server_name: Option<String>,
    pub client_certificate: Option<Vec<u8>>,
    pub client_key: Option<Vec<u8>>,
    pub token: Option<String>,
    /// The context's namespace.
    pub namespace: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct File {
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    clusters: Vec<NamedCluster>,
    #[serde(default)]
    users: Vec<NamedUser>,
    #[serde(default)]
    contexts: Vec<NamedContext>,
    #[serde(rename = "current-context", default)]
    current_context: String,
}

#[derive(Deserialize, Serialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Deserialize, Serialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority_data: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    insecure_skip_tls_verify: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<String>,
}

#[derive(Deserialize, Serialize)]
struct NamedUser {
    name: String,
    #[serde(default)]
    user: User,
}

#[derive(Deserialize, Serialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
}

#[derive(Deserialize, Serialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Deserialize, Serialize, Default)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
}

impl Access {
    /// Reads the current context of a kubeconfig file. Relative paths are resolved against its folder.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text = read(path)?;
        let text = String::from_utf8(text).map_err(|e| KubeconfigError::Parse(e.to_string()))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(".")))
    }

    /// The files that [`Access::load`] reads in addition to the kubeconfig.
    pub fn files(path: &Path) -> Result<Vec<PathBuf>, KubeconfigError> {
        let text = read(path)?;
        let text = String::from_utf8(text).map_err(|e| KubeconfigError::Parse(e.to_string()))?;
        let (cluster, user, _) = current(&text)?;
        let (authority, authority_data) = (cluster.certificate_authority, cluster.certificate_authority_data);
        let named = [
            (authority, authority_data),
            (user.client_certificate, user.client_certificate_data),
            (user.client_key, user.client_key_data),
            (user.token_file, user.token),
        ];
        let folder = path.parent().unwrap_or(Path::new("."));
        let read = named.into_iter().filter(|(_, data)| data.as_ref().is_none_or(String::is_empty));
        Ok(read.filter_map(|(file, _)| Some(folder.join(file?))).collect())
    }

    /// Returns the access to the same server without an identity.
    pub fn anonymous(&self) -> Self {
        Self { client_certificate: None, client_key: None, token: None, ..self.clone() }
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, KubeconfigError> {
        let (cluster, user, namespace) = current(text)?;
        let access = Self {
            server: cluster.server.trim_end_matches('/').to_owned(),
            certificate_authority: pem(
                "certificate-authority-data",
                &cluster.certificate_authority_data,
                &cluster.certificate_authority,
                folder,
            )?,
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            tls_server_name: cluster.tls_server_name.clone(),
            client_certificate: pem(
                "client-certificate-data",
                &user.client_certificate_data,
                &user.client_certificate,
                folder,
            )?,
            client_key: pem("client-key-data", &user.client_key_data, &user.client_key, folder)?,
            token: token(&user, folder)?,
            namespace,
        };
        match access.client_certificate.is_some() == access.client_key.is_some() {
            true => Ok(access),
            false => Err(KubeconfigError::HalfAPair),
        }
    }

    /// Returns a kubeconfig with this access as its only context and all data inline.
    pub fn to_yaml(&self, cluster_name: &str, user_name: &str) -> Result<String, KubeconfigError> {
        let inline = |pem: &Option<Vec<u8>>| pem.as_ref().map(|p| BASE64.encode(p));
        let file = File {
            api_version: "v1".into(),
            kind: "Config".into(),
            clusters: vec![NamedCluster {
                name: cluster_name.into(),
                cluster: Cluster {
                    server: self.server.clone(),
                    certificate_authority_data: inline(&self.certificate_authority),
                    insecure_skip_tls_verify: self.insecure_skip_tls_verify,
                    tls_server_name: self.tls_server_name.clone(),
                    ..Cluster::default()
                },
            }],
            users: vec![NamedUser {
                name: user_name.into(),
                user: User {
                    client_certificate_data: inline(&self.client_certificate),
                    client_key_data: inline(&self.client_key),
                    token: self.token.clone(),
                    ..User::default()
                },
            }],
            contexts: vec![NamedContext {
                name: cluster_name.into(),
                context: Context {
                    cluster: cluster_name.into(),
                    user: user_name.into(),
                    namespace: self.namespace.clone(),
                },
            }],
            current_context: cluster_name.into(),
        };
        // Each value is on the line of its key, as kubectl writes it: scripts extract the data with grep and awk.
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(&file, options)
            .map_err(|e| KubeconfigError::Parse(e.to_string()))
    }
}

/// The cluster, user and namespace of the current context.
fn current(text: &str) -> Result<(Cluster, User, Option<String>), KubeconfigError> {
    let file: File = serde_saphyr::from_str(text).map_err(|e| KubeconfigError::Parse(e.to_string()))?;
    let missing = |what: &str, name: &str| KubeconfigError::Missing(format!("{what} named \"{name}\""));
    let wanted = file.current_context;
    let context = file.contexts.into_iter().find(|c| c.name == wanted);
    let context = context.ok_or_else(|| missing("context", &wanted))?.context;
    let cluster = file.clusters.into_iter().find(|c| c.name == context.cluster);
    let cluster = cluster.ok_or_else(|| missing("cluster", &context.cluster))?.cluster;
    let user = match file.users.into_iter().find(|u| u.name == context.user) {
        Some(named) => named.user,
        // Source: clientcmd's validation. A file that was cut off lacks its last users.
        None if !context.user.is_empty() => return Err(missing("user", &context.user)),
        None => User::default(),
    };
    Ok((cluster, user, context.namespace))
}

fn read(path: &Path) -> Result<Vec<u8>, KubeconfigError> {
    std::fs::read(path).map_err(|source| KubeconfigError::Read { path: path.into(), source })
}

/// A user's token. A token in the kubeconfig takes precedence over a file.
fn token(user: &User, folder: &Path) -> Result<Option<String>, KubeconfigError> {
    let Some(path) = user.token.is_none().then_some(user.token_file.as_ref()).flatten() else {
        return Ok(user.token.clone().filter(|token| !token.is_empty()));
    };
    let path = folder.join(path);
    let token = String::from_utf8_lossy(&read(&path)?).trim().to_owned();
    // An empty file is being written, or its disk was full: it does not stand for an anonymous client.
    if token.is_empty() { Err(KubeconfigError::NoToken { path }) } else { Ok(Some(token)) }
}

/// PEM data; inline data takes precedence over a file, as in client-go.
fn pem(
    field: &'static str,
    data: &Option<String>,
    file: &Option<PathBuf>,
    folder: &Path,
) -> Result<Option<Vec<u8>>, KubeconfigError> {
    match (data, file) {
        (Some(data), _) if !data.is_empty() => {
            BASE64.decode(data.trim()).map(Some).map_err(|source| KubeconfigError::Base64 { field, source })
        }
        (_, Some(path)) => read(&folder.join(path)).map(Some),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let access = Access {
            server: "https://127.0.0.1:6443".into(),
            certificate_authority: Some(b"ca".to_vec()),
            client_certificate: Some(b"cert".to_vec()),
            client_key: Some(b"key".to_vec()),
            ..Access::default()
        };
        let yaml = access.to_yaml("knarr", "admin").unwrap();
        assert_eq!(Access::parse(&yaml, Path::new("/")).unwrap(), access);
    }

    #[test]
    fn data_is_on_the_line_of_its_key() {
        let certificate = vec![7; 2000];
        let access = Access { client_certificate: Some(certificate.clone()), ..Access::default() };
        let yaml = access.to_yaml("knarr", "admin").unwrap();
        let line = yaml.lines().find(|line| line.contains("client-certificate-data")).unwrap();
        assert_eq!(line.split_whitespace().nth(1).unwrap(), BASE64.encode(certificate));
    }

    #[test]
    fn knows_its_files() {
        let folder = std::env::temp_dir().join(format!("knarr-kubeconfig-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("kubeconfig");
        let text = "current-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n\
            clusters: [{name: c, cluster: {server: 'https://h', certificate-authority: ca.crt, \
            certificate-authority-data: eA==}}]\n\
            users: [{name: u, user: {client-certificate: /k/c.crt, client-key: k/c.key, tokenFile: t}}]\n";
        std::fs::write(&path, text).unwrap();
        let files = Access::files(&path).unwrap();
        assert_eq!(files, [PathBuf::from("/k/c.crt"), folder.join("k/c.key"), folder.join("t")]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn identities_are_whole() {
        let with = |users: &str| {
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
                 clusters: [{{name: c, cluster: {{server: 'https://h'}}}}]\nusers: {users}\n"
            );
            Access::parse(&text, Path::new("/")).map_err(|e| e.to_string())
        };
        let half = "client certificate and key belong together, and one of them is missing";
        assert_eq!(with("[{name: u, user: {client-certificate-data: eA==}}]").unwrap_err(), half);
        assert_eq!(with("[{name: u, user: {client-key-data: eA==}}]").unwrap_err(), half);
        assert_eq!(with("[]").unwrap_err(), "kubeconfig has no user named \"u\"");
        assert_eq!(with("[{name: u, user: {tokenFile: dev/null}}]").unwrap_err(), "/dev/null holds no token");
        assert_eq!(with("[{name: u, user: {token: ''}}]").unwrap().token, None);
    }

    #[test]
    fn says_what_is_missing() {
        let error =
            Access::parse("apiVersion: v1\nkind: Config\ncurrent-context: x\n", Path::new("/")).unwrap_err();
        assert_eq!(error.to_string(), "kubeconfig has no context named \"x\"");
    }
}
