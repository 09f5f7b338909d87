//! Rule expressions and their encoding for the kernel.

use std::sync::Arc;

use super::set::AnonymousMap;
use super::uapi::*;
use crate::netlink::Writer;

/// One of the sixteen 4-byte registers; values of more than 4 bytes continue in the following registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reg(u32);

const FIRST_REG32: u32 = 8;
const VERDICT_REG: u32 = 0;

impl Reg {
    pub const R0: Self = Self(0);
    pub const R1: Self = Self(1);
    pub const R2: Self = Self(2);
    pub const R3: Self = Self(3);

    fn number(self) -> u32 {
        FIRST_REG32 + self.0
    }
}

/// The header at which the offset of a payload starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadBase {
    Link = 0,
    Network = 1,
    Transport = 2,
}

/// How a register is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CmpOp {
    Eq = 0,
    Neq = 1,
}

/// Which address is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatKind {
    Snat = 0,
    Dnat = 1,
}

/// How a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectKind {
    /// ICMP destination unreachable with this code.
    Icmp(u8),
    TcpReset,
}

/// Which address the fib expression looks up.
pub mod fib_flags {
    pub const SADDR: u32 = 1;
    pub const DADDR: u32 = 2;
}

/// What happens to a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

impl Verdict {
    pub(super) fn write(&self, writer: &mut Writer) {
        let (code, chain) = match self {
            Self::Accept => (NF_ACCEPT, None),
            Self::Drop => (NF_DROP, None),
            Self::Return => (NFT_RETURN, None),
            Self::Jump(chain) => (NFT_JUMP, Some(chain)),
            Self::Goto(chain) => (NFT_GOTO, Some(chain)),
        };
        writer.nested(DATA_VERDICT, |verdict| {
            verdict.be32(VERDICT_CODE, code as u32);
            if let Some(chain) = chain {
                verdict.string(VERDICT_CHAIN, chain);
            }
        });
    }
}

/// A set by name, or an anonymous map that exists as long as the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetRef {
    Named(String),
    Anonymous(Arc<AnonymousMap>),
}

/// One expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    Payload {
        base: PayloadBase,
        offset: u32,
        len: u32,
        dreg: Reg,
    },
    /// Loads packet metadata; `key` is a `META_KEY_*`, see the constructors.
    Meta {
        key: u32,
        dreg: Reg,
    },
    MetaSet {
        key: u32,
        sreg: Reg,
    },
    Ct {
        key: u32,
        dreg: Reg,
    },
    Cmp {
        op: CmpOp,
        sreg: Reg,
        data: Vec<u8>,
    },
    /// Computes `dreg = sreg & mask ^ xor`.
    Bitwise {
        sreg: Reg,
        dreg: Reg,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    /// Ends the rule unless `sreg` is in the set (or, if inverted, unless it is not); loads the map's value if
    /// `dreg` is set.
    Lookup {
        set: SetRef,
        sreg: Reg,
        dreg: Option<Reg>,
        invert: bool,
    },
    /// Applies the verdict that the map has for `sreg`, or continues with the next rule.
    VerdictMap {
        set: SetRef,
        sreg: Reg,
    },
    Immediate {
        dreg: Reg,
        data: Vec<u8>,
    },
    Verdict(Verdict),
    /// Translates to the address in `addr` and, if given, the port in `port`.
    Nat {
        kind: NatKind,
        addr: Reg,
        port: Option<Reg>,
    },
    Masquerade {
        fully_random: bool,
    },
    NumgenRandom {
        dreg: Reg,
        modulus: u32,
    },
    /// Loads the type (`RTN_*`) of the address that `flags` select.
    FibAddrType {
        dreg: Reg,
        flags: u32,
    },
    Reject(RejectKind),
    Counter,
    /// Matches at most `rate` packets per second, with bursts.
    Limit {
        rate: u64,
        burst: u32,
    },
    /// Adds `key` to a set with timeouts, or restarts its timeout.
    DynsetUpdate {
        set: String,
        key: Reg,
        timeout_ms: u64,
    },
}

const NAT_RANGE_PROTO_RANDOM_FULLY: u32 = 1 << 4;

impl Expr {
    /// Loads the source address of an Ethernet frame.
    pub fn ether_saddr(dreg: Reg) -> Self {
        Self::Payload { base: PayloadBase::Link, offset: 6, len: 6, dreg }
    }

    /// Loads the type of an Ethernet frame; for a frame with a VLAN tag, the type of the tag.
    pub fn ether_type(dreg: Reg) -> Self {
        Self::Payload { base: PayloadBase::Link, offset: 12, len: 2, dreg }
    }

    pub fn ip_saddr(dreg: Reg) -> Self {
        Self::Payload { base: PayloadBase::Network, offset: 12, len: 4, dreg }
    }

    pub fn ip_daddr(dreg: Reg) -> Self {
        Self::Payload { base: PayloadBase::Network, offset: 16, len: 4, dreg }
    }

    /// Loads the destination port of TCP, UDP and SCTP.
    pub fn th_dport(dreg: Reg) -> Self {
        Self::Payload { base: PayloadBase::Transport, offset: 2, len: 2, dreg }
    }

    pub fn l4proto(dreg: Reg) -> Self {
        Self::Meta { key: META_KEY_L4PROTO, dreg }
    }

    pub fn mark(dreg: Reg) -> Self {
        Self::Meta { key: META_KEY_MARK, dreg }
    }

    pub fn set_mark(sreg: Reg) -> Self {
        Self::MetaSet { key: META_KEY_MARK, sreg }
    }

    pub fn iifname(dreg: Reg) -> Self {
        Self::Meta { key: META_KEY_IIFNAME, dreg }
    }

    pub fn oifname(dreg: Reg) -> Self {
        Self::Meta { key: META_KEY_OIFNAME, dreg }
    }

    pub fn ct_state(dreg: Reg) -> Self {
        Self::Ct { key: CT_KEY_STATE, dreg }
    }

    pub fn ct_status(dreg: Reg) -> Self {
        Self::Ct { key: CT_KEY_STATUS, dreg }
    }

    pub fn eq(sreg: Reg, data: impl Into<Vec<u8>>) -> Self {
        Self::Cmp { op: CmpOp::Eq, sreg, data: data.into() }
    }

    pub fn neq(sreg: Reg, data: impl Into<Vec<u8>>) -> Self {
        Self::Cmp { op: CmpOp::Neq, sreg, data: data.into() }
    }

    pub fn jump(chain: &str) -> Self {
        Self::Verdict(Verdict::Jump(chain.to_owned()))
    }

    pub fn goto(chain: &str) -> Self {
        Self::Verdict(Verdict::Goto(chain.to_owned()))
    }

    pub fn vmap(set: &str, sreg: Reg) -> Self {
        Self::VerdictMap { set: SetRef::Named(set.to_owned()), sreg }
    }

    pub fn lookup(set: &str, sreg: Reg) -> Self {
        Self::Lookup { set: SetRef::Named(set.to_owned()), sreg, dreg: None, invert: false }
    }

    /// Returns the anonymous map that the expression contains.
    pub fn anonymous(&self) -> Option<&Arc<AnonymousMap>> {
        match self {
            Self::Lookup { set: SetRef::Anonymous(map), .. }
            | Self::VerdictMap { set: SetRef::Anonymous(map), .. } => Some(map),
            _ => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::MetaSet { .. } => "meta",
            Self::Ct { .. } => "ct",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Lookup { .. } | Self::VerdictMap { .. } => "lookup",
            Self::Immediate { .. } | Self::Verdict(_) => "immediate",
            Self::Nat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::NumgenRandom { .. } => "numgen",
            Self::FibAddrType { .. } => "fib",
            Self::Reject(_) => "reject",
            Self::Counter => "counter",
            Self::Limit { .. } => "limit",
            Self::DynsetUpdate { .. } => "dynset",
        }
    }

    /// Writes the expression; `anonymous` is the name and transaction id of the map that it contains, if any.
    pub(super) fn write(&self, writer: &mut Writer, anonymous: Option<(&str, u32)>) {
        writer.nested(LIST_ELEM, |element| {
            element.string(EXPR_NAME, self.name());
            element.nested(EXPR_DATA, |data| self.write_data(data, anonymous));
        });
    }

    fn write_data(&self, w: &mut Writer, anonymous: Option<(&str, u32)>) {
        match self {
            Self::Payload { base, offset, len, dreg } => {
                w.be32(PAYLOAD_DREG, dreg.number());
                w.be32(PAYLOAD_BASE, *base as u32);
                w.be32(PAYLOAD_OFFSET, *offset);
                w.be32(PAYLOAD_LEN, *len);
            }
            Self::Meta { key, dreg } => {
                w.be32(META_KEY, *key);
                w.be32(META_DREG, dreg.number());
            }
            Self::MetaSet { key, sreg } => {
                w.be32(META_KEY, *key);
                w.be32(META_SREG, sreg.number());
            }
            Self::Ct { key, dreg } => {
                w.be32(CT_KEY, *key);
                w.be32(CT_DREG, dreg.number());
            }
            Self::Cmp { op, sreg, data } => {
                w.be32(CMP_SREG, sreg.number());
                w.be32(CMP_OP, *op as u32);
                w.nested(CMP_DATA, |w| w.attribute(DATA_VALUE, data));
            }
            Self::Bitwise { sreg, dreg, mask, xor } => {
                w.be32(BITWISE_SREG, sreg.number());
                w.be32(BITWISE_DREG, dreg.number());
                w.be32(BITWISE_LEN, mask.len() as u32);
                w.nested(BITWISE_MASK, |w| w.attribute(DATA_VALUE, mask));
                w.nested(BITWISE_XOR, |w| w.attribute(DATA_VALUE, xor));
            }
            Self::Lookup { set, sreg, dreg, invert } => {
                write_set(w, set, anonymous, LOOKUP_SET, LOOKUP_SET_ID);
                w.be32(LOOKUP_SREG, sreg.number());
                if let Some(dreg) = dreg {
                    w.be32(LOOKUP_DREG, dreg.number());
                }
                if *invert {
                    w.be32(LOOKUP_FLAGS, 1);
                }
            }
            Self::VerdictMap { set, sreg } => {
                write_set(w, set, anonymous, LOOKUP_SET, LOOKUP_SET_ID);
                w.be32(LOOKUP_SREG, sreg.number());
                w.be32(LOOKUP_DREG, VERDICT_REG);
            }
            Self::Immediate { dreg, data } => {
                w.be32(IMMEDIATE_DREG, dreg.number());
                w.nested(IMMEDIATE_DATA, |w| w.attribute(DATA_VALUE, data));
            }
            Self::Verdict(verdict) => {
                w.be32(IMMEDIATE_DREG, VERDICT_REG);
                w.nested(IMMEDIATE_DATA, |w| verdict.write(w));
            }
            _ => self.write_action(w),
        }
    }

    /// Writes the expressions that act on a packet rather than load or compare.
    fn write_action(&self, w: &mut Writer) {
        match self {
            Self::Nat { kind, addr, port } => {
                w.be32(NAT_TYPE, *kind as u32);
                w.be32(NAT_FAMILY, libc::NFPROTO_IPV4 as u32);
                w.be32(NAT_REG_ADDR_MIN, addr.number());
                if let Some(port) = port {
                    w.be32(NAT_REG_PROTO_MIN, port.number());
                }
            }
            Self::Masquerade { fully_random: true } => w.be32(MASQ_FLAGS, NAT_RANGE_PROTO_RANDOM_FULLY),
            Self::NumgenRandom { dreg, modulus } => {
                w.be32(NG_DREG, dreg.number());
                w.be32(NG_MODULUS, *modulus);
                w.be32(NG_TYPE, NG_RANDOM);
            }
            Self::FibAddrType { dreg, flags } => {
                w.be32(FIB_DREG, dreg.number());
                w.be32(FIB_RESULT, FIB_RESULT_ADDRTYPE);
                w.be32(FIB_FLAGS, *flags);
            }
            Self::Reject(RejectKind::Icmp(code)) => {
                w.be32(REJECT_TYPE, 0);
                w.u8(REJECT_ICMP_CODE, *code);
            }
            Self::Reject(RejectKind::TcpReset) => {
                w.be32(REJECT_TYPE, 1);
                w.u8(REJECT_ICMP_CODE, 0);
            }
            Self::Limit { rate, burst } => {
                w.be64(LIMIT_RATE, *rate);
                w.be64(LIMIT_UNIT, 1);
                w.be32(LIMIT_BURST, *burst);
                w.be32(LIMIT_TYPE, 0);
            }
            Self::DynsetUpdate { set, key, timeout_ms } => {
                w.string(DYNSET_SET_NAME, set);
                w.be32(DYNSET_SET_ID, 0);
                w.be32(DYNSET_OP, DYNSET_OP_UPDATE);
                w.be32(DYNSET_SREG_KEY, key.number());
                w.be64(DYNSET_TIMEOUT, *timeout_ms);
            }
            _ => {}
        }
    }
}

fn write_set(w: &mut Writer, set: &SetRef, anonymous: Option<(&str, u32)>, name_attr: u16, id_attr: u16) {
    match (set, anonymous) {
        (SetRef::Named(name), _) => w.string(name_attr, name),
        (SetRef::Anonymous(_), Some((name, id))) => {
            w.string(name_attr, name);
            w.be32(id_attr, id);
        }
        // The batch names every anonymous map before it writes the rule.
        (SetRef::Anonymous(_), None) => {}
    }
}
