//! The `autoscaling` group: one kind in two versions, `v2` being the one that is stored.

mod conversion;
pub mod horizontalpodautoscaler;
mod metrics;
pub mod v1;
