//! CRI v1's messages with their protobuf numbers, as far as the kubelet uses their fields.
//!
//! Source: `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`. Numbers that are left out are fields for other systems, or
//! that say nothing to the kubelet.

mod container;
mod image;
mod sandbox;
mod service;
mod stats;

pub use container::*;
pub use image::*;
pub use sandbox::*;
pub use service::*;
pub use stats::*;

/// A number that may be absent.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Int64Value {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// For answers that say nothing but that it is done.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Done {}
