//! ResourceQuota's Configuration: the resources that need a quota in a namespace to be used at all.

use knarr_api::quota::{Limited, Requirement};
use knarr_apimachinery::field::{Error, ErrorList, Path};
use serde::Deserialize;
use serde_json::Value;

use super::strict::{self, Shape};
use crate::AdmissionConfig;

const KINDS: &[(&str, &str)] = &[
    ("apiserver.config.k8s.io/v1", "ResourceQuotaConfiguration"),
    ("resourcequota.admission.k8s.io/v1beta1", "Configuration"),
    ("resourcequota.admission.k8s.io/v1alpha1", "Configuration"),
];
const SHAPE: Shape = Shape::Object(&[(
    "limitedResources",
    Shape::List(&Shape::Object(&[
        ("apiGroup", Shape::Any),
        ("resource", Shape::Any),
        ("matchContains", Shape::Any),
        (
            "matchScopes",
            Shape::List(&Shape::Object(&[
                ("scopeName", Shape::Any),
                ("operator", Shape::Any),
                ("values", Shape::Any),
            ])),
        ),
    ])),
)]);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    limited_resources: Option<Vec<LimitedFile>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LimitedFile {
    #[serde(default)]
    api_group: String,
    #[serde(default)]
    resource: String,
    #[serde(default)]
    match_contains: Option<Vec<String>>,
    #[serde(default)]
    match_scopes: Option<Vec<ScopeFile>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ScopeFile {
    #[serde(default)]
    scope_name: String,
    #[serde(default)]
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

pub fn load(value: Option<&Value>, settings: &mut AdmissionConfig) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    let file: File = strict::decode(value, KINDS, &SHAPE)?;
    let limited: Vec<_> = file.limited_resources.unwrap_or_default().into_iter().map(limited).collect();
    let mut errors = ErrorList::new();
    for (index, _) in limited.iter().enumerate().filter(|(_, l)| l.resource.is_empty()) {
        let path = Path::new("limitedResources").index(index).child("resource");
        errors.push(Error::required(&path, ""));
    }
    if !errors.is_empty() {
        return Err(errors.to_string());
    }
    settings.limited_resources = limited;
    Ok(())
}

fn limited(file: LimitedFile) -> Limited {
    let scope = |s: ScopeFile| Requirement {
        scope: s.scope_name,
        operator: s.operator,
        values: s.values.unwrap_or_default(),
    };
    Limited {
        group: file.api_group,
        resource: file.resource,
        match_contains: file.match_contains.unwrap_or_default(),
        match_scopes: file.match_scopes.unwrap_or_default().into_iter().map(scope).collect(),
    }
}
