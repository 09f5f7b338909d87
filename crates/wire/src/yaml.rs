//! YAML bodies: parsed as kubectl does, with a record of the duplicate keys of mappings.

use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Spanned, options::DuplicateKeyPolicy};

/// The content of a YAML text.
#[derive(Debug)]
pub struct Yaml {
    /// The value; of a duplicate key, the last one.
    pub value: Value,
    /// The duplicate keys as warnings: `line 6: key "a" already set in map`.
    pub repeated: Vec<String>,
}

impl Yaml {
    /// Parses a text. The error has upstream's text where upstream's parser defines one.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(body).map_err(|e| format!("yaml: {e}"))?;
        let error = match serde_saphyr::from_str(text) {
            Ok(value) => return Ok(Self { value, repeated: Vec::new() }),
            Err(error) => error,
        };
        let lenient = || serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
        match serde_saphyr::from_str_with_options(text, lenient()) {
            Ok(value) => {
                let repeated = serde_saphyr::from_str_with_options::<Repeated>(text, lenient());
                Ok(Self { value, repeated: repeated.map(|r| r.0).unwrap_or_default() })
            }
            Err(_) => {
                let text = error.to_string();
                Err(format!("yaml: {}", text.lines().next().unwrap_or("").trim()))
            }
        }
    }

    /// Returns the duplicate keys as one error, with the text of upstream's YAML library.
    pub fn strict_error(&self) -> Option<String> {
        let lines = || self.repeated.join("\n  ");
        (!self.repeated.is_empty()).then(|| format!("yaml: unmarshal errors:\n  {}", lines()))
    }
}

/// Collects the duplicate keys of a node and of all nodes below it.
struct Repeated(Vec<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Keys)
    }
}

struct Keys;

macro_rules! nothing {
    ($($name:ident: $ty:ty),*) => {
        $(fn $name<E>(self, _: $ty) -> Result<Repeated, E> {
            Ok(Repeated(Vec::new()))
        })*
    };
}

impl<'de> Visitor<'de> for Keys {
    type Value = Repeated;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    nothing!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_i128: i128, visit_u128: u128, visit_f64: f64,
        visit_str: &str);

    fn visit_unit<E>(self) -> Result<Repeated, E> {
        Ok(Repeated(Vec::new()))
    }

    fn visit_none<E>(self) -> Result<Repeated, E> {
        Ok(Repeated(Vec::new()))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Repeated, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Repeated, A::Error> {
        let mut found = Vec::new();
        while let Some(Repeated(below)) = items.next_element()? {
            found.extend(below);
        }
        Ok(Repeated(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Repeated, A::Error> {
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        while let Some(key) = entries.next_key::<Spanned<String>>()? {
            let line = key.referenced.line();
            if seen.contains(&key.value) {
                found.push(format!("line {line}: key {:?} already set in map", key.value));
            }
            seen.insert(key.value);
            let Repeated(below) = entries.next_value()?;
            found.extend(below);
        }
        Ok(Repeated(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_of_repeated_keys_counts_and_each_is_named() {
        let text = "kind: A\nspec:\n  a: 1\n  a: 2\n  list:\n  - {b: x, b: z}\n  - 3\nkind: B\n";
        let yaml = Yaml::read(text.as_bytes()).unwrap();
        assert_eq!(yaml.value, json!({"kind": "B", "spec": {"a": 2, "list": [{"b": "z"}, 3]}}));
        assert_eq!(
            yaml.repeated,
            [
                r#"line 4: key "a" already set in map"#,
                r#"line 6: key "b" already set in map"#,
                r#"line 8: key "kind" already set in map"#
            ]
        );
        assert!(yaml.strict_error().is_some_and(|e| e.starts_with("yaml: unmarshal errors:\n  line 4: ")));
    }

    #[test]
    fn what_kubectl_sends_is_read() {
        let yaml = Yaml::read(b"a: 1\nb: [x, true]\n").unwrap();
        assert_eq!(yaml.value, json!({"a": 1, "b": ["x", true]}));
        assert!(yaml.repeated.is_empty() && yaml.strict_error().is_none());
        assert!(Yaml::read(b"a: [").unwrap_err().starts_with("yaml: "));
        assert_eq!(Yaml::read(b"").unwrap().value, Value::Null);
    }
}
