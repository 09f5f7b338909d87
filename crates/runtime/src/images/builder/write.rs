//! Writes a built image: one uncompressed layer, its configuration, its manifest.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::super::catalog::Image;
use super::super::config::{ConfigBlob, RootFs};
use super::super::content::{COPY_BUFFER_BYTES, ContentStore, Ingest};
use super::super::digest::{Digest, Hasher};
use super::super::error::ImageError;
use super::super::oci::{Descriptor, Manifest, OCI_CONFIG, OCI_LAYER_TAR, OCI_MANIFEST, Platform};
use super::super::refs::Target;
use super::super::store::{ImageStore, Inner};
use super::closure::closure;
use super::{BuildError, ImageBuild, Node};

/// The value of all times in a built image.
const CREATED: &str = "1970-01-01T00:00:00Z";
/// Increased when the same inputs give a different image than before.
const FORMAT: &str = "knarr-image-1";

impl ImageStore {
    /// Builds an image and names it. If it was built before and none of its inputs has changed (by size, inode
    /// and modification time), the existing image is returned.
    pub async fn build(&self, build: ImageBuild) -> Result<Image, ImageError> {
        self.blocking("building an image", move |inner| build_image(inner, &build)).await
    }
}

fn build_image(inner: &Arc<Inner>, build: &ImageBuild) -> Result<Image, ImageError> {
    let wrap = |source| ImageError::Build { name: build.name.to_string(), source };
    let _lease = inner.collector.lease()?;
    let nodes = all_nodes(build).map_err(wrap)?;
    let inputs = fingerprint(build, &nodes).map_err(wrap)?.to_string();
    if let Some(image) = already_built(inner, build, &inputs)? {
        return Ok(image);
    }
    let descriptor = write_image(&inner.content, build, &nodes).map_err(wrap)?;
    let manifest = descriptor.digest;
    let content = inner.catalog.content(&manifest)?;
    inner.unpack(&content)?;
    inner.catalog.tag(&build.name, &Target { descriptor, manifest, inputs: Some(inputs) })?;
    let found = inner.catalog.find(&content.id.to_string())?;
    found.ok_or_else(|| ImageError::NoImage(build.name.to_string()))
}

fn already_built(inner: &Arc<Inner>, build: &ImageBuild, inputs: &str) -> Result<Option<Image>, ImageError> {
    let refs = inner.catalog.refs()?;
    let Some(target) = refs.get(&build.name).filter(|t| t.inputs.as_deref() == Some(inputs)) else {
        return Ok(None);
    };
    let Ok(content) = inner.catalog.content(&target.manifest) else { return Ok(None) };
    if !content.layers.iter().all(|layer| inner.content.has(&layer.digest)) {
        return Ok(None);
    }
    inner.catalog.find(&content.id.to_string())
}

/// Returns all entries of the layer, sorted by path so that folders come before their content.
fn all_nodes(build: &ImageBuild) -> Result<BTreeMap<String, Node>, BuildError> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for (path, host) in closure(&build.programs)?.into_iter().chain(build.programs.clone()) {
        nodes.insert(relative(&path)?, Node::Host { path: host, mode: 0o755 });
    }
    for (path, node) in &build.nodes {
        nodes.entry(relative(path)?).or_insert_with(|| node.clone());
    }
    let parents: Vec<String> = nodes
        .keys()
        .flat_map(|path| path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect::<Vec<_>>())
        .collect();
    for parent in parents {
        match nodes.entry(parent).or_insert(Node::Dir { mode: 0o755 }) {
            Node::Dir { .. } => {}
            // With a link in place of a folder, the image would depend on the order of unpacking.
            _ => return Err(BuildError::Path("a file or link that other files are below".to_owned())),
        }
    }
    Ok(nodes)
}

fn relative(path: &str) -> Result<String, BuildError> {
    let bad = || BuildError::Path(path.to_owned());
    let rest = path.strip_prefix('/').ok_or_else(bad)?;
    if rest.split('/').any(|part| matches!(part, "" | "." | "..") || part.contains('\0')) {
        return Err(bad());
    }
    Ok(rest.to_owned())
}

fn fingerprint(build: &ImageBuild, nodes: &BTreeMap<String, Node>) -> Result<Digest, BuildError> {
    let mut hasher = Hasher::new();
    hasher.update(format!("{FORMAT} {:?}", Platform::host()).as_bytes());
    hasher.update(&serde_json::to_vec(&build.config)?);
    for (path, node) in nodes {
        hasher.update(format!("{path:?} {node:?}").as_bytes());
        if let Node::Host { path, .. } = node {
            let m = fs::metadata(path).map_err(BuildError::io("stat", path))?;
            let state = (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
            hasher.update(format!("{state:?}").as_bytes());
        }
    }
    Ok(hasher.finish())
}

fn write_image(
    content: &ContentStore,
    build: &ImageBuild,
    nodes: &BTreeMap<String, Node>,
) -> Result<Descriptor, BuildError> {
    let ingest = write_layer(content.ingest()?, nodes)?;
    let (layer, layer_size) = ingest.commit(None, None)?;
    let platform = Platform::host();
    let config = ConfigBlob {
        created: Some(CREATED.to_owned()),
        architecture: platform.architecture,
        os: platform.os,
        variant: platform.variant,
        config: build.config.clone(),
        rootfs: RootFs { kind: "layers".to_owned(), diff_ids: vec![layer] },
    };
    let json = serde_json::to_vec(&config)?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(OCI_MANIFEST.to_owned()),
        config: Descriptor::new(OCI_CONFIG, content.write(&json)?, json.len() as u64),
        layers: vec![Descriptor::new(OCI_LAYER_TAR, layer, layer_size)],
    };
    let json = serde_json::to_vec(&manifest)?;
    Ok(Descriptor::new(OCI_MANIFEST, content.write(&json)?, json.len() as u64))
}

fn write_layer(ingest: Ingest, nodes: &BTreeMap<String, Node>) -> Result<Ingest, BuildError> {
    let mut tar = tar::Builder::new(BufWriter::with_capacity(COPY_BUFFER_BYTES, ingest));
    for (path, node) in nodes {
        let mut header = tar::Header::new_gnu();
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        match node {
            Node::Dir { mode } => {
                header.set_mode(*mode);
                header.set_entry_type(tar::EntryType::Directory);
                tar.append_data(&mut header, format!("{path}/"), io::empty()).map_err(BuildError::Tar)?;
            }
            Node::Symlink { target } => {
                header.set_mode(0o777);
                header.set_entry_type(tar::EntryType::Symlink);
                tar.append_link(&mut header, path, target).map_err(BuildError::Tar)?;
            }
            Node::Bytes { content, mode } => {
                header.set_mode(*mode);
                header.set_size(content.len() as u64);
                tar.append_data(&mut header, path, &content[..]).map_err(BuildError::Tar)?;
            }
            Node::Host { path: host, mode } => {
                let file = File::open(host).map_err(BuildError::io("open", host))?;
                let metadata = file.metadata().map_err(BuildError::io("stat", host))?;
                if !metadata.is_file() {
                    return Err(BuildError::Elf { path: host.clone(), reason: "not a regular file" });
                }
                header.set_mode(*mode);
                header.set_size(metadata.len());
                let mut content = file.take(metadata.len());
                tar.append_data(&mut header, path, &mut content).map_err(BuildError::Tar)?;
                if content.limit() > 0 {
                    return Err(BuildError::Changed(host.display().to_string()));
                }
            }
        }
    }
    let buffered = tar.into_inner().map_err(BuildError::Tar)?;
    buffered.into_inner().map_err(|e| BuildError::Tar(e.into_error()))
}
