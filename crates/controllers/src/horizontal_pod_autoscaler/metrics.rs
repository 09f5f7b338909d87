//! The sources of metrics: metrics.k8s.io, custom.metrics.k8s.io and external.metrics.k8s.io.
//!
//! Source: the clients of `k8s.io/metrics`.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier};
use knarr_apimachinery::quantity::Quantity;
use knarr_apimachinery::selector::Selector;
use knarr_client::Client;
use serde_json::Value;

use super::replicas::{Metrics, PodMetric};
use crate::support::discovery::Discovery;

/// The window assumed for a custom metric that does not state one.
const WINDOW: Duration = Duration::from_secs(60);
const RESOURCE: &str = "/apis/metrics.k8s.io/v1beta1";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";
/// The versions of the custom metrics API, most preferred first.
const CUSTOM: [&str; 2] = ["v1beta2", "v1beta1"];

/// Queries the metrics APIs.
pub struct Source<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
}

async fn get(client: &Client, path: String) -> Result<Value, String> {
    let body = client.call(Method::GET, path, None, Bytes::new()).await.map_err(|e| e.to_string())?;
    serde_json::from_slice(&body).map_err(|e| e.to_string())
}

/// The API server's answer for a path that is not served.
const NOT_SERVED: &str = "the server could not find the requested resource";

/// Percent-encodes a query value.
fn encoded(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn milli(quantity: &Value) -> Option<i64> {
    Quantity::parse(quantity.as_str()?).ok().map(|q| q.milli_value())
}

fn time(value: &Value) -> Timestamp {
    value.as_str().and_then(|t| t.parse().ok()).unwrap_or(Timestamp::MIN)
}

/// Parses a duration in Go's form, such as `15.02s` or `1m0.5s`.
fn duration(text: &str) -> Duration {
    let (mut total, mut number) = (0.0, String::new());
    let mut units = text.chars().peekable();
    while let Some(c) = units.next() {
        if c.is_ascii_digit() || c == '.' {
            number.push(c);
            continue;
        }
        let milli = c == 'm' && units.next_if_eq(&'s').is_some();
        let unit = match c {
            _ if milli => 1e-3,
            'h' => 3600.0,
            'm' => 60.0,
            's' => 1.0,
            _ => 0.0,
        };
        total += number.parse::<f64>().unwrap_or(0.0) * unit;
        number.clear();
    }
    Duration::try_from_secs_f64(total).unwrap_or_default()
}

/// Returns the usage of a resource by pods, or by one container of each.
fn pod_use(list: &Value, resource: &str, container: &str) -> Metrics {
    let value = |pod: &Value| -> Option<(String, PodMetric)> {
        let containers = pod["containers"].as_array()?;
        let chosen: Vec<&Value> =
            containers.iter().filter(|c| container.is_empty() || c["name"] == container).collect();
        let each: Option<Vec<i64>> = chosen.iter().map(|c| milli(&c["usage"][resource])).collect();
        let value = each.filter(|e| !e.is_empty())?.iter().sum();
        let window = duration(pod["window"].as_str().unwrap_or(""));
        let metric = PodMetric { at: time(&pod["timestamp"]), window, value };
        Some((pod["metadata"]["name"].as_str()?.to_owned(), metric))
    };
    list["items"].as_array().into_iter().flatten().filter_map(value).collect()
}

fn is_empty(list: &Value) -> bool {
    list["items"].as_array().is_none_or(Vec::is_empty)
}

fn selector_of(metric: &MetricIdentifier) -> Result<String, String> {
    let selector = metric.selector.as_ref();
    // Without a selector every series is included.
    let Some(selector) = selector else { return Ok(String::new()) };
    Selector::from_label_selector(Some(selector)).map(|s| s.to_string()).map_err(|e| e.to_string())
}

impl Source<'_> {
    /// Returns the usage of a resource by the selected pods, or by one container of each.
    pub async fn resource(&self, resource: &str, container: &str, selector: &str) -> Result<Metrics, String> {
        let path =
            format!("{RESOURCE}/namespaces/{}/pods?labelSelector={}", self.namespace, encoded(selector));
        let list = get(self.client, path)
            .await
            .map_err(|e| format!("unable to fetch metrics from resource metrics API: {e}"))?;
        if is_empty(&list) {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        Ok(pod_use(&list, resource, container))
    }

    /// Queries the custom metrics API in the newest version that is served.
    async fn custom(&self, rest: &str) -> Result<Value, String> {
        let wrong = |why: &str| format!("unable to fetch metrics from custom metrics API: {why}");
        for version in CUSTOM {
            match get(self.client, format!("/apis/custom.metrics.k8s.io/{version}/{rest}")).await {
                Ok(value) => return Ok(value),
                // Another version may be served.
                Err(error) if error == NOT_SERVED => {}
                Err(error) => return Err(wrong(&error)),
            }
        }
        Err(wrong("no custom metrics API (custom.metrics.k8s.io) registered"))
    }

    /// Returns a custom metric of the selected pods.
    pub async fn pods(&self, metric: &MetricIdentifier, selector: &str) -> Result<Metrics, String> {
        let of_metric = selector_of(metric)?;
        let list = self
            .custom(&format!(
                "namespaces/{}/pods/*/{}?labelSelector={}&metricLabelSelector={}",
                self.namespace,
                encoded(&metric.name),
                encoded(selector),
                encoded(&of_metric)
            ))
            .await?;
        if is_empty(&list) {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        let value = |item: &Value| {
            let window = item["windowSeconds"].as_u64().map_or(WINDOW, Duration::from_secs);
            let metric = PodMetric { at: time(&item["timestamp"]), window, value: milli(&item["value"])? };
            Some((item["describedObject"]["name"].as_str()?.to_owned(), metric))
        };
        Ok(list["items"].as_array().into_iter().flatten().filter_map(value).collect())
    }

    /// Returns a custom metric of one object.
    pub async fn object(
        &self,
        metric: &MetricIdentifier,
        of: &CrossVersionObjectReference,
    ) -> Result<i64, String> {
        let of_metric = selector_of(metric)?;
        let query = format!("metricLabelSelector={}", encoded(&of_metric));
        let version = of.api_version.as_deref().unwrap_or("");
        let name = encoded(&metric.name);
        let rest = if of.kind == "Namespace" && !version.contains('/') {
            format!("namespaces/{}/metrics/{name}?{query}", self.namespace)
        } else {
            let discovery = Discovery::fetch(self.client).await.map_err(|e| e.to_string())?;
            let found = discovery.of_kind(version, &of.kind);
            let plural = found.map(|r| match r.group {
                "" => r.plural.to_owned(),
                group => format!("{}.{group}", r.plural),
            });
            let plural = plural.ok_or_else(|| {
                let why = format!("no matches for kind {:?} in version {version:?}", of.kind);
                format!("unable to fetch metrics from custom metrics API: {why}")
            })?;
            format!("namespaces/{}/{plural}/{}/{name}?{query}", self.namespace, encoded(&of.name))
        };
        let list = self.custom(&rest).await?;
        let wrong = |why: &str| format!("unable to fetch metrics from custom metrics API: {why}");
        match list["items"].as_array().map_or(&[][..], Vec::as_slice) {
            [one] => milli(&one["value"]).ok_or_else(|| wrong("no value in the metric")),
            many => Err(wrong(&format!(
                "the custom metrics API server returned {} results when we asked for exactly one",
                many.len()
            ))),
        }
    }

    /// Returns the sum of an external metric's series.
    pub async fn external(&self, metric: &MetricIdentifier) -> Result<i64, String> {
        let selector = encoded(&selector_of(metric)?);
        let name = encoded(&metric.name);
        let path = format!("{EXTERNAL}/namespaces/{}/{name}?labelSelector={selector}", self.namespace);
        let list = get(self.client, path)
            .await
            .map_err(|e| format!("unable to fetch metrics from external metrics API: {e}"))?;
        if is_empty(&list) {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        let values = list["items"].as_array().into_iter().flatten().filter_map(|i| milli(&i["value"]));
        Ok(values.fold(0, i64::saturating_add))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn use_of_pods_and_containers() {
        let container = |name: &str, cpu: &str| json!({"name": name, "usage": {"cpu": cpu}});
        let pod = |name: &str, containers: Value| {
            json!({"metadata": {"name": name}, "timestamp": "2026-01-01T00:00:00Z", "window": "15.5s",
                "containers": containers})
        };
        let list = json!({"items": [
            pod("a", json!([container("web", "250m"), container("side", "5000000n")])),
            pod("b", json!([container("web", "1"), {"name": "side", "usage": {}}])),
            pod("c", json!([])),
        ]});
        let shown = |container: &str| -> Vec<(String, i64)> {
            pod_use(&list, "cpu", container).into_iter().map(|(name, m)| (name, m.value)).collect()
        };
        assert_eq!(shown(""), [("a".to_owned(), 255)]);
        assert_eq!(shown("web"), [("a".to_owned(), 250), ("b".to_owned(), 1000)]);
        assert_eq!(pod_use(&list, "cpu", "")["a"].window, Duration::from_millis(15_500));
    }

    #[test]
    fn durations_and_queries() {
        for (text, millis) in
            [("15s", 15_000), ("1m0.5s", 60_500), ("250ms", 250), ("1h", 3_600_000), ("", 0)]
        {
            assert_eq!(duration(text), Duration::from_millis(millis), "{text}");
        }
        assert_eq!(encoded("app in (a,b)"), "app%20in%20%28a%2Cb%29");
    }
}
