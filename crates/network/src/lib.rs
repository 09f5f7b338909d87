//! The network of a node: pod network (built in, or CNI plugins), service proxy, cluster DNS; netlink only.

pub mod cidr;
pub mod cleanup;
pub mod cni;
pub mod conntrack;
pub mod dns;
pub mod ipam;
pub mod links;
pub mod netlink;
pub mod nft;
pub mod per_service;
pub mod pods;
pub mod protocol;
pub mod proxy;
pub mod routes;
pub mod source;
