//! Stored objects that cannot be decoded: recorded by key, logged and counted.

use std::collections::BTreeSet;

use super::Objects;

/// The stored objects of one resource.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) objects: Objects,
    /// The keys of the objects that could not be decoded.
    pub(super) damaged: BTreeSet<Box<str>>,
}

/// Returns why a stored object cannot be decoded; if the store itself could not read it, the store's reason.
pub fn reason(stored: &[u8], error: &serde_json::Error) -> String {
    match knarr_storage::damage(stored) {
        Some(reason) => format!("the store could not read it back: {reason}"),
        None => error.to_string(),
    }
}

/// Logs a damaged object.
pub(super) fn report(resource: &str, key: &str, stored: &[u8], error: &serde_json::Error) {
    let (namespace, name) = split(key);
    tracing::error!(
        resource,
        namespace,
        name,
        reason = reason(stored, error),
        "a stored object is damaged and set aside; it can be deleted with \
         ignoreStoreReadErrorWithClusterBreakingPotential"
    );
}

/// Splits a cache key into namespace and name; the namespace of a cluster-scoped object is empty.
fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// Returns the keys of a namespace, or all keys.
pub(super) fn within<'a>(
    damaged: &'a BTreeSet<Box<str>>,
    namespace: Option<&'a str>,
) -> impl Iterator<Item = &'a str> {
    let namespace = namespace.filter(|namespace| !namespace.is_empty());
    let selected = move |key: &&str| namespace.is_none_or(|namespace| split(key).0 == namespace);
    damaged.iter().map(|key| &**key).filter(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_keys_are_found_by_namespace() {
        let damaged: BTreeSet<Box<str>> = ["a/x", "a/y", "ab/x", "node"].map(Into::into).into();
        for (namespace, expected) in [
            (None, vec!["a/x", "a/y", "ab/x", "node"]),
            (Some(""), vec!["a/x", "a/y", "ab/x", "node"]),
            (Some("a"), vec!["a/x", "a/y"]),
            (Some("b"), vec![]),
        ] {
            assert_eq!(within(&damaged, namespace).collect::<Vec<_>>(), expected, "{namespace:?}");
        }
    }

    #[test]
    fn the_store_s_own_reason_comes_first() {
        let error = serde_json::from_slice::<u8>(b"x").unwrap_err();
        let stored = knarr_storage::damaged_value("a row does not match its checksum");
        assert_eq!(
            reason(&stored, &error),
            "the store could not read it back: a row does not match its checksum"
        );
        assert_eq!(reason(b"x", &error), "expected value at line 1 column 1");
    }
}
