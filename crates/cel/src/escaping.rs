//! Escaping of property names that are not identifiers: `__dash__`, `__namespace__` and the like.

/// Reserved words, which cannot be identifiers.
const RESERVED: &[&str] = &[
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

pub fn is_reserved(word: &str) -> bool {
    RESERVED.contains(&word)
}

/// Returns the property as an identifier; `None` if it cannot be escaped.
pub fn escape(property: &str) -> Option<String> {
    if property.is_empty() || property.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if is_reserved(property) {
        return Some(format!("__{property}__"));
    }
    let mut out = String::with_capacity(property.len());
    let mut rest = property;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("__") {
            out.push_str("__underscores__");
            rest = after;
            continue;
        }
        match c {
            '.' => out.push_str("__dot__"),
            '-' => out.push_str("__dash__"),
            '/' => out.push_str("__slash__"),
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => out.push(c),
            _ => return None,
        }
        rest = &rest[c.len_utf8()..];
    }
    Some(out)
}

/// Returns the property that an identifier means; `None` if it contains an invalid escape.
pub fn unescape(identifier: &str) -> Option<String> {
    let mut out = String::with_capacity(identifier.len());
    let mut rest = identifier;
    while let Some(start) = rest.find("__") {
        let inner = &rest[start + 2..];
        let word = inner.split('_').next().unwrap_or("");
        if word.is_empty() || !inner[word.len()..].starts_with("__") {
            let taken = start + 1;
            out.push_str(&rest[..taken]);
            rest = &rest[taken..];
            continue;
        }
        out.push_str(&rest[..start]);
        let whole = start == 0 && out.is_empty() && inner.len() == word.len() + 2;
        out.push_str(match word {
            "underscores" => "__",
            "dot" => ".",
            "dash" => "-",
            "slash" => "/",
            _ if whole && is_reserved(word) => word,
            _ => return None,
        });
        rest = &inner[word.len() + 2..];
    }
    out.push_str(rest);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_go_both_ways() {
        for (property, identifier) in [
            ("plain", "plain"),
            ("a_b", "a_b"),
            ("namespace", "__namespace__"),
            ("dash-ed", "dash__dash__ed"),
            ("kubernetes.io/name", "kubernetes__dot__io__slash__name"),
            ("a__b", "a__underscores__b"),
            ("_x", "_x"),
        ] {
            assert_eq!(escape(property).as_deref(), Some(identifier));
            assert_eq!(unescape(identifier).as_deref(), Some(property));
        }
        for bad in ["", "1a", "a$b", "é"] {
            assert_eq!(escape(bad), None, "{bad}");
        }
        assert_eq!(unescape("__unknown__"), None);
    }
}
