//! The policy by which present images need credentials before a pod may use them.
//!
//! Source: KEP-2535, KubeletConfiguration's `imagePullCredentialsVerificationPolicy`.

use std::fmt;
use std::str::FromStr;

use knarr_runtime::images::Reference;

/// The policies, with the names of KubeletConfiguration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PolicyName {
    NeverVerify,
    #[default]
    NeverVerifyPreloadedImages,
    NeverVerifyAllowlistedImages,
    AlwaysVerify,
}

const NAMES: [(PolicyName, &str); 4] = [
    (PolicyName::NeverVerify, "NeverVerify"),
    (PolicyName::NeverVerifyPreloadedImages, "NeverVerifyPreloadedImages"),
    (PolicyName::NeverVerifyAllowlistedImages, "NeverVerifyAllowlistedImages"),
    (PolicyName::AlwaysVerify, "AlwaysVerify"),
];

/// Errors with the texts of upstream's kubelet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error(
        "invalid configuration: option {0:?} specified for imagePullCredentialsVerificationPolicy. Valid options are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
    )]
    Name(String),
    #[error(
        "invalid configuration: can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \"NeverVerifyAllowlistedImages\""
    )]
    UnusedAllowlist,
    #[error("invalid configuration: invalid image pattern in `preloadedImagesVerificationAllowlist`: {0}")]
    Pattern(String),
}

impl FromStr for PolicyName {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let found = NAMES.iter().find(|(_, name)| *name == text);
        found.map(|(policy, _)| *policy).ok_or_else(|| PolicyError::Name(text.to_owned()))
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(policy, _)| policy == self).map_or("", |(_, name)| name))
    }
}

/// A pattern without tag or digest: `registry.example/team/app` or `registry.example/team/*`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    Repository(String),
    /// The part before `*`; ends with a slash.
    Prefix(String),
}

impl Pattern {
    fn parse(text: &str) -> Result<Self, PolicyError> {
        let error = |what: &str| Err(PolicyError::Pattern(format!("{what}: {text}")));
        if text != text.trim() {
            return error("leading/trailing spaces are not allowed");
        }
        let (bare, wildcard) = match text.strip_suffix('*') {
            Some(prefix) if prefix.ends_with('/') => (prefix, true),
            _ => (text, false),
        };
        if bare.is_empty() {
            return error("the supplied pattern is too short");
        }
        if bare.contains('*') {
            return error("not a valid wildcard pattern, only patterns ending with '/*' are allowed");
        }
        match (wildcard, bare) {
            (true, "/") => Err(PolicyError::Pattern("at least registry hostname is required".to_owned())),
            (true, _) => Ok(Self::Prefix(bare.to_owned())),
            (false, _) => match bare.parse::<Reference>() {
                Ok(image) if image.repository() == bare => Ok(Self::Repository(bare.to_owned())),
                Ok(_) => error("neither tag nor digest is accepted in an image reference"),
                Err(source) => {
                    Err(PolicyError::Pattern(format!("failed to parse as an image name: {source}")))
                }
            },
        }
    }

    fn matches(&self, repository: &str) -> bool {
        match self {
            Self::Repository(name) => name == repository,
            Self::Prefix(prefix) => repository.starts_with(prefix),
        }
    }
}

/// Decides when a pod must present credentials for an image on the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerificationPolicy {
    name: PolicyName,
    allowlist: Vec<Pattern>,
}

impl VerificationPolicy {
    /// Creates the policy; an allowlist is valid with `NeverVerifyAllowlistedImages` only.
    pub fn new(name: PolicyName, allowlist: &[String]) -> Result<Self, PolicyError> {
        if !allowlist.is_empty() && name != PolicyName::NeverVerifyAllowlistedImages {
            return Err(PolicyError::UnusedAllowlist);
        }
        let allowlist = allowlist.iter().map(|text| Pattern::parse(text)).collect::<Result<_, _>>()?;
        Ok(Self { name, allowlist })
    }

    pub fn name(&self) -> PolicyName {
        self.name
    }

    pub fn allowlist(&self) -> Vec<String> {
        let text = |pattern: &Pattern| match pattern {
            Pattern::Repository(name) => name.clone(),
            Pattern::Prefix(prefix) => format!("{prefix}*"),
        };
        self.allowlist.iter().map(text).collect()
    }

    /// Returns whether credentials are verified. `repository` is `host/path`; `pulled`: this kubelet pulled the image
    /// under that name.
    pub fn verifies(&self, repository: &str, pulled: bool) -> bool {
        match self.name {
            PolicyName::NeverVerify => false,
            PolicyName::NeverVerifyPreloadedImages => pulled,
            PolicyName::NeverVerifyAllowlistedImages => {
                !self.allowlist.iter().any(|pattern| pattern.matches(repository))
            }
            PolicyName::AlwaysVerify => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_decide_by_name_and_origin() {
        let allowlist = ["r.io/team/*".to_owned(), "docker.io/library/busybox".to_owned()];
        for (name, allowlist, repository, pulled, verified) in [
            ("NeverVerify", &[][..], "r.io/a", true, false),
            ("NeverVerifyPreloadedImages", &[], "r.io/a", true, true),
            ("NeverVerifyPreloadedImages", &[], "r.io/a", false, false),
            ("NeverVerifyAllowlistedImages", &allowlist, "r.io/team/app", true, false),
            ("NeverVerifyAllowlistedImages", &allowlist, "r.io/team-b/app", false, true),
            ("NeverVerifyAllowlistedImages", &allowlist, "docker.io/library/busybox", true, false),
            ("NeverVerifyAllowlistedImages", &allowlist, "docker.io/library/busybox2", true, true),
            ("AlwaysVerify", &[], "r.io/a", false, true),
        ] {
            let policy = VerificationPolicy::new(name.parse().unwrap(), allowlist).unwrap();
            assert_eq!(policy.verifies(repository, pulled), verified, "{name} {repository} {pulled}");
            assert_eq!(policy.name().to_string(), name);
            assert_eq!(policy.allowlist(), allowlist);
        }
    }

    #[test]
    fn malformed_policies_are_refused() {
        assert!("Sometimes".parse::<PolicyName>().unwrap_err().to_string().contains("option \"Sometimes\""));
        let busybox = ["docker.io/library/busybox".to_owned()];
        let unused = VerificationPolicy::new(PolicyName::AlwaysVerify, &busybox);
        assert_eq!(unused, Err(PolicyError::UnusedAllowlist));
        for (pattern, wanted) in [
            (" r.io/a", "leading/trailing spaces are not allowed"),
            ("", "too short"),
            ("*", "only patterns ending with '/*'"),
            ("r.io/*/a", "only patterns ending with '/*'"),
            ("r.io/a*", "only patterns ending with '/*'"),
            ("/*", "at least registry hostname is required"),
            ("r.io/a:1", "neither tag nor digest"),
            ("busybox", "neither tag nor digest"),
            ("Not/A/Name", "failed to parse as an image name"),
        ] {
            let error =
                VerificationPolicy::new(PolicyName::NeverVerifyAllowlistedImages, &[pattern.to_owned()]);
            let error = error.unwrap_err().to_string();
            assert!(error.contains(wanted), "{pattern:?}: {error}");
        }
    }
}
