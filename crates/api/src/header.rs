//! The parsed part of a held object: its key, labels and selectable fields, read from JSON in one pass.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What selectors, indexes and the watch cache need to know of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub uid: Box<str>,
    /// 0 if the JSON has none.
    pub resource_version: u64,
    /// Sorted by key.
    labels: Box<[(Box<str>, Box<str>)]>,
    /// Sorted by path; only paths that the object sets.
    fields: Box<[(&'static str, Box<str>)]>,
}

impl Header {
    /// Parses the header; `selectable` are dotted paths of scalar fields, such as `spec.nodeName`.
    pub fn parse(json: &[u8], selectable: &[&'static str]) -> Result<Self, serde_json::Error> {
        let mut found =
            Found { selectable, header: Header::default(), labels: Vec::new(), fields: Vec::new() };
        let mut de = serde_json::Deserializer::from_slice(json);
        Walk { found: &mut found, path: &mut String::new() }.deserialize(&mut de)?;
        de.end()?;
        let Found { mut header, mut labels, mut fields, .. } = found;
        labels.sort();
        fields.sort();
        header.labels = labels.into_boxed_slice();
        header.fields = fields.into_boxed_slice();
        Ok(header)
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        let at = self.labels.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        Some(&self.labels[at].1)
    }

    /// Returns all labels, sorted by key.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        self.labels.iter().map(|(k, v)| (&**k, &**v))
    }

    /// Returns the value of a selectable field; `metadata.name` and `metadata.namespace` always exist.
    pub fn field(&self, path: &str) -> Option<&str> {
        match path {
            "metadata.name" => Some(&self.name),
            "metadata.namespace" => Some(&self.namespace),
            _ => self.fields.iter().find(|(p, _)| *p == path).map(|(_, v)| &**v),
        }
    }
}

struct Found<'a> {
    selectable: &'a [&'static str],
    header: Header,
    labels: Vec<(Box<str>, Box<str>)>,
    fields: Vec<(&'static str, Box<str>)>,
}

impl Found<'_> {
    fn wants_below(&self, path: &str) -> bool {
        matches!(path, "" | "metadata" | "metadata.labels")
            || self
                .selectable
                .iter()
                .any(|p| p.len() > path.len() && p.starts_with(path) && p.as_bytes()[path.len()] == b'.')
    }

    fn wants(&self, path: &str) -> bool {
        matches!(path, "metadata.name" | "metadata.namespace" | "metadata.uid" | "metadata.resourceVersion")
            || path.starts_with("metadata.labels.")
            || self.selectable.contains(&path)
            || self.wants_below(path)
    }

    fn scalar(&mut self, path: &str, value: &str) {
        match path {
            "metadata.name" => self.header.name = value.into(),
            "metadata.namespace" => self.header.namespace = value.into(),
            "metadata.uid" => self.header.uid = value.into(),
            "metadata.resourceVersion" => self.header.resource_version = value.parse().unwrap_or(0),
            _ => {
                if let Some(key) = path.strip_prefix("metadata.labels.") {
                    self.labels.push((key.into(), value.into()));
                } else if let Some(p) = self.selectable.iter().find(|p| **p == path) {
                    self.fields.push((p, value.into()));
                }
            }
        }
    }
}

struct Walk<'a, 'f> {
    found: &'a mut Found<'f>,
    path: &'a mut String,
}

impl<'de> DeserializeSeed<'de> for Walk<'_, '_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        if !self.found.wants_below(self.path) {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        let mark = self.path.len();
        while map.next_key_seed(AppendKey { path: self.path, mark })?.is_some() {
            if self.found.wants(self.path) {
                map.next_value_seed(Walk { found: self.found, path: self.path })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            self.path.truncate(mark);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_str<E>(self, v: &str) -> Result<(), E> {
        self.found.scalar(self.path, v);
        Ok(())
    }

    fn visit_bool<E>(self, v: bool) -> Result<(), E> {
        self.found.scalar(self.path, if v { "true" } else { "false" });
        Ok(())
    }

    fn visit_i64<E>(self, v: i64) -> Result<(), E> {
        self.found.scalar(self.path, &v.to_string());
        Ok(())
    }

    fn visit_u64<E>(self, v: u64) -> Result<(), E> {
        self.found.scalar(self.path, &v.to_string());
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// Appends a map key to the path while it is decoded, so that keys cost no allocation.
struct AppendKey<'a> {
    path: &'a mut String,
    mark: usize,
}

impl<'de> DeserializeSeed<'de> for AppendKey<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for AppendKey<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string key")
    }

    fn visit_str<E>(self, key: &str) -> Result<(), E> {
        self.path.truncate(self.mark);
        if self.mark > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_key_labels_and_fields() {
        let json = br#"{"kind":"Pod","metadata":{"name":"a","namespace":"b","uid":"u","resourceVersion":"12",
            "labels":{"z":"1","app.kubernetes.io/name":"x"},"annotations":{"name":"no"}},
            "spec":{"nodeName":"n","hostNetwork":true,"containers":[{"nodeName":"no"}]},"status":{"phase":"Running"}}"#;
        let h = Header::parse(json, &["spec.nodeName", "spec.hostNetwork", "status.phase"]).unwrap();
        assert_eq!((&*h.name, &*h.namespace, &*h.uid, h.resource_version), ("a", "b", "u", 12));
        assert_eq!(h.label("app.kubernetes.io/name"), Some("x"));
        assert_eq!(h.label("name"), None);
        assert_eq!(h.field("spec.nodeName"), Some("n"));
        assert_eq!(h.field("spec.hostNetwork"), Some("true"));
        assert_eq!(h.field("status.phase"), Some("Running"));
        assert_eq!(h.field("metadata.name"), Some("a"));
        assert_eq!(h.field("status.reason"), None);
    }

    #[test]
    fn refuses_what_is_not_json() {
        assert!(Header::parse(b"{\"metadata\":", &[]).is_err());
        assert!(Header::parse(b"{} {}", &[]).is_err());
    }
}
