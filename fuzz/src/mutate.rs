//! Mutates good inputs into broken ones.

use fastrand::Rng;

/// The most bytes of an input.
const MOST: usize = 64 << 10;
/// Texts that decoders treat specially.
const WORDS: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "null",
    "true",
    "-",
    "0",
    "1e999",
    "-0.0",
    "18446744073709551616",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "\u{0}",
    "é",
    "$patch",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/x",
    "$retainKeys",
    "/",
    "~0",
    "~1",
    "/-",
    "k:{\"name\":\"x\"}",
    "f:metadata",
    "v:1",
    "i:0",
    "=",
    "!=",
    "!",
    "in",
    "notin",
    "(",
    ")",
    "%00",
    "%",
    "&",
    "+",
    "&a",
    "*a",
    "<<: *a",
    "---\n",
    "!!binary ",
    "? ",
    "|\n",
    "Ki",
    "E",
    "e-9999",
    "n",
    "metadata",
    "name",
    "generateName",
    "apiVersion",
    "kind",
    "List",
    "items",
];

/// Returns a mutation of one of these inputs.
pub fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = pick(corpus, rng);
    for _ in 0..rng.usize(1..=6) {
        once(&mut input, corpus, rng);
    }
    input.truncate(MOST);
    input
}

fn pick(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if corpus.is_empty() { Vec::new() } else { corpus[rng.usize(..corpus.len())].clone() }
}

fn once(input: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    let at = rng.usize(..=input.len());
    let end = rng.usize(at..=input.len().min(at + 64));
    match rng.u8(..9) {
        0 => drop(input.drain(at..end)),
        1 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << rng.u8(..8);
            }
        }
        2 => {
            if let Some(byte) = input.get_mut(at) {
                *byte = rng.u8(..);
            }
        }
        3 => {
            let word = WORDS[rng.usize(..WORDS.len())].as_bytes();
            input.splice(at..at, word.iter().copied());
        }
        4 => {
            let word = WORDS[rng.usize(..WORDS.len())].as_bytes();
            input.splice(at..end, word.iter().copied());
        }
        5 => {
            // Repeats a part: nesting and long lists.
            let part = input[at..end].to_vec();
            let times = rng.usize(1..=400).min(MOST / part.len().max(1));
            input.splice(at..at, part.repeat(times));
        }
        6 => {
            let other = pick(corpus, rng);
            let from = rng.usize(..=other.len());
            input.splice(at..end, other[from..].iter().copied());
        }
        7 => {
            let open = *rng.choice(b"[{(\"").unwrap_or(&b'[');
            input.splice(at..at, std::iter::repeat_n(open, rng.usize(1..=3000)));
        }
        _ => input.truncate(at),
    }
}
