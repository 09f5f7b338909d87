//! Encodes requests to extenders and decodes their responses: JSON with Go's field names, matched in any case as Go
//! does.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use serde_json::{Value, json};

const NULL: &Value = &Value::Null;

/// A node's victims, with all pods of the node, so that an extender can choose others.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub victims: Vec<Arc<Pod>>,
    pub there: Vec<Arc<Pod>>,
    pub violations: usize,
}

/// Victims in an extender's response.
pub struct Victims {
    pub uids: Vec<String>,
    pub violations: usize,
}

/// Returns the field with this name, in any case.
pub fn field<'a>(object: &'a Value, name: &str) -> &'a Value {
    let Some(map) = object.as_object() else { return NULL };
    map.get(name)
        .or_else(|| map.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
        .unwrap_or(NULL)
}

/// Encodes a pod as JSON.
pub fn pod(pod: &Pod) -> Value {
    serde_json::from_slice(&pod.encode()).unwrap_or_default()
}

/// Returns the names of the accepted nodes; none if the response has neither names nor nodes.
pub fn names_of(answer: &Value, by_name: bool) -> Result<Vec<String>, &'static str> {
    let text = |v: &Value| v.as_str().map(str::to_owned);
    let names = field(answer, "NodeNames");
    if by_name && !names.is_null() {
        let list = names.as_array().ok_or("NodeNames is no list")?;
        return list.iter().map(|n| text(n).ok_or("NodeNames has something other than names")).collect();
    }
    let nodes = field(answer, "Nodes");
    if nodes.is_null() {
        return Ok(Vec::new());
    }
    let items = field(nodes, "items");
    let list =
        if items.is_null() { &[][..] } else { items.as_array().ok_or("Nodes has no list of items")? };
    list.iter().map(|n| text(&n["metadata"]["name"]).ok_or("Nodes has one without a name")).collect()
}

/// Decodes a map from node name to message.
pub fn reasons(map: &Value) -> Result<BTreeMap<String, String>, &'static str> {
    match map {
        Value::Null => Ok(BTreeMap::new()),
        Value::Object(map) => map
            .iter()
            .map(|(node, why)| {
                let why = why.as_str().ok_or("a failed node's message is no text")?;
                Ok((node.clone(), why.to_owned()))
            })
            .collect(),
        _ => Err("failed nodes are no map"),
    }
}

/// Decodes the victims by node name.
pub fn victims_of(answer: &Value) -> Result<BTreeMap<String, Victims>, &'static str> {
    let map = match field(answer, "NodeNameToMetaVictims") {
        Value::Null => return Ok(BTreeMap::new()),
        map => map.as_object().ok_or("NodeNameToMetaVictims is no map")?,
    };
    map.iter()
        .map(|(node, victims)| {
            let pods = field(victims, "Pods");
            let list = if pods.is_null() { &[][..] } else { pods.as_array().ok_or("Pods is no list")? };
            let uid = |p: &Value| field(p, "UID").as_str().map(str::to_owned).ok_or("a victim without UID");
            let uids = list.iter().map(uid).collect::<Result<_, _>>()?;
            let violations = field(victims, "NumPDBViolations").as_u64().unwrap_or(0);
            Ok((
                node.clone(),
                Victims { uids, violations: usize::try_from(violations).unwrap_or(usize::MAX) },
            ))
        })
        .collect()
}

impl Candidate {
    /// Encodes the victims by uid, for extenders that cache nodes.
    pub fn as_uids(&self) -> Value {
        let pods: Vec<_> = self.victims.iter().map(|p| json!({"UID": p.uid()})).collect();
        json!({"Pods": pods, "NumPDBViolations": self.violations})
    }

    /// Encodes the victims as whole pods.
    pub fn as_pods(&self) -> Value {
        let pods: Vec<_> = self.victims.iter().map(|p| pod(p)).collect();
        json!({"Pods": pods, "NumPDBViolations": self.violations})
    }

    /// Returns the candidate with other victims. The error is the uid of a victim that is not on the node.
    pub fn with<'a>(&self, named: &'a Victims) -> Result<Self, &'a str> {
        let find = |uid: &'a String| self.there.iter().find(|p| p.uid() == uid).cloned().ok_or(uid.as_str());
        let victims = named.uids.iter().map(find).collect::<Result<_, _>>()?;
        Ok(Self { victims, there: self.there.clone(), violations: named.violations })
    }
}
