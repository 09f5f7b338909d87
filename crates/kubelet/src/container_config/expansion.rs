//! `$(VAR)` references in commands, arguments and environment values.
//!
//! Source: <https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/>.
//! Upstream's kubelet has no limits here, and leaves it to the kernel to refuse what is too long (execve(2)). A
//! few references in a small pod can expand to more than a node's memory, so an expansion above the kernel's
//! limits is an error.

/// The kernel's limit on one argument or variable (MAX_ARG_STRLEN).
const MAX_STRING: usize = 128 << 10;
/// The kernel's limit on all arguments and variables together, with its usual limit on the stack.
pub const MAX_TOTAL: usize = 2 << 20;

/// Replaces `$(NAME)` by the value of `value_of`, and `$$` by `$`. A reference to an unknown name stays as it is.
/// A result that is too long for the kernel is an error.
pub fn expand<V: AsRef<str>>(text: &str, value_of: impl Fn(&str) -> Option<V>) -> Result<String, String> {
    let mut out = String::with_capacity(text.len().min(MAX_STRING));
    let mut add = |piece: &str| {
        if out.len() + piece.len() > MAX_STRING {
            return Err(format!("a value with its references is longer than {MAX_STRING} bytes"));
        }
        out.push_str(piece);
        Ok(())
    };
    // References after the last parenthesis have no end; they are not searched for one again and again.
    let last_end = text.rfind(')').unwrap_or(0);
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        add(&rest[..at])?;
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            add("$")?;
            rest = tail;
            continue;
        }
        let may_end = text.len() - after.len() < last_end;
        let inner = after.strip_prefix('(').filter(|_| may_end);
        match inner.and_then(|inner| inner.split_once(')')) {
            Some((name, tail)) => {
                match value_of(name) {
                    Some(value) => add(value.as_ref())?,
                    None => ["$(", name, ")"].into_iter().try_for_each(&mut add)?,
                }
                rest = tail;
            }
            None => {
                add("$")?;
                rest = after;
            }
        }
    }
    add(rest)?;
    Ok(out)
}

/// Expands the words of a command.
pub fn expand_all<V: AsRef<str>>(
    words: &[String],
    value_of: impl Fn(&str) -> Option<V>,
) -> Result<Vec<String>, String> {
    let (mut expanded, mut total) = (Vec::with_capacity(words.len()), 0);
    for word in words {
        let word = expand(word, &value_of)?;
        total += word.len();
        if total > MAX_TOTAL {
            return Err(format!("a command with its references is longer than {MAX_TOTAL} bytes"));
        }
        expanded.push(word);
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(expand(text, value_of).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_no_program_could_be_given_is_not_made() {
        let value_of = |_: &str| Some("x".repeat(64 << 10));
        assert_eq!(expand("$(A)$(A)", value_of).map(|text| text.len()), Ok(MAX_STRING));
        let error = expand(&"$(A)".repeat(100_000), value_of).unwrap_err();
        assert_eq!(error, "a value with its references is longer than 131072 bytes");
        let words = |count| vec!["$(A)$(A)".to_owned(); count];
        assert_eq!(expand_all(&words(16), value_of).map(|words| words.len()), Ok(16));
        let error = expand_all(&words(17), value_of).unwrap_err();
        assert_eq!(error, "a command with its references is longer than 2097152 bytes");
    }

    /// The time grows linearly with the length: searching for an end from each reference would take minutes.
    #[test]
    fn references_without_an_end() {
        let none = |_: &str| None::<String>;
        let text = "$(".repeat(MAX_STRING / 2);
        assert_eq!(expand(&text, none).as_deref(), Ok(text.as_str()));
        assert_eq!(
            expand(&format!("){}", &text[2..]), none).as_deref(),
            Ok(format!("){}", &text[2..]).as_str())
        );
    }
}
