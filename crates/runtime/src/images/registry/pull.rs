//! Pulls an image: resolves the reference, chooses the platform, fetches missing blobs, unpacks and names it.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::super::catalog::Image;
use super::super::content::Ingest;
use super::super::credentials::{Credential, Keyring};
use super::super::digest::Digest;
use super::super::error::{ContentError, ErrorKind, ImageError};
use super::super::oci::{self, Descriptor, Document, DocumentError, MAX_CONFIG_BYTES, Platform};
use super::super::reference::Reference;
use super::super::refs::Target;
use super::super::store::{ImageStore, Inner};
use super::client::{Fetched, MAX_ATTEMPTS, RegistryClient, pause};
use super::http::{HttpClient, next_chunk};
use super::mirror::Mirror;
use super::pace::{Pace, Paced};
use super::{NetworkError, RegistryError};

/// The number of chunks between network and disk, per blob.
const CHUNKS_IN_FLIGHT: usize = 32;
/// The number of bytes between two calls of the progress function.
const PROGRESS_STEP_BYTES: u64 = 512 << 10;
/// The depth of nested indexes.
const MAX_DEPTH: usize = 4;

/// The progress of one blob of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub image: String,
    /// Digest of the compressed layer, or of the configuration.
    pub layer: Digest,
    pub done_bytes: u64,
    pub total_bytes: u64,
}

/// Called from the pulling tasks; it should return at once.
pub type ProgressFn = Arc<dyn Fn(&Progress) + Send + Sync>;

/// How to pull an image.
#[derive(Clone)]
pub struct PullOptions {
    /// Credentials. Those that match the image are tried one after the other; it is pulled anonymously only if
    /// none matches, as in the kubelet.
    pub keyring: Keyring,
    pub platform: Platform,
    /// `host` or `host:port` of registries that are contacted in plain text, in addition to those on loopback.
    pub insecure_registries: Vec<String>,
    /// Mirrors, which are asked in this order before an image's own registry.
    pub mirrors: Vec<Mirror>,
    pub max_parallel_layers: usize,
    /// Largest compressed layer, in bytes.
    pub max_layer_bytes: u64,
    /// The minimum speed of a registry; below it the pull fails.
    pub pace: Pace,
    pub progress: Option<ProgressFn>,
}

impl Default for PullOptions {
    fn default() -> PullOptions {
        PullOptions {
            keyring: Keyring::new(),
            platform: Platform::host(),
            insecure_registries: Vec::new(),
            mirrors: Vec::new(),
            max_parallel_layers: 3,
            max_layer_bytes: 256 << 30,
            pace: Pace::default(),
            progress: None,
        }
    }
}

/// A pulled image, and the credential that the registry accepted.
#[derive(Debug, Clone)]
pub struct Pulled {
    pub image: Image,
    /// `None` if the image was pulled anonymously, or from a mirror.
    pub credential: Option<Credential>,
}

impl ImageStore {
    /// Pulls and unpacks an image. Existing content is not fetched again; if another call is fetching a layer,
    /// this one waits for it.
    pub async fn pull(&self, reference: &Reference, options: &PullOptions) -> Result<Image, ImageError> {
        Ok(self.pull_with(reference, options).await?.image)
    }

    /// Pulls like `pull`, and also returns the credential that was used.
    pub async fn pull_with(
        &self,
        reference: &Reference,
        options: &PullOptions,
    ) -> Result<Pulled, ImageError> {
        let http = HttpClient { insecure: options.insecure_registries.clone() };
        for mirror in options.mirrors.iter().filter(|mirror| mirror.has(reference)) {
            let client = RegistryClient::of_mirror(http.clone(), reference, mirror);
            match self.pull_from(reference, options, client).await {
                Ok(image) => return Ok(Pulled { image, credential: None }),
                Err(error) => tracing::info!(%reference, ?mirror, ?error, "not pulled from a mirror"),
            }
        }
        let mut credentials: Vec<Option<Credential>> =
            options.keyring.lookup(reference).into_iter().map(Some).collect();
        if credentials.is_empty() {
            credentials.push(None);
        }
        let mut last = None;
        for credential in credentials {
            let client = RegistryClient::new(http.clone(), reference, credential.clone());
            match self.pull_from(reference, options, client).await {
                Err(error) if error.kind() == ErrorKind::Unauthorized => last = Some(error),
                result => {
                    let image = result.map_err(|error| pull_error(reference, error))?;
                    return Ok(Pulled { image, credential });
                }
            }
        }
        // At least one credential was tried, and all were refused.
        let error = last.unwrap_or(ImageError::NoImage(reference.to_string()));
        Err(pull_error(reference, error))
    }

    async fn pull_from(
        &self,
        reference: &Reference,
        options: &PullOptions,
        client: RegistryClient,
    ) -> Result<Image, ImageError> {
        let pull =
            Pull { store: self.clone(), client, reference: reference.clone(), options: options.clone() };
        let _lease = self.lease().await?;
        Arc::new(pull).run().await
    }
}

fn pull_error(reference: &Reference, error: ImageError) -> ImageError {
    ImageError::Pull { reference: reference.to_string(), source: Box::new(error) }
}

struct Pull {
    store: ImageStore,
    client: RegistryClient,
    reference: Reference,
    options: PullOptions,
}

impl Pull {
    async fn run(self: Arc<Self>) -> Result<Image, ImageError> {
        let top = self.client.manifest(&self.reference.identifier()).await.map_err(|source| {
            ImageError::Resolve { reference: self.reference.to_string(), source: Box::new(source) }
        })?;
        let target = self.choose(top).await?;
        let manifest = target.manifest;
        let config = self
            .store
            .blocking("reading a manifest", move |inner| {
                let bytes = inner.content.read(&manifest, oci::MAX_MANIFEST_BYTES)?;
                match oci::parse_document(&bytes, "")? {
                    Document::Manifest(manifest) => Ok(manifest.config),
                    Document::Index(_) => Err(DocumentError::NoPlatform.into()),
                }
            })
            .await?;
        if config.size > MAX_CONFIG_BYTES {
            let what = format!("image config {}", config.digest);
            return Err(ImageError::fetch(RegistryError::TooLarge { what, limit: MAX_CONFIG_BYTES }));
        }
        self.clone().fetch(config).await?;
        self.clone().fetch_and_unpack(manifest).await?;
        let pull = self.clone();
        self.store
            .blocking("naming an image", move |inner| {
                inner.catalog.tag(&pull.reference, &target)?;
                inner.sync_later();
                let id = inner.catalog.content(&target.manifest)?.id;
                let found = inner.catalog.find(&id.to_string())?;
                found.ok_or_else(|| ImageError::NoImage(pull.reference.to_string()))
            })
            .await
    }

    /// Stores the document that the reference resolved to, and the manifest of our platform.
    async fn choose(&self, top: Fetched) -> Result<Target, ImageError> {
        let mut descriptor = Descriptor::new(&top.media_type, top.digest, top.bytes.len() as u64);
        let mut document = oci::parse_document(&top.bytes, &top.media_type)?;
        if let Document::Manifest(manifest) = &document {
            descriptor.media_type = manifest.media_type.clone().unwrap_or(top.media_type);
        }
        self.keep(top.bytes).await?;
        let mut manifest = descriptor.digest;
        for _ in 0..MAX_DEPTH {
            let index = match document {
                Document::Manifest(_) => return Ok(Target { descriptor, manifest, inputs: None }),
                Document::Index(index) => index,
            };
            let chosen =
                oci::select_platform(&index, &self.options.platform).ok_or(DocumentError::NoPlatform)?;
            manifest = chosen.digest;
            let fetched = self.client.manifest(&manifest.to_string()).await.map_err(ImageError::fetch)?;
            document = oci::parse_document(&fetched.bytes, &fetched.media_type)?;
            self.keep(fetched.bytes).await?;
        }
        Err(DocumentError::NoPlatform.into())
    }

    async fn keep(&self, bytes: Vec<u8>) -> Result<(), ImageError> {
        self.store
            .blocking("storing a manifest", move |inner| Ok(inner.content.write(&bytes).map(drop)?))
            .await
    }

    /// Fetches layers in parallel, and unpacks each when it and those below it were fetched.
    async fn fetch_and_unpack(self: Arc<Self>, manifest: Digest) -> Result<(), ImageError> {
        let read = move |inner: &Arc<Inner>| inner.catalog.content(&manifest);
        let content = self.store.blocking("reading a manifest", read).await?;
        let fetches = content.layers.clone().into_iter().map(|layer| {
            let pull = self.clone();
            // A separate task, so that the fetch continues while a layer before it is unpacked.
            async move {
                let task = AbortOnDropHandle::new(tokio::spawn(pull.fetch(layer)));
                task.await.unwrap_or(Err(ImageError::Panicked("fetching a layer")))
            }
        });
        let mut fetches =
            futures_util::stream::iter(fetches).buffered(self.options.max_parallel_layers.max(1));
        let mut at = 0;
        while let Some(result) = fetches.next().await {
            result?;
            let content = content.clone();
            self.store.blocking("unpacking a layer", move |inner| inner.unpack_layer(&content, at)).await?;
            at += 1;
        }
        Ok(())
    }

    /// Fetches one blob into the store, and resumes after a broken connection.
    async fn fetch(self: Arc<Self>, blob: Descriptor) -> Result<(), ImageError> {
        if blob.size > self.options.max_layer_bytes {
            let (what, limit) = (format!("layer {}", blob.digest), self.options.max_layer_bytes);
            return Err(ImageError::fetch(RegistryError::TooLarge { what, limit }));
        }
        let _turn = self.store.inner.locks.lock(blob.digest).await;
        let digest = blob.digest;
        let here = self.store.blocking("looking for a blob", move |inner| Ok(inner.content.has(&digest)));
        if here.await? {
            self.report(&blob, blob.size);
            return Ok(());
        }
        let ingest = self.store.blocking("storing a blob", |inner| Ok(inner.content.ingest()?)).await?;
        let mut slot = Some(ingest);
        let mut attempt = 0;
        let mut paced = Paced::new(self.options.pace);
        loop {
            attempt += 1;
            let Some(ingest) = slot.take() else { return Err(ImageError::Panicked("storing a blob")) };
            let before = ingest.written();
            let (ingest, result) = self.fetch_once(&blob, ingest, &mut paced).await?;
            match result {
                Ok(()) => {
                    let commit =
                        move |_: &Arc<Inner>| Ok(ingest.commit(Some(digest), Some(blob.size)).map(drop));
                    let committed = self.store.blocking("storing a blob", commit).await?;
                    return committed.map_err(ImageError::fetch);
                }
                Err(error) if error.is_transient() && attempt < MAX_ATTEMPTS => {
                    // Progress counts as success: only consecutive attempts without progress are bounded.
                    if ingest.written() > before + PROGRESS_STEP_BYTES {
                        attempt = 0;
                    }
                    slot = Some(ingest);
                    pause(attempt, &error).await;
                }
                Err(error) => return Err(ImageError::fetch(error)),
            }
        }
    }

    /// Performs one request of a blob. The outer error is local, the inner one the registry's.
    async fn fetch_once(
        &self,
        blob: &Descriptor,
        mut ingest: Ingest,
        paced: &mut Paced,
    ) -> Result<(Ingest, Result<(), RegistryError>), ImageError> {
        let (call, from, response) = match self.client.blob(&blob.digest, ingest.written()).await {
            Ok(started) => started,
            Err(error) => return Ok((ingest, Err(error))),
        };
        if from != ingest.written() {
            ingest.reset()?;
        }
        let (sender, mut receiver) = mpsc::channel::<bytes::Bytes>(CHUNKS_IN_FLIGHT);
        let writer = tokio::task::spawn_blocking(move || -> Result<Ingest, ContentError> {
            while let Some(chunk) = receiver.blocking_recv() {
                ingest.append(&chunk)?;
            }
            Ok(ingest)
        });
        let mut body = response.into_body();
        let mut done = from;
        let mut reported = from;
        self.report(blob, done);
        let result = loop {
            let chunk = match next_chunk(&mut body, paced).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) if done < blob.size => {
                    break Err(call.failed(NetworkError::Short { got: done, wanted: blob.size }));
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(call.failed(error)),
            };
            done += chunk.len() as u64;
            if done > blob.size {
                break Err(ContentError::Size { expected: blob.size, actual: done }.into());
            }
            if sender.send(chunk).await.is_err() {
                // The writer failed; its result contains the reason.
                break Ok(());
            }
            if done - reported >= PROGRESS_STEP_BYTES || done == blob.size {
                reported = done;
                self.report(blob, done);
            }
        };
        drop(sender);
        let ingest = writer.await.map_err(|_| ImageError::Panicked("storing a blob"))??;
        Ok((ingest, result))
    }

    fn report(&self, blob: &Descriptor, done_bytes: u64) {
        if let Some(progress) = &self.options.progress {
            progress(&Progress {
                image: self.reference.to_string(),
                layer: blob.digest,
                done_bytes,
                total_bytes: blob.size,
            });
        }
    }
}
