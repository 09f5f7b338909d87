//! Limits on what the store holds: which keys belong to which namespace, and which the control plane writes beyond a quota.

use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use knarr_storage::{KeyRange, Options};

use crate::bootstrap::endpoints::MASTER_LEASES;
use crate::cache::ROOT;

/// etcd's default for `--quota-backend-bytes`.
const DEFAULT_QUOTA_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// A namespace may have this part of the quota.
const NAMESPACE_PART: u64 = 8;
/// Namespaces of the system, which have no limit.
const EXEMPT: [&str; 3] = ["kube-node-lease", "kube-public", "kube-system"];
/// What is written beyond the quota, from its reserve: heartbeats of nodes, leader election, nodes that register, and
/// what servers say of themselves.
const RESERVED: [&str; 3] = [
    "/registry/coordination.k8s.io/leases/kube-node-lease/",
    "/registry/coordination.k8s.io/leases/kube-system/",
    "/registry/core/nodes/",
];

/// The embedded store's options under `--quota-backend-bytes` and `--namespace-storage-limit-bytes`: 0 for the default,
/// negative for none.
pub fn storage_options(quota_bytes: i64, namespace_bytes: i64) -> Options {
    let quota_bytes = or_default(quota_bytes, DEFAULT_QUOTA_BYTES);
    let mut reserved: Vec<KeyRange> = RESERVED.into_iter().map(KeyRange::prefix).collect();
    reserved.push(KeyRange::prefix(MASTER_LEASES));
    Options {
        quota_bytes,
        reserved,
        share_of: Some(namespace_of),
        share_bytes: or_default(namespace_bytes, quota_bytes / NAMESPACE_PART),
        ..Options::default()
    }
}

fn or_default(bytes: i64, default: u64) -> u64 {
    match bytes {
        0 => default,
        bytes => u64::try_from(bytes).unwrap_or(0),
    }
}

/// The namespace whose limit an object counts towards, by its key: `/registry/GROUP/RESOURCE/NAMESPACE/NAME`.
fn namespace_of(key: &[u8]) -> Option<&[u8]> {
    let mut parts = key.strip_prefix(ROOT.as_bytes())?.split(|byte| *byte == b'/');
    let namespace = parts.nth(2)?;
    parts.next()?;
    let exempt = EXEMPT.iter().any(|name| name.as_bytes() == namespace);
    (!exempt && parts.next().is_none()).then_some(namespace)
}

/// The refusal of a write that a namespace has no room for.
pub fn exceeded(
    resource: &GroupResource,
    name: &str,
    namespace: &str,
    (requested, used, limit): (u64, u64, u64),
) -> StatusError {
    let why = format!(
        "exceeded storage limit of namespace {namespace}, requested: {requested} bytes, used: {used} bytes, limited: \
         {limit} bytes: delete objects of the namespace, or have the server's --namespace-storage-limit-bytes raised"
    );
    StatusError::forbidden(resource, name, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_namespaces() {
        for (key, namespace) in [
            ("/registry/core/configmaps/a/b", Some("a")),
            ("/registry/example.com/widgets/a/b", Some("a")),
            ("/registry/core/namespaces/a", None),
            ("/registry/core/configmaps/kube-system/b", None),
            ("/registry/coordination.k8s.io/leases/kube-node-lease/n", None),
            ("/registry/core/configmaps/default/b", Some("default")),
            ("/registry/core/configmaps/a/b/c", None),
            ("/allocations/nodeports/30000", None),
        ] {
            assert_eq!(namespace_of(key.as_bytes()), namespace.map(str::as_bytes), "{key}");
        }
    }

    #[test]
    fn flags_become_limits() {
        const GIB: u64 = 1024 * 1024 * 1024;
        for (quota, namespace, limits) in [
            (0, 0, (2 * GIB, GIB / 4)),
            (800, 0, (800, 100)),
            (800, 700, (800, 700)),
            (800, -1, (800, 0)),
            (-1, 0, (0, 0)),
            (-1, 5, (0, 5)),
        ] {
            let options = storage_options(quota, namespace);
            assert_eq!((options.quota_bytes, options.share_bytes), limits, "{quota} {namespace}");
        }
    }
}
