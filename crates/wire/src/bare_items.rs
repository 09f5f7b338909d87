//! Removes `apiVersion` and `kind` from the items of a list: the list of a built-in kind has them once.

use std::ops::Range;

use knarr_api::members::Members;

/// The positions of `apiVersion` and `kind` at the top level of an object, each with one adjacent comma.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TypeMembers([Span; 2]);

/// A compact range, because a list holds two of them for each item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(range: &Range<usize>) -> Option<Self> {
        Some(Self { start: u32::try_from(range.start).ok()?, end: u32::try_from(range.end).ok()? })
    }

    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl TypeMembers {
    /// Finds them in compact JSON. The search stops at the second one, which comes early in sorted members.
    pub fn of(json: &[u8]) -> Self {
        let mut found = [Span::default(); 2];
        let wanted = Members::new(json, 0).filter(|m| matches!(m.name, b"apiVersion" | b"kind"));
        for (span, member) in found.iter_mut().zip(wanted) {
            let Some(here) = member.with_comma(json).and_then(|range| Span::new(&range)) else { break };
            *span = here;
        }
        Self(found)
    }

    /// Returns how many bytes they take.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|s| s.range().len()).sum()
    }

    /// Returns the ranges of a text of `len` bytes around them.
    pub fn around(&self, len: usize) -> [Range<usize>; 3] {
        let [first, second] = self.0.map(Span::range);
        match (first.len(), second.len()) {
            (0, _) => [0..len, 0..0, 0..0],
            (_, 0) => [0..first.start, first.end..len, 0..0],
            _ => [0..first.start, first.end..second.start, second.end..len],
        }
    }
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
            let parts = members.around(json.len());
            let left = parts.map(|part| &json.as_bytes()[part]).concat();
            assert_eq!(String::from_utf8_lossy(&left), expected, "{json}");
            assert_eq!(left.len(), json.len() - members.bytes(), "{json}");
        }
    }
}
