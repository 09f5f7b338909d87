//! The Kubernetes API kinds: typed codecs, held objects, defaulting, validation, table columns. No I/O.
//!
//! The types themselves come from `k8s-openapi`; nothing here defines an API type by hand.

pub mod addresses;
pub mod codec;
pub mod conditions;
pub mod custom;
pub mod defaults;
pub mod descriptions;
pub mod diff;
pub mod dropped;
pub mod features;
pub mod gates;
pub mod header;
pub mod intern;
pub mod kind;
pub mod members;
pub mod naming;
pub mod object;
pub mod prepare;
pub mod quota;
pub mod resource;
pub mod resource_ref;
pub mod resources;
pub mod scale;
pub mod strategy;
pub mod table;
pub mod validate;

pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apiserverinternal;
pub mod apps;
pub mod authentication;
pub mod authorization;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod devices;
pub mod discovery;
pub mod events;
pub mod flowcontrol;
pub mod networking;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod scheduling;
pub mod storage;
pub mod storagemigration;
