//! Decides which pods may use a pulled image, by its record alone.

use knarr_runtime::images::Credential;
use serde::Serialize;

use super::records::{ImagePullCredentials, ImagePullSecret, hex_sha256};

/// Above this number of Secrets, further ones are recorded only after a registry has accepted them. Source:
/// upstream's writeRecordWhileMatchingLimit.
const MAX_REMEMBERED: usize = 100;
/// The maximal number of Secrets in a record. A full record is replaced by a new one; pods whose Secrets are
/// dropped must pull again.
const MAX_SECRETS: usize = 1000;

/// What a pod needs to use a present image without pulling it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    Granted,
    /// One of these Secrets.
    Secrets(Vec<ImagePullSecret>),
    /// The pod must pull the image.
    Refused,
}

impl Access {
    pub(super) fn of(recorded: Option<&ImagePullCredentials>) -> Self {
        match recorded {
            Some(recorded) if recorded.node_pods_accessible => Self::Granted,
            Some(recorded) if !recorded.kubernetes_secrets.is_empty() => {
                Self::Secrets(recorded.kubernetes_secrets.clone())
            }
            _ => Self::Refused,
        }
    }
}

/// Returns the first of the pod's Secrets that gives access: one whose credential was accepted before, or one that
/// was accepted before and has changed since. The flag tells whether the Secret is to be recorded, because the
/// record lacks it in this form and has room.
pub fn matching<'a>(
    recorded: &[ImagePullSecret],
    own: &'a [ImagePullSecret],
) -> Option<(&'a ImagePullSecret, bool)> {
    let room = recorded.len() < MAX_REMEMBERED;
    for secret in own {
        for known in recorded {
            let same_hash =
                !known.credential_hash.is_empty() && known.credential_hash == secret.credential_hash;
            let same_secret =
                (&known.uid, &known.namespace, &known.name) == (&secret.uid, &secret.namespace, &secret.name);
            if same_hash {
                return Some((secret, room && !same_secret));
            }
            if same_secret && room {
                return Some((secret, true));
            }
        }
    }
    None
}

/// Returns the record after another pull, or after a Secret was found to match.
pub fn merge(recorded: Option<&ImagePullCredentials>, new: ImagePullCredentials) -> ImagePullCredentials {
    let Some(recorded) = recorded else { return new };
    if recorded.node_pods_accessible || new.node_pods_accessible {
        return ImagePullCredentials { node_pods_accessible: true, ..Default::default() };
    }
    let mut secrets = recorded.kubernetes_secrets.clone();
    for secret in new.kubernetes_secrets {
        let same = |known: &ImagePullSecret| {
            (&known.namespace, &known.name, &known.uid) == (&secret.namespace, &secret.name, &secret.uid)
        };
        match secrets.iter().position(same) {
            Some(at) => secrets[at] = secret,
            None if secrets.len() >= MAX_SECRETS => secrets = vec![secret],
            None => secrets.push(secret),
        }
    }
    secrets.sort();
    ImagePullCredentials { kubernetes_secrets: secrets, node_pods_accessible: false }
}

/// Returns the SHA-256, in hexadecimal, of the credential as docker's AuthConfig in Go's JSON. Source: upstream's
/// hashAuthConfig.
pub fn credential_hash(credential: &Credential) -> String {
    #[derive(Serialize)]
    struct AuthConfig<'a> {
        #[serde(skip_serializing_if = "str::is_empty")]
        username: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        password: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        identitytoken: &'a str,
        #[serde(skip_serializing_if = "str::is_empty")]
        registrytoken: &'a str,
    }
    let auth = AuthConfig {
        username: &credential.username,
        password: &credential.password,
        identitytoken: credential.identity_token.as_deref().unwrap_or_default(),
        registrytoken: credential.registry_token.as_deref().unwrap_or_default(),
    };
    // Serializing strings cannot fail, and an empty hash matches nothing.
    serde_json::to_vec(&auth).map(|json| hex_sha256(&json)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(namespace: &str, name: &str, hash: &str) -> ImagePullSecret {
        let uid = format!("{namespace}-{name}");
        ImagePullSecret { namespace: namespace.into(), name: name.into(), uid, credential_hash: hash.into() }
    }

    fn by(secrets: &[ImagePullSecret]) -> ImagePullCredentials {
        ImagePullCredentials { kubernetes_secrets: secrets.to_vec(), node_pods_accessible: false }
    }

    #[test]
    fn a_secret_matches_by_its_credential_or_by_its_identity() {
        let recorded = [secret("a", "s", "1")];
        let found = |own: &[ImagePullSecret]| matching(&recorded, own).map(|(s, add)| (s.clone(), add));
        assert_eq!(found(&[secret("a", "s", "1")]), Some((secret("a", "s", "1"), false)));
        assert_eq!(
            found(&[secret("b", "t", "2"), secret("b", "s", "1")]),
            Some((secret("b", "s", "1"), true))
        );
        assert_eq!(found(&[secret("a", "s", "2")]), Some((secret("a", "s", "2"), true)));
        assert_eq!(found(&[secret("b", "s", "2")]), None);
        let made_anew = ImagePullSecret { uid: "other".into(), ..secret("a", "s", "2") };
        assert_eq!(found(&[made_anew]), None);
        assert_eq!(found(&[]), None);
        assert_eq!(matching(&[secret("a", "s", "")], &[secret("b", "s", "")]), None, "no hash is no match");
        let full: Vec<_> = (0..MAX_REMEMBERED).map(|n| secret("a", &n.to_string(), "1")).collect();
        assert_eq!(matching(&full, &[secret("b", "s", "1")]), Some((&secret("b", "s", "1"), false)));
        assert_eq!(matching(&full, &[secret("a", "1", "2")]), None, "neither recorded nor granted");
    }

    #[test]
    fn records_only_grow_towards_more_access() {
        let everyone = ImagePullCredentials { node_pods_accessible: true, ..Default::default() };
        let one = by(&[secret("b", "s", "1")]);
        assert_eq!(merge(None, one.clone()), one);
        assert_eq!(merge(Some(&one), ImagePullCredentials::default()), one);
        assert_eq!(merge(Some(&one), everyone.clone()), everyone);
        assert_eq!(merge(Some(&everyone), one.clone()), everyone);
        let two = merge(Some(&one), by(&[secret("a", "s", "1")]));
        assert_eq!(two, by(&[secret("a", "s", "1"), secret("b", "s", "1")]));
        assert_eq!(merge(Some(&one), by(&[secret("b", "s", "2")])), by(&[secret("b", "s", "2")]));
        let full = by(&(0..MAX_SECRETS).map(|n| secret("a", &n.to_string(), "1")).collect::<Vec<_>>());
        assert_eq!(merge(Some(&full), by(&[secret("b", "s", "1")])), by(&[secret("b", "s", "1")]));
    }

    #[test]
    fn access_of_records() {
        assert_eq!(Access::of(None), Access::Refused);
        assert_eq!(Access::of(Some(&ImagePullCredentials::default())), Access::Refused);
        let everyone = ImagePullCredentials { node_pods_accessible: true, ..Default::default() };
        assert_eq!(Access::of(Some(&everyone)), Access::Granted);
        let one = secret("a", "s", "1");
        assert_eq!(Access::of(Some(&by(std::slice::from_ref(&one)))), Access::Secrets(vec![one]));
    }

    #[test]
    fn hashes_tell_credentials_apart() {
        let hash = credential_hash(&Credential::basic("ada", "smash"));
        assert_eq!(hash, hex_sha256(br#"{"username":"ada","password":"smash"}"#));
        assert_ne!(hash, credential_hash(&Credential::basic("ada", "smashed")));
        let token = |token: &str| Credential { identity_token: Some(token.into()), ..Credential::default() };
        assert_ne!(credential_hash(&token("a")), credential_hash(&token("b")));
    }
}
