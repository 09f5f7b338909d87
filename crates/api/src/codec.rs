//! The one place where typed kinds are decoded and encoded, so that each serde instance is compiled once.

use k8s_openapi::Resource;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::kind::{DecodeError, Kind, ResourceType};
use crate::object::Object;

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
                // Serializing plain structs with string keys into memory cannot fail.
                serde_json::to_vec(self).unwrap_or_default()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*

        /// Decodes the typed view of an object, if this crate has a type for its resource.
        fn typed_view(types: &ResourceType, object: &Object) -> Result<(), DecodeError> {
            let wanted = (types.group, types.version, types.kind);
            $(
                if wanted == (<$ty as Resource>::GROUP, <$ty as Resource>::VERSION, <$ty as Resource>::KIND) {
                    return object.typed::<$ty>().map(drop);
                }
            )*
            Ok(())
        }
    };
}

/// Checks that the object decodes into its type, and into every type that validation asked for. Validation does not
/// see an object that does not decode and reports no errors for it, so the caller must refuse it.
///
/// # Errors
/// Why the object does not decode.
pub fn readable(types: &ResourceType, object: &Object) -> Result<(), String> {
    if let Some(why) = object.unreadable() {
        return Err(why);
    }
    typed_view(types, object).map_err(|error| error.source.to_string())
}

include!("kinds.in");
