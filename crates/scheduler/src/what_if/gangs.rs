//! Pod groups in a simulation: placed as a whole or not at all, by the rules of the scheduler's cycle.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1beta1::PodGroup;
use knarr_api::kind::{Kind, ObjectKey};
use serde_json::Value;

use super::report::Placement;
use super::{WhatIf, WhatIfError};
use crate::framework::{Code, PodInfo, Progress};
use crate::groups::{Groups, group_of};
use crate::schedule_group::{UNSCHEDULABLE, feasible};
use crate::schedule_one::Outcome;

/// What is placed in one step.
pub(super) enum Unit {
    Pod(Box<Pod>),
    Gang(Arc<PodGroup>, Vec<Pod>),
}

/// Returns whether the manifest is a pod group. It makes no pods, but decides how they are placed.
pub(super) fn is_group(manifest: &Value) -> bool {
    manifest["kind"] == PodGroup::RESOURCE.kind
        && manifest["apiVersion"] == PodGroup::RESOURCE.api_version().as_str()
}

/// Splits the pods into units. The pods of a known group form one unit, at the position of the first of them.
pub(super) fn units(groups: &Groups, pods: Vec<Pod>) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut gangs: BTreeMap<ObjectKey, usize> = BTreeMap::new();
    for pod in pods {
        let group = group_of(&pod).and_then(|key| Some((groups.object(&key)?, key)));
        let Some((group, key)) = group else {
            units.push(Unit::Pod(Box::new(pod)));
            continue;
        };
        match gangs.get(&key).and_then(|at| units.get_mut(*at)) {
            Some(Unit::Gang(_, members)) => members.push(pod),
            _ => {
                gangs.insert(key, units.len());
                units.push(Unit::Gang(group, vec![pod]));
            }
        }
    }
    units
}

impl WhatIf {
    /// Reads a pod group from the manifests.
    pub(super) fn take_group(&mut self, namespace: &str, manifest: &Value) -> Result<(), WhatIfError> {
        let mut manifest = manifest.clone();
        if manifest["metadata"]["namespace"].as_str().unwrap_or_default().is_empty() {
            manifest["metadata"]["namespace"] = namespace.into();
        }
        let decoded = PodGroup::decode(manifest.to_string().as_bytes());
        let wrong = |why| WhatIfError::Object { at: 0, kind: PodGroup::RESOURCE.kind.to_owned(), why };
        self.groups.set_object(Arc::new(decoded.map_err(|e| wrong(e.to_string()))?));
        Ok(())
    }

    /// Places a group's pods, or none if too few fit. No other pods are preempted for them.
    pub(super) fn place_gang(
        &mut self,
        group: &PodGroup,
        pods: Vec<Pod>,
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Placement>, WhatIfError> {
        let mut infos = Vec::with_capacity(pods.len());
        for pod in pods {
            let pod = self.as_new(pod);
            self.groups.set_pod(&pod);
            infos.push(PodInfo::new(&pod));
        }
        let mut placements: Vec<Placement> = infos.iter().map(Placement::of).collect();
        let Some(first) = infos.first() else { return Ok(placements) };
        let at = self.profile(first)?.0;
        let Some(profile) = self.profiles.iter().nth(at) else { return Ok(placements) };
        let held_back = infos.iter().find_map(|info| {
            let mut verdicts = profile.points.pre_enqueue.iter().map(|plugin| plugin.pre_enqueue(info));
            verdicts.find(|status| !status.is_success())
        });
        if let Some(status) = held_back {
            placements.iter_mut().for_each(|p| p.message = status.message());
            return Ok(placements);
        }
        let scheduled = self.groups.counts(&group.key()).1;
        let mut progress = Progress { scheduled, remaining: infos.len() };
        let mut status = feasible(profile, group, progress);
        for (info, placement) in infos.iter().zip(&mut placements) {
            if !matches!(status.code, Code::Success | Code::Wait) {
                break;
            }
            if stop() {
                return Err(WhatIfError::OutOfTime);
            }
            progress.remaining -= 1;
            match self.cycles.schedule(at, profile, self.cache.snapshot(), info) {
                Outcome::Placed(node) => {
                    let node = self.cache.snapshot().row(node).name().to_owned();
                    self.cache.assume(info, &node);
                    placement.node = Some(node);
                    progress.scheduled += 1;
                }
                Outcome::NoFit(diagnosis) => placement.message = diagnosis.message(),
                Outcome::Failed(why) => placement.message = why,
            }
            status = feasible(profile, group, progress);
        }
        if status.code != Code::Success {
            let why = format!("{UNSCHEDULABLE}, {}", status.message());
            for (info, placement) in infos.iter().zip(&mut placements) {
                self.cache.forget(info.uid());
                placement.node = None;
                if placement.message.is_empty() {
                    placement.message.clone_from(&why);
                }
            }
        }
        Ok(placements)
    }
}
