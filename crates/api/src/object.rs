//! An object in memory: the JSON exactly as the store holds it, a small parsed header, and a typed view that is
//! decoded
//! on demand.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use bytes::{BufMut, Bytes};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_apimachinery::schema::{self, Type};
use serde::Deserialize;

use crate::header::Header;
use crate::kind::{DecodeError, Kind, ObjectKey};
use crate::members::Members;

/// One revision of an API object, shared by all its readers.
///
/// Its JSON has `apiVersion`, `kind` and `metadata.resourceVersion`. It never changes.
pub struct Object {
    /// Complete JSON, or the stored JSON without the resourceVersion, which then belongs at offset `version_at`.
    text: Bytes,
    version_at: Option<usize>,
    header: Header,
    typed: RwLock<Option<Arc<dyn Any + Send + Sync>>>,
    /// Whether the typed view was requested since the last call of [`Object::rest`].
    asked: AtomicBool,
}

impl Object {
    fn held(text: Bytes, version_at: Option<usize>, header: Header) -> Self {
        Self { text, version_at, header, typed: RwLock::default(), asked: AtomicBool::new(false) }
    }

    /// Creates an object from complete JSON. `selectable` are the field paths that field selectors may use.
    pub fn new(json: Bytes, selectable: &[&'static str]) -> Result<Self, serde_json::Error> {
        let header = Header::parse(&json, selectable)?;
        Ok(Self::held(json, None, header))
    }

    /// Creates an object from JSON as it is stored: compact and without a resourceVersion. `revision` becomes its
    /// resourceVersion; 0 means that it has none. The bytes are shared, not copied.
    pub fn from_stored(
        json: Bytes,
        revision: u64,
        selectable: &[&'static str],
    ) -> Result<Self, serde_json::Error> {
        let mut header = Header::parse(&json, selectable)?;
        let version_at = metadata_start(&json);
        if version_at.is_some() {
            header.resource_version = revision;
        }
        Ok(Self::held(json, version_at, header))
    }

    /// Returns the same object with another resourceVersion; `None` for an object that was not stored.
    pub fn at_version(&self, revision: u64) -> Option<Self> {
        let mut header = self.header.clone();
        header.resource_version = revision;
        Some(Self::held(self.text.clone(), Some(self.version_at?), header))
    }

    /// Encodes a typed object.
    pub fn from_typed<K: Kind>(object: &K) -> Result<Self, serde_json::Error> {
        Self::new(Bytes::from(object.encode()), &[])
    }

    /// Returns the complete JSON. For objects from the store, each call assembles a copy of some kilobytes.
    pub fn json(&self) -> Bytes {
        if self.version_at.is_none() {
            return self.text.clone();
        }
        let mut whole = Vec::with_capacity(self.json_len());
        self.put_json(&mut whole);
        whole.into()
    }

    /// Returns whether `json` is the held buffer itself, not a copy of it.
    pub fn shares(&self, json: &Bytes) -> bool {
        self.text.as_ptr() == json.as_ptr() && self.text.len() == json.len()
    }

    /// Returns the length of the complete JSON in bytes.
    pub fn json_len(&self) -> usize {
        let Some(at) = self.version_at.filter(|_| self.header.resource_version > 0) else {
            return self.text.len();
        };
        let digits = self.header.resource_version.checked_ilog10().map_or(1, |log| log as usize + 1);
        let comma = usize::from(self.text.get(at) != Some(&b'}'));
        self.text.len() + "\"resourceVersion\":\"\"".len() + digits + comma
    }

    /// Writes the complete JSON.
    pub fn put_json(&self, out: &mut impl BufMut) {
        self.put_part(0..self.text.len(), out);
    }

    /// Returns the held bytes: the JSON, without the resourceVersion for objects from the store.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Writes this part of the held bytes, and inserts the resourceVersion if its offset lies in the part.
    pub fn put_part(&self, part: Range<usize>, out: &mut impl BufMut) {
        match self.version_at.filter(|at| part.contains(at)) {
            Some(at) => {
                out.put_slice(self.part(part.start..at));
                out.put_slice(self.version(at).as_bytes());
                out.put_slice(self.part(at..part.end));
            }
            None => out.put_slice(self.part(part)),
        }
    }

    fn part(&self, part: Range<usize>) -> &[u8] {
        self.text.get(part).unwrap_or_default()
    }

    /// Returns the resourceVersion member, which is inserted at the beginning of `metadata`.
    fn version(&self, at: usize) -> String {
        if self.header.resource_version == 0 {
            return String::new();
        }
        let comma = if self.text.get(at) == Some(&b'}') { "" } else { "," };
        format!("\"resourceVersion\":\"{}\"{comma}", self.header.resource_version)
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

    /// Returns the typed view, without managedFields; it is decoded once and shared by all callers of the same
    /// type.
    pub fn typed<K: Kind>(&self) -> Result<Arc<K>, DecodeError> {
        self.asked.store(true, Ordering::Relaxed);
        let held = self.typed.read().unwrap_or_else(PoisonError::into_inner).clone();
        let view = match held.map(|view| view.downcast::<K>()) {
            Some(Ok(view)) => return Ok(view),
            Some(Err(_)) => return self.noted(self.decode::<K>()).map(Arc::new),
            None => Arc::new(self.noted(self.decode::<K>())?),
        };
        let mut typed = self.typed.write().unwrap_or_else(PoisonError::into_inner);
        // If two callers decoded at the same time, both use the view that was stored first.
        let first = typed.get_or_insert_with(|| Arc::<K>::clone(&view));
        Ok(Arc::clone(first).downcast::<K>().unwrap_or(view))
    }

    /// Stores a decoding error in place of the view.
    fn noted<K>(&self, decoded: Result<K, DecodeError>) -> Result<K, DecodeError> {
        if let Err(error) = &decoded {
            let why = Unreadable(error.source.to_string());
            *self.typed.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(why));
        }
        decoded
    }

    /// Returns why the typed view could not be decoded, if a caller asked for it and it failed. Validation that found
    /// no errors has then not seen the object.
    pub fn unreadable(&self) -> Option<String> {
        let held = self.typed.read().unwrap_or_else(PoisonError::into_inner).clone();
        held.and_then(|view| view.downcast::<Unreadable>().ok()).map(|why| why.0.clone())
    }

    fn decode<K: Kind>(&self) -> Result<K, DecodeError> {
        let len = self.text.len();
        let left_out = managed_fields(&self.text).unwrap_or(len..len);
        let mut json = Vec::with_capacity(self.json_len() - left_out.len());
        self.put_part(0..left_out.start, &mut json);
        self.put_part(left_out.end..len, &mut json);
        let mut view = K::decode(&json).or_else(|error| decode_without_nulls(&json).ok_or(error))?;
        view.meta_mut().managed_fields = None;
        Ok(view)
    }

    /// Drops the typed view if no caller asked for it since the last call. The view is several times as large as the
    /// JSON; decoding it again takes some microseconds.
    pub fn rest(&self) {
        if !self.asked.swap(false, Ordering::Relaxed) {
            self.forget_view();
        }
    }

    /// Drops the typed view of an old revision, of which only the bytes are still needed.
    pub fn forget_view(&self) {
        self.typed.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Decodes the complete metadata; each call decodes it again.
    pub fn metadata(&self) -> Result<ObjectMeta, serde_json::Error> {
        #[derive(Deserialize)]
        struct Partial {
            metadata: ObjectMeta,
        }
        Ok(serde_json::from_slice::<Partial>(&self.json())?.metadata)
    }
}

/// Stored in place of a typed view: the reason why the object does not decode.
struct Unreadable(String);

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.key(), self.header.resource_version)
    }
}

/// Decodes JSON after removing all nulls, which mean the same as a missing field. For some types, times are required
/// nevertheless: a missing one is set to the Unix epoch.
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

/// Returns the offset after the opening brace of the top-level `metadata`, in compact JSON.
fn metadata_start(json: &[u8]) -> Option<usize> {
    let at = Members::new(json, 0).find(b"metadata")?.value.start;
    (json.get(at) == Some(&b'{')).then_some(at + 1)
}

/// Returns the range of managedFields with its comma. They are often half of an object, and typed views do not
/// need them.
fn managed_fields(json: &[u8]) -> Option<Range<usize>> {
    let metadata = metadata_start(json)? - 1;
    Members::new(json, metadata).find(b"managedFields")?.with_comma(json)
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
            let object = Object::from_stored(Bytes::from_static(from.as_bytes()), 7, &[]).unwrap();
            assert_eq!(object.json(), to, "{from}");
            assert_eq!((object.json_len(), object.resource_version()), (to.len(), 7), "{from}");
            let later = object.at_version(1234).unwrap();
            assert_eq!(later.json(), to.replace("\"7\"", "\"1234\""), "{from}");
        }
        let unwritten = Object::from_stored(Bytes::from_static(table[0].0.as_bytes()), 0, &[]).unwrap();
        assert_eq!(
            (unwritten.json().as_ref(), unwritten.json_len()),
            (table[0].0.as_bytes(), table[0].0.len())
        );
        let none = Object::from_stored(Bytes::from_static(b"{}"), 7, &[]).unwrap();
        assert_eq!(none.json(), "{}");
        assert!(none.at_version(8).is_none());
    }

    #[test]
    fn what_is_stored_is_not_copied() {
        let stored = Bytes::from(br#"{"metadata":{"name":"a"}}"#.to_vec());
        let object = Object::from_stored(stored.clone(), 7, &[]).unwrap();
        assert!(object.shares(&stored) && object.at_version(8).unwrap().shares(&stored));
        assert!(!object.shares(&Bytes::copy_from_slice(&stored)));
    }

    #[test]
    fn typed_view_is_shared_and_drops_managed_fields() {
        let json =
            br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"n","labels":{"a":"b"},
            "managedFields":[{"manager":"m"}]},"spec":{"nodeName":"n1","containers":[]}}"#;
        let object = Object::from_stored(Bytes::from_static(json), 3, &["spec.nodeName"]).unwrap();
        let (a, b) = (object.typed::<Pod>().unwrap(), object.typed::<Pod>().unwrap());
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(a.metadata.managed_fields, None);
        assert_eq!(a.metadata.resource_version.as_deref(), Some("3"));
        assert_eq!(object.header().field("spec.nodeName"), Some("n1"));
        assert_eq!(object.header().label("a"), Some("b"));
    }

    #[test]
    fn a_view_that_nobody_asks_for_goes() {
        let json = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"}}"#;
        let object = Object::new(Bytes::from_static(json), &[]).unwrap();
        let first = object.typed::<Pod>().unwrap();
        object.rest();
        assert!(Arc::ptr_eq(&first, &object.typed::<Pod>().unwrap()));
        object.rest();
        object.rest();
        assert_eq!(Arc::strong_count(&first), 1);
        assert_eq!(object.typed::<Pod>().unwrap(), first);
    }

    #[test]
    fn nulls_are_nothing() {
        let json =
            br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c",
            "ports":[{"containerPort":null}]}]}}"#;
        let pod = Object::from_stored(Bytes::from_static(json), 3, &[]).unwrap().typed::<Pod>().unwrap();
        let ports = pod.spec.as_ref().unwrap().containers[0].ports.clone();
        assert_eq!(ports.unwrap()[0].container_port, 0);
    }
}
