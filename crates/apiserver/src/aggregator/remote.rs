//! Calls of aggregated API servers: TLS as the APIService configures it, and the user in headers that our client
//! certificate authenticates.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, HeaderMap, HeaderName, HeaderValue};
use http_body_util::{BodyExt, Full, Limited};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec};
use knarr_apimachinery::clock::Clock;
use knarr_tls::Roots;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Aggregator;
use super::resolve::{Missing, Reference, resolve};
use crate::config::Config;
use crate::proxy::Backend;
use knarr_auth::authn::UserInfo;
use knarr_reload::Reloaded;
use knarr_wire::keypair::{self, ConfigError};

/// The maximum size of a document from an aggregated server, in bytes.
const MAX_DOCUMENT: usize = 32 * 1024 * 1024;
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The client certificate that authenticates the user headers. Without it, aggregated servers treat requests as
/// anonymous.
pub struct Identity {
    pair: Option<Reloaded<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>>,
}

impl Identity {
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        const WHAT: &str = "the proxy client certificate";
        let (given, files) = (config.proxy_client.as_ref(), config.proxy_client_files.as_ref());
        let pair = keypair::follow(given, files, WHAT, |pair| keypair::keypair(pair, WHAT))?;
        Ok(Self { pair })
    }

    fn tls(&self, spec: &APIServiceSpec, clock: &dyn Clock) -> Result<ClientConfig, String> {
        let builder = if spec.insecure_skip_tls_verify.unwrap_or(false) {
            knarr_tls::trusting_anybody()
        } else {
            let bundle = spec.ca_bundle.as_ref().map_or(&[][..], |bundle| &bundle.0);
            let roots = Roots::from_pem(bundle).map_err(|e| format!("caBundle: {e}"))?;
            knarr_tls::trusting(roots)
        };
        let builder = builder.map_err(|e| e.to_string())?;
        match &self.pair {
            Some(pair) => {
                let pair = pair.get(clock);
                let (chain, key) = &*pair;
                builder.with_client_auth_cert(chain.clone(), key.clone_key()).map_err(|e| e.to_string())
            }
            None => Ok(builder.with_no_client_auth()),
        }
    }
}

/// Why an aggregated server cannot be called.
#[derive(Debug)]
pub enum Failure {
    /// Its Service has no address; has the reason and message of the condition.
    Missing(Missing),
    Other(String),
}

/// Returns the backend of an APIService, which must have a Service.
pub fn backend(aggregator: &Aggregator, api_service: &APIService) -> Result<Backend, Failure> {
    let spec = api_service.spec.clone().unwrap_or_default();
    let reference = spec.service.clone().unwrap_or_default();
    let (namespace, name) = (reference.namespace.unwrap_or_default(), reference.name.unwrap_or_default());
    let port = reference.port.unwrap_or(443);
    let to = Reference { namespace: &namespace, name: &name, port };
    let service =
        aggregator.registry.caches.get("core/services").and_then(|c| c.get(&format!("{namespace}/{name}")));
    let service = service.and_then(|o| o.typed::<Service>().ok());
    let slices: Vec<Arc<EndpointSlice>> = aggregator
        .registry
        .caches
        .get("discovery.k8s.io/endpointslices")
        .map(|c| c.list(Some(&namespace)))
        .unwrap_or_default()
        .iter()
        .filter(|o| o.header().label("kubernetes.io/service-name") == Some(name.as_str()))
        .filter_map(|o| o.typed::<EndpointSlice>().ok())
        .collect();
    let choice = aggregator.registry.clock.monotonic().subsec_nanos() as usize;
    let (address, number) = resolve(to, service.as_deref(), &slices, choice).map_err(Failure::Missing)?;
    let tls = aggregator.identity.tls(&spec, &*aggregator.registry.clock).map_err(Failure::Other)?;
    Ok(Backend::Tls {
        address: address.to_owned(),
        port: number,
        server_name: format!("{name}.{namespace}.svc"),
        tls: Arc::new(tls),
    })
}

/// Returns the URL that kube-aggregator would call: its host is the cluster IP or external name of the Service.
pub fn url(aggregator: &Aggregator, api_service: &APIService, path: &str) -> String {
    let reference = api_service.spec.clone().unwrap_or_default().service.unwrap_or_default();
    let (namespace, name) = (reference.namespace.unwrap_or_default(), reference.name.unwrap_or_default());
    let service =
        aggregator.registry.caches.get("core/services").and_then(|c| c.get(&format!("{namespace}/{name}")));
    let spec = service.and_then(|o| o.typed::<Service>().ok()).and_then(|s| s.spec.clone());
    let spec = spec.unwrap_or_default();
    let host = match spec.type_.as_deref() {
        Some("ExternalName") => spec.external_name,
        _ => spec.cluster_ip,
    };
    let host = host.unwrap_or_default();
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    format!("https://{host}:{}{path}", reference.port.unwrap_or(443))
}

/// Returns the headers that describe the user, in UTF-8 as upstream sends them. Fails if a part cannot be sent,
/// because the user would then be another one.
pub fn user_headers(user: &UserInfo) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let mut add = |name: &str, value: &str| {
        let pair = (HeaderName::try_from(name), HeaderValue::from_bytes(value.as_bytes()));
        let (Ok(name), Ok(value)) = pair else {
            return Err(format!("{name}: {value:?} cannot stand in a header"));
        };
        headers.append(name, value);
        Ok(())
    };
    add("x-remote-user", &user.name)?;
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid)?;
    }
    user.groups.iter().try_for_each(|group| add("x-remote-group", group))?;
    for (key, values) in &user.extra {
        let name = format!("x-remote-extra-{}", escaped(key));
        values.iter().try_for_each(|value| add(&name, value))?;
    }
    Ok(headers)
}

/// Replaces all headers that name a user by these.
pub fn set_user(headers: &mut HeaderMap, user: HeaderMap) {
    let names: Vec<HeaderName> =
        headers.keys().filter(|n| n.as_str().starts_with("x-remote-")).cloned().collect();
    names.iter().for_each(|name| drop(headers.remove(name)));
    headers.extend(user);
}

/// Escapes the characters of an extra key that header names cannot contain.
fn escaped(key: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&b);
    let mut out = String::new();
    for b in key.to_lowercase().bytes() {
        match plain(b) {
            true => out.push(char::from(b)),
            false => out.push_str(&format!("%{b:02x}")),
        }
    }
    out
}

/// Makes a GET request as the aggregator itself. Returns the status and body of any response; redirects are not
/// followed.
pub async fn get(
    aggregator: &Aggregator,
    api_service: &APIService,
    path: &str,
    accept: &'static str,
) -> Result<(u16, Bytes), Failure> {
    let backend = backend(aggregator, api_service)?;
    tokio::select! {
        answer = get_from(aggregator, &backend, path, accept) => answer.map_err(Failure::Other),
        () = aggregator.registry.clock.sleep(ANSWER_WITHIN) => Err(Failure::Other("context deadline exceeded".to_owned())),
    }
}

async fn get_from(
    aggregator: &Aggregator,
    backend: &Backend,
    path: &str,
    accept: &'static str,
) -> Result<(u16, Bytes), String> {
    let (mut sender, authority) = aggregator.proxy.dialer.connect(backend).await?;
    let mut request = http::Request::get(path).body(Full::new(Bytes::new())).map_err(|e| e.to_string())?;
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    if let Ok(host) = HeaderValue::from_str(&authority) {
        headers.insert(HOST, host);
    }
    set_user(headers, user_headers(&UserInfo::new("system:kube-aggregator", &["system:masters"]))?);
    let answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_DOCUMENT).collect().await.map_err(|e| e.to_string())?;
    Ok((status, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_told_in_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_static("root"));
        headers.insert("x-remote-extra-a", HeaderValue::from_static("forged"));
        let mut user = UserInfo::new("jane", &["a"]);
        user.extra.insert("Scopes/x".into(), vec!["1".into(), "2".into()]);
        set_user(&mut headers, user_headers(&user).unwrap());
        let all = |name: &str| headers.get_all(name).iter().map(|v| v.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(all("x-remote-user"), ["jane"]);
        assert_eq!(all("x-remote-group"), ["a", "system:authenticated"]);
        assert_eq!(all("x-remote-extra-scopes%2fx"), ["1", "2"]);
        assert_eq!(all("x-remote-extra-a"), [""; 0]);
        set_user(&mut headers, user_headers(&UserInfo::new("jürgen", &["größe"])).unwrap());
        assert_eq!(headers["x-remote-user"].as_bytes(), "jürgen".as_bytes());
        assert_eq!(headers["x-remote-group"].as_bytes(), "größe".as_bytes());
        assert!(!headers.contains_key("x-remote-extra-scopes%2fx"));
        for user in [UserInfo::new("a\nb", &[]), UserInfo::new("a", &["b\r\nx-remote-group: c"])] {
            assert!(user_headers(&user).unwrap_err().ends_with(" cannot stand in a header"));
        }
    }
}
