//! A registry with the test images, for the specs that always pull: Debian's docker-registry over a folder in
//! its own storage layout.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::archive::{self, Digests, Image};
use crate::sandbox::{NODE_IP, Sandbox};

const PORT: u16 = 5000;
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const LIMIT: Duration = Duration::from_secs(20);

/// Returns the URL at which both nodes reach it.
pub fn url() -> String {
    format!("http://{NODE_IP}:{PORT}")
}

/// Writes the registry's storage into the cache; the layers stay where they are.
pub fn store(images: &[Image], digests: &Digests, cache: &Path) -> Result<PathBuf> {
    let folder = cache.join("registry");
    let _ = fs::remove_dir_all(&folder);
    let root = folder.join("docker/registry/v2");
    for (layer, digest) in digests {
        let data = blob(&root, digest);
        fs::create_dir_all(data.parent().context("a path below the folder")?)?;
        symlink(layer, data).with_context(|| format!("cannot link to {}", layer.display()))?;
    }
    for image in images {
        add(&root, image, digests)?;
    }
    Ok(folder)
}

fn add(root: &Path, image: &Image, digests: &Digests) -> Result<()> {
    let (repository, tag) = repository(&image.name).with_context(|| format!("{} has no tag", image.name))?;
    let repository = root.join("repositories").join(repository);
    let config = archive::config(image, digests).to_string();
    let manifest = manifest(image, digests, &config)?.to_string();
    let blobs = [&config, &manifest].map(|text| (archive::digest_of(text.as_bytes()), text));
    for (digest, text) in &blobs {
        put(&blob(root, digest), text)?;
    }
    let [(config, _), (manifest, _)] = &blobs;
    let layers = image.layers.iter().filter_map(|layer| digests.get(layer));
    for digest in layers.chain([config]) {
        put(&repository.join("_layers").join(link(digest)), digest)?;
    }
    let (manifests, tag) = (repository.join("_manifests"), format!("tags/{tag}"));
    put(&manifests.join("revisions").join(link(manifest)), manifest)?;
    put(&manifests.join(&tag).join("current/link"), manifest)?;
    put(&manifests.join(&tag).join("index").join(link(manifest)), manifest)
}

fn manifest(image: &Image, digests: &Digests, config: &str) -> Result<Value> {
    let mut layers = Vec::new();
    for layer in &image.layers {
        let size = fs::metadata(layer).with_context(|| format!("cannot read {}", layer.display()))?.len();
        layers.push(json!({"mediaType": LAYER, "size": size, "digest": digests.get(layer)}));
    }
    Ok(json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {
            "mediaType": CONFIG,
            "size": config.len(),
            "digest": archive::digest_of(config.as_bytes()),
        },
        "layers": layers,
    }))
}

/// Returns repository and tag: `tests/agnhost` and `2.1` of `registry.example/tests/agnhost:2.1`.
fn repository(name: &str) -> Option<(&str, &str)> {
    name.split_once('/')?.1.rsplit_once(':')
}

fn blob(root: &Path, digest: &str) -> PathBuf {
    let hex = digest.trim_start_matches("sha256:");
    root.join("blobs/sha256").join(&hex[..hex.len().min(2)]).join(hex).join("data")
}

fn link(digest: &str) -> PathBuf {
    Path::new("sha256").join(digest.trim_start_matches("sha256:")).join("link")
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::create_dir_all(path.parent().context("a path below the folder")?)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Starts it in the server's sandbox, and waits until it answers.
pub fn start(sandbox: &Sandbox, storage: &Path) -> Result<Child> {
    let config = sandbox.path("registry.json");
    let text = json!({
        "version": "0.1",
        "log": {"level": "error"},
        "storage": {
            "filesystem": {"rootdirectory": storage},
            "maintenance": {"readonly": {"enabled": true}},
        },
        "http": {"addr": format!("{NODE_IP}:{PORT}")},
    });
    fs::write(&config, text.to_string())?;
    let mut command = sandbox.command("docker-registry");
    command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().context("nsenter(1) of util-linux")?;
    let begun = Instant::now();
    let asked = format!("busybox wget -q -O /dev/null {}/v2/", url());
    while !sandbox.try_sh(&asked).status.success() {
        if let Some(status) = child.try_wait()? {
            bail!("docker-registry ended with {status}: apt-get install docker-registry");
        }
        if begun.elapsed() > LIMIT {
            bail!("docker-registry does not answer within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(child)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_lie_where_the_registry_looks() {
        let cache = std::env::temp_dir().join(format!("knarr-xtask-registry-{}", std::process::id()));
        fs::create_dir_all(&cache).expect("folder");
        let layer = cache.join("base.tar");
        fs::write(&layer, "tar").expect("file");
        let image = Image {
            name: "registry.example/tests/box:1.2".to_owned(),
            layers: vec![layer],
            entrypoint: &[],
            cmd: &["sh"],
            user: "",
        };
        let images = [image];
        let digests = archive::digests(&images).expect("digests");
        let root = store(&images, &digests, &cache).expect("storage").join("docker/registry/v2");
        let read = |path: PathBuf| fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let repository = root.join("repositories/tests/box");
        let digest = read(repository.join("_manifests/tags/1.2/current/link"));
        assert_eq!(read(repository.join("_manifests/revisions").join(link(&digest))), digest);
        let manifest: Value = serde_json::from_str(&read(blob(&root, &digest))).expect("manifest");
        let config = manifest["config"]["digest"].as_str().expect("digest");
        assert_eq!(manifest["config"]["size"], read(blob(&root, config)).len());
        let layer = manifest["layers"][0]["digest"].as_str().expect("digest");
        assert_eq!(read(repository.join("_layers").join(link(layer))), layer);
        assert_eq!(read(blob(&root, layer)), "tar");
        fs::remove_dir_all(&cache).expect("folder");
    }
}
