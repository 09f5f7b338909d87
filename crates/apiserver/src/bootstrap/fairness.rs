//! The default flow schemas and priority levels: created at the start, and restored unless a user has taken them
//! over.

use futures_util::stream::{self, StreamExt, TryStreamExt};
use knarr_apimachinery::status::StatusError;
use serde_json::Value;

use crate::flowcontrol::defaults::{self, AUTOUPDATE};
use crate::state::State;
use knarr_registry::managed::Change;
use knarr_registry::options::WriteParams;
use knarr_registry::own::AT_ONCE;
use knarr_registry::own::ensure;
use knarr_registry::target::Target;
use knarr_registry::update::modify;
use knarr_registry::{metadata, store};
use knarr_wire::request::Request;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

pub async fn reconcile(server: &State, request: &Request) -> Result<(), StatusError> {
    for (plural, objects) in
        [("prioritylevelconfigurations", defaults::levels()), ("flowschemas", defaults::schemas())]
    {
        stream::iter(objects)
            .map(|object| one(server, request, plural, object))
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
    }
    Ok(())
}

async fn one(server: &State, request: &Request, plural: &str, object: Value) -> Result<(), StatusError> {
    let Some(served) = server.registry.table.v1(GROUP, plural) else { return Ok(()) };
    let name = metadata::text(&object, "name").to_owned();
    let Some(current) = store::read(&server.registry, &served, "", &name).await? else {
        return ensure(&server.registry, request, &served, object).await;
    };
    if wanted(&current.value()?, &object).is_none() {
        return Ok(());
    }
    let target = Target { namespace: "", name: &name, subresource: None };
    let change = |old: &Value| Ok(wanted(old, &object).unwrap_or_else(|| old.clone()));
    modify(&server.registry, request, &served, &WriteParams::own(), target, Change::Update, &change)
        .await
        .map(|_| ())
}

/// Returns the object with its default spec, if the spec was changed and is to be restored.
fn wanted(current: &Value, default: &Value) -> Option<Value> {
    let name = metadata::text(default, "name");
    let kept = current["metadata"]["annotations"][AUTOUPDATE] == "true" || defaults::is_mandatory(name);
    if !kept || covers(&current["spec"], &default["spec"]) {
        return None;
    }
    let mut new = current.clone();
    new["spec"] = default["spec"].clone();
    Some(new)
}

/// Returns whether `current` contains everything in `default`; defaulting may have added more fields.
fn covers(current: &Value, default: &Value) -> bool {
    match (current, default) {
        (Value::Object(current), Value::Object(default)) => {
            default.iter().all(|(k, v)| current.get(k).is_some_and(|c| covers(c, v)))
        }
        (Value::Array(current), Value::Array(default)) => {
            current.len() == default.len() && current.iter().zip(default).all(|(c, d)| covers(c, d))
        }
        _ => current == default,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_undone_where_upkeep_is_on() {
        let default = defaults::levels().into_iter().find(|l| l["metadata"]["name"] == "system").unwrap();
        let mut current = default.clone();
        current["spec"]["limited"]["somethingDefaulted"] = 1.into();
        assert!(wanted(&current, &default).is_none());
        current["spec"]["limited"]["nominalConcurrencyShares"] = 99.into();
        assert!(wanted(&current, &default).is_some());
        current["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        assert!(wanted(&current, &default).is_none());
        let exempt = defaults::levels().remove(0);
        let mut changed = exempt.clone();
        changed["metadata"]["annotations"][AUTOUPDATE] = "false".into();
        changed["spec"]["exempt"]["lendablePercent"] = 50.into();
        assert!(wanted(&changed, &exempt).is_some());
    }
}
