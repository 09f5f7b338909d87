//! Types of expressions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Type {
    /// Any type, known only at evaluation.
    Dyn,
    /// The type of an expression with an error.
    Error,
    Null,
    Bool,
    Int,
    Uint,
    Double,
    String,
    Bytes,
    Timestamp,
    Duration,
    List(Arc<Type>),
    Map(Arc<(Type, Type)>),
    /// An object type with declared fields, by name.
    Object(Arc<str>),
    /// A type that only functions can inspect, by name.
    Opaque(Arc<str>),
    Optional(Arc<Type>),
    /// A type parameter, not yet resolved.
    Param(Arc<str>),
    /// The type of a type.
    Type(Option<Arc<Type>>),
}

impl Type {
    pub fn list(element: Type) -> Self {
        Self::List(Arc::new(element))
    }

    pub fn map(key: Type, value: Type) -> Self {
        Self::Map(Arc::new((key, value)))
    }

    pub fn optional(inner: Type) -> Self {
        Self::Optional(Arc::new(inner))
    }

    pub fn object(name: &str) -> Self {
        Self::Object(name.into())
    }

    pub fn type_of(inner: Type) -> Self {
        Self::Type(Some(Arc::new(inner)))
    }

    /// Returns the name without type parameters, as in `type(x)` and "no such overload".
    pub fn name(&self) -> &str {
        match self {
            Self::Dyn => "dyn",
            Self::Error => "error",
            Self::Null => "null_type",
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::String => "string",
            Self::Bytes => "bytes",
            Self::Timestamp => "google.protobuf.Timestamp",
            Self::Duration => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Object(name) | Self::Opaque(name) | Self::Param(name) => name,
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
        }
    }

    pub fn is_dyn(&self) -> bool {
        matches!(self, Self::Dyn)
    }

    pub fn is_dyn_or_error(&self) -> bool {
        matches!(self, Self::Dyn | Self::Error)
    }

    /// Returns whether values have a fixed size, so that operations on them cost the same for every value.
    pub fn is_scalar(&self) -> bool {
        match self {
            Self::Bool | Self::Double | Self::Duration | Self::Int | Self::Timestamp | Self::Uint => true,
            Self::Optional(inner) => inner.is_scalar(),
            _ => false,
        }
    }

    /// Returns whether the type is small enough to be checked quickly.
    pub fn is_small(&self) -> bool {
        fn room(t: &Type, left: usize) -> Option<usize> {
            let left = left.checked_sub(1)?;
            match t {
                Type::List(e) | Type::Optional(e) | Type::Type(Some(e)) => room(e, left),
                Type::Map(e) => room(&e.0, left).and_then(|left| room(&e.1, left)),
                _ => Some(left),
            }
        }
        room(self, 300).is_some()
    }

    /// Returns the type that an identifier names, such as `int` or `google.protobuf.Duration`.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "bool" => Self::Bool,
            "bytes" => Self::Bytes,
            "double" => Self::Double,
            "google.protobuf.Duration" => Self::Duration,
            "int" => Self::Int,
            "list" => Self::list(Self::Dyn),
            "map" => Self::map(Self::Dyn, Self::Dyn),
            "null_type" => Self::Null,
            "string" => Self::String,
            "google.protobuf.Timestamp" => Self::Timestamp,
            "type" => Self::Type(None),
            "uint" => Self::Uint,
            "optional_type" => Self::optional(Self::Dyn),
            "net.IP" | "net.CIDR" => Self::Opaque(name.into()),
            _ => return None,
        })
    }
}

/// Formats the type as type errors show it.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error => f.write_str("!error!"),
            Self::Null => f.write_str("null"),
            Self::Timestamp => f.write_str("timestamp"),
            Self::Duration => f.write_str("duration"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Map(entry) => write!(f, "map({}, {})", entry.0, entry.1),
            Self::Optional(inner) => write!(f, "optional_type({inner})"),
            Self::Type(Some(inner)) => write!(f, "type({inner})"),
            _ => f.write_str(self.name()),
        }
    }
}

/// The substitutions of type parameters found so far.
#[derive(Debug, Clone, Default)]
pub struct Substitutions {
    found: HashMap<Arc<str>, Type>,
    /// The old value of each change since the last call of `assignable`, for reverting it.
    trail: Vec<(Arc<str>, Option<Type>)>,
}

impl Substitutions {
    fn find(&self, t: &Type) -> Option<&Type> {
        if let Type::Param(name) = t { self.found.get(name) } else { None }
    }

    pub fn add(&mut self, param: &Type, t: Type) {
        let Type::Param(name) = param else { return };
        let before = self.found.insert(name.clone(), t);
        self.trail.push((name.clone(), before));
    }

    /// Keeps the changes since the last call, or reverts them; returns `keep`.
    fn settle(&mut self, keep: bool) -> bool {
        for (name, before) in self.trail.drain(..).rev() {
            match before {
                _ if keep => {}
                Some(t) => {
                    self.found.insert(name, t);
                }
                None => {
                    self.found.remove(&name);
                }
            }
        }
        keep
    }

    /// Replaces the type's parameters; with `unknown_to_dyn`, unknown ones become `dyn`.
    pub fn apply(&self, t: &Type, unknown_to_dyn: bool) -> Type {
        if let Some(found) = self.find(t) {
            return self.apply(found, unknown_to_dyn);
        }
        match t {
            Type::Param(_) if unknown_to_dyn => Type::Dyn,
            Type::List(e) => Type::list(self.apply(e, unknown_to_dyn)),
            Type::Map(e) => Type::map(self.apply(&e.0, unknown_to_dyn), self.apply(&e.1, unknown_to_dyn)),
            Type::Optional(e) => Type::optional(self.apply(e, unknown_to_dyn)),
            Type::Type(Some(e)) => Type::type_of(self.apply(e, unknown_to_dyn)),
            _ => t.clone(),
        }
    }

    /// Returns whether a value of type `t2` may be used where `t1` is wanted. Records the resulting substitutions of
    /// parameters; reverts them if the types do not match.
    pub fn assignable(&mut self, t1: &Type, t2: &Type) -> bool {
        self.trail.clear();
        let fits = self.fits(t1, t2);
        self.settle(fits)
    }

    pub fn all_assignable(&mut self, pairs: &[(Type, Type)]) -> bool {
        self.trail.clear();
        let fits = pairs.iter().all(|(t1, t2)| self.fits(t1, t2));
        self.settle(fits)
    }

    fn fits(&mut self, t1: &Type, t2: &Type) -> bool {
        if matches!(t2, Type::Param(_)) {
            let (valid, known) = self.substitutes(t1, t2);
            if valid || known {
                return valid;
            }
        }
        if matches!(t1, Type::Param(_)) {
            return self.substitutes(t2, t1).0;
        }
        if t1.is_dyn_or_error() || t2.is_dyn_or_error() {
            return true;
        }
        let nullable = |t: &Type| {
            matches!(
                t,
                Type::Null
                    | Type::Opaque(_)
                    | Type::Optional(_)
                    | Type::Object(_)
                    | Type::Duration
                    | Type::Timestamp
            )
        };
        match (t1, t2) {
            (Type::Null, other) | (other, Type::Null) => nullable(other),
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.fits(a, b),
            (Type::Map(a), Type::Map(b)) => self.fits(&a.0, &b.0) && self.fits(&a.1, &b.1),
            (Type::Type(_), Type::Type(_)) => true,
            _ => t1 == t2,
        }
    }

    /// Returns whether `t1` can be substituted for the parameter `t2`, and whether `t2` had a substitution before.
    fn substitutes(&mut self, t1: &Type, t2: &Type) -> (bool, bool) {
        if t1 == t2 {
            return (true, true);
        }
        if let Some(known) = self.find(t2).cloned() {
            if *t1 == known {
                return (true, true);
            }
            if self.fits(t1, &known) {
                let general = most_general(t1, &known);
                if self.not_within(t2, &general) {
                    self.add(t2, general);
                }
                return (true, true);
            }
            return (false, true);
        }
        if self.not_within(t2, t1) {
            self.add(t2, t1.clone());
            return (true, false);
        }
        (false, false)
    }

    fn not_within(&self, t: &Type, within: &Type) -> bool {
        if t == within {
            return false;
        }
        match within {
            Type::Param(_) => self.find(within).is_none_or(|found| self.not_within(t, found)),
            Type::List(e) | Type::Optional(e) | Type::Type(Some(e)) => self.not_within(t, e),
            Type::Map(e) => self.not_within(t, &e.0) && self.not_within(t, &e.1),
            _ => true,
        }
    }
}

/// Returns the more general one of two compatible types.
pub fn most_general(t1: &Type, t2: &Type) -> Type {
    if less_specific(t1, t2) { t1.clone() } else { t2.clone() }
}

fn less_specific(t1: &Type, t2: &Type) -> bool {
    if matches!(t1, Type::Dyn | Type::Param(_)) {
        return true;
    }
    if matches!(t2, Type::Dyn | Type::Param(_)) {
        return false;
    }
    match (t1, t2) {
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => less_specific(a, b),
        (Type::Map(a), Type::Map(b)) => less_specific(&a.0, &b.0) && less_specific(&a.1, &b.1),
        (Type::Type(_), Type::Type(_)) => true,
        _ => t1 == t2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_and_contradictions_refused() {
        let a = Type::Param("A".into());
        let mut s = Substitutions::default();
        assert!(s.assignable(&Type::list(Type::Int), &Type::list(a.clone())));
        assert_eq!(s.apply(&a, true), Type::Int);
        assert!(!s.assignable(&Type::String, &a));
        assert!(s.assignable(&Type::Dyn, &a));
        assert!(s.assignable(&Type::Null, &Type::object("x")));
        assert!(!s.assignable(&Type::Null, &Type::Int));
        assert_eq!(
            Type::map(Type::String, Type::list(Type::Duration)).to_string(),
            "map(string, list(duration))"
        );
    }
}
