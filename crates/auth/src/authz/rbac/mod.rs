//! Role-based access control, based on the cached roles and bindings.

mod index;
#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};

use super::{Attributes, Decision, rules};
use crate::authn::UserInfo;
use index::{Binding, Index};
use knarr_registry::cache::Cache;

/// The caches that RBAC reads.
pub struct Sources {
    pub roles: Arc<Cache>,
    pub role_bindings: Arc<Cache>,
    pub cluster_roles: Arc<Cache>,
    pub cluster_role_bindings: Arc<Cache>,
}

impl Sources {
    fn all(&self) -> [&Arc<Cache>; 4] {
        [&self.roles, &self.cluster_roles, &self.role_bindings, &self.cluster_role_bindings]
    }

    fn generations(&self) -> [u64; 4] {
        self.all().map(|cache| cache.generation())
    }
}

/// Authorizes requests by an index that follows the watch events of roles and bindings.
pub struct Rbac {
    sources: Sources,
    index: RwLock<Index>,
}

impl Rbac {
    pub fn new(sources: Sources) -> Self {
        Self { sources, index: RwLock::default() }
    }

    /// Calls `read` with the index, after applying all events that the caches have received. The first caller applies
    /// them; the cost depends only on the number of changes.
    fn with_index<T>(&self, read: impl FnOnce(&Index) -> T) -> T {
        let now = self.sources.generations();
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        if index.is_at(now) {
            return read(&index);
        }
        drop(index);
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.follow(&self.sources);
        read(&index)
    }

    /// Returns the rules of a role reference.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Arc<Vec<PolicyRule>>, String> {
        self.with_index(|index| index.rules_of(role, namespace))
    }

    pub fn authorize(&self, user: &UserInfo, wanted: &Attributes) -> Decision {
        self.with_index(|index| {
            let namespace = if wanted.is_resource() { wanted.namespace.as_str() } else { "" };
            let mut missing: Vec<String> = Vec::new();
            for (binding, subject) in index.bindings(user, namespace) {
                match index.rules_of(&binding.role, &binding.namespace) {
                    Ok(rules) if rules.iter().any(|r| rules::allows(r, wanted)) => {
                        return Decision::Allowed { reason: binding.allows(subject) };
                    }
                    Ok(_) => {}
                    Err(why) => missing.push(why),
                }
            }
            let reason = match missing.as_slice() {
                [] => String::new(),
                [one] => format!("RBAC: {one}"),
                many => format!("RBAC: [{}]", many.join(", ")),
            };
            Decision::NoOpinion { reason }
        })
    }

    /// Returns all rules that apply to a user in a namespace; with an empty namespace, the cluster-wide ones.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        self.with_index(|index| {
            let (mut rules, mut errors) = (Vec::new(), Vec::new());
            for (binding, _) in index.bindings(user, namespace) {
                match index.rules_of(&binding.role, &binding.namespace) {
                    Ok(found) => rules.extend(found.iter().cloned()),
                    Err(why) => errors.push(why),
                }
            }
            (rules, errors)
        })
    }
}

impl Binding {
    /// Returns the reason why a request is allowed, with upstream's text.
    fn allows(&self, subject: &str) -> String {
        let (kind, name) = match self.namespace.as_str() {
            "" => ("ClusterRoleBinding", self.name.clone()),
            namespace => ("RoleBinding", format!("{}/{namespace}", self.name)),
        };
        let role = &self.role;
        format!("RBAC: allowed by {kind} \"{name}\" of {} \"{}\" to {subject}", role.kind, role.name)
    }
}
