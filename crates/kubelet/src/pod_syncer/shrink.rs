//! Limits of memory that become lower than what is in use: on cgroups v2 the kernel would end a process of the
//! container, on v1 it refuses.
//!
//! Source: upstream's kubelet 1.37 compares in the same way, with the same messages, and refuses what it cannot compare
//! because the usage is missing; what cannot be done now is tried again, and is `PodResizeInProgress` with reason `Error`
//! until then.

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

/// A limit that is lowered, and what is in use of it in bytes, if that is known.
struct Lowered {
    /// `pod`, `container "a"`.
    name: String,
    limit: i64,
    usage: Option<u64>,
}

impl Lowered {
    fn refusal(&self) -> Option<String> {
        let Self { name, limit, usage } = self;
        let Some(usage) = usage else { return Some(format!("missing {name} memory usage")) };
        let below = u64::try_from(*limit).is_ok_and(|limit| *usage >= limit);
        below
            .then(|| format!("attempting to set {name} memory limit ({limit}) below current usage ({usage})"))
    }
}

/// Why the limits cannot be lowered.
fn refusal(limits: &[Lowered]) -> Option<String> {
    let reasons: Vec<String> = limits.iter().filter_map(Lowered::refusal).collect();
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
        of_pod: Option<Limit<'_>>,
        containers: &[(&Container, &ContainerStatus, &Resources)],
    ) -> Result<(), String> {
        let mut limits = Vec::new();
        // Without cgroups nothing is limited.
        let limit = of_pod.filter(|_| self.cgroups.are_there()).and_then(|limit| limit.lowered());
        if let Some(limit) = limit {
            let (cgroups, pod) = (self.cgroups.clone(), Arc::clone(pod));
            let usage = blocking(move || cgroups.memory_usage(&pod)).await?;
            limits.push(Lowered { name: "pod".to_owned(), limit, usage });
        }
        for (container, status, wanted) in containers {
            let limit = Limit { applied: memory.applied.get(&status.id), wanted };
            let Some(limit) = limit.lowered() else { continue };
            let stats = self.runtime.container_stats(&status.id).await.map_err(|e| e.to_string())?;
            // What runs uses some memory: 0 is what is shown of a runtime that does not report it.
            let usage = Some(stats.usage.memory_usage_bytes).filter(|bytes| *bytes > 0);
            limits.push(Lowered { name: format!("container {:?}", container.name), limit, usage });
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
        let lowered = |name: &str, usage| Lowered { name: name.to_owned(), limit: 10, usage };
        let below = |name: &str| lowered(name, Some(9));
        let above = |name: &str| lowered(name, Some(10));
        let unknown = |name: &str| lowered(name, None);
        assert_eq!(refusal(&[]), None);
        assert_eq!(refusal(&[below("pod")]), None);
        assert_eq!(
            refusal(&[unknown("pod"), unknown("container \"a\""), below("container \"b\"")]).as_deref(),
            Some(
                "cannot decrease memory limits: [missing pod memory usage, missing container \"a\" memory usage]"
            )
        );
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
