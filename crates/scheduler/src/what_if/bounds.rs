//! Limits on the cost of one simulation.

use super::WhatIfError;

/// The maximum number of pods of all manifests of a simulation.
const MOST_PODS: usize = 200_000;

/// The limits of one simulation.
pub struct Bounds<'a> {
    /// The maximum number of pods of all manifests.
    pub pods: usize,
    /// The maximum size of these pods in bytes, measured by their templates.
    pub bytes: usize,
    /// Returns true when the caller no longer waits for the answer.
    pub stop: &'a (dyn Fn() -> bool + 'a),
}

impl Default for Bounds<'_> {
    fn default() -> Self {
        Self { pods: MOST_PODS, bytes: usize::MAX, stop: &|| false }
    }
}

/// The rest of the limits.
pub(super) struct Budget {
    most_pods: usize,
    pods: usize,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(bounds: &Bounds<'_>) -> Self {
        Self { most_pods: bounds.pods, pods: bounds.pods, bytes: bounds.bytes }
    }

    /// Deducts this many pods of a template with this many bytes, before the pods are made.
    pub(super) fn take(
        &mut self,
        kind: &str,
        name: &str,
        pods: usize,
        each: usize,
    ) -> Result<(), WhatIfError> {
        let (left, bytes) = (self.pods.checked_sub(pods), pods.saturating_mul(each));
        match (left, self.bytes.checked_sub(bytes)) {
            (Some(pods), Some(bytes)) => {
                (self.pods, self.bytes) = (pods, bytes);
                Ok(())
            }
            (None, _) => {
                let (kind, name) = (kind.to_owned(), name.to_owned());
                Err(WhatIfError::TooMany { kind, name, pods, most: self.most_pods })
            }
            (_, None) => Err(WhatIfError::TooLarge { kind: kind.to_owned(), name: name.to_owned() }),
        }
    }
}
