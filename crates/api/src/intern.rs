//! Interned names of API groups, versions, kinds, resources and fields, which live as long as the process.
//!
//! Resource descriptors hold `&'static str`. The names of custom resources arrive at run time, so that each distinct
//! name is leaked once: updating a CustomResourceDefinition, or deleting and recreating it, adds nothing. The total
//! size is limited; once it is reached, a custom resource with new names is not served, and the error is logged.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Limit of all names together, in bytes. A cluster has some hundred resources with some hundred bytes of names
/// each.
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
        // Counts the memory that the sets need per entry, too.
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

/// Returns the interned name; `None` if the limit is reached.
pub fn name(name: &str) -> Option<&'static str> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).name(name)
}

/// Returns the interned list of names; `None` if the limit is reached.
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
