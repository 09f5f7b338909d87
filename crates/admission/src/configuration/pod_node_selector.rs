//! PodNodeSelector's configuration: the cluster's default selector, and the labels that pods of a namespace may
//! select.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::AdmissionConfig;
use crate::pod_node_selector::parse;

/// The configuration has no version, and its file may contain other fields, as upstream reads it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    pod_node_selector_plugin_config: Option<BTreeMap<String, String>>,
}

pub fn load(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    let file = File::deserialize(value).map_err(|e| e.to_string())?;
    let selectors = file.pod_node_selector_plugin_config.unwrap_or_default();
    for (namespace, selector) in &selectors {
        parse(selector).map_err(|e| format!("podNodeSelectorPluginConfig.{namespace}: {e}"))?;
    }
    settings.node_selectors = selectors;
    Ok(())
}
