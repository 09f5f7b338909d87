//! Mirrors: servers that are asked for a registry's images before the registry itself.

use std::str::FromStr;

use http::Uri;

use super::super::reference::Reference;

/// A server with the images of one registry, or of all: `registry=http[s]://host[:port][/path]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// `host[:port]` as in references, `docker.io` for references without a host, or `*`.
    registry: String,
    /// The address, without a trailing slash.
    base: String,
}

/// Why a text does not describe a mirror.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    #[error("{0:?} is not registry=url")]
    Form(String),
    #[error("{0:?} is not an address like http://host:5000")]
    Address(String),
}

impl Mirror {
    /// Returns whether it mirrors the registry of this image.
    pub fn has(&self, reference: &Reference) -> bool {
        self.registry == "*" || self.registry == reference.host()
    }

    pub(super) fn base(&self) -> &str {
        &self.base
    }
}

impl FromStr for Mirror {
    type Err = MirrorError;

    fn from_str(text: &str) -> Result<Self, MirrorError> {
        let (registry, url) = text.split_once('=').ok_or_else(|| MirrorError::Form(text.to_owned()))?;
        if registry.is_empty() || registry.contains('/') {
            return Err(MirrorError::Form(text.to_owned()));
        }
        let bad = || MirrorError::Address(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let named = uri.host().is_some_and(|host| !host.is_empty());
        let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        if !named || !scheme || uri.query().is_some() || url.contains(['#', '@']) {
            return Err(bad());
        }
        Ok(Self { registry: registry.to_owned(), base: url.trim_end_matches('/').to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_is_a_registry_and_an_address() {
        for (text, base) in [
            ("docker.io=https://mirror.test", "https://mirror.test"),
            ("reg.test:5000=http://10.0.0.1:5000/", "http://10.0.0.1:5000"),
            ("*=http://cache.test/v1/hub", "http://cache.test/v1/hub"),
        ] {
            assert_eq!(text.parse::<Mirror>().map(|m| m.base), Ok(base.to_owned()), "{text}");
        }
        for text in [
            "docker.io",
            "=http://mirror.test",
            "docker.io/library=http://mirror.test",
            "docker.io=mirror.test:5000",
            "docker.io=ftp://mirror.test",
            "docker.io=http://",
            "docker.io=http://user:word@mirror.test",
            "docker.io=http://mirror.test?a=b",
        ] {
            assert!(text.parse::<Mirror>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_mirror_stands_in_for_its_registry() {
        let has = |registry: &str, image: &str| {
            let mirror: Mirror = format!("{registry}=http://mirror.test").parse().unwrap();
            mirror.has(&image.parse().unwrap())
        };
        assert!(
            has("docker.io", "nginx") && has("reg.test:5000", "reg.test:5000/a:1") && has("*", "x.test/a")
        );
        assert!(!has("docker.io", "x.test/a") && !has("reg.test", "reg.test:5000/a:1"));
    }
}
