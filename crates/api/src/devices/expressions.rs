//! The CEL expressions that select devices: their variables and their compilation.

use std::sync::{Arc, LazyLock};

use knarr_apimachinery::field::{Error, ErrorList, Path};
use knarr_cel::schema::DeclType;
use knarr_cel::{CompileError, Declarations, Type, checked};

/// The cost limit of an evaluation.
pub const COST_MAX: u64 = 1_000_000;
/// An estimate from here on means that a size is unknown, such as that of attributes passed to string functions. The
/// cost of such an expression is limited when it runs.
const UNKNOWN: u64 = 1 << 50;
const LENGTH_MAX_BYTES: usize = 10 * 1024;
const DOMAIN_MAX: i64 = 63;
const ID_MAX: i64 = 32;
const VALUE_MAX: i64 = 64;
const ENTRIES_MAX: i64 = 32;

static DEVICE: LazyLock<Arc<DeclType>> = LazyLock::new(|| {
    let domains = |value: DeclType| {
        let inner = DeclType::map_of(DeclType::string(ID_MAX), value, ENTRIES_MAX);
        DeclType::map_of(DeclType::string(DOMAIN_MAX), inner, ENTRIES_MAX)
    };
    let limited = |mut decl: DeclType, max| {
        decl.max_elements = max;
        decl
    };
    Arc::new(DeclType::object(
        "kubernetes.DRADevice",
        [
            ("driver", DeclType::string(DOMAIN_MAX)),
            ("allowMultipleAllocations", limited(DeclType::bool(), 1)),
            ("attributes", domains(limited(DeclType::dynamic(), VALUE_MAX))),
            ("capacity", domains(DeclType::opaque("kubernetes.Quantity"))),
        ],
    ))
});

/// Returns the declarations for new selectors; call `stored()` on them for stored ones.
pub fn declarations() -> Declarations {
    Declarations::new().with_bindings().declared("device", &DEVICE)
}

/// Compiles a selector's expression and checks its type and its cost.
pub fn check(errors: &mut ErrorList, path: &Path, source: &str) {
    if source.len() > LENGTH_MAX_BYTES {
        errors.push(Error::too_long(path, LENGTH_MAX_BYTES));
        return;
    }
    let decls = declarations();
    let compiled = checked(source, &decls, &[]).and_then(|expression| {
        expression.program()?;
        Ok(expression)
    });
    let expression = match compiled {
        Ok(expression) => expression,
        Err(error @ CompileError::Instantiation(_)) => {
            errors.push(Error::internal(path, error.to_string()));
            return;
        }
        Err(error) => {
            errors.push(Error::invalid(path, source, error.to_string()));
            return;
        }
    };
    let found = expression.output_type();
    if !matches!(found, Type::Bool | Type::Dyn) {
        let problem = format!("must evaluate to bool or the unknown type, not {found}");
        errors.push(Error::invalid(path, source, problem));
    } else if (COST_MAX + 1..UNKNOWN).contains(&expression.estimate(&decls).max) {
        errors.push(Error::forbidden(path, "too complex, exceeds cost limit"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        for (source, problem) in [
            ("device.driver == 'a' && device.allowMultipleAllocations", ""),
            ("device.attributes['a'].b", ""),
            ("device.capacity['a'].b.isGreaterThan(quantity('1Gi'))", ""),
            ("device.attributes['a'].b.matches('x')", ""),
            ("cel.bind(dra, device.attributes['a'], dra.b && dra.c)", ""),
            ("device.driver", "must evaluate to bool or the unknown type, not string"),
            ("device.nope", "compilation failed: ERROR: <input>:1:7: undefined field 'nope'"),
            ("object.x", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'object'"),
            (
                "device.attributes['a'].b == 'x'.matches('a') || device.attributes.all(a, device.attributes.all(b, \
                 device.attributes.all(c, device.attributes.all(d, device.attributes.all(e, a == b)))))",
                "too complex, exceeds cost limit",
            ),
        ] {
            let mut errors = ErrorList::new();
            check(&mut errors, &Path::new("x"), source);
            let text = errors.0.first().map(ToString::to_string).unwrap_or_default();
            assert!(text.contains(problem) && text.is_empty() == problem.is_empty(), "{source}: {text}");
        }
    }
}
