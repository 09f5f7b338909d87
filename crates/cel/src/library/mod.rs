//! The functions of the language: CEL's standard functions, its extensions, and Kubernetes' libraries. Each library
//! is a file and a line in the list.

pub mod authz;
pub mod cidr;
pub mod comprehensions;
pub mod conversions;
pub mod format;
pub mod function;
pub mod ip;
pub mod json_patch;
pub mod list;
pub mod lists;
pub mod operators;
pub mod optional;
pub mod quantity;
pub mod regex;
pub mod registry;
pub mod semver;
pub mod sets;
pub mod string_format;
pub mod strings;
pub mod times;
pub mod urls;
