//! Writes images as one docker archive: a manifest, a configuration per image, and each layer once.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub struct Image {
    pub name: String,
    /// Tar files, lowest first, all in the same folder.
    pub layers: Vec<PathBuf>,
    pub entrypoint: &'static [&'static str],
    pub cmd: &'static [&'static str],
    pub user: &'static str,
}

/// Layers with their digests, `sha256:…`.
pub type Digests = BTreeMap<PathBuf, String>;

pub fn digests(images: &[Image]) -> Result<Digests> {
    let mut digests = Digests::new();
    for layer in images.iter().flat_map(|image| &image.layers) {
        if !digests.contains_key(layer) {
            digests.insert(layer.clone(), digest(layer)?);
        }
    }
    Ok(digests)
}

/// Writes `images.tar` into the cache, unless it already holds exactly these images.
pub fn write(images: &[Image], digests: &Digests, cache: &Path) -> Result<PathBuf> {
    let output = cache.join("images.tar");
    let folder = cache.join("configs");
    let manifest = manifest(images)?;
    let configs: Vec<Value> = images.iter().map(|image| config(image, digests)).collect();
    let whole = json!({"manifest": manifest, "configs": configs}).to_string();
    let stamp = cache.join("images.json");
    if output.exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == whole) {
        return Ok(output);
    }
    println!("packing {} images", images.len());
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("manifest.json"), manifest.to_string())?;
    for (number, config) in configs.iter().enumerate() {
        fs::write(folder.join(config_name(number)), config.to_string())?;
    }
    let unfinished = cache.join("images.unfinished");
    let mut command = Command::new("tar");
    command.arg("-cf").arg(&unfinished).arg("-C").arg(cache.join("layers"));
    for layer in digests.keys() {
        command.arg(layer.file_name().unwrap_or_default());
    }
    command.arg("-C").arg(&folder).arg("manifest.json");
    command.args((0..images.len()).map(config_name));
    crate::run(command)?;
    fs::rename(&unfinished, &output)?;
    fs::write(&stamp, whole)?;
    Ok(output)
}

fn config_name(number: usize) -> String {
    format!("config-{number}.json")
}

fn digest(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash)?;
    Ok(name(&hash.finalize()))
}

pub fn digest_of(bytes: &[u8]) -> String {
    name(&Sha256::digest(bytes))
}

fn name(hash: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in hash {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn manifest(images: &[Image]) -> Result<Value> {
    let mut entries = Vec::new();
    for (number, image) in images.iter().enumerate() {
        let layers: Option<Vec<_>> =
            image.layers.iter().map(|l| l.file_name().and_then(|n| n.to_str())).collect();
        entries.push(json!({
            "Config": config_name(number),
            "RepoTags": [image.name],
            "Layers": layers.context("a layer without a name")?,
        }));
    }
    Ok(Value::Array(entries))
}

pub fn config(image: &Image, digests: &Digests) -> Value {
    let layers: Vec<&String> = image.layers.iter().filter_map(|layer| digests.get(layer)).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let mut config = json!({
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
        "WorkingDir": "/",
        // The label gives two tags of one tree different image ids.
        "Labels": {"name": image.name},
    });
    if !image.entrypoint.is_empty() {
        config["Entrypoint"] = json!(image.entrypoint);
    }
    if !image.cmd.is_empty() {
        config["Cmd"] = json!(image.cmd);
    }
    if !image.user.is_empty() {
        config["User"] = json!(image.user);
    }
    json!({
        "architecture": architecture,
        "os": "linux",
        "created": "2026-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": layers},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_share_layers_and_keep_their_own_configuration() {
        let image = |name: &str, user: &'static str| Image {
            name: name.to_owned(),
            layers: vec!["/cache/layers/base.tar".into()],
            entrypoint: &["/run"],
            cmd: &[],
            user,
        };
        let images = [image("a:1", ""), image("b:1", "1234")];
        let manifest = manifest(&images).expect("manifest");
        assert_eq!(manifest[1]["RepoTags"][0], "b:1");
        assert_eq!(manifest[0]["Layers"], manifest[1]["Layers"]);
        assert_ne!(manifest[0]["Config"], manifest[1]["Config"]);
        let digests = Digests::from([(PathBuf::from("/cache/layers/base.tar"), "sha256:00".to_owned())]);
        let config = config(&images[1], &digests);
        assert_eq!(config["config"]["User"], "1234");
        assert_eq!(config["config"].get("Cmd"), None);
        assert_eq!(config["rootfs"]["diff_ids"][0], "sha256:00");
    }
}
