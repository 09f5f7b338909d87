//! Items of a list without the two members that say what they are: a list of a built-in kind says it once.

use std::ops::Range;

/// Where `apiVersion` and `kind` stand at the top of an object, each with one comma beside it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TypeMembers([Span; 2]);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl TypeMembers {
    /// Finds them in compact JSON. It stops at the second one, which in sorted members comes early.
    pub fn of(json: &[u8]) -> Self {
        let (mut found, mut count, mut at) = ([Span::default(); 2], 0, 1);
        while count < 2 && json.get(at) == Some(&b'"') {
            let name_end = after_string(json, at);
            let end = after_value(json, name_end + 1);
            if matches!(&json[at..name_end.min(json.len())], b"\"apiVersion\"" | b"\"kind\"") {
                let Some(span) = with_comma(json, at, end) else { break };
                found[count] = span;
                count += 1;
            }
            at = end + 1;
        }
        Self(found)
    }

    /// How many bytes they take.
    pub fn len(&self) -> usize {
        self.0.iter().map(|s| s.range().len()).sum()
    }

    /// The parts of `json` around them.
    pub fn around<'j>(&self, json: &'j [u8]) -> [&'j [u8]; 3] {
        let [first, second] = self.0;
        let part = |range: Range<usize>| json.get(range).unwrap_or_default();
        match (first.range().len(), second.range().len()) {
            (0, _) => [json, &[], &[]],
            (_, 0) => [part(0..first.range().start), part(first.range().end..json.len()), &[]],
            _ => [
                part(0..first.range().start),
                part(first.range().end..second.range().start),
                part(second.range().end..json.len()),
            ],
        }
    }
}

/// A member with the comma behind it, or with the one before it where it is the last.
fn with_comma(json: &[u8], start: usize, end: usize) -> Option<Span> {
    let (start, end) = match (json.get(end)?, json.get(start.checked_sub(1)?)?) {
        (b',', _) => (start, end + 1),
        (_, b',') => (start - 1, end),
        _ => (start, end),
    };
    Some(Span { start: u32::try_from(start).ok()?, end: u32::try_from(end).ok()? })
}

/// Behind the string that begins at `at`.
fn after_string(json: &[u8], at: usize) -> usize {
    let mut i = at + 1;
    while let Some(byte) = json.get(i) {
        match byte {
            b'"' => return i + 1,
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
    json.len()
}

/// Behind the value that begins at `at`.
fn after_value(json: &[u8], at: usize) -> usize {
    let (mut i, mut depth) = (at, 0usize);
    while let Some(byte) = json.get(i) {
        match byte {
            b'"' => {
                i = after_string(json, i);
                if depth == 0 {
                    return i;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth <= 1 => return if depth == 1 { i + 1 } else { i },
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => return i,
            _ => {}
        }
        i += 1;
    }
    json.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_the_object_without_them() {
        let table = [
            (r#"{"apiVersion":"v1","kind":"Pod","metadata":{"kind":1}}"#, r#"{"metadata":{"kind":1}}"#),
            (
                r#"{"apiVersion":"v1","data":{"a":"\"}\\","kind":"x"},"kind":"ConfigMap","metadata":{}}"#,
                r#"{"data":{"a":"\"}\\","kind":"x"},"metadata":{}}"#,
            ),
            (
                r#"{"addressType":"IPv4","apiVersion":"v1","endpoints":[{"a":[1,2]},3],"kind":"E"}"#,
                r#"{"addressType":"IPv4","endpoints":[{"a":[1,2]},3]}"#,
            ),
            (r#"{"kind":"P","a":true,"apiVersion":"v1"}"#, r#"{"a":true}"#),
            (r#"{"a":-1.5e3,"b":null,"kind":"P"}"#, r#"{"a":-1.5e3,"b":null}"#),
            (r#"{"kind":"P","metadata":{}}"#, r#"{"metadata":{}}"#),
            (r#"{"kind":"P"}"#, "{}"),
            (r#"{"metadata":{"kind":"P"}}"#, r#"{"metadata":{"kind":"P"}}"#),
            ("{}", "{}"),
            ("", ""),
            (r#"{"kind"#, r#"{"kind"#),
            (r#"{"kind":"#, r#"{"kind":"#),
            (r#"{"kind":"P"#, r#"{"kind":"P"#),
        ];
        for (json, expected) in table {
            let members = TypeMembers::of(json.as_bytes());
            let left = members.around(json.as_bytes()).concat();
            assert_eq!(String::from_utf8_lossy(&left), expected, "{json}");
            assert_eq!(left.len(), json.len() - members.len(), "{json}");
        }
    }
}
