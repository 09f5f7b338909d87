//! DefaultBinder: writes the decision through the pod's binding subresource.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Binding, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;
use knarr_client::Client;

use crate::framework::profile::Descriptor;
use crate::framework::{Bind, Plugin, PodInfo, Status};

pub const NAME: &str = "DefaultBinder";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    register: |points, _| {
        let plugin = Arc::new(DefaultBinder);
        points.all.push(plugin.clone());
        points.bind.push(plugin);
    },
};

struct DefaultBinder;

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        NAME
    }
}

#[async_trait]
impl Bind for DefaultBinder {
    async fn bind(&self, client: &Client, pod: &PodInfo, node: &str) -> Status {
        let meta = pod.pod.meta();
        let binding = Binding {
            metadata: ObjectMeta {
                name: meta.name.clone(),
                namespace: meta.namespace.clone(),
                uid: meta.uid.clone(),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".to_owned()),
                name: Some(node.to_owned()),
                ..ObjectReference::default()
            },
        };
        let path = format!(
            "{}/binding",
            k8s_openapi::api::core::v1::Pod::RESOURCE.path(meta.namespace.as_deref(), meta.name.as_deref())
        );
        match client.post_raw(path, binding.encode()).await {
            Ok(_) => Status::SUCCESS,
            Err(error) => Status::error(error.to_string()),
        }
    }
}
