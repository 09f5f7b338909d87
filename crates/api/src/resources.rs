//! Every served resource, one line each.

use crate::kind::ResourceType;
use crate::resource::Resource;
use crate::{
    apps, authentication, authorization, coordination, core, discovery, events, policy, rbac, scheduling,
    storage,
};

const ALL: &[&Resource] = &[
    &core::binding::RESOURCE,
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
    &apps::controllerrevision::RESOURCE,
    &apps::daemonset::RESOURCE,
    &apps::deployment::RESOURCE,
    &apps::replicaset::RESOURCE,
    &apps::statefulset::RESOURCE,
    &coordination::lease::RESOURCE,
    &discovery::endpointslice::RESOURCE,
    &events::event::RESOURCE,
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
    &policy::poddisruptionbudget::RESOURCE,
    &scheduling::priorityclass::RESOURCE,
    &storage::storageclass::RESOURCE,
];

/// The table of served resources.
pub fn all() -> &'static [&'static Resource] {
    ALL
}

/// The resource of this group and plural, in any version.
pub fn find(group: &str, plural: &str) -> Option<&'static Resource> {
    ALL.iter().copied().find(|r| r.types.group == group && r.types.plural == plural)
}

/// The resource of these types.
pub fn of(types: &ResourceType) -> Option<&'static Resource> {
    ALL.iter().copied().find(|r| r.types == *types)
}
