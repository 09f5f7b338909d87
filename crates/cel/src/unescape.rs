//! Decoding of string and bytes literals.

/// Returns the value of a string literal, given with its quotes and its raw prefix.
pub fn string(literal: &str) -> Result<String, &'static str> {
    let (body, raw) = body(literal)?;
    let body = normalized(body);
    if raw || !body.contains('\\') {
        return Ok(body);
    }
    let mut out = String::with_capacity(body.len());
    let mut rest = body.chars();
    while let Some(c) = rest.next() {
        match c {
            '\\' => out.push(char::from_u32(escape(&mut rest, false)?).ok_or("invalid unicode code point")?),
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// Returns the value of a bytes literal, given without its `b`.
pub fn bytes(literal: &str) -> Result<Vec<u8>, &'static str> {
    let (body, raw) = body(literal)?;
    let body = normalized(body);
    if raw {
        return Ok(body.into_bytes());
    }
    let mut out = Vec::with_capacity(body.len());
    let mut rest = body.chars();
    let mut buffer = [0; 4];
    while let Some(c) = rest.next() {
        match c {
            '\\' => out.push(escape(&mut rest, true)? as u8),
            _ => out.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes()),
        }
    }
    Ok(out)
}

fn normalized(body: &str) -> String {
    if body.contains('\r') { body.replace("\r\n", "\n").replace('\r', "\n") } else { body.to_owned() }
}

fn body(literal: &str) -> Result<(&str, bool), &'static str> {
    const BAD: &str = "unable to unescape string";
    let raw = literal.starts_with(['r', 'R']);
    let quoted = if raw { &literal[1..] } else { literal };
    for quotes in ["'''", "\"\"\"", "'", "\""] {
        let inner = quoted.strip_prefix(quotes).and_then(|q| q.strip_suffix(quotes));
        if let Some(inner) = inner {
            return Ok((inner, raw));
        }
    }
    Err(BAD)
}

fn escape(rest: &mut std::str::Chars<'_>, bytes: bool) -> Result<u32, &'static str> {
    const BAD: &str = "unable to unescape string";
    let digits = |rest: &mut std::str::Chars<'_>, n: usize, radix: u32, start: u32| {
        (0..n).try_fold(start, |value, _| {
            let digit = rest.next().and_then(|c| c.to_digit(radix)).ok_or(BAD)?;
            value.checked_mul(radix).and_then(|v| v.checked_add(digit)).ok_or(BAD)
        })
    };
    let Some(c) = rest.next() else { return Err("unable to unescape string, found '\\' as last character") };
    Ok(match c {
        'a' => 7,
        'b' => 8,
        'f' => 12,
        'n' => 10,
        'r' => 13,
        't' => 9,
        'v' => 11,
        '\\' | '\'' | '"' | '`' | '?' => c as u32,
        'x' | 'X' => digits(rest, 2, 16, 0)?,
        'u' if !bytes => digits(rest, 4, 16, 0)?,
        'U' if !bytes => digits(rest, 8, 16, 0)?,
        '0'..='3' => digits(rest, 2, 8, c as u32 - '0' as u32)?,
        _ => return Err(BAD),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_have_their_values() {
        for (literal, wanted) in [
            (r#"'a\n\t\\'"#, "a\n\t\\"),
            (r"r'a\n'", "a\\n"),
            (r"'\u00e9\x41\101'", "\u{e9}AA"),
            ("'''it's'''", "it's"),
            ("\"\"", ""),
        ] {
            assert_eq!(string(literal), Ok(wanted.to_owned()), "{literal}");
        }
        assert_eq!(bytes(r"'\xff\377é'"), Ok(vec![0xff, 0xff, 0xc3, 0xa9]));
        assert_eq!(string(r"'\ud800'"), Err("invalid unicode code point"));
        assert!(bytes(r"'\u0041'").is_err());
    }
}
