//! The environment of an expression: variables, object types, and language features.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::macros::Macros;
use crate::schema::DeclType;
use crate::types::Type;

/// The environment of an expression. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Declarations {
    variables: BTreeMap<Arc<str>, Type>,
    roots: BTreeMap<Arc<str>, Arc<DeclType>>,
    objects: BTreeMap<Arc<str>, Arc<DeclType>>,
    /// Object types without a schema: their fields.
    plain: BTreeMap<Arc<str>, Arc<BTreeMap<String, Type>>>,
    pub(crate) features: Features,
}

/// Language features that not every expression may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Features {
    /// Functions that are new in this release and that its predecessor does not know.
    pub newest: bool,
    pub json_patch: bool,
    /// The types `Object`, `Object.spec` and so on, which an expression may construct.
    pub object_literals: bool,
    pub macros: Macros,
}

impl Declarations {
    /// Returns the environment of Kubernetes 1.37 for new expressions: without functions that 1.36 does not have, so
    /// that a server can be downgraded.
    pub fn new() -> Self {
        Self::default()
    }

    /// Enables all functions of this release, for expressions that are already stored.
    pub fn stored(mut self) -> Self {
        self.features.newest = true;
        self
    }

    /// Adds a variable of a type that needs no declaration.
    pub fn variable(mut self, name: &str, t: Type) -> Self {
        self.variables.insert(name.into(), t);
        self
    }

    /// Adds a variable with the type of a schema. Object types in it should have names: see [`DeclType::named`].
    pub fn declared(mut self, name: &str, decl: &Arc<DeclType>) -> Self {
        self.variables.insert(name.into(), decl.cel_type());
        self.roots.insert(name.into(), decl.clone());
        self.types_of(decl)
    }

    /// Does the same as `declared`, for an optional value.
    pub fn declared_optional(mut self, name: &str, decl: &Arc<DeclType>) -> Self {
        self.variables.insert(name.into(), Type::optional(decl.cel_type()));
        self.types_of(decl)
    }

    /// Adds the object types within a declared type, without a variable.
    pub fn types_of(mut self, decl: &DeclType) -> Self {
        decl.each_object(&mut |object| {
            self.objects.insert(object.name().into(), Arc::new(object.clone()));
        });
        self
    }

    /// Adds a variable that is an object with these fields, such as the `variables` of a policy.
    pub fn with_object(
        mut self,
        name: &str,
        type_name: &str,
        fields: impl IntoIterator<Item = (String, Type)>,
    ) -> Self {
        self.plain.insert(type_name.into(), Arc::new(fields.into_iter().collect()));
        self.variable(name, Type::object(type_name))
    }

    /// Enables `cel.bind(name, value, expression)`.
    pub fn with_bindings(mut self) -> Self {
        self.features.macros.bind = true;
        self
    }

    /// Enables `JSONPatch{…}` and `jsonpatch.escapeKey()`.
    pub fn with_json_patch(mut self) -> Self {
        self.features.json_patch = true;
        self
    }

    /// Enables `Object{…}` and `Object.spec{…}` with any fields.
    pub fn with_object_literals(mut self) -> Self {
        self.features.object_literals = true;
        self
    }

    pub fn type_of(&self, variable: &str) -> Option<&Type> {
        self.variables.get(variable)
    }

    pub fn variables(&self) -> impl Iterator<Item = (&str, &Type)> {
        self.variables.iter().map(|(n, t)| (&**n, t))
    }

    /// Returns the declared type of a variable, if it has one.
    pub fn root(&self, variable: &str) -> Option<&Arc<DeclType>> {
        self.roots.get(variable)
    }

    /// Returns the object type of this name.
    pub(crate) fn object(&self, name: &str) -> Option<&Arc<DeclType>> {
        self.objects.get(name)
    }

    /// Returns whether an expression may construct objects of this type.
    pub(crate) fn is_literal_type(&self, name: &str) -> bool {
        (self.features.json_patch && name == "JSONPatch")
            || (self.features.object_literals && (name == "Object" || name.starts_with("Object.")))
    }

    /// Returns the type of a field of an object type; `Err` if the object type does not exist, `None` if the field
    /// does not.
    pub(crate) fn field(&self, object: &str, field: &str) -> Result<Option<Type>, ()> {
        if self.features.json_patch && object == "JSONPatch" {
            return Ok(match field {
                "op" | "path" | "from" => Some(Type::String),
                "value" => Some(Type::Dyn),
                _ => None,
            });
        }
        if self.is_literal_type(object) {
            return Ok(Some(Type::Dyn));
        }
        if let Some(fields) = self.plain.get(object) {
            return Ok(fields.get(field).cloned());
        }
        let decl = self.objects.get(object).ok_or(())?;
        let reserved = || decl.field(&format!("__{field}__")).filter(|_| crate::escaping::is_reserved(field));
        Ok(decl.field(field).or_else(reserved).map(|f| f.decl.cel_type()))
    }
}
