//! The typed client: one method per verb, over any [`Transport`].

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use knarr_api::kind::{Kind, ResourceType};
use knarr_apimachinery::clock::Clock;

use crate::error::{Error, Result};
use crate::transport::{ListOptions, Query, Transport};

/// A component's access to the API.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    clock: Arc<dyn Clock>,
    field_manager: Arc<str>,
}

/// A patch and its format.
#[derive(Debug, Clone)]
pub enum Patch {
    Json(serde_json::Value),
    Merge(serde_json::Value),
    Strategic(serde_json::Value),
    /// Server-side apply.
    Apply {
        object: serde_json::Value,
        force: bool,
    },
}

impl Patch {
    fn parts(&self) -> (&'static str, &serde_json::Value) {
        match self {
            Self::Json(v) => ("application/json-patch+json", v),
            Self::Merge(v) => ("application/merge-patch+json", v),
            Self::Strategic(v) => ("application/strategic-merge-patch+json", v),
            Self::Apply { object, .. } => ("application/apply-patch+yaml", object),
        }
    }
}

impl Client {
    /// `field_manager` is the name under which this component's writes are recorded.
    pub fn new(transport: Arc<dyn Transport>, clock: Arc<dyn Clock>, field_manager: &str) -> Self {
        Self { transport, clock, field_manager: field_manager.into() }
    }

    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    pub async fn get<K: Kind>(&self, namespace: &str, name: &str) -> Result<K> {
        let path = K::RESOURCE.path(Some(namespace), Some(name));
        decode(&self.call(Method::GET, path, None, Bytes::new()).await?)
    }

    /// All items, each a shared view; with the list's resourceVersion.
    pub async fn list<K: Kind>(
        &self,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<(Vec<Arc<K>>, String)> {
        let list = self.transport.list(&K::RESOURCE, namespace, options).await?;
        let items = list.items.iter().map(|o| o.typed::<K>()).collect::<Result<Vec<_>, _>>()?;
        Ok((items, list.resource_version))
    }

    pub async fn create<K: Kind>(&self, object: &K) -> Result<K> {
        let path = K::RESOURCE.path(Some(object.namespace()), None);
        decode(&self.write(Method::POST, path, "application/json", object.encode().into(), false).await?)
    }

    /// POST to a subresource, such as `binding`, `eviction` or `token`; the answer is decoded as `A`.
    pub async fn create_subresource<B: Kind, A: Kind>(
        &self,
        parent: &ResourceType,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<A> {
        let path = format!("{}/{subresource}", parent.path(Some(namespace), Some(name)));
        decode(&self.write(Method::POST, path, "application/json", body.encode().into(), false).await?)
    }

    /// POST of any JSON to a subresource, with the raw answer: for kinds without a typed codec here.
    pub async fn post_raw(&self, path: String, body: Vec<u8>) -> Result<Bytes> {
        self.write(Method::POST, path, "application/json", body.into(), false).await
    }

    pub async fn update<K: Kind>(&self, object: &K) -> Result<K> {
        let path = K::RESOURCE.path(Some(object.namespace()), Some(object.name()));
        decode(&self.write(Method::PUT, path, "application/json", object.encode().into(), false).await?)
    }

    /// PUT to the `status` subresource.
    pub async fn update_status<K: Kind>(&self, object: &K) -> Result<K> {
        self.update_subresource(object, "status").await
    }

    /// PUT to a subresource that takes the whole object, such as `status` or `approval`.
    pub async fn update_subresource<K: Kind>(&self, object: &K, subresource: &str) -> Result<K> {
        let path = K::RESOURCE.path(Some(object.namespace()), Some(object.name()));
        let path = format!("{path}/{subresource}");
        decode(&self.write(Method::PUT, path, "application/json", object.encode().into(), false).await?)
    }

    /// PATCH of the object, or of a subresource such as `status`.
    pub async fn patch<K: Kind>(
        &self,
        namespace: &str,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch,
    ) -> Result<K> {
        let mut path = K::RESOURCE.path(Some(namespace), Some(name));
        if let Some(sub) = subresource {
            path.push('/');
            path.push_str(sub);
        }
        decode(&self.patch_path(path, patch).await?)
    }

    /// PATCH of any object by its path, with the raw answer.
    pub async fn patch_path(&self, path: String, patch: &Patch) -> Result<Bytes> {
        let (content_type, value) = patch.parts();
        let force = matches!(patch, Patch::Apply { force: true, .. });
        let body = Bytes::from(value.to_string());
        self.write(Method::PATCH, path, content_type, body, force).await
    }

    pub async fn delete<K: Kind>(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<()> {
        self.delete_path(K::RESOURCE.path(Some(namespace), Some(name)), options).await
    }

    /// DELETE of any object by its path.
    pub async fn delete_path(&self, path: String, options: &DeleteOptions) -> Result<()> {
        let body = serde_json::to_vec(options).map_err(|e| Error::Protocol(e.to_string()))?;
        self.call(Method::DELETE, path, Some("application/json"), body.into()).await?;
        Ok(())
    }

    async fn write(
        &self,
        method: Method,
        path: String,
        content_type: &'static str,
        body: Bytes,
        force: bool,
    ) -> Result<Bytes> {
        let mut query = Query::default();
        query.add("fieldManager", &self.field_manager);
        if force {
            query.add("force", "true");
        }
        self.call(method, format!("{path}?{}", query.0), Some(content_type), body).await
    }

    /// GET of any path in one of the forms that `accept` names.
    pub async fn get_as(&self, path: String, accept: &'static str) -> Result<Bytes> {
        self.exchange(Method::GET, path, None, accept, Bytes::new()).await
    }

    /// Any request; `uri` is path and query.
    pub async fn call(
        &self,
        method: Method,
        uri: String,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Bytes> {
        self.exchange(method, uri, content_type, "application/json", body).await
    }

    async fn exchange(
        &self,
        method: Method,
        uri: String,
        content_type: Option<&'static str>,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Bytes> {
        let mut request = http::Request::builder().method(method).uri(uri);
        if let Some(content_type) = content_type {
            request = request.header(http::header::CONTENT_TYPE, content_type);
        }
        let request = request
            .header(http::header::ACCEPT, accept)
            .header(http::header::USER_AGENT, format!("knarr/{}", self.field_manager))
            .body(body)
            .map_err(|e| Error::Protocol(e.to_string()))?;
        Ok(self.transport.send(request).await?.into_body())
    }
}

fn decode<K: Kind>(body: &Bytes) -> Result<K> {
    Ok(K::decode(body)?)
}
