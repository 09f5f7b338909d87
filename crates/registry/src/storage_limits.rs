//! Limits on the size of the store: which share each key counts towards, and which keys the control plane may write
//! beyond the quota.

use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use knarr_storage::{KeyRange, Options};

use crate::cache::ROOT;

/// The prefix under which each server that shares a store keeps a lease.
pub const MASTER_LEASES: &str = "/masterleases/";
/// etcd's default for `--quota-backend-bytes`.
const DEFAULT_QUOTA_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// The limit of a namespace is the quota divided by this number.
const NAMESPACE_PART: u64 = 8;
/// System namespaces, which have no limit.
const EXEMPT: [&str; 3] = ["kube-node-lease", "kube-public", "kube-system"];
/// The servers' own Service, by which pods reach the API. It has no limit, so that filling its namespace cannot block
/// it.
const OWN_SERVICE: [&str; 3] = [
    "core/services/default/kubernetes",
    "core/endpoints/default/kubernetes",
    "discovery.k8s.io/endpointslices/default/kubernetes",
];
/// Resources of which a node may create any number in each namespace. In each system namespace they have a share of
/// their own, as large as a namespace's, so that one node cannot fill the store.
const NODES_CREATE_ANYWHERE: [&str; 3] =
    ["core/events", "core/pods", "certificates.k8s.io/podcertificaterequests"];
/// The same for cluster-scoped resources. Nodes and CSINodes are not listed because a node may only create its own.
const NODES_CREATE_IN_CLUSTER: [&str; 2] =
    ["certificates.k8s.io/certificatesigningrequests", "resource.k8s.io/resourceslices"];
/// Keys that may be written beyond the quota, from its reserve: node heartbeats, leader election, node registration,
/// and the leases of the servers.
const RESERVED: [&str; 3] = [
    "/registry/coordination.k8s.io/leases/kube-node-lease/",
    "/registry/coordination.k8s.io/leases/kube-system/",
    "/registry/core/nodes/",
];

/// Returns the embedded store's options for `--quota-backend-bytes` and `--namespace-storage-limit-bytes`; 0 means
/// the default, a negative value no limit.
pub fn storage_options(quota_bytes: i64, namespace_bytes: i64) -> Options {
    let quota_bytes = or_default(quota_bytes, DEFAULT_QUOTA_BYTES);
    let mut reserved: Vec<KeyRange> = RESERVED.into_iter().map(KeyRange::prefix).collect();
    reserved.push(KeyRange::prefix(MASTER_LEASES));
    Options {
        quota_bytes,
        reserved,
        share_of: Some(share_of),
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

/// Returns the share that an object counts towards, from its key `/registry/GROUP/RESOURCE/[NAMESPACE/]NAME`: the
/// namespace's, or `GROUP/RESOURCE[/NAMESPACE]` for resources that nodes create without a namespace limit.
fn share_of(key: &[u8]) -> Option<&[u8]> {
    let key = key.strip_prefix(ROOT.as_bytes())?;
    if OWN_SERVICE.iter().any(|own| own.as_bytes() == key) {
        return None;
    }
    let mut slashes = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let resource = key.get(
        ..{
            slashes.next()?;
            slashes.next()?
        },
    )?;
    let is_one_of = |names: &[&str]| names.iter().any(|name| name.as_bytes() == resource);
    let Some(end) = slashes.next() else {
        return is_one_of(&NODES_CREATE_IN_CLUSTER).then_some(resource);
    };
    if slashes.next().is_some() {
        return None;
    }
    let namespace = key.get(resource.len() + 1..end)?;
    if !EXEMPT.iter().any(|name| name.as_bytes() == namespace) {
        return Some(namespace);
    }
    if is_one_of(&NODES_CREATE_ANYWHERE) { key.get(..end) } else { None }
}

/// Describes a share: a namespace, or a resource in one namespace or cluster-scoped.
fn described(share: &str) -> String {
    let mut parts = share.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(_), Some(resource), Some(namespace)) => format!("{resource} in namespace {namespace}"),
        (Some(_), Some(resource), None) => resource.to_owned(),
        _ => format!("namespace {share}"),
    }
}

/// Returns the refusal of a write that exceeds the limit of its share.
pub fn exceeded(
    resource: &GroupResource,
    name: &str,
    share: &str,
    (requested, used, limit): (u64, u64, u64),
) -> StatusError {
    let (of, whose) =
        (described(share), if share.contains('/') { "of this kind" } else { "of the namespace" });
    let why = format!(
        "exceeded storage limit of {of}, requested: {requested} bytes, used: {used} bytes, limited: {limit} bytes: \
         delete objects {whose}, or have the server's --namespace-storage-limit-bytes raised"
    );
    StatusError::forbidden(resource, name, &why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_belong_to_shares() {
        for (key, share) in [
            ("/registry/core/configmaps/a/b", Some("a")),
            ("/registry/example.com/widgets/a/b", Some("a")),
            ("/registry/core/namespaces/a", None),
            ("/registry/core/configmaps/kube-system/b", None),
            ("/registry/coordination.k8s.io/leases/kube-node-lease/n", None),
            ("/registry/core/configmaps/default/b", Some("default")),
            ("/registry/core/configmaps/a/b/c", None),
            ("/registry/core/services/default/kubernetes", None),
            ("/registry/core/endpoints/default/kubernetes", None),
            ("/registry/discovery.k8s.io/endpointslices/default/kubernetes", None),
            ("/registry/core/services/default/kubernetes2", Some("default")),
            ("/registry/core/configmaps/default/kubernetes", Some("default")),
            ("/allocations/nodeports/30000", None),
            ("/registry/core/events/a/b", Some("a")),
            ("/registry/core/events/kube-system/b", Some("core/events/kube-system")),
            ("/registry/core/events/kube-node-lease/b", Some("core/events/kube-node-lease")),
            ("/registry/core/pods/kube-system/b", Some("core/pods/kube-system")),
            (
                "/registry/certificates.k8s.io/podcertificaterequests/kube-system/b",
                Some("certificates.k8s.io/podcertificaterequests/kube-system"),
            ),
            (
                "/registry/certificates.k8s.io/certificatesigningrequests/b",
                Some("certificates.k8s.io/certificatesigningrequests"),
            ),
            ("/registry/resource.k8s.io/resourceslices/b", Some("resource.k8s.io/resourceslices")),
            ("/registry/core/nodes/b", None),
            ("/registry/core/nodes", None),
            ("/registry/", None),
        ] {
            let found = share_of(key.as_bytes()).map(String::from_utf8_lossy);
            assert_eq!(found.as_deref(), share, "{key}");
        }
    }

    #[test]
    fn refusals_say_what_is_full() {
        for (share, expected) in [
            ("a", "exceeded storage limit of namespace a, requested: 1 bytes"),
            (
                "core/events/kube-system",
                "exceeded storage limit of events in namespace kube-system, requested",
            ),
            ("resource.k8s.io/resourceslices", "exceeded storage limit of resourceslices, requested"),
        ] {
            let error = exceeded(&GroupResource::new("", "things"), "b", share, (1, 2, 3));
            assert!(error.message().contains(expected), "{}", error.message());
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
