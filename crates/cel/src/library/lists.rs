//! List functions: sums, minimum and maximum, indexes, slices, order.

use std::cmp::Ordering;

use super::function::Function;
use super::operators::add;
use crate::budget::Budget;
use crate::error::EvalError;
use crate::ops;
use crate::value::{List, Value};

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "isSorted",
        overloads: &[
            ("list_int_is_sorted_bool", "list<int>.()bool"),
            ("list_uint_is_sorted_bool", "list<uint>.()bool"),
            ("list_double_is_sorted_bool", "list<double>.()bool"),
            ("list_bool_is_sorted_bool", "list<bool>.()bool"),
            ("list_duration_is_sorted_bool", "list<duration>.()bool"),
            ("list_timestamp_is_sorted_bool", "list<timestamp>.()bool"),
            ("list_string_is_sorted_bool", "list<string>.()bool"),
            ("list_bytes_is_sorted_bool", "list<bytes>.()bool"),
        ],
        call: is_sorted,
    },
    Function {
        name: "sum",
        overloads: &[
            ("list_int_sum_int", "list<int>.()int"),
            ("list_uint_sum_uint", "list<uint>.()uint"),
            ("list_double_sum_double", "list<double>.()double"),
            ("list_duration_sum_duration", "list<duration>.()duration"),
        ],
        call: sum,
    },
    Function {
        name: "max",
        overloads: &[
            ("list_int_max_int", "list<int>.()int"),
            ("list_uint_max_uint", "list<uint>.()uint"),
            ("list_double_max_double", "list<double>.()double"),
            ("list_bool_max_bool", "list<bool>.()bool"),
            ("list_duration_max_duration", "list<duration>.()duration"),
            ("list_timestamp_max_timestamp", "list<timestamp>.()timestamp"),
            ("list_string_max_string", "list<string>.()string"),
            ("list_bytes_max_bytes", "list<bytes>.()bytes"),
        ],
        call: |args, _| extreme(args, "max", Ordering::Less),
    },
    Function {
        name: "min",
        overloads: &[
            ("list_int_min_int", "list<int>.()int"),
            ("list_uint_min_uint", "list<uint>.()uint"),
            ("list_double_min_double", "list<double>.()double"),
            ("list_bool_min_bool", "list<bool>.()bool"),
            ("list_duration_min_duration", "list<duration>.()duration"),
            ("list_timestamp_min_timestamp", "list<timestamp>.()timestamp"),
            ("list_string_min_string", "list<string>.()string"),
            ("list_bytes_min_bytes", "list<bytes>.()bytes"),
        ],
        call: |args, _| extreme(args, "min", Ordering::Greater),
    },
    Function {
        name: "indexOf",
        overloads: &[("list_a_index_of_int", "list<A>.(A)int")],
        call: |args, budget| index_of(args, budget, false),
    },
    Function {
        name: "lastIndexOf",
        overloads: &[("list_a_last_index_of_int", "list<A>.(A)int")],
        call: |args, budget| index_of(args, budget, true),
    },
    Function { name: "includes", overloads: &[("list_includes_dyn_dyn", "dyn.(dyn)bool")], call: includes },
    Function { name: "slice", overloads: &[("list_slice", "list<T>.(int,int)list<T>")], call: slice },
    Function {
        name: "flatten",
        overloads: &[
            ("list_flatten", "list<list<T>>.()list<T>"),
            ("list_flatten_int", "list<dyn>.(int)list<dyn>"),
        ],
        call: flatten,
    },
    Function {
        name: "sort",
        overloads: &[
            ("list_int_sort", "list<int>.()list<int>"),
            ("list_uint_sort", "list<uint>.()list<uint>"),
            ("list_double_sort", "list<double>.()list<double>"),
            ("list_bool_sort", "list<bool>.()list<bool>"),
            ("list_google.protobuf.Duration_sort", "list<duration>.()list<duration>"),
            ("list_google.protobuf.Timestamp_sort", "list<timestamp>.()list<timestamp>"),
            ("list_string_sort", "list<string>.()list<string>"),
            ("list_bytes_sort", "list<bytes>.()list<bytes>"),
        ],
        call: sort,
    },
    Function {
        name: "@sortByAssociatedKeys",
        overloads: &[
            ("list_int_sortByAssociatedKeys", "list<T>.(list<int>)list<T>"),
            ("list_uint_sortByAssociatedKeys", "list<T>.(list<uint>)list<T>"),
            ("list_double_sortByAssociatedKeys", "list<T>.(list<double>)list<T>"),
            ("list_bool_sortByAssociatedKeys", "list<T>.(list<bool>)list<T>"),
            ("list_google.protobuf.Duration_sortByAssociatedKeys", "list<T>.(list<duration>)list<T>"),
            ("list_google.protobuf.Timestamp_sortByAssociatedKeys", "list<T>.(list<timestamp>)list<T>"),
            ("list_string_sortByAssociatedKeys", "list<T>.(list<string>)list<T>"),
            ("list_bytes_sortByAssociatedKeys", "list<T>.(list<bytes>)list<T>"),
        ],
        call: sort_by,
    },
    Function { name: "lists.range", overloads: &[("lists_range", "(int)list<int>")], call: range },
    Function { name: "reverse", overloads: &[("list_reverse", "list<T>.()list<T>")], call: reverse },
    Function { name: "distinct", overloads: &[("list_distinct", "list<T>.()list<T>")], call: distinct },
];

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// The longest list that `lists.range` returns.
const LONGEST_RANGE: i64 = 1_000_000;

fn list<'v, 'a>(args: &'v [Value<'a>]) -> Result<&'v List<'a>, EvalError> {
    if let Some(Value::List(list)) = args.first() { Ok(list) } else { Err(EvalError::NoSuchOverload) }
}

fn is_sorted<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let list = list(args)?;
    budget.work(list.len())?;
    let mut before: Option<Value<'a>> = None;
    for item in list.iter() {
        let item = item?;
        if let Some(before) = &before
            && ops::compare(before, &item)?.is_gt()
        {
            return Ok(Value::Bool(false));
        }
        before = Some(item);
    }
    Ok(Value::Bool(true))
}

fn sum<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let list = list(args)?;
    budget.work(list.len())?;
    let mut total: Option<Value<'a>> = None;
    for item in list.iter() {
        total = Some(match total {
            None => item?,
            Some(total) => add(&[total, item?], budget)?,
        });
    }
    Ok(total.unwrap_or(Value::Int(0)))
}

fn extreme<'a>(args: &[Value<'a>], name: &str, worse: Ordering) -> Outcome<'a> {
    let mut best: Option<Value<'a>> = None;
    for item in list(args)?.iter() {
        let item = item?;
        best = Some(match best {
            None => item,
            Some(best) if ops::compare(&best, &item)? == worse => item,
            Some(best) => best,
        });
    }
    best.ok_or_else(|| EvalError::new(format!("{name} called on empty list")))
}

fn index_of<'a>(args: &[Value<'a>], budget: &mut Budget<'_>, last: bool) -> Outcome<'a> {
    let (list, [_, wanted]) = (list(args)?, args) else { return Err(EvalError::NoSuchOverload) };
    let mut found = -1;
    for (at, item) in list.iter().enumerate() {
        if ops::equal(&item?, wanted, budget)? {
            found = at as i64;
            if !last {
                break;
            }
        }
    }
    Ok(Value::Int(found))
}

fn includes<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let [target, wanted] = args else { return Err(EvalError::NoSuchOverload) };
    Ok(Value::Bool(match target {
        Value::List(_) => ops::contains(wanted, target, budget)?,
        _ => ops::equal(target, wanted, budget)?,
    }))
}

fn slice<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return Err(EvalError::NoSuchOverload);
    };
    let problem = if *start < 0 || *end < 0 {
        Some("negative indexes not supported".to_owned())
    } else if start > end {
        Some("start index must be less than or equal to end index".to_owned())
    } else if (list.len() as i64) < *end {
        Some(format!("list is length {}", list.len()))
    } else {
        None
    };
    if let Some(problem) = problem {
        return Err(EvalError::new(format!("cannot slice({start}, {end}), {problem}")));
    }
    budget.work(list.len())?;
    let items: Result<Vec<_>, _> = list.iter().skip(*start as usize).take((end - start) as usize).collect();
    Ok(Value::list(items?))
}

fn flatten<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let (list, depth) = match args {
        [Value::List(list)] => (list, 1),
        [Value::List(list), Value::Int(depth)] => (list, *depth),
        _ => return Err(EvalError::NoSuchOverload),
    };
    if depth < 0 {
        return Err(EvalError::new("level must be non-negative"));
    }
    let mut out = Vec::new();
    flatten_into(list, depth, &mut out, budget)?;
    Ok(Value::list(out))
}

fn flatten_into<'a>(
    list: &List<'a>,
    depth: i64,
    out: &mut Vec<Value<'a>>,
    budget: &mut Budget<'_>,
) -> Result<(), EvalError> {
    budget.work(list.len() + 1)?;
    for item in list.iter() {
        match item? {
            Value::List(inner) if depth > 0 => flatten_into(&inner, depth - 1, out, budget)?,
            other => out.push(other),
        }
    }
    Ok(())
}

fn sort<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let items = list(args)?.to_vec()?;
    sorted(items.iter().cloned().zip(items.iter().cloned()).collect(), budget)
}

fn sort_by<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let [Value::List(list), Value::List(keys)] = args else { return Err(EvalError::NoSuchOverload) };
    if list.len() != keys.len() {
        return Err(EvalError::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} \
             elements respectively",
            list.len(),
            keys.len()
        )));
    }
    sorted(keys.to_vec()?.into_iter().zip(list.to_vec()?).collect(), budget)
}

fn sorted<'a>(mut pairs: Vec<(Value<'a>, Value<'a>)>, budget: &mut Budget<'_>) -> Outcome<'a> {
    budget.work(pairs.len().saturating_mul(20))?;
    if let Some((first, _)) = pairs.first() {
        if ops::compare(first, first).is_err() {
            return Err(EvalError::new("list elements must be comparable"));
        }
        let t = first.type_of();
        if pairs.iter().any(|(key, _)| key.type_of() != t) {
            return Err(EvalError::new("list elements must have the same type"));
        }
    }
    // NaN needs a position among doubles, so that this is a total order.
    pairs.sort_by(|a, b| match (&a.0, &b.0) {
        (Value::Double(a), Value::Double(b)) => a.total_cmp(b),
        (a, b) => ops::compare(a, b).unwrap_or(Ordering::Equal),
    });
    Ok(Value::list(pairs.into_iter().map(|(_, item)| item).collect()))
}

fn range<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let [Value::Int(n)] = args else { return Err(EvalError::NoSuchOverload) };
    if *n < 0 {
        return Err(EvalError::new(format!("lists.range: size must be non-negative, got {n}")));
    }
    if *n > LONGEST_RANGE {
        return Err(EvalError::new(format!(
            "lists.range: size {n} exceeds maximum allowed ({LONGEST_RANGE})"
        )));
    }
    budget.work(*n as usize)?;
    Ok(Value::list((0..*n).map(Value::Int).collect()))
}

fn reverse<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let mut items = list(args)?.to_vec()?;
    budget.work(items.len())?;
    items.reverse();
    Ok(Value::list(items))
}

fn distinct<'a>(args: &[Value<'a>], budget: &mut Budget<'_>) -> Outcome<'a> {
    let mut out: Vec<Value<'a>> = Vec::new();
    'items: for item in list(args)?.iter() {
        let item = item?;
        for seen in &out {
            if ops::equal(seen, &item, budget)? {
                continue 'items;
            }
        }
        out.push(item);
    }
    Ok(Value::list(out))
}
