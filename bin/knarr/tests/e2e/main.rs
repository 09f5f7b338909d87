//! End-to-end tests: the release binary in a sandbox, driven by the real kubectl and by Python's Kubernetes client.
//!
//! Each test is named after the row of the scenario list that it shows to work (`b3_…` is row B3). `cargo xtask test`
//! builds the binary and runs them with everything else; alone they run with `cargo test -p knarr --test e2e`,
//! against `target/release/knarr` or the binary that `KNARR_BIN` names.

mod access;
mod bad_input;
mod cluster;
mod custom_resources;
mod deletion;
mod edits;
mod images;
mod kubectl;
mod life;
mod logs_and_exec;
mod objects;
mod output;
mod pods;
mod probes;
mod python;
mod requirements;
mod resources;
mod rollouts;
mod sandbox;
mod scheduling;
mod services;
mod simulated;
mod two_nodes;
mod two_servers;
mod volumes;
mod web;
mod workloads;
