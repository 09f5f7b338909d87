//! Checks the keys of a store and their values, by reading them as the API server would.

use bytes::Bytes;
use knarr_apiserver::{StoredObjects, Trouble};

use super::finding::Finding;

/// Checks all keys and values. `encryption` is the encryption configuration, if there is one.
pub async fn check(kvs: &[(Bytes, Bytes)], encryption: Option<&[u8]>) -> Vec<Finding> {
    let keys = || kvs.iter().map(|(key, _)| &key[..]);
    let mut findings = Vec::new();
    let mut stored = match StoredObjects::new(encryption, keys()) {
        Ok(stored) => stored,
        Err(error) => {
            let problem = format!("the configuration cannot be used: {error}");
            findings.push(Finding::error("encryption", "configuration", problem));
            match StoredObjects::new(None, keys()) {
                Ok(stored) => stored,
                Err(_) => return findings,
            }
        }
    };
    let mut encrypted = 0;
    for (key, value) in kvs {
        let name = String::from_utf8_lossy(key);
        findings.extend(match stored.trouble(key, value).await {
            None => None,
            Some(Trouble::Encrypted) => {
                encrypted += 1;
                None
            }
            Some(Trouble::Damaged(why)) => Some(Finding::error("object", name, damaged(&why))),
            Some(Trouble::Undecodable(why)) => Some(Finding::error("object", name, unreadable(&why))),
            Some(Trouble::Undecryptable(why)) => Some(Finding::error("encryption", name, why)),
            Some(Trouble::Unknown(why)) => Some(Finding::warning("object", name, why)),
        });
    }
    if encrypted > 0 {
        let problem = "they were not looked into: name the server's --encryption-provider-config";
        findings.push(Finding::warning("encryption", format!("{encrypted} encrypted values"), problem));
    }
    findings
}

fn damaged(why: &str) -> String {
    format!("it was damaged and is set aside ({why}): delete it, or restore it from a backup")
}

fn unreadable(why: &str) -> String {
    format!("it cannot be decoded: {why}")
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity;
    use super::*;

    #[tokio::test]
    async fn troubles_become_findings() {
        let of = |key: &str, value: &[u8]| (Bytes::from(key.to_owned()), Bytes::copy_from_slice(value));
        let map =
            br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"namespace":"n","name":"a","uid":"u"}}"#;
        let kvs = [
            of("/registry/core/configmaps/n/a", map),
            of("/registry/core/configmaps/n/b", map),
            of("/registry/core/configmaps/n/c", &knarr_storage::damaged_value("torn")),
            of("/registry/core/secrets/n/a", b"k8s:enc:aesgcm:v1:k:x"),
            of("/registry/core/secrets/n/b", b"k8s:enc:aesgcm:v1:k:x"),
            of("/registry/nowhere.io/things/a", map),
        ];
        let found = check(&kvs, None).await;
        let shown: Vec<(Severity, &str, &str)> =
            found.iter().map(|f| (f.severity, f.area, f.name.as_str())).collect();
        let expected = [
            (Severity::Error, "object", "/registry/core/configmaps/n/b"),
            (Severity::Error, "object", "/registry/core/configmaps/n/c"),
            (Severity::Warning, "object", "/registry/nowhere.io/things/a"),
            (Severity::Warning, "encryption", "2 encrypted values"),
        ];
        assert_eq!(shown, expected);
        let found = check(&kvs[..1], Some(b"nonsense")).await;
        assert_eq!((found.len(), found[0].name.as_str()), (1, "configuration"));
    }
}
