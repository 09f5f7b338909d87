//! HTTP extenders: external programs that filter and score nodes, choose victims and bind pods. They run after the
//! plugins.
//!
//! Source: `k8s.io/kube-scheduler/extender/v1`. Requests have Go's field names; responses are read in any case.

pub mod config;
mod http;
#[cfg(test)]
mod tests;
mod wire;

use knarr_apimachinery::field::{Error, ErrorList, Path};
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Node, Pod};
use knarr_apimachinery::clock::Clock;
use serde_json::{Value, json};
use thiserror::Error;

use self::config::ExtenderConfig;
use self::http::{CallError, Endpoint};
pub use self::wire::Candidate;
use self::wire::{field, names_of, victims_of};
use crate::config::ConfigError;
use crate::framework::{MAX_NODE_SCORE, PodInfo};

const MAX_PRIORITY: i64 = 10;

/// A failed extender, or an invalid response of one.
#[derive(Debug, Error)]
pub enum ExtenderError {
    #[error(transparent)]
    Call(#[from] CallError),
    /// The extender's own message.
    #[error("{0}")]
    Refused(String),
    #[error("extender {extender:?} {why}")]
    Said { extender: String, why: String },
}

/// Formats an error with its causes, for events and conditions.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// All extenders in their order.
#[derive(Default)]
pub struct Extenders(Vec<Extender>);

struct Extender {
    config: ExtenderConfig,
    endpoint: Endpoint,
}

/// The nodes that the extenders accepted, and their reasons for rejecting the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    pub nodes: Vec<String>,
    pub failed: BTreeMap<String, String>,
    /// Rejected nodes where preemption would not help.
    pub unresolvable: BTreeMap<String, String>,
}

impl Extenders {
    /// Builds the extenders. The error message is meant for the author of the configuration.
    pub fn new(configs: &[ExtenderConfig]) -> Result<Self, ConfigError> {
        let made = configs.iter().enumerate().map(|(at, config)| {
            let endpoint = Endpoint::new(config).map_err(|why| {
                let path = Path::new("extenders").index(at);
                let error = Error::invalid(&path, config.url_prefix.as_str(), why);
                ConfigError::Invalid(ErrorList(vec![error]))
            })?;
            Ok(Extender { config: config.clone(), endpoint })
        });
        made.collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether any extender takes part in scheduling the pod.
    pub fn decide_on(&self, pod: &PodInfo) -> bool {
        let asked = |e: &&Extender| {
            let c = &e.config;
            !(c.filter_verb.is_empty() && c.prioritize_verb.is_empty() && c.preempt_verb.is_empty())
        };
        self.interested(pod.pod()).any(|e| asked(&e))
    }

    fn interested<'a>(&'a self, pod: &'a Pod) -> impl Iterator<Item = &'a Extender> {
        self.0.iter().filter(|e| e.is_interested(pod))
    }

    /// Calls one extender after the other; each may reject nodes.
    pub async fn filter(
        &self,
        clock: &dyn Clock,
        pod: &Pod,
        nodes: &[Arc<Node>],
    ) -> Result<Filtered, ExtenderError> {
        let name = |n: &Arc<Node>| n.metadata.name.clone().unwrap_or_default();
        let mut all = Filtered { nodes: nodes.iter().map(name).collect(), ..Filtered::default() };
        for extender in self.interested(pod).filter(|e| !e.config.filter_verb.is_empty()) {
            if all.nodes.is_empty() {
                break;
            }
            match extender.filter(clock, pod, nodes, &all.nodes).await {
                Ok(filtered) => {
                    all.nodes = filtered.nodes;
                    all.failed.extend(filtered.failed);
                    all.unresolvable.extend(filtered.unresolvable);
                }
                Err(error) => extender.pass_over(error)?,
            }
        }
        Ok(all)
    }

    /// Returns the extenders' weighted scores by node. An extender that fails adds none.
    pub async fn prioritize(
        &self,
        clock: &dyn Clock,
        pod: &Pod,
        nodes: &[Arc<Node>],
        names: &[String],
    ) -> BTreeMap<String, i64> {
        let mut sums: BTreeMap<String, i64> = BTreeMap::new();
        for extender in self.interested(pod).filter(|e| !e.config.prioritize_verb.is_empty()) {
            match extender.prioritize(clock, pod, nodes, names).await {
                Ok(scores) => {
                    for (node, score) in scores {
                        let sum = sums.entry(node).or_default();
                        *sum = sum.saturating_add(score);
                    }
                }
                Err(error) => tracing::debug!(%error, "extender returned no scores"),
            }
        }
        sums
    }

    /// Calls one extender after the other; each may reject preemption candidates or change their victims.
    pub async fn preempt(
        &self,
        clock: &dyn Clock,
        pod: &Pod,
        mut candidates: BTreeMap<String, Candidate>,
    ) -> Result<BTreeMap<String, Candidate>, ExtenderError> {
        for extender in self.interested(pod).filter(|e| !e.config.preempt_verb.is_empty()) {
            if candidates.is_empty() {
                break;
            }
            match extender.preempt(clock, pod, &candidates).await {
                Ok(left) => candidates = left,
                Err(error) => extender.pass_over(error)?,
            }
        }
        Ok(candidates)
    }

    /// Binds the pod if one of the extenders does so; `None` otherwise.
    pub async fn bind(
        &self,
        clock: &dyn Clock,
        pod: &PodInfo,
        node: &str,
    ) -> Option<Result<(), ExtenderError>> {
        let extender = self.interested(pod.pod()).find(|e| !e.config.bind_verb.is_empty())?;
        let question = json!({"PodName": &*pod.name, "PodNamespace": pod.namespace(), "PodUID": &*pod.uid,
            "Node": node});
        let answer = extender.ask(clock, &extender.config.bind_verb, &question).await;
        Some(answer.and_then(|answer| extender.refuse_error(&answer)))
    }
}

fn asks_for(containers: &[Container], name: &str) -> bool {
    containers.iter().filter_map(|c| c.resources.as_ref()).any(|r| {
        let lists = [&r.requests, &r.limits];
        lists.into_iter().flatten().any(|list| list.contains_key(name))
    })
}

impl Extender {
    fn is_interested(&self, pod: &Pod) -> bool {
        let managed = &self.config.managed_resources;
        let Some(spec) = &pod.spec else { return managed.is_empty() };
        managed.is_empty()
            || managed.iter().any(|r| {
                asks_for(&spec.containers, &r.name)
                    || asks_for(spec.init_containers.as_deref().unwrap_or_default(), &r.name)
            })
    }

    fn refused(&self, why: impl Into<String>) -> ExtenderError {
        ExtenderError::Said { extender: self.endpoint.prefix().to_owned(), why: why.into() }
    }

    fn garbled(&self, why: &str) -> ExtenderError {
        self.refused(format!("gives an answer that is not what it should be: {why}"))
    }

    fn pass_over(&self, error: ExtenderError) -> Result<(), ExtenderError> {
        if !self.config.ignorable {
            return Err(error);
        }
        tracing::info!(%error, "ignoring a failed extender");
        Ok(())
    }

    async fn ask(&self, clock: &dyn Clock, verb: &str, question: &Value) -> Result<Value, ExtenderError> {
        Ok(self.endpoint.post(clock, verb, question).await?)
    }

    fn refuse_error(&self, answer: &Value) -> Result<(), ExtenderError> {
        match field(answer, "Error").as_str() {
            Some(why) if !why.is_empty() => Err(ExtenderError::Refused(why.to_owned())),
            _ => Ok(()),
        }
    }

    /// Encodes the pod with the nodes of these names in the form that the extender expects.
    fn question(&self, pod: &Pod, nodes: &[Arc<Node>], names: &[String]) -> Value {
        if self.config.node_cache_capable {
            return json!({"Pod": wire::pod(pod), "Nodes": null, "NodeNames": names});
        }
        let wanted = |n: &&Arc<Node>| n.metadata.name.as_ref().is_some_and(|name| names.contains(name));
        let items: Vec<Value> = nodes.iter().filter(wanted).map(|n| json!(**n)).collect();
        json!({"Pod": wire::pod(pod), "Nodes": {"metadata": {}, "items": items}, "NodeNames": null})
    }

    async fn filter(
        &self,
        clock: &dyn Clock,
        pod: &Pod,
        nodes: &[Arc<Node>],
        names: &[String],
    ) -> Result<Filtered, ExtenderError> {
        let answer = self.ask(clock, &self.config.filter_verb, &self.question(pod, nodes, names)).await?;
        self.refuse_error(&answer)?;
        let left = names_of(&answer, self.config.node_cache_capable).map_err(|why| self.garbled(why))?;
        if let Some(unknown) = left.iter().find(|name| !names.contains(name)) {
            return Err(self.refused(format!(
                "claims a filtered node {unknown:?} which is not found in the input node list"
            )));
        }
        let reasons = |name: &str| wire::reasons(field(&answer, name)).map_err(|why| self.garbled(why));
        let (mut failed, unresolvable) = (reasons("FailedNodes")?, reasons("FailedAndUnresolvableNodes")?);
        failed.retain(|node, _| !unresolvable.contains_key(node));
        Ok(Filtered { nodes: left, failed, unresolvable })
    }

    async fn prioritize(
        &self,
        clock: &dyn Clock,
        pod: &Pod,
        nodes: &[Arc<Node>],
        names: &[String],
    ) -> Result<Vec<(String, i64)>, ExtenderError> {
        let question = self.question(pod, nodes, names);
        let answer = self.ask(clock, &self.config.prioritize_verb, &question).await?;
        let list = answer.as_array().ok_or_else(|| self.refused("gives scores that are no list"))?;
        let factor = self.config.weight.saturating_mul(MAX_NODE_SCORE / MAX_PRIORITY);
        let score = |one: &Value| {
            let (host, score) = (field(one, "Host").as_str()?, field(one, "Score").as_i64()?);
            Some((host.to_owned(), score.saturating_mul(factor)))
        };
        list.iter()
            .map(|one| score(one).ok_or_else(|| self.refused("gives a score without Host and Score")))
            .collect()
    }

    async fn preempt(
        &self,
        clock: &dyn Clock,
        pod: &Pod,
        candidates: &BTreeMap<String, Candidate>,
    ) -> Result<BTreeMap<String, Candidate>, ExtenderError> {
        let by_uid: Value = candidates
            .iter()
            .map(|(node, c)| (node.clone(), c.as_uids()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let question = if self.config.node_cache_capable {
            json!({"Pod": wire::pod(pod), "NodeNameToVictims": null, "NodeNameToMetaVictims": by_uid})
        } else {
            let whole: Value = candidates
                .iter()
                .map(|(node, c)| (node.clone(), c.as_pods()))
                .collect::<serde_json::Map<_, _>>()
                .into();
            json!({"Pod": wire::pod(pod), "NodeNameToVictims": whole, "NodeNameToMetaVictims": null})
        };
        let answer = self.ask(clock, &self.config.preempt_verb, &question).await?;
        let mut left = BTreeMap::new();
        for (node, victims) in victims_of(&answer).map_err(|why| self.garbled(why))? {
            let Some(candidate) = candidates.get(&node) else {
                return Err(ExtenderError::Refused(format!("nodeinfo not found for node name {node:?}")));
            };
            if victims.uids.is_empty() {
                if self.config.ignorable {
                    continue;
                }
                return Err(ExtenderError::Refused(format!(
                    "expected at least one victim pod on node {node:?}"
                )));
            }
            let kept = candidate.with(&victims).map_err(|uid| {
                let prefix = self.endpoint.prefix();
                ExtenderError::Refused(format!(
                    "extender: {prefix} claims to preempt pod (UID: &{{{uid}}}) on node: {node}, but the pod is not found on that node"
                ))
            })?;
            left.insert(node, kept);
        }
        Ok(left)
    }
}
