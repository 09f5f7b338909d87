//! The functions that expressions may call: CEL's own, its extensions, and those of Kubernetes. One file each, one
//! line in a list.

pub mod authz;
pub mod cidr;
pub mod comprehensions;
pub mod conversions;
pub mod format;
pub mod ip;
pub mod json_patch;
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

use std::net::IpAddr;
use std::sync::Arc;

use knarr_apimachinery::quantity::Quantity;

use crate::types::Type;

/// All libraries.
pub const LIBRARIES: &[&[registry::Function]] = &[
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

/// A value that only functions look into.
#[derive(Debug, Clone)]
pub enum Opaque {
    Url(Arc<urls::Url>),
    Quantity(Arc<Quantity>),
    Semver(Arc<semver::Semver>),
    Ip(IpAddr),
    Cidr(cidr::Cidr),
    Format(&'static format::Format),
    Authz(Arc<authz::Authz>),
}

impl Opaque {
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Url(_) => "kubernetes.URL",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Authz(authz) => authz.type_name(),
        }
    }

    pub fn type_of(&self) -> Type {
        Type::Opaque(self.type_name().into())
    }

    /// The size that costs count with.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Ip(IpAddr::V4(_)) => Some(4),
            Self::Ip(IpAddr::V6(_)) => Some(16),
            Self::Cidr(cidr) => Some(u64::from(cidr.prefix).div_ceil(8)),
            _ => None,
        }
    }

    /// Equal, or `None` where such values do not compare.
    pub fn equal(&self, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::Url(a), Self::Url(b)) => Some(a.text == b.text),
            (Self::Quantity(a), Self::Quantity(b)) => Some(a == b),
            (Self::Semver(a), Self::Semver(b)) => Some(a.compare(b).is_eq()),
            (Self::Ip(a), Self::Ip(b)) => Some(a == b),
            (Self::Cidr(a), Self::Cidr(b)) => Some(a == b),
            (Self::Format(a), Self::Format(b)) => Some(a.name == b.name),
            _ => None,
        }
    }
}
