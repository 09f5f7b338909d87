//! Checks the content of a store as the API server sees it: which keys belong to it, and which values it can decode.

use std::collections::BTreeSet;

use bytes::Bytes;
use knarr_api::object::Object;
use knarr_api::resources;
use knarr_apimachinery::gvk::GroupVersionKind;
use knarr_apimachinery::schema::{self, validate};

use crate::allocators::service::PORTS;
use crate::cache::ROOT;
use crate::encryption::{EncryptionConfig, KMS};
use crate::storage_limits::MASTER_LEASES;

const DEFINITIONS: &str = "/registry/apiextensions.k8s.io/customresourcedefinitions/";
/// The prefix of the keys by which servers that share one etcd identify their cluster.
const MARKS: &str = "/cluster/";
/// The prefix of every encrypted value.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// The reason why a stored value cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// The store could not read the value.
    Damaged(String),
    /// The value is not a valid object of its resource.
    Undecodable(String),
    /// The value is encrypted, and no encryption configuration was given.
    Encrypted,
    /// The encryption configuration cannot decrypt the value.
    Undecryptable(String),
    /// The server never reads the key: its resource is not served, or its definition has been deleted.
    Unknown(String),
}

/// Checks stored values with the API server's own decoders and ciphers.
pub struct StoredObjects {
    encryption: Option<EncryptionConfig>,
    /// `group/plural` of the custom resources that are defined.
    custom: BTreeSet<String>,
    /// The error of the key service (KMS) once it failed. Later values are not sent to it.
    silent: Option<String>,
}

impl StoredObjects {
    /// `encryption` is the content of `--encryption-provider-config`; `keys` are all keys of the store.
    pub fn new<'a>(encryption: Option<&[u8]>, keys: impl Iterator<Item = &'a [u8]>) -> Result<Self, String> {
        Ok(Self {
            encryption: encryption.map(EncryptionConfig::parse).transpose()?,
            custom: keys.filter_map(defined).collect(),
            silent: None,
        })
    }

    /// Returns what is wrong with a key or its value; `None` if nothing is.
    pub async fn trouble(&mut self, key: &[u8], value: &Bytes) -> Option<Trouble> {
        if let Some(reason) = knarr_storage::damage(value) {
            return Some(Trouble::Damaged(reason.to_owned()));
        }
        let own = [PORTS, MASTER_LEASES, MARKS];
        if own.iter().any(|prefix| key.starts_with(prefix.as_bytes())) {
            return None;
        }
        let Some(key) = std::str::from_utf8(key).ok().and_then(Key::parse) else {
            return Some(Trouble::Unknown("it is no key of the API server".to_owned()));
        };
        match self.plain(key.whole.as_bytes(), value).await {
            Ok(plain) => self.decode(&key, &plain).err(),
            Err(trouble) => Some(trouble),
        }
    }

    async fn plain(&mut self, key: &[u8], value: &Bytes) -> Result<Bytes, Trouble> {
        let rule = self.encryption.as_ref().and_then(|config| config.rule(key));
        let Some((rule, _)) = rule else {
            return match (value.starts_with(ENCRYPTED), &self.encryption) {
                (false, _) => Ok(value.clone()),
                (true, None) => Err(Trouble::Encrypted),
                (true, Some(_)) => {
                    let reason = "it is encrypted, and the configuration has no rule for its resource";
                    Err(Trouble::Undecryptable(reason.to_owned()))
                }
            };
        };
        let Some(provider) = rule.providers.iter().find(|provider| provider.wrote(value)) else {
            let reason = "no provider of the configuration has written it: no matching prefix found";
            return Err(Trouble::Undecryptable(reason.to_owned()));
        };
        if let Some(reason) = self.silent.clone().filter(|_| provider.name == KMS) {
            return Err(Trouble::Undecryptable(reason));
        }
        let name = provider.name;
        match provider.decrypt(value, key).await {
            Ok(plain) => Ok(plain.into()),
            Err(error) => {
                let reason = format!("the provider {name} cannot read it: {error}");
                if name == KMS {
                    self.silent = Some(reason.clone());
                }
                Err(Trouble::Undecryptable(reason))
            }
        }
    }

    fn decode(&self, key: &Key, plain: &Bytes) -> Result<(), Trouble> {
        let wrong = |why: String| Err(Trouble::Undecodable(why));
        let is_custom = self.custom.contains(&format!("{}/{}", key.group, key.plural));
        let built_in = resources::find(key.group, key.plural);
        if !is_custom && built_in.is_none() {
            let why = format!("nothing serves the resource {} of the group {:?}", key.plural, key.group);
            return Err(Trouble::Unknown(why));
        }
        let object = match Object::from_stored(plain.clone(), 1, &[]) {
            Ok(object) => object,
            Err(error) => return wrong(error.to_string()),
        };
        let types = match validate::interpret(plain) {
            Ok(types) => types,
            Err(error) => return wrong(error.to_string()),
        };
        let gvk = GroupVersionKind::from_api_version(&types.api_version, &types.kind);
        let claimed = (object.namespace(), object.name());
        if claimed != (key.namespace, key.name) {
            return wrong(format!("it says that it is {:?} in namespace {:?}", claimed.1, claimed.0));
        }
        if object.uid().is_empty() {
            return wrong("it has no uid".to_owned());
        }
        if gvk.group != key.group {
            return wrong(format!("it says that it is a {} of {}", gvk.kind, types.api_version));
        }
        if built_in.is_none() {
            return Ok(());
        }
        let mut tables = resources::all().iter().chain(resources::on_request());
        let known = tables.any(|r| r.types.plural == key.plural && r.types.gvk() == gvk);
        let Some(schema) = schema::for_kind(&gvk).filter(|_| known) else {
            return wrong(format!("it says that it is a {} of {}", gvk.kind, types.api_version));
        };
        validate::decode(plain, schema).map_or_else(|error| wrong(error.to_string()), |_| Ok(()))
    }
}

/// The parts of a key below `/registry/`.
struct Key<'a> {
    whole: &'a str,
    /// Empty for the core group.
    group: &'a str,
    plural: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl<'a> Key<'a> {
    fn parse(whole: &'a str) -> Option<Self> {
        let parts: Vec<&str> = whole.strip_prefix(ROOT)?.split('/').collect();
        let (group, plural, namespace, name) = match parts[..] {
            [group, plural, name] => (group, plural, "", name),
            [group, plural, namespace, name] if !namespace.is_empty() => (group, plural, namespace, name),
            _ => return None,
        };
        let group = if group == "core" { "" } else { group };
        (!plural.is_empty() && !name.is_empty()).then_some(Self { whole, group, plural, namespace, name })
    }
}

/// Returns `group/plural` of the resource that a CustomResourceDefinition defines, from its key: its name is
/// `plural.group`.
fn defined(key: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(key).ok()?.strip_prefix(DEFINITIONS)?;
    name.split_once('.').map(|(plural, group)| format!("{group}/{plural}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
        - resources: [secrets]\n  providers:\n  - secretbox:\n      keys:\n      - name: key1\n        \
        secret: ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopo=\n";

    fn object(api_version: &str, kind: &str, namespace: &str, name: &str, more: &str) -> Bytes {
        let namespace =
            if namespace.is_empty() { String::new() } else { format!(r#""namespace":"{namespace}","#) };
        let meta = format!(r#"{{{namespace}"name":"{name}","uid":"u"}}"#);
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{meta}{more}}}"#).into()
    }

    #[tokio::test]
    async fn keys_and_values_are_seen_as_the_api_server_would() {
        let undecodable = |trouble: &Trouble| matches!(trouble, Trouble::Undecodable(_));
        let unknown = |trouble: &Trouble| matches!(trouble, Trouble::Unknown(_));
        type Is = fn(&Trouble) -> bool;
        let fine: Option<Is> = None;
        let map = |more| object("v1", "ConfigMap", "n", "a", more);
        let widget = object("x.io/v1", "Widget", "n", "a", "");
        let cases: Vec<(&str, Bytes, Option<Is>)> = vec![
            ("/registry/core/configmaps/n/a", map(""), fine),
            ("/registry/core/configmaps/n/a", map(r#","data":{"k":"v"}"#), fine),
            ("/registry/core/configmaps/n/a", map(r#","data":{"k":{}}"#), Some(undecodable)),
            ("/registry/core/configmaps/n/a", map(r#","data":"#), Some(undecodable)),
            ("/registry/core/configmaps/n/b", map(""), Some(undecodable)),
            ("/registry/core/configmaps/m/a", map(""), Some(undecodable)),
            ("/registry/core/secrets/n/a", map(""), Some(undecodable)),
            ("/registry/core/namespaces/n", object("v1", "Namespace", "", "n", ""), fine),
            ("/registry/x.io/widgets/n/a", widget.clone(), fine),
            ("/registry/x.io/widgets/n/b", widget.clone(), Some(undecodable)),
            ("/registry/y.io/widgets/n/a", widget, Some(unknown)),
            ("/registry/core/configmaps/n/a/b", map(""), Some(unknown)),
            ("/registry/core/configmaps/", map(""), Some(unknown)),
            ("/elsewhere", map(""), Some(unknown)),
            ("/masterleases/10.0.0.1", Bytes::new(), fine),
            ("/allocations/nodeports/30000", Bytes::new(), fine),
            ("/cluster/identity", Bytes::new(), fine),
        ];
        let definition = format!("{DEFINITIONS}widgets.x.io");
        let keys = [definition.as_bytes()];
        let mut stored = StoredObjects::new(None, keys.into_iter()).unwrap();
        for (key, value, expected) in cases {
            let found = stored.trouble(key.as_bytes(), &value).await;
            assert_eq!(found.is_some(), expected.is_some(), "{key} {value:?}: {found:?}");
            assert!(found.iter().all(|trouble| expected.is_some_and(|is| is(trouble))), "{key}: {found:?}");
        }
        let damaged = stored.trouble(b"/elsewhere", &knarr_storage::damaged_value("torn")).await;
        assert_eq!(damaged, Some(Trouble::Damaged("torn".to_owned())));
    }

    #[tokio::test]
    async fn the_configuration_of_encryption_has_to_fit() {
        let key = "/registry/core/secrets/n/a";
        let plain = object("v1", "Secret", "n", "a", "");
        let config = EncryptionConfig::parse(CONFIG.as_bytes()).unwrap();
        let (rule, _) = config.rule(key.as_bytes()).unwrap();
        let sealed = Bytes::from(rule.providers[0].encrypt(&plain, key.as_bytes()).await.unwrap());
        let nothing = || std::iter::empty::<&[u8]>();
        let mut with = StoredObjects::new(Some(CONFIG.as_bytes()), nothing()).unwrap();
        let mut without = StoredObjects::new(None, nothing()).unwrap();
        assert_eq!(with.trouble(key.as_bytes(), &sealed).await, None);
        assert_eq!(without.trouble(key.as_bytes(), &sealed).await, Some(Trouble::Encrypted));
        let mut torn = sealed.to_vec();
        *torn.last_mut().unwrap() ^= 1;
        for (key, value) in [(key, torn.into()), (key, plain), ("/registry/core/configmaps/n/a", sealed)] {
            let found = with.trouble(key.as_bytes(), &value).await;
            assert!(matches!(found, Some(Trouble::Undecryptable(_))), "{key}: {found:?}");
        }
        assert!(StoredObjects::new(Some(b"nonsense"), nothing()).is_err());
    }
}
