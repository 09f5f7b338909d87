//! Validation of names of drivers, pools, attributes and similar.

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::names;

use crate::validate;

const DRIVER_MAX: usize = 63;
const POOL_MAX: usize = 253;
const IDENTIFIER_MAX: usize = 32;

pub fn driver(errors: &mut ErrorList, path: &Path, name: &str) {
    if !validate::required(errors, path, name) {
        return;
    }
    if name.len() > DRIVER_MAX {
        errors.push(Error::too_long(path, DRIVER_MAX));
    }
    validate::problems(errors, path, name, names::dns1123_subdomain(&name.to_lowercase()));
}

/// Validates a driver's name that may have upper case, and adapts the messages to that.
pub fn driver_of_any_case(errors: &mut ErrorList, path: &Path, name: &str) {
    let mut found = ErrorList::new();
    driver(&mut found, path, name);
    for error in &mut found.0 {
        let detail = error.detail.replace("a lowercase RFC 1123", "an RFC 1123");
        error.detail = detail
            .replace("lower case alphanumeric", "alphanumeric")
            .replace("'example.com'", "'Example.com'");
    }
    errors.extend(found);
}

/// Requires subdomain names separated by slashes.
pub fn pool(errors: &mut ErrorList, path: &Path, name: &str) {
    if !validate::required(errors, path, name) {
        return;
    }
    if name.len() > POOL_MAX {
        errors.push(Error::too_long(path, POOL_MAX));
    }
    for part in name.split('/') {
        validate::dns_subdomain(errors, path, part);
    }
}

fn identifier(errors: &mut ErrorList, path: &Path, id: &str) {
    if id.len() > IDENTIFIER_MAX {
        errors.push(Error::too_long(path, IDENTIFIER_MAX));
    }
    validate::problems(errors, path, id, names::c_identifier(id));
}

/// Requires an identifier, with an optional domain before it.
pub fn qualified(errors: &mut ErrorList, path: &Path, name: &str) {
    match name.split('/').collect::<Vec<_>>()[..] {
        [id] => identifier(errors, path, id),
        [domain, id] => {
            match domain {
                "" => errors.push(Error::invalid(path, "", "the domain must not be empty")),
                domain => driver(errors, path, domain),
            }
            match id {
                "" => errors.push(Error::invalid(path, "", "the name must not be empty")),
                id => identifier(errors, path, id),
            }
        }
        // Upstream does not validate names with more slashes.
        _ => {}
    }
}

pub fn fully_qualified(errors: &mut ErrorList, path: &Path, name: &str) {
    qualified(errors, path, name);
    if !name.contains('/') {
        let problem = "a fully qualified name must be a domain and a name separated by a slash";
        errors.push(Error::invalid(path, name, problem));
    }
}

/// Requires a UUID in lower case.
pub fn share_id(errors: &mut ErrorList, path: &Path, id: &str) {
    let lengths: Vec<usize> = id.split('-').map(str::len).collect();
    let digit = |b: u8| b == b'-' || b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if lengths != [8, 4, 4, 4, 12] || !id.bytes().all(digit) {
        errors.push(Error::invalid(path, id, "must be a lowercase UUID in 8-4-4-4-12 format"));
    }
}
