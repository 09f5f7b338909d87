//! CRI v1's messages with their protobuf numbers, with the fields that the kubelet uses.
//!
//! Source: `k8s.io/cri-api/pkg/apis/runtime/v1/api.proto`. Missing numbers are fields of other operating systems,
//! or fields that the kubelet does not need.

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

/// An optional number.
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

/// An empty response.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Done {}
