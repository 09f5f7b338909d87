//! The CEL expressions of admission: the variables that they may use, and their compilation.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_cel::schema::{DeclType, ListKind};
use knarr_cel::{CompileError, Declarations, Type, compile};

/// What the expressions of a kind of policy may use besides the objects, the request and the namespace.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offers {
    pub params: bool,
    pub authorizer: bool,
    /// Enables `Object{…}`, `JSONPatch{…}` and `jsonpatch.escapeKey()`.
    pub patches: bool,
}

static REQUEST: LazyLock<Arc<DeclType>> = LazyLock::new(|| Arc::new(request()));
static NAMESPACE: LazyLock<Arc<DeclType>> = LazyLock::new(|| Arc::new(namespace()));

fn text() -> DeclType {
    DeclType::string(0)
}

fn list(element: DeclType) -> DeclType {
    DeclType::list(element, ListKind::Atomic, 0)
}

fn request() -> DeclType {
    let three =
        |name: &str, last| DeclType::object(name, [("group", text()), ("version", text()), (last, text())]);
    let kind = || three("kubernetes.GroupVersionKind", "kind");
    let resource = || three("kubernetes.GroupVersionResource", "resource");
    let user = DeclType::object(
        "kubernetes.UserInfo",
        [
            ("username", text()),
            ("uid", text()),
            ("groups", list(text())),
            ("extra", DeclType::map(list(text()), 0)),
        ],
    );
    DeclType::object(
        "kubernetes.AdmissionRequest",
        [
            ("kind", kind()),
            ("resource", resource()),
            ("subResource", text()),
            ("requestKind", kind()),
            ("requestResource", resource()),
            ("requestSubResource", text()),
            ("name", text()),
            ("namespace", text()),
            ("operation", text()),
            ("userInfo", user),
            ("dryRun", DeclType::bool()),
            ("options", DeclType::dynamic()),
        ],
    )
}

fn namespace() -> DeclType {
    let condition = DeclType::object(
        "kubernetes.NamespaceCondition",
        [
            ("status", text()),
            ("type", text()),
            ("lastTransitionTime", DeclType::timestamp()),
            ("message", text()),
            ("reason", text()),
        ],
    );
    let metadata = DeclType::object(
        "kubernetes.NamespaceMetadata",
        [
            ("name", text()),
            ("generateName", text()),
            ("namespace", text()),
            ("labels", DeclType::map(text(), 0)),
            ("annotations", DeclType::map(text(), 0)),
            ("UID", text()),
            ("creationTimestamp", DeclType::timestamp()),
            ("deletionGracePeriodSeconds", DeclType::int()),
            ("deletionTimestamp", DeclType::timestamp()),
            ("generation", DeclType::int()),
            ("resourceVersion", text()),
            ("finalizers", list(text())),
        ],
    );
    let spec = DeclType::object("kubernetes.NamespaceSpec", [("finalizers", list(text()))]);
    let status =
        DeclType::object("kubernetes.NamespaceStatus", [("conditions", list(condition)), ("phase", text())]);
    DeclType::object("kubernetes.Namespace", [("metadata", metadata), ("spec", spec), ("status", status)])
}

/// Returns the declarations for new expressions; call `stored()` on them for stored expressions.
pub fn declarations(offers: Offers) -> Declarations {
    typed(offers, None, None)
}

/// Does the same as [`declarations`], with these types of the objects and the parameters.
pub fn typed(offers: Offers, object: Option<&Arc<DeclType>>, params: Option<&Arc<DeclType>>) -> Declarations {
    let opaque = |name: &str| Type::Opaque(name.into());
    let declared = |decls: Declarations, name: &str, of: Option<&Arc<DeclType>>| match of {
        Some(of) => decls.declared(name, of),
        None => decls.variable(name, Type::Dyn),
    };
    let mut decls = declared(Declarations::new(), "object", object);
    decls = declared(decls, "oldObject", object)
        .declared("request", &REQUEST)
        .declared("namespaceObject", &NAMESPACE);
    if offers.params {
        decls = declared(decls, "params", params);
    }
    if offers.authorizer {
        decls = decls
            .variable("authorizer", opaque("kubernetes.authorization.Authorizer"))
            .variable("authorizer.requestResource", opaque("kubernetes.authorization.ResourceCheck"));
    }
    if offers.patches {
        decls = decls.with_json_patch().with_object_literals();
    }
    decls
}

/// The `variables` of a policy that are declared so far: each may use those before it.
#[derive(Debug, Clone, Default)]
pub struct Composition(Vec<(String, Type)>);

impl Composition {
    /// Adds a variable; its type is dynamic if its expression is invalid.
    pub fn add(&mut self, name: &str, of: Option<&Type>) {
        self.0.push((name.to_owned(), of.map_or(Type::Dyn, plain)));
    }

    pub fn declare(&self, decls: Declarations) -> Declarations {
        decls.with_object("variables", "kubernetes.variables", self.0.iter().cloned())
    }
}

/// Returns the type that a variable has: object types and opaque types become dynamic.
fn plain(of: &Type) -> Type {
    match of {
        Type::List(element) => Type::list(plain(element)),
        Type::Map(entry) => Type::map(plain(&entry.0), plain(&entry.1)),
        Type::Bool
        | Type::Bytes
        | Type::Double
        | Type::Duration
        | Type::Int
        | Type::Null
        | Type::String
        | Type::Timestamp
        | Type::Uint => of.clone(),
        _ => Type::Dyn,
    }
}

/// Compiles expressions. Those that are unchanged by an update may use everything that stored expressions may use.
#[derive(Default)]
pub struct Compiler<'o> {
    old: BTreeSet<&'o str>,
    /// `None` if there is no variable `variables`.
    composition: Option<Composition>,
}

impl<'o> Compiler<'o> {
    /// `old` are the expressions in the same place before an update.
    pub fn new(old: impl IntoIterator<Item = &'o str>) -> Self {
        Self { old: old.into_iter().collect(), composition: None }
    }

    /// Does the same as `new`, for a policy that may have variables.
    pub fn of(old: impl IntoIterator<Item = &'o str>, composition: Option<Composition>) -> Self {
        Self { composition, ..Self::new(old) }
    }

    pub fn composed(self, composition: Composition) -> Self {
        Self { composition: Some(composition), ..self }
    }

    /// Adds a variable for the following expressions.
    pub fn add(&mut self, name: &str, of: Option<&Type>) {
        self.composition.get_or_insert_default().add(name, of);
    }

    pub fn into_composition(self) -> Composition {
        self.composition.unwrap_or_default()
    }

    /// Compiles an expression and returns its type; adds an error at the path if that fails. `source` is compiled,
    /// `shown` is the text that errors show.
    pub fn check(
        &self,
        errors: &mut ErrorList,
        path: &Path,
        (source, shown): (&str, &str),
        offers: Offers,
        wanted: &[Type],
    ) -> Option<Type> {
        let mut decls = declarations(offers);
        if self.old.contains(shown) {
            decls = decls.stored();
        }
        if let Some(composition) = &self.composition {
            decls = composition.declare(decls);
        }
        match compile(source, &decls, wanted) {
            Ok(program) => Some(program.output_type().clone()),
            Err(error) => {
                errors.push(wrong(path, shown, &error));
                None
            }
        }
    }
}

/// Returns the field error for an expression that does not compile.
pub fn wrong(path: &Path, shown: &str, error: &CompileError) -> Error {
    match error {
        CompileError::Instantiation(_) => Error::internal(path, error.to_string()),
        _ => Error::invalid(path, shown, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_offered() {
        let all = Offers { params: true, authorizer: true, patches: true };
        for (source, offers, fits) in [
            ("object.spec.x == oldObject.y", Offers::default(), true),
            ("request.userInfo.username == namespaceObject.metadata.name", Offers::default(), true),
            ("request.nope", Offers::default(), false),
            ("params.x", Offers::default(), false),
            ("params.x", all, true),
            ("authorizer.requestResource.check('get').allowed()", all, true),
            ("authorizer.requestResource.check('get').allowed()", Offers::default(), false),
            ("Object{spec: Object.spec{x: 1}}", all, true),
            ("JSONPatch{op: 'add', path: '/' + jsonpatch.escapeKey('a/b'), value: 1}", all, true),
            ("JSONPatch{op: 'add'}", Offers::default(), false),
        ] {
            let mut errors = ErrorList::new();
            Compiler::default().check(&mut errors, &Path::new("x"), (source, source), offers, &[]);
            assert_eq!(errors.is_empty(), fits, "{source}: {errors:?}");
        }
    }

    #[test]
    fn variables_have_plain_types() {
        let mut composition = Composition::default();
        composition.add("n", Some(&Type::Int));
        composition.add("o", Some(&Type::object("kubernetes.Namespace")));
        composition.add("l", Some(&Type::list(Type::object("x"))));
        let compiler = Compiler::default().composed(composition);
        let mut errors = ErrorList::new();
        let path = Path::new("x");
        for (source, fits) in [
            ("variables.n + 1", true),
            ("variables.n + 'a'", false),
            ("variables.o.nope == 1", true),
            ("variables.l[0].nope == 1", true),
            ("variables.none", false),
        ] {
            let found = compiler.check(&mut errors, &path, (source, source), Offers::default(), &[]);
            assert_eq!(found.is_some(), fits, "{source}");
        }
    }
}
