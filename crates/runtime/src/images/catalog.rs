//! The catalog of images: the names on disk, joined with the manifests and configurations that they refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::config::{ConfigBlob, ImageConfig};
use super::content::ContentStore;
use super::digest::Digest;
use super::error::{ContentError, ImageError};
use super::oci::{self, Descriptor, Document, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES};
use super::reference::Reference;
use super::refs::{self, Refs, Stamp, Target};

/// The limit for configurations kept in memory; others are read when they are needed.
const MAX_KEPT_BYTES: usize = 64 << 20;

/// An image as users see it: all names that share one configuration.
#[derive(Debug, Clone)]
pub struct Image {
    /// The configuration's digest.
    pub id: Digest,
    /// For example `docker.io/library/web:1`, sorted.
    pub repo_tags: Vec<String>,
    /// For example `docker.io/library/web@sha256:…`, sorted.
    pub repo_digests: Vec<String>,
    /// Bytes of manifest, configuration and (compressed) layers.
    pub size: u64,
    /// RFC 3339, as the builder wrote it; empty if it wrote none.
    pub created: String,
    pub config: Arc<ImageConfig>,
    /// Chain ids, bottom first.
    pub layers: Vec<Digest>,
    /// The manifest of this platform.
    pub manifest: Digest,
    /// For images that were built here: the fingerprint of their inputs.
    pub inputs: Option<String>,
}

/// One platform's manifest with its configuration.
#[derive(Debug)]
pub struct Content {
    pub id: Digest,
    pub manifest: Digest,
    pub config: Arc<ImageConfig>,
    /// The creation time, as in the configuration.
    pub created: String,
    pub layers: Vec<Descriptor>,
    /// Digests of the uncompressed layers.
    pub diff_ids: Vec<Digest>,
    pub chain_ids: Vec<Digest>,
    pub size: u64,
    /// Bytes of the configuration.
    kept_bytes: usize,
}

impl Image {
    fn of(content: &Content) -> Image {
        Image {
            id: content.id,
            repo_tags: Vec::new(),
            repo_digests: Vec::new(),
            size: content.size,
            created: content.created.clone(),
            config: content.config.clone(),
            layers: content.chain_ids.clone(),
            manifest: content.manifest,
            inputs: None,
        }
    }

    fn add(&mut self, name: &Reference, target: Target) {
        match name.digest() {
            Some(_) => self.repo_digests.push(name.to_string()),
            None => self.repo_tags.push(name.to_string()),
        }
        self.inputs = self.inputs.take().or(target.inputs);
    }
}

/// Adds a content to those kept in memory; drops others if all together would exceed the limit.
fn keep(contents: &mut BTreeMap<Digest, Arc<Content>>, content: Arc<Content>) {
    let mut bytes = content.kept_bytes + contents.values().map(|c| c.kept_bytes).sum::<usize>();
    while bytes > MAX_KEPT_BYTES
        && let Some((_, gone)) = contents.pop_first()
    {
        bytes -= gone.kept_bytes;
    }
    contents.insert(content.manifest, content);
}

/// Returns the part of a layer's descriptor to keep: a manifest may have any number of annotations, which are
/// not needed.
fn bare(layer: &Descriptor) -> Descriptor {
    Descriptor::new(&layer.media_type, layer.digest, layer.size)
}

/// All images and their names. All methods block.
pub struct Catalog {
    root: PathBuf,
    content: ContentStore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// `None` until the file is read for the first time.
    stamp: Option<Option<Stamp>>,
    refs: Refs,
    contents: BTreeMap<Digest, Arc<Content>>,
}

impl Catalog {
    pub fn open(root: &Path, content: ContentStore) -> Result<Catalog, ImageError> {
        let catalog = Catalog { root: root.to_owned(), content, state: Mutex::default() };
        catalog.refs()?;
        Ok(catalog)
    }

    /// Returns the current names, also if another process has changed them.
    pub fn refs(&self) -> Result<Refs, ImageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.reload(&mut state)?;
        Ok(state.refs.clone())
    }

    fn reload(&self, state: &mut State) -> Result<(), ContentError> {
        let stamp = refs::stamp(&self.root)?;
        if state.stamp != Some(stamp) {
            state.refs = refs::load(&self.root)?;
            state.stamp = Some(stamp);
        }
        Ok(())
    }

    /// Changes the names. Other processes' changes are read first, so none is lost.
    pub fn update<T>(&self, change: impl FnOnce(&mut Refs) -> T) -> Result<T, ImageError> {
        let path = self.root.join("index.lock");
        let lock = File::create(&path).map_err(ImageError::io("create", &path))?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        lock.lock().map_err(ImageError::io("lock", &path))?;
        self.reload(&mut state)?;
        let mut changed = state.refs.clone();
        let result = change(&mut changed);
        if changed != state.refs {
            refs::save(&self.root, &changed)?;
            state.refs = changed;
            state.stamp = Some(refs::stamp(&self.root)?);
            let wanted: BTreeSet<Digest> = state.refs.values().map(|t| t.manifest).collect();
            state.contents.retain(|manifest, _| wanted.contains(manifest));
        }
        Ok(result)
    }

    /// Names `target`: by the reference's tag, and by digest so that it can be found after the tag has moved.
    pub fn tag(&self, reference: &Reference, target: &Target) -> Result<(), ImageError> {
        self.update(|refs| {
            if reference.digest().is_none() {
                refs.insert(reference.clone(), target.clone());
            }
            refs.insert(reference.with_digest(target.descriptor.digest), target.clone());
        })
    }

    /// Reads and checks the documents of a manifest. They are kept in memory while a name refers to them, as
    /// far as the limit permits.
    pub fn content(&self, manifest: &Digest) -> Result<Arc<Content>, ImageError> {
        let cached = {
            let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.contents.get(manifest).cloned()
        };
        if let Some(content) = cached {
            return Ok(content);
        }
        let content = Arc::new(self.read_content(manifest)?);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.refs.values().any(|t| t.manifest == *manifest) {
            keep(&mut state.contents, content.clone());
        }
        Ok(content)
    }

    fn read_content(&self, digest: &Digest) -> Result<Content, ImageError> {
        let bytes = self.content.read(digest, MAX_MANIFEST_BYTES)?;
        let Document::Manifest(manifest) = oci::parse_document(&bytes, "")? else {
            return Err(oci::DocumentError::NoPlatform.into());
        };
        let id = manifest.config.digest;
        let json = self.content.read(&id, MAX_CONFIG_BYTES)?;
        let blob = ConfigBlob::parse(&json).map_err(|source| ImageError::Config { digest: id, source })?;
        if blob.rootfs.diff_ids.len() != manifest.layers.len() {
            return Err(ImageError::LayerCount {
                layers: manifest.layers.len(),
                diff_ids: blob.rootfs.diff_ids.len(),
            });
        }
        let total: u64 = manifest.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size));
        let size = total.saturating_add((bytes.len() + json.len()) as u64);
        let layers: Vec<Descriptor> = manifest.layers.iter().map(bare).collect();
        let kept_bytes = json.len() + layers.iter().map(|layer| layer.media_type.len()).sum::<usize>();
        Ok(Content {
            id,
            manifest: *digest,
            chain_ids: blob.chain_ids(),
            config: Arc::new(blob.config),
            created: blob.created.unwrap_or_default(),
            layers,
            diff_ids: blob.rootfs.diff_ids,
            size,
            kept_bytes,
        })
    }

    /// Returns all images, sorted by id. Names whose content is damaged or missing are skipped; a pull repairs
    /// them.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let mut images: BTreeMap<Digest, Image> = BTreeMap::new();
        for (name, target) in self.refs()? {
            let content = match self.content(&target.manifest) {
                Ok(content) => content,
                Err(error) => {
                    tracing::warn!(image = %name, error = error.chain(), "image content is not usable");
                    continue;
                }
            };
            images.entry(content.id).or_insert_with(|| Image::of(&content)).add(&name, target);
        }
        Ok(images.into_values().collect())
    }

    /// Returns the image that `name` refers to: an id (complete, or 6 or more of its digits if they match one
    /// image only), a reference by tag, or one by digest.
    pub fn find(&self, name: &str) -> Result<Option<Image>, ImageError> {
        let id = match self.resolve(name)? {
            Some(id) => id,
            None => return Ok(None),
        };
        let mut image: Option<Image> = None;
        for (name, target) in self.refs()? {
            if let Ok(content) = self.content(&target.manifest)
                && content.id == id
            {
                image.get_or_insert_with(|| Image::of(&content)).add(&name, target);
            }
        }
        Ok(image)
    }

    fn resolve(&self, name: &str) -> Result<Option<Digest>, ImageError> {
        let refs = self.refs()?;
        if let Some(id) = self.resolve_id(&refs, name) {
            return Ok(Some(id));
        }
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        if hex.len() == 64 && Digest::from_hex(hex).is_ok() {
            return Ok(None);
        }
        let reference: Reference = name.parse()?;
        let target = match reference.digest() {
            None => refs.get(&reference),
            Some(digest) => refs.get(&reference.with_digest(digest)).or_else(|| {
                let repository = reference.repository();
                refs.iter()
                    .find(|(name, target)| target.manifest == digest && name.repository() == repository)
                    .map(|(_, target)| target)
            }),
        };
        match target {
            None => Ok(None),
            Some(target) => match self.content(&target.manifest) {
                Ok(content) => Ok(Some(content.id)),
                Err(ImageError::Content(_)) => Ok(None),
                Err(e) => Err(e),
            },
        }
    }

    fn resolve_id(&self, refs: &Refs, name: &str) -> Option<Digest> {
        const SHORTEST: usize = 6;
        let hex = name.strip_prefix("sha256:").unwrap_or(name);
        let hexadecimal = hex.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        if !hexadecimal || !(SHORTEST..=64).contains(&hex.len()) {
            return None;
        }
        let ids: BTreeSet<Digest> = refs
            .values()
            .filter_map(|target| self.content(&target.manifest).ok())
            .map(|content| content.id)
            .filter(|id| id.hex().starts_with(hex))
            .collect();
        let only = ids.first().copied();
        only.filter(|_| ids.len() == 1)
    }

    /// Removes names and returns them: only the tag if `name` is a tag and the image has others, otherwise all
    /// names of the image.
    pub fn remove(&self, name: &str) -> Result<Vec<Reference>, ImageError> {
        let image = self.find(name)?.ok_or_else(|| ImageError::NoImage(name.to_owned()))?;
        let reference = name.parse::<Reference>().ok().filter(|r| r.digest().is_none());
        let contents: BTreeSet<Digest> = self
            .refs()?
            .values()
            .map(|target| target.manifest)
            .filter(|manifest| self.content(manifest).is_ok_and(|content| content.id == image.id))
            .collect();
        self.update(|refs| {
            let of_image = |target: &Target| contents.contains(&target.manifest);
            let tags = refs.iter().filter(|(n, t)| n.digest().is_none() && of_image(t)).count();
            let gone: Vec<Reference> = match reference.filter(|r| refs.get(r).is_some_and(of_image)) {
                Some(tag) if tags > 1 => vec![tag],
                _ => refs.iter().filter(|(_, t)| of_image(t)).map(|(n, _)| n.clone()).collect(),
            };
            for name in &gone {
                refs.remove(name);
            }
            gone
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_are_not_kept() {
        let mut layer = Descriptor::new("application/x", Digest::of(b"layer"), 7);
        layer.annotations.insert("a".into(), "b".into());
        assert_eq!(bare(&layer), Descriptor::new("application/x", Digest::of(b"layer"), 7));
    }

    #[test]
    fn kept_configurations_have_a_limit() {
        let content = |number: u8, kept_bytes| {
            Arc::new(Content {
                id: Digest::of(&[number]),
                manifest: Digest::of(&[number, number]),
                config: Arc::default(),
                created: String::new(),
                layers: Vec::new(),
                diff_ids: Vec::new(),
                chain_ids: Vec::new(),
                size: 0,
                kept_bytes,
            })
        };
        let mut contents = BTreeMap::new();
        for number in 0..=255 {
            keep(&mut contents, content(number, 1 << 20));
            assert!(contents.contains_key(&Digest::of(&[number, number])));
        }
        assert_eq!(contents.len(), MAX_KEPT_BYTES >> 20);
    }
}
