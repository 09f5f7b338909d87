//! Registry credentials from docker's configuration files, which pull secrets contain, matched to images by the
//! kubelet's rules (<https://kubernetes.io/docs/concepts/containers/images/#config-json>).

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde::Deserialize;

use super::reference::Reference;

/// The key that docker uses for its own registry.
const DEFAULT_KEY: &str = "index.docker.io";

/// A user name and password, or a token, for a registry.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Credential {
    pub username: String,
    pub password: String,
    /// A refresh token to exchange for access tokens; takes precedence over the password.
    pub identity_token: Option<String>,
    /// A token that is sent to the registry unchanged.
    pub registry_token: Option<String>,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({:?}, secret not shown)", self.username)
    }
}

impl Credential {
    pub fn basic(username: &str, password: &str) -> Credential {
        Credential { username: username.to_owned(), password: password.to_owned(), ..Default::default() }
    }
}

/// Why a docker configuration could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("malformed docker configuration")]
    Json(#[from] serde_json::Error),
    #[error("unable to decode the auth field of {0:?} as base64")]
    Base64(String),
    #[error("unable to parse the auth field of {0:?}, must be formatted as base64(username:password)")]
    Format(String),
}

/// Credentials by registry, host glob or path prefix.
#[derive(Debug, Clone, Default)]
pub struct Keyring {
    entries: BTreeMap<String, Vec<Credential>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    auth: Option<String>,
    #[serde(default, alias = "identitytoken")]
    identity_token: Option<String>,
    #[serde(default, alias = "registrytoken")]
    registry_token: Option<String>,
}

impl Keyring {
    pub fn new() -> Keyring {
        Keyring::default()
    }

    /// Adds one credential for `location`: `host[:port][/path]`, where the host may contain globs
    /// (`*.example.com`). A scheme and a leading `/v1/` or `/v2/` of the path are ignored.
    pub fn add(&mut self, location: &str, credential: Credential) {
        let credentials = self.entries.entry(key(location)).or_default();
        if !credentials.contains(&credential) {
            credentials.push(credential);
        }
    }

    /// Adds all entries of a `.dockerconfigjson`: `{"auths": {location: {…}}}`.
    pub fn add_docker_config_json(&mut self, json: &[u8]) -> Result<(), CredentialError> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            auths: BTreeMap<String, Entry>,
        }
        let file: File = serde_json::from_slice(json)?;
        self.add_entries(file.auths)
    }

    /// Adds all entries of a legacy `.dockercfg`: `{location: {…}}`.
    pub fn add_dockercfg(&mut self, json: &[u8]) -> Result<(), CredentialError> {
        self.add_entries(serde_json::from_slice(json)?)
    }

    fn add_entries(&mut self, entries: BTreeMap<String, Entry>) -> Result<(), CredentialError> {
        let mut parsed = Vec::new();
        for (location, entry) in entries {
            let mut credential = Credential {
                username: entry.username.unwrap_or_default(),
                password: entry.password.unwrap_or_default(),
                identity_token: entry.identity_token.filter(|t| !t.is_empty()),
                registry_token: entry.registry_token.filter(|t| !t.is_empty()),
            };
            if let Some(auth) = entry.auth.filter(|auth| !auth.is_empty()) {
                (credential.username, credential.password) = decode_auth(&location, &auth)?;
            }
            parsed.push((location, credential));
        }
        for (location, credential) in parsed {
            self.add(&location, credential);
        }
        Ok(())
    }

    pub fn extend(&mut self, other: Keyring) {
        for (key, credentials) in other.entries {
            let known = self.entries.entry(key).or_default();
            known.extend(credentials.into_iter().filter(|c| !known.contains(c)).collect::<Vec<_>>());
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the credentials to try for an image, the longest matching location first. For docker's own
    /// registry, `index.docker.io` is the fallback.
    pub fn lookup(&self, image: &Reference) -> Vec<Credential> {
        let target = image.repository();
        let found: Vec<Credential> = self
            .entries
            .iter()
            .rev()
            .filter(|(key, _)| matches(key, &target))
            .flat_map(|(_, credentials)| credentials.iter().cloned())
            .collect();
        if found.is_empty() && image.host() == "docker.io" {
            return self.entries.get(DEFAULT_KEY).cloned().unwrap_or_default();
        }
        found
    }
}

fn decode_auth(location: &str, auth: &str) -> Result<(String, String), CredentialError> {
    let auth = auth.trim();
    let decoded = if auth.ends_with('=') { STANDARD.decode(auth) } else { STANDARD_NO_PAD.decode(auth) };
    let text = decoded
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .ok_or_else(|| CredentialError::Base64(location.to_owned()))?;
    match text.split_once(':') {
        Some((username, password)) => Ok((username.to_owned(), password.trim_end_matches('\0').to_owned())),
        None => Err(CredentialError::Format(location.to_owned())),
    }
}

fn key(location: &str) -> String {
    let bare = location.strip_prefix("https://").or_else(|| location.strip_prefix("http://"));
    let bare = bare.unwrap_or(location);
    let (host, path) = match bare.find('/') {
        Some(slash) => bare.split_at(slash),
        None => (bare, ""),
    };
    let path = path.strip_prefix("/v1").filter(|p| p.starts_with('/')).unwrap_or(path);
    let path = path.strip_prefix("/v2").filter(|p| p.starts_with('/')).unwrap_or(path);
    if path.len() > 1 { format!("{host}{path}") } else { host.to_owned() }
}

/// Returns whether `glob` (`host[:port][/path]`) covers `target`: the ports are equal, the host labels match
/// one by one, and the path is a prefix.
fn matches(glob: &str, target: &str) -> bool {
    let split = |text: &str| -> (String, String, String) {
        let (authority, path) = match text.find('/') {
            Some(slash) => (&text[..slash], &text[slash..]),
            None => (text, ""),
        };
        let colon = authority.rfind(':').filter(|at| !authority[*at..].contains(']'));
        let (host, port) = match colon {
            Some(at) => (&authority[..at], &authority[at + 1..]),
            None => (authority, ""),
        };
        (host.to_owned(), port.to_owned(), path.to_owned())
    };
    let (glob_host, glob_port, glob_path) = split(glob);
    let (host, port, path) = split(target);
    let (glob_labels, labels): (Vec<_>, Vec<_>) = (glob_host.split('.').collect(), host.split('.').collect());
    glob_port == port
        && glob_labels.len() == labels.len()
        && path.starts_with(&glob_path)
        && glob_labels.iter().zip(&labels).all(|(glob, label)| glob_match(glob.as_bytes(), label.as_bytes()))
}

/// Matches `*`, `?` and `[…]` within one host label. A malformed glob matches nothing.
fn glob_match(glob: &[u8], text: &[u8]) -> bool {
    // Labels are short (DNS allows 63 bytes); the bound limits the cost of several stars.
    if glob.len() > 255 || text.len() > 255 {
        return false;
    }
    // reachable[i]: the glob read so far matches the first i bytes.
    let mut reachable = vec![false; text.len() + 1];
    reachable[0] = true;
    let mut rest = glob;
    while let [first, after @ ..] = rest {
        let mut next = vec![false; text.len() + 1];
        if *first == b'*' {
            let mut any = false;
            for (i, from) in reachable.iter().enumerate() {
                any |= from;
                next[i] = any;
            }
            rest = after;
        } else {
            let Some((accepts, after)) = one(rest) else { return false };
            for (i, byte) in text.iter().enumerate() {
                next[i + 1] = reachable[i] && accepts(*byte);
            }
            rest = after;
        }
        reachable = next;
    }
    reachable[text.len()]
}

type Accepts<'a> = Box<dyn Fn(u8) -> bool + 'a>;

/// Returns the matcher of the glob's first element, which is not a star, and the rest of the glob.
fn one(glob: &[u8]) -> Option<(Accepts<'_>, &[u8])> {
    match glob {
        [b'?', after @ ..] => Some((Box::new(|_| true), after)),
        [b'\\', literal, after @ ..] => Some((Box::new(move |b| b == *literal), after)),
        [b'[', after @ ..] => {
            let end = after.iter().position(|b| *b == b']').filter(|end| *end > 0)?;
            let (class, after) = (&after[..end], &after[end + 1..]);
            let (negated, class) = match class {
                [b'^', class @ ..] => (true, class),
                class => (false, class),
            };
            Some((Box::new(move |b| in_class(class, b) != negated), after))
        }
        [b'\\'] | [] => None,
        [literal, after @ ..] => Some((Box::new(move |b| b == *literal), after)),
    }
}

fn in_class(mut class: &[u8], byte: u8) -> bool {
    loop {
        match class {
            [] => return false,
            [low, b'-', high, after @ ..] => {
                if (*low..=*high).contains(&byte) {
                    return true;
                }
                class = after;
            }
            [one, after @ ..] => {
                if *one == byte {
                    return true;
                }
                class = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(keyring: &Keyring, image: &str) -> Vec<String> {
        keyring.lookup(&image.parse().unwrap()).into_iter().map(|c| c.username).collect()
    }

    #[test]
    fn locations_match_by_the_documented_rules() {
        for (location, image, wanted) in [
            ("registry.example.com", "registry.example.com/a", true),
            ("https://registry.example.com", "registry.example.com/a", true),
            ("https://registry.example.com/v1/", "registry.example.com/a", true),
            ("https://registry.example.com/v2/team", "registry.example.com/team/a", true),
            ("registry.example.com/team", "registry.example.com/other/a", false),
            ("registry.example.com/team", "registry.example.com/team-b/a", true),
            ("*.example.com", "registry.example.com/a", true),
            ("*.example.com", "example.com/a", false),
            ("*.example.com", "a.registry.example.com/a", false),
            ("reg*.ex?mple.com", "registry.example.com/a", true),
            ("[a-c]x.example.com", "bx.example.com/a", true),
            ("[^a-c]x.example.com", "bx.example.com/a", false),
            ("[x.example.com", "x.example.com/a", false),
            ("registry.example.com:5000", "registry.example.com:5000/a", true),
            ("registry.example.com:5000", "registry.example.com/a", false),
            ("registry.example.com", "registry.example.com:5000/a", false),
            ("127.0.0.1:5000", "127.0.0.1:5000/a/b:1", true),
            ("https://index.docker.io/v1/", "nginx", true),
            ("index.docker.io", "me/app", true),
            ("docker.io", "nginx", true),
            ("index.docker.io", "quay.io/a/b", false),
        ] {
            let mut keyring = Keyring::new();
            keyring.add(location, Credential::basic("u", "p"));
            assert_eq!(!users(&keyring, image).is_empty(), wanted, "{location} for {image}");
        }
    }

    #[test]
    fn files_are_read_and_the_longest_location_comes_first() {
        let mut keyring = Keyring::new();
        let auth = STANDARD.encode("alice:pa:ss");
        keyring
            .add_docker_config_json(
                format!(r#"{{"auths":{{"r.io":{{"auth":"{auth}","email":"x"}},"r.io/team":{{"username":"bob","password":"x"}}}}}}"#)
                    .as_bytes(),
            )
            .unwrap();
        keyring.add_dockercfg(br#"{"https://r.io":{"username":"carol","password":"y"}}"#).unwrap();
        assert_eq!(users(&keyring, "r.io/team/app"), ["bob", "alice", "carol"]);
        assert_eq!(users(&keyring, "r.io/app"), ["alice", "carol"]);
        assert_eq!(keyring.lookup(&"r.io/app".parse().unwrap())[0].password, "pa:ss");
        assert!(!format!("{keyring:?}").contains("pa:ss"), "secrets are not logged");
    }

    #[test]
    fn malformed_files_say_why_and_add_nothing() {
        let mut keyring = Keyring::new();
        for (json, wanted) in [
            ("{", "malformed docker configuration"),
            (r#"{"auths":{"r.io":{"auth":"!!"}}}"#, "base64"),
            (r#"{"auths":{"a.io":{"username":"x"},"r.io":{"auth":"YWJj"}}}"#, "base64(username:password)"),
        ] {
            let error = keyring.add_docker_config_json(json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
        assert!(keyring.is_empty());
    }
}
