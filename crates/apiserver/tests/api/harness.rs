//! A test server, and a concise client for it.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use knarr_apiserver::{ApiServer, Config, UserInfo};
use knarr_client::clock::SystemClock;
use knarr_client::{Error, Transport};
use knarr_storage::{Embedded, Options, Store};
use serde_json::{Value, json};

pub struct Harness {
    pub server: ApiServer,
    pub store: Arc<dyn Store>,
}

/// The in-process client of one user.
#[derive(Clone)]
pub struct User(pub Arc<dyn Transport>);

/// The code, body and Warning headers of a response.
pub struct Reply {
    pub code: u16,
    pub body: Value,
    pub warnings: Vec<String>,
}

impl Reply {
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or("")
    }

    /// Returns the body of a response that must have this code.
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        self.body
    }
}

pub fn config(store: Arc<dyn Store>) -> Config {
    let mut config = Config::new(store, Arc::new(SystemClock), knarr_api::resources::all().to_vec());
    config.service_accounts.key_pem = signing_key();
    config.advertise = "10.0.0.1:6443".parse().unwrap();
    config
}

fn signing_key() -> String {
    let key = rcgen::KeyPair::generate().unwrap();
    key.serialize_pem()
}

impl Harness {
    pub async fn new() -> Self {
        Self::on(Arc::new(Embedded::memory(Options::default())), |_| ()).await
    }

    /// Starts a server on this store, with a changed configuration.
    pub async fn on(store: Arc<dyn Store>, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config(Arc::clone(&store));
        change(&mut config);
        let server = ApiServer::new(config).await.unwrap();
        Self { server, store }
    }

    pub fn admin(&self) -> User {
        self.user("admin", &["system:masters"])
    }

    pub fn user(&self, name: &str, groups: &[&str]) -> User {
        User(self.server.transport(UserInfo::new(name, groups)))
    }
}

impl User {
    /// Waits for the work that the server does after its start.
    pub async fn until_ready(&self) {
        let asking = async {
            while self.get("/readyz").await.code != 200 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), asking).await.unwrap();
    }

    pub async fn send(&self, request: http::Request<Bytes>) -> Reply {
        match self.0.send(request).await {
            Ok(response) => {
                let warnings = response.headers().get_all("warning").iter();
                let warnings = warnings.filter_map(|w| w.to_str().ok()).map(str::to_owned).collect();
                let code = response.status().as_u16();
                let body = serde_json::from_slice(response.body())
                    .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(response.body()).into_owned()));
                Reply { code, body, warnings }
            }
            Err(Error::Status(status)) => Reply {
                code: status.code(),
                body: serde_json::to_value(&*status.0).unwrap(),
                warnings: Vec::new(),
            },
            Err(other) => panic!("{other}"),
        }
    }

    pub async fn raw(&self, method: Method, uri: &str, content_type: &str, body: impl Into<Bytes>) -> Reply {
        let mut request = http::Request::builder().method(method).uri(uri).header("user-agent", "test/1");
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        self.send(request.body(body.into()).unwrap()).await
    }

    pub async fn get(&self, uri: &str) -> Reply {
        self.raw(Method::GET, uri, "", "").await
    }

    pub async fn get_as(&self, uri: &str, accept: &str) -> Reply {
        let request = http::Request::builder().uri(uri).header("accept", accept);
        self.send(request.body(Bytes::new()).unwrap()).await
    }

    pub async fn post(&self, uri: &str, body: &Value) -> Reply {
        self.raw(Method::POST, uri, "application/json", body.to_string()).await
    }

    pub async fn put(&self, uri: &str, body: &Value) -> Reply {
        self.raw(Method::PUT, uri, "application/json", body.to_string()).await
    }

    pub async fn patch(&self, uri: &str, kind: &str, body: &Value) -> Reply {
        let content_type = format!("application/{kind}");
        self.raw(Method::PATCH, uri, &content_type, body.to_string()).await
    }

    pub async fn delete(&self, uri: &str) -> Reply {
        self.raw(Method::DELETE, uri, "", "").await
    }

    pub async fn delete_with(&self, uri: &str, options: &Value) -> Reply {
        self.raw(Method::DELETE, uri, "application/json", options.to_string()).await
    }
}

pub const MERGE: &str = "merge-patch+json";
pub const STRATEGIC: &str = "strategic-merge-patch+json";
pub const APPLY: &str = "apply-patch+yaml";
pub const JSON: &str = "json-patch+json";

pub fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

pub fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "busybox"}]},
    })
}

/// Creates the service account that pods of the default namespace use.
pub async fn default_account(user: &User) {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    user.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
}

pub const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
pub const PODS: &str = "/api/v1/namespaces/default/pods";
