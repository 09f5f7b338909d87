//! The environment variables of a container.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret};
use knarr_api::kind::Kind;

use super::downward::{Addresses, field_value, resource_value};
use super::expansion::{MAX_TOTAL, expand};
use crate::pod;
use crate::volumes::field_ref::Allocatable;
use crate::volumes::{ObjectSource, SourceError};

/// The ConfigMaps and Secrets to which the environment refers; `None` for those that do not exist.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
}

/// The other sources of values.
pub struct Context<'a> {
    pub pod: &'a Pod,
    pub services: &'a BTreeMap<String, String>,
    pub addresses: &'a Addresses,
    /// The node's allocatable resources.
    pub allocatable: &'a Allocatable,
}

impl Sources {
    /// Reads the objects to which the container's environment refers.
    pub async fn fetch(
        objects: &ObjectSource,
        namespace: &str,
        container: &Container,
    ) -> Result<Self, String> {
        let (maps, secrets) = references(container);
        let mut sources = Self::default();
        for name in maps {
            let found = optional(objects.config_map(namespace, &name).await)?;
            sources.config_maps.insert(name, found);
        }
        for name in secrets {
            let found = optional(objects.secret(namespace, &name).await)?;
            sources.secrets.insert(name, found);
        }
        Ok(sources)
    }

    fn config_map(&self, name: &str, optional: bool) -> Result<Option<&ConfigMap>, String> {
        found(self.config_maps.get(name).and_then(Option::as_deref), "configmap", name, optional)
    }

    fn secret(&self, name: &str, optional: bool) -> Result<Option<&Secret>, String> {
        found(self.secrets.get(name).and_then(Option::as_deref), "secret", name, optional)
    }
}

fn found<T>(object: Option<T>, kind: &str, name: &str, optional: bool) -> Result<Option<T>, String> {
    if object.is_none() && !optional {
        return Err(format!("{kind} {name:?} not found"));
    }
    Ok(object)
}

fn optional<T>(result: Result<T, SourceError>) -> Result<Option<T>, String> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns the names of ConfigMaps and of Secrets.
fn references(container: &Container) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut maps, mut secrets) = (BTreeSet::new(), BTreeSet::new());
    for from in container.env_from.iter().flatten() {
        maps.extend(from.config_map_ref.as_ref().map(|r| r.name.clone()));
        secrets.extend(from.secret_ref.as_ref().map(|r| r.name.clone()));
    }
    for source in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
        maps.extend(source.config_map_key_ref.as_ref().map(|r| r.name.clone()));
        secrets.extend(source.secret_key_ref.as_ref().map(|r| r.name.clone()));
    }
    (maps, secrets)
}

/// The variables by name, and the total of bytes that were inserted.
#[derive(Default)]
struct Made {
    env: BTreeMap<String, String>,
    bytes: usize,
}

impl Made {
    /// Inserts a variable; values that are overwritten later count as well. The limit is what the kernel allows a
    /// program.
    fn insert(&mut self, name: String, value: &str) -> Result<(), String> {
        self.bytes += name.len() + value.len();
        if self.bytes > MAX_TOTAL {
            return Err(format!("the environment is larger than {MAX_TOTAL} bytes"));
        }
        self.env.insert(name, value.to_owned());
        Ok(())
    }
}

/// Returns the variables of a container by name. Error texts are upstream's, except for that of the limit.
pub fn environment(
    context: &Context<'_>,
    container: &Container,
    sources: &Sources,
) -> Result<BTreeMap<String, String>, String> {
    let mut made = Made::default();
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or("");
        if let Some(r) = &from.config_map_ref {
            let map = sources.config_map(&r.name, r.optional == Some(true))?;
            for (key, value) in map.and_then(|m| m.data.as_ref()).into_iter().flatten() {
                made.insert(format!("{prefix}{key}"), value)?;
            }
        }
        if let Some(r) = &from.secret_ref {
            let secret = sources.secret(&r.name, r.optional == Some(true))?;
            for (key, value) in secret.and_then(|s| s.data.as_ref()).into_iter().flatten() {
                made.insert(format!("{prefix}{key}"), &String::from_utf8_lossy(&value.0))?;
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (variable.value.as_deref().filter(|v| !v.is_empty()), &variable.value_from) {
            (Some(value), _) => {
                Some(expand(value, |name| made.env.get(name).or_else(|| context.services.get(name)))?)
            }
            (None, Some(source)) => value_from(context, container, sources, source)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            made.insert(variable.name.clone(), &value)?;
        }
    }
    for (name, value) in context.services {
        if !made.env.contains_key(name) {
            made.insert(name.clone(), value)?;
        }
    }
    Ok(made.env)
}

/// Returns the value of a variable; `None` if an optional source is missing.
fn value_from(
    context: &Context<'_>,
    container: &Container,
    sources: &Sources,
    source: &EnvVarSource,
) -> Result<Option<String>, String> {
    let namespace = context.pod.namespace();
    if let Some(field) = &source.field_ref {
        return field_value(context.pod, &field.field_path, context.addresses).map(Some);
    }
    if let Some(selector) = &source.resource_field_ref {
        return resource_value(context.pod, container, selector, context.allocatable).map(Some);
    }
    if let Some(r) = &source.config_map_key_ref {
        let optional = r.optional == Some(true);
        let Some(map) = sources.config_map(&r.name, optional)? else { return Ok(None) };
        return match map.data.as_ref().and_then(|data| data.get(&r.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(format!("couldn't find key {} in ConfigMap {namespace}/{}", r.key, r.name)),
        };
    }
    if let Some(r) = &source.secret_key_ref {
        let optional = r.optional == Some(true);
        let Some(secret) = sources.secret(&r.name, optional)? else { return Ok(None) };
        return match secret.data.as_ref().and_then(|data| data.get(&r.key)) {
            Some(value) => Ok(Some(String::from_utf8_lossy(&value.0).into_owned())),
            None if optional => Ok(None),
            None => Err(format!("couldn't find key {} in Secret {namespace}/{}", r.key, r.name)),
        };
    }
    if source.file_key_ref.is_some() {
        return Err("environment variables from files are not supported".to_owned());
    }
    Ok(Some(String::new()))
}

/// Returns whether the pod gets variables for the services of its namespace.
pub fn wants_links(pod: &Pod) -> bool {
    pod::spec(pod).enable_service_links != Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use k8s_openapi::api::core::v1::{
        ConfigMapEnvSource, ConfigMapKeySelector, EnvFromSource, EnvVar, ObjectFieldSelector,
        SecretKeySelector,
    };

    fn plain(name: &str, value: &str) -> EnvVar {
        EnvVar { name: name.into(), value: Some(value.into()), value_from: None }
    }

    fn from(name: &str, source: EnvVarSource) -> EnvVar {
        EnvVar { name: name.into(), value: None, value_from: Some(source) }
    }

    fn map_key(name: &str, key: &str, optional: bool) -> EnvVarSource {
        let key = ConfigMapKeySelector { name: name.into(), key: key.into(), optional: Some(optional) };
        EnvVarSource { config_map_key_ref: Some(key), ..EnvVarSource::default() }
    }

    fn secret_key(name: &str, key: &str) -> EnvVarSource {
        let key = SecretKeySelector { name: name.into(), key: key.into(), optional: None };
        EnvVarSource { secret_key_ref: Some(key), ..EnvVarSource::default() }
    }

    fn sources() -> Sources {
        let map = ConfigMap {
            data: Some(BTreeMap::from([("KEY".to_owned(), "from-map".to_owned())])),
            ..ConfigMap::default()
        };
        let secret = Secret {
            data: Some(BTreeMap::from([("pw".to_owned(), ByteString(b"hush".to_vec()))])),
            ..Secret::default()
        };
        Sources {
            config_maps: BTreeMap::from([("cfg".to_owned(), Some(Arc::new(map))), ("none".to_owned(), None)]),
            secrets: BTreeMap::from([("sec".to_owned(), Some(Arc::new(secret)))]),
        }
    }

    fn run(
        env: Vec<EnvVar>,
        env_from: Option<Vec<EnvFromSource>>,
    ) -> Result<BTreeMap<String, String>, String> {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".into());
        pod.metadata.namespace = Some("ns".into());
        let container = Container { env: Some(env), env_from, ..Container::default() };
        let services = BTreeMap::from([("SVC_HOST".to_owned(), "10.96.0.2".to_owned())]);
        let (addresses, allocatable) = (Addresses::default(), Allocatable::new());
        let context =
            Context { pod: &pod, services: &services, addresses: &addresses, allocatable: &allocatable };
        environment(&context, &container, &sources())
    }

    #[test]
    fn values_from_everywhere() {
        let field = ObjectFieldSelector { field_path: "metadata.name".into(), ..Default::default() };
        let env_from = EnvFromSource {
            prefix: Some("P_".into()),
            config_map_ref: Some(ConfigMapEnvSource { name: "cfg".into(), optional: None }),
            ..EnvFromSource::default()
        };
        let env = run(
            vec![
                plain("A", "1"),
                plain("B", "$(A)-$(SVC_HOST)-$(P_KEY)-$(LATER)"),
                plain("LATER", "x"),
                plain("EMPTY", ""),
                from("NAME", EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
                from("MAP", map_key("cfg", "KEY", false)),
                from("MISSING", map_key("none", "KEY", true)),
                from("PW", secret_key("sec", "pw")),
            ],
            Some(vec![env_from]),
        )
        .unwrap();
        for (name, value) in [
            ("A", "1"),
            ("B", "1-10.96.0.2-from-map-$(LATER)"),
            ("EMPTY", ""),
            ("NAME", "web"),
            ("MAP", "from-map"),
            ("PW", "hush"),
            ("P_KEY", "from-map"),
            ("SVC_HOST", "10.96.0.2"),
        ] {
            assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!env.contains_key("MISSING"));
    }

    #[test]
    fn an_environment_that_no_program_could_be_given_is_not_made() {
        // Each variable is twice as long as the one before.
        let doubled = |n: u32| plain(&format!("V{n}"), &format!("$(V{0})$(V{0})", n - 1));
        let env = [plain("V0", "0123456789")].into_iter().chain((1..64).map(doubled)).collect();
        assert_eq!(run(env, None).unwrap_err(), "a value with its references is longer than 131072 bytes");
        // One ConfigMap under many prefixes.
        let many = |count: usize| {
            let source = |n| EnvFromSource {
                prefix: Some(format!("{n}{}", "_".repeat(1000))),
                config_map_ref: Some(ConfigMapEnvSource { name: "cfg".into(), optional: None }),
                ..EnvFromSource::default()
            };
            run(Vec::new(), Some((0..count).map(source).collect())).map(|env| env.len())
        };
        assert_eq!(many(1000), Ok(1001));
        assert_eq!(many(3000).unwrap_err(), "the environment is larger than 2097152 bytes");
    }

    #[test]
    fn what_is_missing_is_named() {
        for (source, expected) in [
            (map_key("none", "k", false), "configmap \"none\" not found"),
            (map_key("cfg", "k", false), "couldn't find key k in ConfigMap ns/cfg"),
            (secret_key("no", "k"), "secret \"no\" not found"),
            (secret_key("sec", "k"), "couldn't find key k in Secret ns/sec"),
        ] {
            assert_eq!(run(vec![from("X", source)], None).unwrap_err(), expected);
        }
    }
}
