//! A short run of `cargo xtask soak`: kills lose no acknowledged write, and watches stay complete.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cluster::knarr;
use crate::sandbox::succeeded;

#[test]
fn kills_lose_nothing_and_watches_stay_complete() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut soak = Command::new(cargo);
    soak.args([
        "xtask",
        "soak",
        "--kills",
        "6",
        "--seed",
        "1",
        "--faults",
        "kill,pause,disk,files",
        "-o",
        "json",
    ]);
    let output = soak.current_dir(root).env("KNARR_BIN", knarr()).output().expect("cargo");
    let report: Value = serde_json::from_str(&succeeded("cargo xtask soak", &output)).expect("JSON");
    let count = |name: &str| report["total"][name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"));
    assert!((6..=7).contains(&count("kills")), "{report}");
    assert_eq!((count("violations"), count("failedStarts")), (0, 0), "{report}");
    // Guards against a run that did nothing and so found nothing.
    for name in
        ["acknowledgedWrites", "acknowledgedDeletions", "reads", "watchEvents", "resumedOlderThanServer"]
    {
        assert!(count(name) > 0, "{name} in {report}");
    }
}
