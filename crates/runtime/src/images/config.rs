//! The image configuration: how an image is to be run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::digest::Digest;

/// The limit for variables, words of commands, labels, ports and volumes together.
const MAX_ENTRIES: usize = 4096;

/// The configuration blob as stored; its digest is the image's id.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConfigBlob {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub config: ImageConfig,
    #[serde(default)]
    pub rootfs: RootFs,
}

/// The layers of the image's root file system.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RootFs {
    #[serde(rename = "type", default)]
    pub kind: String,
    /// Digests of the uncompressed layers, bottom first.
    #[serde(default, deserialize_with = "or_default")]
    pub diff_ids: Vec<Digest>,
}

/// The part that a container is started from. Docker writes null for unset fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    /// `uid`, `name`, `uid:gid` or `name:group`; empty means root.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub user: String,
    /// Keys are `port/protocol`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub exposed_ports: BTreeMap<String, Empty>,
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub volumes: BTreeMap<String, Empty>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub working_dir: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// `SIGTERM`, `15`, or empty for the default.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_default")]
    pub stop_signal: String,
}

/// The `{}` that ports and volumes map to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}

/// The user of an image as the CRI reports it: either a number or a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageUser {
    Uid(i64),
    Name(String),
}

impl ImageConfig {
    /// Returns the user; `None` if the image sets none (it runs as root). A group part is not reported.
    pub fn image_user(&self) -> Option<ImageUser> {
        let user = self.user.split(':').next().unwrap_or("");
        if user.is_empty() {
            return None;
        }
        Some(match user.parse::<i64>() {
            Ok(uid) => ImageUser::Uid(uid),
            Err(_) => ImageUser::Name(user.to_owned()),
        })
    }
}

impl ConfigBlob {
    /// Parses a configuration. Refuses too many entries, because millions of empty ones would need far more
    /// memory than text.
    pub fn parse(json: &[u8]) -> serde_json::Result<ConfigBlob> {
        use serde::de::Error;
        let blob: ConfigBlob = serde_json::from_slice(json)?;
        let config = &blob.config;
        let lists = config.env.len() + config.entrypoint.len() + config.cmd.len();
        let maps = config.labels.len() + config.exposed_ports.len() + config.volumes.len();
        if lists + maps > MAX_ENTRIES {
            return Err(serde_json::Error::custom(format!(
                "{} variables, words, labels, ports and volumes are more than the {MAX_ENTRIES} allowed",
                lists + maps
            )));
        }
        Ok(blob)
    }

    /// Returns the chain id of each layer, bottom first; the last one identifies the whole stack.
    pub fn chain_ids(&self) -> Vec<Digest> {
        let mut parent = None;
        self.rootfs
            .diff_ids
            .iter()
            .map(|diff_id| {
                let chain = Digest::chain(parent, *diff_id);
                parent = Some(chain);
                chain
            })
            .collect()
    }
}

fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_docker_writes() {
        let blob: ConfigBlob = serde_json::from_str(
            r#"{"architecture":"amd64","os":"linux","config":{"Hostname":"","User":"app:grp","Env":["A=b"],
            "Cmd":null,"Entrypoint":["/x","-y"],"Labels":null,"ExposedPorts":{"80/tcp":{}},"Volumes":{"/d":{}},
            "WorkingDir":"/w","StopSignal":"SIGQUIT","OnBuild":null},
            "rootfs":{"type":"layers","diff_ids":null},"history":[{"created_by":"x"}]}"#,
        )
        .unwrap();
        let config = &blob.config;
        assert_eq!(config.entrypoint, ["/x", "-y"]);
        assert!(config.cmd.is_empty() && config.labels.is_empty());
        assert!(config.exposed_ports.contains_key("80/tcp") && config.volumes.contains_key("/d"));
        assert_eq!((config.working_dir.as_str(), config.stop_signal.as_str()), ("/w", "SIGQUIT"));
        assert_eq!(config.image_user(), Some(ImageUser::Name("app".into())));
        assert!(blob.chain_ids().is_empty());
        let nothing: ConfigBlob = serde_json::from_str(r#"{"config":null}"#).unwrap();
        assert_eq!(nothing.config, ImageConfig::default());
    }

    #[test]
    fn configurations_have_so_many_entries() {
        let with = |count: usize| {
            let env = vec!["\"\""; count].join(",");
            ConfigBlob::parse(format!(r#"{{"config":{{"Env":[{env}],"Cmd":["/x"]}}}}"#).as_bytes())
        };
        assert_eq!(with(MAX_ENTRIES - 1).unwrap().config.env.len(), MAX_ENTRIES - 1);
        let error = with(MAX_ENTRIES).unwrap_err().to_string();
        assert_eq!(error, "4097 variables, words, labels, ports and volumes are more than the 4096 allowed");
    }

    #[test]
    fn users_are_numbers_or_names() {
        for (user, wanted) in [
            ("", None),
            (":5", None),
            ("1000", Some(ImageUser::Uid(1000))),
            ("1000:2000", Some(ImageUser::Uid(1000))),
            ("nobody", Some(ImageUser::Name("nobody".into()))),
        ] {
            assert_eq!(ImageConfig { user: user.into(), ..Default::default() }.image_user(), wanted);
        }
    }
}
