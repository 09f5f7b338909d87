//! DefaultBinder: writes the decision to the pod's binding subresource.

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{Binding, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_api::kind::Kind;
use knarr_client::Client;

use crate::framework::{Bind, Descriptor, Parts, Plugin, PodInfo, Status};

pub const NAME: &str = "DefaultBinder";
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    weight: 0,
    args: None,
    build: |_| {
        let plugin = Arc::new(DefaultBinder);
        Ok(Parts { bind: Some(plugin.clone()), ..Parts::of(plugin) })
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
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(pod.name.to_string()),
                namespace: Some(pod.namespace().to_owned()),
                uid: Some(pod.uid.to_string()),
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
            k8s_openapi::api::core::v1::Pod::RESOURCE.path(Some(pod.namespace()), Some(&pod.name))
        );
        match client.post_raw(path, binding.encode()).await {
            Ok(_) => Status::SUCCESS,
            Err(error) => Status::error(error.to_string()),
        }
    }
}
