//! The nodes that devices are for, and the operations that nodes skip for them.

use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::validate;

pub use crate::core::pod::validation::node_selector;

const OPERATIONS: [&str; 3] = ["*", "NodePrepareResources", "NodeUnprepareResources"];

/// One way of selecting nodes: its name in messages, and whether it is used.
pub struct Way<'a> {
    pub name: &'a str,
    pub used: bool,
}

/// Returns the names of the ways that are used: `` {`nodeName`, `allNodes`} ``.
pub fn used(ways: &[Way<'_>]) -> Vec<String> {
    ways.iter().filter(|w| w.used).map(|w| format!("`{}`", w.name)).collect()
}

/// Requires that a flag is unset or true.
pub fn unset_or_true(errors: &mut ErrorList, path: &Path, flag: Option<bool>) {
    if flag == Some(false) {
        errors.push(Error::invalid(path, false, "must be either unset or set to true"));
    }
}

pub fn skipped_operations(errors: &mut ErrorList, path: &Path, operations: &[String]) {
    for (i, operation) in operations.iter().enumerate() {
        validate::supported_value(errors, &path.index(i), operation, &OPERATIONS);
    }
    let has = |name: &str| operations.iter().any(|o| o == name);
    if has("NodePrepareResources") && !has("NodeUnprepareResources") && !has("*") {
        let problem = "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped";
        errors.push(Error::invalid(path, validate::shown(&operations), problem));
    }
}
