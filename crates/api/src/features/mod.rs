//! Feature gates: upstream's names, which of them act here, and the effect of `--feature-gates`.
//!
//! `gates.txt` has upstream's facts, `ledger.txt` the state of each gate in this program. A gate that does not act is
//! off, whatever upstream's default is, and setting it to true is refused.

pub mod ledger;

use std::collections::BTreeMap;

use ledger::{Entry, State};

const GATES: &str = include_str!("gates.txt");

#[derive(Debug, Clone, Copy)]
struct Gate {
    on: bool,
    /// `GA`, `BETA`, `ALPHA` or `DEPRECATED`.
    stage: &'static str,
    /// The value that upstream has locked the gate to.
    locked: Option<bool>,
    entry: Entry,
}

/// The states of all feature gates.
#[derive(Debug, Clone)]
pub struct Features {
    gates: BTreeMap<&'static str, Gate>,
    notes: Vec<String>,
}

fn facts() -> impl Iterator<Item = (&'static str, bool, &'static str, bool)> {
    GATES.lines().filter(|l| !l.starts_with('#')).filter_map(|line| {
        let mut columns = line.split_whitespace();
        Some((columns.next()?, columns.next()? == "true", columns.next()?, columns.next().is_some()))
    })
}

#[cfg(test)]
fn upstream_names() -> impl Iterator<Item = &'static str> {
    facts().map(|(name, ..)| name)
}

impl Default for Features {
    fn default() -> Self {
        let entries: BTreeMap<_, _> = ledger::entries().map(|e| (e.name, e)).collect();
        let gate = |(name, default, stage, locked): (&'static str, bool, &'static str, bool)| {
            let entry = *entries.get(name)?;
            let on = match entry.state {
                State::Switch => default,
                State::On => true,
                State::Off | State::Internal => false,
            };
            Some((name, Gate { on, stage, locked: locked.then_some(default), entry }))
        };
        Self { gates: facts().filter_map(gate).collect(), notes: Vec::new() }
    }
}

impl Gate {
    /// Sets the gate; returns a note for the log if there is one. If upstream refuses the value, too, the error has
    /// upstream's text.
    fn set(&mut self, on: bool) -> Result<Option<String>, String> {
        let Entry { name, state, shown_by, .. } = self.entry;
        let acts = !matches!(state, State::Off | State::Internal);
        // A gate that does not act may be set to false, even if upstream has locked it to true.
        if let Some(locked) = self.locked.filter(|locked| *locked != on && (acts || on)) {
            return Err(format!("cannot set feature gate {name} to {on}, feature is locked to {locked}"));
        }
        match state {
            State::Switch => self.on = on,
            State::On if !on => {
                return Err(format!("cannot set feature gate {name} to false: it cannot be switched off"));
            }
            State::Off if on && self.locked.is_none() => {
                let why = format!("it is not implemented ({shown_by})");
                return Err(format!("cannot set feature gate {name} to true: {why}"));
            }
            State::Off if on => {
                return Ok(Some(format!("feature gate {name} is not implemented and stays off: {shown_by}")));
            }
            State::Internal => return Ok(Some(format!("feature gate {name} has no effect: {shown_by}"))),
            State::On | State::Off => {}
        }
        let kind = match self.stage {
            "GA" => "GA",
            "DEPRECATED" => "deprecated",
            _ => return Ok(None),
        };
        Ok(Some(format!("Setting {kind} feature gate {name}={on}. It will be removed in a future release.")))
    }
}

fn parsed(text: &str) -> Result<Vec<(&str, bool)>, String> {
    let mut wanted = Vec::new();
    for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| format!("missing bool value for {pair}"))?;
        let (name, value) = (name.trim(), value.trim());
        let on = match value {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
            "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
            _ => {
                return Err(format!(
                    "invalid value of {name}={value}, err: strconv.ParseBool: parsing {value:?}: invalid syntax"
                ));
            }
        };
        wanted.push((name, on));
    }
    Ok(wanted)
}

impl Features {
    /// Sets gates from `A=true,B=false`; adds log messages to [`notes`](Self::notes).
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let mut wanted = parsed(text)?;
        // A single gate overrides its stage, whatever their order in the flag.
        wanted.sort_by_key(|(name, _)| !matches!(*name, "AllAlpha" | "AllBeta"));
        for (name, on) in wanted {
            match name {
                "AllAlpha" => self.set_stage(name, "ALPHA", on),
                "AllBeta" => self.set_stage(name, "BETA", on),
                _ => {
                    let gate = self
                        .gates
                        .get_mut(name)
                        .ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
                    self.notes.extend(gate.set(on)?);
                }
            }
        }
        Ok(())
    }

    /// Sets the switches of a stage, and notes the gates that keep their value.
    fn set_stage(&mut self, name: &str, stage: &str, on: bool) {
        let mut stay = Vec::new();
        for gate in self.gates.values_mut().filter(|g| g.stage == stage && g.locked.is_none()) {
            match gate.entry.state {
                State::Switch => gate.on = on,
                State::Internal => {}
                _ if gate.on == on => {}
                _ => stay.push(gate.entry.name),
            }
        }
        if !stay.is_empty() {
            let why = if on { "not implemented, and off" } else { "cannot be switched off" };
            self.notes.push(format!("{name}={on}: {why}: {}", stay.join(", ")));
        }
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.gates.get(name).is_some_and(|g| g.on)
    }

    /// Returns log messages about gates that were set without effect or will be removed soon.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns all gates: name, stage (`ALPHA`, `BETA`, `DEPRECATED`, empty for GA), and whether it is on.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, bool)> {
        self.gates.iter().map(|(name, gate)| {
            let stage = if gate.stage == "GA" { "" } else { gate.stage };
            (*name, stage, gate.on)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of a setting: the refusal, the notes, or nothing.
    fn outcome(text: &str) -> String {
        let mut features = Features::default();
        match features.set(text) {
            Err(why) => format!("refused: {why}"),
            Ok(()) => features.notes().join("; "),
        }
    }

    #[test]
    fn gates_are_set_and_refused() {
        for (text, expected) in [
            ("Nonsense=true", "refused: unrecognized feature gate: Nonsense"),
            ("AllAlpha", "refused: missing bool value for AllAlpha"),
            (
                "AllAlpha=maybe",
                "refused: invalid value of AllAlpha=maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            // Acts, and upstream has locked it.
            (
                "PodSchedulingReadiness=false",
                "refused: cannot set feature gate PodSchedulingReadiness to false, feature is locked to true",
            ),
            (
                "PodSchedulingReadiness=true",
                "Setting GA feature gate PodSchedulingReadiness=true. It will be removed in a future release.",
            ),
            // Acts, and only upstream can switch it off.
            ("WatchList=true", ""),
            (
                "WatchList=false",
                "refused: cannot set feature gate WatchList to false: it cannot be switched off",
            ),
            // Does not act.
            (
                "CBORServingAndStorage=true",
                "refused: cannot set feature gate CBORServingAndStorage to true: it is not implemented (there is no CBOR)",
            ),
            ("CBORServingAndStorage=false", ""),
            (
                "KubeletPSI=false",
                "Setting GA feature gate KubeletPSI=false. It will be removed in a future release.",
            ),
            (
                "KubeletPSI=true",
                "feature gate KubeletPSI is not implemented and stays off: pressure stall information is not reported",
            ),
            (
                "GitRepoVolumeDriver=true",
                "refused: cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false",
            ),
            (
                "OpportunisticBatching=false",
                "feature gate OpportunisticBatching has no effect: speed of the scheduler",
            ),
        ] {
            assert_eq!(outcome(text), expected, "{text}");
        }
    }

    #[test]
    fn stages_are_set_as_far_as_they_act() {
        let mut features = Features::default();
        features.set("GenericWorkload=true,AllBeta=false,AllAlpha=true").unwrap();
        assert!(features.is_on("GenericWorkload"), "a single gate overrides its stage");
        assert!(!features.is_on("APIServerIdentity"), "a switch follows its stage");
        assert!(features.is_on("WatchList") && !features.is_on("CBORServingAndStorage"));
        assert!(features.is_on("PodCertificateRequest"), "GA gates do not follow a stage");
        let [beta, alpha] = features.notes() else { panic!("{:?}", features.notes()) };
        assert!(alpha.starts_with("AllAlpha=true: not implemented, and off: "), "{alpha}");
        assert!(
            alpha.contains("CBORServingAndStorage") && !alpha.contains("PodLogsQuerySplitStreams"),
            "{alpha}"
        );
        assert!(beta.starts_with("AllBeta=false: cannot be switched off: "), "{beta}");
        assert!(beta.contains("WatchList") && !beta.contains("EnvFiles"), "{beta}");
    }

    #[test]
    fn what_does_not_act_is_shown_off() {
        let features = Features::default();
        for expected in [
            ("ContainerCheckpoint", "BETA", false),
            ("KubeletPSI", "", false),
            ("WatchList", "BETA", true),
            ("GenericWorkload", "BETA", false),
        ] {
            assert!(features.all().any(|gate| gate == expected), "{expected:?}");
        }
    }
}
