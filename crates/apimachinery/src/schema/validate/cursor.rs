//! A cursor over bytes that are known to be JSON.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

/// The kind of the next value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    /// Returns the name of the kind in Go's messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "bool",
            Self::Number => "number",
            Self::String => "string",
            Self::Array => "array",
            Self::Object => "object",
        }
    }
}

/// A position in the bytes. [`super::syntax::check`] has accepted them, so that each method finds what it expects. If
/// it does not, the result is some value, but never a panic or an endless loop.
pub struct Cursor<'a> {
    data: &'a [u8],
    pos: usize,
}

/// A number that does not fit a float.
#[derive(Debug)]
pub struct Overflow(pub String);

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Self { data, pos: 0 }
    }

    fn byte(&self) -> u8 {
        self.data.get(self.pos).copied().unwrap_or(0)
    }

    fn skip_space(&mut self) {
        while matches!(self.byte(), b' ' | b'\t' | b'\r' | b'\n') {
            self.pos += 1;
        }
    }

    /// Returns the kind of the next value.
    pub fn kind(&mut self) -> Kind {
        self.skip_space();
        match self.byte() {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b't' | b'f' => Kind::Bool,
            b'-' | b'0'..=b'9' => Kind::Number,
            _ => Kind::Null,
        }
    }

    /// Enters an object or array.
    pub fn begin(&mut self) {
        self.skip_space();
        self.pos += 1;
    }

    /// Returns whether another element or key follows; otherwise leaves the container.
    pub fn more(&mut self) -> bool {
        self.skip_space();
        if self.byte() == b',' {
            self.pos += 1;
            self.skip_space();
        }
        match self.byte() {
            b'}' | b']' => {
                self.pos += 1;
                false
            }
            0 => false,
            _ => true,
        }
    }

    /// Reads an object key with its colon.
    pub fn key(&mut self) -> Cow<'a, str> {
        let key = self.string();
        self.skip_space();
        self.pos += 1;
        key
    }

    pub fn string(&mut self) -> Cow<'a, str> {
        let raw = self.raw();
        unescape(raw.get(1..raw.len().saturating_sub(1)).unwrap_or_default())
    }

    /// Skips any value and returns its text.
    pub fn raw(&mut self) -> &'a [u8] {
        self.skip_space();
        let start = self.pos;
        match self.byte() {
            b'"' => self.pass_string(),
            b'{' | b'[' => self.pass_container(),
            _ => {
                while !matches!(self.byte(), b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n' | 0) {
                    self.pos += 1;
                }
            }
        }
        self.pos = self.pos.min(self.data.len());
        &self.data[start.min(self.pos)..self.pos]
    }

    fn pass_string(&mut self) {
        self.pos += 1;
        while self.pos < self.data.len() {
            match self.byte() {
                b'"' => {
                    self.pos += 1;
                    return;
                }
                b'\\' => self.pos += 2,
                _ => self.pos += 1,
            }
        }
    }

    fn pass_container(&mut self) {
        let mut depth = 0_usize;
        while self.pos < self.data.len() {
            match self.byte() {
                b'"' => {
                    self.pass_string();
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.pos += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Reads any value. The syntax check limits the depth of the recursion.
    pub fn any(&mut self) -> Result<Value, Overflow> {
        Ok(match self.kind() {
            Kind::Object => {
                let mut map = Map::new();
                self.begin();
                while self.more() {
                    let key = self.key().into_owned();
                    map.insert(key, self.any()?);
                }
                Value::Object(map)
            }
            Kind::Array => {
                let mut list = Vec::new();
                self.begin();
                while self.more() {
                    list.push(self.any()?);
                }
                Value::Array(list)
            }
            Kind::String => Value::String(self.string().into_owned()),
            Kind::Number => number(self.raw())?,
            Kind::Bool => Value::Bool(self.raw() == b"true"),
            Kind::Null => {
                self.raw();
                Value::Null
            }
        })
    }
}

/// Parses a number: an integer if it fits, otherwise a float.
pub fn number(text: &[u8]) -> Result<Value, Overflow> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    if let Ok(n) = text.parse::<i64>() {
        return Ok(Value::from(n));
    }
    let float = text.parse::<f64>().ok().and_then(Number::from_f64);
    float.map(Value::Number).ok_or_else(|| Overflow(text.to_owned()))
}

/// Unescapes the inside of a string literal. As in Go, invalid Unicode becomes U+FFFD.
fn unescape(raw: &[u8]) -> Cow<'_, str> {
    if !raw.contains(&b'\\') {
        return String::from_utf8_lossy(raw);
    }
    let mut out = Vec::with_capacity(raw.len());
    let mut pos = 0;
    while let Some(&byte) = raw.get(pos) {
        pos += 1;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let escape = raw.get(pos).copied().unwrap_or(b'\\');
        pos += 1;
        match escape {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'u' => {
                let (c, used) = unicode(&raw[pos.min(raw.len())..]);
                pos += used;
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            other => out.push(other),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// Returns the character of `XXXX` or of the surrogate pair `XXXX\uXXXX`, and the length of its text.
fn unicode(text: &[u8]) -> (char, usize) {
    let hex = |at: usize| {
        let digits = std::str::from_utf8(text.get(at..at + 4)?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    };
    let first = hex(0).unwrap_or(0xfffd);
    if (0xd800..0xdc00).contains(&first)
        && text.get(4..6) == Some(b"\\u")
        && let Some(second @ 0xdc00..=0xdfff) = hex(6)
    {
        let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        return (char::from_u32(code).unwrap_or('\u{fffd}'), 10);
    }
    (char::from_u32(first).unwrap_or('\u{fffd}'), 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_serde_json_reads() {
        let text =
            r#" {"a\u00e9\ud83d\ude00\n":[1,-2.5e1,"x\"\\y",null,true,{"b":{}}],"c":18446744073709551615} "#;
        let theirs: Value = serde_json::from_str(text).unwrap();
        let mut ours = Cursor::new(text.as_bytes()).any().unwrap();
        // Go reads integers beyond 64 signed bits as floats.
        assert_eq!(ours["c"], Value::from(1.8446744073709552e19));
        ours["c"] = theirs["c"].clone();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn lone_surrogates_are_replaced() {
        assert_eq!(unescape(br"a\ud800b\udc00\ud800\ud83d\ude00"), "a\u{fffd}b\u{fffd}\u{fffd}😀");
        assert_eq!(unescape(b"a\xffb"), "a\u{fffd}b");
    }

    #[test]
    fn arbitrary_bytes_end() {
        fastrand::seed(11);
        let alphabet = br#"{}[]",:0-e\utn "#;
        for _ in 0..100_000 {
            let input: Vec<u8> =
                (0..fastrand::usize(0..20)).map(|_| alphabet[fastrand::usize(..alphabet.len())]).collect();
            if super::super::syntax::check(&input).is_ok() {
                let _ = Cursor::new(&input).any();
            }
        }
    }
}
