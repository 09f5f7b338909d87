//! Finds the loader and the shared libraries of programs by the rules of the dynamic loader.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use super::BuildError;
use super::elf::{Elf, Machine, read_elf};

const MAX_LIBRARIES: usize = 512;
const MAX_CONF_FILES: usize = 256;

/// Returns the files that programs need in the image: path in the image to path on the host.
pub fn closure(programs: &BTreeMap<String, PathBuf>) -> Result<BTreeMap<String, PathBuf>, BuildError> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut out = BTreeMap::new();
    let mut search = None;
    for host in programs.values() {
        let Some(elf) = read_elf(host)? else { continue };
        if let Some(interpreter) = &elf.interpreter {
            out.insert(interpreter.clone(), PathBuf::from(interpreter));
        }
        if !elf.needed.is_empty() {
            let search = search.get_or_insert_with(search_dirs);
            libraries(host, elf, search, &mut found)?;
        }
    }
    // Every library is placed beside the C library, in a folder that the loader always searches, so that no
    // cache file and no run path needs to match the image.
    let home = found.get("libc.so.6").and_then(|libc| libc.parent()).unwrap_or(Path::new("/lib")).to_owned();
    let interpreters: BTreeSet<PathBuf> = out.values().filter_map(|p| fs::canonicalize(p).ok()).collect();
    for (name, host) in found {
        let place = match fs::canonicalize(&host) {
            // The loader is a separate library with glibc, and is the C library itself with musl.
            Ok(real)
                if interpreters.contains(&real) && out.keys().any(|p| p.ends_with(&format!("/{name}"))) =>
            {
                continue;
            }
            _ => home.join(&name),
        };
        out.insert(place.to_string_lossy().into_owned(), host);
    }
    Ok(out)
}

fn libraries(
    program: &Path,
    elf: Elf,
    search: &[PathBuf],
    found: &mut BTreeMap<String, PathBuf>,
) -> Result<(), BuildError> {
    let machine = elf.machine;
    // A run path of the old kind (rpath) in the program also applies to the libraries that it loads.
    let inherited = elf.rpath.as_deref().map(|path| expand(path, program)).unwrap_or_default();
    let mut todo = VecDeque::from([(program.to_owned(), elf)]);
    while let Some((path, elf)) = todo.pop_front() {
        let own = elf.runpath.as_deref().or(elf.rpath.as_deref()).map(|text| expand(text, &path));
        let own = own.unwrap_or_default();
        for name in elf.needed {
            if found.contains_key(&name) {
                continue;
            }
            if found.len() >= MAX_LIBRARIES {
                return Err(BuildError::TooManyLibraries {
                    program: program.to_owned(),
                    limit: MAX_LIBRARIES,
                });
            }
            let dirs = own.iter().chain(&inherited).chain(search);
            let Some((host, library)) = locate(&name, dirs, machine) else {
                return Err(BuildError::Library { program: path, library: name });
            };
            found.insert(name, host.clone());
            todo.push_back((host, library));
        }
    }
    Ok(())
}

fn locate<'a>(
    name: &str,
    mut dirs: impl Iterator<Item = &'a PathBuf>,
    machine: Machine,
) -> Option<(PathBuf, Elf)> {
    let usable = |path: PathBuf| {
        let elf = read_elf(&path).ok()??;
        (elf.machine == machine).then_some((path, elf))
    };
    if name.contains('/') {
        return usable(PathBuf::from(name));
    }
    dirs.find_map(|dir| usable(dir.join(name)))
}

fn expand(path: &str, object: &Path) -> Vec<PathBuf> {
    let origin =
        fs::canonicalize(object).ok().and_then(|p| p.parent().map(Path::to_owned)).unwrap_or_default();
    let origin = origin.to_string_lossy();
    path.split(':')
        .filter(|dir| !dir.is_empty())
        .map(|dir| PathBuf::from(dir.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin)))
        .collect()
}

/// Returns the folders of `/etc/ld.so.conf` and those built into loaders, in search order.
fn search_dirs() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    let mut budget = MAX_CONF_FILES;
    read_conf(Path::new("/etc/ld.so.conf"), &mut dirs, &mut budget);
    let arch = std::env::consts::ARCH;
    let built_in = [
        format!("/lib/{arch}-linux-gnu"),
        format!("/usr/lib/{arch}-linux-gnu"),
        "/lib64".to_owned(),
        "/usr/lib64".to_owned(),
        "/lib".to_owned(),
        "/usr/lib".to_owned(),
        "/usr/local/lib".to_owned(),
    ];
    dirs.extend(built_in.map(PathBuf::from));
    let mut seen = BTreeSet::new();
    dirs.retain(|dir| seen.insert(dir.clone()));
    dirs
}

fn read_conf(path: &Path, dirs: &mut Vec<PathBuf>, budget: &mut usize) {
    if *budget == 0 {
        return;
    }
    *budget -= 1;
    let Ok(text) = fs::read_to_string(path) else { return };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(pattern) = line.strip_prefix("include ") {
            for included in expand_include(pattern.trim()) {
                read_conf(&included, dirs, budget);
            }
        } else if line.starts_with('/') {
            dirs.push(PathBuf::from(line));
        }
    }
}

/// Expands `dir/*.conf`, the only pattern in use; any other text is taken as a file name.
fn expand_include(pattern: &str) -> Vec<PathBuf> {
    let Some((dir, suffix)) = pattern.split_once("/*") else { return vec![PathBuf::from(pattern)] };
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(suffix))
        .collect();
    files.sort();
    files
}
