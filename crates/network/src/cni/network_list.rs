//! A network configuration: which plugins connect a pod, in which order, with which settings.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use thiserror::Error;

/// The supported versions of the specification.
const VERSIONS: [&str; 8] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", ""];
/// The longest configuration that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Why there is no usable network configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("no network config found in {}", .0.display())]
    None(PathBuf),
    #[error("no valid networks found in {}: {last}", folder.display())]
    NoneValid { folder: PathBuf, last: String },
    #[error("{}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("error parsing configuration list: {0}")]
    Json(serde_json::Error),
    #[error("error parsing configuration list: {0}")]
    Invalid(String),
}

/// The plugins of a pod network.
#[derive(Debug)]
pub struct NetworkList {
    /// The original text.
    pub text: String,
    name: String,
    version: String,
    plugins: Vec<Plugin>,
}

/// One plugin with its settings.
#[derive(Debug)]
pub struct Plugin {
    kind: String,
    settings: Map<String, Value>,
}

impl NetworkList {
    /// Loads the first file of the folder, by name, that contains a valid list.
    pub fn load(folder: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read { path: folder.to_owned(), source };
        let mut files = Vec::new();
        match std::fs::read_dir(folder) {
            Ok(entries) => {
                for entry in entries {
                    files.push(entry.map_err(read)?.path());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(read(error)),
        }
        files
            .retain(|f| matches!(f.extension().and_then(|e| e.to_str()), Some("conflist" | "conf" | "json")));
        files.sort();
        let mut last = None;
        for file in &files {
            match read_file(file).and_then(|text| Self::parse(&text)) {
                Ok(list) => return Ok(list),
                Err(error) => last = Some(format!("{}: {error}", file.display())),
            }
        }
        Err(match last {
            Some(last) => ConfigError::NoneValid { folder: folder.to_owned(), last },
            None => ConfigError::None(folder.to_owned()),
        })
    }

    /// Parses a list, or the configuration of a single plugin.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let invalid = |why: &str| ConfigError::Invalid(why.to_owned());
        let mut whole: Map<String, Value> = serde_json::from_str(text).map_err(ConfigError::Json)?;
        let word = |whole: &Map<String, Value>, key: &str| {
            whole.get(key).and_then(Value::as_str).unwrap_or("").to_owned()
        };
        let (name, version) = (word(&whole, "name"), word(&whole, "cniVersion"));
        if name.is_empty() {
            return Err(invalid("no name"));
        }
        if !VERSIONS.contains(&version.as_str()) {
            return Err(ConfigError::Invalid(format!("unsupported cniVersion {version:?}")));
        }
        let settings = match whole.remove("plugins") {
            Some(Value::Array(all)) if !all.is_empty() => all,
            Some(_) => return Err(invalid("'plugins' is not a list with plugins in it")),
            None => vec![Value::Object(whole)],
        };
        let plugin = |settings: Value| match settings {
            Value::Object(settings) => match word(&settings, "type") {
                kind if kind.is_empty() => Err(invalid("a plugin without a type")),
                kind if kind.contains('/') => {
                    Err(ConfigError::Invalid(format!("invalid plugin type {kind:?}")))
                }
                kind => Ok(Plugin { kind, settings }),
            },
            _ => Err(invalid("a plugin that is not an object")),
        };
        let plugins = settings.into_iter().map(plugin).collect::<Result<_, _>>()?;
        // A configuration without a version is of the first version.
        let version = if version.is_empty() { "0.1.0".to_owned() } else { version };
        Ok(Self { text: text.to_owned(), name, version, plugins })
    }

    pub fn plugins(&self) -> &[Plugin] {
        &self.plugins
    }
}

impl Plugin {
    /// Returns the name of the plugin's program.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Returns the plugin's input: its settings, the network's name and version, the runtime values of its
    /// capabilities, and the result of the previous plugin.
    pub fn request(&self, list: &NetworkList, runtime: &Value, previous: Option<&Value>) -> Value {
        let mut request = self.settings.clone();
        request.insert("name".into(), list.name.clone().into());
        request.insert("cniVersion".into(), list.version.clone().into());
        let can = |name: &str| self.settings.get("capabilities").is_some_and(|c| c[name] == true);
        let values: Map<String, Value> = runtime
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(name, _)| can(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !values.is_empty() {
            request.insert("runtimeConfig".into(), values.into());
        }
        if let Some(previous) = previous {
            request.insert("prevResult".into(), previous.clone());
        }
        json!(request)
    }
}

fn read_file(path: &Path) -> Result<String, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(read)?.len() > MAX_FILE {
        return Err(ConfigError::Invalid(format!("longer than {MAX_FILE} bytes")));
    }
    std::fs::read_to_string(path).map_err(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "bridge": "cni0"},
        {"type": "portmap", "capabilities": {"portMappings": true, "bandwidth": true}}]}"#;

    #[test]
    fn plugins_are_told_what_they_may_know() {
        let list = NetworkList::parse(LIST).unwrap();
        let runtime = json!({"portMappings": [{"hostPort": 80}], "ipRanges": []});
        let requests: Vec<Value> =
            list.plugins().iter().map(|p| p.request(&list, &runtime, Some(&json!({"ips": []})))).collect();
        assert_eq!(
            requests[0],
            json!({"type": "bridge", "bridge": "cni0", "name": "pods", "cniVersion": "1.0.0",
                "prevResult": {"ips": []}})
        );
        assert_eq!(requests[1]["runtimeConfig"], json!({"portMappings": [{"hostPort": 80}]}));
        assert_eq!(list.plugins()[1].kind(), "portmap");
    }

    #[test]
    fn a_plugin_alone_is_a_list() {
        let list = NetworkList::parse(r#"{"name": "pods", "type": "ptp", "ipam": {"type": "x"}}"#).unwrap();
        let request = list.plugins()[0].request(&list, &json!({}), None);
        assert_eq!(
            request,
            json!({"name": "pods", "type": "ptp", "ipam": {"type": "x"}, "cniVersion": "0.1.0"})
        );
    }

    #[test]
    fn what_cannot_be_used_says_why() {
        for (text, why) in [
            ("{", "EOF"),
            (r#"{"type": "x"}"#, "no name"),
            (r#"{"name": "a", "plugins": []}"#, "plugins"),
            (r#"{"name": "a", "plugins": [3]}"#, "not an object"),
            (r#"{"name": "a"}"#, "without a type"),
            (r#"{"name": "a", "type": "../sh"}"#, "invalid plugin type"),
            (r#"{"name": "a", "type": "x", "cniVersion": "9.0.0"}"#, "unsupported cniVersion \"9.0.0\""),
        ] {
            let error = NetworkList::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_valid_file_counts() {
        let folder = std::env::temp_dir().join(format!("knarr-cni-list-{}", std::process::id()));
        let loaded = || NetworkList::load(&folder);
        assert!(loaded().unwrap_err().to_string().starts_with("no network config found in "));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("05-broken.conf"), "{").unwrap();
        std::fs::write(folder.join("99-readme.txt"), LIST).unwrap();
        assert!(loaded().unwrap_err().to_string().contains("05-broken.conf: error parsing"));
        std::fs::write(folder.join("10-pods.conflist"), LIST).unwrap();
        std::fs::write(folder.join("20-other.conflist"), LIST.replace("pods", "other")).unwrap();
        assert_eq!(loaded().unwrap().name, "pods");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
