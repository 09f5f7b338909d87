//! Image references: `[host[:port]/]path[:tag][@digest]`, normalised as docker and containerd do.

use std::fmt;
use std::str::FromStr;

use super::digest::{Digest, DigestError};

/// The longest repository name, host included (the distribution specification's limit).
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;
const DEFAULT_HOST: &str = "docker.io";
const DEFAULT_TAG: &str = "latest";

/// A normalised reference: `nginx` becomes `docker.io/library/nginx:latest`. It has a tag, a digest or both.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    host: String,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text is not an image reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    #[error("invalid reference format: the reference is empty")]
    Empty,
    #[error("invalid reference format: repository name ({0}) must be lowercase")]
    Uppercase(String),
    #[error("invalid reference format: repository name must not be more than {MAX_NAME} characters")]
    TooLong,
    #[error("invalid reference format: {0:?} is not a registry host")]
    Host(String),
    #[error("invalid reference format: {0:?} is not a repository path")]
    Path(String),
    #[error("invalid reference format: {0:?} is not a tag")]
    Tag(String),
    #[error("invalid repository name ({0}), cannot specify 64-byte hexadecimal strings")]
    Identifier(String),
    #[error("invalid reference format")]
    Digest(#[from] DigestError),
}

impl Reference {
    /// Returns the registry host with its port, `docker.io` if the reference names none.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the path inside the registry, for example `library/nginx` for `nginx`.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// Returns host and path, for example `docker.io/library/nginx`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.host, self.path)
    }

    /// Returns what a registry is asked for: the digest if there is one, otherwise the tag.
    pub fn identifier(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => DEFAULT_TAG.to_owned(),
        }
    }

    /// Returns the same repository with the digest alone, by which an image can be found after its tag has
    /// moved.
    pub fn with_digest(&self, digest: Digest) -> Reference {
        Reference { host: self.host.clone(), path: self.path.clone(), tag: None, digest: Some(digest) }
    }

    pub fn with_tag(&self, tag: &str) -> Result<Reference, ReferenceError> {
        check_tag(tag)?;
        Ok(Reference {
            host: self.host.clone(),
            path: self.path.clone(),
            tag: Some(tag.to_owned()),
            digest: None,
        })
    }

    /// Returns the short form that users type: `nginx:1.25` for `docker.io/library/nginx:1.25`.
    pub fn familiar(&self) -> String {
        let full = self.to_string();
        match full.strip_prefix("docker.io/") {
            None => full,
            Some(rest) => match rest.strip_prefix("library/") {
                Some(short) if !short.contains('/') => short.to_owned(),
                _ => rest.to_owned(),
            },
        }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Reference, ReferenceError> {
        if text.is_empty() {
            return Err(ReferenceError::Empty);
        }
        if text.len() == 64 && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(ReferenceError::Identifier(text.to_owned()));
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest.parse::<Digest>()?)),
            None => (text, None),
        };
        let (name, tag) = split_tag(rest);
        let (host, path) = split_host(name);
        check_host(&host)?;
        check_path(name, &path)?;
        if let Some(tag) = tag {
            check_tag(tag)?;
        }
        if host.len() + 1 + path.len() > MAX_NAME {
            return Err(ReferenceError::TooLong);
        }
        let tag = match (tag, digest) {
            (None, None) => Some(DEFAULT_TAG.to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Reference { host, path, tag, digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Splits off the tag. A colon after the last slash starts the tag; an earlier one belongs to the host's port.
fn split_tag(text: &str) -> (&str, Option<&str>) {
    let last = text.rfind('/').map_or(0, |at| at + 1);
    match text[last..].find(':') {
        Some(colon) => (&text[..last + colon], Some(&text[last + colon + 1..])),
        None => (text, None),
    }
}

/// Splits off the host. The first component is a host if it cannot be a path: it has a dot, a colon or upper
/// case, or is `localhost`.
fn split_host(name: &str) -> (String, String) {
    let (host, path) = match name.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':', '['])
                || first == "localhost"
                || first.bytes().any(|c| c.is_ascii_uppercase()) =>
        {
            (if first == "index.docker.io" { DEFAULT_HOST } else { first }, rest)
        }
        _ => (DEFAULT_HOST, name),
    };
    if host == DEFAULT_HOST && !path.contains('/') {
        (host.to_owned(), format!("library/{path}"))
    } else {
        (host.to_owned(), path.to_owned())
    }
}

fn check_host(host: &str) -> Result<(), ReferenceError> {
    let bad = || ReferenceError::Host(host.chars().take(MAX_NAME).collect());
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or_else(bad)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| bad())?;
            if after.is_empty() {
                return Ok(());
            }
            ("v6", Some(after.strip_prefix(':').ok_or_else(bad)?))
        }
        None => match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, None),
        },
    };
    let is_port = |port: &str| port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok();
    if port.is_some_and(|port| !is_port(port)) {
        return Err(bad());
    }
    let label = |l: &str| {
        !l.is_empty()
            && l.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    if name.split('.').all(label) { Ok(()) } else { Err(bad()) }
}

fn check_path(name: &str, path: &str) -> Result<(), ReferenceError> {
    if path.split('/').all(is_path_component) {
        return Ok(());
    }
    let lower = path.to_ascii_lowercase();
    if lower.split('/').all(is_path_component) {
        return Err(ReferenceError::Uppercase(path.to_owned()));
    }
    Err(ReferenceError::Path(name.chars().take(MAX_NAME).collect()))
}

/// Returns whether the component consists of lower-case alphanumeric runs joined by one dot, one or two
/// underscores, or any number of dashes.
fn is_path_component(component: &str) -> bool {
    let mut rest = component.as_bytes();
    loop {
        let run = rest.iter().take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit()).count();
        if run == 0 {
            return false;
        }
        rest = &rest[run..];
        rest = match rest {
            [] => return true,
            [b'.', after @ ..] => after,
            [b'_', b'_', after @ ..] | [b'_', after @ ..] => after,
            [b'-', ..] => &rest[rest.iter().take_while(|c| **c == b'-').count()..],
            _ => return false,
        };
    }
}

fn check_tag(tag: &str) -> Result<(), ReferenceError> {
    let word = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    let good = (1..=MAX_TAG).contains(&tag.len())
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|c| word(c) || c == b'.' || c == b'-');
    if good { Ok(()) } else { Err(ReferenceError::Tag(tag.chars().take(MAX_TAG + 1).collect())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn normalises_as_docker_does() {
        let digest = format!("sha256:{HEX}");
        for (text, full, short) in [
            ("nginx", "docker.io/library/nginx:latest", "nginx:latest"),
            ("nginx:1.25", "docker.io/library/nginx:1.25", "nginx:1.25"),
            ("index.docker.io/nginx", "docker.io/library/nginx:latest", "nginx:latest"),
            ("docker.io/me/app:v1", "docker.io/me/app:v1", "me/app:v1"),
            ("me/app", "docker.io/me/app:latest", "me/app:latest"),
            ("localhost/app", "localhost/app:latest", "localhost/app:latest"),
            ("localhost:5000/app:v1", "localhost:5000/app:v1", "localhost:5000/app:v1"),
            ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1"),
            ("[::1]:5000/app:v1", "[::1]:5000/app:v1", "[::1]:5000/app:v1"),
            ("[2001:db8::1]/app", "[2001:db8::1]/app:latest", "[2001:db8::1]/app:latest"),
            ("registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9", "registry.k8s.io/pause:3.9"),
            ("a__b/c--d.e_f", "docker.io/a__b/c--d.e_f:latest", "a__b/c--d.e_f:latest"),
            ("Host/app", "Host/app:latest", "Host/app:latest"),
            (
                &format!("nginx@{digest}"),
                &format!("docker.io/library/nginx@{digest}"),
                &format!("nginx@{digest}"),
            ),
            (
                &format!("nginx:1@{digest}"),
                &format!("docker.io/library/nginx:1@{digest}"),
                &format!("nginx:1@{digest}"),
            ),
        ] {
            let reference: Reference = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(reference.to_string(), full);
            assert_eq!(reference.familiar(), short);
            assert_eq!(full.parse::<Reference>().unwrap(), reference, "full form parses to itself");
            assert_eq!(short.parse::<Reference>().unwrap(), reference, "short form parses to itself");
        }
    }

    #[test]
    fn errors_name_what_is_wrong() {
        for (text, wanted) in [
            ("", "is empty"),
            (HEX, "cannot specify 64-byte hexadecimal strings"),
            ("library/Nginx", "must be lowercase"),
            ("nginx:", "\"\" is not a tag"),
            ("nginx:-x", "is not a tag"),
            (&format!("nginx:{}", "a".repeat(129)), "is not a tag"),
            ("nginx@sha256:abc", "invalid reference format"),
            ("nginx@sha999:abc", "invalid reference format"),
            ("a///b", "is not a repository path"),
            ("-a/b", "is not a repository path"),
            ("a_-b", "is not a repository path"),
            ("exa mple.com/x", "is not a registry host"),
            ("x.com:port/y", "is not a registry host"),
            ("x.com:99999/y", "is not a registry host"),
            ("[::g]/y", "is not a registry host"),
            (&format!("x.com/{}", "a".repeat(256)), "more than 255"),
            ("http://x.com/y", "invalid reference format"),
            ("é/x", "invalid reference format"),
            ("/x", "invalid reference format"),
            ("../../etc/passwd", "invalid reference format"),
        ] {
            let error = text.parse::<Reference>().expect_err(text).to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
