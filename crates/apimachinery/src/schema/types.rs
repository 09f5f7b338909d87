//! The types of the field-schema table: structs, fields, lists and maps.

use super::plan::Plan;

/// One API struct, such as `io.k8s.api.core.v1.PodSpec`.
#[derive(Debug)]
pub struct Struct {
    /// The OpenAPI definition name, `io.k8s.api.core.v1.PodSpec`.
    pub name: &'static str,
    /// Sorted by JSON name, for binary search in `field`.
    pub fields: &'static [Field],
    /// `x-kubernetes-map-type: atomic`: an apply replaces the struct as a whole.
    pub atomic: bool,
    /// The order of the fields in protobuf.
    pub(super) plan: Plan,
}

/// One field of a [`Struct`].
#[derive(Debug)]
pub struct Field {
    /// JSON name.
    pub name: &'static str,
    /// The protobuf field number; 0 if the field is not in the protobuf message.
    pub number: u32,
    /// The protobuf field numbers of the messages around this field that JSON inlines, outermost first; mostly empty.
    pub inlined: &'static [u32],
    /// The Go names of the structs around this field that JSON inlines, joined by dots; mostly empty.
    pub(super) inlined_names: &'static str,
    pub ty: Type,
    /// The Go type in error messages, if it does not follow from `ty`.
    pub(super) go_name: &'static str,
    /// Whether the published OpenAPI lists it as required.
    pub required: bool,
    /// Whether upstream writes the field into JSON even if it is empty: `{}`, `""`, `0`, `null`.
    pub always: bool,
    /// Whether upstream distinguishes an unset field from a zero one; otherwise an explicit zero value counts as
    /// unset.
    pub pointer: bool,
    /// `x-kubernetes-map-type: granular` on the field: here, the struct is merged field by field although its type is
    /// atomic.
    pub granular: bool,
    /// The default of the published OpenAPI, as JSON text.
    pub default: Option<&'static str>,
    /// The permitted values that OpenAPI lists (of the elements, for a list); otherwise empty.
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
    /// Any object or value, stored unchanged (RawExtension, JSON, FieldsV1).
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
    /// Elements are identified by these keys.
    Map(&'static [&'static str]),
}

/// A map with string keys.
#[derive(Debug)]
pub struct Map {
    pub value: Type,
    pub atomic: bool,
}

impl Struct {
    /// Returns the field with this JSON name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        let fields: &'static [Field] = self.fields;
        fields.binary_search_by(|f| f.name.cmp(name)).ok().map(|i| &fields[i])
    }

    /// Returns the Go type name without its package, `PodSpec`.
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

/// Returns the Go name of the elements of a list or map with this Go name; empty if it follows from the type.
pub(super) fn go_element(go: &'static str) -> &'static str {
    if go == "v1.JSONSchemaDependencies" {
        return "v1.JSONSchemaPropsOrStringArray";
    }
    let element = match go.strip_prefix("[]") {
        Some(element) => element,
        None => go.strip_prefix("map[").and_then(|rest| rest.split_once(']')).map_or("", |(_, value)| value),
    };
    element.strip_prefix('*').unwrap_or(element)
}
