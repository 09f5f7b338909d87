//! Role-based access control over the watch-cached roles and bindings.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};

use knarr_apimachinery::selector::Selector;

use super::{Attributes, Decision, rules};
use crate::authn::UserInfo;
use crate::cache::Cache;

/// How far aggregation follows roles that aggregate others themselves.
const AGGREGATION_DEPTH: usize = 4;

/// The caches that RBAC reads.
pub struct Sources {
    pub roles: Arc<Cache>,
    pub role_bindings: Arc<Cache>,
    pub cluster_roles: Arc<Cache>,
    pub cluster_role_bindings: Arc<Cache>,
}

impl Sources {
    fn generations(&self) -> [u64; 4] {
        [&self.roles, &self.role_bindings, &self.cluster_roles, &self.cluster_role_bindings]
            .map(|c| c.generation())
    }
}

/// Evaluates requests against an index that is rebuilt when a role or binding changes.
pub struct Rbac {
    sources: Sources,
    index: ArcSwap<Index>,
}

#[derive(PartialEq, Eq, Hash)]
enum Who {
    User(String),
    Group(String),
}

struct Grant {
    /// Empty: everywhere.
    namespace: String,
    /// `Err` names a role that does not exist.
    rules: Result<Arc<Vec<PolicyRule>>, String>,
    why: String,
}

#[derive(Default)]
struct Index {
    generations: Option<[u64; 4]>,
    grants: HashMap<Who, Vec<Arc<Grant>>>,
}

impl Rbac {
    pub fn new(sources: Sources) -> Self {
        Self { sources, index: ArcSwap::default() }
    }

    fn index(&self) -> Arc<Index> {
        let now = self.sources.generations();
        let index = self.index.load_full();
        if index.generations == Some(now) {
            return index;
        }
        let fresh = Arc::new(self.build(now));
        self.index.store(Arc::clone(&fresh));
        fresh
    }

    fn build(&self, generations: [u64; 4]) -> Index {
        let mut index = Index { generations: Some(generations), ..Index::default() };
        for object in self.sources.cluster_role_bindings.list(None) {
            let Ok(binding) = object.typed::<ClusterRoleBinding>() else { continue };
            let why = |subject: &str| {
                format!(
                    "RBAC: allowed by ClusterRoleBinding \"{}\" of {} \"{}\" to {subject}",
                    object.name(),
                    binding.role_ref.kind,
                    binding.role_ref.name
                )
            };
            let rules = self.rules_of(&binding.role_ref, "");
            index.add(binding.subjects.as_deref(), "", rules, why);
        }
        for object in self.sources.role_bindings.list(None) {
            let Ok(binding) = object.typed::<RoleBinding>() else { continue };
            let namespace = object.namespace();
            let why = |subject: &str| {
                format!(
                    "RBAC: allowed by RoleBinding \"{}/{namespace}\" of {} \"{}\" to {subject}",
                    object.name(),
                    binding.role_ref.kind,
                    binding.role_ref.name
                )
            };
            let rules = self.rules_of(&binding.role_ref, namespace);
            index.add(binding.subjects.as_deref(), namespace, rules, why);
        }
        index
    }

    /// The rules behind a role reference.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Arc<Vec<PolicyRule>>, String> {
        let missing =
            |resource: &str| format!("{resource}.rbac.authorization.k8s.io \"{}\" not found", role.name);
        let rules = match role.kind.as_str() {
            "ClusterRole" => {
                let role = self.sources.cluster_roles.get(&role.name);
                let role =
                    role.and_then(|o| o.typed::<ClusterRole>().ok()).ok_or_else(|| missing("clusterrole"))?;
                Some(self.cluster_role_rules(&role, AGGREGATION_DEPTH))
            }
            "Role" => self
                .sources
                .roles
                .get(&format!("{namespace}/{}", role.name))
                .and_then(|o| o.typed::<Role>().ok())
                .ok_or_else(|| missing("role"))?
                .rules
                .clone(),
            kind => return Err(format!("unsupported role reference kind: \"{kind}\"")),
        };
        Ok(Arc::new(rules.unwrap_or_default()))
    }

    /// A cluster role's rules, with those of the roles that it aggregates.
    fn cluster_role_rules(&self, role: &ClusterRole, depth: usize) -> Vec<PolicyRule> {
        let mut rules = role.rules.clone().unwrap_or_default();
        let selectors = role.aggregation_rule.iter().flat_map(|a| a.cluster_role_selectors.iter().flatten());
        let Some(depth) = depth.checked_sub(1) else { return rules };
        for selector in selectors {
            let Ok(selector) = Selector::from_label_selector(Some(selector)) else { continue };
            for object in self.sources.cluster_roles.list(None) {
                let own = Some(object.name()) == role.metadata.name.as_deref();
                if own || !selector.matches_with(|key| object.header().label(key)) {
                    continue;
                }
                if let Ok(other) = object.typed::<ClusterRole>() {
                    for rule in self.cluster_role_rules(&other, depth) {
                        if !rules.contains(&rule) {
                            rules.push(rule);
                        }
                    }
                }
            }
        }
        rules
    }

    pub fn authorize(&self, user: &UserInfo, wanted: &Attributes) -> Decision {
        let index = self.index();
        let mut missing: Vec<&str> = Vec::new();
        for grant in index.of(user) {
            if !grant.namespace.is_empty() && (grant.namespace != wanted.namespace || !wanted.is_resource()) {
                continue;
            }
            match &grant.rules {
                Ok(rules) if rules.iter().any(|r| rules::allows(r, wanted)) => {
                    return Decision::Allowed { reason: grant.why.clone() };
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
    }

    /// All rules that hold for a user in a namespace; with an empty namespace those that hold everywhere.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<PolicyRule>, Vec<String>) {
        let index = self.index();
        let (mut rules, mut errors) = (Vec::new(), Vec::new());
        for grant in index.of(user).filter(|g| g.namespace.is_empty() || g.namespace == namespace) {
            match &grant.rules {
                Ok(found) => rules.extend(found.iter().cloned()),
                Err(why) => errors.push(why.clone()),
            }
        }
        (rules, errors)
    }
}

impl Index {
    fn add(
        &mut self,
        subjects: Option<&[Subject]>,
        namespace: &str,
        rules: Result<Arc<Vec<PolicyRule>>, String>,
        why: impl Fn(&str) -> String,
    ) {
        for subject in subjects.unwrap_or_default() {
            let (who, text) = match subject.kind.as_str() {
                "User" => (Who::User(subject.name.clone()), format!("User \"{}\"", subject.name)),
                "Group" => (Who::Group(subject.name.clone()), format!("Group \"{}\"", subject.name)),
                "ServiceAccount" => {
                    let of = subject.namespace.as_deref().unwrap_or(namespace);
                    let name = format!("system:serviceaccount:{of}:{}", subject.name);
                    (Who::User(name), format!("ServiceAccount \"{}/{of}\"", subject.name))
                }
                _ => continue,
            };
            let grant = Grant { namespace: namespace.to_owned(), rules: rules.clone(), why: why(&text) };
            self.grants.entry(who).or_default().push(Arc::new(grant));
        }
    }

    fn of<'a>(&'a self, user: &UserInfo) -> impl Iterator<Item = &'a Grant> {
        let by_user = self.grants.get(&Who::User(user.name.clone()));
        let by_group: Vec<_> =
            user.groups.iter().filter_map(|g| self.grants.get(&Who::Group(g.clone()))).collect();
        by_user.into_iter().chain(by_group).flatten().map(|g| &**g)
    }
}
