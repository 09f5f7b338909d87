//! Lists of limited length, and sets in which each key occurs once.

use std::collections::BTreeSet;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde_json::Value;

/// Validates each item, unless there are too many.
pub fn bounded<T>(
    errors: &mut ErrorList,
    path: &Path,
    items: &[T],
    most: usize,
    mut check: impl FnMut(&mut ErrorList, &Path, &T),
) -> bool {
    if items.len() > most {
        errors.push(Error::too_many(path, items.len(), most));
        return false;
    }
    for (i, item) in items.iter().enumerate() {
        check(errors, &path.index(i), item);
    }
    true
}

/// Does the same as [`bounded`], and requires that each key occurs once.
pub fn set<T, K: Ord + Into<Value> + Clone>(
    errors: &mut ErrorList,
    path: &Path,
    items: &[T],
    most: usize,
    key: impl Fn(&T) -> K,
    check: impl FnMut(&mut ErrorList, &Path, &T),
) {
    if !bounded(errors, path, items, most, check) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        let key = key(item);
        if !seen.insert(key.clone()) {
            errors.push(Error::duplicate(&path.index(i), key));
        }
    }
}
