//! Indexes bindings by subject, and the rules of roles. Watch events update the index one object at a time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use knarr_api::object::Object;
use knarr_api::resources;
use knarr_apimachinery::selector::Selector;

use super::Sources;
use crate::authn::UserInfo;
use crate::authz::rules::GROUP;
use knarr_registry::cache::{Cache, Change, Kind, Selection, WatchFrom, Watcher};

/// The maximum depth of roles that aggregate other aggregating roles.
const AGGREGATION_DEPTH: usize = 4;

type Rules = Arc<Vec<PolicyRule>>;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Who {
    User(String),
    Group(String),
}

/// One RoleBinding, or one ClusterRoleBinding if the namespace is empty.
pub struct Binding {
    pub namespace: String,
    pub name: String,
    pub role: RoleRef,
    /// The subjects, and their names in the binding.
    subjects: Vec<(Who, String)>,
}

/// The bindings of one namespace by subject: binding name to the binding and the subject's position in it.
type Bound = HashMap<Who, BTreeMap<String, (Arc<Binding>, usize)>>;

/// The parts of a ClusterRole that the index needs.
struct Held {
    object: Arc<Object>,
    rules: Rules,
    /// The selectors of the roles that it aggregates; an invalid selector selects nothing.
    selectors: Vec<Selector>,
}

#[derive(Default)]
pub struct Index {
    /// The generations of the caches when their events were last taken.
    generations: Option<[u64; 4]>,
    watchers: Option<[Watcher; 4]>,
    bindings: HashMap<String, Bound>,
    by_name: HashMap<(String, String), Arc<Binding>>,
    /// By `(namespace, name)`.
    roles: HashMap<(String, String), Rules>,
    cluster_roles: BTreeMap<String, Held>,
    /// The complete rules of aggregating cluster roles, including those of the aggregated roles.
    aggregated: HashMap<String, Rules>,
    aggregating: BTreeSet<String>,
}

/// Starts a watch of all objects of a cache, beginning with the existing ones.
fn watch(cache: &Cache, plural: &str) -> Option<Watcher> {
    let resource = resources::find(GROUP, plural)?;
    cache.watch(None, Selection::everything(resource.into()), WatchFrom::State).ok()
}

fn watch_all(sources: &Sources) -> Option<[Watcher; 4]> {
    Some([
        watch(&sources.roles, "roles")?,
        watch(&sources.cluster_roles, "clusterroles")?,
        watch(&sources.role_bindings, "rolebindings")?,
        watch(&sources.cluster_role_bindings, "clusterrolebindings")?,
    ])
}

impl Index {
    /// Returns whether the index contains all changes of the caches at these generations.
    pub fn is_at(&self, generations: [u64; 4]) -> bool {
        self.generations == Some(generations)
    }

    /// Applies the changes of the caches since the last call. If a watch has ended, because too many events were
    /// queued or the cache was reloaded, the index is rebuilt.
    pub fn follow(&mut self, sources: &Sources) {
        // The generations are read first: an event that is applied after that may be taken now, and still changes the
        // generation.
        let now = sources.generations();
        if self.is_at(now) {
            return;
        }
        let complete = self.drain();
        if !complete {
            *self = Self { watchers: watch_all(sources), ..Self::default() };
            self.drain();
        }
        self.generations = Some(now);
    }

    /// Applies queued events. Returns whether the watches still run, so that no event is missing.
    fn drain(&mut self) -> bool {
        let Some(mut watchers) = self.watchers.take() else { return false };
        let [roles, cluster_roles, role_bindings, cluster_role_bindings] = &mut watchers;
        while let Some(change) = roles.try_next() {
            self.role(&change);
        }
        let mut aggregates = false;
        while let Some(change) = cluster_roles.try_next() {
            self.cluster_role(&change);
            aggregates = true;
        }
        if aggregates {
            self.aggregate();
        }
        while let Some(change) = role_bindings.try_next() {
            self.binding::<RoleBinding>(&change, |b| (b.role_ref.clone(), b.subjects.clone()));
        }
        while let Some(change) = cluster_role_bindings.try_next() {
            self.binding::<ClusterRoleBinding>(&change, |b| (b.role_ref.clone(), b.subjects.clone()));
        }
        let complete = watchers.iter().all(|watcher| !watcher.has_ended());
        self.watchers = Some(watchers);
        complete
    }

    fn role(&mut self, change: &Change) {
        let object = &change.object;
        let key = (object.namespace().to_owned(), object.name().to_owned());
        match (change.kind, object.typed::<Role>()) {
            (Kind::Added | Kind::Modified, Ok(role)) => {
                self.roles.insert(key, Arc::new(role.rules.clone().unwrap_or_default()));
            }
            _ => {
                self.roles.remove(&key);
            }
        }
    }

    fn cluster_role(&mut self, change: &Change) {
        let object = &change.object;
        let name = object.name().to_owned();
        self.aggregating.remove(&name);
        let (Kind::Added | Kind::Modified, Ok(role)) = (change.kind, object.typed::<ClusterRole>()) else {
            self.cluster_roles.remove(&name);
            return;
        };
        let selectors = role.aggregation_rule.iter().flat_map(|a| a.cluster_role_selectors.iter().flatten());
        let selectors: Vec<_> =
            selectors.filter_map(|s| Selector::from_label_selector(Some(s)).ok()).collect();
        if !selectors.is_empty() {
            self.aggregating.insert(name.clone());
        }
        let rules = Arc::new(role.rules.clone().unwrap_or_default());
        self.cluster_roles.insert(name, Held { object: Arc::clone(object), rules, selectors });
    }

    /// Computes the rules of aggregating roles again: there are only a few such roles, and cluster roles rarely
    /// change.
    fn aggregate(&mut self) {
        let rules = |name: &String| (name.clone(), Arc::new(self.aggregated_rules(name, AGGREGATION_DEPTH)));
        self.aggregated = self.aggregating.iter().map(rules).collect();
    }

    /// Returns a cluster role's rules, with those of the roles that it aggregates.
    fn aggregated_rules(&self, name: &str, depth: usize) -> Vec<PolicyRule> {
        let Some(role) = self.cluster_roles.get(name) else { return Vec::new() };
        let mut rules = role.rules.to_vec();
        let Some(depth) = depth.checked_sub(1) else { return rules };
        for selector in &role.selectors {
            for (other, held) in &self.cluster_roles {
                if other == name || !selector.matches_with(|key| held.object.header().label(key)) {
                    continue;
                }
                for rule in self.aggregated_rules(other, depth) {
                    if !rules.contains(&rule) {
                        rules.push(rule);
                    }
                }
            }
        }
        rules
    }

    fn binding<T>(&mut self, change: &Change, parts: fn(&T) -> (RoleRef, Option<Vec<Subject>>))
    where
        T: knarr_api::kind::Kind + Send + Sync + 'static,
    {
        let object = &change.object;
        let key = (object.namespace().to_owned(), object.name().to_owned());
        self.unbind(&key);
        let (Kind::Added | Kind::Modified, Ok(typed)) = (change.kind, object.typed::<T>()) else { return };
        let (role, subjects) = parts(&typed);
        let (namespace, name) = key.clone();
        let subjects = subjects.unwrap_or_default();
        let subjects: Vec<_> = subjects.iter().filter_map(|s| subject(s, &namespace)).collect();
        let binding = Arc::new(Binding { namespace, name, role, subjects });
        let bound = self.bindings.entry(binding.namespace.clone()).or_default();
        for (position, (who, _)) in binding.subjects.iter().enumerate() {
            let of_subject = bound.entry(who.clone()).or_default();
            // If a subject occurs twice, its first position counts.
            of_subject.entry(binding.name.clone()).or_insert_with(|| (Arc::clone(&binding), position));
        }
        self.by_name.insert(key, binding);
    }

    fn unbind(&mut self, key: &(String, String)) {
        let Some(binding) = self.by_name.remove(key) else { return };
        let Some(bound) = self.bindings.get_mut(&binding.namespace) else { return };
        for (who, _) in &binding.subjects {
            if let Some(of_subject) = bound.get_mut(who) {
                of_subject.remove(&binding.name);
                if of_subject.is_empty() {
                    bound.remove(who);
                }
            }
        }
        if bound.is_empty() {
            self.bindings.remove(&binding.namespace);
        }
    }

    /// Returns the rules of a role reference.
    pub fn rules_of(&self, role: &RoleRef, namespace: &str) -> Result<Rules, String> {
        let missing =
            |resource: &str| format!("{resource}.rbac.authorization.k8s.io \"{}\" not found", role.name);
        match role.kind.as_str() {
            "ClusterRole" => {
                let own = || self.cluster_roles.get(&role.name).map(|held| &held.rules);
                let rules = self.aggregated.get(&role.name).or_else(own);
                rules.cloned().ok_or_else(|| missing("clusterrole"))
            }
            "Role" => {
                let rules = self.roles.get(&(namespace.to_owned(), role.name.clone()));
                rules.cloned().ok_or_else(|| missing("role"))
            }
            kind => Err(format!("unsupported role reference kind: \"{kind}\"")),
        }
    }

    /// Returns the bindings of a user: cluster-wide ones, then those of the namespace if it is not empty; each with
    /// the matching subject.
    pub fn bindings<'a>(
        &'a self,
        user: &'a UserInfo,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a Binding, &'a str)> {
        let scopes = [Some(""), Some(namespace).filter(|n| !n.is_empty())];
        let whos = || {
            let groups = user.groups.iter().map(|g| Who::Group(g.clone()));
            std::iter::once(Who::User(user.name.clone())).chain(groups)
        };
        scopes
            .into_iter()
            .flatten()
            .filter_map(|scope| self.bindings.get(scope))
            .flat_map(move |bound| whos().filter_map(|who| bound.get(&who)))
            .flat_map(|of_subject| of_subject.values())
            .filter_map(|(binding, at)| Some((&**binding, binding.subjects.get(*at)?.1.as_str())))
    }

    /// Returns the number of subjects and of bindings in the index.
    #[cfg(test)]
    pub fn sizes(&self) -> (usize, usize) {
        (self.bindings.values().map(HashMap::len).sum(), self.by_name.len())
    }
}

/// Returns the subject, and its name in refusals and reasons; `None` for an unknown kind.
fn subject(subject: &Subject, namespace: &str) -> Option<(Who, String)> {
    let name = &subject.name;
    match subject.kind.as_str() {
        "User" => Some((Who::User(name.clone()), format!("User \"{name}\""))),
        "Group" => Some((Who::Group(name.clone()), format!("Group \"{name}\""))),
        "ServiceAccount" => {
            let own = subject.namespace.as_deref().filter(|n| !n.is_empty());
            let of = own.or(Some(namespace)).filter(|n| !n.is_empty())?;
            let user = format!("system:serviceaccount:{of}:{name}");
            Some((Who::User(user), format!("ServiceAccount \"{name}/{of}\"")))
        }
        _ => None,
    }
}
