//! The credentials in a pod's pull secrets, each with its Secret.

use k8s_openapi::api::core::v1::{Pod, Secret};
use knarr_api::kind::Kind;
use knarr_runtime::images::Reference;

use crate::pod;
use crate::pulled_images::{ImagePullCredentials, ImagePullSecret, credential_hash};
use crate::runtime::{Credential, Keyring};
use crate::volumes::ObjectSource;

/// The content of a pod's `imagePullSecrets`.
#[derive(Default)]
pub struct PullSecrets {
    /// The credentials of all Secrets.
    pub keyring: Keyring,
    /// The names of Secrets that could not be read.
    pub missing: Vec<String>,
    sources: Vec<(Keyring, ImagePullSecret)>,
}

impl PullSecrets {
    pub async fn of_pod(objects: &ObjectSource, pod: &Pod) -> Self {
        let mut found = Self::default();
        for reference in pod::spec(pod).image_pull_secrets.iter().flatten().filter(|s| !s.name.is_empty()) {
            let Ok(secret) = objects.secret(pod.namespace(), &reference.name).await else {
                found.missing.push(reference.name.clone());
                continue;
            };
            match read(&secret) {
                Ok(keyring) => found.add(&secret, keyring),
                Err(error) => {
                    tracing::warn!(pod = %pod::format(pod), secret = %reference.name, error, "cannot read pull secret");
                }
            }
        }
        found
    }

    fn add(&mut self, secret: &Secret, keyring: Keyring) {
        let source = ImagePullSecret {
            namespace: secret.namespace().to_owned(),
            name: secret.name().to_owned(),
            uid: secret.uid().to_owned(),
            credential_hash: String::new(),
        };
        self.keyring.extend(keyring.clone());
        self.sources.push((keyring, source));
    }

    /// Returns the Secrets with a credential for this image, in the order in which a pull tries them.
    pub fn for_image(&self, image: &Reference) -> Vec<ImagePullSecret> {
        self.keyring.lookup(image).iter().flat_map(|credential| self.holding(image, credential)).collect()
    }

    /// Returns the record of a pull for which this credential was accepted.
    pub fn used(&self, image: &Reference, credential: Option<&Credential>) -> ImagePullCredentials {
        let Some(credential) = credential else {
            return ImagePullCredentials { node_pods_accessible: true, ..Default::default() };
        };
        let first = self.holding(image, credential).next();
        ImagePullCredentials { kubernetes_secrets: first.into_iter().collect(), node_pods_accessible: false }
    }

    fn holding<'a>(
        &'a self,
        image: &'a Reference,
        credential: &Credential,
    ) -> impl Iterator<Item = ImagePullSecret> + use<'a> {
        let (credential, hash) = (credential.clone(), credential_hash(credential));
        let holds =
            self.sources.iter().filter(move |(keyring, _)| keyring.lookup(image).contains(&credential));
        holds.map(move |(_, source)| ImagePullSecret { credential_hash: hash.clone(), ..source.clone() })
    }
}

fn read(secret: &Secret) -> Result<Keyring, String> {
    let data = |key: &str| secret.data.as_ref().and_then(|d| d.get(key)).map(|bytes| bytes.0.as_slice());
    let mut keyring = Keyring::new();
    let read = match (data(".dockerconfigjson"), data(".dockercfg")) {
        (Some(json), _) => keyring.add_docker_config_json(json),
        (None, Some(json)) => keyring.add_dockercfg(json),
        (None, None) => Ok(()),
    };
    read.map(|()| keyring).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(name: &str, auths: &str) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.namespace = Some("ns".into());
        secret.metadata.name = Some(name.into());
        secret.metadata.uid = Some(format!("{name}-uid"));
        let json = format!(r#"{{"auths":{auths}}}"#).into_bytes();
        secret.data = Some([(".dockerconfigjson".to_owned(), ByteString(json))].into());
        secret
    }

    #[test]
    fn credentials_lead_back_to_their_secrets() {
        let mut secrets = PullSecrets::default();
        for secret in [
            secret("wide", r#"{"r.io":{"username":"u","password":"1"}}"#),
            secret("narrow", r#"{"r.io/team":{"username":"u","password":"2"}}"#),
            secret("other", r#"{"q.io":{"username":"u","password":"3"}}"#),
            secret("same", r#"{"r.io":{"username":"u","password":"1"}}"#),
        ] {
            let keyring = read(&secret).unwrap();
            secrets.add(&secret, keyring);
        }
        let image: Reference = "r.io/team/app:1".parse().unwrap();
        let names: Vec<String> = secrets.for_image(&image).into_iter().map(|secret| secret.name).collect();
        assert_eq!(names, ["narrow", "wide", "same"]);
        let used = secrets.used(&image, Some(&Credential::basic("u", "1")));
        let [by] = &used.kubernetes_secrets[..] else { panic!("{used:?}") };
        assert_eq!((by.namespace.as_str(), by.name.as_str(), by.uid.as_str()), ("ns", "wide", "wide-uid"));
        assert_eq!(by.credential_hash, credential_hash(&Credential::basic("u", "1")));
        assert!(!used.node_pods_accessible && secrets.used(&image, None).node_pods_accessible);
        let unknown = secrets.used(&image, Some(&Credential::basic("x", "x")));
        assert_eq!(unknown, ImagePullCredentials::default(), "no pod may use it without pulling");
    }
}
