//! Levels, versions, and the namespace labels that select them.

use std::fmt;

use knarr_apimachinery::field::{Error, ErrorList, Path};

/// The minor release of this server.
const CURRENT: u32 = 37;

/// The levels, from the most to the least permissive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

/// The minor release whose checks apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    Minor(u32),
    #[default]
    Latest,
}

impl Version {
    /// Parses `latest` or `v1.x`.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "latest" {
            return Some(Self::Latest);
        }
        let minor = text.strip_prefix("v1.")?;
        let plain = minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
        minor.parse().ok().filter(|_| plain).map(Self::Minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str("latest"),
            Self::Minor(minor) => write!(f, "v1.{minor}"),
        }
    }
}

impl Level {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted].into_iter().find(|l| l.as_str() == text)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LevelVersion {
    pub level: Level,
    pub version: Version,
}

impl LevelVersion {
    /// Returns the version of the checks for the metrics: empty for the privileged level, and the same for all future
    /// versions.
    pub fn evaluated_version(self) -> String {
        match self.version {
            Version::Minor(minor) if self.level != Level::Privileged && minor > CURRENT => {
                "future".to_owned()
            }
            version if self.level != Level::Privileged => version.to_string(),
            _ => Version::Latest.to_string(),
        }
    }
}

impl fmt::Display for LevelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.level.as_str(), self.version)
    }
}

/// The policy of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    pub enforce: LevelVersion,
    pub audit: LevelVersion,
    pub warn: LevelVersion,
}

impl Policy {
    pub fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|l| l.level == Level::Privileged)
    }
}

const PREFIX: &str = "pod-security.kubernetes.io/";

/// Returns the policy of a namespace with these labels, and the errors of the labels.
pub fn of_labels<'l>(label: impl Fn(&str) -> Option<&'l str>, defaults: Policy) -> (Policy, ErrorList) {
    let mut errors = ErrorList::new();
    let mut policy = defaults;
    let path = |key: &str| Path::new("metadata").child("labels").key(key);
    // An invalid enforce label selects the strictest level; invalid audit and warn labels select the fallback.
    let mut level = |name: &str, slot: &mut Level, otherwise: Level| -> Option<bool> {
        let key = format!("{PREFIX}{name}");
        let text = label(&key)?;
        let parsed = Level::parse(text);
        if parsed.is_none() {
            let why = "must be one of privileged, baseline, restricted";
            errors.push(Error::invalid(&path(&key), text, why));
        }
        *slot = parsed.unwrap_or(otherwise);
        Some(parsed.is_some())
    };
    let enforced = level("enforce", &mut policy.enforce.level, Level::Restricted);
    level("audit", &mut policy.audit.level, Level::Privileged);
    let warned = level("warn", &mut policy.warn.level, Level::Privileged);
    let mut version = |name: &str, slot: &mut Version| -> bool {
        let key = format!("{PREFIX}{name}-version");
        let Some(text) = label(&key) else { return false };
        let parsed = Version::parse(text);
        if parsed.is_none() {
            errors.push(Error::invalid(&path(&key), text, "must be \"latest\" or \"v1.x\""));
        }
        *slot = parsed.unwrap_or(Version::Latest);
        true
    };
    version("enforce", &mut policy.enforce.version);
    version("audit", &mut policy.audit.version);
    let warned_version = version("warn", &mut policy.warn.version);
    // The enforced level also warns, so that users see violations when they write a workload, not only in its pods'
    // events.
    if warned.is_none() && enforced == Some(true) && policy.enforce.level > policy.warn.level {
        policy.warn.level = policy.enforce.level;
        if !warned_version {
            policy.warn.version = policy.enforce.version;
        }
    }
    (policy, errors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        for (labels, expected, wrong) in [
            (&[][..], "privileged:latest privileged:latest privileged:latest", 0),
            (&[("enforce", "baseline")], "baseline:latest privileged:latest baseline:latest", 0),
            (
                &[("enforce", "restricted"), ("enforce-version", "v1.25"), ("warn", "baseline")],
                "restricted:v1.25 privileged:latest baseline:latest",
                0,
            ),
            (
                &[("enforce", "restricted"), ("enforce-version", "v1.25")],
                "restricted:v1.25 privileged:latest restricted:v1.25",
                0,
            ),
            (
                &[("enforce", "x"), ("audit", "y"), ("warn-version", "v1.07")],
                "restricted:latest privileged:latest privileged:latest",
                3,
            ),
        ] {
            let find = |key: &str| {
                labels.iter().find(|(k, _)| key.strip_prefix(PREFIX) == Some(*k)).map(|(_, v)| *v)
            };
            let (policy, errors) = of_labels(find, Policy::default());
            let shown = format!("{} {} {}", policy.enforce, policy.audit, policy.warn);
            assert_eq!(shown, expected, "{labels:?}");
            assert_eq!(errors.0.len(), wrong, "{errors}");
        }
        let (_, errors) =
            of_labels(|k| (k == "pod-security.kubernetes.io/enforce").then_some("x"), Policy::default());
        assert_eq!(
            errors.to_string(),
            "metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: \"x\": must be one of privileged, baseline, restricted"
        );
    }
}
