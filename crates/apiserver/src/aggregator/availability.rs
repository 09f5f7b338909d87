//! Maintains the condition `Available` of APIServices with a Service, and fetches the discovery and OpenAPI documents
//! of their servers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{
    APIService, APIServiceCondition, APIServiceSpec,
};
use knarr_api::apiregistration::apiservice::AVAILABLE;
use knarr_api::kind::Kind;
use knarr_client::work_queue::WorkQueue;
use knarr_client::{Client, Error, Event, Informers, Lister};
use tokio_util::sync::CancellationToken;

use super::remote::{Failure, get, url};
use super::{Aggregator, Remote, documents};
use knarr_wire::metrics::Metric;

/// The interval between two checks of a server. The first retries of a failing server are sooner.
const AGAIN: Duration = Duration::from_secs(30);
const WORKERS: usize = 5;
/// The condition reason for a server that has an address but no successful response.
const UNANSWERED: &str = "FailedDiscoveryCheck";

/// The steps that are finished once all aggregated servers have been asked.
const DISCOVERED: [&str; 3] =
    ["apiservice-discovery-controller", "apiservice-openapi-controller", "apiservice-openapiv3-controller"];

/// The APIServices with a Service that existed at the start and have not been checked yet.
struct Unasked(Mutex<BTreeSet<String>>);

impl Unasked {
    fn new(aggregator: &Aggregator, lister: &Lister<APIService>) -> Self {
        let all = lister.list();
        let names = all.iter().filter(|a| service_name(a).is_some()).map(|a| a.name().to_owned());
        let unasked = Self(Mutex::new(names.collect()));
        unasked.asked(aggregator, "");
        unasked
    }

    fn asked(&self, aggregator: &Aggregator, name: &str) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.remove(name);
        if names.is_empty() {
            aggregator.steps.finish(&DISCOVERED);
        }
    }
}

/// Runs until `stop`.
pub async fn run(aggregator: Arc<Aggregator>, client: Client, stop: CancellationToken) {
    let informers = Informers::new(client.clone(), stop.clone());
    let queue: Arc<WorkQueue<String>> = WorkQueue::new(Arc::clone(&aggregator.registry.clock));
    let api_services = informers.informer::<APIService>();
    let on_change = Arc::clone(&queue);
    let (of_change, left) = (Arc::clone(&aggregator), api_services.lister());
    api_services.add_handler(move |event| {
        let object = event.object();
        if let Event::Deleted(_) = event {
            of_change.set(object.name(), None);
            on_change.add(object.name().to_owned());
            // Clearing removes the values of all APIServices, so the remaining ones are set again.
            of_change.registry.metrics.clear(Metric::UnavailableApiServices);
            for other in left.list() {
                match service_name(&other) {
                    Some(_) => on_change.add(other.name().to_owned()),
                    None => {
                        of_change.registry.metrics.set(Metric::UnavailableApiServices, &[other.name()], 0.0)
                    }
                }
            }
        } else if service_name(object).is_some() {
            on_change.add(object.name().to_owned());
        } else {
            // APIServices of this server itself are always available.
            of_change.registry.metrics.set(Metric::UnavailableApiServices, &[object.name()], 0.0);
            on_change.add(object.name().to_owned());
        }
    });
    let lister = api_services.lister();
    let services = informers.informer::<Service>();
    let (on_service, of_service) = (Arc::clone(&queue), lister.clone());
    services.add_handler(move |event| {
        let object = event.object();
        enqueue(&on_service, &of_service, object.namespace(), object.name());
    });
    let slices = informers.informer::<EndpointSlice>();
    let (on_slice, of_slice) = (Arc::clone(&queue), lister.clone());
    slices.add_handler(move |event| {
        let object = event.object();
        let labels = object.metadata.labels.as_ref();
        if let Some(service) = labels.and_then(|l| l.get("kubernetes.io/service-name")) {
            enqueue(&on_slice, &of_slice, object.namespace(), service);
        }
    });
    if !informers.wait_synced().await {
        return;
    }
    aggregator.steps.finish(&["apiservice-status-remote-available-controller"]);
    let unasked = Arc::new(Unasked::new(&aggregator, &lister));
    let again = Arc::clone(&queue);
    let reconcile = move |name: String| {
        let (aggregator, client, lister, queue) =
            (Arc::clone(&aggregator), client.clone(), lister.clone(), Arc::clone(&again));
        let unasked = Arc::clone(&unasked);
        async move {
            let reconciled = reconcile(&aggregator, &client, &lister, &queue, &name).await;
            unasked.asked(&aggregator, &name);
            reconciled
        }
    };
    queue.run("available-condition", WORKERS, stop, reconcile).await;
}

fn service_name(api_service: &APIService) -> Option<(String, String)> {
    let service = api_service.spec.as_ref()?.service.as_ref()?;
    Some((service.namespace.clone().unwrap_or_default(), service.name.clone().unwrap_or_default()))
}

/// Queues all APIServices of a Service that changed.
fn enqueue(queue: &WorkQueue<String>, lister: &Lister<APIService>, namespace: &str, name: &str) {
    for api_service in lister.list() {
        if service_name(&api_service).is_some_and(|(ns, n)| ns == namespace && n == name) {
            queue.add(api_service.name().to_owned());
        }
    }
}

async fn reconcile(
    aggregator: &Aggregator,
    client: &Client,
    lister: &Lister<APIService>,
    queue: &WorkQueue<String>,
    name: &str,
) -> knarr_client::Result<()> {
    let found = lister.get("", name).filter(|a| service_name(a).is_some());
    let Some(api_service) = found else {
        aggregator.set(name, None);
        return Ok(());
    };
    queue.add_after(name.to_owned(), AGAIN);
    let (condition, retry) = match check(aggregator, &api_service).await {
        Ok(remote) => {
            aggregator.set(name, Some(remote));
            (condition("True", "Passed", "all checks passed"), None)
        }
        Err(failure) => {
            let spec = api_service.spec.clone().unwrap_or_default();
            aggregator.set_stale(name, spec.group.as_deref(), spec.version.as_deref());
            // A missing Service or address needs no retry: its informer event triggers a new check.
            let retry = (failure.reason.as_deref() == Some(UNANSWERED)).then(|| failure.message.clone());
            (failure, retry.flatten())
        }
    };
    count(aggregator, &api_service, &condition);
    if let Some(changed) = with_condition(&api_service, condition, aggregator.registry.clock.now()) {
        match client.update_status(&changed).await {
            // The informer event of the conflicting change triggers a new check.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            other => drop(other?),
        }
    }
    retry.map_or(Ok(()), |why| Err(Error::Protocol(why)))
}

/// Records the condition in the metrics.
fn count(aggregator: &Aggregator, api_service: &APIService, now: &APIServiceCondition) {
    let (name, is_available) = (api_service.name(), now.status == "True");
    let unavailable = if is_available { 0.0 } else { 1.0 };
    aggregator.registry.metrics.set(Metric::UnavailableApiServices, &[name], unavailable);
    if !is_available && is_available_in(api_service) {
        let reason = now.reason.as_deref().unwrap_or("UnknownReason");
        aggregator.registry.metrics.increment(Metric::UnavailableApiServiceCount, &[name, reason]);
    }
}

/// Returns whether the APIService has the condition `Available` with status True.
pub fn is_available_in(api_service: &APIService) -> bool {
    let conditions = api_service.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == AVAILABLE && c.status == "True")
}

fn condition(status: &str, reason: &str, message: &str) -> APIServiceCondition {
    APIServiceCondition {
        type_: AVAILABLE.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: None,
    }
}

/// Returns the APIService with this condition; `None` if it has the condition already.
fn with_condition(
    api_service: &APIService,
    mut new: APIServiceCondition,
    now: jiff::Timestamp,
) -> Option<APIService> {
    let mut changed = api_service.clone();
    let status = changed.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    new.last_transition_time = Some(Time(now));
    match conditions.iter_mut().find(|c| c.type_ == AVAILABLE) {
        Some(old) => {
            if old.status == new.status {
                new.last_transition_time.clone_from(&old.last_transition_time);
            }
            if *old == new {
                return None;
            }
            *old = new;
        }
        None => conditions.push(new),
    }
    Some(changed)
}

/// Fetches the server's resources, and on success also its OpenAPI documents.
async fn check(aggregator: &Aggregator, api_service: &APIService) -> Result<Remote, APIServiceCondition> {
    let spec = api_service.spec.clone().unwrap_or_default();
    let (path, answer) = discover(aggregator, api_service, &spec).await;
    let failed = |why: String| condition("False", UNANSWERED, &why);
    let url = url(aggregator, api_service, &path);
    let missing = "failing or missing response from";
    let body = match answer {
        Err(Failure::Missing(why)) => return Err(condition("False", why.reason, &why.message)),
        Err(Failure::Other(why)) => return Err(failed(format!("{missing} {url}: Get \"{url}\": {why}"))),
        Ok((status, _)) if !(200..300).contains(&status) => {
            return Err(failed(format!("{missing} {url}: bad status from {url}: {status}")));
        }
        Ok((_, body)) => body,
    };
    let (group, version) = (spec.group.unwrap_or_default(), spec.version.unwrap_or_default());
    let resources = documents::resources(&group, &version, &body);
    let openapi_v3 = openapi_v3(aggregator, api_service, &group, &version).await;
    let openapi_v2 = openapi_v2(aggregator, api_service, &group, &version).await;
    Ok(Remote { group, version, resources, openapi_v3, openapi_v2, stale: false })
}

async fn discover(
    aggregator: &Aggregator,
    api_service: &APIService,
    spec: &APIServiceSpec,
) -> (String, Result<(u16, bytes::Bytes), Failure>) {
    let (group, version) = (spec.group.as_deref().unwrap_or(""), spec.version.as_deref().unwrap_or(""));
    let path = match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    };
    let answer = get(aggregator, api_service, &path, "application/json").await;
    (path, answer)
}

/// Returns the path of the OpenAPI v3 document, from the server's index.
async fn openapi_v3(
    aggregator: &Aggregator,
    api_service: &APIService,
    group: &str,
    version: &str,
) -> Option<String> {
    let (status, body) = get(aggregator, api_service, "/openapi/v3", "application/json").await.ok()?;
    if status != 200 {
        return None;
    }
    let index: BTreeMap<String, serde_json::Value> =
        serde_json::from_value(serde_json::from_slice::<serde_json::Value>(&body).ok()?["paths"].take())
            .ok()?;
    let entry = index.get(&format!("apis/{group}/{version}"))?;
    entry["serverRelativeURL"].as_str().map(str::to_owned)
}

async fn openapi_v2(
    aggregator: &Aggregator,
    api_service: &APIService,
    group: &str,
    version: &str,
) -> Option<serde_json::Value> {
    let (status, body) = get(aggregator, api_service, "/openapi/v2", "application/json").await.ok()?;
    if status != 200 {
        return None;
    }
    documents::only_group_version(serde_json::from_slice(&body).ok()?, group, version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_change_their_time_with_their_status() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        let bare = APIService::default();
        let first = with_condition(&bare, condition("False", "ServiceNotFound", "m"), at(1)).unwrap();
        assert!(with_condition(&first, condition("False", "ServiceNotFound", "m"), at(2)).is_none());
        let time = |a: &APIService| {
            let conditions = a.status.as_ref().unwrap().conditions.as_ref().unwrap();
            assert_eq!(conditions.len(), 1);
            conditions[0].last_transition_time.clone().unwrap().0
        };
        let other = with_condition(&first, condition("False", "MissingEndpoints", "m"), at(2)).unwrap();
        assert_eq!(time(&other), at(1));
        let passed = with_condition(&other, condition("True", "Passed", "m"), at(3)).unwrap();
        assert_eq!(time(&passed), at(3));
    }
}
