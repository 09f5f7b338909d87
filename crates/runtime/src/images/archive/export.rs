//! Exports images as an OCI layout that also has docker's list, so that other tools can load it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};

use super::super::catalog::Content;
use super::super::content::ContentStore;
use super::super::digest::Digest;
use super::super::error::{ContentError, ImageError};
use super::super::oci::{Descriptor, Index, NAME_ANNOTATION, OCI_INDEX, OCI_MANIFEST, REF_NAME_ANNOTATION};
use super::super::reference::Reference;
use super::super::store::{ImageStore, Inner};
use super::ArchiveError;
use super::docker::Saved;

const LAYOUT: &[u8] = b"{\"imageLayoutVersion\":\"1.0.0\"}";

impl ImageStore {
    /// Writes the images as one archive: a plain tar, with the same bytes for the same images. If a name is an
    /// id, all tags of the image are included.
    pub async fn export<W: Write + Send + 'static>(
        &self,
        names: &[String],
        writer: W,
    ) -> Result<W, ImageError> {
        let names = names.to_vec();
        self.blocking("exporting images", move |inner| {
            let _lease = inner.collector.lease()?;
            export(inner, &names, writer)
        })
        .await
    }
}

fn export<W: Write>(inner: &Inner, names: &[String], writer: W) -> Result<W, ImageError> {
    let wrap = |source| ImageError::Archive { name: names.join(", "), source };
    let mut manifests = Vec::new();
    let mut saved: BTreeMap<Digest, Saved> = BTreeMap::new();
    let mut blobs = BTreeSet::new();
    for name in names {
        let image = inner.catalog.find(name)?.ok_or_else(|| ImageError::NoImage(name.clone()))?;
        let content = inner.catalog.content(&image.manifest)?;
        let tags: Vec<String> = match name.parse::<Reference>().ok().filter(|r| r.digest().is_none()) {
            Some(tag) if image.repo_tags.contains(&tag.to_string()) => vec![tag.to_string()],
            _ => image.repo_tags.clone(),
        };
        let size = inner.content.size(&image.manifest).unwrap_or(0);
        let descriptor = Descriptor::new(OCI_MANIFEST, image.manifest, size);
        if tags.is_empty() {
            manifests.push(descriptor.clone());
        }
        for tag in &tags {
            let mut descriptor = descriptor.clone();
            descriptor.annotations.insert(NAME_ANNOTATION.to_owned(), tag.clone());
            if let Some(short) = tag.parse::<Reference>().ok().as_ref().and_then(Reference::tag) {
                descriptor.annotations.insert(REF_NAME_ANNOTATION.to_owned(), short.to_owned());
            }
            manifests.push(descriptor);
        }
        blobs.extend([image.manifest, image.id]);
        blobs.extend(content.layers.iter().map(|layer| layer.digest));
        let entry = saved.entry(image.manifest).or_insert_with(|| docker_entry(&content));
        entry.repo_tags.get_or_insert_default().extend(tags);
    }
    let index = Index { schema_version: 2, media_type: Some(OCI_INDEX.to_owned()), manifests };
    let saved: Vec<Saved> = saved.into_values().collect();
    write_archive(&inner.content, &blobs, &index, &saved, writer).map_err(wrap)
}

fn docker_entry(content: &Content) -> Saved {
    let path = |digest: &Digest| format!("blobs/sha256/{}", digest.hex());
    Saved {
        config: path(&content.id),
        repo_tags: Some(Vec::new()),
        layers: content.layers.iter().map(|layer| path(&layer.digest)).collect(),
    }
}

fn write_archive<W: Write>(
    content: &ContentStore,
    blobs: &BTreeSet<Digest>,
    index: &Index,
    saved: &[Saved],
    writer: W,
) -> Result<W, ArchiveError> {
    let json = |name: &str, result: serde_json::Result<Vec<u8>>| {
        result.map_err(|source| ArchiveError::Json { name: name.to_owned(), source })
    };
    let index = json("index.json", serde_json::to_vec(index))?;
    let saved = json("manifest.json", serde_json::to_vec(saved))?;
    let mut tar = tar::Builder::new(writer);
    append(&mut tar, "oci-layout", LAYOUT.len() as u64, LAYOUT)?;
    append(&mut tar, "index.json", index.len() as u64, &index[..])?;
    append(&mut tar, "manifest.json", saved.len() as u64, &saved[..])?;
    for digest in blobs {
        let blob = content.open_blob(digest)?;
        let size = content.size(digest).ok_or(ContentError::Missing(*digest))?;
        append(&mut tar, &format!("blobs/sha256/{}", digest.hex()), size, blob)?;
    }
    tar.into_inner().map_err(ArchiveError::Write)
}

fn append<W: Write>(
    tar: &mut tar::Builder<W>,
    name: &str,
    size: u64,
    content: impl Read,
) -> Result<(), ArchiveError> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    let mut content = content.take(size);
    tar.append_data(&mut header, name, &mut content).map_err(ArchiveError::Write)?;
    if content.limit() > 0 {
        return Err(ArchiveError::Read(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(())
}
