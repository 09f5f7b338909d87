//! The encryption of backup files: ChaCha20-Poly1305 in chunks, under a key that scrypt derives from a
//! passphrase.
//!
//! The construction is STREAM (Hoang, Reyhanitabar, Rogaway, Vizár, 2015): the nonce of a chunk is its number
//! and whether it is the last one, so chunks cannot be reordered, dropped or cut off. The first two lines of
//! the file are authenticated with each chunk.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::archive::ArchiveError;

/// The size of a chunk before encryption.
const CHUNK_BYTES: usize = 64 * 1024;
const TAG_BYTES: usize = 16;
const SALT_BYTES: usize = 16;
/// scrypt's cost, as the logarithm of N: with r = 8 it takes 128 MiB and about half a second.
const COST: u8 = 17;
/// The highest cost that is accepted from a file: 1 GiB of memory.
const MOST_COST: u8 = 20;

/// The passphrase from which a key is derived.
pub struct Passphrase {
    words: Vec<u8>,
    cost: u8,
}

impl Passphrase {
    /// Reads the content of a passphrase file, without its newline. `None` if nothing remains.
    pub fn of_file(content: &[u8]) -> Option<Self> {
        let words = content.strip_suffix(b"\n").unwrap_or(content);
        let words = words.strip_suffix(b"\r").unwrap_or(words);
        (!words.is_empty()).then(|| Self { words: words.to_vec(), cost: COST })
    }

    /// A passphrase with a low scrypt cost, for tests.
    #[cfg(test)]
    pub fn cheap(words: &str) -> Self {
        Self { words: words.as_bytes().to_vec(), cost: 4 }
    }

    fn key(&self, cost: u8, salt: &[u8]) -> Option<LessSafeKey> {
        let mut key = [0; 32];
        let parameters = scrypt::Params::new(cost, 8, 1, key.len()).ok()?;
        scrypt::scrypt(&self.words, salt, &parameters, &mut key).ok()?;
        Some(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &key).ok()?))
    }
}

/// How a file is encrypted, as its second line states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealing {
    Plain,
    Scrypt { cost: u8, salt: [u8; SALT_BYTES] },
}

impl Sealing {
    pub fn random(passphrase: &Passphrase) -> io::Result<Self> {
        let mut salt = [0; SALT_BYTES];
        SystemRandom::new().fill(&mut salt).map_err(|_| io::Error::other("no random numbers"))?;
        Ok(Self::Scrypt { cost: passphrase.cost, salt })
    }
}

impl fmt::Display for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain"),
            Self::Scrypt { cost, salt } => {
                write!(f, "scrypt-chacha20poly1305 {cost} ")?;
                salt.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for Sealing {
    type Err = ArchiveError;

    fn from_str(line: &str) -> Result<Self, ArchiveError> {
        let damaged = || ArchiveError::Damaged("its second line names no known encryption");
        if line == "plain" {
            return Ok(Self::Plain);
        }
        let rest = line.strip_prefix("scrypt-chacha20poly1305 ").ok_or_else(damaged)?;
        let (cost, hex) = rest.split_once(' ').ok_or_else(damaged)?;
        let cost = cost.parse().ok().filter(|cost| (1..=MOST_COST).contains(cost)).ok_or_else(damaged)?;
        let mut salt = [0; SALT_BYTES];
        if hex.len() != 2 * SALT_BYTES || !hex.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(damaged());
        }
        for (byte, pair) in salt.iter_mut().zip(hex.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| damaged())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| damaged())?;
        }
        Ok(Self::Scrypt { cost, salt })
    }
}

/// Encrypts or decrypts the chunks of one file and counts them.
struct Chunks {
    key: LessSafeKey,
    preamble: Vec<u8>,
    next: u64,
}

impl Chunks {
    fn nonce(&mut self, last: bool) -> Nonce {
        let mut nonce = [0; 12];
        nonce[3..11].copy_from_slice(&self.next.to_be_bytes());
        nonce[11] = u8::from(last);
        self.next += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&mut self, chunk: &mut Vec<u8>, last: bool) -> io::Result<()> {
        let nonce = self.nonce(last);
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(&self.preamble), chunk)
            .map_err(|_| io::Error::other("cannot encrypt"))
    }

    fn open(&mut self, chunk: &mut Vec<u8>, last: bool) -> Option<()> {
        let nonce = self.nonce(last);
        let plain = self.key.open_in_place(nonce, Aad::from(&self.preamble), chunk).ok()?.len();
        chunk.truncate(plain);
        Some(())
    }
}

/// Writes its input, encrypted if there is a passphrase.
pub struct SealingWriter<W: Write> {
    output: W,
    sealed: Option<(Chunks, Vec<u8>)>,
}

impl<W: Write> SealingWriter<W> {
    pub fn new(
        output: W,
        sealing: &Sealing,
        passphrase: Option<&Passphrase>,
        preamble: &[u8],
    ) -> io::Result<Self> {
        let sealed = match (sealing, passphrase) {
            (Sealing::Scrypt { cost, salt }, Some(passphrase)) => {
                let key = passphrase.key(*cost, salt).ok_or_else(|| io::Error::other("cannot make a key"))?;
                Some((Chunks { key, preamble: preamble.to_vec(), next: 0 }, Vec::new()))
            }
            _ => None,
        };
        Ok(Self { output, sealed })
    }

    pub fn finish(mut self) -> io::Result<W> {
        if let Some((chunks, buffer)) = &mut self.sealed {
            chunks.seal(buffer, true)?;
            self.output.write_all(buffer)?;
        }
        self.output.flush()?;
        Ok(self.output)
    }
}

impl<W: Write> Write for SealingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((chunks, buffer)) = &mut self.sealed else { return self.output.write(bytes) };
        // A full chunk is held back until it is known whether it is the last one.
        if buffer.len() == CHUNK_BYTES && !bytes.is_empty() {
            chunks.seal(buffer, false)?;
            self.output.write_all(buffer)?;
            buffer.clear();
        }
        let taken = bytes.len().min(CHUNK_BYTES - buffer.len());
        buffer.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Reads what a [`SealingWriter`] has written. Errors other than those of the input contain an
/// [`ArchiveError`].
pub struct SealingReader<R: Read> {
    input: R,
    sealed: Option<Opened>,
}

struct Opened {
    chunks: Chunks,
    /// The chunk that is being read, and the position in it.
    chunk: Vec<u8>,
    read: usize,
    /// The byte after the chunk, read ahead to know whether the chunk is the last one.
    ahead: Option<u8>,
    ended: bool,
}

impl<R: Read> SealingReader<R> {
    pub fn new(
        input: R,
        sealing: &Sealing,
        passphrase: Option<&Passphrase>,
        preamble: &[u8],
    ) -> Result<Self, ArchiveError> {
        let sealed = match (sealing, passphrase) {
            (Sealing::Plain, None) => None,
            (Sealing::Plain, Some(_)) => return Err(ArchiveError::NotEncrypted),
            (Sealing::Scrypt { .. }, None) => return Err(ArchiveError::Encrypted),
            (Sealing::Scrypt { cost, salt }, Some(passphrase)) => {
                let key =
                    passphrase.key(*cost, salt).ok_or(ArchiveError::Damaged("its key cannot be made"))?;
                let chunks = Chunks { key, preamble: preamble.to_vec(), next: 0 };
                Some(Opened { chunks, chunk: Vec::new(), read: 0, ahead: None, ended: false })
            }
        };
        Ok(Self { input, sealed })
    }
}

impl<R: Read> Read for SealingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(opened) = &mut self.sealed else { return self.input.read(into) };
        if opened.read == opened.chunk.len() && !opened.ended {
            opened.advance(&mut self.input)?;
        }
        let taken = into.len().min(opened.chunk.len() - opened.read);
        into[..taken].copy_from_slice(&opened.chunk[opened.read..opened.read + taken]);
        opened.read += taken;
        Ok(taken)
    }
}

impl Opened {
    fn advance(&mut self, input: &mut impl Read) -> io::Result<()> {
        let whole = CHUNK_BYTES + TAG_BYTES;
        self.chunk.clear();
        self.read = 0;
        self.chunk.extend(self.ahead.take());
        let wanted = (whole - self.chunk.len()) as u64;
        input.by_ref().take(wanted).read_to_end(&mut self.chunk)?;
        let mut ahead = [0];
        let last = self.chunk.len() < whole || read_byte(input, &mut ahead)?;
        self.ahead = (!last).then_some(ahead[0]);
        let first = self.chunks.next == 0;
        let sealed = self.chunk.len();
        if self.chunks.open(&mut self.chunk, last).is_none() {
            self.chunk.clear();
            self.ended = true;
            return Err(io::Error::other(match (first, last) {
                (true, _) => ArchiveError::Passphrase,
                (false, true) if sealed < whole => ArchiveError::Truncated,
                _ => ArchiveError::Damaged("a chunk does not match its seal"),
            }));
        }
        self.ended = last;
        Ok(())
    }
}

/// Reads one byte; returns true if the input has ended instead.
fn read_byte(input: &mut impl Read, byte: &mut [u8; 1]) -> io::Result<bool> {
    match input.read_exact(byte) {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_every_length_come_back() {
        let secret = Passphrase::cheap("secret");
        let sealing = Sealing::random(&secret).unwrap();
        for size in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES] {
            let plain = vec![9; size];
            let mut writer = SealingWriter::new(Vec::new(), &sealing, Some(&secret), b"p").unwrap();
            writer.write_all(&plain).unwrap();
            let sealed = writer.finish().unwrap();
            let open = |sealed: &[u8], preamble: &[u8]| {
                let mut back = Vec::new();
                let mut reader = SealingReader::new(sealed, &sealing, Some(&secret), preamble).unwrap();
                reader.read_to_end(&mut back).map(|_| back)
            };
            assert_eq!(open(&sealed, b"p").unwrap(), plain);
            assert!(open(&sealed, b"q").is_err(), "its first lines are authenticated");
            let cut = sealed.len().saturating_sub(1) / (CHUNK_BYTES + TAG_BYTES) * (CHUNK_BYTES + TAG_BYTES);
            assert!(open(&sealed[..cut], b"p").is_err(), "cut between two chunks, of {size}");
        }
    }

    #[test]
    fn a_file_cannot_ask_for_any_amount_of_memory() {
        let salt = "0".repeat(32);
        for (line, good) in [
            (format!("scrypt-chacha20poly1305 17 {salt}"), true),
            (format!("scrypt-chacha20poly1305 21 {salt}"), false),
            (format!("scrypt-chacha20poly1305 0 {salt}"), false),
            (format!("scrypt-chacha20poly1305 17 {salt}0"), false),
            (format!("scrypt-chacha20poly1305 17 é{}", &salt[2..]), false),
            ("none".to_owned(), false),
        ] {
            assert_eq!(line.parse::<Sealing>().is_ok(), good, "{line}");
        }
        let salt = [0xab; SALT_BYTES];
        let sealing = Sealing::Scrypt { cost: 17, salt };
        assert_eq!(sealing.to_string().parse::<Sealing>().unwrap(), sealing);
    }
}
