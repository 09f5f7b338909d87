//! The field-schema table: what the API types' fields are called, how they are typed, merged, defaulted and numbered.
//!
//! One generated table drives field validation, pruning, strategic merge, server-side apply, OpenAPI and protobuf.
//! `generated.rs` holds facts only, written by `cargo xtask codegen` from the published Kubernetes modules.

mod build;
#[rustfmt::skip]
mod generated;
pub mod openapi;
pub mod protobuf;
pub mod validate;

use crate::gvk::GroupVersionKind;

/// One API struct, such as `io.k8s.api.core.v1.PodSpec`.
#[derive(Debug)]
pub struct Struct {
    /// The OpenAPI definition name, `io.k8s.api.core.v1.PodSpec`.
    pub name: &'static str,
    /// Sorted by JSON name, so that `field` can search it.
    pub fields: &'static [Field],
    /// `x-kubernetes-map-type: atomic`: an apply replaces the struct as a whole.
    pub atomic: bool,
    /// The order of the fields in protobuf.
    plan: protobuf::Plan,
}

/// One field of a [`Struct`].
#[derive(Debug)]
pub struct Field {
    /// JSON name.
    pub name: &'static str,
    /// Protobuf field number; 0 when the field is not in the protobuf message.
    pub number: u32,
    /// Protobuf field numbers of the messages around this field that JSON inlines, outermost first; mostly empty.
    pub inlined: &'static [u32],
    /// Go names of the structs around this field that JSON inlines, joined by dots; mostly empty.
    inlined_names: &'static str,
    pub ty: Type,
    /// The Go type as error messages name it, where it does not follow from `ty`.
    go_name: &'static str,
    /// Listed as required by the published OpenAPI.
    pub required: bool,
    /// Upstream writes the field into JSON even when it is empty: `{}`, `""`, `0`, `null`.
    pub always: bool,
    /// Upstream tells an unset field from a zero one; otherwise an explicit zero value counts as unset.
    pub pointer: bool,
    /// `x-kubernetes-map-type: granular` on the field: here, the struct is merged field by field although its type
    /// is atomic.
    pub granular: bool,
    /// The default of the published OpenAPI, as JSON text.
    pub default: Option<&'static str>,
    /// Permitted values, where OpenAPI lists them (of the elements, for a list); empty otherwise.
    pub enumeration: &'static [&'static str],
    /// `x-kubernetes-patch-strategy`: `merge`, `replace`, `retainKeys`, `merge,retainKeys` or empty.
    pub patch_strategy: &'static str,
    /// `x-kubernetes-patch-merge-key`, or empty.
    pub patch_merge_key: &'static str,
}

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub enum Type {
    Bool,
    Int32,
    Int64,
    Float64,
    String,
    /// Base64 text in JSON.
    Bytes,
    Quantity,
    IntOrString,
    /// RFC 3339, whole seconds.
    Time,
    /// RFC 3339 with microseconds.
    MicroTime,
    /// Text such as `1m30s`.
    Duration,
    /// Any object or value, kept as it is (RawExtension, JSON, FieldsV1).
    Any,
    Struct(&'static Struct),
    List(&'static List),
    Map(&'static Map),
}

/// A list type: its elements and how server-side apply merges them.
#[derive(Debug)]
pub struct List {
    pub element: Type,
    pub kind: ListKind,
}

/// `x-kubernetes-list-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    Atomic,
    Set,
    /// Associative by these keys.
    Map(&'static [&'static str]),
}

/// A string-keyed map.
#[derive(Debug)]
pub struct Map {
    pub value: Type,
    pub atomic: bool,
}

impl Struct {
    /// The field with this JSON name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        let fields: &'static [Field] = self.fields;
        fields.binary_search_by(|f| f.name.cmp(name)).ok().map(|i| &fields[i])
    }

    /// The bare Go type name, `PodSpec`.
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

/// A top-level kind and its schema.
#[derive(Debug)]
pub struct Kind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub schema: &'static Struct,
}

/// The schema of a top-level kind.
pub fn for_kind(gvk: &GroupVersionKind) -> Option<&'static Struct> {
    let found = generated::KINDS.binary_search_by(|k| {
        (k.group, k.version, k.kind).cmp(&(gvk.group.as_str(), gvk.version.as_str(), gvk.kind.as_str()))
    });
    match found {
        Ok(i) => Some(generated::KINDS[i].schema),
        // Every group version has these two, of one shape.
        Err(_) if matches!(gvk.kind.as_str(), "DeleteOptions" | "WatchEvent") => {
            for_definition(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{}", gvk.kind))
        }
        // Tables and metadata have one shape in both versions; some of discovery's objects say no version.
        Err(_) if (gvk.group.as_str(), gvk.version.as_str()) == ("meta.k8s.io", "v1beta1") => {
            for_kind(&GroupVersionKind::new("meta.k8s.io", "v1", &gvk.kind))
        }
        Err(_) if gvk.version.is_empty() && gvk.kind.starts_with("API") => {
            for_kind(&GroupVersionKind::new("", "v1", &gvk.kind))
        }
        // Clients before 1.22 evict with it.
        Err(_) if *gvk == GroupVersionKind::new("policy", "v1beta1", "Eviction") => {
            for_kind(&GroupVersionKind::new("policy", "v1", "Eviction"))
        }
        Err(_) => None,
    }
}

/// The schema with this OpenAPI definition name.
pub fn for_definition(name: &str) -> Option<&'static Struct> {
    let all = generated::STRUCTS;
    all.binary_search_by(|s| s.name.cmp(name)).ok().map(|i| all[i])
}

/// Every kind, sorted by group, version and kind.
pub fn kinds() -> &'static [Kind] {
    generated::KINDS
}

/// Every struct, sorted by definition name.
pub fn structs() -> &'static [&'static Struct] {
    generated::STRUCTS
}

/// The Go name of the elements of a list or map with this name; empty when it follows from the type.
fn go_element(go: &'static str) -> &'static str {
    if go == "v1.JSONSchemaDependencies" {
        return "v1.JSONSchemaPropsOrStringArray";
    }
    let element = match go.strip_prefix("[]") {
        Some(element) => element,
        None => go.strip_prefix("map[").and_then(|rest| rest.split_once(']')).map_or("", |(_, value)| value),
    };
    element.strip_prefix('*').unwrap_or(element)
}

#[cfg(test)]
mod tests;
