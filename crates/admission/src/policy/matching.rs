//! Matches requests with a policy or binding (`matchConstraints`, `matchResources`).

use knarr_apimachinery::selector::Selector;
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::Attributes;
use crate::Context;
use crate::matching;
use crate::matching::{Invocation, Rule, selector};

/// A rule, optionally limited to objects of some names.
#[derive(Debug, Default)]
struct NamedRule {
    rule: Rule,
    names: Vec<String>,
}

/// The match criteria of a policy or binding.
#[derive(Debug)]
pub struct MatchResources {
    namespaces: Result<Selector, String>,
    objects: Result<Selector, String>,
    rules: Vec<NamedRule>,
    excluded: Vec<NamedRule>,
    exact: bool,
}

fn rules(value: &Value) -> Vec<NamedRule> {
    let names = |v: &Value| {
        v["resourceNames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect()
    };
    let list = value.as_array().into_iter().flatten();
    list.map(|v| NamedRule { rule: Rule::read(v), names: names(v) }).collect()
}

impl MatchResources {
    /// Reads `matchConstraints` or `matchResources`.
    pub fn read(value: &Value) -> Self {
        Self {
            namespaces: selector(&value["namespaceSelector"]),
            objects: selector(&value["objectSelector"]),
            rules: rules(&value["resourceRules"]),
            excluded: rules(&value["excludeResourceRules"]),
            exact: value["matchPolicy"] == "Exact",
        }
    }

    /// Returns the request in the form in which it matches; `None` if it does not match.
    pub async fn invocation(
        &self,
        attributes: &Attributes<'_>,
        object: &Value,
        context: &Context<'_>,
    ) -> Result<Option<Invocation>, StatusError> {
        let namespace = matching::in_selected_namespace(&self.namespaces, attributes, context).await;
        if matches!(namespace, Ok(false)) {
            return Ok(None);
        }
        let selected = matching::object_selected(&self.objects, attributes, object);
        if matches!(selected, Ok(false)) {
            return Ok(None);
        }
        let by = |list: &[NamedRule]| {
            let rules: Vec<&Rule> = list
                .iter()
                .filter(|r| r.names.is_empty() || r.names.iter().any(|n| n == attributes.own_name()))
                .map(|r| &r.rule)
                .collect();
            matching::by_rules(&rules, self.exact, attributes, context)
        };
        if by(&self.excluded).is_some() {
            return Ok(None);
        }
        let invocation = match self.rules.is_empty() {
            true => Some(Invocation::own(attributes)),
            false => by(&self.rules),
        };
        let Some(invocation) = invocation else { return Ok(None) };
        namespace?;
        selected.map_err(StatusError::internal)?;
        Ok(Some(invocation))
    }
}
