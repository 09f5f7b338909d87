//! The Kubernetes API kinds as Knarr sees them: typed codecs, held objects, defaulting, validation, columns. No I/O.
//!
//! The types themselves come from `k8s-openapi`; nothing here writes a type by hand.

pub mod codec;
pub mod header;
pub mod kind;
pub mod object;
pub mod resource;
pub mod strategy;
