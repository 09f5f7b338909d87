//! The graph of owners and dependents. It is pure: it is fed with what informers show and with what the API server
//! reports as missing.
//!
//! An owner that is referred to but not observed yet is a virtual node, until it is observed or found absent.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::decide::Standing;
use super::identity::{Identity, Meta, Reference, Uid};

#[derive(Debug, Clone)]
struct Node {
    identity: Identity,
    owners: Vec<Reference>,
    dependents: BTreeSet<Uid>,
    being_deleted: bool,
    deletes_dependents: bool,
    orphans_dependents: bool,
    /// Whether an informer has shown the object; otherwise the identity is only what a dependent claims.
    observed: bool,
}

impl Node {
    fn new(identity: Identity, observed: bool) -> Self {
        Self {
            identity,
            owners: Vec::new(),
            dependents: BTreeSet::new(),
            being_deleted: false,
            deletes_dependents: false,
            orphans_dependents: false,
            observed,
        }
    }
}

/// The work that a change of the graph causes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// Objects to check: their owners may be gone.
    pub delete: Vec<Uid>,
    /// Objects to check after a back-off.
    pub delete_later: Vec<Uid>,
    /// Owners whose dependents are to be orphaned.
    pub orphan: Vec<Uid>,
    /// Owners that certainly do not exist.
    pub absent: Vec<Identity>,
    /// Objects with an owner reference that resolves to another namespace; the owner is second.
    pub invalid: Vec<(Identity, Identity)>,
}

/// A copy of a node for a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub identity: Identity,
    pub observed: bool,
    pub being_deleted: bool,
    pub deletes_dependents: bool,
    pub standing: Standing,
    /// Dependents that block the node's deletion, and whether each waits for dependents of its own.
    pub blocking: Vec<(Uid, bool)>,
}

/// The nodes by uid.
#[derive(Debug, Default)]
pub struct Graph {
    nodes: HashMap<Uid, Node>,
}

impl Graph {
    pub fn view(&self, uid: &str) -> Option<View> {
        let node = self.nodes.get(uid)?;
        let dependents = || node.dependents.iter().filter_map(|d| self.nodes.get(d));
        let blocks = |d: &&Node| d.owners.iter().any(|o| *o.uid == *uid && o.blocks);
        Some(View {
            identity: node.identity.clone(),
            observed: node.observed,
            being_deleted: node.being_deleted,
            deletes_dependents: node.deletes_dependents,
            standing: Standing {
                has_dependents: !node.dependents.is_empty(),
                dependent_waits: dependents().any(|d| d.deletes_dependents),
            },
            blocking: dependents()
                .filter(blocks)
                .map(|d| (d.identity.uid.clone(), d.deletes_dependents))
                .collect(),
        })
    }

    pub fn dependents(&self, uid: &str) -> Vec<Identity> {
        let node = self.nodes.get(uid);
        let dependents = node.into_iter().flat_map(|n| &n.dependents);
        dependents.filter_map(|d| Some(self.nodes.get(d)?.identity.clone())).collect()
    }

    /// Applies the state of an object that an informer shows.
    pub fn upsert(&mut self, identity: &Identity, meta: &Meta) -> Effects {
        let mut effects = Effects::default();
        let uid = &identity.uid;
        match self.nodes.get(uid) {
            None => {
                self.nodes.insert(uid.clone(), Node::new(identity.clone(), true));
            }
            Some(node) if !node.observed => self.materialize(identity, &mut effects),
            Some(_) => {}
        }
        if let Some(node) = self.nodes.get_mut(uid)
            && node.identity.api_version != identity.api_version
        {
            // The object is now watched in another version of its group: the old one may no longer be served.
            node.identity.api_version = Arc::clone(&identity.api_version);
        }
        let Some(node) = self.nodes.get_mut(uid) else { return effects };
        let before = (node.orphans_dependents, node.deletes_dependents);
        node.being_deleted |= meta.being_deleted;
        node.orphans_dependents = meta.orphans_dependents();
        node.deletes_dependents = meta.deletes_dependents();
        let old = std::mem::replace(&mut node.owners, meta.owners.clone());
        if old != meta.owners {
            self.change_owners(identity, &old, &meta.owners, &mut effects);
        }
        let Some(node) = self.nodes.get(uid) else { return effects };
        if node.orphans_dependents && !before.0 {
            effects.orphan.push(uid.clone());
        } else if node.deletes_dependents && !before.1 {
            effects.delete.extend(node.dependents.iter().cloned());
            effects.delete.push(uid.clone());
        }
        effects
    }

    /// Marks a virtual node as observed, with this identity.
    fn materialize(&mut self, identity: &Identity, effects: &mut Effects) {
        let Some(node) = self.nodes.get(&identity.uid) else { return };
        if node.identity != *identity {
            // Dependents whose references do not match it may have no existing owner.
            let (_, wrong) = self.partition(&node.dependents, identity);
            for dependent in wrong {
                if let Some(node) = self.nodes.get(&dependent)
                    && !identity.namespace.is_empty()
                    && node.identity.namespace != identity.namespace
                {
                    effects.invalid.extend(invalid(node, &identity.uid));
                }
                effects.delete.push(dependent);
            }
        }
        if let Some(node) = self.nodes.get_mut(&identity.uid) {
            node.identity = identity.clone();
            node.observed = true;
        }
    }

    fn change_owners(
        &mut self,
        identity: &Identity,
        old: &[Reference],
        new: &[Reference],
        effects: &mut Effects,
    ) {
        for reference in old {
            let now = new.iter().find(|n| n.uid == reference.uid);
            // An owner that waits for this object may be able to proceed.
            if reference.blocks && now.is_none_or(|n| !n.blocks) && self.nodes.contains_key(&reference.uid) {
                effects.delete.push(reference.uid.clone());
            }
            if now.is_none()
                && let Some(owner) = self.nodes.get_mut(&reference.uid)
            {
                owner.dependents.remove(&identity.uid);
            }
        }
        let added: Vec<&Reference> = new.iter().filter(|n| !old.iter().any(|o| o.uid == n.uid)).collect();
        self.add_to_owners(identity, &added, effects);
    }

    fn add_to_owners(&mut self, identity: &Identity, references: &[&Reference], effects: &mut Effects) {
        let mut suspicious = false;
        for reference in references {
            let known = self.nodes.contains_key(&reference.uid);
            let owner = self
                .nodes
                .entry(reference.uid.clone())
                .or_insert_with(|| Node::new(Identity::of_owner(reference, &identity.namespace), false));
            owner.dependents.insert(identity.uid.clone());
            if !known {
                effects.delete.push(reference.uid.clone());
            } else if owner.identity.namespace != identity.namespace {
                let namespaced = !owner.identity.namespace.is_empty();
                if namespaced && owner.observed {
                    let claimed = Identity::of_owner(reference, &identity.namespace);
                    effects.invalid.push((identity.clone(), claimed));
                }
                // Objects in any namespace may refer to a cluster-scoped owner, once it is certain that the owner is
                // cluster-scoped.
                suspicious |= namespaced || !owner.observed || !reference.names(&owner.identity);
            } else {
                suspicious |= !reference.names(&owner.identity);
            }
        }
        if suspicious {
            effects.delete.push(identity.uid.clone());
        }
    }

    /// Removes an object that an informer saw deleted.
    pub fn remove(&mut self, identity: &Identity) -> Effects {
        let mut effects = Effects::default();
        self.take_out(identity, &mut effects);
        effects
    }

    /// Handles the API server's answer that there is no such object.
    pub fn not_found(&mut self, identity: &Identity) -> Effects {
        let mut effects = Effects::default();
        let Some(node) = self.nodes.get(&identity.uid) else { return effects };
        let (right, wrong) = self.partition(&node.dependents, identity);
        if node.observed && node.identity == *identity || !node.observed && wrong.is_empty() {
            self.take_out(identity, &mut effects);
            return effects;
        }
        if !right.is_empty() {
            effects.absent.push(identity.clone());
            effects.delete.extend(right);
        }
        if !node.observed && node.identity == *identity {
            // Other dependents refer to it by another identity, which may be the right one.
            if let Some(other) = self.other_name(&wrong, identity)
                && let Some(node) = self.nodes.get_mut(&identity.uid)
            {
                node.identity = other;
                effects.delete_later.push(identity.uid.clone());
            }
        }
        effects
    }

    fn take_out(&mut self, identity: &Identity, effects: &mut Effects) {
        let Some(node) = self.nodes.remove(&identity.uid) else { return };
        for reference in &node.owners {
            let Some(owner) = self.nodes.get_mut(&reference.uid) else { continue };
            owner.dependents.remove(&identity.uid);
            if owner.deletes_dependents {
                effects.delete.push(reference.uid.clone());
            }
        }
        if !node.dependents.is_empty() {
            effects.absent.push(identity.clone());
            effects.delete.extend(node.dependents);
        }
    }

    /// Divides dependents into those whose references match this owner identity and those whose references do not.
    fn partition(&self, dependents: &BTreeSet<Uid>, owner: &Identity) -> (Vec<Uid>, Vec<Uid>) {
        let (mut right, mut wrong) = (Vec::new(), Vec::new());
        for uid in dependents {
            let Some(node) = self.nodes.get(uid) else { continue };
            let reaches = owner.namespace.is_empty() || owner.namespace == node.identity.namespace;
            let mut references = node.owners.iter().filter(|r| r.uid == owner.uid);
            if reaches && references.clone().any(|r| r.names(owner)) {
                right.push(uid.clone());
            }
            if !reaches || references.any(|r| !r.names(owner)) {
                wrong.push(uid.clone());
            }
        }
        (right, wrong)
    }

    /// Returns the next of the identities by which these dependents refer to an owner, in order and starting over
    /// after the last.
    fn other_name(&self, dependents: &[Uid], absent: &Identity) -> Option<Identity> {
        let mut names = BTreeSet::new();
        for node in dependents.iter().filter_map(|d| self.nodes.get(d)) {
            for reference in node.owners.iter().filter(|r| r.uid == absent.uid) {
                let mut name = Identity::of_owner(reference, &node.identity.namespace);
                let same_kind = name.kind == absent.kind && name.api_version == absent.api_version;
                if absent.namespace.is_empty() && same_kind {
                    name.namespace = "".into();
                }
                names.insert(name);
            }
        }
        names.remove(absent);
        let next = names.iter().find(|n| *n > absent).or(names.first());
        next.cloned()
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
}

/// Returns the node and an owner that is not in its namespace.
fn invalid(node: &Node, owner: &Uid) -> Option<(Identity, Identity)> {
    let reference = node.owners.iter().find(|r| r.uid == *owner)?;
    Some((node.identity.clone(), Identity::of_owner(reference, &node.identity.namespace)))
}

#[cfg(test)]
#[path = "graph_tests.rs"]
mod tests;
