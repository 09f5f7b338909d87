//! Device access on cgroup v2: a small eBPF program that replaces v1's devices controller.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::limits::DeviceRule;

/// Mirrors `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Insn {
    code: u8,
    /// Destination register in the low four bits, source in the high four.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn insn(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Insn {
    Insn { code, registers: dst | src << 4, offset, immediate }
}

const LOAD_WORD: u8 = 0x61;
const MOVE_REG: u8 = 0xbf;
const MOVE_IMM: u8 = 0xb7;
const AND_IMM: u8 = 0x57;
const RIGHT_SHIFT_IMM: u8 = 0x77;
const JUMP_NOT_EQUAL: u8 = 0x55;
const EXIT: u8 = 0x95;

const BLOCK: i32 = 1;
const CHAR: i32 = 2;

fn access_bits(access: &str) -> i32 {
    access.bytes().fold(0, |bits, b| {
        bits | match b {
            b'm' => 1,
            b'r' => 2,
            b'w' => 4,
            _ => 0,
        }
    })
}

/// Builds the program. Registers: r2 kind, r3 access, r4 major, r5 minor. Each rule is a block that allows or
/// falls through.
fn program(rules: &[DeviceRule]) -> Vec<Insn> {
    let mut out = vec![
        insn(LOAD_WORD, 2, 1, 0, 0),
        insn(MOVE_REG, 3, 2, 0, 0),
        insn(AND_IMM, 2, 0, 0, 0xffff),
        insn(RIGHT_SHIFT_IMM, 3, 0, 0, 16),
        insn(LOAD_WORD, 4, 1, 4, 0),
        insn(LOAD_WORD, 5, 1, 8, 0),
    ];
    for rule in rules {
        let mut block: Vec<Insn> = Vec::new();
        let kind = if rule.block { BLOCK } else { CHAR };
        block.push(insn(JUMP_NOT_EQUAL, 2, 0, 0, kind));
        // A rule does not match if any requested access bit is outside the allowed ones.
        block.push(insn(MOVE_REG, 1, 3, 0, 0));
        block.push(insn(AND_IMM, 1, 0, 0, !access_bits(&rule.access) & 7));
        block.push(insn(JUMP_NOT_EQUAL, 1, 0, 0, 0));
        for (register, number) in [(4, rule.major), (5, rule.minor)] {
            if let Some(number) = number {
                block.push(insn(JUMP_NOT_EQUAL, register, 0, 0, number as i32));
            }
        }
        block.push(insn(MOVE_IMM, 0, 0, 0, 1));
        block.push(insn(EXIT, 0, 0, 0, 0));
        let length = block.len();
        for (index, instruction) in block.iter_mut().enumerate() {
            if instruction.code == JUMP_NOT_EQUAL {
                instruction.offset = (length - index - 1) as i16;
            }
        }
        out.extend(block);
    }
    out.push(insn(MOVE_IMM, 0, 0, 0, 0));
    out.push(insn(EXIT, 0, 0, 0, 0));
    out
}

/// The first fields of `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
}

/// The first fields of `union bpf_attr` for BPF_PROG_ATTACH.
#[repr(C)]
#[derive(Default)]
struct AttachAttr {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
}

const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 2;

/// Loads the filter and attaches it to the cgroup, which it then lives as long as.
pub fn attach(cgroup: BorrowedFd<'_>, rules: &[DeviceRule]) -> io::Result<()> {
    let insns = program(rules);
    let load = LoadAttr {
        prog_type: BPF_PROG_TYPE_CGROUP_DEVICE,
        insn_count: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        ..LoadAttr::default()
    };
    // SAFETY: load and everything it points to are valid for the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, std::mem::size_of::<LoadAttr>())
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that no other code owns.
    let program = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let attach = AttachAttr {
        target_fd: cgroup.as_raw_fd() as u32,
        attach_bpf_fd: program.as_raw_fd() as u32,
        attach_type: BPF_CGROUP_DEVICE,
        attach_flags: BPF_F_ALLOW_MULTI,
    };
    // SAFETY: attach is valid for the call.
    let ret = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, &raw const attach, std::mem::size_of::<AttachAttr>())
    };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interprets the program as the kernel would, for example for character devices.
    fn allows(rules: &[DeviceRule], kind: i32, access: i32, major: i64, minor: i64) -> bool {
        let program = program(rules);
        let mut r = [0i64; 11];
        let context = [i64::from(kind | access << 16), major, minor];
        let mut pc = 0usize;
        loop {
            let i = program[pc];
            let (dst, src) = ((i.registers & 15) as usize, (i.registers >> 4) as usize);
            pc += 1;
            match i.code {
                LOAD_WORD => r[dst] = context[i.offset as usize / 4],
                MOVE_REG => r[dst] = r[src],
                MOVE_IMM => r[dst] = i.immediate.into(),
                AND_IMM => r[dst] &= i64::from(i.immediate),
                RIGHT_SHIFT_IMM => r[dst] >>= i.immediate,
                JUMP_NOT_EQUAL if r[dst] != i64::from(i.immediate) => pc += i.offset as usize,
                EXIT => return r[0] == 1,
                _ => {}
            }
        }
    }

    #[test]
    fn default_rules() {
        let rules = DeviceRule::defaults();
        assert!(allows(&rules, CHAR, 2, 1, 3), "read /dev/null");
        assert!(allows(&rules, CHAR, 6, 136, 7), "use a pseudo-terminal");
        assert!(allows(&rules, BLOCK, 1, 8, 0), "mknod of anything");
        assert!(!allows(&rules, BLOCK, 2, 8, 0), "read a disk");
        assert!(!allows(&rules, CHAR, 4, 1, 1), "write /dev/mem");
        assert!(!allows(&rules, CHAR, 3, 1, 1), "mknod and read /dev/mem");
    }
}
