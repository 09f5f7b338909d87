//! Joins the facts of all sources into one table.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

use super::enums::{Enums, function_suffix};
use super::gosrc::{Declaration, Field as GoField, Kind, Sources, Tag};
use super::openapi::{Definition, Property};
use super::roots;

/// The whole table.
#[derive(Default)]
pub struct Table {
    /// By OpenAPI definition name.
    pub structs: BTreeMap<String, Struct>,
    /// The definition names by (group, version, kind).
    pub kinds: BTreeMap<(String, String, String), String>,
}

pub struct Struct {
    pub atomic: bool,
    /// By JSON name.
    pub fields: BTreeMap<String, Field>,
}

pub struct Field {
    pub number: u32,
    /// Numbers of the inlined messages around the field, outermost first.
    pub inlined: Vec<u32>,
    /// Go names of the inlined structs around the field, joined by dots.
    pub inlined_names: String,
    pub ty: Type,
    /// The Go type as reflection prints it, pointers removed.
    pub go: String,
    /// Whether Go serializes the field even when it is empty.
    pub always: bool,
    /// Whether Go distinguishes an unset field from a zero one.
    pub pointer: bool,
    pub facts: Property,
    pub enumeration: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// A variant of the table's `Type`, and its Go name.
    Plain(&'static str),
    Struct(String),
    List(Box<Type>),
    Map(Box<Type>),
}

/// Types that the table has a variant for, by import path and name.
const SPECIAL: &[(&str, &str, &str)] = &[
    ("k8s.io/apimachinery/pkg/api/resource", "Quantity", "Quantity"),
    ("k8s.io/apimachinery/pkg/util/intstr", "IntOrString", "IntOrString"),
    ("k8s.io/apimachinery/pkg/apis/meta/v1", "Time", "Time"),
    ("k8s.io/apimachinery/pkg/apis/meta/v1", "MicroTime", "MicroTime"),
    ("k8s.io/apimachinery/pkg/apis/meta/v1", "Duration", "Duration"),
    ("k8s.io/apimachinery/pkg/apis/meta/v1", "FieldsV1", "Any"),
    ("k8s.io/apimachinery/pkg/runtime", "RawExtension", "Any"),
    ("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "JSON", "Any"),
    ("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "JSONSchemaPropsOrArray", "Any"),
    ("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "JSONSchemaPropsOrBool", "Any"),
    ("k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1", "JSONSchemaPropsOrStringArray", "Any"),
];

/// Go's own types.
const BUILTIN: &[(&str, &str)] = &[
    ("bool", "Bool"),
    ("string", "String"),
    ("int", "Int64"),
    ("int32", "Int32"),
    ("int64", "Int64"),
    ("float64", "Float64"),
    ("interface{}", "Any"),
    ("any", "Any"),
];

struct Builder<'a, 'm> {
    sources: &'a mut Sources<'m>,
    published: &'a BTreeMap<String, Definition>,
    enums: &'a Enums,
    table: Table,
    /// Structs that a field names and that are not read yet: import path and name.
    wanted: BTreeSet<(String, String)>,
}

pub fn build(
    sources: &mut Sources<'_>,
    published: &BTreeMap<String, Definition>,
    enums: &Enums,
) -> Result<Table> {
    let mut builder = Builder { sources, published, enums, table: Table::default(), wanted: BTreeSet::new() };
    for (name, definition) in published {
        let (import, short) = go_name(name)?;
        if SPECIAL.iter().any(|(i, n, _)| (*i, *n) == (import.as_str(), short.as_str())) {
            continue;
        }
        builder.wanted.insert((import, short));
        for (group, version, kind) in &definition.kinds {
            if !roots::EVERYWHERE.contains(&kind.as_str()) {
                let gvk = (group.clone(), version.clone(), kind.clone());
                builder.table.kinds.insert(gvk, name.clone());
            }
        }
    }
    for (import, group, version, kinds) in roots::EXTRA {
        for kind in *kinds {
            builder.wanted.insert(((*import).to_owned(), (*kind).to_owned()));
            let gvk = ((*group).to_owned(), (*version).to_owned(), (*kind).to_owned());
            builder.table.kinds.insert(gvk, definition_name(import, kind));
        }
    }
    while let Some((import, name)) = builder.wanted.pop_first() {
        let definition = definition_name(&import, &name);
        if !builder.table.structs.contains_key(&definition) {
            let read = builder.read_struct(&import, &name).with_context(|| definition.clone())?;
            builder.table.structs.insert(definition, read);
        }
    }
    Ok(builder.table)
}

/// Returns the definition name, such as `io.k8s.api.core.v1.Pod` for (`k8s.io/api/core/v1`, `Pod`).
fn definition_name(import: &str, name: &str) -> String {
    let path = import.strip_prefix("k8s.io/").unwrap_or(import).replace('/', ".");
    format!("io.k8s.{path}.{name}")
}

fn go_name(definition: &str) -> Result<(String, String)> {
    let path =
        definition.strip_prefix("io.k8s.").with_context(|| format!("foreign definition {definition}"))?;
    let (path, name) = path.rsplit_once('.').context("no package")?;
    Ok((format!("k8s.io/{}", path.replace('.', "/")), name.to_owned()))
}

impl Builder<'_, '_> {
    fn read_struct(&mut self, import: &str, name: &str) -> Result<Struct> {
        let mut fields = BTreeMap::new();
        let markers = self.collect(import, name, &Inlining::default(), &mut fields)?;
        let definition = definition_name(import, name);
        let Some(published) = self.published.get(&definition) else {
            let atomic = markers.iter().any(|m| m == "structType=atomic" || m == "mapType=atomic");
            return Ok(Struct { atomic, fields });
        };
        for (property, facts) in &published.properties {
            let field =
                fields.get_mut(property).with_context(|| format!("{property} is not in the Go struct"))?;
            ensure!(
                facts.patch_strategy == field.facts.patch_strategy,
                "{property}: patch strategies differ"
            );
            let atomic_here = facts.map_type == "atomic" && matches!(field.ty, Type::Struct(_));
            ensure!(!atomic_here, "{property}: atomic here alone, which the table cannot say");
            field.facts = facts.clone();
        }
        for property in fields.keys() {
            ensure!(published.properties.contains_key(property), "{property} is not published");
        }
        Ok(Struct { atomic: published.atomic, fields })
    }

    /// Adds the fields of a Go struct, those of inlined structs included; returns the struct's markers.
    fn collect(
        &mut self,
        import: &str,
        name: &str,
        inlining: &Inlining,
        fields: &mut BTreeMap<String, Field>,
    ) -> Result<Vec<String>> {
        let package = self.sources.package(import)?;
        let declaration = package.types.get(name).with_context(|| format!("no type {name} in {import}"))?;
        let go_fields = match &declaration.kind {
            Kind::Struct(fields) => fields,
            Kind::Named(target) | Kind::Alias(target) => {
                let (import, name) = self.locate(import, target, declaration)?;
                return self.collect(&import, &name, inlining, fields);
            }
        };
        for field in go_fields {
            if field.embedded && field.tag.json.is_empty() {
                let (import, name) = self.locate(import, &field.ty, declaration)?;
                let deeper = inlining.deeper(field.tag.number, &name);
                self.collect(&import, &name, &deeper, fields)?;
                continue;
            }
            let read = self
                .read_field(import, name, field, declaration, inlining)
                .with_context(|| field.tag.json.clone())?;
            // In Go, the outer field shadows one of an inlined struct.
            if inlining.depth > 0 {
                fields.entry(field.tag.json.clone()).or_insert(read);
            } else {
                fields.insert(field.tag.json.clone(), read);
            }
        }
        Ok(declaration.markers.clone())
    }

    fn read_field(
        &mut self,
        import: &str,
        owner: &str,
        field: &GoField,
        declaration: &Declaration,
        inlining: &Inlining,
    ) -> Result<Field> {
        let pointer = field.ty.starts_with('*');
        let (ty, go) = self.resolve(import, &field.ty, declaration)?;
        let is_struct = matches!(
            ty,
            Type::Struct(_) | Type::Plain("Time" | "MicroTime" | "Quantity" | "IntOrString" | "Any")
        );
        let always = !field.tag.omitzero && (!field.tag.omitempty || (is_struct && !pointer));
        let enumeration = self
            .enums
            .get(&(function_suffix(import, owner), field.tag.json.clone()))
            .cloned()
            .unwrap_or_default();
        Ok(Field {
            number: if inlining.unnumbered { 0 } else { field.tag.number },
            inlined: inlining.path.clone(),
            inlined_names: inlining.names.join("."),
            ty,
            go,
            always,
            pointer,
            facts: facts_from_source(field),
            enumeration,
        })
    }

    /// Returns the package and name that an undecorated type expression refers to.
    fn locate(&self, import: &str, expression: &str, declaration: &Declaration) -> Result<(String, String)> {
        match expression.trim_start_matches('*').split_once('.') {
            Some((alias, name)) => {
                let import =
                    declaration.imports.get(alias).with_context(|| format!("import {alias} is unknown"))?;
                Ok((import.clone(), name.to_owned()))
            }
            None => Ok((import.to_owned(), expression.trim_start_matches('*').to_owned())),
        }
    }

    /// Returns the table type of a Go type expression, and how Go's reflection prints it.
    fn resolve(
        &mut self,
        import: &str,
        expression: &str,
        declaration: &Declaration,
    ) -> Result<(Type, String)> {
        if let Some(inner) = expression.strip_prefix('*') {
            return self.resolve(import, inner, declaration);
        }
        if matches!(expression, "[]byte" | "[]uint8") {
            return Ok((Type::Plain("Bytes"), "[]uint8".to_owned()));
        }
        if let Some(inner) = expression.strip_prefix("[]") {
            let (ty, go) = self.resolve(import, inner, declaration)?;
            let pointer = if inner.starts_with('*') { "*" } else { "" };
            return Ok((Type::List(Box::new(ty)), format!("[]{pointer}{go}")));
        }
        if let Some(rest) = expression.strip_prefix("map[") {
            let (key, value) = rest.split_once(']').context("map without a key")?;
            let (key_ty, key_go) = self.resolve(import, key, declaration)?;
            ensure!(key_ty == Type::Plain("String"), "map key {key}");
            let (ty, go) = self.resolve(import, value, declaration)?;
            return Ok((Type::Map(Box::new(ty)), format!("map[{key_go}]{go}")));
        }
        if let Some((go, variant)) = BUILTIN.iter().find(|(go, _)| *go == expression) {
            let go = if *variant == "Any" { "interface {}" } else { go };
            return Ok((Type::Plain(variant), go.to_owned()));
        }
        let (import, name) = self.locate(import, expression, declaration)?;
        self.resolve_named(&import, &name)
    }

    fn resolve_named(&mut self, import: &str, name: &str) -> Result<(Type, String)> {
        let package = self.sources.package(import)?;
        let go = format!("{}.{name}", package.name);
        if let Some((_, _, variant)) = SPECIAL.iter().find(|(i, n, _)| (*i, *n) == (import, name)) {
            return Ok((Type::Plain(variant), go));
        }
        let declaration = package.types.get(name).with_context(|| format!("no type {name} in {import}"))?;
        match &declaration.kind {
            Kind::Struct(_) => {
                self.wanted.insert((import.to_owned(), name.to_owned()));
                Ok((Type::Struct(definition_name(import, name)), go))
            }
            Kind::Alias(target) => self.resolve(import, target, declaration),
            Kind::Named(target) => {
                let ty = self.resolve(import, target, declaration)?.0;
                if !matches!(ty, Type::Struct(_)) {
                    return Ok((ty, go));
                }
                // A struct type that is defined as another struct has its own definition.
                self.wanted.insert((import.to_owned(), name.to_owned()));
                Ok((Type::Struct(definition_name(import, name)), go))
            }
        }
    }
}

/// The inlined structs around a field.
#[derive(Default, Clone)]
struct Inlining {
    path: Vec<u32>,
    names: Vec<String>,
    depth: u32,
    /// Whether an inlined struct is not part of the protobuf message.
    unnumbered: bool,
}

impl Inlining {
    fn deeper(&self, number: u32, name: &str) -> Self {
        let mut path = self.path.clone();
        if number != 0 {
            path.push(number);
        }
        let mut names = self.names.clone();
        names.push(name.to_owned());
        Self { path, names, depth: self.depth + 1, unnumbered: self.unnumbered || number == 0 }
    }
}

/// Returns the facts that OpenAPI would publish, from the source markers, for types that are not published.
fn facts_from_source(field: &GoField) -> Property {
    let marker = |name: &str| {
        field.markers.iter().find_map(|m| m.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    let optional = field.markers.iter().any(|m| m == "optional") || field.tag.omitempty;
    let Tag { patch_strategy, patch_merge_key, .. } = &field.tag;
    Property {
        required: !optional,
        default: marker("default"),
        list_type: marker("listType").unwrap_or_default(),
        list_map_keys: field
            .markers
            .iter()
            .filter_map(|m| m.strip_prefix("listMapKey=").map(str::to_owned))
            .collect(),
        map_type: marker("mapType").or_else(|| marker("structType")).unwrap_or_default(),
        patch_strategy: patch_strategy.clone(),
        patch_merge_key: patch_merge_key.clone(),
    }
}

impl Table {
    /// Returns the list kind of a field, as the table spells it.
    pub fn list_kind(facts: &Property) -> Result<String> {
        Ok(match facts.list_type.as_str() {
            "" | "atomic" => "A".to_owned(),
            "set" => "ListKind::Set".to_owned(),
            "map" => format!("ListKind::Map(&{:?})", facts.list_map_keys),
            other => bail!("list type {other}"),
        })
    }
}
