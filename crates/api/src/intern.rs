//! Names that live as long as the process: what API groups, versions, kinds, resources and fields are called.
//!
//! Descriptors of resources hold `&'static str`. Those of custom resources come at run time, so that their names are
//! kept here, each distinct one once: a CustomResourceDefinition that is updated, or deleted and made again, adds
//! nothing. What can be kept is limited; beyond it a resource cannot be served, and is told so.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Bytes of all names together. A cluster has some hundred resources of some hundred bytes each.
const MAX_BYTES: usize = 16 * 1024 * 1024;

#[derive(Default)]
struct Kept {
    names: BTreeSet<&'static str>,
    lists: BTreeSet<&'static [&'static str]>,
    bytes: usize,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { names: BTreeSet::new(), lists: BTreeSet::new(), bytes: 0 });

impl Kept {
    fn takes(&mut self, bytes: usize) -> bool {
        // What the sets themselves need for an entry counts as well.
        let bytes = bytes + 32;
        let fits = self.bytes + bytes <= MAX_BYTES;
        self.bytes += if fits { bytes } else { 0 };
        fits
    }

    fn name(&mut self, name: &str) -> Option<&'static str> {
        if let Some(kept) = self.names.get(name) {
            return Some(kept);
        }
        if !self.takes(name.len()) {
            return None;
        }
        let kept: &'static str = Box::leak(name.into());
        self.names.insert(kept);
        Some(kept)
    }
}

/// The name as one that lives as long as the process; `None` when too many are kept already.
pub fn name(name: &str) -> Option<&'static str> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).name(name)
}

/// The names as a list that lives as long as the process; `None` when too many are kept already.
pub fn names<'a>(list: impl IntoIterator<Item = &'a str>) -> Option<&'static [&'static str]> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let list: Vec<&'static str> = list.into_iter().map(|n| kept.name(n)).collect::<Option<_>>()?;
    if list.is_empty() {
        return Some(&[]);
    }
    if let Some(known) = kept.lists.get(list.as_slice()) {
        return Some(known);
    }
    if !kept.takes(size_of_val(list.as_slice())) {
        return None;
    }
    let list: &'static [&'static str] = Box::leak(list.into_boxed_slice());
    kept.lists.insert(list);
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_kept_once() {
        let (a, b) = (name("crontabs").unwrap(), name("crontabs").unwrap());
        assert!(std::ptr::eq(a, b));
        let (a, b) = (names(["x", "y"]).unwrap(), names(["x", "y"]).unwrap());
        assert!(std::ptr::eq(a, b));
        assert_eq!(a, ["x", "y"]);
        assert!(names([]).unwrap().is_empty());
    }
}
