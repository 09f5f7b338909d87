//! How much one simulation may take.

use super::WhatIfError;

/// Pods of all manifests of a simulation together.
const MOST_PODS: usize = 200_000;

/// The limits of one simulation.
pub struct Bounds<'a> {
    /// Pods of all manifests together.
    pub pods: usize,
    /// Bytes of these pods, as their templates are written.
    pub bytes: usize,
    /// Whether nobody waits for the answer any longer.
    pub stop: &'a (dyn Fn() -> bool + 'a),
}

impl Default for Bounds<'_> {
    fn default() -> Self {
        Self { pods: MOST_PODS, bytes: usize::MAX, stop: &|| false }
    }
}

/// What is left of the bounds.
pub(super) struct Budget {
    most_pods: usize,
    pods: usize,
    bytes: usize,
}

impl Budget {
    pub(super) fn new(bounds: &Bounds<'_>) -> Self {
        Self { most_pods: bounds.pods, pods: bounds.pods, bytes: bounds.bytes }
    }

    /// Takes so many pods of a template of so many bytes, before they are made.
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
