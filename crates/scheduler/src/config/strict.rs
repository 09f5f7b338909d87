//! Strict decoding: unknown fields are reported, and type errors contain the path to the value.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Decodes the content. Returns it with the unknown fields, for example `unknown field "profiles[0].plugin"`. The error
/// is a type error with its path.
pub fn read<T: DeserializeOwned>(content: &Value) -> Result<(T, Vec<String>), String> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let typed = serde_path_to_error::Deserializer::new(content, &mut track);
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(format!("unknown field {:?}", name(&path)));
    match T::deserialize(serde_ignored::Deserializer::new(typed, &mut note)) {
        Ok(read) => Ok((read, unknown)),
        Err(error) => match track.path().to_string().as_str() {
            "." => Err(error.to_string()),
            path => Err(format!("{path}: {error}")),
        },
    }
}

fn name(path: &serde_ignored::Path) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", name(parent)),
        Path::Map { parent, key } => match name(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            name(parent)
        }
    }
}

/// Removes fields with the value null, which count as missing.
pub fn drop_nulls(content: &mut Value) {
    match content {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        n: i64,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default)]
    struct Outer {
        list: Vec<Inner>,
        one: Option<Inner>,
    }

    #[test]
    fn unknown_fields_and_wrong_types_have_paths() {
        let content = json!({"list": [{"n": 1}, {"m": 2}], "one": {"N": 3}, "two": 4});
        let (read, unknown) = read::<Outer>(&content).unwrap();
        assert_eq!((read.list.len(), read.list[0].n, read.one.map(|o| o.n)), (2, 1, Some(0)));
        let expected = ["unknown field \"list[1].m\"", "unknown field \"one.N\"", "unknown field \"two\""];
        assert_eq!(unknown, expected);
        let wrong = super::read::<Outer>(&json!({"list": [{"n": "x"}]})).unwrap_err();
        assert_eq!(wrong, "list[0].n: invalid type: string \"x\", expected i64");
        let mut nulls = json!({"list": null, "one": {"n": null}});
        drop_nulls(&mut nulls);
        assert_eq!(nulls, json!({"one": {}}));
    }
}
