//! Scheduling explanations and simulations as an API: `scheduling.knarr.io/v1alpha1`, see
//! docs/scheduling-questions.md.
//!
//! The answer reveals all nodes and the pods on them, so the caller needs the right in all namespaces.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use knarr_apimachinery::status::StatusError;
use knarr_apiserver::LocalApi;
use knarr_client::Client;
use knarr_scheduler::Scheduler;
use knarr_scheduler::config::Configuration;
use knarr_scheduler::health::Health;
use knarr_scheduler::what_if::{Bounds, WhatIf, WhatIfError};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::picture;

const EXPLANATION: &str = "PodExplanation";
const SIMULATION: &str = "Simulation";

/// The health of nodes and workloads as the scheduler of this process judges it; `None` while another
/// server's scheduler is active.
#[derive(Default)]
pub struct LiveHealth(Mutex<Weak<Health>>);

impl LiveHealth {
    /// Uses the health of this scheduler from now on.
    pub fn is_of(&self, scheduler: &Scheduler) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(scheduler.health());
    }

    fn get(&self) -> Option<Arc<Health>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// Answers requests from a fresh list of the cluster's objects.
pub struct Questions {
    configuration: Configuration,
    health: Arc<LiveHealth>,
    /// Lists the objects; set once the API server runs.
    client: OnceLock<Client>,
    /// The list is as large as the cluster, so one request is answered at a time.
    turn: Arc<Semaphore>,
}

/// How long one answer may take.
const MOST_TIME: Duration = Duration::from_secs(30);
/// The most pods of one simulation, of all manifests together.
const MOST_PODS: usize = 50_000;
/// The most bytes of these pods, as their templates are serialized.
const MOST_BYTES: usize = 32 << 20;

impl Questions {
    pub fn new(configuration: Configuration, health: Arc<LiveHealth>) -> Arc<Self> {
        Arc::new(Self { configuration, health, client: OnceLock::new(), turn: Arc::new(Semaphore::new(1)) })
    }

    /// Sets the client for listing objects, which must be allowed to list all of them.
    pub fn read_with(&self, client: Client) {
        // Only the first client is used.
        let _ = self.client.set(client);
    }
}

#[async_trait]
impl LocalApi for Questions {
    fn group(&self) -> &'static str {
        "scheduling.knarr.io"
    }

    fn version(&self) -> &'static str {
        "v1alpha1"
    }

    fn resources(&self) -> &'static [(&'static str, &'static str)] {
        &[("podexplanations", EXPLANATION), ("simulations", SIMULATION)]
    }

    async fn answer(&self, kind: &str, namespace: &str, spec: Value) -> Result<Value, StatusError> {
        let question = Question::parse(kind, spec)?;
        let unready = || StatusError::internal("the API server is only just starting");
        let client = self.client.get().ok_or_else(unready)?;
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|_| unready())?;
        let (objects, _) = picture::read(client).await.map_err(internal)?;
        let (configuration, namespace) = (self.configuration.clone(), namespace.to_owned());
        let health = self.health.get();
        let clock = Arc::clone(client.clock());
        let until = clock.monotonic().saturating_add(MOST_TIME);
        // Dropped with this future, when the client no longer waits for the answer.
        let waiting = CancellationToken::new();
        let (gone, _waits) = (waiting.clone(), waiting.drop_guard());
        let answered = tokio::task::spawn_blocking(move || {
            // The next request waits until this thread has ended, even if this client has left.
            let _turn = turn;
            let stop = || gone.is_cancelled() || clock.monotonic() >= until;
            let mut what_if = WhatIf::with_health(&configuration, &objects, health).map_err(internal)?;
            question.ask(&mut what_if, &namespace, &stop)
        });
        answered.await.map_err(internal)?
    }
}

/// A request, parsed.
enum Question {
    Pod(String),
    Written(Value),
    Simulation(Vec<Value>),
}

impl Question {
    fn parse(kind: &str, mut spec: Value) -> Result<Self, StatusError> {
        let wrong = |why: &str| Err(StatusError::bad_request(format!("{kind}: {why}")));
        let mut field = |name: &str| spec.get_mut(name).map(Value::take).unwrap_or_default();
        if kind == SIMULATION {
            return match field("manifests") {
                Value::Array(manifests) if !manifests.is_empty() => Ok(Self::Simulation(manifests)),
                _ => wrong("spec.manifests: Required value: the objects whose pods to place"),
            };
        }
        match (field("podName"), field("manifest")) {
            (Value::String(name), Value::Null) if !name.is_empty() => Ok(Self::Pod(name)),
            (Value::Null, manifest @ Value::Object(_)) => Ok(Self::Written(manifest)),
            _ => wrong(
                "spec: Required value: either podName, of a pod that exists, or manifest, an object with pods",
            ),
        }
    }

    fn ask(
        &self,
        what_if: &mut WhatIf,
        namespace: &str,
        stop: &dyn Fn() -> bool,
    ) -> Result<Value, StatusError> {
        let bounds = Bounds { pods: MOST_PODS, bytes: MOST_BYTES, stop };
        match self {
            Self::Pod(name) => what_if.explain_pod(namespace, name).map(|said| json!(said)),
            Self::Written(manifest) => what_if.explain_manifest(namespace, manifest).map(|said| json!(said)),
            Self::Simulation(manifests) => {
                what_if.simulate_within(namespace, manifests, &bounds).map(|said| json!(said))
            }
        }
        .map_err(|error| match error {
            WhatIfError::NoPod(name) => {
                StatusError::not_found(&knarr_apimachinery::gvk::GroupResource::new("", "pods"), &name)
            }
            late @ WhatIfError::OutOfTime => StatusError::timeout(late.to_string()),
            other => StatusError::bad_request(other.to_string()),
        })
    }
}

fn internal(error: impl std::fmt::Display) -> StatusError {
    StatusError::internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Secret;
    use knarr_api::kind::Kind;
    use knarr_apimachinery::clock::Clock;
    use knarr_apiserver::{ApiServer, Config};
    use knarr_client::clock::SystemClock;
    use knarr_client::transport::ListOptions;
    use knarr_storage::{Embedded, Options};

    use super::*;
    use crate::control_plane::{self, ADDONS, QUESTIONS};

    #[tokio::test]
    async fn identities_inside_the_server_may_do_what_they_have_to() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let store = Arc::new(Embedded::memory(Options::default()));
        let resources = knarr_api::resources::all().to_vec();
        let mut config = Config::new(store, Arc::clone(&clock), resources);
        config.advertise = "10.0.0.1:6443".parse().unwrap();
        let server = ApiServer::new(config).await.unwrap();
        let client = |user: &str| control_plane::client(&server, &clock, user, &[], "knarr");
        let (_, warnings) = picture::read(&client(QUESTIONS)).await.unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        for _ in 0..2 {
            crate::addons::ensure_dns_service(&client(ADDONS), "10.96.0.10".parse().unwrap()).await.unwrap();
            crate::addons::ensure_storage_class(&client(ADDONS)).await.unwrap();
        }
        for user in [QUESTIONS, ADDONS] {
            let secrets =
                client(user).transport().list(&Secret::RESOURCE, None, &ListOptions::default()).await;
            assert_eq!(secrets.unwrap_err().status().map(StatusError::code), Some(403), "{user}");
        }
        server.stop();
    }

    #[test]
    fn questions_are_one_thing_or_the_other() {
        let parsed = |kind: &str, spec: Value| Question::parse(kind, spec).map_err(|e| e.to_string());
        assert!(
            matches!(parsed(EXPLANATION, json!({"podName": "a"})), Ok(Question::Pod(name)) if name == "a")
        );
        assert!(matches!(
            parsed(EXPLANATION, json!({"manifest": {"kind": "Pod"}})),
            Ok(Question::Written(_))
        ));
        let many = json!({"manifests": [{"kind": "Pod"}]});
        assert!(matches!(parsed(SIMULATION, many), Ok(Question::Simulation(all)) if all.len() == 1));
        let both = json!({"podName": "a", "manifest": {}});
        for (kind, spec) in [
            (EXPLANATION, json!(null)),
            (EXPLANATION, json!({"podName": ""})),
            (EXPLANATION, both),
            (SIMULATION, json!({"manifests": []})),
            (SIMULATION, json!("x")),
        ] {
            let shown = spec.to_string();
            let error = parsed(kind, spec).err().expect(&shown);
            assert!(error.contains("Required value"), "{shown}: {error}");
        }
    }
}
