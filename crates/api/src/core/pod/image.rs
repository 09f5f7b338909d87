//! The tag of an image reference, which decides the default pull policy.

/// Returns the tag, `latest` if there is neither tag nor digest; `None` for a digest alone or an invalid
/// reference.
pub fn tag(image: &str) -> Option<&str> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|d| !d.contains(':')) {
        return None;
    }
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match name[last..].rfind(':') {
        Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
        None => (name, None),
    };
    if !is_path(path) || path.len() > MAX_PATH || is_identifier(path) || tag.is_some_and(|t| !is_tag(t)) {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag),
        (None, Some(_)) => None,
        (None, None) => Some("latest"),
    }
}

/// The longest name in bytes.
const MAX_PATH: usize = 255;

/// Returns whether the path looks like a digest, which is not a valid name.
fn is_identifier(path: &str) -> bool {
    path.len() == 64 && path.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = tag.as_bytes();
    matches!(bytes.len(), 1..=128)
        && word(bytes[0])
        && bytes.iter().all(|b| word(*b) || matches!(b, b'.' | b'-'))
}

/// Returns whether this is a registry host, perhaps with a port and upper case, then lower-case path components.
fn is_path(path: &str) -> bool {
    let (host, rest) = match path.split_once('/') {
        Some((host, rest))
            if host.contains(['.', ':'])
                || host == "localhost"
                || host.bytes().any(|b| b.is_ascii_uppercase()) =>
        {
            (host, rest)
        }
        _ => ("", path),
    };
    let host_fine = host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]".contains(&b));
    let component = |c: &str| {
        let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        c.as_bytes().first().is_some_and(edge)
            && c.as_bytes().last().is_some_and(edge)
            && c.bytes().all(|b| edge(&b) || b"._-".contains(&b))
    };
    host_fine && !rest.is_empty() && rest.split('/').all(component)
}

/// Returns `Always` for the tag `latest`, `IfNotPresent` for everything else.
pub fn pull_policy(image: &str) -> &'static str {
    if tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags() {
        for (image, expected) in [
            ("nginx", Some("latest")),
            ("nginx:1.25", Some("1.25")),
            ("localhost:5000/a/b", Some("latest")),
            ("localhost:5000/a/b:latest", Some("latest")),
            ("a@sha256:0123", None),
            ("a:v1@sha256:0123", Some("v1")),
            ("", None),
            ("UPPER", None),
            ("Registry.Example/a", Some("latest")),
            ("a b", None),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
        assert_eq!(pull_policy("nginx"), "Always");
        assert_eq!(pull_policy("nginx:1"), "IfNotPresent");
    }
}
