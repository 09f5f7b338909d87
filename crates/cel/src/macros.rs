//! Macros: calls that the parser expands to comprehensions.

use crate::ast::{ACCUMULATOR, Element, Expr, Fold, Kind, Literal, operator};
use crate::parser::Parser;

/// The macros that not every expression may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Macros {
    /// `cel.bind(name, value, expression)`.
    pub bind: bool,
}

/// The variable of comprehensions that only bind a name.
const UNUSED: &str = "#unused";
const SORT_INPUT: &str = "@__sortBy_input__";

/// The position and the message of an error.
type Failure = (u32, String);

/// Returns the expansion of a macro, or the call if it is not a macro.
pub fn expand(p: &mut Parser<'_>, at: usize, function: &str, target: Option<Expr>, args: Vec<Expr>) -> Expr {
    let plain = |p: &mut Parser<'_>, target: Option<Expr>, args| {
        let target = target.map(Box::new);
        p.node(at, Kind::Call { function: function.into(), target, args })
    };
    let result = match (target, function, args.len()) {
        (None, "has", 1) => has(p, at, args),
        (Some(t), "all" | "exists" | "exists_one", 2 | 3) | (Some(t), "existsOne", 3) => {
            quantifier(p, at, function, t, args)
        }
        (Some(t), "map", 2 | 3) => map(p, at, t, args),
        (Some(t), "filter", 2) => filter(p, at, t, args),
        (Some(t), "transformList" | "transformMap" | "transformMapEntry", 3 | 4) => {
            transform(p, at, function, t, args)
        }
        (Some(t), "optMap" | "optFlatMap", 2) => opt_map(p, at, function, t, args),
        (Some(t), "sortBy", 2) => sort_by(p, at, t, args),
        (Some(t), "bind", 3) if p.macros.bind && matches!(&t.kind, Kind::Ident(i) if &**i == "cel") => {
            bind(p, at, args)
        }
        (target, _, _) => return plain(p, target, args),
    };
    result.unwrap_or_else(|(at, message)| p.broken(at as usize, message))
}

fn has(p: &mut Parser<'_>, at: usize, args: Vec<Expr>) -> Result<Expr, Failure> {
    let Some(arg) = args.into_iter().next() else { return Err((at as u32, String::new())) };
    match arg.kind {
        Kind::Select { operand, field, .. } => Ok(p.node(at, Kind::Select { operand, field, test: true })),
        _ => Err((arg.at, "invalid argument to has() macro".to_owned())),
    }
}

/// Returns the name of an iteration variable.
fn variable(arg: &Expr, why: &str) -> Result<Box<str>, Failure> {
    match &arg.kind {
        Kind::Ident(name) if &**name == ACCUMULATOR || &**name == "__result__" => {
            Err((arg.at, "iteration variable overwrites accumulator variable".to_owned()))
        }
        Kind::Ident(name) => Ok(name.clone()),
        _ => Err((arg.at, why.to_owned())),
    }
}

fn variables(args: &[Expr], two: bool) -> Result<(Box<str>, Box<str>), Failure> {
    const SIMPLE: &str = "argument must be a simple name";
    let first = variable(&args[0], SIMPLE)?;
    if !two {
        return Ok((first, "".into()));
    }
    let second = variable(&args[1], SIMPLE)?;
    if first == second {
        return Err((args[1].at, format!("duplicate variable name: {first}")));
    }
    Ok((first, second))
}

fn accumulator(p: &mut Parser<'_>, at: usize) -> Expr {
    p.ident(at, ACCUMULATOR)
}

fn list(p: &mut Parser<'_>, at: usize, elements: Vec<Expr>) -> Expr {
    let elements = elements.into_iter().map(|value| Element { value, optional: false }).collect();
    p.node(at, Kind::List(elements))
}

fn quantifier(
    p: &mut Parser<'_>,
    at: usize,
    function: &str,
    range: Expr,
    mut args: Vec<Expr>,
) -> Result<Expr, Failure> {
    let (variable, variable2) = variables(&args, args.len() == 3)?;
    let predicate = args.remove(args.len() - 1);
    let accu = accumulator(p, at);
    let (init, condition, step, result) = match function {
        "all" => {
            let init = p.literal(at, Literal::Bool(true));
            let condition = p.call(at, operator::NOT_STRICTLY_FALSE, vec![accu]);
            let accu = accumulator(p, at);
            let step = p.call(at, operator::AND, vec![accu, predicate]);
            (init, condition, step, accumulator(p, at))
        }
        "exists" => {
            let init = p.literal(at, Literal::Bool(false));
            let not = p.call(at, operator::NOT, vec![accu]);
            let condition = p.call(at, operator::NOT_STRICTLY_FALSE, vec![not]);
            let accu = accumulator(p, at);
            let step = p.call(at, operator::OR, vec![accu, predicate]);
            (init, condition, step, accumulator(p, at))
        }
        _ => {
            let init = p.literal(at, Literal::Int(0));
            let condition = p.literal(at, Literal::Bool(true));
            let one = p.literal(at, Literal::Int(1));
            let more = p.call(at, operator::ADD, vec![accu, one]);
            let same = accumulator(p, at);
            let step = p.call(at, operator::CONDITIONAL, vec![predicate, more, same]);
            let (accu, one) = (accumulator(p, at), p.literal(at, Literal::Int(1)));
            (init, condition, step, p.call(at, operator::EQUALS, vec![accu, one]))
        }
    };
    let accumulator = ACCUMULATOR.into();
    Ok(p.fold(at, Fold { range, variable, variable2, accumulator, init, condition, step, result }))
}

/// Returns a comprehension over the whole range; `filter` decides whether an element's step runs.
fn gather(
    p: &mut Parser<'_>,
    at: usize,
    range: Expr,
    names: (Box<str>, Box<str>),
    init: Expr,
    filter: Option<Expr>,
    step: Expr,
) -> Expr {
    let condition = p.literal(at, Literal::Bool(true));
    let step = match filter {
        None => step,
        Some(filter) => {
            let same = accumulator(p, at);
            p.call(at, operator::CONDITIONAL, vec![filter, step, same])
        }
    };
    let result = accumulator(p, at);
    let (variable, variable2) = names;
    let accumulator = ACCUMULATOR.into();
    p.fold(at, Fold { range, variable, variable2, accumulator, init, condition, step, result })
}

/// Returns `@result + [value]`.
fn append(p: &mut Parser<'_>, at: usize, value: Expr) -> Expr {
    let accu = accumulator(p, at);
    let one = list(p, at, vec![value]);
    p.call(at, operator::ADD, vec![accu, one])
}

fn map(p: &mut Parser<'_>, at: usize, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Failure> {
    let name = variable(&args[0], "argument is not an identifier")?;
    let value = args.remove(args.len() - 1);
    let filter = if args.len() == 2 { args.pop() } else { None };
    let init = list(p, at, Vec::new());
    let step = append(p, at, value);
    Ok(gather(p, at, range, (name, "".into()), init, filter, step))
}

fn filter(p: &mut Parser<'_>, at: usize, range: Expr, mut args: Vec<Expr>) -> Result<Expr, Failure> {
    let name = variable(&args[0], "argument is not an identifier")?;
    let filter = args.pop();
    let init = list(p, at, Vec::new());
    let step = append(p, at, args.remove(0));
    Ok(gather(p, at, range, (name, "".into()), init, filter, step))
}

fn transform(
    p: &mut Parser<'_>,
    at: usize,
    function: &str,
    range: Expr,
    mut args: Vec<Expr>,
) -> Result<Expr, Failure> {
    let names = variables(&args, true)?;
    let value = args.remove(args.len() - 1);
    let filter = if args.len() == 3 { args.pop() } else { None };
    let (init, step) = match function {
        "transformList" => (list(p, at, Vec::new()), append(p, at, value)),
        _ => {
            let init = p.node(at, Kind::Map(Vec::new()));
            let mut inserted = vec![accumulator(p, at)];
            if function == "transformMap" {
                inserted.push(p.ident(at, &names.0));
            }
            inserted.push(value);
            (init, p.call(at, "cel.@mapInsert", inserted))
        }
    };
    Ok(gather(p, at, range, names, init, filter, step))
}

/// Returns a comprehension over an empty range that binds `value` to a name within `result`.
fn bound(p: &mut Parser<'_>, at: usize, name: &str, value: Expr, result: Expr) -> Expr {
    let range = list(p, at, Vec::new());
    let condition = p.literal(at, Literal::Bool(false));
    let step = p.ident(at, name);
    let (variable, variable2, accumulator) = (UNUSED.into(), "".into(), name.into());
    p.fold(at, Fold { range, variable, variable2, accumulator, init: value, condition, step, result })
}

fn bind(p: &mut Parser<'_>, at: usize, args: Vec<Expr>) -> Result<Expr, Failure> {
    let [name, value, result] = <[Expr; 3]>::try_from(args).map_err(|_| (at as u32, String::new()))?;
    let Kind::Ident(ident) = &name.kind else {
        return Err((name.at, "cel.bind() variable names must be simple identifiers".to_owned()));
    };
    Ok(bound(p, at, &ident.clone(), value, result))
}

/// Expands `a.optMap(x, f(x))` to `a.hasValue() ? optional.of(bind x = a.value() in f(x)) : optional.none()`.
fn opt_map(
    p: &mut Parser<'_>,
    at: usize,
    function: &str,
    target: Expr,
    args: Vec<Expr>,
) -> Result<Expr, Failure> {
    let [name, value] = <[Expr; 2]>::try_from(args).map_err(|_| (at as u32, String::new()))?;
    let Kind::Ident(ident) = &name.kind else {
        return Err((name.at, format!("{function}() variable name must be a simple identifier")));
    };
    let member = |p: &mut Parser<'_>, function: &str, target: Expr| {
        let target = Some(Box::new(target));
        p.node(at, Kind::Call { function: function.into(), target, args: Vec::new() })
    };
    let copy = p.copy(&target);
    let has = member(p, "hasValue", target);
    let inner = member(p, "value", copy);
    let bound = bound(p, at, &ident.clone(), inner, value);
    let some = if function == "optMap" { p.call(at, "optional.of", vec![bound]) } else { bound };
    let none = p.call(at, "optional.none", Vec::new());
    Ok(p.call(at, operator::CONDITIONAL, vec![has, some, none]))
}

/// Expands `l.sortBy(x, key)`: binds `l`, and sorts it by the list of its keys.
fn sort_by(p: &mut Parser<'_>, at: usize, target: Expr, args: Vec<Expr>) -> Result<Expr, Failure> {
    let fits = matches!(
        target.kind,
        Kind::List(_) | Kind::Select { .. } | Kind::Ident(_) | Kind::Fold(_) | Kind::Call { .. }
    );
    if !fits {
        let why =
            "sortBy can only be applied to a list, identifier, comprehension, call or select expression";
        return Err((target.at, why.to_owned()));
    }
    let input = p.ident(at, SORT_INPUT);
    let keys = map(p, at, input, args)?;
    let sorted = Some(Box::new(p.ident(at, SORT_INPUT)));
    let call =
        p.node(at, Kind::Call { function: "@sortByAssociatedKeys".into(), target: sorted, args: vec![keys] });
    Ok(bound(p, at, SORT_INPUT, target, call))
}
