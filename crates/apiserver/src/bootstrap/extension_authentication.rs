//! The ConfigMap `kube-system/extension-apiserver-authentication`: from it API servers behind this one learn whom to
//! trust, clients' authorities and the proxy's names and headers.

use knarr_apimachinery::status::StatusError;
use serde_json::{Value, json};

use super::{ensure, params, served};
use crate::config::Config;
use crate::registry::Request;
use crate::registry::managed::Change;
use crate::registry::update::{Target, modify};
use crate::server::Inner;

const NAME: &str = "extension-apiserver-authentication";
const NAMESPACE: &str = "kube-system";

pub async fn reconcile(server: &Inner, request: &Request) -> Result<(), StatusError> {
    let Some(config_maps) = served(server, "", "configmaps") else { return Ok(()) };
    let data = data(&server.config);
    if data.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data,
    });
    ensure(server, request, &config_maps, object).await?;
    let target = Target { namespace: NAMESPACE, name: NAME, subresource: None };
    let change = |old: &Value| {
        let mut new = old.clone();
        new["data"] = data.clone();
        Ok(new)
    };
    modify(server, request, &config_maps, &params(), target, Change::Update, &change).await.map(|_| ())
}

fn data(config: &Config) -> Value {
    let file = |path: &Option<std::path::PathBuf>| {
        path.as_ref().and_then(|p| std::fs::read_to_string(p).ok()).unwrap_or_default()
    };
    let pem = |given: &str, path: &Option<std::path::PathBuf>| {
        if path.is_some() { file(path) } else { given.to_owned() }
    };
    let mut data = json!({});
    let clients = format!("{}{}", file(&config.client_ca_file), config.client_ca_pem);
    if !clients.is_empty() {
        data["client-ca-file"] = clients.into();
    }
    let proxy = &config.authentication.request_header;
    if proxy.is_on() {
        let list = |values: &[String]| Value::from(json!(values).to_string());
        data["requestheader-client-ca-file"] = pem(&proxy.client_ca_pem, &proxy.client_ca_file).into();
        data["requestheader-allowed-names"] = list(&proxy.allowed_names);
        data["requestheader-username-headers"] = list(&proxy.username_headers);
        data["requestheader-uid-headers"] = list(&proxy.uid_headers);
        data["requestheader-group-headers"] = list(&proxy.group_headers);
        data["requestheader-extra-headers-prefix"] = list(&proxy.extra_header_prefixes);
    }
    data
}
