//! Go's quoting of strings and characters in error messages.

use std::fmt::Write;

/// Quotes a text as `strconv.Quote` does: double quotes, with escapes for unprintable characters.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        escape(c, &mut out);
    }
    out.push('"');
    out
}

/// Returns the inside of the single quotes around an unexpected byte, read as a Latin-1 character.
pub fn quote_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"\'".to_owned(),
        b'"' => "\"".to_owned(),
        _ => {
            let mut out = String::new();
            escape(char::from(byte), &mut out);
            out
        }
    }
}

fn escape(c: char, out: &mut String) {
    match c {
        '"' | '\\' => {
            out.push('\\');
            out.push(c);
        }
        '\x07' => out.push_str("\\a"),
        '\x08' => out.push_str("\\b"),
        '\x0c' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\x0b' => out.push_str("\\v"),
        ' '..='~' => out.push(c),
        '\0'..='\x7f' => {
            let _ = write!(out, "\\x{:02x}", u32::from(c));
        }
        _ if prints(c) => out.push(c),
        _ if u32::from(c) < 0x1_0000 => {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        _ => {
            let _ = write!(out, "\\U{:08x}", u32::from(c));
        }
    }
}

/// Returns whether a character beyond ASCII is printable. It is tested after a letter: Rust, unlike Go, treats a lone
/// combining mark as unprintable.
fn prints(c: char) -> bool {
    !c.is_whitespace() && ['a', c].iter().collect::<String>().escape_debug().count() == 2
}

/// Quotes a text as Go's `time` package does: everything beyond printable ASCII as bytes.
pub fn quote_time(text: &[u8]) -> String {
    let mut out = String::from("\"");
    for &byte in text {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(char::from(byte));
            }
            b' '..=0x7f => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_go() {
        assert_eq!(quote("a\"b\\\n\u{1}\u{7f}é😀\u{a0}\u{200b}"), r#""a\"b\\\n\x01\x7fé😀\u00a0\u200b""#);
        assert_eq!(quote_byte(b'\''), "\\'");
        assert_eq!(quote_byte(b'"'), "\"");
        assert_eq!(quote_byte(0x85), "\\u0085");
        assert_eq!(quote_time("é\t".as_bytes()), r#""\xc3\xa9\x09""#);
    }
}
