//! Checks that the modules of a crate have no import cycles: files that use each other are in one folder, and
//! few.

mod graph;
mod imports;
mod text;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The most files of one folder that may be in a cycle.
const HANDFUL: usize = 5;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's folder").to_owned()
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| {
        let part = part.trim_end_matches(".rs");
        matches!(part, "tests" | "testing" | "fixture" | "fake_runtime" | "suite") || part.ends_with("_tests")
    })
}

fn sources(folder: &Path) -> Vec<(String, String)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(folder).expect("below src").to_string_lossy().into_owned();
                if !is_test(&name) {
                    found.push((name, fs::read_to_string(&path).expect("a source file")));
                }
            }
        }
    }
    found
}

/// Returns every crate with its name, in alphabetical order.
fn crates() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(root().join("crates")).expect("the crates").flatten();
    let mut all: Vec<_> =
        entries.map(|e| (e.file_name().to_string_lossy().into_owned(), e.path().join("src"))).collect();
    all.push(("knarr".to_owned(), root().join("bin/knarr/src")));
    all.push(("xtask".to_owned(), root().join("xtask/src")));
    all.sort();
    all
}

#[test]
fn modules_use_each_other_in_no_circles() {
    let mut wrong = Vec::new();
    for (name, src) in crates() {
        let made = graph::Crate::new(sources(&src));
        let circles = made.circles();
        let folders = |circle: &[&str]| {
            circle.iter().map(|path| Path::new(path).parent()).collect::<BTreeSet<_>>().len()
        };
        let (across, inside): (Vec<_>, Vec<_>) = circles.into_iter().partition(|c| folders(c) > 1);
        let inside = inside.into_iter().filter(|circle| circle.len() > HANDFUL);
        wrong.extend(across.into_iter().chain(inside).map(|circle| format!("{name}: {}", circle.join(", "))));
    }
    assert!(
        wrong.is_empty(),
        "files import each other in circles, across folders or more than {HANDFUL} in one:\n{}",
        wrong.join("\n")
    );
}
