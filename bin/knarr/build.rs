//! Links the program at a fixed address.
//!
//! A position-independent executable relocates its tables of pointers at each start, which makes those pages private
//! to the process: some 8 MB for every pod's shim. At a fixed address they stay shared. docs/adr/0002 has figures.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-no-pie");
}
