//! A cache of owners that the API server reported as missing, so that a thousand dependents cause one request.

use std::collections::{HashSet, VecDeque};

use super::identity::Identity;

/// A uid is never reused, so entries never become wrong; the oldest are dropped for new ones.
const CAPACITY: usize = 500;

/// The cached identities, oldest first.
#[derive(Debug, Default)]
pub struct AbsentOwners {
    known: HashSet<Identity>,
    order: VecDeque<Identity>,
}

impl AbsentOwners {
    pub fn add(&mut self, owner: Identity) {
        if !self.known.insert(owner.clone()) {
            return;
        }
        self.order.push_back(owner);
        if self.order.len() > CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    pub fn contains(&self, owner: &Identity) -> bool {
        self.known.contains(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let owner = |i: usize| Identity {
            kind: "K".into(),
            api_version: "v1".into(),
            namespace: "".into(),
            name: "n".into(),
            uid: i.to_string().into(),
        };
        let mut absent = AbsentOwners::default();
        (0..=CAPACITY).for_each(|i| absent.add(owner(i)));
        absent.add(owner(CAPACITY));
        assert!(!absent.contains(&owner(0)));
        assert!(absent.contains(&owner(1)) && absent.contains(&owner(CAPACITY)));
    }
}
