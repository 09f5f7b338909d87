//! SHA-256 digests in the form `sha256:<64 hex digits>`, and a hasher for readers and writers.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The content address of a blob. Only SHA-256 is supported; parsing refuses other algorithms.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

/// Why a text is not a supported digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    #[error("invalid digest format: {0:?}")]
    Format(String),
    #[error("unsupported digest algorithm {0:?}, only sha256 is")]
    Algorithm(String),
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new();
        hasher.update(bytes);
        hasher.finish()
    }

    /// Returns the 64 lower-case hex digits, without the algorithm.
    pub fn hex(&self) -> String {
        use fmt::Write;
        self.0.iter().fold(String::with_capacity(64), |mut out, byte| {
            // Writing to a String cannot fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
    }

    pub fn from_hex(hex: &str) -> Result<Digest, DigestError> {
        let bad = || DigestError::Format(hex.chars().take(200).collect());
        if hex.len() != 64 {
            return Err(bad());
        }
        let mut out = [0u8; 32];
        for (slot, pair) in out.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let (Some(high), Some(low)) = (nibble(pair[0]), nibble(pair[1])) else { return Err(bad()) };
            *slot = high << 4 | low;
        }
        Ok(Digest(out))
    }

    /// Returns the chain id of a stack of layers: the digest of the parent's chain id and the top layer's diff
    /// id (OCI image specification, "Layer ChainID").
    pub fn chain(parent: Option<Digest>, diff_id: Digest) -> Digest {
        match parent {
            None => diff_id,
            Some(parent) => Digest::of(format!("{parent} {diff_id}").as_bytes()),
        }
    }
}

fn nibble(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(s: &str) -> Result<Digest, DigestError> {
        match s.split_once(':') {
            Some(("sha256", hex)) => {
                Digest::from_hex(hex).map_err(|_| DigestError::Format(s.chars().take(200).collect()))
            }
            Some((algorithm, hex)) if !algorithm.is_empty() && !hex.is_empty() => {
                Err(DigestError::Algorithm(algorithm.chars().take(200).collect()))
            }
            _ => Err(DigestError::Format(s.chars().take(200).collect())),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An incremental SHA-256 that also counts the bytes.
pub struct Hasher {
    context: ring::digest::Context,
    bytes: u64,
}

impl Hasher {
    pub fn new() -> Hasher {
        Hasher { context: ring::digest::Context::new(&ring::digest::SHA256), bytes: 0 }
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn finish(self) -> Digest {
        let mut out = [0u8; 32];
        out.copy_from_slice(self.context.finish().as_ref());
        Digest(out)
    }
}

impl Default for Hasher {
    fn default() -> Hasher {
        Hasher::new()
    }
}

/// Hashes the bytes that are read through it, and fails after `limit` bytes.
pub struct HashingReader<R> {
    inner: R,
    hasher: Hasher,
    limit: u64,
}

impl<R: Read> HashingReader<R> {
    pub fn new(inner: R, limit: u64) -> HashingReader<R> {
        HashingReader { inner, hasher: Hasher::new(), limit }
    }

    /// Reads to the end, so that trailing bytes are hashed too, and returns digest and length.
    pub fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        let bytes = self.hasher.bytes();
        Ok((self.hasher.finish(), bytes))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hasher.update(&buf[..n]);
        if self.hasher.bytes() > self.limit {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("content is larger than the limit of {} bytes", self.limit),
            ));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digest_round_trips() {
        let digest = Digest::of(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(digest.to_string(), text);
        assert_eq!(text.parse::<Digest>().unwrap(), digest);
    }

    #[test]
    fn bad_digests_are_refused() {
        for text in ["", "sha256:", "sha256:abc", "e3b0", "sha512:00", &format!("sha256:{}", "G".repeat(64))]
        {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
        assert!(matches!("sha512:aa".parse::<Digest>(), Err(DigestError::Algorithm(_))));
        assert!(format!("sha256:{}", "A".repeat(64)).parse::<Digest>().is_err());
    }

    #[test]
    fn chain_of_one_is_its_diff_id() {
        let diff = Digest::of(b"a");
        assert_eq!(Digest::chain(None, diff), diff);
        assert_ne!(Digest::chain(Some(diff), diff), diff);
    }

    #[test]
    fn reader_stops_at_its_limit() {
        let mut reader = HashingReader::new(&b"0123456789"[..], 5);
        assert!(io::copy(&mut reader, &mut io::sink()).is_err());
        let (digest, bytes) = HashingReader::new(&b"01234"[..], 5).finish().unwrap();
        assert_eq!((digest, bytes), (Digest::of(b"01234"), 5));
    }
}
