//! The priorities of groups and versions, which define their order in discovery.

/// Group, version, the group's priority, the version's priority within the group. Higher priorities come first.
const BUILT_IN: &[(&str, &str, i32, i32)] = &[
    ("", "v1", 18000, 1),
    ("admissionregistration.k8s.io", "v1", 16700, 15),
    ("apiextensions.k8s.io", "v1", 16700, 15),
    ("apps", "v1", 17800, 15),
    ("authentication.k8s.io", "v1", 17700, 15),
    ("authorization.k8s.io", "v1", 17600, 15),
    ("autoscaling", "v1", 17500, 15),
    ("autoscaling", "v2", 17500, 30),
    ("batch", "v1", 17400, 15),
    ("certificates.k8s.io", "v1", 17300, 15),
    ("certificates.k8s.io", "v1beta1", 17300, 9),
    ("coordination.k8s.io", "v1", 16500, 15),
    ("coordination.k8s.io", "v1alpha2", 16500, 12),
    ("coordination.k8s.io", "v1beta1", 16500, 13),
    ("discovery.k8s.io", "v1", 16200, 15),
    ("events.k8s.io", "v1", 17750, 15),
    ("flowcontrol.apiserver.k8s.io", "v1", 16100, 21),
    ("internal.apiserver.k8s.io", "v1alpha1", 16000, 9),
    ("lifecycle.k8s.io", "v1alpha1", 15700, 1),
    ("networking.k8s.io", "v1", 17200, 15),
    ("node.k8s.io", "v1", 16300, 15),
    ("policy", "v1", 17100, 15),
    ("rbac.authorization.k8s.io", "v1", 17000, 15),
    ("resource.k8s.io", "v1", 16200, 21),
    ("resource.k8s.io", "v1alpha3", 16200, 1),
    ("scheduling.k8s.io", "v1", 16600, 15),
    ("scheduling.k8s.io", "v1alpha3", 16600, 3),
    ("scheduling.k8s.io", "v1beta1", 16600, 9),
    ("storage.k8s.io", "v1", 16800, 15),
    ("storagemigration.k8s.io", "v1", 15800, 15),
    ("storagemigration.k8s.io", "v1beta1", 15800, 9),
];

/// The priorities of the groups of custom resources.
pub const CUSTOM: (i32, i32) = (1000, 100);
/// The priorities of `apiregistration.k8s.io`.
const REGISTRATION: (i32, i32) = (20_000, 1);

/// Returns the priorities of a built-in group version.
pub fn built_in(group: &str, version: &str) -> Option<(i32, i32)> {
    if group == "apiregistration.k8s.io" {
        return Some(REGISTRATION);
    }
    BUILT_IN.iter().find(|(g, v, ..)| (*g, *v) == (group, version)).map(|(_, _, g, v)| (*g, *v))
}
