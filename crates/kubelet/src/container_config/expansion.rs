//! `$(VAR)` references in commands, arguments and environment values.
//!
//! Source: <https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/>.

/// Replaces `$(NAME)` by what `value_of` knows, and `$$` by `$`. A reference to an unknown name stays as it is.
pub fn expand(text: &str, value_of: impl Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
            continue;
        }
        let reference = after.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match reference {
            Some((name, tail)) => {
                match value_of(name) {
                    Some(value) => out.push_str(&value),
                    None => {
                        out.push_str("$(");
                        out.push_str(name);
                        out.push(')');
                    }
                }
                rest = tail;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::expand;

    #[test]
    fn references() {
        let value_of = |name: &str| match name {
            "A" => Some("a".to_owned()),
            "EMPTY" => Some(String::new()),
            "REF" => Some("$(A)".to_owned()),
            _ => None,
        };
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "a"),
            ("x-$(A)-$(A)", "x-a-a"),
            ("$(NO)", "$(NO)"),
            ("$(EMPTY)|", "|"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$$$$", "$$"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$", "$"),
            ("$(REF)", "$(A)"),
            ("é$(A)é", "éaé"),
        ] {
            assert_eq!(expand(text, value_of), expected, "{text}");
        }
    }
}
