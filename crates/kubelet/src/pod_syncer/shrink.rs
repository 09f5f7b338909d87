//! Limits of memory that become lower than what is in use: on cgroups v2 the kernel would end a process of the
//! container, on v1 it refuses.
//!
//! Source: upstream's kubelet 1.37 compares in the same way, with the same messages; what cannot be done now is tried
//! again, and is `PodResizeInProgress` with reason `Error` until then.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{PodMemory, PodSyncer, blocking};
use crate::runtime::{ContainerStatus, Resources};

/// A limit that is to change.
pub(super) struct Limit<'a> {
    pub applied: Option<&'a Resources>,
    pub wanted: &'a Resources,
}

impl Limit<'_> {
    /// The new limit in bytes, if it may be lower than the one in force. What is in force is not known after a restart;
    /// then it is at least what is in use.
    fn lowered(&self) -> Option<i64> {
        let wanted = self.wanted.memory_limit.filter(|limit| *limit >= 0)?;
        match self.applied {
            None => Some(wanted.saturating_add(1)),
            Some(applied) => match applied.memory_limit.filter(|limit| *limit >= 0) {
                Some(limit) if limit <= wanted => None,
                _ => Some(wanted),
            },
        }
    }
}

/// Why the limits cannot be lowered, given each one's name and the bytes in use.
fn refusal(limits: &[(String, i64, u64)]) -> Option<String> {
    let reasons: Vec<String> = limits
        .iter()
        .filter(|(_, limit, usage)| u64::try_from(*limit).is_ok_and(|limit| *usage >= limit))
        .map(|(name, limit, usage)| {
            format!("attempting to set {name} memory limit ({limit}) below current usage ({usage})")
        })
        .collect();
    match reasons.as_slice() {
        [] => None,
        [reason] => Some(format!("cannot decrease memory limits: {reason}")),
        several => Some(format!("cannot decrease memory limits: [{}]", several.join(", "))),
    }
}

impl PodSyncer {
    /// Fails if a limit of the pod, where that is given, or of a container would be lower than what is in use.
    pub(super) async fn check_shrink(
        &self,
        pod: &Arc<Pod>,
        memory: &PodMemory,
        of_pod: Option<&Resources>,
        containers: &[(&Container, &ContainerStatus, &Resources)],
    ) -> Result<(), String> {
        let mut limits = Vec::new();
        let limit = of_pod.map(|wanted| Limit { applied: memory.applied_to_pod.as_ref(), wanted });
        if let Some(lowered) = limit.and_then(|limit| limit.lowered()) {
            let (cgroups, pod) = (self.cgroups.clone(), Arc::clone(pod));
            let usage = blocking(move || cgroups.memory_usage(&pod)).await?;
            limits.push(("pod".to_owned(), lowered, usage));
        }
        for (container, status, wanted) in containers {
            let limit = Limit { applied: memory.applied.get(&status.id), wanted };
            let Some(lowered) = limit.lowered() else { continue };
            let stats = self.runtime.container_stats(&status.id).await.map_err(|e| e.to_string())?;
            limits.push((format!("container {:?}", container.name), lowered, stats.usage.memory_usage_bytes));
        }
        refusal(&limits).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(bytes: Option<i64>) -> Resources {
        Resources { memory_limit: bytes, ..Resources::default() }
    }

    #[test]
    fn which_limits_are_lowered() {
        for (applied, wanted, expected) in [
            (Some(None), Some(5), Some(5)),
            (Some(Some(-1)), Some(5), Some(5)),
            (Some(Some(6)), Some(5), Some(5)),
            (Some(Some(5)), Some(5), None),
            (Some(Some(5)), Some(6), None),
            (Some(Some(5)), None, None),
            (Some(Some(5)), Some(-1), None),
            (None, Some(5), Some(6)),
        ] {
            let (has, wants) = (applied.map(limited), limited(wanted));
            let limit = Limit { applied: has.as_ref(), wanted: &wants };
            assert_eq!(limit.lowered(), expected, "{applied:?} {wanted:?}");
        }
    }

    #[test]
    fn what_is_in_use_is_said() {
        let below = |name: &str| (name.to_owned(), 10, 9);
        let above = |name: &str| (name.to_owned(), 10, 10);
        assert_eq!(refusal(&[]), None);
        assert_eq!(refusal(&[below("pod")]), None);
        assert_eq!(
            refusal(&[below("pod"), above("container \"a\"")]).as_deref(),
            Some(
                "cannot decrease memory limits: attempting to set container \"a\" memory limit (10) below current usage (10)"
            )
        );
        assert_eq!(
            refusal(&[above("pod"), above("container \"a\"")]).as_deref(),
            Some(
                "cannot decrease memory limits: [attempting to set pod memory limit (10) below current usage (10), \
                 attempting to set container \"a\" memory limit (10) below current usage (10)]"
            )
        );
    }
}
