//! The planner: prepares a checked tree for evaluation. It folds constants, joins attributes and looks functions up.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ast::{ACCUMULATOR, Expr, Fold, Kind, Literal, operator};
use crate::budget::Budget;
use crate::checker::Checked;
use crate::error::EvalError;
use crate::library::function::Call;
use crate::library::regex::Pattern;
use crate::library::registry::calls;
use crate::value::{Key, Map, Value};

/// One node of the plan.
#[derive(Debug)]
pub enum Node {
    Const(Value<'static>),
    /// A variable or another value, with qualifiers.
    Attr(Box<Attr>),
    /// A presence test: an attribute whose last qualifier is only tested.
    Has(Box<Attr>),
    And(Box<(Node, Node)>),
    Or(Box<(Node, Node)>),
    Call(Box<CallNode>),
    /// Tests whether a value is one of several constants.
    In(Box<(Node, Constants)>),
    /// `a.or(b)`, or `a.orValue(b)` if the flag is true.
    OptionalOr(Box<(Node, Node)>, bool),
    NotStrictlyFalse(Box<Node>),
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Object(Box<ObjectNode>),
    Fold(Box<FoldNode>),
    /// `@result + [x]`, in a comprehension that builds a list.
    Append(Box<Node>),
    /// `cel.@mapInsert(@result, …)`, in a comprehension that builds a map.
    Insert(Vec<Node>),
}

#[derive(Debug)]
pub struct Attr {
    pub root: Root,
    pub qualifiers: Vec<Qualifier>,
}

#[derive(Debug)]
pub enum Root {
    Variable { name: Box<str>, global: bool },
    Operand(Node),
    Conditional(Box<(Node, Attr, Attr)>),
}

#[derive(Debug)]
pub struct Qualifier {
    pub key: QualifierKey,
    pub optional: bool,
    pub test: bool,
}

#[derive(Debug)]
pub enum QualifierKey {
    Const(Value<'static>),
    Attr(Attr),
    Node(Node),
}

pub struct CallNode {
    pub function: Box<str>,
    /// Set if only one is possible.
    pub overload: Option<&'static str>,
    pub calls: &'static [Call],
    pub args: Vec<Node>,
    /// The compiled pattern, if the pattern of the call is constant.
    pub pattern: Option<Pattern>,
}

impl std::fmt::Debug for CallNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Call").field(&self.function).field(&self.args).finish()
    }
}

#[derive(Debug)]
pub struct Constants {
    pub keys: BTreeSet<Key<'static>>,
    /// Constants that cannot be keys, such as doubles.
    pub others: Vec<Value<'static>>,
}

#[derive(Debug)]
pub struct ObjectNode {
    pub name: Arc<str>,
    pub fields: Vec<(Box<str>, Node, bool)>,
}

#[derive(Debug)]
pub struct FoldNode {
    pub range: Node,
    pub variable: Box<str>,
    pub variable2: Box<str>,
    pub accumulator: Box<str>,
    pub init: Node,
    pub condition: Node,
    pub step: Node,
    pub result: Node,
    /// Only binds `init` to a name; it is evaluated on first use.
    pub binds: bool,
}

/// Creates the plan; fails if a constant part can never be evaluated.
pub fn plan(expr: &Expr, checked: &Checked) -> Result<Node, EvalError> {
    Planner { checked }.node(expr)
}

struct Planner<'c> {
    checked: &'c Checked,
}

impl Planner<'_> {
    fn node(&self, expr: &Expr) -> Result<Node, EvalError> {
        Ok(match &expr.kind {
            Kind::Literal(literal) => Node::Const(constant(literal)),
            Kind::Ident(name) => self.ident(expr, name),
            Kind::Select { operand, field, test } => {
                let mut attr = self.attr(operand)?;
                let key = QualifierKey::Const(Value::string(&**field));
                attr.qualifiers.push(Qualifier { key, optional: false, test: *test });
                if *test { Node::Has(Box::new(attr)) } else { Node::Attr(Box::new(attr)) }
            }
            Kind::Call { function, target, args } => self.call(expr, function, target.as_deref(), args)?,
            Kind::List(elements) => {
                let nodes: Result<Vec<_>, EvalError> =
                    elements.iter().map(|e| Ok((self.node(&e.value)?, e.optional))).collect();
                fold_list(nodes?)
            }
            Kind::Map(entries) => {
                let nodes: Result<Vec<_>, EvalError> = entries
                    .iter()
                    .map(|e| Ok((self.node(&e.key)?, self.node(&e.value)?, e.optional)))
                    .collect();
                fold_map(nodes?)?
            }
            Kind::Struct { name, fields } => {
                let fields: Result<Vec<_>, EvalError> =
                    fields.iter().map(|f| Ok((f.name.clone(), self.node(&f.value)?, f.optional))).collect();
                Node::Object(Box::new(ObjectNode { name: (**name).into(), fields: fields? }))
            }
            Kind::Fold(fold) => self.fold(fold)?,
            Kind::Broken => return Err(EvalError::new("broken expression")),
        })
    }

    fn ident(&self, expr: &Expr, name: &str) -> Node {
        if let Some(t) = self.checked.type_name(expr) {
            return Node::Const(Value::Type(t.clone()));
        }
        let (name, global) = match name.strip_prefix('.') {
            Some(name) => (name, true),
            None => (name, false),
        };
        let root = Root::Variable { name: name.into(), global };
        Node::Attr(Box::new(Attr { root, qualifiers: Vec::new() }))
    }

    /// Plans an expression as an attribute, to which qualifiers can be added.
    fn attr(&self, expr: &Expr) -> Result<Attr, EvalError> {
        Ok(match self.node(expr)? {
            Node::Attr(attr) => *attr,
            node => Attr { root: Root::Operand(node), qualifiers: Vec::new() },
        })
    }

    /// Plans a branch of a conditional, where a presence test is an attribute, too.
    fn branch(&self, expr: &Expr) -> Result<Attr, EvalError> {
        Ok(match self.node(expr)? {
            Node::Attr(attr) | Node::Has(attr) => *attr,
            node => Attr { root: Root::Operand(node), qualifiers: Vec::new() },
        })
    }

    fn call(
        &self,
        expr: &Expr,
        function: &str,
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Result<Node, EvalError> {
        match (function, target, args) {
            (operator::AND, None, [a, b]) => {
                return Ok(Node::And(Box::new((self.node(a)?, self.node(b)?))));
            }
            (operator::OR, None, [a, b]) => return Ok(Node::Or(Box::new((self.node(a)?, self.node(b)?)))),
            (operator::CONDITIONAL, None, [c, yes, no]) => {
                let parts = (self.node(c)?, self.branch(yes)?, self.branch(no)?);
                let root = Root::Conditional(Box::new(parts));
                return Ok(Node::Attr(Box::new(Attr { root, qualifiers: Vec::new() })));
            }
            (operator::INDEX | operator::OPT_INDEX | operator::OPT_SELECT, None, [a, b]) => {
                let mut attr = self.attr(a)?;
                let key = match self.node(b)? {
                    Node::Const(value) => QualifierKey::Const(value),
                    Node::Attr(index) => QualifierKey::Attr(*index),
                    node => QualifierKey::Node(node),
                };
                let optional = function != operator::INDEX;
                attr.qualifiers.push(Qualifier { key, optional, test: false });
                return Ok(Node::Attr(Box::new(attr)));
            }
            (operator::NOT_STRICTLY_FALSE, None, [a]) => {
                return Ok(Node::NotStrictlyFalse(Box::new(self.node(a)?)));
            }
            ("or" | "orValue", Some(a), [b]) => {
                let nodes = Box::new((self.node(a)?, self.node(b)?));
                return Ok(Node::OptionalOr(nodes, function == "orValue"));
            }
            _ => {}
        }
        let nodes: Result<Vec<Node>, EvalError> =
            target.into_iter().chain(args).map(|a| self.node(a)).collect();
        self.plain_call(expr, function, nodes?)
    }

    fn plain_call(&self, expr: &Expr, function: &str, mut args: Vec<Node>) -> Result<Node, EvalError> {
        let overload = match self.checked.overloads(expr) {
            [one] => Some(*one),
            _ => None,
        };
        if overload == Some("in_list") && args.len() == 2 {
            let (list, value) = (args.pop(), args.pop());
            match (value, list) {
                (Some(value), Some(Node::Const(list))) => return membership(value, list),
                (Some(value), Some(list)) => args.extend([value, list]),
                _ => return Err(EvalError::NoSuchOverload),
            }
        }
        let calls = calls(function);
        if is_conversion(function) && matches!(args.as_slice(), [Node::Const(_)]) {
            let constants: Vec<Value<'static>> = args
                .iter()
                .filter_map(|a| if let Node::Const(v) = a { Some(v.clone()) } else { None })
                .collect();
            return Ok(Node::Const(invoke(calls, &constants, &mut Budget::default())?));
        }
        let pattern = match (function, args.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Const(Value::String(p)))) => Some(Pattern::new(p)?),
            _ => None,
        };
        Ok(Node::Call(Box::new(CallNode { function: function.into(), overload, calls, args, pattern })))
    }

    fn fold(&self, fold: &Fold) -> Result<Node, EvalError> {
        let range = self.node(&fold.range)?;
        let condition = self.node(&fold.condition)?;
        let empty = matches!(&fold.range.kind, Kind::List(e) if e.is_empty());
        let binds = empty && &*fold.accumulator != ACCUMULATOR;
        Ok(Node::Fold(Box::new(FoldNode {
            range,
            variable: fold.variable.clone(),
            variable2: fold.variable2.clone(),
            accumulator: fold.accumulator.clone(),
            init: self.node(&fold.init)?,
            condition,
            step: self.step(fold)?,
            result: self.node(&fold.result)?,
            binds,
        })))
    }

    /// Plans the step; a step that only adds to the accumulator changes it in place.
    fn step(&self, fold: &Fold) -> Result<Node, EvalError> {
        let Kind::Call { function, args, .. } = &fold.step.kind else { return self.node(&fold.step) };
        match (&**function, args.as_slice()) {
            (operator::CONDITIONAL, [filter, grow, same]) if is_growth(grow) => {
                let grow = Attr { root: Root::Operand(self.growth(grow)?), qualifiers: Vec::new() };
                let root = Root::Conditional(Box::new((self.node(filter)?, grow, self.branch(same)?)));
                Ok(Node::Attr(Box::new(Attr { root, qualifiers: Vec::new() })))
            }
            _ if is_growth(&fold.step) => self.growth(&fold.step),
            _ => self.node(&fold.step),
        }
    }

    fn growth(&self, step: &Expr) -> Result<Node, EvalError> {
        let Kind::Call { function, args, .. } = &step.kind else { return self.node(step) };
        match args.as_slice() {
            [_, list] if &**function == operator::ADD => Ok(Node::Append(Box::new(self.node(list)?))),
            [_, rest @ ..] => {
                Ok(Node::Insert(rest.iter().map(|a| self.node(a)).collect::<Result<Vec<_>, _>>()?))
            }
            [] => self.node(step),
        }
    }
}

/// Returns whether the step is `@result + […]` or `cel.@mapInsert(@result, …)`.
fn is_growth(step: &Expr) -> bool {
    let Kind::Call { function, args, .. } = &step.kind else { return false };
    let accumulates = matches!(args.first().map(|a| &a.kind), Some(Kind::Ident(n)) if &**n == ACCUMULATOR);
    let list = matches!(args.get(1).map(|a| &a.kind), Some(Kind::List(_)));
    accumulates && ((&**function == operator::ADD && list) || &**function == "cel.@mapInsert")
}

fn is_conversion(function: &str) -> bool {
    matches!(
        function,
        "bool" | "bytes" | "double" | "duration" | "dyn" | "int" | "string" | "timestamp" | "type" | "uint"
    )
}

/// Calls the first implementation that accepts the values.
pub fn invoke<'a>(
    calls: &[Call],
    args: &[Value<'a>],
    budget: &mut Budget<'_>,
) -> Result<Value<'a>, EvalError> {
    for call in calls {
        match call(args, budget) {
            Err(EvalError::NoSuchOverload) => {}
            other => return other,
        }
    }
    Err(EvalError::NoSuchOverload)
}

fn constant(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(b) => Value::Bool(*b),
        Literal::Int(i) => Value::Int(*i),
        Literal::Uint(u) => Value::Uint(*u),
        Literal::Double(d) => Value::Double(*d),
        Literal::String(s) => Value::string(&**s),
        Literal::Bytes(b) => Value::Bytes((**b).into()),
    }
}

fn fold_list(nodes: Vec<(Node, bool)>) -> Node {
    let all = nodes.iter().all(|(n, optional)| matches!(n, Node::Const(_)) && !optional);
    if !all {
        return Node::List(nodes);
    }
    let values = nodes.into_iter().filter_map(|(n, _)| if let Node::Const(v) = n { Some(v) } else { None });
    Node::Const(Value::list(values.collect()))
}

fn fold_map(nodes: Vec<(Node, Node, bool)>) -> Result<Node, EvalError> {
    let constant = |n: &(Node, Node, bool)| matches!((&n.0, &n.1), (Node::Const(_), Node::Const(_))) && !n.2;
    if !nodes.iter().all(constant) {
        return Ok(Node::Map(nodes));
    }
    let mut entries = std::collections::BTreeMap::new();
    for node in nodes {
        if let (Node::Const(key), Node::Const(value), _) = node {
            let key = Key::of(&key).ok_or_else(|| EvalError::new("unsupported key type"))?;
            entries.insert(key, value);
        }
    }
    Ok(Node::Const(Value::Map(Map::new(entries))))
}

fn membership(value: Node, list: Value<'static>) -> Result<Node, EvalError> {
    let Value::List(list) = list else { return Err(EvalError::NoSuchOverload) };
    if list.is_empty() {
        return Ok(Node::Const(Value::Bool(false)));
    }
    let (mut keys, mut others) = (BTreeSet::new(), Vec::new());
    for item in list.to_vec()? {
        match Key::lookup(&item) {
            Some(key) => {
                keys.insert(key);
            }
            None => others.push(item),
        }
    }
    Ok(Node::In(Box::new((value, Constants { keys, others }))))
}
