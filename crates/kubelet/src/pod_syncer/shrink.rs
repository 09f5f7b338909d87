//! Refuses to lower a memory limit below the memory in use: on cgroups v2 the kernel would kill a process of the
//! container, on v1 it refuses the write.
//!
//! Source: upstream's kubelet 1.37 (`validateMemoryResizeAction`) compares in the same way, with the same
//! messages. Where the usage is missing it refuses, too, but only if a memory limit becomes lower. A refused
//! resize is tried again; until then the pod has the condition `PodResizeInProgress` with reason `Error`.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{PodMemory, PodSyncer, blocking};
use crate::runtime::{ContainerStatus, Resources};

/// A memory limit that is to change.
pub(super) struct Limit<'a> {
    /// The limit in force, in bytes; negative means unlimited, `None` means unknown.
    pub in_force: Option<i64>,
    pub wanted: &'a Resources,
}

/// A lower limit in bytes, and the highest usage in bytes at which it may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lower {
    limit: i64,
    most: i64,
}

impl Limit<'_> {
    /// Returns the new limit if it is, or may be, lower than the one in force.
    fn lowered(&self) -> Option<Lower> {
        let limit = self.wanted.memory_limit.filter(|limit| *limit >= 0)?;
        match self.in_force {
            Some(in_force) if (0..=limit).contains(&in_force) => None,
            Some(_) => Some(Lower { limit, most: limit - 1 }),
            // The unknown limit is at least the usage: where the new limit equals the usage, setting it cannot
            // take memory away. Upstream takes an unknown limit for unlimited, and refuses this case.
            None => Some(Lower { limit, most: limit }),
        }
    }
}

/// A limit that is lowered, and the usage in bytes if it is known.
struct Lowered {
    /// `pod`, or `container "a"`.
    name: String,
    lower: Lower,
    usage: Option<u64>,
}

impl Lowered {
    /// Returns why this limit cannot be lowered, or `None` if it can.
    fn refusal(&self) -> Option<String> {
        let Self { name, lower: Lower { limit, most }, usage } = self;
        let Some(usage) = usage else { return Some(format!("missing {name} memory usage")) };
        let below = i64::try_from(*usage).map_or(true, |usage| usage > *most);
        below
            .then(|| format!("attempting to set {name} memory limit ({limit}) below current usage ({usage})"))
    }
}

/// Returns why the limits cannot be lowered, or `None` if they can.
fn refusal(limits: &[Lowered]) -> Option<String> {
    let reasons: Vec<String> = limits.iter().filter_map(Lowered::refusal).collect();
    match reasons.as_slice() {
        [] => None,
        [reason] => Some(format!("cannot decrease memory limits: {reason}")),
        several => Some(format!("cannot decrease memory limits: [{}]", several.join(", "))),
    }
}

impl PodSyncer {
    /// Checks that no new limit of the pod, if given, or of a container is below the usage.
    ///
    /// # Errors
    ///
    /// Returns the text for the pod's resize condition if a limit cannot be lowered, or its usage is unknown.
    pub(super) async fn check_shrink(
        &self,
        pod: &Arc<Pod>,
        memory: &PodMemory,
        of_pod: Option<Limit<'_>>,
        containers: &[(&Container, &ContainerStatus, &Resources)],
    ) -> Result<(), String> {
        let mut limits = Vec::new();
        // Without cgroups no limit is in force.
        let limit = of_pod.filter(|_| self.cgroups.are_there()).and_then(|limit| limit.lowered());
        if let Some(lower) = limit {
            let (cgroups, pod) = (self.cgroups.clone(), Arc::clone(pod));
            let usage = blocking(move || cgroups.memory_usage(&pod)).await?;
            limits.push(Lowered { name: "pod".to_owned(), lower, usage });
        }
        for (container, status, wanted) in containers {
            let in_force = match memory.applied.get(&status.id) {
                Some(applied) => Some(applied.memory_limit.unwrap_or(-1)),
                None if wanted.memory_limit.is_none() => continue,
                // After a restart of this server the runtime knows the limit.
                None => {
                    let limits = self.runtime.container_limits(&status.id).await;
                    limits.map_err(|e| e.to_string())?.memory_limit
                }
            };
            let Some(lower) = (Limit { in_force, wanted }).lowered() else { continue };
            let stats = self.runtime.container_stats(&status.id).await.map_err(|e| e.to_string())?;
            // A running container uses some memory: 0 means that the runtime does not report usage.
            let usage = Some(stats.usage.memory_usage_bytes).filter(|bytes| *bytes > 0);
            limits.push(Lowered { name: format!("container {:?}", container.name), lower, usage });
        }
        refusal(&limits).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_limits_are_lowered() {
        for (in_force, wanted, expected) in [
            (Some(-1), Some(5), Some((5, 4))),
            (Some(6), Some(5), Some((5, 4))),
            (Some(5), Some(5), None),
            (Some(5), Some(6), None),
            (Some(5), None, None),
            (Some(5), Some(-1), None),
            (None, Some(5), Some((5, 5))),
            (None, None, None),
        ] {
            let wants = Resources { memory_limit: wanted, ..Resources::default() };
            let lower = Limit { in_force, wanted: &wants }.lowered();
            assert_eq!(lower.map(|l| (l.limit, l.most)), expected, "{in_force:?} {wanted:?}");
        }
    }

    #[test]
    fn what_is_in_use_is_said() {
        let lower = Lower { limit: 10, most: 9 };
        let lowered = |name: &str, usage| Lowered { name: name.to_owned(), lower, usage };
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
