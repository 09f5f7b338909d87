//! Compiles a profile to classic BPF: a binary search over system call numbers, then argument checks.

use std::collections::BTreeMap;

use super::profile::{Action, Arg, Operator, Profile};
use super::syscalls;

/// Mirrors `struct sock_filter`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_GREATER_EQUAL: u16 = 0x35;
const RETURN: u16 = 0x06;

const NUMBER_OFFSET: u32 = 0;
const ARCH_OFFSET: u32 = 4;
const ARGS_OFFSET: u32 = 16;

/// The kernel's limit on a filter's length.
const MAX_INSTRUCTIONS: usize = 4096;
/// x32 calls on x86-64 have this bit; no profile here contains them.
const X32_BIT: u32 = 0x4000_0000;

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "riscv64")]
const ARCH: u32 = 0xc000_00f3;

const fn op(code: u16, value: u32) -> Instruction {
    Instruction { code, if_true: 0, if_false: 0, value }
}

const fn jump(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, value }
}

/// The actions for one system call: conditional rules in order, then the default.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Verdict {
    conditional: Vec<(Vec<Arg>, Action)>,
    otherwise: Action,
}

/// Compiles the filter; calls of foreign architectures are refused with EPERM.
pub fn compile(profile: &Profile) -> Result<Vec<Instruction>, String> {
    let default = Verdict { conditional: vec![], otherwise: profile.default_action };
    let mut verdicts: BTreeMap<u32, Verdict> = BTreeMap::new();
    for rule in &profile.rules {
        for number in rule.names.iter().filter_map(|name| syscalls::number(name)) {
            let verdict = verdicts.entry(number).or_insert_with(|| default.clone());
            if rule.args.is_empty() {
                verdict.otherwise = rule.action;
            } else {
                verdict.conditional.push((rule.args.clone(), rule.action));
            }
        }
    }
    let ranges = ranges(&verdicts, &default);
    let refuse = Action::Errno(libc::EPERM as u16).code();
    let mut out = vec![
        op(LOAD, ARCH_OFFSET),
        jump(JUMP_EQUAL, ARCH, 1, 0),
        op(RETURN, refuse),
        op(LOAD, NUMBER_OFFSET),
        jump(JUMP_GREATER_EQUAL, X32_BIT, 0, 1),
        op(RETURN, refuse),
    ];
    search(&ranges, &mut out)?;
    if out.len() > MAX_INSTRUCTIONS {
        return Err(format!(
            "seccomp profile: {} instructions, the kernel takes {MAX_INSTRUCTIONS}",
            out.len()
        ));
    }
    Ok(out)
}

/// Merges neighbouring numbers with the same verdict into ranges: (first number, verdict), from 0 on.
fn ranges<'a>(verdicts: &'a BTreeMap<u32, Verdict>, default: &'a Verdict) -> Vec<(u32, &'a Verdict)> {
    let mut out: Vec<(u32, &Verdict)> = vec![(0, default)];
    let mut push = |first: u32, verdict: &'a Verdict| {
        if out.last().is_some_and(|(start, _)| *start == first) {
            out.pop();
        }
        if out.last().is_none_or(|(_, last)| *last != verdict) {
            out.push((first, verdict));
        }
    };
    for (number, verdict) in verdicts {
        push(*number, verdict);
        push(number + 1, default);
    }
    out
}

fn search(ranges: &[(u32, &Verdict)], out: &mut Vec<Instruction>) -> Result<(), String> {
    match ranges {
        [] => Ok(()),
        [(_, verdict)] => emit_verdict(verdict, out),
        _ => {
            let (left, right) = ranges.split_at(ranges.len() / 2);
            // Conditional jumps reach only 255 instructions, so an unconditional jump leads to the far side.
            out.push(jump(JUMP_GREATER_EQUAL, right[0].0, 0, 1));
            let jump_at = out.len();
            out.push(op(JUMP, 0));
            search(left, out)?;
            out[jump_at].value = (out.len() - jump_at - 1) as u32;
            search(right, out)
        }
    }
}

fn emit_verdict(verdict: &Verdict, out: &mut Vec<Instruction>) -> Result<(), String> {
    for (args, action) in &verdict.conditional {
        let mut block = Vec::new();
        for arg in args {
            emit_arg(arg, &mut block);
        }
        block.push(op(RETURN, action.code()));
        let length = block.len();
        for (index, instruction) in block.iter_mut().enumerate() {
            let to_end =
                u8::try_from(length - index - 1).map_err(|_| "seccomp profile: rule too long".to_owned())?;
            for target in [&mut instruction.if_true, &mut instruction.if_false] {
                if *target == NEXT_RULE {
                    *target = to_end;
                }
            }
        }
        out.extend(block);
    }
    out.push(op(RETURN, verdict.otherwise.code()));
    Ok(())
}

/// A placeholder for the jump to the next rule, until the rule's length is known.
const NEXT_RULE: u8 = 255;

/// Emits the check of one argument, which falls through if it matches. Compares two 32-bit halves, because BPF
/// has no 64-bit comparison.
fn emit_arg(arg: &Arg, out: &mut Vec<Instruction>) {
    let low_offset = ARGS_OFFSET + 8 * arg.index;
    let (high_offset, low_offset) = if cfg!(target_endian = "little") {
        (low_offset + 4, low_offset)
    } else {
        (low_offset, low_offset + 4)
    };
    let (high, low) = ((arg.value >> 32) as u32, arg.value as u32);
    let load_high = op(LOAD, high_offset);
    let load_low = op(LOAD, low_offset);
    match arg.operator {
        Operator::Equal => out.extend([
            load_high,
            jump(JUMP_EQUAL, high, 0, NEXT_RULE),
            load_low,
            jump(JUMP_EQUAL, low, 0, NEXT_RULE),
        ]),
        Operator::NotEqual => out.extend([
            load_high,
            jump(JUMP_EQUAL, high, 0, 2),
            load_low,
            jump(JUMP_EQUAL, low, NEXT_RULE, 0),
        ]),
        Operator::MaskedEqual => {
            let (want_high, want_low) = ((arg.value_two >> 32) as u32, arg.value_two as u32);
            out.extend([
                load_high,
                op(AND, high),
                jump(JUMP_EQUAL, want_high, 0, NEXT_RULE),
                load_low,
                op(AND, low),
                jump(JUMP_EQUAL, want_low, 0, NEXT_RULE),
            ]);
        }
        // high > value: matches; high < value: does not match; equal: the low half decides.
        Operator::Greater | Operator::GreaterOrEqual => {
            let low_test = if arg.operator == Operator::Greater { JUMP_GREATER } else { JUMP_GREATER_EQUAL };
            out.extend([
                load_high,
                jump(JUMP_GREATER, high, 3, 0),
                jump(JUMP_EQUAL, high, 0, NEXT_RULE),
                load_low,
                jump(low_test, low, 0, NEXT_RULE),
            ]);
        }
        Operator::Less | Operator::LessOrEqual => {
            let low_test = if arg.operator == Operator::Less { JUMP_GREATER_EQUAL } else { JUMP_GREATER };
            out.extend([
                load_high,
                jump(JUMP_GREATER, high, NEXT_RULE, 0),
                jump(JUMP_EQUAL, high, 0, 2),
                load_low,
                jump(low_test, low, NEXT_RULE, 0),
            ]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::Rule;
    use super::*;

    fn run(program: &[Instruction], arch: u32, number: u32, args: [u64; 6]) -> u32 {
        let load = |offset: u32| match offset {
            NUMBER_OFFSET => number,
            ARCH_OFFSET => arch,
            _ => {
                let index = ((offset - ARGS_OFFSET) / 8) as usize;
                if offset.is_multiple_of(8) { args[index] as u32 } else { (args[index] >> 32) as u32 }
            }
        };
        let (mut pc, mut a) = (0usize, 0u32);
        loop {
            let i = program[pc];
            pc += 1;
            let branch = |taken: bool| usize::from(if taken { i.if_true } else { i.if_false });
            match i.code {
                LOAD => a = load(i.value),
                AND => a &= i.value,
                JUMP => pc += i.value as usize,
                JUMP_EQUAL => pc += branch(a == i.value),
                JUMP_GREATER => pc += branch(a > i.value),
                JUMP_GREATER_EQUAL => pc += branch(a >= i.value),
                _ => return i.value,
            }
        }
    }

    fn number(name: &str) -> u32 {
        syscalls::number(name).unwrap()
    }

    #[test]
    fn default_profile() {
        let caps = crate::containers::capabilities::sets_of(&Default::default()).bounding;
        let program = compile(&super::super::default::profile(caps)).unwrap();
        let verdict = |name: &str, args: [u64; 6]| run(&program, ARCH, number(name), args);
        let (allow, eperm, enosys) = (0x7fff_0000, 0x5_0001, 0x5_0026);
        assert_eq!(verdict("read", [0; 6]), allow);
        assert_eq!(verdict("execve", [0; 6]), allow);
        assert_eq!(verdict("chroot", [0; 6]), allow, "SYS_CHROOT is a default capability");
        assert_eq!(verdict("mount", [0; 6]), eperm);
        assert_eq!(verdict("clone3", [0; 6]), enosys);
        assert_eq!(verdict("clone", [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), allow);
        assert_eq!(verdict("clone", [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), eperm);
        assert_eq!(verdict("socket", [1, 0, 0, 0, 0, 0]), allow);
        assert_eq!(verdict("socket", [40, 0, 0, 0, 0, 0]), eperm);
        assert_eq!(verdict("personality", [0xffff_ffff, 0, 0, 0, 0, 0]), allow);
        assert_eq!(verdict("personality", [0x40_0000, 0, 0, 0, 0, 0]), eperm);
        assert_eq!(run(&program, ARCH, 9999, [0; 6]), eperm);
        assert_eq!(run(&program, ARCH, number("read") | X32_BIT, [0; 6]), eperm);
        assert_eq!(run(&program, 0x4000_0003, 3, [0; 6]), eperm, "a 32-bit call");
        assert!(program.len() < 800, "{}", program.len());
    }

    #[test]
    fn operators_compare_64_bits() {
        let big = 1u64 << 33 | 5;
        let cases = [
            (Operator::Equal, vec![big], vec![5, big + 1, 1 << 33]),
            (Operator::NotEqual, vec![5, 1 << 33, 0], vec![big]),
            (Operator::Greater, vec![big + 1, 1 << 34], vec![big, 6, 0]),
            (Operator::GreaterOrEqual, vec![big, 1 << 34], vec![big - 1, 6]),
            (Operator::Less, vec![big - 1, 6, 0], vec![big, 1 << 34]),
            (Operator::LessOrEqual, vec![big, 6], vec![big + 1, 1 << 34]),
        ];
        for (operator, holds, fails) in cases {
            let rule = Rule {
                names: vec!["read".into()],
                action: Action::Allow,
                args: vec![Arg { index: 1, operator, value: big, value_two: 0 }],
            };
            let program = compile(&Profile { default_action: Action::Log, rules: vec![rule] }).unwrap();
            for (values, want) in [(holds, 0x7fff_0000), (fails, 0x7ffc_0000)] {
                for value in values {
                    assert_eq!(
                        run(&program, ARCH, number("read"), [0, value, 0, 0, 0, 0]),
                        want,
                        "{operator:?} {value:#x}"
                    );
                }
            }
        }
    }
}
