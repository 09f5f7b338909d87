//! Evaluation of a plan, with the cost that upstream charges.

use std::collections::BTreeMap;

use crate::activation::{Activation, LazyFields};
use crate::budget::Budget;
use crate::cost::actual;
use crate::error::EvalError;
use crate::library::regex;
use crate::ops;
use crate::plan::{Attr, CallNode, FoldNode, Node, ObjectNode, Qualifier, QualifierKey, Root, invoke};
use crate::value::{Key, Map, Object, Value};

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// A variable of a comprehension.
struct Local<'p, 'a> {
    name: &'p str,
    slot: Slot<'p, 'a>,
}

enum Slot<'p, 'a> {
    Value(Value<'a>),
    /// An error that is discarded if the value is not needed, as in `true || error`.
    Failed(EvalError),
    /// Evaluated on first use, with the variables declared before it.
    Lazy(&'p Node, usize),
}

impl<'a> From<Outcome<'a>> for Slot<'_, 'a> {
    fn from(outcome: Outcome<'a>) -> Self {
        match outcome {
            Ok(value) => Self::Value(value),
            Err(error) => Self::Failed(error),
        }
    }
}

pub struct Evaluator<'p, 'e, 'l, 'a, 'i> {
    pub activation: &'e Activation<'l, 'a>,
    pub budget: &'e mut Budget<'i>,
    locals: Vec<Local<'p, 'a>>,
}

/// The value of an attribute's root.
enum Resolved<'l, 'a> {
    Value(Value<'a>),
    Lazy(&'l (dyn LazyFields<'a> + 'l)),
}

impl<'p, 'e, 'l, 'a, 'i> Evaluator<'p, 'e, 'l, 'a, 'i> {
    pub fn new(activation: &'e Activation<'l, 'a>, budget: &'e mut Budget<'i>) -> Self {
        Self { activation, budget, locals: Vec::new() }
    }

    pub fn node(&mut self, node: &'p Node) -> Outcome<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Attr(attr) => {
                let value = self.attr(attr)?;
                if !matches!(attr.root, Root::Conditional(..)) {
                    self.budget.charge(1)?;
                }
                Ok(value)
            }
            Node::Has(attr) => match self.attr(attr)? {
                Value::Optional(held) => Ok(Value::Bool(held.is_some())),
                value => Ok(value),
            },
            Node::And(terms) => self.logic(&terms.0, &terms.1, false),
            Node::Or(terms) => self.logic(&terms.0, &terms.1, true),
            Node::Call(call) => self.call(call),
            Node::In(parts) => {
                let value = self.node(&parts.0)?;
                if Key::lookup(&value).is_some_and(|k| parts.1.keys.contains(&k)) {
                    return Ok(Value::Bool(true));
                }
                for other in &parts.1.others {
                    if ops::equal(&value, other, self.budget)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            Node::OptionalOr(terms, unwraps) => match self.node(&terms.0)? {
                Value::Optional(Some(held)) if *unwraps => Ok(held.value.clone()),
                Value::Optional(Some(held)) => Ok(Value::Optional(Some(held))),
                Value::Optional(None) => self.node(&terms.1),
                _ => Err(EvalError::NoSuchOverload),
            },
            Node::NotStrictlyFalse(inner) => self.not_strictly_false(inner),
            Node::List(elements) => self.list(elements),
            Node::Map(entries) => self.map(entries),
            Node::Object(object) => self.object(object),
            Node::Fold(fold) => self.fold(fold),
            Node::Append(list) => self.append(list),
            Node::Insert(args) => self.insert(args),
        }
    }

    fn logic(&mut self, a: &'p Node, b: &'p Node, decisive: bool) -> Outcome<'a> {
        let mut failure = None;
        for term in [a, b] {
            match self.node(term) {
                Ok(Value::Bool(value)) if value == decisive => return Ok(Value::Bool(decisive)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failure = failure.or(Some(EvalError::NoSuchOverload)),
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn not_strictly_false(&mut self, inner: &'p Node) -> Outcome<'a> {
        let holds = match self.node(inner) {
            Ok(value) => value.as_bool() != Some(false),
            Err(error) if error.is_fatal() => return Err(error),
            Err(_) => true,
        };
        self.budget.charge(1)?;
        Ok(Value::Bool(holds))
    }

    fn call(&mut self, call: &'p CallNode) -> Outcome<'a> {
        let mut args = Vec::with_capacity(call.args.len());
        for arg in &call.args {
            args.push(self.node(arg)?);
        }
        let result = match &call.pattern {
            Some(pattern) => regex::call(&call.function, pattern, &args),
            None => invoke(call.calls, &args, self.budget),
        };
        let result = match result {
            Err(EvalError::NoSuchOverload) => return Err(no_such_overload(call, &args)),
            other => other?,
        };
        self.budget.charge(actual::call(&call.function, call.overload, &args, &result))?;
        Ok(result)
    }

    fn list(&mut self, elements: &'p [(Node, bool)]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(elements.len());
        for (node, optional) in elements {
            match (self.node(node)?, optional) {
                (Value::Optional(Some(held)), true) => values.push(held.value.clone()),
                (Value::Optional(None), true) => {}
                (other, true) => {
                    let t = other.type_of();
                    return Err(EvalError::new(format!(
                        "cannot initialize optional list element from non-optional value {}",
                        t.name()
                    )));
                }
                (value, false) => values.push(value),
            }
        }
        self.budget.charge(actual::LIST)?;
        Ok(Value::list(values))
    }

    fn map(&mut self, entries: &'p [(Node, Node, bool)]) -> Outcome<'a> {
        let mut out = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.node(key)?;
            let value = match (self.node(value)?, optional) {
                (Value::Optional(Some(held)), true) => held.value.clone(),
                (Value::Optional(None), true) => continue,
                (_, true) => {
                    return Err(EvalError::new(format!(
                        "cannot initialize optional entry '{key}' from non-optional value"
                    )));
                }
                (value, false) => value,
            };
            out.insert(Key::of(&key).ok_or_else(|| EvalError::new("unsupported key type"))?, value);
        }
        self.budget.charge(actual::MAP)?;
        Ok(Value::Map(Map::new(out)))
    }

    fn object(&mut self, object: &'p ObjectNode) -> Outcome<'a> {
        let mut fields = BTreeMap::new();
        for (name, node, optional) in &object.fields {
            let value = match (self.node(node)?, optional) {
                (Value::Optional(Some(held)), true) => held.value.clone(),
                (Value::Optional(None), true) => continue,
                (value, _) => value,
            };
            fields.insert(name.clone(), value);
        }
        self.budget.charge(actual::OBJECT)?;
        Ok(Value::Object(Object::new(&object.name, fields)))
    }

    // Attributes.

    /// Evaluates an attribute; charges its parts, but not the attribute itself.
    fn attr(&mut self, attr: &'p Attr) -> Outcome<'a> {
        let mut qualifiers = attr.qualifiers.iter();
        let mut value = match self.root(&attr.root)? {
            Resolved::Value(value) => value,
            Resolved::Lazy(fields) => match qualifiers.next() {
                Some(qualifier) => self.lazy_field(fields, qualifier)?,
                None => Value::Map(Map::new(BTreeMap::new())),
            },
        };
        let mut optional = false;
        if attr.qualifiers.is_empty() {
            return Ok(value);
        }
        if let Value::Optional(held) = &value {
            optional = true;
            let Some(held) = held else { return Ok(value) };
            value = held.value.clone();
        }
        for qualifier in qualifiers {
            optional |= qualifier.optional;
            match self.qualify(&value, qualifier, optional)? {
                Some(found) => value = found,
                None => return Ok(Value::none()),
            }
        }
        Ok(if optional { Value::some(value) } else { value })
    }

    fn root(&mut self, root: &'p Root) -> Result<Resolved<'l, 'a>, EvalError> {
        match root {
            Root::Variable { name, global } => self.variable(name, *global),
            Root::Operand(node) => self.node(node).map(Resolved::Value),
            Root::Conditional(parts) => match self.node(&parts.0)? {
                Value::Bool(true) => self.attr(&parts.1).map(Resolved::Value),
                Value::Bool(false) => self.attr(&parts.2).map(Resolved::Value),
                _ => Err(EvalError::NoSuchOverload),
            },
        }
    }

    fn variable(&mut self, name: &str, global: bool) -> Result<Resolved<'l, 'a>, EvalError> {
        let found = if global { None } else { self.locals.iter().rposition(|l| l.name == name) };
        if let Some(at) = found {
            if let Slot::Lazy(node, depth) = self.locals[at].slot {
                let hidden = self.locals.split_off(depth);
                let outcome = self.node(node);
                self.locals.truncate(depth);
                self.locals.extend(hidden);
                self.locals[at].slot = outcome.into();
            }
            return match &self.locals[at].slot {
                Slot::Value(value) => Ok(Resolved::Value(value.clone())),
                Slot::Failed(error) => Err(error.clone()),
                Slot::Lazy(..) => Err(EvalError::new("a variable that needs itself")),
            };
        }
        if let Some(value) = self.activation.get(name) {
            return Ok(Resolved::Value(value.clone()));
        }
        if let Some(fields) = self.activation.lazy(name) {
            return Ok(Resolved::Lazy(fields));
        }
        Err(EvalError::new(format!("no such attribute(s): {name}")))
    }

    fn lazy_field(&mut self, fields: &(dyn LazyFields<'a> + '_), qualifier: &'p Qualifier) -> Outcome<'a> {
        let key = self.key(qualifier)?;
        self.budget.charge(1)?;
        let found = fields.field(key.as_str().unwrap_or(""), self.budget);
        if qualifier.test {
            return Ok(Value::Bool(found.is_some()));
        }
        let value = found.unwrap_or_else(|| Err(EvalError::no_such_key(&key.to_string())))?;
        Ok(if qualifier.optional { Value::some(value) } else { value })
    }

    fn key(&mut self, qualifier: &'p Qualifier) -> Outcome<'a> {
        match &qualifier.key {
            QualifierKey::Const(key) => Ok(key.clone()),
            QualifierKey::Attr(attr) => self.attr(attr),
            QualifierKey::Node(node) => self.node(node),
        }
    }

    /// Applies one qualifier to a value; `None` if an optional qualifier finds nothing.
    fn qualify(
        &mut self,
        value: &Value<'a>,
        qualifier: &'p Qualifier,
        optional: bool,
    ) -> Result<Option<Value<'a>>, EvalError> {
        let key = self.key(qualifier)?;
        let found = ops::lookup(value, &key)?;
        if qualifier.test {
            if optional && found.is_none() {
                return Ok(None);
            }
            self.budget.charge(1)?;
            return Ok(Some(Value::Bool(found.is_some())));
        }
        match found {
            Some(found) => {
                self.budget.charge(1)?;
                Ok(Some(found))
            }
            None if optional => Ok(None),
            None => Err(ops::missing(value, &key)),
        }
    }

    // Comprehensions.

    fn fold(&mut self, fold: &'p FoldNode) -> Outcome<'a> {
        let depth = self.locals.len();
        let result = self.fold_within(fold, depth);
        self.locals.truncate(depth);
        result
    }

    fn fold_within(&mut self, fold: &'p FoldNode, depth: usize) -> Outcome<'a> {
        let range = self.node(&fold.range)?;
        if fold.binds {
            self.locals.push(Local { name: &fold.accumulator, slot: Slot::Lazy(&fold.init, depth) });
            return self.node(&fold.result);
        }
        let init = self.node(&fold.init);
        self.locals.push(Local { name: &fold.accumulator, slot: init.into() });
        let two = !fold.variable2.is_empty();
        match &range {
            Value::List(list) => {
                for (index, item) in list.iter().enumerate() {
                    let (first, second) =
                        if two { (Value::Int(index as i64), item?) } else { (item?, Value::Null) };
                    if !self.turn(fold, depth, first, second)? {
                        break;
                    }
                }
            }
            Value::Map(_) | Value::Object(_) => {
                for key in ops::keys(&range) {
                    let second = match two {
                        true => ops::lookup(&range, &key)?.unwrap_or(Value::Null),
                        false => Value::Null,
                    };
                    if !self.turn(fold, depth, key, second)? {
                        break;
                    }
                }
            }
            other => {
                let t = other.type_of();
                return Err(EvalError::new(format!("got '{}', expected iterable type", t.name())));
            }
        }
        self.node(&fold.result)
    }

    /// Runs one iteration of a comprehension; returns whether to continue.
    fn turn(
        &mut self,
        fold: &'p FoldNode,
        depth: usize,
        first: Value<'a>,
        second: Value<'a>,
    ) -> Result<bool, EvalError> {
        self.budget.step()?;
        self.locals.push(Local { name: &fold.variable, slot: Slot::Value(first) });
        if !fold.variable2.is_empty() {
            self.locals.push(Local { name: &fold.variable2, slot: Slot::Value(second) });
        }
        let on = match self.node(&fold.condition) {
            Ok(value) => value.as_bool() != Some(false),
            Err(error) if error.is_fatal() => return Err(error),
            Err(_) => true,
        };
        if on {
            let outcome = self.node(&fold.step);
            if let Err(error) = &outcome
                && error.is_fatal()
            {
                return Err(error.clone());
            }
            self.locals[depth].slot = outcome.into();
        }
        self.locals.truncate(depth + 1);
        Ok(on)
    }

    /// Takes the accumulator of the innermost comprehension, so that it can be changed in place.
    fn take_accumulator(&mut self) -> Outcome<'a> {
        self.budget.charge(1)?;
        let found = self.locals.iter_mut().rev().find(|l| l.name == crate::ast::ACCUMULATOR);
        let Some(local) = found else { return Err(EvalError::NoSuchOverload) };
        match std::mem::replace(&mut local.slot, Slot::Value(Value::Null)) {
            Slot::Value(value) => Ok(value),
            Slot::Failed(error) => Err(error),
            Slot::Lazy(..) => Err(EvalError::NoSuchOverload),
        }
    }

    fn append(&mut self, list: &'p Node) -> Outcome<'a> {
        let added = self.node(list)?;
        let (Value::List(mut list), Value::List(added)) = (self.take_accumulator()?, added) else {
            return Err(EvalError::NoSuchOverload);
        };
        for item in added.iter() {
            list.push(item?)?;
        }
        self.budget.charge(1)?;
        Ok(Value::List(list))
    }

    fn insert(&mut self, args: &'p [Node]) -> Outcome<'a> {
        let mut values = Vec::with_capacity(args.len());
        for arg in args {
            values.push(self.node(arg)?);
        }
        let accumulator = self.take_accumulator()?;
        let result = crate::library::comprehensions::insert(accumulator, values)?;
        self.budget.charge(1)?;
        Ok(result)
    }
}

/// Returns the error of a call without a matching overload. Functions name themselves and the types; operators do
/// not.
fn no_such_overload(call: &CallNode, args: &[Value<'_>]) -> EvalError {
    if !call.function.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return EvalError::NoSuchOverload;
    }
    let types: Vec<String> = args.iter().map(|a| a.type_of().name().to_owned()).collect();
    EvalError::new(format!("no such overload: {}({})", call.function, types.join(", ")))
}
