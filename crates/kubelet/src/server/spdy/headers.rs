//! SPDY/3 header blocks: pairs of names and values in one zlib stream per direction, with a preset dictionary.
//!
//! Reading inflates with the dictionary as history. Writing uses stored blocks only, which every reader accepts
//! and which need no compressor.
//!
//! Source: the SPDY/3.1 draft, section 2.6.10.

use std::collections::BTreeMap;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// The window size of deflate, in bytes.
const WINDOW: usize = 32 << 10;
/// The maximal size of a header block after inflating, in bytes.
const MAX_BLOCK: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

/// The words of the dictionary that are preceded by their length.
const WORDS: &[&str] = &[
    "options",
    "head",
    "post",
    "put",
    "delete",
    "trace",
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "connection",
    "content-base",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-md5",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "retry-after",
    "server",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "method",
    "get",
    "status",
    "200 OK",
    "version",
    "HTTP/1.1",
    "url",
    "public",
    "set-cookie",
    "keep-alive",
    "origin",
];

/// The rest of the dictionary.
const TAIL: &str = "1001012012022052063003023033043053063074024054064074084094104114124134144154164175025045052\
    03 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forb\
    idden404 Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May J\
    un Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,ima\
    ge/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzi\
    p,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in WORDS {
        bytes.extend_from_slice(&(word.len() as u32).to_be_bytes());
        bytes.extend_from_slice(word.as_bytes());
    }
    bytes.extend_from_slice(TAIL.as_bytes());
    bytes
}

/// The peer's header block is invalid; no later block of the connection can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed header block")]
pub struct BadHeaders;

/// Reads the header blocks of one direction, in order.
pub struct Inflater {
    state: Box<DecompressorOxide>,
    /// A ring buffer of the history that the stream may refer to.
    window: Vec<u8>,
    at: usize,
    begun: bool,
}

impl Inflater {
    pub fn new() -> Self {
        let mut window = dictionary();
        let at = window.len();
        window.resize(WINDOW, 0);
        Self { state: Box::default(), window, at, begun: false }
    }

    pub fn read(&mut self, mut block: &[u8]) -> Result<BTreeMap<String, String>, BadHeaders> {
        if !self.begun {
            block = without_zlib_header(block)?;
            self.begun = true;
        }
        let mut out = Vec::new();
        loop {
            let (status, used, made) =
                decompress(&mut self.state, block, &mut self.window, self.at, TINFL_FLAG_HAS_MORE_INPUT);
            out.extend_from_slice(&self.window[self.at..self.at + made]);
            self.at = (self.at + made) % WINDOW;
            block = &block[used..];
            if out.len() > MAX_BLOCK {
                return Err(BadHeaders);
            }
            match status {
                TINFLStatus::HasMoreOutput => {}
                TINFLStatus::NeedsMoreInput if block.is_empty() => break,
                _ => return Err(BadHeaders),
            }
        }
        parse(&out)
    }
}

/// Returns the block without the zlib header: two bytes, and four more with the dictionary's id if one is used.
fn without_zlib_header(block: &[u8]) -> Result<&[u8], BadHeaders> {
    let [method, flags, rest @ ..] = block else { return Err(BadHeaders) };
    if method & 0x0f != 8 || (u16::from(*method) << 8 | u16::from(*flags)) % 31 != 0 {
        return Err(BadHeaders);
    }
    if flags & 0x20 == 0 { Ok(rest) } else { rest.get(4..).ok_or(BadHeaders) }
}

fn parse(mut block: &[u8]) -> Result<BTreeMap<String, String>, BadHeaders> {
    fn number(block: &mut &[u8]) -> Result<usize, BadHeaders> {
        let (head, rest) = block.split_first_chunk::<4>().ok_or(BadHeaders)?;
        *block = rest;
        Ok(u32::from_be_bytes(*head) as usize)
    }
    fn text(block: &mut &[u8]) -> Result<String, BadHeaders> {
        let length = number(block)?;
        let (head, rest) = block.split_at_checked(length).ok_or(BadHeaders)?;
        *block = rest;
        String::from_utf8(head.to_vec()).map_err(|_| BadHeaders)
    }
    let count = number(&mut block)?;
    if count > MAX_HEADERS {
        return Err(BadHeaders);
    }
    let mut headers = BTreeMap::new();
    for _ in 0..count {
        let name = text(&mut block)?.to_ascii_lowercase();
        headers.insert(name, text(&mut block)?);
    }
    Ok(headers)
}

/// Writes the header blocks of one direction, in order.
#[derive(Default)]
pub struct Storer {
    begun: bool,
}

impl Storer {
    /// Returns a block without headers, which suffices for a server's replies.
    pub fn empty_block(&mut self) -> Vec<u8> {
        self.block(&[])
    }

    /// Returns a block of at most 64 KiB; names are in lower case.
    pub fn block(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut content = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            content.extend_from_slice(&(text.len() as u32).to_be_bytes());
            content.extend_from_slice(text.as_bytes());
        }
        let mut block = Vec::with_capacity(content.len() + 12);
        if !self.begun {
            block.extend_from_slice(&[0x78, 0x01]);
            self.begun = true;
        }
        let length = content.len() as u16;
        block.push(0);
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(&(!length).to_le_bytes());
        block.extend_from_slice(&content);
        // An empty stored block makes readers process everything so far (a sync flush).
        block.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dictionary_is_the_drafts() {
        let dictionary = dictionary();
        let (mut a, mut b) = (1u32, 0u32);
        for byte in &dictionary {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        assert_eq!((dictionary.len(), b << 16 | a), (1423, 0xe3c6_a7c2));
    }

    #[test]
    fn what_the_storer_writes_can_be_read() {
        let (mut storer, mut inflater) = (Storer::default(), Inflater::new());
        for _ in 0..3 {
            let block = storer.empty_block();
            assert!(block.ends_with(&[0, 0, 0, 0xff, 0xff]), "readers wait for a flush");
            assert_eq!(inflater.read(&block), Ok(BTreeMap::new()));
        }
    }

    #[test]
    fn a_compressor_with_the_dictionary_is_understood() {
        // Two blocks of one stream as Go's spdystream writes them: {streamtype: error, port: 80, requestid: 0},
        // then the same with streamtype data.
        let first = "78f9e3c6a7c202253a060606ce2248fc6482d22da30138e59514a526e6420b17d65450d0430aea2250a266b23000000000ffff";
        let second = "826a4555082a851231d4a1190f000000ffff";
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[i * 2..i * 2 + 2], 16).unwrap()).collect()
        };
        let mut inflater = Inflater::new();
        for (block, kind) in [(first, "error"), (second, "data")] {
            let headers = inflater.read(&bytes(block)).unwrap();
            assert_eq!((headers["streamtype"].as_str(), headers["port"].as_str()), (kind, "80"));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [&b""[..], b"\x78", b"\x00\x00", b"\x78\x01\xff\xff\xff", b"\x78\xbb\x00"] {
            assert!(Inflater::new().read(bad).is_err(), "{bad:?}");
        }
        assert!(parse(&[0, 0, 0, 1, 0, 0, 0, 9]).is_err());
        assert!(parse(&[0xff, 0xff, 0xff, 0xff]).is_err());
    }
}
