//! The `autoscaling` group: one kind in two versions, of which `v2` is stored.

mod conversion;
pub mod horizontalpodautoscaler;
mod metrics;
pub mod v1;
