//! Jobs: no Job has more pods at a time than it may have, and each pod is counted at most once.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;

use super::{Outcome, Pods, controller, count, ensure, owner};
use crate::node::{is_active, phase};

const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// How the pods of a Job ended, by their uids.
#[derive(Default, Clone)]
pub struct Ends {
    pub succeeded: BTreeSet<String>,
    pub failed: BTreeSet<String>,
}

#[derive(Default)]
pub struct Jobs {
    ends: BTreeMap<String, Ends>,
    parallelism: BTreeMap<String, i32>,
    /// The running Jobs of the CronJob.
    of_cron: BTreeSet<String>,
}

pub fn has_condition(status: &JobStatus, type_: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == type_ && c.status == "True")
}

fn index(pod: &Pod) -> Option<&String> {
    pod.metadata.annotations.as_ref()?.get(INDEX)
}

/// Returns the successes and failures in the status: the numbers, plus the uids that are not counted in them
/// yet.
pub fn counted(status: &JobStatus) -> (usize, usize) {
    let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
    let sum = |n: Option<i32>, uids: Option<Vec<String>>| {
        usize::try_from(n.unwrap_or(0)).unwrap_or(0) + uids.unwrap_or_default().len()
    };
    (sum(status.succeeded, uncounted.succeeded), sum(status.failed, uncounted.failed))
}

impl Jobs {
    /// Records how the pod ended. A pod that is deleted before it has ended counts as failed.
    pub fn pod(&mut self, pod: &Pod) {
        let Some(job) = controller(&pod.metadata).filter(|o| o.kind == "Job") else { return };
        let ends = self.ends.entry(job.uid.clone()).or_default();
        let uid = pod.uid().to_owned();
        match phase(pod) {
            "Succeeded" => {
                ends.succeeded.insert(uid);
            }
            "Failed" => {
                ends.failed.insert(uid);
            }
            _ if pod.metadata.deletion_timestamp.is_some() => {
                ends.failed.insert(uid);
            }
            _ => {}
        }
    }

    pub fn pods(&self, pod: &Pod, pods: &Pods) -> Outcome {
        let Some(most) = self.parallelism.get(owner(pod)) else { return Ok(()) };
        let active = count(pods, |p| owner(p) == owner(pod) && is_active(p));
        ensure(active <= *most, || format!("{active} pods of Job {} at a time", owner_name(pod)))?;
        let Some(own) = index(pod) else { return Ok(()) };
        let same = count(pods, |p| owner(p) == owner(pod) && is_active(p) && index(p) == Some(own));
        ensure(same <= 1, || format!("{same} pods for index {own} of Job {}", owner_name(pod)))
    }

    pub fn job(&mut self, job: &Job, deleted: bool) -> Outcome {
        let (uid, status) = (job.uid().to_owned(), job.status.clone().unwrap_or_default());
        self.parallelism.insert(uid.clone(), job.spec.as_ref().and_then(|s| s.parallelism).unwrap_or(1));
        let over = has_condition(&status, "Complete") || has_condition(&status, "Failed");
        if deleted || over {
            self.of_cron.remove(&uid);
        } else if controller(&job.metadata).is_some_and(|o| o.kind == "CronJob") {
            self.of_cron.insert(uid.clone());
        }
        ensure(self.of_cron.len() <= 1, || format!("{} jobs of a CronJob at a time", self.of_cron.len()))?;
        let ends = self.ends.entry(uid).or_default();
        let (succeeded, failed) = counted(&status);
        ensure(succeeded <= ends.succeeded.len(), || {
            format!("Job {} counts {succeeded} successes of {}", job.name(), ends.succeeded.len())
        })?;
        ensure(failed <= ends.failed.len(), || {
            format!("Job {} counts {failed} failures of {}", job.name(), ends.failed.len())
        })
    }

    pub fn ends(&self, uid: &str) -> Ends {
        self.ends.get(uid).cloned().unwrap_or_default()
    }
}

fn owner_name(pod: &Pod) -> &str {
    controller(&pod.metadata).map_or("", |o| o.name.as_str())
}
