//! The ledger of feature gates: whether each of upstream's gates acts in this program, and what proves it.

const LEDGER: &str = include_str!("ledger.txt");

/// How a feature gate behaves here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Implemented; `--feature-gates` switches it on and off.
    Switch,
    /// Implemented; cannot be switched off.
    On,
    /// Not implemented.
    Off,
    /// Has no effect that users see.
    Internal,
}

/// One line of `ledger.txt`.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub name: &'static str,
    pub state: State,
    /// The `FILE::TEST` that proves it (switch, on), or a sentence (off, internal).
    pub shown_by: &'static str,
}

pub fn entries() -> impl Iterator<Item = Entry> {
    LEDGER.lines().filter(|line| !line.starts_with('#')).filter_map(entry)
}

fn entry(line: &'static str) -> Option<Entry> {
    let (name, rest) = line.split_once(' ')?;
    let (word, shown_by) = rest.split_once(' ')?;
    let state = match word {
        "switch" => State::Switch,
        "on" => State::On,
        "off" => State::Off,
        "internal" => State::Internal,
        _ => return None,
    };
    Some(Entry { name, state, shown_by })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn sources(folder: &Path, texts: &mut Vec<(PathBuf, String)>) {
        for path in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                sources(&path, texts);
            } else if path.extension().is_some_and(|e| e == "rs" || e == "txt") {
                texts.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }

    #[test]
    fn every_gate_has_one_entry() {
        let lines = LEDGER.lines().filter(|l| !l.starts_with('#')).count();
        let names: Vec<_> = entries().map(|e| e.name).collect();
        assert_eq!(names.len(), lines, "a line is malformed");
        let upstream: Vec<_> = super::super::upstream_names().collect();
        assert_eq!(names, upstream, "the entries of ledger.txt are the gates of gates.txt, in their order");
    }

    #[test]
    fn fields_are_dropped_for_gates_that_are_off() {
        for gate in crate::dropped::gates() {
            let state = entries().find(|e| e.name == gate).map(|e| e.state);
            assert_eq!(state, Some(State::Off), "{gate}");
        }
    }

    #[test]
    fn what_shows_an_entry_is_there() {
        let mut wrong = Vec::new();
        for entry in entries() {
            let (file, test) = match entry.state {
                State::Switch | State::On => entry.shown_by.split_once("::").unwrap_or((entry.shown_by, "")),
                State::Off | State::Internal => continue,
            };
            let found = match fs::read_to_string(root().join(file)) {
                Ok(text) => is_test(&text, test),
                Err(_) => false,
            };
            if !found {
                wrong.push(format!("{}: {}", entry.name, entry.shown_by));
            }
        }
        assert!(wrong.is_empty(), "not in the tree:\n{}", wrong.join("\n"));
    }

    /// Returns whether the source text has a test of this name that is not ignored.
    fn is_test(text: &str, name: &str) -> bool {
        let Some(at) = text.find(&format!("fn {name}(")).filter(|_| !name.is_empty()) else { return false };
        let before: Vec<&str> = text[..at].lines().rev().take(4).collect();
        let attributes = before.iter().map(|l| l.trim()).skip_while(|l| !l.starts_with("#["));
        let attributes: Vec<&str> = attributes.take_while(|l| l.starts_with("#[")).collect();
        let marked = attributes.iter().any(|a| a.contains("test"));
        marked && !attributes.iter().any(|a| a.contains("ignore"))
    }

    #[test]
    fn only_switches_are_asked_for_and_all_of_them() {
        let mut texts = Vec::new();
        sources(&root().join("crates"), &mut texts);
        sources(&root().join("bin"), &mut texts);
        texts.retain(|(path, _)| {
            let path = path.to_string_lossy().into_owned();
            !path.contains("/features/") && !path.contains("/tests/") && !path.ends_with("tests.rs")
        });
        let switches: BTreeSet<_> = entries().filter(|e| e.state == State::Switch).map(|e| e.name).collect();
        for name in &switches {
            let (quoted, counted) = (format!("\"{name}\""), format!("when {name} "));
            assert!(
                texts.iter().any(|(_, text)| text.contains(&quoted) || text.contains(&counted)),
                "nothing asks for {name}"
            );
        }
        for (path, text) in &texts {
            let asked = text.split("is_on(\"").skip(1).filter_map(|rest| rest.split('"').next());
            for name in asked {
                assert!(switches.contains(name), "{}: {name} is not a switch", path.display());
            }
            for line in text.lines().filter_map(|l| l.strip_prefix("when ")) {
                let name = line.split(' ').next().unwrap_or("");
                assert!(switches.contains(name) || name.is_empty(), "{}: when {name}", path.display());
            }
        }
    }
}
