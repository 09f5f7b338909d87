//! Standard base64 as Go decodes it: line breaks are skipped, and an error names the byte where Go stops.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn value_of(symbol: u8) -> Option<u32> {
    match symbol {
        b'A'..=b'Z' => Some(u32::from(symbol - b'A')),
        b'a'..=b'z' => Some(u32::from(symbol - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(symbol - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Returns the bytes, or the offset in Go's `illegal base64 data at input byte N`.
pub fn decode(text: &[u8]) -> Result<Vec<u8>, usize> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0_usize);
    let mut pos = 0;
    while let Some(&symbol) = text.get(pos) {
        pos += 1;
        if matches!(symbol, b'\r' | b'\n') {
            continue;
        }
        if symbol == b'=' {
            return finish(text, pos, bits, count, out);
        }
        let Some(value) = value_of(symbol) else { return Err(pos - 1) };
        bits = bits << 6 | value;
        count += 1;
        if count == 4 {
            out.extend_from_slice(&bits.to_be_bytes()[1..]);
            (bits, count) = (0, 0);
        }
    }
    if count == 0 { Ok(out) } else { Err(pos - count) }
}

/// Decodes the padding, whose first character is before `pos`.
fn finish(text: &[u8], mut pos: usize, bits: u32, count: usize, mut out: Vec<u8>) -> Result<Vec<u8>, usize> {
    let skip = |mut pos: usize| {
        while matches!(text.get(pos), Some(b'\r' | b'\n')) {
            pos += 1;
        }
        pos
    };
    match count {
        0 | 1 => return Err(pos - 1),
        2 => {
            pos = skip(pos);
            match text.get(pos) {
                None => return Err(text.len()),
                Some(b'=') => pos += 1,
                Some(_) => return Err(pos - 1),
            }
            out.push((bits >> 4).to_be_bytes()[3]);
        }
        _ => out.extend_from_slice(&(bits >> 2).to_be_bytes()[2..]),
    }
    pos = skip(pos);
    if pos < text.len() { Err(pos) } else { Ok(out) }
}

pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let symbol = ALPHABET[(bits >> (18 - 6 * i)) as usize & 63];
            out.push(if i <= chunk.len() { char::from(symbol) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        fastrand::seed(5);
        for len in 0..200 {
            let bytes: Vec<u8> = (0..len).map(|_| fastrand::u8(..)).collect();
            assert_eq!(decode(encode(&bytes).as_bytes()), Ok(bytes));
        }
        assert_eq!(encode(b"ab"), "YWI=");
    }
}
