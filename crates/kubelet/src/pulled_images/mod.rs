//! Decides which pods may use an image that is on the node: those with credentials by which it was pulled.
//!
//! Source: KEP-2535, `k8s.io/kubernetes/pkg/kubelet/images/pullmanager`. One difference: an image counts as
//! preloaded by name. Upstream counts it as pulled once its id was pulled under any name, so that a tenant who
//! pulls a copy takes a preloaded image from all others.

mod access;
mod policy;
mod records;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use knarr_apimachinery::clock::Clock;
use knarr_runtime::images::Reference;

use access::merge;
pub use access::{Access, credential_hash, matching};
pub use policy::{PolicyError, PolicyName, VerificationPolicy};
pub use records::{ImagePullCredentials, ImagePullSecret, ImagePulledRecord, RecordError, Records};

use crate::runtime::Image;

/// The number of intents of abandoned pulls above which they are settled.
const MAX_IDLE_INTENTS: usize = 256;

/// The pulls of one image that are under way.
#[derive(Debug, Default)]
struct Intent {
    /// 0 if all were abandoned, or belong to an earlier run.
    pulls: usize,
    /// The id of the preloaded image that had this name when the pulls began.
    preloaded: Option<String>,
}

/// The records of pulls, and the policy for them. All methods but `abandoned` read or write files, and block.
pub struct PulledImages {
    records: Records,
    policy: VerificationPolicy,
    clock: Arc<dyn Clock>,
    /// Intents by the `image` of a container. Locked while files are read or written.
    intents: Mutex<BTreeMap<String, Intent>>,
}

impl PulledImages {
    pub fn new(kubelet_dir: &Path, policy: VerificationPolicy, clock: Arc<dyn Clock>) -> Self {
        Self { records: Records::new(kubelet_dir), policy, clock, intents: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Intent>> {
        self.intents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads what an earlier run left; to be called before pods run. `images` are all images on the node.
    pub fn take_up(&self, images: &[Image]) -> Result<(), RecordError> {
        let mut intents = self.lock();
        for intent in self.records.intents()? {
            intents.entry(intent.image).or_default();
        }
        self.settle_idle(&mut intents, images)?;
        for record in self.records.records()? {
            if !images.iter().any(|image| image.id == record.image_ref) {
                self.records.delete_record(&record.image_ref)?;
            }
        }
        Ok(())
    }

    /// Returns whether `settle` should be called, because of the number of abandoned pulls.
    pub fn crowded(&self) -> bool {
        self.lock().values().filter(|intent| intent.pulls == 0).count() > MAX_IDLE_INTENTS
    }

    /// Turns the intents of abandoned pulls into records.
    pub fn settle(&self, images: &[Image]) -> Result<(), RecordError> {
        self.settle_idle(&mut self.lock(), images)
    }

    /// Records images that have the name of an intent, as they may be the result of that pull. Their credentials
    /// are not known, so that the next pod must present its own.
    fn settle_idle(
        &self,
        intents: &mut BTreeMap<String, Intent>,
        images: &[Image],
    ) -> Result<(), RecordError> {
        let idle: Vec<String> = intents
            .iter()
            .filter(|(_, intent)| intent.pulls == 0)
            .map(|(wanted, _)| wanted.clone())
            .collect();
        for wanted in idle {
            let reference = wanted.parse::<Reference>().ok();
            let preloaded = intents.get(&wanted).and_then(|intent| intent.preloaded.clone());
            for image in
                reference.iter().flat_map(|reference| images.iter().filter(|i| has_name(i, reference)))
            {
                if preloaded.as_ref() != Some(&image.id) {
                    self.add(&wanted, &image.id, ImagePullCredentials::default())?;
                }
            }
            self.records.delete_intent(&wanted)?;
            intents.remove(&wanted);
        }
        Ok(())
    }

    /// Returns what a pod needs to use `image`, which the runtime found under the name `wanted`.
    pub fn access(&self, wanted: &str, image: &Image) -> Access {
        let intents = self.lock();
        let Ok(reference) = wanted.parse::<Reference>() else { return Access::Refused };
        match self.access_locked(&intents, wanted, &reference, image) {
            Ok(access) => access,
            Err(error) => {
                tracing::error!(%error, image = wanted, "cannot read the record of a pull: pulling again");
                Access::Refused
            }
        }
    }

    fn access_locked(
        &self,
        intents: &BTreeMap<String, Intent>,
        wanted: &str,
        reference: &Reference,
        image: &Image,
    ) -> Result<Access, RecordError> {
        let repository = reference.repository();
        let record = self.records.record(&image.id)?;
        let recorded = record.as_ref().and_then(|record| record.credential_mapping.get(&repository));
        let pulled = recorded.is_some()
            // The image is referred to by its id, from which its origin is not known.
            || record.is_some() && !has_repository(image, &repository)
            || self.pulling(intents, wanted, &repository, image)?;
        if !self.policy.verifies(&repository, pulled) {
            return Ok(Access::Granted);
        }
        Ok(Access::of(recorded))
    }

    /// Returns whether a pull that is not recorded yet may have brought the image.
    fn pulling(
        &self,
        intents: &BTreeMap<String, Intent>,
        wanted: &str,
        repository: &str,
        image: &Image,
    ) -> Result<bool, RecordError> {
        // A pull gives the image the requested name, so intents with other tags do not concern a tagged image. An
        // image without a tag may have lost it since its pull.
        let tag = |name: &String| name.parse::<Reference>().is_ok_and(|tag| tag.repository() == repository);
        let tagged = image.repo_tags.iter().any(tag);
        let may_have_brought = |name: &str| {
            let asked = name.parse::<Reference>();
            asked.is_ok_and(|asked| has_name(image, &asked) || !tagged && asked.repository() == repository)
        };
        let mut here =
            intents.iter().filter(|(name, _)| *name == wanted || may_have_brought(name)).peekable();
        if here.peek().is_some() {
            return Ok(here.any(|(_, intent)| intent.preloaded.as_ref() != Some(&image.id)));
        }
        self.records.has_intent(wanted)
    }

    /// Records a Secret whose credentials were accepted for this image before, with another Secret or another
    /// hash.
    pub fn remember(&self, wanted: &str, image_id: &str, secret: ImagePullSecret) {
        let _intents = self.lock();
        let credentials = ImagePullCredentials { kubernetes_secrets: vec![secret], ..Default::default() };
        if let Err(error) = self.add(wanted, image_id, credentials) {
            tracing::error!(%error, image = wanted, "cannot record the credentials of an image");
        }
    }

    /// Records that a pull begins; exactly one of `pulled`, `failed`, `abandoned` must follow. `present` is the
    /// image of that name before the pull.
    pub fn begin(&self, wanted: &str, present: Option<&Image>) -> Result<(), RecordError> {
        let mut intents = self.lock();
        if let Some(intent) = intents.get_mut(wanted) {
            intent.pulls += 1;
            return Ok(());
        }
        let preloaded = present.filter(|image| self.is_preloaded(&intents, wanted, image));
        let preloaded = preloaded.map(|image| image.id.clone());
        self.records.write_intent(wanted)?;
        intents.insert(wanted.to_owned(), Intent { pulls: 1, preloaded });
        Ok(())
    }

    fn is_preloaded(&self, intents: &BTreeMap<String, Intent>, wanted: &str, image: &Image) -> bool {
        let Ok(reference) = wanted.parse::<Reference>() else { return false };
        let repository = reference.repository();
        let unpulled = self.pulling(intents, wanted, &repository, image).is_ok_and(|pulling| !pulling);
        let recorded = self.records.record(&image.id);
        let unrecorded = recorded.is_ok_and(|record| {
            record.is_none_or(|record| !record.credential_mapping.contains_key(&repository))
        });
        has_repository(image, &repository) && unpulled && unrecorded
    }

    /// Records that a pull with these credentials brought the image with this id.
    pub fn pulled(&self, wanted: &str, image_id: &str, credentials: ImagePullCredentials) {
        let mut intents = self.lock();
        match self.add(wanted, image_id, credentials) {
            Ok(()) => self.finish(&mut intents, wanted),
            Err(error) => {
                // The intent stays, so that the image still counts as pulled.
                tracing::error!(%error, image = wanted, "cannot record the pull of an image");
                leave(&mut intents, wanted);
            }
        }
    }

    pub fn failed(&self, wanted: &str) {
        self.finish(&mut self.lock(), wanted);
    }

    /// Records that a pull was abandoned; it may still bring the image, so the intent stays. Accesses no file.
    pub fn abandoned(&self, wanted: &str) {
        leave(&mut self.lock(), wanted);
    }

    fn finish(&self, intents: &mut BTreeMap<String, Intent>, wanted: &str) {
        leave(intents, wanted);
        if intents.get(wanted).is_some_and(|intent| intent.pulls == 0) {
            match self.records.delete_intent(wanted) {
                Ok(()) => drop(intents.remove(wanted)),
                Err(error) => tracing::error!(%error, image = wanted, "cannot remove the intent of a pull"),
            }
        }
    }

    /// Adds credentials to the image's record, if that changes it.
    fn add(&self, wanted: &str, image_id: &str, new: ImagePullCredentials) -> Result<(), RecordError> {
        let Ok(reference) = wanted.parse::<Reference>() else { return Ok(()) };
        // A record that cannot be read grants nothing, and is replaced.
        let record = self.records.record(image_id).unwrap_or_else(|error| {
            tracing::warn!(%error, "replaced a record of an image pull that cannot be read");
            None
        });
        let mut mapping = record.map(|record| record.credential_mapping).unwrap_or_default();
        let recorded = mapping.get(&reference.repository());
        let merged = merge(recorded, new);
        if recorded == Some(&merged) {
            return Ok(());
        }
        mapping.insert(reference.repository(), merged);
        // In whole seconds, as all times of the API.
        let now = jiff::Timestamp::from_second(self.clock.now().as_second()).unwrap_or_default();
        self.records.write_record(&ImagePulledRecord {
            last_updated_time: Time(now),
            image_ref: image_id.to_owned(),
            credential_mapping: mapping,
        })
    }
}

fn leave(intents: &mut BTreeMap<String, Intent>, wanted: &str) {
    if let Some(intent) = intents.get_mut(wanted) {
        intent.pulls = intent.pulls.saturating_sub(1);
    }
}

fn names(image: &Image) -> impl Iterator<Item = Reference> {
    image.repo_tags.iter().chain(&image.repo_digests).filter_map(|name| name.parse().ok())
}

fn has_name(image: &Image, reference: &Reference) -> bool {
    let same = |name: &Reference| {
        name.repository() == reference.repository() && name.identifier() == reference.identifier()
    };
    names(image).any(|name| same(&name))
}

fn has_repository(image: &Image, repository: &str) -> bool {
    names(image).any(|name| name.repository() == repository)
}
