//! Imports archives. The archive is read once as a stream: each file is stored under its digest, and the index
//! is interpreted at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::super::catalog::Image;
use super::super::content::{COPY_BUFFER_BYTES, ContentStore};
use super::super::digest::{Digest, HashingReader};
use super::super::error::{ContentError, ImageError};
use super::super::layers::{TarGuard, decompress};
use super::super::oci::{
    self, Descriptor, Document, Index, MAX_MANIFEST_BYTES, NAME_ANNOTATION, REF_NAME_ANNOTATION,
};
use super::super::reference::Reference;
use super::super::refs::Target;
use super::super::store::{ImageStore, Inner};
use super::docker;
use super::{ArchiveError, ImportOptions};

const MAX_FILES: usize = 100_000;
/// The depth of nested indexes.
const MAX_DEPTH: usize = 4;

/// The content of an archive, after all its files are in the content store.
pub(super) struct Contents {
    /// Small top-level documents: `index.json`, `manifest.json`.
    documents: BTreeMap<String, Vec<u8>>,
    /// Every other file: its path in the archive, with its digest and size.
    pub files: BTreeMap<String, (Digest, u64)>,
    /// Links between equal layers, which old versions of `docker save` write.
    links: BTreeMap<String, String>,
}

impl Contents {
    /// Returns the digest and size of a file, following links.
    pub fn file(&self, name: &str) -> Result<(Digest, u64), ArchiveError> {
        let mut name = clean(name);
        // A link refers to a file, not to another link; a few more are harmless.
        for _ in 0..8 {
            if let Some(found) = self.files.get(&name) {
                return Ok(*found);
            }
            match self.links.get(&name) {
                Some(target) => name = target.clone(),
                None => break,
            }
        }
        Err(ArchiveError::MissingFile { name })
    }

    /// Parses a document; `None` if the archive does not have it.
    pub fn document<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ArchiveError> {
        let Some(bytes) = self.documents.get(name) else { return Ok(None) };
        let parsed = serde_json::from_slice(bytes);
        parsed.map(Some).map_err(|source| ArchiveError::Json { name: name.to_owned(), source })
    }
}

/// An image that was found in an archive.
pub(super) struct Found {
    pub names: Vec<Reference>,
    pub target: Target,
}

impl ImageStore {
    /// Imports every image of an archive: an OCI layout or the output of `docker save`, plain, gzip or zstd.
    /// Returns them in the archive's order, unpacked and named.
    pub async fn import(&self, path: &Path, options: ImportOptions) -> Result<Vec<Image>, ImageError> {
        let path = path.to_owned();
        self.blocking("importing an archive", move |inner| {
            let file = File::open(&path).map_err(ImageError::io("open", &path))?;
            import(inner, file, &options, &path.display().to_string())
        })
        .await
    }

    /// Like `import`, from any reader, for example standard input.
    pub async fn import_from(
        &self,
        reader: impl Read + Send + 'static,
        options: ImportOptions,
    ) -> Result<Vec<Image>, ImageError> {
        self.blocking("importing an archive", move |inner| import(inner, reader, &options, "the archive"))
            .await
    }
}

fn import(
    inner: &Arc<Inner>,
    reader: impl Read,
    options: &ImportOptions,
    name: &str,
) -> Result<Vec<Image>, ImageError> {
    let wrap = |source| ImageError::Archive { name: name.to_owned(), source };
    let _lease = inner.collector.lease()?;
    let contents = read_archive(&inner.content, reader, options.max_bytes).map_err(wrap)?;
    let found = understand(&inner.content, &contents, options).map_err(wrap)?;
    // No image is named before all of them were found valid.
    for image in &found {
        let content = inner.catalog.content(&image.target.manifest)?;
        inner.unpack(&content)?;
    }
    let mut images = Vec::new();
    for image in found {
        for name in &image.names {
            inner.catalog.tag(name, &image.target)?;
        }
        let content = inner.catalog.content(&image.target.manifest)?;
        images.extend(inner.catalog.find(&content.id.to_string())?);
    }
    Ok(images)
}

fn read_archive(content: &ContentStore, reader: impl Read, max: u64) -> Result<Contents, ArchiveError> {
    let plain = decompress(reader).map_err(ArchiveError::Read)?;
    let mut archive = tar::Archive::new(TarGuard::new(HashingReader::new(plain, max)));
    let mut contents =
        Contents { documents: BTreeMap::new(), files: BTreeMap::new(), links: BTreeMap::new() };
    for (count, entry) in archive.entries().map_err(ArchiveError::Read)?.enumerate() {
        if count >= MAX_FILES {
            return Err(ArchiveError::TooManyFiles(MAX_FILES));
        }
        let mut entry = entry.map_err(ArchiveError::Read)?;
        let name = clean(&String::from_utf8_lossy(&entry.path_bytes()));
        let kind = entry.header().entry_type();
        if kind.is_symlink() || kind.is_hard_link() {
            if let Some(target) = entry.link_name_bytes() {
                let target = String::from_utf8_lossy(&target).into_owned();
                let base =
                    if kind.is_symlink() { name.rsplit_once('/').map_or("", |(dir, _)| dir) } else { "" };
                contents.links.insert(name.clone(), clean(&format!("{base}/{target}")));
            }
            continue;
        }
        let base = name.rsplit('/').next().unwrap_or(&name);
        if !kind.is_file() || matches!(base, "oci-layout" | "repositories" | "VERSION") {
            continue;
        }
        if matches!(name.as_str(), "index.json" | "manifest.json") {
            let bytes = read_document(&mut entry, &name)?;
            contents.documents.insert(name, bytes);
            continue;
        }
        let expected = name.strip_prefix("blobs/sha256/").and_then(|hex| Digest::from_hex(hex).ok());
        let stored = match expected.and_then(|digest| content.size(&digest).map(|size| (digest, size))) {
            Some(known) => known,
            None => store(content, &mut entry, expected)?,
        };
        contents.files.insert(name, stored);
    }
    Ok(contents)
}

fn read_document(entry: &mut impl Read, name: &str) -> Result<Vec<u8>, ArchiveError> {
    let mut bytes = Vec::new();
    entry.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes).map_err(ArchiveError::Read)?;
    if bytes.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(ArchiveError::DocumentTooLarge {
            name: name.to_owned(),
            size: bytes.len() as u64,
            limit: MAX_MANIFEST_BYTES,
        });
    }
    Ok(bytes)
}

fn store(
    content: &ContentStore,
    entry: &mut impl Read,
    expected: Option<Digest>,
) -> Result<(Digest, u64), ArchiveError> {
    let mut ingest = content.ingest()?;
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        match entry.read(&mut buffer).map_err(ArchiveError::Read)? {
            0 => break,
            n => ingest.append(&buffer[..n])?,
        }
    }
    Ok(ingest.commit(expected, None)?)
}

fn understand(
    content: &ContentStore,
    contents: &Contents,
    options: &ImportOptions,
) -> Result<Vec<Found>, ArchiveError> {
    let index: Option<Index> = contents.document("index.json")?;
    let saved: Option<Vec<docker::Saved>> = contents.document("manifest.json")?;
    match (index, saved) {
        (Some(index), saved) => {
            let named = index.manifests.iter().any(|d| !names(d, options).is_empty());
            match saved {
                // Older tools write an index without names in addition to docker's own list, which has the
                // names.
                Some(saved) if !named => docker::understand(content, contents, saved, options),
                _ => understand_index(content, index, options),
            }
        }
        (None, Some(saved)) => docker::understand(content, contents, saved, options),
        (None, None) => Err(ArchiveError::NotAnImage),
    }
}

fn understand_index(
    content: &ContentStore,
    index: Index,
    options: &ImportOptions,
) -> Result<Vec<Found>, ArchiveError> {
    let alone = index.manifests.len() == 1;
    let mut out: Vec<Found> = Vec::new();
    for mut descriptor in index.manifests {
        let mut names = names(&descriptor, options);
        if names.is_empty() {
            match &options.name {
                Some(name) if alone => names.push(name.clone()),
                _ => return Err(ArchiveError::Unnamed(descriptor.digest)),
            }
        }
        descriptor.annotations.clear();
        let Some(manifest) = choose(content, &descriptor, options, 0)? else {
            let p = &options.platform;
            return Err(ArchiveError::NoPlatform(p.os.clone(), p.architecture.clone()));
        };
        // An image with several names has one descriptor for each.
        match out.iter_mut().find(|f| f.target.descriptor.digest == descriptor.digest) {
            Some(found) => found.names.append(&mut names),
            None => out.push(Found { names, target: Target { descriptor, manifest, inputs: None } }),
        }
    }
    Ok(out)
}

/// Returns the names of a descriptor: a complete one, or a tag that is combined with the caller's name.
fn names(descriptor: &Descriptor, options: &ImportOptions) -> Vec<Reference> {
    let annotation = |key: &str| descriptor.annotations.get(key).map(String::as_str);
    if let Some(name) = annotation(NAME_ANNOTATION).and_then(|name| name.parse().ok()) {
        return vec![name];
    }
    let Some(name) = annotation(REF_NAME_ANNOTATION) else { return Vec::new() };
    if name.contains(['/', ':']) {
        return name.parse().into_iter().collect();
    }
    options.name.as_ref().and_then(|base| base.with_tag(name).ok()).into_iter().collect()
}

/// Returns the manifest of the wanted platform that a descriptor refers to.
fn choose(
    content: &ContentStore,
    descriptor: &Descriptor,
    options: &ImportOptions,
    depth: usize,
) -> Result<Option<Digest>, ArchiveError> {
    let bytes = match content.read(&descriptor.digest, MAX_MANIFEST_BYTES) {
        Ok(bytes) => bytes,
        Err(ContentError::Missing(digest)) => {
            return Err(ArchiveError::MissingFile { name: format!("blobs/sha256/{}", digest.hex()) });
        }
        Err(e) => return Err(e.into()),
    };
    match oci::parse_document(&bytes, &descriptor.media_type)? {
        Document::Manifest(manifest) => {
            let mut blobs = std::iter::once(&manifest.config).chain(&manifest.layers);
            if let Some(blob) = blobs.find(|blob| !content.has(&blob.digest)) {
                let name = format!("blobs/sha256/{}", blob.digest.hex());
                return Err(ArchiveError::MissingFile { name });
            }
            Ok(Some(descriptor.digest))
        }
        Document::Index(index) => match oci::select_platform(&index, &options.platform) {
            Some(chosen) if depth < MAX_DEPTH => choose(content, chosen, options, depth + 1),
            _ => Ok(None),
        },
    }
}

/// Returns a path within the archive without `./`, doubled slashes and `..`.
pub(super) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}
