//! TokenRequest: issues a token of a service account, for an audience, with an expiry, bound to an object.

use std::sync::Arc;

use knarr_api::object::Object;
use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_apimachinery::gvk::GroupResource;
use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use crate::state::State;
use knarr_auth::authn::service_account::{Grant, find};
use knarr_auth::authz::node::node_name;
use knarr_registry::attributes::{Attributes, Operation};
use knarr_registry::options::WriteParams;
use knarr_registry::served::Served;
use knarr_registry::subresources::body_of;
use knarr_registry::{metadata, store};
use knarr_wire::output::Answer;
use knarr_wire::request::Request;

const DEFAULT_SECONDS: i64 = 3600;
const SHORTEST: i64 = 600;
const LONGEST: i64 = 1 << 32;

pub async fn answer(
    server: &Arc<State>,
    request: &Request,
    accounts: &Served,
) -> Result<Answer, StatusError> {
    let params = WriteParams::parse(request, "CreateOptions")?;
    let mut body = body_of(request, "authentication.k8s.io", "v1", "TokenRequest", &params)?;
    let info = &request.info;
    let own = metadata::text(&body, "name");
    if !own.is_empty() && own != info.name {
        let mut errors = ErrorList::new();
        let path = Path::new("metadata").child("name");
        errors.push(Error::invalid(&path, own, "must match the service account name if specified"));
        return Err(StatusError::invalid("authentication.k8s.io", "TokenRequest", own, &errors));
    }
    let current = store::read(&server.registry, accounts, &info.namespace, &info.name).await?;
    let account = current.ok_or_else(|| accounts.not_found(&info.name))?.object;
    check_uid(metadata::text(&body, "uid"), &account)?;
    let place = (info.namespace.as_str(), info.name.as_str(), "token");
    let mut attributes = Attributes::new(request, accounts, Operation::Create, place, body, params.dry_run);
    body = server.registry.admit(&mut attributes).await?;
    let seconds = body["spec"]["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    check_seconds(seconds)?;
    check_attestations(&body["spec"]["attestations"])?;
    let mut audiences: Vec<String> =
        serde_json::from_value(body["spec"]["audiences"].clone()).unwrap_or_default();
    if audiences.is_empty() {
        audiences.clone_from(&server.authentication.tokens.audiences);
    }
    let (bound, node) = bound_object(server, &body["spec"]["boundObjectRef"], &account).await?;
    check_node(request, bound.as_ref(), node.as_ref())?;
    let grant =
        Grant { account: &account, audiences: audiences.clone(), expiration_seconds: seconds, bound, node };
    let (token, expires) = server.authentication.tokens.issue(&grant, server.clock.now())?;
    let expires = metadata::rfc3339(expires);
    body["metadata"] = json!({
        "name": info.name, "namespace": info.namespace,
        "creationTimestamp": metadata::rfc3339(server.clock.now()),
    });
    body["spec"]["audiences"] = json!(audiences);
    body["spec"]["expirationSeconds"] = seconds.into();
    body["status"] = json!({"token": token, "expirationTimestamp": expires});
    Ok(Answer::Value { code: 201, value: body })
}

/// Checks the uid in the request against the account's, so that a client that knew a deleted account of the same name
/// gets no token of the new one.
fn check_uid(wanted: &str, account: &Object) -> Result<(), StatusError> {
    if wanted.is_empty() || wanted == account.uid() {
        return Ok(());
    }
    let why = format!(
        "the UID in the token request ({wanted}) does not match the UID of the service account ({})",
        account.uid()
    );
    let resource = GroupResource::new("authentication.k8s.io", "TokenRequest");
    Err(StatusError::conflict(&resource, account.name(), &why))
}

/// Checks that a kubelet requests tokens only for pods that it runs.
fn check_node(
    request: &Request,
    bound: Option<&(&'static str, String, String)>,
    node: Option<&(String, String)>,
) -> Result<(), StatusError> {
    let Some(own) = node_name(&request.user) else { return Ok(()) };
    let why = match bound {
        None => "node requested token not bound to a pod",
        Some((kind, ..)) if *kind != "pod" => "node requested token not bound to a pod",
        Some(_) if node.is_none_or(|(name, _)| name != own) => {
            "node requested token bound to a pod scheduled on a different node"
        }
        Some(_) => return Ok(()),
    };
    let resource = GroupResource::new("", "serviceaccounts");
    Err(StatusError::forbidden(&resource, &request.info.name, why))
}

fn check_seconds(seconds: i64) -> Result<(), StatusError> {
    let path = Path::new("spec").child("expirationSeconds");
    let why = match seconds {
        s if s < SHORTEST => "may not specify a duration less than 10 minutes",
        s if s > LONGEST => "may not specify a duration larger than 2^32 seconds",
        _ => return Ok(()),
    };
    let mut errors = ErrorList::new();
    errors.push(Error::invalid(&path, seconds, why));
    Err(StatusError::invalid("authentication.k8s.io", "TokenRequest", "", &errors))
}

/// Refuses attestations: they are for tokens bound to a webhook configuration, which this server does not support.
fn check_attestations(attestations: &Value) -> Result<(), StatusError> {
    if attestations.as_object().is_none_or(|all| all.is_empty()) {
        return Ok(());
    }
    let mut errors = ErrorList::new();
    let path = Path::new("spec").child("attestations");
    let why = "attestations may only be specified with a webhook bound object reference";
    errors.push(Error::invalid(&path, attestations.clone(), why));
    Err(StatusError::invalid("authentication.k8s.io", "TokenRequest", "", &errors))
}

type Bound = (Option<(&'static str, String, String)>, Option<(String, String)>);

/// Returns the object that the token is bound to, and the node of a bound pod.
async fn bound_object(
    server: &State,
    reference: &Value,
    account: &knarr_api::object::Object,
) -> Result<Bound, StatusError> {
    if reference.is_null() {
        return Ok((None, None));
    }
    let text = |field: &str| reference[field].as_str().unwrap_or("");
    let (kind, plural, namespace) = match (text("apiVersion"), text("kind")) {
        ("v1", "Pod") => ("pod", "pods", account.namespace()),
        ("v1", "Secret") => ("secret", "secrets", account.namespace()),
        ("v1", "Node") => ("node", "nodes", ""),
        (version, kind) => {
            // Upstream's message has an empty group before the slash for the core group.
            let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
            let why = format!("cannot bind token to object of type {version}, Kind={kind}");
            return Err(StatusError::bad_request(why));
        }
    };
    let (name, uid) = (text("name").to_owned(), text("uid").to_owned());
    let resource = GroupResource::new("", plural);
    let Some(object) = find(&server.registry, plural, namespace, &name).await else {
        return Err(StatusError::not_found(&resource, &name));
    };
    if !uid.is_empty() && uid != object.uid() {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        let resource = GroupResource::new("", text("kind"));
        return Err(StatusError::conflict(&resource, &name, &why));
    }
    let mut node = None;
    if kind == "pod" {
        let pod: Value = serde_json::from_slice(&object.json()).map_err(StatusError::internal)?;
        let used = pod["spec"]["serviceAccountName"].as_str().unwrap_or("");
        if used != account.name() {
            return Err(StatusError::bad_request(format!(
                "cannot bind token for serviceaccount \"{}\" to pod running with different serviceaccount name.",
                account.name()
            )));
        }
        if let Some(name) = pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
            let found = find(&server.registry, "nodes", "", name).await;
            node = Some((name.to_owned(), found.map(|n| n.uid().to_owned()).unwrap_or_default()));
        }
    }
    Ok((Some((kind, name, object.uid().to_owned())), node))
}
