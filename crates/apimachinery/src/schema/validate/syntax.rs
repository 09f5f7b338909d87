//! Checks bytes against the JSON grammar (RFC 8259); errors have the texts of Go's decoder.

use super::quote::quote_byte;

/// The maximum nesting of objects and arrays. Deeper input is refused before any code recurses over it. The limit is
/// below that of serde_json (127), so that accepted values can be read back.
pub const MAX_DEPTH: usize = 120;

/// A syntax error, with Go's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyntaxError {
    #[error("unexpected end of JSON input")]
    End,
    #[error("invalid character '{}' {context}", quote_byte(*.byte))]
    Character { byte: u8, context: &'static str },
}

type Result<T> = std::result::Result<T, SyntaxError>;

/// Checks that `data` is one JSON value, surrounded only by white space.
pub fn check(data: &[u8]) -> Result<()> {
    Checker { data, pos: 0, open: Vec::new() }.run()
}

struct Checker<'a> {
    data: &'a [u8],
    pos: usize,
    /// The containers around the current position: `{` or `[`.
    open: Vec<u8>,
}

/// What may come next.
enum Expect {
    Value,
    /// Directly after `[`.
    ValueOrEnd,
    Key,
    /// Directly after `{`.
    KeyOrEnd,
    /// After a value: a comma, the end of its container, or of the input.
    Next,
}

impl Checker<'_> {
    fn run(&mut self) -> Result<()> {
        let mut expect = Expect::Value;
        loop {
            self.skip_space();
            let Some(&byte) = self.data.get(self.pos) else {
                let complete = self.open.is_empty() && matches!(expect, Expect::Next);
                return if complete { Ok(()) } else { Err(SyntaxError::End) };
            };
            expect = match expect {
                Expect::ValueOrEnd if byte == b']' => self.close(),
                Expect::KeyOrEnd if byte == b'}' => self.close(),
                Expect::Value | Expect::ValueOrEnd => self.value(byte)?,
                Expect::Key | Expect::KeyOrEnd => self.key(byte)?,
                Expect::Next => self.next(byte)?,
            };
        }
    }

    fn fail<T>(&self, byte: u8, context: &'static str) -> Result<T> {
        Err(SyntaxError::Character { byte, context })
    }

    fn skip_space(&mut self) {
        while matches!(self.data.get(self.pos), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.pos += 1;
        }
    }

    /// Returns the current byte. As in Go, the end of input reads as a space for values that cannot end there.
    fn byte(&self) -> u8 {
        self.data.get(self.pos).copied().unwrap_or(b' ')
    }

    fn close(&mut self) -> Expect {
        self.pos += 1;
        self.open.pop();
        Expect::Next
    }

    fn next(&mut self, byte: u8) -> Result<Expect> {
        match (self.open.last(), byte) {
            (None, _) => self.fail(byte, "after top-level value"),
            (Some(b'{'), b',') => {
                self.pos += 1;
                Ok(Expect::Key)
            }
            (Some(b'['), b',') => {
                self.pos += 1;
                Ok(Expect::Value)
            }
            (Some(b'{'), b'}') | (Some(b'['), b']') => Ok(self.close()),
            (Some(b'{'), _) => self.fail(byte, "after object key:value pair"),
            (Some(_), _) => self.fail(byte, "after array element"),
        }
    }

    fn key(&mut self, byte: u8) -> Result<Expect> {
        if byte != b'"' {
            return self.fail(byte, "looking for beginning of object key string");
        }
        self.string()?;
        self.skip_space();
        match self.data.get(self.pos) {
            Some(b':') => {
                self.pos += 1;
                Ok(Expect::Value)
            }
            Some(&byte) => self.fail(byte, "after object key"),
            None => Err(SyntaxError::End),
        }
    }

    fn value(&mut self, byte: u8) -> Result<Expect> {
        match byte {
            b'{' | b'[' => {
                if self.open.len() >= MAX_DEPTH {
                    return self.fail(byte, "exceeded max depth");
                }
                self.open.push(byte);
                self.pos += 1;
                return Ok(if byte == b'{' { Expect::KeyOrEnd } else { Expect::ValueOrEnd });
            }
            b'"' => self.string()?,
            b'-' | b'0'..=b'9' => self.number()?,
            b't' => self.literal(&[
                (b'r', "in literal true (expecting 'r')"),
                (b'u', "in literal true (expecting 'u')"),
                (b'e', "in literal true (expecting 'e')"),
            ])?,
            b'f' => self.literal(&[
                (b'a', "in literal false (expecting 'a')"),
                (b'l', "in literal false (expecting 'l')"),
                (b's', "in literal false (expecting 's')"),
                (b'e', "in literal false (expecting 'e')"),
            ])?,
            b'n' => self.literal(&[
                (b'u', "in literal null (expecting 'u')"),
                (b'l', "in literal null (expecting 'l')"),
                (b'l', "in literal null (expecting 'l')"),
            ])?,
            _ => return self.fail(byte, "looking for beginning of value"),
        }
        Ok(Expect::Next)
    }

    fn literal(&mut self, rest: &[(u8, &'static str)]) -> Result<()> {
        self.pos += 1;
        for &(expected, context) in rest {
            if self.byte() != expected {
                return self.fail(self.byte(), context);
            }
            self.pos += 1;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<()> {
        self.pos += 1;
        loop {
            let Some(&byte) = self.data.get(self.pos) else { return Err(SyntaxError::End) };
            self.pos += 1;
            match byte {
                b'"' => return Ok(()),
                b'\\' => self.escape()?,
                0..=0x1f => return self.fail(byte, "in string literal"),
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Result<()> {
        let byte = self.byte();
        self.pos += 1;
        match byte {
            b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => Ok(()),
            b'u' => {
                for _ in 0..4 {
                    if !self.byte().is_ascii_hexdigit() {
                        return self.fail(self.byte(), "in \\u hexadecimal character escape");
                    }
                    self.pos += 1;
                }
                Ok(())
            }
            _ => self.fail(byte, "in string escape code"),
        }
    }

    fn number(&mut self) -> Result<()> {
        if self.byte() == b'-' {
            self.pos += 1;
        }
        match self.byte() {
            b'0' => self.pos += 1,
            b'1'..=b'9' => self.digits(),
            other => return self.fail(other, "in numeric literal"),
        }
        if self.byte() == b'.' {
            self.pos += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if matches!(self.byte(), b'e' | b'E') {
            self.pos += 1;
            if matches!(self.byte(), b'+' | b'-') {
                self.pos += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        Ok(())
    }

    fn some_digits(&mut self, context: &'static str) -> Result<()> {
        if !self.byte().is_ascii_digit() {
            return self.fail(self.byte(), context);
        }
        self.digits();
        Ok(())
    }

    fn digits(&mut self) {
        while self.byte().is_ascii_digit() {
            self.pos += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_message(input: &[u8], want: &str) {
        let got = check(input).map_or_else(|e| e.to_string(), |()| "ok".to_owned());
        assert_eq!(got, want, "for {:?}", String::from_utf8_lossy(input));
    }

    /// Compares with the messages of Go 1.26 for these bytes.
    #[test]
    fn words_are_those_of_go() {
        let cases: &[(&str, &str)] = &[
            ("", "unexpected end of JSON input"),
            ("  ", "unexpected end of JSON input"),
            ("{", "unexpected end of JSON input"),
            (r#"{"a""#, "unexpected end of JSON input"),
            (r#"{"a":"#, "unexpected end of JSON input"),
            (r#"{"a":1,"#, "unexpected end of JSON input"),
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
            ("{a:1}", "invalid character 'a' looking for beginning of object key string"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":x}"#, "invalid character 'x' looking for beginning of value"),
            (r#"{"a":1 "b":2}"#, "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            (r#"{"a":tru}"#, "invalid character '}' in literal true (expecting 'e')"),
            (r#"{"a":nul}"#, "invalid character '}' in literal null (expecting 'l')"),
            (r#"{"a":falze}"#, "invalid character 'z' in literal false (expecting 's')"),
            (r#"{"a":01}"#, "invalid character '1' after object key:value pair"),
            (r#"{"a":-}"#, "invalid character '}' in numeric literal"),
            (r#"{"a":1.x}"#, "invalid character 'x' after decimal point in numeric literal"),
            (r#"{"a":1e+}"#, "invalid character '}' in exponent of numeric literal"),
            ("{\"a\":\"\u{1}\"}", "invalid character '\\x01' in string literal"),
            ("{\"a\":\"\n\"}", "invalid character '\\n' in string literal"),
            (r#"{"a":"\x"}"#, "invalid character 'x' in string escape code"),
            (r#"{"a":"\u12g4"}"#, "invalid character 'g' in \\u hexadecimal character escape"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("{}{}", "invalid character '{' after top-level value"),
            ("}", "invalid character '}' looking for beginning of value"),
            ("é", "invalid character 'Ã' looking for beginning of value"),
            ("'x'", "invalid character '\\'' looking for beginning of value"),
            ("apiVersion: v1\n", "invalid character 'a' looking for beginning of value"),
            (r#"{"a":[1,2}"#, "invalid character '}' after array element"),
            (r#"{"a":{"b":1]"#, "invalid character ']' after object key:value pair"),
            ("{\"a\":\u{7f}}", "invalid character '\\x7f' looking for beginning of value"),
            ("{\"a\":\t\u{b}}", "invalid character '\\v' looking for beginning of value"),
            ("\"", "unexpected end of JSON input"),
            ("-", "invalid character ' ' in numeric literal"),
            (r#"{"a":1.5.5}"#, "invalid character '.' after object key:value pair"),
            (r#"{"a":.5}"#, "invalid character '.' looking for beginning of value"),
            (r#" {"a": [1, 2.5e-3, "é\u00e9\n", null, true, {}, []]} "#, "ok"),
            ("5", "ok"),
        ];
        for (input, want) in cases {
            check_message(input.as_bytes(), want);
        }
    }

    #[test]
    fn depth_is_limited() {
        check_message(&[b"[".repeat(MAX_DEPTH), b"]".repeat(MAX_DEPTH)].concat(), "ok");
        check_message(&b"[".repeat(1_000_000), "invalid character '[' exceeded max depth");
    }

    #[test]
    fn agrees_with_serde_json() {
        fastrand::seed(7);
        let alphabet = br#"{}[]",:0123.-+eE\utrfalsn "#;
        for _ in 0..200_000 {
            let input: Vec<u8> =
                (0..fastrand::usize(0..12)).map(|_| alphabet[fastrand::usize(..alphabet.len())]).collect();
            let text = String::from_utf8_lossy(&input);
            // serde_json refuses lone surrogates and overflowing numbers, which the grammar allows.
            if !text.contains("\\u") && !text.to_lowercase().contains('e') {
                let theirs = serde_json::from_slice::<serde_json::Value>(&input).is_ok();
                assert_eq!(check(&input).is_ok(), theirs, "{text}");
            }
        }
    }
}
