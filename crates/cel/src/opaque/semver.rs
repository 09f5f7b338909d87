//! Semantic versions.

use std::cmp::Ordering;

/// A version: three numbers, and the pre-release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Semver {
    pub numbers: [u64; 3],
    prerelease: Vec<Identifier>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl Semver {
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let mut parts = text.splitn(3, '.');
        let (Some(major), Some(minor), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (rest, build) = rest.split_once('+').map_or((rest, None), |(r, b)| (r, Some(b)));
        let (patch, prerelease) = rest.split_once('-').map_or((rest, None), |(p, pre)| (p, Some(pre)));
        let numbers = [number(major, "Major")?, number(minor, "Minor")?, number(patch, "Patch")?];
        let prerelease = match prerelease {
            None => Vec::new(),
            Some(pre) => pre.split('.').map(identifier).collect::<Result<_, _>>()?,
        };
        for part in build.into_iter().flat_map(|b| b.split('.')) {
            if part.is_empty() {
                return Err("Build meta data is empty".to_owned());
            }
            if !is_plain(part) {
                return Err(format!("Invalid character(s) found in build meta data {part:?}"));
            }
        }
        Ok(Self { numbers, prerelease })
    }

    /// Parses a version; accepts a leading `v`, missing numbers and leading zeros.
    pub fn parse_tolerant(text: &str) -> Result<Self, String> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
        for part in parts.iter_mut().filter(|p| p.len() > 1) {
            let trimmed = part.trim_start_matches('0');
            let zero = !trimmed.starts_with(|c: char| c.is_ascii_digit());
            *part = if zero { format!("0{trimmed}") } else { trimmed.to_owned() };
        }
        if parts.len() < 3 {
            if parts.last().is_some_and(|p| p.contains(['+', '-'])) {
                return Err("short version cannot contain PreRelease/Build meta data".to_owned());
            }
            parts.resize(3, "0".to_owned());
        }
        Self::parse(&parts.join("."))
    }

    pub fn compare(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| {
            match (self.prerelease.is_empty(), other.prerelease.is_empty()) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => {
                    let pairs = self.prerelease.iter().zip(&other.prerelease);
                    let first = pairs.map(|(a, b)| a.compare(b)).find(|order| order.is_ne());
                    first.unwrap_or_else(|| self.prerelease.len().cmp(&other.prerelease.len()))
                }
            }
        })
    }
}

impl Identifier {
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.cmp(b),
            (Self::Number(_), Self::Text(_)) => Ordering::Less,
            (Self::Text(_), Self::Number(_)) => Ordering::Greater,
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
        }
    }
}

fn number(text: &str, name: &str) -> Result<u64, String> {
    if !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("Invalid character(s) found in {} number {text:?}", name.to_lowercase()));
    }
    if text.len() > 1 && text.starts_with('0') {
        return Err(format!("{name} number must not contain leading zeroes {text:?}"));
    }
    text.parse().map_err(|_| {
        let why = if text.is_empty() { "invalid syntax" } else { "value out of range" };
        format!("strconv.ParseUint: parsing {text:?}: {why}")
    })
}

fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn identifier(text: &str) -> Result<Identifier, String> {
    if text.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    if text.bytes().all(|b| b.is_ascii_digit()) {
        if text.len() > 1 && text.starts_with('0') {
            return Err(format!("Numeric PreRelease version must not contain leading zeroes {text:?}"));
        }
        return text.parse().map(Identifier::Number).map_err(|_| format!("value out of range: {text:?}"));
    }
    if !is_plain(text) {
        return Err(format!("Invalid character(s) found in prerelease {text:?}"));
    }
    Ok(Identifier::Text(text.to_owned()))
}
