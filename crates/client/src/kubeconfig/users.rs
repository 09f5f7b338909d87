//! The users of a kubeconfig, named after the servers that they are for. This is how webhooks' credentials are
//! configured.
//!
//! Source: `k8s.io/apiserver/pkg/util/webhook/authentication.go`.

use std::collections::BTreeMap;
use std::path::Path;

use super::{File, KubeconfigError, pem, read, token};

/// The credentials for a server. Certificate and key are PEM.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    pub client_certificate: Option<Vec<u8>>,
    pub client_key: Option<Vec<u8>>,
    pub token: Option<String>,
}

/// The credentials in one file.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users {
    by_name: BTreeMap<String, Identity>,
    /// The user of the current context.
    current: Option<String>,
}

/// Authentication methods that are not supported. A user with one of them is refused, rather than treated as anonymous.
const UNSUPPORTED: [&str; 8] =
    ["username", "password", "exec", "auth-provider", "as", "as-uid", "as-groups", "as-user-extra"];

impl std::fmt::Debug for Users {
    /// Shows only the names.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}

impl Users {
    /// Reads a kubeconfig file. Relative paths are resolved against its folder.
    pub fn load(path: &Path) -> Result<Self, KubeconfigError> {
        let text = read(path)?;
        let text = String::from_utf8(text).map_err(|e| KubeconfigError::Parse(e.to_string()))?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(".")))
    }

    fn parse(text: &str, folder: &Path) -> Result<Self, KubeconfigError> {
        let wrong = |e: &dyn std::fmt::Display| KubeconfigError::Parse(e.to_string());
        let raw: serde_json::Value = serde_saphyr::from_str(text).map_err(|e| wrong(&e))?;
        for user in raw["users"].as_array().into_iter().flatten() {
            if let Some(field) = UNSUPPORTED.iter().find(|field| !user["user"][**field].is_null()) {
                return Err(wrong(&format!("user {}: {field} is not supported", user["name"])));
            }
        }
        let file: File = serde_saphyr::from_str(text).map_err(|e| wrong(&e))?;
        let mut by_name = BTreeMap::new();
        for named in &file.users {
            let user = &named.user;
            let (certificate, key) = ("client-certificate-data", "client-key-data");
            let identity = Identity {
                client_certificate: pem(
                    certificate,
                    &user.client_certificate_data,
                    &user.client_certificate,
                    folder,
                )?,
                client_key: pem(key, &user.client_key_data, &user.client_key, folder)?,
                token: token(user, folder)?,
            };
            if identity.client_certificate.is_some() != identity.client_key.is_some() {
                return Err(wrong(&format!(
                    "user {:?}: client certificate and key belong together",
                    named.name
                )));
            }
            by_name.insert(named.name.clone(), identity);
        }
        let context = file.contexts.iter().find(|c| c.name == file.current_context);
        let current = context.map(|c| c.context.user.clone()).filter(|name| by_name.contains_key(name));
        Ok(Self { by_name, current })
    }

    /// Returns the credentials for this server: by `host:port`, then by `*.domain:port`, and on port 443 by the same
    /// without the port; then those of the user `*`, then those of the current context; `None` if nothing matches.
    pub fn of_host(&self, host: &str, port: u16) -> Option<&Identity> {
        let bracketed = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let own = self.matching(&format!("{bracketed}:{port}"));
        let short = || if port == 443 { self.matching(host) } else { None };
        let current = || self.current.as_ref().and_then(|name| self.by_name.get(name));
        own.or_else(short).or_else(|| self.by_name.get("*")).or_else(current)
    }

    fn matching(&self, target: &str) -> Option<&Identity> {
        let domains = target.match_indices('.').filter_map(|(at, _)| target.get(at..));
        let stars = || domains.clone().find_map(|domain| self.by_name.get(&format!("*{domain}")));
        self.by_name.get(target).or_else(stars)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(names: &[&str], current: &str) -> Users {
        let entries: String =
            names.iter().map(|n| format!("- {{name: '{n}', user: {{token: 'of {n}'}}}}\n")).collect();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: {current}\n\
             contexts: [{{name: c, context: {{cluster: x, user: mine}}}}]\nusers:\n{entries}"
        );
        Users::parse(&text, Path::new("/")).unwrap()
    }

    #[test]
    fn the_closest_name_wins() {
        let all = ["a.b.svc:443", "*.b.svc:443", "a.b.svc", "*.svc", "*", "mine", "[::1]:8443"];
        for (names, current, host, port, expected) in [
            (&all[..], "c", "a.b.svc", 443, Some("of a.b.svc:443")),
            (&all[..], "c", "z.b.svc", 443, Some("of *.b.svc:443")),
            (&all[1..], "c", "a.b.svc", 443, Some("of *.b.svc:443")),
            (&all[2..], "c", "a.b.svc", 443, Some("of a.b.svc")),
            (&all[3..], "c", "a.b.svc", 443, Some("of *.svc")),
            (&all[..], "c", "a.b.svc", 8443, Some("of *")),
            (&all[..], "c", "::1", 8443, Some("of [::1]:8443")),
            (&["mine"], "c", "a.b.svc", 443, Some("of mine")),
            (&["mine"], "other", "a.b.svc", 443, None),
            (&[], "c", "a.b.svc", 443, None),
        ] {
            let users = users(names, current);
            let found = users.of_host(host, port).and_then(|i| i.token.as_deref());
            assert_eq!(found, expected, "{names:?} {host}:{port}");
        }
    }

    #[test]
    fn what_is_not_followed_is_refused() {
        for (user, expected) in [
            ("{exec: {command: x}}", "kubeconfig does not parse: user \"a\": exec is not supported"),
            ("{username: x}", "kubeconfig does not parse: user \"a\": username is not supported"),
            (
                "{client-key-data: eA==}",
                "kubeconfig does not parse: user \"a\": client certificate and key belong together",
            ),
        ] {
            let text = format!("users: [{{name: a, user: {user}}}]");
            let error = Users::parse(&text, Path::new("/")).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }
}
