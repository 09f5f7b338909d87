//! Finds the byte ranges of an object's members in compact JSON without parsing the values.

use std::ops::Range;

/// A member of a JSON object: its name as written, and its byte ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'j> {
    pub name: &'j [u8],
    /// From the opening quote of the name to the end of the value.
    pub whole: Range<usize>,
    pub value: Range<usize>,
}

impl Member<'_> {
    /// Returns the range with the following comma, or with the preceding one for the last member; `None` if the text
    /// is truncated.
    pub fn with_comma(&self, json: &[u8]) -> Option<Range<usize>> {
        let Range { start, end } = self.whole;
        Some(match (json.get(end)?, json.get(start.checked_sub(1)?)?) {
            (b',', _) => start..end + 1,
            (_, b',') => start - 1..end,
            _ => start..end,
        })
    }
}

/// Iterates over the members of one object in order. Ends early if the text is not compact JSON.
#[derive(Debug, Clone)]
pub struct Members<'j> {
    json: &'j [u8],
    at: usize,
}

impl<'j> Members<'j> {
    /// Creates an iterator over the object whose opening brace is at `at`.
    pub fn new(json: &'j [u8], at: usize) -> Self {
        Self { json, at: at + 1 }
    }

    pub fn find(mut self, name: &[u8]) -> Option<Member<'j>> {
        Iterator::find(&mut self, |member| member.name == name)
    }
}

impl<'j> Iterator for Members<'j> {
    type Item = Member<'j>;

    fn next(&mut self) -> Option<Member<'j>> {
        let (json, start) = (self.json, self.at);
        if json.get(start) != Some(&b'"') {
            return None;
        }
        let name_end = after_string(json, start);
        let name = json.get(start + 1..name_end.checked_sub(1)?)?;
        let value = name_end + 1;
        let end = after_value(json, value);
        self.at = end + 1;
        (end > value).then_some(Member { name, whole: start..end, value: value..end })
    }
}

/// Returns the offset after the string that begins at `at`.
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

/// Returns the offset after the value that begins at `at`.
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
    fn members_are_found_with_their_values() {
        let json = br#"{"a":"\"}\\","b":{"c":[1,{"d":2}]},"e":-1.5,"f":[],"g":null}"#;
        let found: Vec<(String, String)> = Members::new(json, 0)
            .map(|m| (m.name, &json[m.value]))
            .map(|(name, value)| {
                (String::from_utf8_lossy(name).into_owned(), String::from_utf8_lossy(value).into_owned())
            })
            .collect();
        let expected =
            [("a", r#""\"}\\""#), ("b", r#"{"c":[1,{"d":2}]}"#), ("e", "-1.5"), ("f", "[]"), ("g", "null")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(Members::new(json, 0).find(b"c"), None);
        let inner = Members::new(json, 0).find(b"b").unwrap().value.start;
        assert_eq!(Members::new(json, inner).find(b"c").unwrap().with_comma(json), Some(18..33));
    }

    #[test]
    fn broken_text_ends_them() {
        for text in ["", "{", "{}", "[]", "{\"", "{\"a", "{\"a\"", "{\"a\":", "{ \"a\":1}", "\"a\"", "{\"a\\"]
        {
            assert_eq!(Members::new(text.as_bytes(), 0).count(), 0, "{text}");
        }
        assert!(Members::new(b"{\"a\":[1", 0).next().unwrap().with_comma(b"{\"a\":[1").is_none());
    }
}
