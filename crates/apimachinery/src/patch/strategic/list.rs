//! Lists in strategic merge patches: merging by key, deletion, and the order of the result.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{
    DIRECTIVE, FieldRule, Object, Result, StrategicError, clean, go_list, go_map, merge_object,
    strip_members, unknown_directive,
};

/// What identifies an element of a merged list: the element itself, or the value of its merge key.
struct Identity(&'static str);

impl Identity {
    fn of<'a>(&self, element: &'a Value) -> Option<&'a Value> {
        if self.0.is_empty() { Some(element) } else { element.get(self.0) }
    }

    /// Returns the first position of each identity.
    fn positions(&self, list: &[Value]) -> HashMap<String, usize> {
        let mut positions = HashMap::with_capacity(list.len());
        for (i, element) in list.iter().enumerate() {
            if let Some(identity) = self.of(element) {
                positions.entry(identity.to_string()).or_insert(i);
            }
        }
        positions
    }

    fn position(&self, positions: &HashMap<String, usize>, element: &Value) -> Option<usize> {
        positions.get(&self.of(element)?.to_string()).copied()
    }

    /// Requires that every element has an identity.
    fn check(&self, list: &[Value]) -> Result<()> {
        for element in list {
            match element {
                _ if self.of(element).is_some() => {}
                Value::Object(map) => return Err(no_merge_key(map, self.0)),
                other => return Err(bad_type("map[string]interface {}", other)),
            }
        }
        Ok(())
    }
}

fn no_merge_key(map: &Object, key: &str) -> StrategicError {
    StrategicError::Mismatch(format!("map: {} does not contain declared merge key: {key}", go_map(map)))
}

fn bad_type(expected: &str, found: &Value) -> StrategicError {
    StrategicError::Mismatch(format!("expected a {expected}, but received a {}", go_type(found)))
}

fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// Returns whether the elements are objects. All must have the same type, and none may be a list.
fn holds_objects(original: &[Value], patch: &[Value]) -> Result<bool> {
    let mut all = original.iter().chain(patch);
    let Some(first) = all.next() else { return Ok(false) };
    if first.is_array() {
        return Err(StrategicError::ListOfLists);
    }
    if all.any(|v| go_type(v) != go_type(first)) {
        let lists = format!("[{} {}]", go_list(original), go_list(patch));
        return Err(StrategicError::Mismatch(format!("list element types are not identical: {lists}")));
    }
    Ok(first.is_object())
}

/// Removes scalars (`$deleteFromPrimitiveList`).
pub(super) fn delete(current: &mut Vec<Value>, gone: &[Value]) -> Result<()> {
    if !holds_objects(current, gone)? {
        let gone: HashSet<String> = gone.iter().map(Value::to_string).collect();
        current.retain(|v| !gone.contains(&v.to_string()));
    }
    Ok(())
}

/// Merges a patch list into a list whose strategy is `merge`.
pub(super) fn merge(current: &mut Vec<Value>, patch: Vec<Value>, rule: FieldRule) -> Result<()> {
    if current.is_empty() && patch.is_empty() {
        return Ok(());
    }
    let objects = holds_objects(current, &patch)?;
    let identity = Identity(if objects { rule.merge_key } else { "" });
    let (server, patch) = if objects {
        if rule.merge_key.is_empty() {
            let message = "cannot merge lists without merge key for struct";
            return Err(StrategicError::Mismatch(message.to_owned()));
        }
        directives(std::mem::take(current), patch, &identity)?
    } else {
        (std::mem::take(current), patch)
    };
    let server_order = identity.positions(&server);
    let patch_order = identity.positions(&patch);
    let merged = if objects {
        merge_elements(server, patch, &identity, rule)?
    } else {
        let mut seen = HashSet::new();
        server.into_iter().chain(patch).filter(|v| seen.insert(v.to_string())).collect()
    };
    identity.check(&merged)?;
    *current = arrange(merged, &patch_order, &server_order, &identity);
    Ok(())
}

/// Applies the elements that are directives; returns the resulting list and the other elements of the patch.
fn directives(
    mut current: Vec<Value>,
    patch: Vec<Value>,
    identity: &Identity,
) -> Result<(Vec<Value>, Vec<Value>)> {
    let (mut kept, mut gone, mut replace) = (Vec::new(), HashSet::new(), false);
    for element in patch {
        let Value::Object(map) = &element else { continue };
        let Some(directive) = map.get(DIRECTIVE) else {
            kept.push(element);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let own = map.get(identity.0).ok_or_else(|| no_merge_key(map, identity.0))?;
                gone.insert(own.to_string());
            }
            Some("replace") => replace = true,
            Some("merge") => {
                let message = "merging lists cannot yet be specified in the patch";
                return Err(StrategicError::Mismatch(message.to_owned()));
            }
            _ => return Err(unknown_directive(directive, map)),
        }
    }
    if replace {
        kept.iter_mut().filter_map(Value::as_object_mut).for_each(strip_members);
        return Ok((kept, Vec::new()));
    }
    if !gone.is_empty() {
        current.retain(|v| identity.of(v).is_none_or(|own| !gone.contains(&own.to_string())));
    }
    Ok((current, kept))
}

/// Merges each element of the patch into the element with the same key, or adds it.
fn merge_elements(
    mut merged: Vec<Value>,
    patch: Vec<Value>,
    identity: &Identity,
    rule: FieldRule,
) -> Result<Vec<Value>> {
    let ty = match rule.ty {
        Some(crate::schema::Type::List(list)) => Some(list.element),
        _ => None,
    };
    let mut positions = identity.positions(&merged);
    for element in patch {
        let Value::Object(mut map) = element else { continue };
        let Some(own) = map.get(identity.0) else { return Err(no_merge_key(&map, identity.0)) };
        let own = own.to_string();
        match positions.get(&own).and_then(|i| merged.get_mut(*i)) {
            Some(Value::Object(current)) => merge_object(current, map, ty)?,
            _ => {
                strip_members(&mut map);
                positions.insert(own, merged.len());
                merged.push(Value::Object(map));
            }
        }
    }
    Ok(merged)
}

/// Orders a merged list: elements of the patch keep the order of the patch, all others that of the server, and the
/// server's order decides between the two groups as far as it is known.
fn arrange(
    merged: Vec<Value>,
    patch_order: &HashMap<String, usize>,
    server_order: &HashMap<String, usize>,
    identity: &Identity,
) -> Vec<Value> {
    let mut patched = Vec::new();
    let mut server_only = Vec::new();
    for element in merged {
        let at = identity.position(server_order, &element);
        match identity.position(patch_order, &element) {
            Some(i) => patched.push((i, at, element)),
            None => server_only.push((at, element)),
        }
    }
    patched.sort_by_key(|(i, _, _)| *i);
    server_only.sort_by_key(|(at, _)| *at);
    let mut result = Vec::with_capacity(patched.len() + server_only.len());
    let mut server_only = server_only.into_iter().peekable();
    for (_, at, element) in patched {
        let before = |other: &(Option<usize>, Value)| matches!((other.0, at), (Some(theirs), Some(ours)) if theirs < ours);
        while let Some((_, earlier)) = server_only.next_if(before) {
            result.push(earlier);
        }
        result.push(element);
    }
    result.extend(server_only.map(|(_, element)| element));
    result
}

/// Merges a list whose order the patch specifies (`$setElementOrder/FIELD`).
pub(super) fn merge_ordered(
    original: &mut Object,
    field: &str,
    changes: Option<Value>,
    order: Value,
    rule: FieldRule,
) -> Result<()> {
    let list_expected = |v: &Value| bad_type("[]interface {}", v);
    let Value::Array(order) = order else { return Err(list_expected(&order)) };
    let found = original.remove(field);
    let server = match &found {
        Some(Value::Array(list)) => list.as_slice(),
        None => &[],
        Some(other) => return Err(list_expected(other)),
    };
    let identity = Identity(rule.merge_key);
    let server_order = server_order(server, changes.as_ref(), &identity);
    let mut merged = match (found, changes) {
        (None, None) => return Ok(()),
        (Some(Value::Array(list)), None) => list,
        (found, Some(Value::Array(changes))) => {
            check_order(&changes, &order, &identity)?;
            merge_or_replace(found, changes, rule)?
        }
        (_, Some(other)) => return Err(list_expected(&other)),
        (Some(other), None) => return Err(list_expected(&other)),
    };
    identity.check(&merged)?;
    merged = arrange(merged, &identity.positions(&order), &server_order, &identity);
    original.insert(field.to_owned(), Value::Array(merged));
    Ok(())
}

/// Returns the server's position of each element. As upstream does, it appends the elements that the patch adds, as
/// far as they fit into the places of the elements it deletes.
fn server_order(server: &[Value], changes: Option<&Value>, identity: &Identity) -> HashMap<String, usize> {
    let changes = changes.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let of_kind = |deleted: bool| {
        let kind = move |e: &&Value| e.get(DIRECTIVE).is_some_and(|d| d == "delete") == deleted;
        changes.iter().filter(kind)
    };
    let gone: HashSet<String> = of_kind(true).filter_map(|e| identity.of(e)).map(Value::to_string).collect();
    let own = |e: &Value| identity.of(e).map(Value::to_string).unwrap_or_default();
    if gone.is_empty() || !server.iter().any(|e| gone.contains(&own(e))) {
        return identity.positions(server);
    }
    let known = identity.positions(server);
    let kept = server.iter().filter(|e| !gone.contains(&own(e)));
    let added =
        of_kind(false).filter(|e| e.get(DIRECTIVE).is_none() && identity.position(&known, e).is_none());
    let order: Vec<Value> = kept.chain(added).take(server.len()).cloned().collect();
    identity.positions(&order)
}

fn merge_or_replace(found: Option<Value>, mut changes: Vec<Value>, rule: FieldRule) -> Result<Vec<Value>> {
    match found {
        Some(Value::Array(mut list)) if rule.strategy == "merge" => {
            merge(&mut list, changes, rule)?;
            Ok(list)
        }
        _ => {
            changes.retain_mut(clean);
            Ok(changes)
        }
    }
}

/// Requires that the elements of the patch, except for deletions, follow the given order, and that all are in it.
fn check_order(changes: &[Value], order: &[Value], identity: &Identity) -> Result<()> {
    if changes.is_empty() || order.is_empty() {
        return Ok(());
    }
    identity.check(order)?;
    let mut places = order.iter();
    for element in changes.iter().filter(|e| e.get(DIRECTIVE).is_none()) {
        identity.check(std::slice::from_ref(element))?;
        if !places.any(|place| identity.of(place) == identity.of(element)) {
            return Err(StrategicError::Mismatch(format!(
                "The order in patch list:\n{}\n doesn't match $setElementOrder list:\n{}\n",
                go_list(changes),
                go_list(order)
            )));
        }
    }
    Ok(())
}
