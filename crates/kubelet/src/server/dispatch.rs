//! Handles one request: authentication, authorization, routing.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Pod;
use knarr_api::kind::Kind;
use knarr_apimachinery::zpages::Asked;
use knarr_client::reviews::UserInfo;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::answer::{self, Answer};
use super::auth::AuthError;
use super::handler::Handler;
use super::route::{self, Route};
use super::{cadvisor, exec, health, local_path, logs, metrics, port_forward, stats, system_logs};

/// The paths that `/statusz` lists: as upstream, those that are not registered as web services.
const STATUSZ_PATHS: [&str; 4] = ["/configz", "/flagz", "/healthz", "/metrics"];

impl Handler {
    /// Answers a request. `certificate` is the user of the connection's client certificate; `stop` ends upgraded
    /// connections.
    pub async fn handle(
        &self,
        request: Request<Incoming>,
        certificate: Option<&UserInfo>,
        stop: &CancellationToken,
    ) -> Answer {
        // The path is decoded once, so that the authorizer and the router see an escaped slash in the same way.
        let Some(path) = route::decoded(request.uri().path()) else {
            return answer::text(StatusCode::BAD_REQUEST, "400 Bad Request: the path is not UTF-8");
        };
        self.requests.count(request.method(), &path);
        if let Err(error) = self.admit(&request, &path, certificate).await {
            let status = match error {
                AuthError::Unauthorized => StatusCode::UNAUTHORIZED,
                AuthError::Forbidden { .. } => StatusCode::FORBIDDEN,
                AuthError::Unavailable { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            };
            return answer::text(status, error.to_string());
        }
        let Some(route) = route::route(&path) else {
            return answer::text(StatusCode::NOT_FOUND, "404 page not found\n");
        };
        let changes = matches!(route, Route::LocalPath(_));
        let upgrades = matches!(route, Route::Exec(_) | Route::Attach(_) | Route::PortForward(_));
        // Upstream's handlers of these paths accept all methods; load balancers and monitors use HEAD.
        let heads = matches!(
            route,
            Route::Healthz(_)
                | Route::Configz
                | Route::Flagz
                | Route::Statusz
                | Route::Metrics
                | Route::ResourceMetrics
                | Route::CadvisorMetrics
                | Route::ProbeMetrics
        );
        let fits = match *request.method() {
            Method::GET => true,
            Method::HEAD => heads,
            Method::POST => upgrades || changes,
            _ => changes,
        };
        if !fits {
            return answer::text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
        }
        match route {
            Route::Healthz(path) => {
                let query = route::query(request.uri().query().unwrap_or(""));
                health::answer(&path, &query, self.pods.health())
            }
            Route::Pods => answer::json(&pod_list(&self.pods.pods())),
            Route::RunningPods => answer::json(&pod_list(&self.running_pods())),
            Route::Configz => answer::json(&self.shown.configz),
            Route::Flagz => self.shown.component.flagz(asked(&request)).map(answer::body),
            Route::Statusz => self.shown.component.statusz(asked(&request), STATUSZ_PATHS).map(answer::body),
            Route::StatsSummary => stats::summary(self).await,
            Route::Metrics => metrics::of_kubelet(self).await,
            Route::ResourceMetrics => metrics::of_resources(self).await,
            Route::CadvisorMetrics => cadvisor::answer(self).await,
            Route::ProbeMetrics => answer::prometheus(self.pods.probe_metrics()),
            Route::ContainerLogs(target) => logs::container_logs(self, &target, request.uri().query()).await,
            Route::Exec(target) => exec::exec(self, &target, request, stop).await,
            Route::Attach(target) => exec::attach(self, &target, request, stop).await,
            Route::LocalPath(name) => {
                local_path::answer(&self.folders.local_path, name, request.method()).await
            }
            Route::SystemLogs(None) => system_logs::redirect("logs/"),
            Route::SystemLogs(Some(path)) => system_logs::answer(&self.folders.system_logs, path).await,
            Route::PortForward(target) => port_forward::port_forward(self, &target, request, stop).await,
        }
    }

    async fn admit(
        &self,
        request: &Request<Incoming>,
        path: &str,
        certificate: Option<&UserInfo>,
    ) -> Result<(), AuthError> {
        let user = self.auth.authenticate(certificate, request.headers()).await?;
        self.auth.authorize(&user, route::verb(request.method()), route::subresources(path)).await
    }

    fn running_pods(&self) -> Vec<Arc<Pod>> {
        let is_running =
            |pod: &Arc<Pod>| pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running");
        self.pods.pods().into_iter().filter(is_running).collect()
    }
}

fn asked<T>(request: &Request<T>) -> Asked<'_> {
    Asked { headers: request.headers(), query: request.uri().query().unwrap_or("") }
}

fn pod_list(pods: &[Arc<Pod>]) -> Value {
    let items: Vec<Value> = pods
        .iter()
        .map(|pod| {
            let mut value = serde_json::from_slice::<Value>(&pod.encode()).unwrap_or_default();
            if let Some(fields) = value.as_object_mut() {
                fields.remove("apiVersion");
                fields.remove("kind");
            }
            value
        })
        .collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
}
