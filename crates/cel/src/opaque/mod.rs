//! Opaque values, which only functions can inspect: addresses, quantities, versions, authorization checks.

pub mod authz;
pub mod cidr;
pub mod format;
pub mod semver;
pub mod url;

use std::net::IpAddr;
use std::sync::Arc;

use knarr_apimachinery::quantity::Quantity;

use crate::types::Type;

/// A value that only functions can inspect.
#[derive(Debug, Clone)]
pub enum Opaque {
    Url(Arc<url::Url>),
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

    /// Returns the size from which costs are calculated.
    pub fn size(&self) -> Option<u64> {
        match self {
            Self::Ip(IpAddr::V4(_)) => Some(4),
            Self::Ip(IpAddr::V6(_)) => Some(16),
            Self::Cidr(cidr) => Some(u64::from(cidr.prefix).div_ceil(8)),
            _ => None,
        }
    }

    /// Returns whether the values are equal; `None` if they are not comparable.
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
