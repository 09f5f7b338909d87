//! Tests of sandboxes and containers on the real kernel; they need root.

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
