//! What an expression may use: variables, object types, and which parts of the language.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::macros::Macros;
use crate::schema::DeclType;
use crate::types::Type;

/// The surroundings of an expression. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Declarations {
    variables: BTreeMap<Arc<str>, Type>,
    roots: BTreeMap<Arc<str>, Arc<DeclType>>,
    objects: BTreeMap<Arc<str>, Arc<DeclType>>,
    /// Object types without a schema: their fields.
    plain: BTreeMap<Arc<str>, Arc<BTreeMap<String, Type>>>,
    pub(crate) features: Features,
}

/// Parts of the language that not every expression may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Features {
    /// Functions of this release, which its predecessor would not understand.
    pub newest: bool,
    pub json_patch: bool,
    /// Types `Object`, `Object.spec` and so on that an expression may make.
    pub object_literals: bool,
    pub macros: Macros,
}

impl Declarations {
    /// The language of Kubernetes 1.37 for expressions that are written now: functions that 1.36 does not have
    /// are left out, so that a server can be taken back.
    pub fn new() -> Self {
        Self::default()
    }

    /// For expressions that are stored already: all functions of this release.
    pub fn stored(mut self) -> Self {
        self.features.newest = true;
        self
    }

    /// A variable of a type that needs no declaration.
    pub fn variable(mut self, name: &str, t: Type) -> Self {
        self.variables.insert(name.into(), t);
        self
    }

    /// A variable whose type is a schema's. Object types in it should have names: see [`DeclType::named`].
    pub fn declared(mut self, name: &str, decl: &Arc<DeclType>) -> Self {
        self.variables.insert(name.into(), decl.cel_type());
        self.roots.insert(name.into(), decl.clone());
        self.types_of(decl)
    }

    /// As `declared`, of an optional value.
    pub fn declared_optional(mut self, name: &str, decl: &Arc<DeclType>) -> Self {
        self.variables.insert(name.into(), Type::optional(decl.cel_type()));
        self.types_of(decl)
    }

    /// Makes the object types within known without a variable.
    pub fn types_of(mut self, decl: &DeclType) -> Self {
        decl.each_object(&mut |object| {
            self.objects.insert(object.name().into(), Arc::new(object.clone()));
        });
        self
    }

    /// A variable that is an object of these fields, such as the `variables` of a policy.
    pub fn with_object(
        mut self,
        name: &str,
        type_name: &str,
        fields: impl IntoIterator<Item = (String, Type)>,
    ) -> Self {
        self.plain.insert(type_name.into(), Arc::new(fields.into_iter().collect()));
        self.variable(name, Type::object(type_name))
    }

    /// With `cel.bind(name, value, expression)`.
    pub fn with_bindings(mut self) -> Self {
        self.features.macros.bind = true;
        self
    }

    /// With `JSONPatch{…}` and `jsonpatch.escapeKey()`.
    pub fn with_json_patch(mut self) -> Self {
        self.features.json_patch = true;
        self
    }

    /// With `Object{…}`, `Object.spec{…}` of any fields.
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

    /// The declared type of a variable, where it has one.
    pub fn root(&self, variable: &str) -> Option<&Arc<DeclType>> {
        self.roots.get(variable)
    }

    /// The object type of this name.
    pub(crate) fn object(&self, name: &str) -> Option<&Arc<DeclType>> {
        self.objects.get(name)
    }

    /// Whether an expression may make objects of this type.
    pub(crate) fn is_literal_type(&self, name: &str) -> bool {
        (self.features.json_patch && name == "JSONPatch")
            || (self.features.object_literals && (name == "Object" || name.starts_with("Object.")))
    }

    /// The type of a field of an object type; `Err` if there is no such object type, `None` if no such field.
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
