//! The one place where typed kinds are decoded and encoded, so that each serde instance is compiled once.

use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kind::{DecodeError, Kind, ResourceType};

macro_rules! kinds {
    ($($ty:ty, $namespaced:literal;)*) => {$(
        impl Kind for $ty {
            const RESOURCE: ResourceType = ResourceType {
                group: <$ty as Resource>::GROUP,
                version: <$ty as Resource>::VERSION,
                kind: <$ty as Resource>::KIND,
                plural: <$ty as Resource>::URL_PATH_SEGMENT,
                namespaced: $namespaced,
            };

            fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                serde_json::from_slice(bytes)
                    .map_err(|source| DecodeError { kind: <$ty as Resource>::KIND, source })
            }

            fn encode(&self) -> Vec<u8> {
                // Writing plain structs with string keys to memory has no way to fail.
                serde_json::to_vec(self).unwrap_or_default()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}

include!("kinds.in");
