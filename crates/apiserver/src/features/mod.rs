//! Feature gates: upstream's names with their defaults, and what `--feature-gates` makes of them.

use std::collections::BTreeMap;

use crate::metrics::{Metric, Metrics};

const GATES: &str = include_str!("gates.txt");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gate {
    on: bool,
    stage: &'static str,
    locked: bool,
}

/// Which features are on.
#[derive(Debug, Clone)]
pub struct Features(BTreeMap<&'static str, Gate>);

impl Default for Features {
    fn default() -> Self {
        let gate = |line: &'static str| {
            let mut words = line.split_whitespace();
            let (name, on, stage) = (words.next()?, words.next()?, words.next()?);
            Some((name, Gate { on: on == "true", stage, locked: words.next().is_some() }))
        };
        Self(GATES.lines().filter(|l| !l.starts_with('#')).filter_map(gate).collect())
    }
}

impl Features {
    /// Sets gates from `A=true,B=false`; a refusal is in upstream's words.
    pub fn set(&mut self, text: &str) -> Result<(), String> {
        let mut wanted: Vec<(&str, bool)> = Vec::new();
        for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| format!("missing bool value for {pair}"))?;
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
        // Gates by name win over those of a whole stage, wherever they stand.
        wanted.sort_by_key(|(name, _)| !matches!(*name, "AllAlpha" | "AllBeta"));
        for (name, on) in wanted {
            let stage = match name {
                "AllAlpha" => Some("ALPHA"),
                "AllBeta" => Some("BETA"),
                _ => None,
            };
            if let Some(stage) = stage {
                let all = self.0.values_mut().filter(|g| g.stage == stage && !g.locked);
                all.for_each(|g| g.on = on);
                continue;
            }
            let gate = self.0.get_mut(name).ok_or_else(|| format!("unrecognized feature gate: {name}"))?;
            if gate.locked && gate.on != on {
                return Err(format!(
                    "cannot set feature gate {name} to {on}, feature is locked to {}",
                    gate.on
                ));
            }
            gate.on = on;
        }
        Ok(())
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|g| g.on)
    }

    /// Sets `kubernetes_feature_enabled`.
    pub fn show(&self, metrics: &Metrics) {
        for (name, gate) in &self.0 {
            let stage = if gate.stage == "GA" { "" } else { gate.stage };
            metrics.set(Metric::FeatureEnabled, &[name, stage], f64::from(u8::from(gate.on)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_set_and_refused() {
        let mut features = Features::default();
        assert!(features.0.len() > 150);
        assert!(features.is_on("ConstrainedImpersonation"));
        features.set("ConstrainedImpersonation=false, AllAlpha=true").unwrap();
        assert!(!features.is_on("ConstrainedImpersonation"));
        let alpha = |f: &Features| f.0.values().filter(|g| g.stage == "ALPHA" && !g.locked).all(|g| g.on);
        assert!(alpha(&features));
        let locked = features.0.iter().find(|(_, g)| g.locked && g.on).unwrap().0.to_string();
        for (text, why) in [
            ("Nonsense=true".to_owned(), "unrecognized feature gate: Nonsense".to_owned()),
            ("AllAlpha".to_owned(), "missing bool value for AllAlpha".to_owned()),
            (
                "AllAlpha=maybe".to_owned(),
                "invalid value of AllAlpha=maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax"
                    .to_owned(),
            ),
            (
                format!("{locked}=false"),
                format!("cannot set feature gate {locked} to false, feature is locked to true"),
            ),
        ] {
            assert_eq!(features.set(&text).unwrap_err(), why);
        }
    }
}
