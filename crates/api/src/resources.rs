//! Every served resource, one line each.

use std::collections::BTreeMap;

use crate::kind::ResourceType;
use crate::resource::Resource;
use crate::{
    admissionregistration, apiextensions, apiregistration, apiserverinternal, apps, authentication,
    authorization, autoscaling, batch, certificates, coordination, core, devices, discovery, events,
    flowcontrol, networking, node, policy, rbac, scheduling, storage, storagemigration,
};

const ALL: &[&Resource] = &[
    &core::binding::RESOURCE,
    &core::componentstatus::RESOURCE,
    &core::configmap::RESOURCE,
    &core::endpoints::RESOURCE,
    &core::event::RESOURCE,
    &core::limitrange::RESOURCE,
    &core::namespace::RESOURCE,
    &core::node::RESOURCE,
    &core::persistentvolume::RESOURCE,
    &core::persistentvolumeclaim::RESOURCE,
    &core::pod::RESOURCE,
    &core::podtemplate::RESOURCE,
    &core::replicationcontroller::RESOURCE,
    &core::resourcequota::RESOURCE,
    &core::secret::RESOURCE,
    &core::service::RESOURCE,
    &core::serviceaccount::RESOURCE,
    &admissionregistration::mutatingadmissionpolicy::RESOURCE,
    &admissionregistration::mutatingadmissionpolicybinding::RESOURCE,
    &admissionregistration::mutatingwebhookconfiguration::RESOURCE,
    &admissionregistration::validatingadmissionpolicy::RESOURCE,
    &admissionregistration::validatingadmissionpolicybinding::RESOURCE,
    &admissionregistration::validatingwebhookconfiguration::RESOURCE,
    &apiextensions::customresourcedefinition::RESOURCE,
    &apiregistration::apiservice::RESOURCE,
    &apps::controllerrevision::RESOURCE,
    &apps::daemonset::RESOURCE,
    &apps::deployment::RESOURCE,
    &apps::replicaset::RESOURCE,
    &apps::statefulset::RESOURCE,
    &autoscaling::horizontalpodautoscaler::RESOURCE,
    &autoscaling::v1::RESOURCE,
    &batch::cronjob::RESOURCE,
    &batch::job::RESOURCE,
    &certificates::certificatesigningrequest::RESOURCE,
    &certificates::clustertrustbundle::RESOURCE,
    &certificates::podcertificaterequest::RESOURCE,
    &coordination::lease::RESOURCE,
    &devices::deviceclass::RESOURCE,
    &devices::devicetaintrule::RESOURCE,
    &devices::resourceclaim::RESOURCE,
    &devices::resourceclaimtemplate::RESOURCE,
    &devices::resourceslice::RESOURCE,
    &discovery::endpointslice::RESOURCE,
    &events::event::RESOURCE,
    &flowcontrol::flowschema::RESOURCE,
    &flowcontrol::prioritylevelconfiguration::RESOURCE,
    &rbac::clusterrole::RESOURCE,
    &rbac::clusterrolebinding::RESOURCE,
    &rbac::role::RESOURCE,
    &rbac::rolebinding::RESOURCE,
    &authentication::selfsubjectreview::RESOURCE,
    &authentication::tokenreview::RESOURCE,
    &authorization::localsubjectaccessreview::RESOURCE,
    &authorization::selfsubjectaccessreview::RESOURCE,
    &authorization::selfsubjectrulesreview::RESOURCE,
    &authorization::subjectaccessreview::RESOURCE,
    &networking::ingress::RESOURCE,
    &networking::ingressclass::RESOURCE,
    &networking::ipaddress::RESOURCE,
    &networking::networkpolicy::RESOURCE,
    &networking::servicecidr::RESOURCE,
    &node::runtimeclass::RESOURCE,
    &policy::poddisruptionbudget::RESOURCE,
    &scheduling::priorityclass::RESOURCE,
    &storage::csidriver::RESOURCE,
    &storage::csinode::RESOURCE,
    &storage::csistoragecapacity::RESOURCE,
    &storage::storageclass::RESOURCE,
    &storage::volumeattachment::RESOURCE,
    &storage::volumeattributesclass::RESOURCE,
    &storagemigration::storageversionmigration::RESOURCE,
];

/// Versions that upstream serves only if `--runtime-config` enables them.
const ON_REQUEST: &[&Resource] = &[
    &apiserverinternal::storageversion::RESOURCE,
    &coordination::leasecandidate::RESOURCE,
    &scheduling::podgroup::RESOURCE,
    &scheduling::workload::RESOURCE,
];

/// Returns the resources that are served by default.
pub fn all() -> &'static [&'static Resource] {
    ALL
}

/// Returns the resources that are served only if `--runtime-config` enables them.
pub fn on_request() -> &'static [&'static Resource] {
    ON_REQUEST
}

/// Returns the resources that this runtime configuration serves: `group/version=true,api/alpha=false …`.
///
/// Keys are `group/version` (`v1` for the core group), `group/version/plural`, `api/all`, `api/ga`, `api/beta` and
/// `api/alpha`; the most specific key decides. Values other than `false` mean `true`.
pub fn enabled(runtime_config: &BTreeMap<String, String>) -> Vec<&'static Resource> {
    let wanted = |resource: &Resource, default: bool| {
        let types = &resource.types;
        let version = types.api_version();
        let stage = match types.version {
            v if v.contains("alpha") => "api/alpha",
            v if v.contains("beta") => "api/beta",
            _ => "api/ga",
        };
        let keys = [format!("{version}/{}", types.plural), version, stage.to_owned(), "api/all".to_owned()];
        let setting = keys.iter().find_map(|key| runtime_config.get(key));
        setting.map_or(default, |value| value != "false")
    };
    let by_default = ALL.iter().filter(|r| wanted(r, true));
    by_default.chain(ON_REQUEST.iter().filter(|r| wanted(r, false))).copied().collect()
}

/// Returns the resource of this group and plural, in any version.
pub fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    both().find(|r| r.types.group == group && r.types.plural == plural)
}

/// Returns the resource of these types.
pub fn of(types: &ResourceType) -> Option<&'static Resource> {
    both().find(|r| r.types == *types)
}

fn both() -> impl Iterator<Item = &'static Resource> {
    ALL.iter().chain(ON_REQUEST).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::collections::BTreeSet;

    use crate::object::Object;
    use crate::resource::CellContext;

    #[test]
    fn every_resource_is_whole() {
        let mut seen = BTreeSet::new();
        let mut short_names = BTreeSet::new();
        for resource in both() {
            let types = &resource.types;
            assert!(seen.insert((types.group, types.version, types.plural)), "{types:?} is listed twice");
            assert_eq!(resource.singular, types.kind.to_lowercase(), "{types:?}");
            assert!(resource.verbs.is_sorted(), "{types:?}");
            assert_eq!(resource.verbs.contains(&"list"), !resource.list_kind.is_empty(), "{types:?}");
            assert!(resource.subresources.is_sorted_by_key(|s| s.name), "{types:?}");
            assert!(!resource.strategy.validate_name("a/b", false).is_empty(), "{types:?}");
            let fine = |name: &str| resource.strategy.validate_name(name, false).is_empty();
            assert!(fine("a") || fine("a.b") || fine("10.0.0.1"), "{types:?}");
            for short in resource.short_names {
                let shared = resource.stored_as.is_some() || !short_names.contains(short);
                short_names.insert(*short);
                assert!(shared || *short == "ev", "{short} is used twice");
            }
        }
    }

    #[test]
    fn runtime_configuration() {
        let config = |pairs: &[(&str, &str)]| {
            let map = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            enabled(&map).iter().map(|r| (r.types.api_version(), r.types.plural)).collect::<Vec<_>>()
        };
        let has = |pairs: &[(&str, &str)], version: &str, plural: &str| {
            config(pairs).iter().any(|(v, p)| v == version && *p == plural)
        };
        assert_eq!(config(&[]).len(), all().len());
        let beta = "scheduling.k8s.io/v1beta1";
        assert!(!has(&[], beta, "podgroups"));
        assert!(has(&[(beta, "true")], beta, "podgroups"));
        assert!(has(&[("api/beta", "")], beta, "workloads"));
        assert!(!has(&[("api/all", "true"), (beta, "false")], beta, "workloads"));
        assert!(!has(&[("apps/v1/deployments", "false")], "apps/v1", "deployments"));
        assert!(has(&[("apps/v1/deployments", "false")], "apps/v1", "replicasets"));
    }

    #[test]
    fn bare_objects_go_through_every_hook() {
        for resource in both() {
            let types = &resource.types;
            let bare = serde_json::json!({
                "apiVersion": types.api_version(), "kind": types.kind, "metadata": {"name": "a"},
            });
            let held = |v: &serde_json::Value| {
                Object::new(Bytes::from(v.to_string()), resource.selectable).unwrap_or_else(|e| panic!("{e}"))
            };
            let strategy = resource.strategy;
            let mut object = bare.clone();
            strategy.default(&mut object);
            let once = object.clone();
            strategy.default(&mut object);
            assert_eq!(once, object, "{types:?}: defaults are not stable");
            strategy.prepare_for_create(&mut object);
            let _ = strategy.validate(&held(&object));
            for subresource in [None].into_iter().chain(resource.subresources.iter().map(|s| Some(s.name))) {
                let mut new = object.clone();
                strategy.prepare_for_update(&mut new, &object, subresource);
                let _ = strategy.validate_update(&held(&new), &held(&object), subresource);
            }
            let cells = (resource.cells)(&held(&bare), &CellContext { now: jiff::Timestamp::UNIX_EPOCH });
            assert_eq!(cells.len(), resource.columns.len(), "{types:?}");
        }
    }

    #[test]
    fn hooks_bear_any_shape() {
        for odd in [
            "null",
            "[]",
            "7",
            "{\"spec\":[],\"metadata\":3,\"status\":\"x\"}",
            "{\"spec\":{\"template\":4}}",
        ] {
            for resource in both() {
                let mut object: serde_json::Value = serde_json::from_str(odd).unwrap_or_default();
                resource.strategy.default(&mut object);
                resource.strategy.prepare_for_create(&mut object);
                let old = object.clone();
                resource.strategy.prepare_for_update(&mut object, &old, None);
            }
        }
    }
}
