//! Sandboxes and containers on the real kernel; as root.

mod app_armor;
mod escapes;
mod exec;
mod isolation;
mod latency;
mod lifecycle;
mod limits;
mod oci;
mod restart;
mod user_namespaces;
mod world;
