//! End-to-end tests: the program in a sandbox, driven by the real kubectl and by Python's Kubernetes client.
//!
//! Each test is named after the row of docs/scenarios.md that it proves (`b3_…` is row B3). `cargo xtask
//! test` runs them with all other tests, `cargo test -p knarr --test e2e` runs them alone: against the
//! program that is built with them, or the one that `KNARR_BIN` names.

mod access;
mod authorities;
mod autoscaling;
mod backups;
mod backups_between_stores;
mod bad_input;
mod certificates;
mod checks;
mod choices;
mod cluster;
mod cni;
mod components;
mod containerd;
mod csi;
mod csi_driver;
mod custom_resources;
mod deletion;
mod devices;
mod draining;
mod edits;
mod escapes;
mod etcd;
mod images;
mod kubectl;
mod life;
mod logs_and_exec;
mod node_pages;
mod node_taints;
mod objects;
mod output;
mod pods;
mod probes;
mod python;
mod resources;
mod rollouts;
mod runtime_classes;
mod scheduling;
mod services;
mod simulated;
mod soak;
mod storage;
mod tour;
mod two_nodes;
mod two_servers;
mod upstream;
mod volumes;
mod web;
mod workloads;

use knarr_sandbox::{requirements, sandbox};
