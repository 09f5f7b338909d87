//! Computes the difference between the applied and the desired rules, in an order that the kernel accepts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::base::affinity_set;
use super::service::{ServiceRules, SetName};
use crate::conntrack::UdpDestinations;
use crate::nft::{Batch, Data, Rule};
use crate::per_service::ServiceKey;

type ElementKey = (SetName, Vec<u8>);

/// The services whose rules are in force.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    services: BTreeMap<ServiceKey, Arc<ServiceRules>>,
    /// Which services claim each element: two services may claim one address and port, or share a pod. The
    /// first by name has it, and the next one gets it when that is removed.
    claims: BTreeMap<ElementKey, BTreeMap<ServiceKey, Data>>,
}

/// The changes to the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub add_sets: Vec<String>,
    pub add_chains: Vec<String>,
    pub delete_elements: BTreeMap<SetName, BTreeMap<Vec<u8>, Data>>,
    /// Existing chains that get other rules.
    pub flush_chains: Vec<String>,
    pub rules: Vec<(String, Vec<Rule>)>,
    pub add_elements: BTreeMap<SetName, BTreeMap<Vec<u8>, Data>>,
    pub delete_chains: Vec<String>,
    pub delete_sets: Vec<String>,
    /// UDP destinations of the changed services; those of removed services have no endpoints.
    pub udp: UdpDestinations,
    /// The number of changed services.
    pub services: usize,
}

impl Changes {
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.services == 0
    }

    /// Adds the changes to a transaction: first new objects, then references to them, then the removal of
    /// objects without references.
    pub fn write(&self, batch: &mut Batch) {
        for set in &self.add_sets {
            batch.add_set(&affinity_set(set));
        }
        for chain in &self.add_chains {
            batch.add_chain(chain);
        }
        for (set, elements) in &self.delete_elements {
            batch.delete_elements(set.as_str(), elements.iter().map(|(k, d)| (k.as_slice(), d)));
        }
        for chain in self.flush_chains.iter().chain(&self.delete_chains) {
            batch.flush_chain(chain);
        }
        for (chain, rules) in &self.rules {
            for rule in rules {
                batch.add_rule(chain, rule);
            }
        }
        for (set, elements) in &self.add_elements {
            batch.add_elements(set.as_str(), elements.iter().map(|(k, d)| (k.as_slice(), d)));
        }
        for chain in &self.delete_chains {
            batch.delete_chain(chain);
        }
        for set in &self.delete_sets {
            batch.delete_set(set);
        }
    }
}

impl Applied {
    pub fn services(&self) -> &BTreeMap<ServiceKey, Arc<ServiceRules>> {
        &self.services
    }

    /// Advances to `desired` and returns the changes that this needs.
    pub fn advance(&mut self, desired: &BTreeMap<ServiceKey, Arc<ServiceRules>>) -> Changes {
        let mut changes = Changes::default();
        let mut touched = BTreeMap::new();
        let none = Arc::new(ServiceRules::default());
        let gone: Vec<_> = self.services.keys().filter(|k| !desired.contains_key(*k)).cloned().collect();
        let gone = gone.iter().map(|key| (key, &none));
        for (key, new) in gone.chain(desired) {
            let old = self.services.get(key).cloned().unwrap_or_else(|| none.clone());
            if Arc::ptr_eq(&old, new) || old == *new {
                continue;
            }
            changes.services += 1;
            change_sets(&mut changes, &old, new);
            change_chains(&mut changes, &old, new);
            change_udp(&mut changes.udp, &old, new);
            self.claim(&mut touched, key, &old, new);
        }
        for (key, before) in touched {
            let after = self.winner(&key);
            if before != after {
                let (set, bytes) = key;
                if let Some(data) = before {
                    changes.delete_elements.entry(set).or_default().insert(bytes.clone(), data);
                }
                if let Some(data) = after {
                    changes.add_elements.entry(set).or_default().insert(bytes, data);
                }
            }
        }
        self.services.clone_from(desired);
        changes
    }

    fn winner(&self, key: &ElementKey) -> Option<Data> {
        self.claims.get(key)?.values().next().cloned()
    }

    /// Replaces the claims of a service; `touched` records the owner of an element before its first change.
    fn claim(
        &mut self,
        touched: &mut BTreeMap<ElementKey, Option<Data>>,
        service: &ServiceKey,
        old: &ServiceRules,
        new: &ServiceRules,
    ) {
        for key in old.elements.keys().chain(new.elements.keys()).collect::<BTreeSet<_>>() {
            if old.elements.get(key) == new.elements.get(key) {
                continue;
            }
            if !touched.contains_key(key) {
                touched.insert(key.clone(), self.winner(key));
            }
            let claims = self.claims.entry(key.clone()).or_default();
            match new.elements.get(key) {
                Some(data) => {
                    claims.insert(service.clone(), data.clone());
                }
                None => {
                    claims.remove(service);
                }
            }
            if claims.is_empty() {
                self.claims.remove(key);
            }
        }
    }
}

fn change_sets(changes: &mut Changes, old: &ServiceRules, new: &ServiceRules) {
    changes.add_sets.extend(new.affinity_sets.difference(&old.affinity_sets).cloned());
    changes.delete_sets.extend(old.affinity_sets.difference(&new.affinity_sets).cloned());
}

fn change_chains(changes: &mut Changes, old: &ServiceRules, new: &ServiceRules) {
    for (name, rules) in &new.chains {
        match old.chains.get(name) {
            Some(same) if same == rules => continue,
            Some(_) => changes.flush_chains.push(name.clone()),
            None => changes.add_chains.push(name.clone()),
        }
        changes.rules.push((name.clone(), rules.clone()));
    }
    changes.delete_chains.extend(old.chains.keys().filter(|c| !new.chains.contains_key(*c)).cloned());
}

/// Collects UDP destinations whose flows may have become stale, because an endpoint was removed or there was
/// none before. Only these, because listing the kernel's connections takes milliseconds.
fn change_udp(udp: &mut UdpDestinations, old: &ServiceRules, new: &ServiceRules) {
    change_destinations(&mut udp.by_address, &old.udp.by_address, &new.udp.by_address);
    change_destinations(&mut udp.by_node_port, &old.udp.by_node_port, &new.udp.by_node_port);
}

type Targets = BTreeSet<(Ipv4Addr, u16)>;

fn change_destinations<K: Copy + Ord>(
    changed: &mut BTreeMap<K, Targets>,
    old: &BTreeMap<K, Targets>,
    new: &BTreeMap<K, Targets>,
) {
    for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (old.get(key), new.get(key));
        let only_grew = match (before, after) {
            (Some(before), Some(after)) => !before.is_empty() && before.is_subset(after),
            _ => false,
        };
        if !only_grew {
            changed.entry(*key).or_default().extend(after.into_iter().flatten());
        }
    }
}
