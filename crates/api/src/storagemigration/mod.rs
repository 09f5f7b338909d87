//! The kinds of the `storagemigration.k8s.io` group.

pub mod storageversionmigration;
