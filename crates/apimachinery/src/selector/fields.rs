//! Field selectors: `metadata.name=a,status.phase!=Running`.

use std::fmt;

/// Why a field selector is refused, with upstream's error text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Term { selector: String, term: String },
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// Shown as its code point, as upstream does.
    #[error("invalid field selector: unescaped character in value: {}", u32::from(*.0))]
    Unescaped(char),
}

/// One condition on one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldTerm {
    pub field: String,
    pub value: String,
    /// Whether the operator is `!=` instead of `=`.
    pub negated: bool,
}

/// A field selector: an object must match all terms. The default selects everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<FieldTerm>,
}

impl FieldSelector {
    /// Returns a selector that matches every object.
    pub fn everything() -> Self {
        Self::default()
    }

    /// Returns the selector `field=value`.
    pub fn equals(field: &str, value: &str) -> Self {
        Self { terms: vec![FieldTerm { field: field.into(), value: value.into(), negated: false }] }
    }

    /// Parses `a=b,c!=d`; in values, `\` escapes `\`, `,` and `=`.
    pub fn parse(text: &str) -> Result<Self, FieldSelectorError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::new();
        for part in parts.into_iter().filter(|p| !p.is_empty()) {
            let Some((field, negated, raw)) = split_term(part) else {
                return Err(FieldSelectorError::Term { selector: text.to_owned(), term: part.to_owned() });
            };
            let value = unescape(raw)?;
            if !field.is_empty() || !value.is_empty() {
                terms.push(FieldTerm { field: field.to_owned(), value, negated });
            }
        }
        Ok(Self { terms })
    }

    /// Returns the terms, sorted by their text.
    pub fn terms(&self) -> &[FieldTerm] {
        &self.terms
    }

    pub fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns whether the selector matches an object with these fields; a missing field counts as empty text.
    pub fn matches<'a>(&self, lookup: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().all(|t| (lookup(&t.field).unwrap_or("") == t.value) != t.negated)
    }

    /// Returns the only value that this field may have, if the selector requires one: `metadata.name` turns a list
    /// into a get.
    pub fn requires_exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.field == field && !t.negated).map(|t| t.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, term) in self.terms.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let operator = if term.negated { "!=" } else { "=" };
            write!(f, "{comma}{}{operator}{}", term.field, escape(&term.value))?;
        }
        Ok(())
    }
}

/// Escapes a value for use in a selector.
pub fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

fn unescape(text: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => out.push(escaped),
                Some(other) => return Err(FieldSelectorError::Escape(format!("\\{other}"))),
                None => return Err(FieldSelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(c)),
            _ => out.push(c),
        }
    }
    Ok(out)
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Splits a term at its first operator: the field, whether the operator is `!=`, and the escaped value.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let equals = term.find('=')?;
    let (field, after) = (&term[..equals], &term[equals + 1..]);
    match field.strip_suffix('!') {
        Some(field) => Some((field, true, after)),
        None => Some((field, false, after.strip_prefix('=').unwrap_or(after))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results of upstream's 1.37 parser.
    #[test]
    fn facts() {
        for (text, expected) in [
            ("", Ok("")),
            ("metadata.name=a,status.phase!=Running", Ok("metadata.name=a,status.phase!=Running")),
            ("a==b", Ok("a=b")),
            ("a", Err("invalid selector: 'a'; can't understand 'a'")),
            ("a=b\\,c", Ok("a=b\\,c")),
            ("a=b\\", Err("invalid field selector: invalid escape sequence: \\")),
            ("a=b\\x", Err("invalid field selector: invalid escape sequence: \\x")),
            ("a=b=c", Err("invalid field selector: unescaped character in value: 61")),
            ("a=b,c", Err("invalid selector: 'a=b,c'; can't understand 'c'")),
            ("a=", Ok("a=")),
            (",", Ok("")),
            ("=a", Ok("=a")),
            ("x=1,a=2", Ok("a=2,x=1")),
            ("a=\\\\\\=", Ok("a=\\\\\\=")),
            ("a=é\\é", Err("invalid field selector: invalid escape sequence: \\é")),
        ] {
            let got = FieldSelector::parse(text).map(|s| s.to_string()).map_err(|e| e.to_string());
            assert_eq!(got.as_deref().map_err(String::as_str), expected, "{text}");
        }
    }

    #[test]
    fn matching() {
        let lookup = |field: &str| match field {
            "metadata.name" => Some("a"),
            "spec.nodeName" => Some("n1"),
            _ => None,
        };
        for (text, expected) in [
            ("", true),
            ("metadata.name=a", true),
            ("metadata.name!=a", false),
            ("metadata.name=a,spec.nodeName=n2", false),
            ("status.phase=", true),
            ("status.phase!=Running", true),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap().matches(lookup), expected, "{text}");
        }
        let selector = FieldSelector::parse("metadata.name=a,spec.nodeName!=x").unwrap();
        assert_eq!(selector.requires_exact("metadata.name"), Some("a"));
        assert_eq!(selector.requires_exact("spec.nodeName"), None);
        assert_eq!(FieldSelector::equals("f", "a,b").to_string(), "f=a\\,b");
    }
}
