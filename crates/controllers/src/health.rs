//! Which controllers are at work in this process, and which have fallen over.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether each controller that was started is still on its feet.
static STARTED: Mutex<BTreeMap<&'static str, bool>> = Mutex::new(BTreeMap::new());

fn started() -> MutexGuard<'static, BTreeMap<&'static str, bool>> {
    STARTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The controllers that are at work, and whether they are well.
pub fn controllers() -> Vec<(&'static str, bool)> {
    started().iter().map(|(name, well)| (*name, *well)).collect()
}

/// A controller starts.
pub fn begins(name: &'static str) {
    started().insert(name, true);
}

/// Notes a controller as fallen when this is dropped before it has ended in order: in a panic.
pub struct Fallen {
    name: &'static str,
    ended: bool,
}

impl Fallen {
    pub fn unless_it_ends(name: &'static str) -> Self {
        Self { name, ended: false }
    }

    pub fn has_ended(&mut self) {
        self.ended = true;
    }
}

impl Drop for Fallen {
    fn drop(&mut self) {
        if self.ended {
            started().remove(self.name);
        } else {
            started().insert(self.name, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fallen_are_known() {
        let seen = |name: &str| controllers().into_iter().find(|(n, _)| *n == name).map(|(_, well)| well);
        for (name, ends, after) in [("ends", true, None), ("falls", false, Some(false))] {
            begins(name);
            assert_eq!(seen(name), Some(true));
            let mut fallen = Fallen::unless_it_ends(name);
            if ends {
                fallen.has_ended();
            }
            drop(fallen);
            assert_eq!(seen(name), after, "{name}");
        }
    }
}
