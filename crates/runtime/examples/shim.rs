//! The shim as a separate program, for tests: `shim FOLDER`.

fn main() {
    std::process::exit(knarr_runtime::containers::shim_main(std::env::args().skip(1)));
}
