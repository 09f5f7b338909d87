//! The built-in network of a node: pod network, service proxy, cluster DNS; netlink only, no programs.

pub mod cidr;
pub mod conntrack;
pub mod ipam;
pub mod links;
pub mod netlink;
pub mod nft;
pub mod pods;
pub mod protocol;
pub mod proxy;
pub mod source;
