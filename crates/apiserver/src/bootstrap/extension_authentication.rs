//! The ConfigMap `kube-system/extension-apiserver-authentication`. From it, aggregated API servers read which client
//! CAs, proxy names and proxy headers to trust.
//!
//! With several servers, each adds its own entries to those that the others have written, because an aggregated
//! server must trust all of them. Source: kube-apiserver's cluster authentication trust controller.

use jiff::Timestamp;
use knarr_apimachinery::status::StatusError;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::config::Config;
use crate::state::State;
use knarr_registry::managed::Change;
use knarr_registry::options::WriteParams;
use knarr_registry::own::ensure;
use knarr_registry::target::Target;
use knarr_registry::update::modify;
use knarr_wire::request::Request;

const NAME: &str = "extension-apiserver-authentication";
const NAMESPACE: &str = "kube-system";

pub async fn reconcile(server: &State, request: &Request) -> Result<(), StatusError> {
    let Some(config_maps) = server.registry.table.v1("", "configmaps") else { return Ok(()) };
    let data = data(&server.config);
    if data.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data,
    });
    ensure(&server.registry, request, &config_maps, object).await?;
    let target = Target { namespace: NAMESPACE, name: NAME, subresource: None };
    let now = server.clock.now();
    let change = |old: &Value| {
        let mut new = old.clone();
        new["data"] = merged(&old["data"], &data, now);
        Ok(new)
    };
    modify(&server.registry, request, &config_maps, &WriteParams::own(), target, Change::Update, &change)
        .await
        .map(|_| ())
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

/// Merges this server's entries into the existing ones: CA bundles without duplicates and expired certificates, and
/// lists with the missing entries added.
fn merged(there: &Value, own: &Value, now: Timestamp) -> Value {
    let mut all = there.as_object().cloned().unwrap_or_default();
    for (key, own) in own.as_object().into_iter().flatten() {
        let (before, own) = (all.get(key).and_then(Value::as_str).unwrap_or(""), own.as_str().unwrap_or(""));
        let both = match key.ends_with("-ca-file") {
            true => bundle(before, own, now),
            false => list(before, own),
        };
        all.insert(key.clone(), both.into());
    }
    all.into()
}

fn bundle(before: &str, own: &str, now: Timestamp) -> String {
    let mut known: Vec<CertificateDer<'static>> = Vec::new();
    let certificates = [before, own].map(|pem| CertificateDer::pem_slice_iter(pem.as_bytes()).flatten());
    for certificate in certificates.into_iter().flatten() {
        if !known.contains(&certificate) && !has_expired(&certificate, now) {
            known.push(certificate);
        }
    }
    known.iter().map(|certificate| pem(certificate)).collect()
}

fn has_expired(certificate: &CertificateDer<'_>, now: Timestamp) -> bool {
    x509_parser::parse_x509_certificate(certificate)
        .is_ok_and(|(_, parsed)| parsed.validity().not_after.timestamp() < now.as_second())
}

fn pem(der: &[u8]) -> String {
    use base64::Engine;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> =
        (0..text.len()).step_by(64).filter_map(|at| text.get(at..text.len().min(at + 64))).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

/// Merges two lists of strings, both encoded as JSON.
fn list(before: &str, own: &str) -> String {
    let parse = |text: &str| serde_json::from_str::<Vec<String>>(text).unwrap_or_default();
    let mut all = parse(before);
    for entry in parse(own) {
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
    json!(all).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority(days: i64) -> String {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ends = std::time::SystemTime::UNIX_EPOCH
            + std::time::Duration::from_secs(
                u64::try_from(Timestamp::now().as_second() + days * 86_400).unwrap(),
            );
        params.not_before = std::time::SystemTime::UNIX_EPOCH.into();
        params.not_after = ends.into();
        let pem = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
        pem.replace("\r\n", "\n")
    }

    #[test]
    fn every_server_stays_trusted() {
        let entries = |ca: &str, names: &str| json!({"requestheader-client-ca-file": ca, "requestheader-allowed-names": names});
        let (first, second, expired) = (authority(1), authority(1), authority(-1));
        let now = Timestamp::now();
        let there = entries(&format!("{expired}{first}"), r#"["a","b"]"#);
        let both = merged(&there, &entries(&second, r#"["b","c"]"#), now);
        assert_eq!(both, entries(&format!("{first}{second}"), r#"["a","b","c"]"#));
        assert_eq!(merged(&both, &entries(&first, r#"["a"]"#), now), both, "a restart changes nothing");
        assert_eq!(merged(&Value::Null, &entries(&first, "[]"), now), entries(&first, "[]"));
    }
}
