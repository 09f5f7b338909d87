//! Rules that the compiler does not check: dependencies between crates, banned code, and the length of files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The arrows of docs/ARCHITECTURE.md: the crates of the workspace that each crate may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("apimachinery", &[]),
    ("grpc", &[]),
    ("serving", &[]),
    ("tls", &[]),
    ("sandbox", &[]),
    ("storage", &["grpc", "tls"]),
    ("runtime", &["tls"]),
    ("cel", &["apimachinery"]),
    ("api", &["apimachinery", "cel"]),
    ("client", &["apimachinery", "api", "tls"]),
    ("reload", &["apimachinery"]),
    ("outgoing", &["apimachinery", "client", "tls"]),
    ("wire", &["apimachinery", "api", "reload"]),
    ("registry", &["apimachinery", "api", "client", "grpc", "outgoing", "reload", "storage", "wire"]),
    ("auth", &["apimachinery", "api", "cel", "outgoing", "registry", "reload", "tls", "wire"]),
    (
        "admission",
        &["apimachinery", "api", "auth", "cel", "client", "outgoing", "registry", "reload", "wire"],
    ),
    (
        "apiserver",
        &[
            "admission",
            "apimachinery",
            "api",
            "auth",
            "client",
            "outgoing",
            "registry",
            "reload",
            "serving",
            "storage",
            "tls",
            "wire",
        ],
    ),
    ("scheduler", &["apimachinery", "api", "cel", "client"]),
    ("controllers", &["apimachinery", "api", "client"]),
    ("kubelet", &["apimachinery", "api", "client", "grpc", "runtime", "serving", "tls"]),
    ("network", &["apimachinery", "api", "client"]),
];

/// Files above [`LONG`] lines, with their length. The numbers may only go down, and no file may be added.
const LONG_FILES: &[(&str, usize)] = &[];
const LONG: usize = 800;

/// Names of crates and modules that do not describe their contents.
const DRAWERS: &[&str] = &["util", "utils", "common", "helpers", "helper", "shared", "misc"];

/// Code that is banned outside of tests, the reason, and the files in which it is allowed.
const BANS: &[(&str, &str, &[&str])] = &[
    (".unwrap()", "return an error instead of panicking", &[]),
    ("unbounded_channel", "every queue has a limit", &[]),
    ("todo!(", "a stub is not done", &[]),
    ("unimplemented!(", "a stub is not done", &[]),
    ("TODO", "finish it, or say in the documentation what is missing", &[]),
    ("FIXME", "finish it, or say in the documentation what is missing", &[]),
    (
        "Timestamp::now()",
        "ask the Clock",
        &[
            "crates/client/src/clock.rs",
            "crates/kubelet/src/embedded/",
            "bin/",
            "crates/runtime/",
            "xtask/",
            "crates/storage/",
            "crates/testing/",
        ],
    ),
    ("SystemTime::now()", "ask the Clock", &["bin/", "crates/runtime/", "crates/storage/", "xtask/"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace's folder").to_owned()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).expect("folder").flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if path.is_dir() && !matches!(name, "target" | ".git") {
            files(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

/// Returns every Rust file with its path from the root and its text.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    files(&root, &mut found);
    let text = |p: PathBuf| {
        let name = p.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
        (name, fs::read_to_string(&p).expect("source file"))
    };
    found.into_iter().map(text).collect()
}

fn is_test_file(name: &str) -> bool {
    name.contains("/tests/")
        || name.ends_with("/testing.rs")
        || name.ends_with("/fixture.rs")
        || name.ends_with("/fake_runtime.rs")
        || name.ends_with("/tests.rs")
        || name.ends_with("_tests.rs")
        || name.contains("/examples/")
        || name.contains("/suite")
        || name.starts_with("crates/testing/")
}

/// Returns the part of a file before its tests.
fn code(text: &str) -> &str {
    let is_module = |at: usize| {
        let next = text[at..].lines().nth(1).unwrap_or("");
        next.contains("mod ") && next.ends_with('{')
    };
    let tests = text.match_indices("#[cfg(test)]").map(|(at, _)| at).find(|at| is_module(*at));
    &text[..tests.unwrap_or(text.len())]
}

#[test]
fn crates_use_only_whom_they_may() {
    let mut wrong = Vec::new();
    for (name, allowed) in ARROWS {
        let manifest =
            fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).expect("manifest");
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap_or("");
        for line in dependencies.lines() {
            let Some(used) = line.strip_prefix("knarr-") else { continue };
            let used = used.split(['.', ' ', '=']).next().unwrap_or("");
            if !allowed.contains(&used) {
                wrong.push(format!("{name} -> {used}"));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that docs/ARCHITECTURE.md does not allow: {wrong:?}");
}

#[test]
fn nothing_banned_stands_in_the_code() {
    let mut wrong = Vec::new();
    for (name, text) in sources().iter().filter(|(name, _)| !is_test_file(name)) {
        for (number, line) in code(text).lines().enumerate() {
            let line = line.split("//").next().unwrap_or("");
            for (banned, why, exempt) in BANS {
                if line.contains(banned) && !exempt.iter().any(|e| name.starts_with(e)) {
                    wrong.push(format!("{name}:{}: {banned}: {why}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn files_stay_short_and_say_what_they_are() {
    let listed: BTreeMap<&str, usize> = LONG_FILES.iter().copied().collect();
    let mut wrong = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().count();
        let generated = name.ends_with("generated.rs");
        let limit = listed.get(name.as_str()).copied().unwrap_or(LONG);
        if lines > limit && !generated {
            wrong.push(format!("{name}: {lines} lines, above {limit}"));
        }
        if !text.starts_with("//!") {
            wrong.push(format!("{name}: does not open with a sentence of documentation"));
        }
        let stem = name.rsplit('/').next().unwrap_or("").trim_end_matches(".rs");
        if name.split('/').chain([stem]).any(|part| DRAWERS.contains(&part)) {
            wrong.push(format!("{name}: a drawer, not a name"));
        }
    }
    for (name, lines) in listed {
        let now = fs::read_to_string(root().join(name)).map(|t| t.lines().count()).unwrap_or(0);
        if now < lines {
            wrong.push(format!("{name}: now {now} lines: lower its entry from {lines}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
