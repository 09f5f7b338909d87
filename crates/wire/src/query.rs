//! Query strings: decodes parameters, and parses booleans and numbers as Kubernetes clients expect.

use knarr_apimachinery::status::StatusError;

/// The decoded parameters of a request, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query. Parameters with a semicolon or an invalid escape are dropped, as Go's `url.URL.Query` does.
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|p| !p.is_empty() && !p.contains(';') && has_whole_escapes(p));
        let pairs = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name, true), decode(value, true))
        });
        Self(pairs.collect())
    }

    /// Returns the first value of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Returns the first value of this name, unless it is empty.
    pub fn non_empty(&self, name: &str) -> Option<&str> {
        self.get(name).filter(|v| !v.is_empty())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Returns whether the parameter is present and neither `false` nor `0`.
    pub fn flag(&self, name: &str) -> bool {
        self.optional_flag(name).unwrap_or(false)
    }

    pub fn optional_flag(&self, name: &str) -> Option<bool> {
        let value = self.get(name)?;
        Some(!(value == "0" || value.eq_ignore_ascii_case("false")))
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>, StatusError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| {
            StatusError::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
        })
    }
}

/// Returns whether every percent sign begins a valid escape.
pub fn has_whole_escapes(text: &str) -> bool {
    let is_hex = |digit: Option<&u8>| digit.is_some_and(u8::is_ascii_hexdigit);
    text.split('%').skip(1).all(|rest| is_hex(rest.as_bytes().first()) && is_hex(rest.as_bytes().get(1)))
}

/// Percent-decodes a text. Invalid escapes stay unchanged, invalid UTF-8 is replaced.
pub fn decode(text: &str, plus_is_space: bool) -> String {
    String::from_utf8_lossy(&decode_bytes(text, plus_is_space)).into_owned()
}

/// Percent-decodes like [`decode`], but returns bytes of any encoding.
pub fn decode_bytes(text: &str, plus_is_space: bool) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = |at: usize| bytes.get(at).and_then(|b| (*b as char).to_digit(16));
        match bytes[i] {
            b'+' if plus_is_space => out.push(b' '),
            b'%' => match (hex(i + 1), hex(i + 2)) {
                (Some(high), Some(low)) => {
                    out.push((high * 16 + low) as u8);
                    i += 2;
                }
                _ => out.push(b'%'),
            },
            byte => out.push(byte),
        }
        i += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_parameters() {
        let q = Query::parse("watch=1&labelSelector=a%3Db%2Cc+d&x&command=a&command=b&f=false&bad=%zz&n=7");
        assert!(q.flag("watch") && q.flag("x") && !q.flag("f") && !q.flag("none"));
        assert_eq!(q.get("labelSelector"), Some("a=b,c d"));
        assert_eq!(q.all("command").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(q.get("bad"), None);
        assert_eq!(q.number("n").unwrap(), Some(7));
        assert!(q.number("labelSelector").is_err());
    }

    #[test]
    fn parameters_that_cannot_be_read_are_left_out() {
        for (text, watches) in [
            ("watch=true", true),
            ("%77atch", true),
            ("watch=%20", true),
            ("watch=%zz", false),
            ("watch=%2", false),
            ("watch%=1", false),
            ("watch=true;x", false),
            ("x;watch=true", false),
            ("watch=true%3Bx", true),
            ("watch=%&watch=1", true),
        ] {
            assert_eq!(Query::parse(text).flag("watch"), watches, "{text}");
        }
    }
}
