//! Blanks the parts of a source file that are no code: comments, literals and tests.

/// Returns the code of a file: comments are removed, strings and characters empty, items of tests cut out.
pub fn code(text: &str) -> String {
    without_scopes(&without_tests(&without_literals(text)))
}

/// Removes the scopes of visibilities: `pub(in crate::a)` names a module that sees an item, not one that is
/// used.
fn without_scopes(code: &str) -> String {
    let mut parts = code.split("pub(in ");
    let first = parts.next().unwrap_or("").to_owned();
    parts.fold(first, |out, part| out + "pub " + part.split_once(')').map_or("", |(_, rest)| rest))
}

fn without_literals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let next = chars.get(at + 1).copied();
        let in_word = at > 0 && chars.get(at - 1).is_some_and(|c| c.is_alphanumeric() || *c == '_');
        match (c, next) {
            ('/', Some('/')) => at = find(&chars, at, &['\n']),
            ('/', Some('*')) => at = find(&chars, at + 2, &['*', '/']) + 2,
            ('r', Some('"' | '#')) if !in_word && raw_string(&chars, at).is_some() => {
                out.push_str("\"\"");
                at = raw_string(&chars, at).unwrap_or(chars.len());
            }
            ('"', _) => {
                out.push_str("\"\"");
                at += 1;
                while chars.get(at).is_some_and(|c| *c != '"') {
                    at += if chars.get(at) == Some(&'\\') { 2 } else { 1 };
                }
                at += 1;
            }
            // A character, not a lifetime.
            ('\'', Some('\\')) => at = find(&chars, at + 3, &['\'']) + 1,
            ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at += 3,
            _ => {
                out.push(c);
                at += 1;
            }
        }
    }
    out
}

/// Returns where the raw string that begins here ends, if one does.
fn raw_string(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars.iter().skip(at + 1).take_while(|c| **c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return None;
    }
    let mut end = vec!['"'];
    end.extend(std::iter::repeat_n('#', hashes));
    Some(find(chars, at + 2 + hashes, &end) + end.len())
}

/// Returns where the sequence first occurs from a position on; the end if it does not.
fn find(chars: &[char], from: usize, what: &[char]) -> usize {
    let rest = chars.get(from..).unwrap_or_default();
    rest.windows(what.len()).position(|w| w == what).map_or(chars.len(), |n| from + n)
}

/// Cuts out every item under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        out.push_str(&rest[..at]);
        let item = &rest[at + MARK.len()..];
        let mut depth = 0_usize;
        let end = item.char_indices().find(|(_, c)| match c {
            '{' => {
                depth += 1;
                false
            }
            '}' => {
                depth = depth.saturating_sub(1);
                depth == 0
            }
            ';' => depth == 0,
            _ => false,
        });
        rest = &item[end.map_or(item.len(), |(at, c)| at + c.len_utf8())..];
    }
    out.push_str(rest);
    out
}

#[test]
fn what_is_no_code_is_gone() {
    let text = "use a::b; // use c;\nlet s = \"use \\\" d\"; let r = r#\"use \"e\"\"#; let c = '\"'; fn f<'a>() {}\n\
        pub(in crate::g) fn h() {}\n#[cfg(test)]\nmod tests { use super::*; fn g() { {} } }\nuse f;";
    assert_eq!(
        code(text).split_whitespace().collect::<Vec<_>>().join(" "),
        "use a::b; let s = \"\"; let r = \"\"; let c = ; fn f<'a>() {} pub fn h() {} use f;"
    );
}
