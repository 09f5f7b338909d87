//! The type checker: determines the type of every node and the overloads of every call, or reports errors.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ast::{Element, Entry, Expr, FieldInit, Fold, Kind, Literal, operator};
use crate::declarations::Declarations;
use crate::library::registry::{Overload, functions};
use crate::source::Issues;
use crate::types::{Substitutions, Type, most_general};

/// The results of type checking.
#[derive(Debug, Default)]
pub struct Checked {
    types: HashMap<u32, Type>,
    overloads: HashMap<u32, Vec<&'static str>>,
    /// Identifiers that name a type, by node id.
    type_names: HashMap<u32, Type>,
}

impl Checked {
    pub fn type_of(&self, expr: &Expr) -> &Type {
        self.types.get(&expr.id).unwrap_or(&Type::Dyn)
    }

    pub fn overloads(&self, expr: &Expr) -> &[&'static str] {
        self.overloads.get(&expr.id).map_or(&[], Vec::as_slice)
    }

    pub fn type_name(&self, expr: &Expr) -> Option<&Type> {
        self.type_names.get(&expr.id)
    }
}

struct Checker<'d> {
    decls: &'d Declarations,
    issues: Issues,
    checked: Checked,
    substitutions: Substitutions,
    /// Variables of comprehensions, innermost last.
    locals: Vec<(Box<str>, Type)>,
    fresh: u32,
}

/// Checks a tree, and makes its names fully qualified.
pub fn check(expr: &mut Expr, decls: &Declarations, source: &str) -> Result<Checked, Issues> {
    let mut checker = Checker {
        decls,
        issues: Issues::of(source),
        checked: Checked::default(),
        substitutions: Substitutions::default(),
        locals: Vec::new(),
        fresh: 0,
    };
    checker.check(expr);
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    let Checker { mut checked, substitutions, .. } = checker;
    for t in checked.types.values_mut() {
        *t = substitutions.apply(t, true);
    }
    Ok(checked)
}

impl Checker<'_> {
    fn set(&mut self, expr: &Expr, t: Type) {
        let t = if t.is_small() { t } else { Type::Dyn };
        self.checked.types.insert(expr.id, t);
    }

    fn get(&self, expr: &Expr) -> Type {
        self.checked.types.get(&expr.id).cloned().unwrap_or(Type::Error)
    }

    fn fresh(&mut self) -> Type {
        self.fresh += 1;
        Type::Param(format!("_var{}", self.fresh).into())
    }

    fn report(&mut self, at: u32, message: String) {
        self.issues.report(at as usize, message);
    }

    fn mismatch(&mut self, at: u32, wanted: &Type, found: &Type) {
        self.report(at, format!("expected type '{wanted}' but found '{found}'"));
    }

    fn undeclared(&mut self, at: u32, name: &str) {
        self.report(at, format!("undeclared reference to '{name}' (in container '')"));
    }

    fn check(&mut self, expr: &mut Expr) {
        match &mut expr.kind {
            Kind::Literal(literal) => {
                let t = literal_type(literal);
                self.set(expr, t);
            }
            Kind::Ident(_) => self.ident(expr),
            Kind::Select { .. } => self.select(expr),
            Kind::Call { .. } => self.call(expr),
            Kind::List(_) => self.list(expr),
            Kind::Map(_) => self.map(expr),
            Kind::Struct { .. } => self.message(expr),
            Kind::Fold(_) => self.fold(expr),
            Kind::Broken => self.set(expr, Type::Error),
        }
    }

    fn local(&self, name: &str) -> Option<Type> {
        self.locals.iter().rev().find(|(n, _)| **n == *name).map(|(_, t)| t.clone())
    }

    /// Returns the type of a declared variable or of a type's name, and whether it is a type's name.
    fn global(&self, name: &str) -> Option<(Type, bool)> {
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(t) = self.decls.type_of(name) {
            return Some((t.clone(), false));
        }
        let named = Type::named(name).or_else(|| self.object_type(name));
        named.map(|t| (Type::type_of(t), true))
    }

    fn object_type(&self, name: &str) -> Option<Type> {
        let known = self.decls.is_literal_type(name) || self.decls.object(name).is_some();
        known.then(|| Type::object(name))
    }

    fn ident(&mut self, expr: &mut Expr) {
        let Kind::Ident(name) = &expr.kind else { return };
        let name = name.clone();
        if let Some(t) = self.local(&name) {
            return self.set(expr, t);
        }
        match self.global(&name) {
            Some((t, is_type)) => self.resolved(expr, name.strip_prefix('.').unwrap_or(&name), t, is_type),
            None => {
                self.set(expr, Type::Error);
                self.undeclared(expr.at, &name);
            }
        }
    }

    /// Makes the node an identifier, with a leading dot if a local variable has the same name.
    fn resolved(&mut self, expr: &mut Expr, name: &str, t: Type, is_type: bool) {
        if is_type && let Type::Type(Some(inner)) = &t {
            self.checked.type_names.insert(expr.id, (**inner).clone());
        }
        let hidden = self.local(name).is_some();
        expr.kind = Kind::Ident(if hidden { format!(".{name}").into() } else { name.into() });
        self.set(expr, t);
    }

    fn select(&mut self, expr: &mut Expr) {
        if let Some(names) = qualifiers(expr) {
            let first = names.first().map_or("", |n| &**n);
            if self.local(first).is_none() || first.starts_with('.') {
                let joined = names.join(".");
                if let Some((t, is_type)) = self.global(&joined) {
                    return self.resolved(expr, joined.trim_start_matches('.'), t, is_type);
                }
            }
        }
        let (id, at) = (expr.id, expr.at);
        let Kind::Select { operand, field, test } = &mut expr.kind else { return };
        let test = *test;
        let t = self.field(at, operand, field, false);
        let t = if test { Type::Bool } else { self.substitutions.apply(&t, false) };
        self.checked.types.insert(id, t);
    }

    /// Checks the operand and returns the type of its field.
    fn field(&mut self, at: u32, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let operand_type = self.substitutions.apply(&self.get(operand), false);
        let (target, was_optional) = unwrap(&operand_type);
        let result = match &target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(name) => match self.decls.field(name, field) {
                Ok(Some(t)) => t,
                Ok(None) => {
                    self.report(at, format!("undefined field '{field}'"));
                    Type::Error
                }
                Err(()) => {
                    self.report(at, format!("unexpected failed resolution of '{name}'"));
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.substitutions.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            // Only the name of an opaque type is known, not its fields.
            Type::Opaque(name) => {
                self.report(at, format!("unexpected failed resolution of '{name}'"));
                Type::Error
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(at, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if was_optional || optional { Type::optional(result) } else { result }
    }

    fn opt_select(&mut self, expr: &mut Expr) {
        let (id, at) = (expr.id, expr.at);
        let Kind::Call { args, .. } = &mut expr.kind else { return };
        let [operand, field] = args.as_mut_slice() else { return };
        let Kind::Literal(Literal::String(name)) = &field.kind else { return };
        let name = name.clone();
        let t = self.field(at, operand, &name, true);
        let t = self.substitutions.apply(&t, false);
        self.checked.types.insert(field.id, Type::String);
        self.checked.types.insert(id, t);
        self.checked.overloads.insert(id, vec!["select_optional_field"]);
    }

    fn call(&mut self, expr: &mut Expr) {
        let Kind::Call { function, target, args } = &mut expr.kind else { return };
        if &**function == operator::OPT_SELECT {
            return self.opt_select(expr);
        }
        args.iter_mut().for_each(|a| self.check(a));
        let plain = function.strip_prefix('.').unwrap_or(function).to_owned();
        let Some(receiver) = target else {
            return match functions().get(plain.as_str()).filter(|o| self.allowed(o)) {
                Some(overloads) => {
                    *function = plain.into();
                    self.resolve(expr, overloads);
                }
                None => {
                    let (at, name) = (expr.at, function.clone());
                    self.set(expr, Type::Error);
                    self.undeclared(at, &name);
                }
            };
        };
        // `sets.contains(a, b)` parses like a method of `sets`.
        if let Some(prefix) = qualified(receiver) {
            let full = format!("{}.{function}", prefix.trim_start_matches('.'));
            if let Some(overloads) = functions().get(full.as_str()).filter(|o| self.allowed(o)) {
                *target = None;
                *function = full.into();
                return self.resolve(expr, overloads);
            }
        }
        self.check(receiver);
        match functions().get(plain.as_str()).filter(|o| self.allowed(o)) {
            Some(overloads) => self.resolve(expr, overloads),
            None => {
                let (at, name) = (expr.at, function.clone());
                self.set(expr, Type::Error);
                self.undeclared(at, &name);
            }
        }
    }

    /// Returns whether the expression may use the function.
    fn allowed(&self, overloads: &[Overload]) -> bool {
        overloads.iter().any(|o| match o.function {
            "includes" => self.decls.features.newest,
            "jsonpatch.escapeKey" => self.decls.features.json_patch,
            _ => true,
        })
    }

    fn resolve(&mut self, expr: &Expr, overloads: &'static [Overload]) {
        let Kind::Call { function, target, args } = &expr.kind else { return };
        if matches!(&**function, operator::AND | operator::OR) {
            return self.logic(expr, args, overloads);
        }
        let values: Vec<&Expr> = target.iter().map(|t| &**t).chain(args).collect();
        let types: Vec<Type> = values.iter().map(|v| self.get(v)).collect();
        let mut result: Option<Type> = None;
        let mut ids = Vec::new();
        for overload in overloads.iter().filter(|o| o.member == target.is_some()) {
            if overload.args.len() != types.len() {
                continue;
            }
            let mut own = Substitutions::default();
            for param in &overload.params {
                let fresh = self.fresh();
                own.add(&Type::Param(param.clone()), fresh);
            }
            let pairs: Vec<(Type, Type)> =
                types.iter().cloned().zip(overload.args.iter().map(|a| own.apply(a, false))).collect();
            if !self.substitutions.all_assignable(&pairs) {
                continue;
            }
            ids.push(overload.id);
            let t = self.substitutions.apply(&own.apply(&overload.result, false), false);
            result = Some(match result {
                None => t,
                Some(before) if before.is_dyn() || before == t => before,
                Some(_) => Type::Dyn,
            });
        }
        match result {
            Some(t) => {
                self.set(expr, t);
                self.checked.overloads.insert(expr.id, ids);
            }
            None => self.no_overload(expr, &types),
        }
    }

    fn no_overload(&mut self, expr: &Expr, types: &[Type]) {
        let Kind::Call { function, target, .. } = &expr.kind else { return };
        let types: Vec<Type> = types.iter().map(|t| self.substitutions.apply(t, true)).collect();
        let (receiver, args) = match (target.is_some(), types.split_first()) {
            (true, Some((receiver, args))) => (format!("{receiver}."), args),
            _ => (String::new(), types.as_slice()),
        };
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let signature = format!("{receiver}({})", args.join(", "));
        let message = format!("found no matching overload for '{function}' applied to '{signature}'");
        self.report(expr.at, message);
        self.set(expr, Type::Error);
    }

    fn logic(&mut self, expr: &Expr, args: &[Expr], overloads: &[Overload]) {
        let mut right = true;
        for arg in args {
            let t = self.get(arg);
            if !self.substitutions.assignable(&t, &Type::Bool) {
                self.mismatch(arg.at, &Type::Bool, &t);
                right = false;
            }
        }
        self.set(expr, if right { Type::Bool } else { Type::Error });
        self.checked.overloads.insert(expr.id, overloads.iter().map(|o| o.id).collect());
    }

    /// Returns the common type of the elements of a list or map so far and the next one.
    fn join(&mut self, before: Option<Type>, t: Type) -> Type {
        let Some(before) = before else { return t };
        if self.substitutions.assignable(&before, &t) {
            return most_general(&before, &t);
        }
        // The validators report mixed literals later; arguments of `format()` may be mixed.
        Type::Dyn
    }

    /// Returns the type inside of an optional element or field.
    fn unwrapped(&mut self, value: &Expr, optional: bool) -> Type {
        let t = self.get(value);
        if !optional {
            return t;
        }
        let (inner, was) = unwrap(&t);
        if !was && !inner.is_dyn() {
            self.mismatch(value.at, &Type::optional(inner.clone()), &inner);
        }
        inner
    }

    fn list(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let Kind::List(elements) = &mut expr.kind else { return };
        let mut joined = None;
        for Element { value, optional } in elements {
            self.check(value);
            let t = self.unwrapped(value, *optional);
            joined = Some(self.join(joined, t));
        }
        let element = joined.unwrap_or_else(|| self.fresh());
        let t = Type::list(element);
        self.checked.types.insert(id, if t.is_small() { t } else { Type::Dyn });
    }

    fn map(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let Kind::Map(entries) = &mut expr.kind else { return };
        let (mut keys, mut values) = (None, None);
        for Entry { key, value, optional } in entries {
            self.check(key);
            let t = self.get(key);
            keys = Some(self.join(keys, t));
            self.check(value);
            let t = self.unwrapped(value, *optional);
            values = Some(self.join(values, t));
        }
        let t = match (keys, values) {
            (Some(key), Some(value)) => Type::map(key, value),
            _ => Type::map(self.fresh(), self.fresh()),
        };
        self.checked.types.insert(id, if t.is_small() { t } else { Type::Dyn });
    }

    fn message(&mut self, expr: &mut Expr) {
        let (id, at) = (expr.id, expr.at);
        let Kind::Struct { name, fields } = &mut expr.kind else { return };
        let full: Box<str> = name.trim_start_matches('.').into();
        if self.object_type(&full).is_none() {
            let message = match Type::named(&full) {
                Some(t) => format!("'{}' is not a message type", t.name()),
                None => format!("undeclared reference to '{name}' (in container '')"),
            };
            self.report(at, message);
            self.checked.types.insert(id, Type::Error);
            return;
        }
        *name = full.clone();
        self.checked.types.insert(id, Type::object(&full));
        for FieldInit { at, name: field, value, optional, .. } in fields {
            self.check(value);
            let wanted = match self.decls.field(&full, field) {
                Ok(Some(t)) => t,
                // Upstream's `JSONPatch` type claims to have every field, so that its error is another one.
                _ if *full == *"JSONPatch" => {
                    let found = self.get(value);
                    let why =
                        format!("expected type of field '{field}' is '' but provided type is '{found}'");
                    self.report(*at, why);
                    Type::Error
                }
                _ => {
                    self.report(*at, format!("undefined field '{field}'"));
                    Type::Error
                }
            };
            let found = self.unwrapped(value, *optional);
            if !self.substitutions.assignable(&wanted, &found) {
                let message =
                    format!("expected type of field '{field}' is '{wanted}' but provided type is '{found}'");
                self.report(*at, message);
            }
        }
    }

    /// Returns the types of the two variables of a comprehension.
    fn variables(&mut self, range: &Expr, two: bool) -> (Type, Type) {
        let t = self.substitutions.apply(&self.get(range), false);
        match &t {
            Type::List(e) if two => (Type::Int, (**e).clone()),
            Type::List(e) => ((**e).clone(), Type::Dyn),
            Type::Map(e) => (e.0.clone(), e.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.substitutions.assignable(&Type::Dyn, &t);
                (Type::Dyn, Type::Dyn)
            }
            _ => {
                let message = format!(
                    "expression of type '{t}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(range.at, message);
                (Type::Error, Type::Error)
            }
        }
    }

    fn wants(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.get(expr);
        if !self.substitutions.assignable(wanted, &found) {
            self.mismatch(expr.at, wanted, &found);
        }
    }

    fn fold(&mut self, expr: &mut Expr) {
        let id = expr.id;
        let Kind::Fold(fold) = &mut expr.kind else { return };
        let Fold { range, variable, variable2, accumulator, init, condition, step, result } = &mut **fold;
        self.check(range);
        self.check(init);
        let accu_type = self.get(init);
        let two = !variable2.is_empty();
        let (first, second) = self.variables(range, two);
        let outer = self.locals.len();
        self.locals.push((accumulator.clone(), accu_type.clone()));
        let inner = self.locals.len();
        self.locals.push((variable.clone(), first));
        if two {
            self.locals.push((variable2.clone(), second));
        }
        self.check(condition);
        self.wants(condition, &Type::Bool);
        self.check(step);
        self.wants(step, &accu_type);
        self.locals.truncate(inner);
        self.check(result);
        self.locals.truncate(outer);
        let t = self.substitutions.apply(&self.get(result), false);
        self.checked.types.insert(id, if t.is_small() { t } else { Type::Dyn });
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}

fn unwrap(t: &Type) -> (Type, bool) {
    match t {
        Type::Optional(inner) => ((**inner).clone(), true),
        other => (other.clone(), false),
    }
}

/// Returns the names in `a.b.c`, if the expression consists only of names.
fn qualifiers(expr: &Expr) -> Option<Vec<Arc<str>>> {
    let mut names: Vec<Arc<str>> = Vec::new();
    let mut at = expr;
    loop {
        match &at.kind {
            Kind::Select { operand, field, test: false } => {
                names.push((**field).into());
                at = operand;
            }
            Kind::Ident(name) if !names.is_empty() => {
                names.push((**name).into());
                names.reverse();
                return Some(names);
            }
            _ => return None,
        }
    }
}

fn qualified(expr: &Expr) -> Option<String> {
    match &expr.kind {
        Kind::Ident(name) => Some(name.to_string()),
        _ => qualifiers(expr).map(|names| names.join(".")),
    }
}
