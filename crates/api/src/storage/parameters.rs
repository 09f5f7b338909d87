//! What storage classes have in common: a driver's name, and parameters that only the driver understands.

use std::collections::BTreeMap;

use knarr_apimachinery::field::{Error, ErrorList, Path};

use crate::validate;

const COUNT_MAX: usize = 512;
const BYTES_MAX: usize = 256 * 1024;

/// Validates the name of a provisioner or driver: a label key, in any case.
pub fn driver(errors: &mut ErrorList, path: &Path, name: &str) {
    if validate::required(errors, path, name) {
        validate::label_key(errors, path, &name.to_lowercase());
    }
}

/// Validates the name of a CSI driver: a DNS subdomain, in any case.
pub fn csi_driver(errors: &mut ErrorList, path: &Path, name: &str) {
    const NAME_MAX: usize = 63;
    if !validate::required(errors, path, name) {
        return;
    }
    if name.len() > NAME_MAX {
        errors.push(Error::too_long(path, NAME_MAX));
    }
    let problems = knarr_apimachinery::names::dns1123_subdomain(&name.to_lowercase());
    validate::problems(errors, path, name, problems);
}

/// Validates parameters: their number and size; with `needed`, there must be at least one.
pub fn parameters(
    errors: &mut ErrorList,
    path: &Path,
    parameters: Option<&BTreeMap<String, String>>,
    needed: bool,
) {
    let none = BTreeMap::new();
    let parameters = parameters.unwrap_or(&none);
    if parameters.len() > COUNT_MAX {
        errors.push(Error::too_long(path, COUNT_MAX));
        return;
    }
    if parameters.contains_key("") {
        errors.push(Error::invalid(path, "", "field can not be empty."));
    }
    if parameters.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>() > BYTES_MAX {
        errors.push(Error::too_long(path, BYTES_MAX));
    }
    if needed && parameters.is_empty() {
        errors.push(Error::required(path, "must contain at least one key/value pair"));
    }
}
