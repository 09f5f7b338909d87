//! The names of controllers: current ones, older ones in manifests, event sources and service accounts.
//!
//! Source: `cmd/kube-controller-manager/names` and the descriptors beside it.

use crate::list::ALL;

/// The names of all controllers.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|descriptor| descriptor.name)
}

/// The names of controllers from before all ended in `-controller`, with the current ones; `--controllers` accepts
/// both.
const ALIASES: &[(&str, &str)] = &[
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("bootstrapsigner", "bootstrap-signer-controller"),
    ("clusterrole-aggregation", "clusterrole-aggregation-controller"),
    ("cronjob", "cronjob-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("daemonset", "daemonset-controller"),
    ("deployment", "deployment-controller"),
    ("disruption", "disruption-controller"),
    ("endpoint", "endpoints-controller"),
    ("endpointslice", "endpointslice-controller"),
    ("endpointslicemirroring", "endpointslice-mirroring-controller"),
    ("ephemeral-volume", "ephemeral-volume-controller"),
    ("garbagecollector", "garbage-collector-controller"),
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("job", "job-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
    ("namespace", "namespace-controller"),
    ("nodeipam", "node-ipam-controller"),
    ("nodelifecycle", "node-lifecycle-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("replicaset", "replicaset-controller"),
    ("replicationcontroller", "replicationcontroller-controller"),
    ("resourcequota", "resourcequota-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("serviceaccount", "serviceaccount-controller"),
    ("serviceaccount-token", "serviceaccount-token-controller"),
    ("statefulset", "statefulset-controller"),
    ("storage-version-gc", "storageversion-garbage-collector-controller"),
    ("tokencleaner", "token-cleaner-controller"),
    ("ttl", "ttl-controller"),
    ("ttl-after-finished", "ttl-after-finished-controller"),
];

/// The controllers that `*` does not include.
const OFF_BY_DEFAULT: &[&str] = &["bootstrap-signer-controller", "token-cleaner-controller"];

/// Returns the current name of the controller with this current or older name.
pub fn by_name(name: &str) -> Option<&'static str> {
    let old = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, now)| *now);
    names().find(|known| *known == old.unwrap_or(name))
}

/// Returns whether the controller runs unless it is switched off.
pub fn on_by_default(name: &str) -> bool {
    !OFF_BY_DEFAULT.contains(&name)
}

/// Returns the source component in the events of a controller.
pub fn event_source(controller: &'static str) -> &'static str {
    match controller {
        "daemonset-controller"
        | "garbage-collector-controller"
        | "service-cidr-controller"
        | "taint-eviction-controller" => controller,
        "disruption-controller" => "controllermanager",
        "endpointslice-controller" => "endpoint-slice-controller",
        "endpointslice-mirroring-controller" => "endpoint-slice-mirroring-controller",
        "ephemeral-volume-controller" => "ephemeral_volume",
        "node-ipam-controller" => "cidrAllocator",
        "persistentvolume-binder-controller" => "persistentvolume-controller",
        "persistentvolume-expander-controller" => "volume_expand",
        "resourceclaim-controller" => "resource_claim",
        _ => service_account(controller),
    }
}

/// Returns the service account of a controller: its own name, unless upstream uses another.
pub fn service_account(controller: &'static str) -> &'static str {
    match controller {
        "bootstrap-signer-controller" => "bootstrap-signer",
        "token-cleaner-controller" => "token-cleaner",
        "horizontal-pod-autoscaler-controller" => "horizontal-pod-autoscaler",
        "daemonset-controller" => "daemon-set-controller",
        "endpoints-controller" => "endpoint-controller",
        "replicationcontroller-controller" => "replication-controller",
        "service-cidr-controller" => "service-cidrs-controller",
        "serviceaccount-controller" => "service-account-controller",
        "root-ca-certificate-publisher-controller" => "root-ca-cert-publisher",
        "node-ipam-controller" | "node-lifecycle-controller" | "taint-eviction-controller" => {
            "node-controller"
        }
        "legacy-serviceaccount-token-cleaner-controller" => "legacy-service-account-token-cleaner",
        "podcertificaterequest-cleaner-controller" => "podcertificaterequestcleaner",
        "kube-apiserver-serving-clustertrustbundle-publisher-controller" => {
            "kube-apiserver-serving-clustertrustbundle-publisher"
        }
        "garbage-collector-controller" => "generic-garbage-collector",
        "endpointslice-mirroring-controller" => "endpointslicemirroring-controller",
        "persistentvolume-attach-detach-controller" => "attachdetach-controller",
        "persistentvolume-binder-controller" => "persistent-volume-binder",
        "persistentvolume-expander-controller" => "expand-controller",
        "persistentvolume-protection-controller" => "pv-protection-controller",
        "persistentvolumeclaim-protection-controller" => "pvc-protection-controller",
        "resourceclaim-controller" => "resource-claim-controller",
        "pod-garbage-collector-controller" => "pod-garbage-collector",
        "storageversion-garbage-collector-controller" => "storage-version-garbage-collector",
        name if name.starts_with("certificatesigningrequest-") => "certificate-controller",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Upstream 1.37's controllers that Knarr lacks; docs/controllers.md says why.
    const NOT_HERE: &[&str] = &["resourcepoolstatusrequest-controller", "selinux-warning-controller"];
    /// Controllers that upstream does not have.
    const OWN: &[&str] = &["local-path-provisioner"];

    /// Returns the rows of the table in docs/controllers.md: each controller with its service account.
    fn documented() -> Vec<(String, String)> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/controllers.md");
        let text = std::fs::read_to_string(file).unwrap();
        let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
        let cells = rows.filter_map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
            Some((cells.next()?, cells.next()?))
        });
        cells.collect()
    }

    #[test]
    fn every_controller_is_documented_with_its_account() {
        let documented = documented();
        for name in names() {
            let account = documented.iter().find(|(n, _)| n == name).map(|(_, account)| account.as_str());
            assert_eq!(account, Some(service_account(name)), "{name}");
        }
        for (name, _) in &documented {
            let here = by_name(name) == Some(name.as_str());
            assert_ne!(here, NOT_HERE.contains(&name.as_str()), "{name}");
        }
        assert_eq!(documented.len(), names().count() + NOT_HERE.len());
        assert_eq!(names().count() - OWN.len() + NOT_HERE.len(), 49, "upstream 1.37 has 49");
    }

    #[test]
    fn older_names_still_mean_something() {
        for (alias, name) in ALIASES {
            assert_eq!(by_name(alias), Some(*name));
        }
        assert_eq!(by_name("job-controller"), Some("job-controller"));
        assert_eq!(by_name("jobs"), None);
        assert!(OFF_BY_DEFAULT.iter().all(|name| by_name(name) == Some(name)));
    }
}
