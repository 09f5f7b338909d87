//! An object as Knarr holds it: once, as encoded JSON, with a small parsed header and a typed view made on demand.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::schema::{self, Type};
use serde::Deserialize;

use crate::header::Header;
use crate::kind::{DecodeError, Kind, ObjectKey};

/// One revision of an API object, shared by everyone who looks at it.
///
/// The JSON carries `apiVersion`, `kind` and `metadata.resourceVersion`. It never changes.
pub struct Object {
    json: Bytes,
    header: Header,
    typed: RwLock<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Object {
    /// From complete JSON. `selectable` are the field paths that field selectors may ask for.
    pub fn new(json: Bytes, selectable: &[&'static str]) -> Result<Self, serde_json::Error> {
        let header = Header::parse(&json, selectable)?;
        Ok(Self { json, header, typed: RwLock::default() })
    }

    /// From JSON as it is stored, without a resourceVersion: writes `revision` into the metadata.
    pub fn from_stored(
        json: &[u8],
        revision: u64,
        selectable: &[&'static str],
    ) -> Result<Self, serde_json::Error> {
        Self::new(with_resource_version(json, revision), selectable)
    }

    /// A typed object, encoded.
    pub fn from_typed<K: Kind>(object: &K) -> Result<Self, serde_json::Error> {
        Self::new(Bytes::from(object.encode()), &[])
    }

    pub fn json(&self) -> &Bytes {
        &self.json
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn name(&self) -> &str {
        &self.header.name
    }

    /// Empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        &self.header.namespace
    }

    pub fn uid(&self) -> &str {
        &self.header.uid
    }

    pub fn resource_version(&self) -> u64 {
        self.header.resource_version
    }

    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.header.namespace, &self.header.name)
    }

    /// The typed view, without managedFields; decoded once and shared by all who ask for the same type.
    pub fn typed<K: Kind>(&self) -> Result<Arc<K>, DecodeError> {
        let held = self.typed.read().unwrap_or_else(PoisonError::into_inner).clone();
        let view = match held.map(|view| view.downcast::<K>()) {
            Some(Ok(view)) => return Ok(view),
            Some(Err(_)) => return decode_view::<K>(&self.json).map(Arc::new),
            None => Arc::new(decode_view::<K>(&self.json)?),
        };
        let mut typed = self.typed.write().unwrap_or_else(PoisonError::into_inner);
        // Who decoded at the same time shares what was first.
        let first = typed.get_or_insert_with(|| Arc::<K>::clone(&view));
        Ok(Arc::clone(first).downcast::<K>().unwrap_or(view))
    }

    /// Drops the typed view: for objects of the past, of which only the bytes are wanted any more.
    pub fn forget_view(&self) {
        self.typed.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The whole metadata, decoded anew at each call.
    pub fn metadata(&self) -> Result<ObjectMeta, serde_json::Error> {
        #[derive(Deserialize)]
        struct Partial {
            metadata: ObjectMeta,
        }
        Ok(serde_json::from_slice::<Partial>(&self.json)?.metadata)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key(), self.header.resource_version)
    }
}

fn decode_view<K: Kind>(json: &[u8]) -> Result<K, DecodeError> {
    let mut view = K::decode(json).or_else(|error| decode_without_nulls(json).ok_or(error))?;
    view.meta_mut().managed_fields = None;
    Ok(view)
}

/// A null means nothing wherever it stands. Times have to be there for some types all the same: they are then the
/// beginning of the epoch.
fn decode_without_nulls<K: Kind>(json: &[u8]) -> Option<K> {
    let mut value: serde_json::Value = serde_json::from_slice(json).ok()?;
    let of = schema::for_kind(&K::RESOURCE.gvk()).map(Type::Struct);
    drop_nulls(&mut value, of.unwrap_or(Type::Any));
    K::decode(&serde_json::to_vec(&value).ok()?).ok()
}

fn drop_nulls(value: &mut serde_json::Value, of: Type) {
    match (value, of) {
        (serde_json::Value::Object(members), Type::Struct(s)) => {
            members.retain(|_, member| !member.is_null());
            for field in s.fields {
                match members.get_mut(field.name) {
                    Some(member) => drop_nulls(member, field.ty),
                    None if field.always && matches!(field.ty, Type::Time | Type::MicroTime) => {
                        members.insert(field.name.to_owned(), EPOCH.into());
                    }
                    None => {}
                }
            }
        }
        (serde_json::Value::Object(members), Type::Map(map)) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(|member| drop_nulls(member, map.value));
        }
        (serde_json::Value::Array(items), Type::List(list)) => {
            items.iter_mut().for_each(|item| drop_nulls(item, list.element));
        }
        _ => {}
    }
}

const EPOCH: &str = "1970-01-01T00:00:00Z";

/// Writes `"resourceVersion":"N"` at the start of the top-level `metadata` object.
///
/// `json` is an object as the API server stores it: compact, and without a resourceVersion of its own.
pub fn with_resource_version(json: &[u8], revision: u64) -> Bytes {
    let Some(at) = metadata_start(json) else { return Bytes::copy_from_slice(json) };
    let mut out = Vec::with_capacity(json.len() + 44);
    out.extend_from_slice(&json[..at]);
    out.extend_from_slice(b"\"resourceVersion\":\"");
    out.extend_from_slice(revision.to_string().as_bytes());
    out.push(b'"');
    if json.get(at) != Some(&b'}') {
        out.push(b',');
    }
    out.extend_from_slice(&json[at..]);
    Bytes::from(out)
}

/// The offset just behind `"metadata":{` at nesting depth one.
fn metadata_start(json: &[u8]) -> Option<usize> {
    const KEY: &[u8] = b"\"metadata\":{";
    let (mut depth, mut i) = (0usize, 0usize);
    while i < json.len() {
        match json[i] {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                if depth == 1 && json[i..].starts_with(KEY) {
                    return Some(i + KEY.len());
                }
                i += 1;
                while i < json.len() && json[i] != b'"' {
                    i += if json[i] == b'\\' { 2 } else { 1 };
                }
            }
            _ => {}
        }
        i += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;

    #[test]
    fn resource_version_goes_into_the_top_metadata() {
        let table = [
            (r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"resourceVersion":"7","name":"a"}}"#),
            (r#"{"metadata":{}}"#, r#"{"metadata":{"resourceVersion":"7"}}"#),
            (
                r#"{"a":{"metadata":{"x":"}\""}},"metadata":{"name":"b"}}"#,
                r#"{"a":{"metadata":{"x":"}\""}},"metadata":{"resourceVersion":"7","name":"b"}}"#,
            ),
            (
                r#"{"k":"\"metadata\":{","metadata":{"name":"b"}}"#,
                r#"{"k":"\"metadata\":{","metadata":{"resourceVersion":"7","name":"b"}}"#,
            ),
        ];
        for (from, to) in table {
            assert_eq!(with_resource_version(from.as_bytes(), 7), to.as_bytes(), "{from}");
        }
    }

    #[test]
    fn typed_view_is_shared_and_drops_managed_fields() {
        let json =
            br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","labels":{"a":"b"},
            "managedFields":[{"manager":"m"}]},"spec":{"nodeName":"n1","containers":[]}}"#;
        let object = Object::from_stored(json, 3, &["spec.nodeName"]).unwrap();
        let (a, b) = (object.typed::<Pod>().unwrap(), object.typed::<Pod>().unwrap());
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(a.metadata.managed_fields, None);
        assert_eq!(a.metadata.resource_version.as_deref(), Some("3"));
        assert_eq!(object.header().field("spec.nodeName"), Some("n1"));
        assert_eq!(object.header().label("a"), Some("b"));
    }

    #[test]
    fn nulls_are_nothing() {
        let json =
            br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c",
            "ports":[{"containerPort":null}]}]}}"#;
        let pod = Object::from_stored(json, 3, &[]).unwrap().typed::<Pod>().unwrap();
        let ports = pod.spec.as_ref().unwrap().containers[0].ports.clone();
        assert_eq!(ports.unwrap()[0].container_port, 0);
    }
}
