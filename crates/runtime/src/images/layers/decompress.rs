//! Decompresses layers and archives: plain, gzip or zstd, recognised by their first bytes.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const BUFFER_BYTES: usize = 128 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Decompresses `source` according to its first bytes, because the media type is not trusted.
pub fn decompress<'a, R: Read + 'a>(mut source: R) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::with_capacity(4);
    source.by_ref().take(4).read_to_end(&mut head)?;
    let kind = head.clone();
    let source = BufReader::with_capacity(BUFFER_BYTES, io::Cursor::new(head).chain(source));
    if kind.starts_with(&GZIP_MAGIC) {
        return Ok(Box::new(MultiGzDecoder::new(source)));
    }
    if kind.starts_with(&ZSTD_MAGIC) || is_skippable_frame(&kind) {
        return Ok(Box::new(ZstdReader { source, decoder: FrameDecoder::new(), active: false }));
    }
    Ok(Box::new(source))
}

fn is_skippable_frame(head: &[u8]) -> bool {
    head.len() >= 4 && head[0] & 0xf0 == 0x50 && head[1..4] == [0x2a, 0x4d, 0x18]
}

/// Reads all frames of a zstd stream one after the other, without skippable frames.
struct ZstdReader<R: Read> {
    source: BufReader<R>,
    decoder: FrameDecoder,
    active: bool,
}

impl<R: Read> ZstdReader<R> {
    /// Moves to the next data frame; returns false at the end of the source.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.source.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped =
                        io::copy(&mut self.source.by_ref().take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(e) => return Err(io::Error::new(io::ErrorKind::InvalidData, e)),
            }
        }
    }
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.active {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.active = true;
            }
            if self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBytes(buf.len()))
                    .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            }
            let n = self.decoder.read(buf)?;
            if n > 0 {
                return Ok(n);
            }
            if self.decoder.is_finished() && self.decoder.can_collect() == 0 {
                self.active = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn plain(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        decompress(bytes).unwrap().read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn every_compression_gives_the_same_bytes() {
        let text: Vec<u8> = (0..300_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let gzip = |data: &[u8]| {
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gz.write_all(data).unwrap();
            gz.finish().unwrap()
        };
        let zstd = |data: &[u8]| {
            ruzstd::encoding::compress_to_vec(data, ruzstd::encoding::CompressionLevel::Fastest)
        };
        let (a, b) = text.split_at(500_000);
        assert_eq!(plain(&text), text);
        assert_eq!(plain(&gzip(&text)), text);
        assert_eq!(plain(&[gzip(a), gzip(b)].concat()), text, "several members");
        assert_eq!(plain(&zstd(&text)), text);
        let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        assert_eq!(plain(&[&skippable[..], &zstd(a), &skippable, &zstd(b), &skippable].concat()), text);
        assert_eq!(plain(b""), b"");
    }

    #[test]
    fn damaged_streams_are_errors() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&[7; 10_000]).unwrap();
        let mut gz = gz.finish().unwrap();
        gz.truncate(gz.len() - 9);
        let mut zst = ruzstd::encoding::compress_to_vec(
            &[7u8; 10_000][..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        zst.truncate(zst.len() / 2);
        for bad in [gz, zst, vec![0x28, 0xb5, 0x2f, 0xfd, 0xff, 0xff], vec![0x1f, 0x8b, 0xff]] {
            let read = decompress(&bad[..]).and_then(|mut r| io::copy(&mut r, &mut io::sink()));
            assert!(read.is_err());
        }
    }
}
