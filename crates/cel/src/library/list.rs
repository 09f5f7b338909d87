//! The list of all libraries, one per line.

use super::function::Function;
use super::{
    authz, cidr, comprehensions, conversions, format, ip, json_patch, lists, operators, optional, quantity,
    regex, semver, sets, string_format, strings, times, urls,
};

/// All libraries.
pub const LIBRARIES: &[&[Function]] = &[
    operators::FUNCTIONS,
    conversions::FUNCTIONS,
    times::FUNCTIONS,
    strings::FUNCTIONS,
    string_format::FUNCTIONS,
    lists::FUNCTIONS,
    sets::FUNCTIONS,
    optional::FUNCTIONS,
    comprehensions::FUNCTIONS,
    regex::FUNCTIONS,
    urls::FUNCTIONS,
    quantity::FUNCTIONS,
    semver::FUNCTIONS,
    ip::FUNCTIONS,
    cidr::FUNCTIONS,
    format::FUNCTIONS,
    authz::FUNCTIONS,
    json_patch::FUNCTIONS,
];
