//! One target under libFuzzer, which is guided by the code that an input reaches: `KNARR_FUZZ=NAME
//! knarr-fuzz-guided …`.
//!
//! Built by `cargo xtask fuzz --coverage`, with the compiler's counters in Knarr's crates and all others.

#![no_main]

use std::cell::OnceCell;

use knarr_fuzz::{Target, targets};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static TARGET: OnceCell<Target> = const { OnceCell::new() };
}

fn chosen() -> Target {
    let name = std::env::var("KNARR_FUZZ").unwrap_or_default();
    match targets().into_iter().find(|target| target.name == name) {
        Some(target) => target,
        None => {
            eprintln!("KNARR_FUZZ: {name:?} is no target; `cargo xtask fuzz` lists them");
            std::process::exit(2)
        }
    }
}

fuzz_target!(|input: &[u8]| {
    TARGET.with(|target| (target.get_or_init(chosen).run)(input));
});
