//! Reads the interpreter, the needed libraries and the search paths of an ELF file, as the dynamic loader
//! would.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::BuildError;

const MAX_PROGRAM_HEADERS: usize = 1024;
const MAX_DYNAMIC_BYTES: u64 = 1 << 20;
const MAX_STRING: usize = 4096;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;

/// Word size and machine, in which a library must match its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    wide: bool,
    machine: u64,
}

/// The part of an ELF file that the dynamic loader needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    pub machine: Machine,
    /// `None` for static programs and libraries.
    pub interpreter: Option<String>,
    pub needed: Vec<String>,
    /// Separated by colons, as stored in the file.
    pub rpath: Option<String>,
    pub runpath: Option<String>,
}

struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    file_size: u64,
}

/// Reads an ELF file; returns `None` for any other file, for example a script. Only little-endian files are
/// supported.
pub fn read_elf(path: &Path) -> Result<Option<Elf>, BuildError> {
    let file = File::open(path).map_err(BuildError::io("open", path))?;
    match parse(&file) {
        Ok(elf) => Ok(elf),
        Err(Fault::Read(source)) => Err(BuildError::io("read", path)(source)),
        Err(Fault::Format(reason)) => Err(BuildError::Elf { path: path.to_owned(), reason }),
    }
}

enum Fault {
    Read(io::Error),
    Format(&'static str),
}

fn parse(file: &File) -> Result<Option<Elf>, Fault> {
    let head = read_at(file, 0, 64)?;
    if !head.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    if head.len() < 52 {
        return Err(Fault::Format("truncated header"));
    }
    let wide = match head[4] {
        1 => false,
        2 => true,
        _ => return Err(Fault::Format("unknown word size")),
    };
    if head[5] != 1 {
        return Err(Fault::Format("not little-endian"));
    }
    let machine = Machine { wide, machine: number(&head, 18, 2)? };
    let segments = segments(file, &head, wide)?;
    let mut elf = Elf { machine, interpreter: None, needed: Vec::new(), rpath: None, runpath: None };
    if let Some(segment) = segments.iter().find(|s| s.kind == PT_INTERP) {
        elf.interpreter = Some(string(file, segment.offset)?);
    }
    if let Some(segment) = segments.iter().find(|s| s.kind == PT_DYNAMIC) {
        dynamic(file, &mut elf, segment, &segments)?;
    }
    Ok(Some(elf))
}

fn segments(file: &File, head: &[u8], wide: bool) -> Result<Vec<Segment>, Fault> {
    let (table, size, count) = if wide {
        (number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?)
    } else {
        (number(head, 28, 4)?, number(head, 42, 2)?, number(head, 44, 2)?)
    };
    let least = if wide { 56 } else { 32 };
    let (size, count) = (size as usize, count as usize);
    if count > MAX_PROGRAM_HEADERS || (count > 0 && size < least) || size > 4096 {
        return Err(Fault::Format("implausible program headers"));
    }
    let bytes = read_at(file, table, size * count)?;
    let headers = bytes.chunks_exact(size.max(1));
    let segment = |h: &[u8]| -> Result<Segment, Fault> {
        let kind = number(h, 0, 4)?;
        Ok(if wide {
            Segment {
                kind,
                offset: number(h, 8, 8)?,
                address: number(h, 16, 8)?,
                file_size: number(h, 32, 8)?,
            }
        } else {
            Segment {
                kind,
                offset: number(h, 4, 4)?,
                address: number(h, 8, 4)?,
                file_size: number(h, 16, 4)?,
            }
        })
    };
    headers.map(segment).collect()
}

fn dynamic(file: &File, elf: &mut Elf, segment: &Segment, segments: &[Segment]) -> Result<(), Fault> {
    if segment.file_size > MAX_DYNAMIC_BYTES {
        return Err(Fault::Format("implausible dynamic section"));
    }
    let word = if elf.machine.wide { 8 } else { 4 };
    let bytes = read_at(file, segment.offset, segment.file_size as usize)?;
    let mut entries = Vec::new();
    for entry in bytes.chunks_exact(2 * word) {
        let (tag, value) = (number(entry, 0, word)?, number(entry, word, word)?);
        if tag == 0 {
            break;
        }
        entries.push((tag, value));
    }
    let Some((_, address)) = entries.iter().find(|(tag, _)| *tag == DT_STRTAB) else { return Ok(()) };
    let load = segments
        .iter()
        .find(|s| s.kind == PT_LOAD && *address >= s.address && address - s.address < s.file_size)
        .ok_or(Fault::Format("string table is in no segment"))?;
    let strings = load.offset.wrapping_add(address - load.address);
    for (tag, value) in entries {
        let text = || string(file, strings.wrapping_add(value));
        match tag {
            DT_NEEDED => elf.needed.push(text()?),
            DT_RPATH => elf.rpath = Some(text()?),
            DT_RUNPATH => elf.runpath = Some(text()?),
            _ => {}
        }
    }
    Ok(())
}

fn number(bytes: &[u8], at: usize, size: usize) -> Result<u64, Fault> {
    let field = bytes.get(at..at + size).ok_or(Fault::Format("truncated header"))?;
    Ok(field.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b)))
}

fn string(file: &File, at: u64) -> Result<String, Fault> {
    let bytes = read_at(file, at, MAX_STRING)?;
    let end = bytes.iter().position(|b| *b == 0).ok_or(Fault::Format("endless string"))?;
    String::from_utf8(bytes[..end].to_vec()).map_err(|_| Fault::Format("string that is no text"))
}

/// Reads up to `size` bytes; fewer at the end of the file.
fn read_at(file: &File, at: u64, size: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = vec![0; size];
    let mut got = 0;
    while got < size {
        let Some(offset) = at.checked_add(got as u64).filter(|o| i64::try_from(*o).is_ok()) else {
            return Err(Fault::Format("offset out of range"));
        };
        match file.read_at(&mut bytes[got..], offset) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Fault::Read(e)),
        }
    }
    bytes.truncate(got);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::fixture::TempDir;

    #[test]
    fn this_very_test_is_understood() {
        let elf = read_elf(&std::env::current_exe().unwrap()).unwrap().unwrap();
        if elf.interpreter.is_some() {
            assert!(elf.needed.iter().any(|n| n.starts_with("libc.")), "{elf:?}");
        }
    }

    #[test]
    fn mutilated_files_are_refused_without_a_panic() {
        let dir = TempDir::new();
        let path = dir.path().join("x");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(read_elf(&path).unwrap(), None);
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let head = &own[..own.len().min(8192)];
        for at in 0..200 {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = head.to_vec();
                bytes[at] = value;
                std::fs::write(&path, &bytes).unwrap();
                let _ = read_elf(&path);
            }
            std::fs::write(&path, &head[..at]).unwrap();
            let _ = read_elf(&path);
        }
    }
}
