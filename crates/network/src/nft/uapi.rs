//! Numbers of the kernel's nf_tables interface (linux/netfilter/nf_tables.h, nfnetlink.h).

pub const SUBSYSTEM_NFTABLES: u16 = 10;
pub const NFNL_MSG_BATCH_BEGIN: u16 = 16;
pub const NFNL_MSG_BATCH_END: u16 = 17;

pub const MSG_NEWTABLE: u16 = 0;
pub const MSG_GETTABLE: u16 = 1;
pub const MSG_DELTABLE: u16 = 2;
pub const MSG_NEWCHAIN: u16 = 3;
pub const MSG_GETCHAIN: u16 = 4;
pub const MSG_DELCHAIN: u16 = 5;
pub const MSG_NEWRULE: u16 = 6;
pub const MSG_GETRULE: u16 = 7;
pub const MSG_DELRULE: u16 = 8;
pub const MSG_NEWSET: u16 = 9;
pub const MSG_GETSET: u16 = 10;
pub const MSG_DELSET: u16 = 11;
pub const MSG_NEWSETELEM: u16 = 12;
pub const MSG_GETSETELEM: u16 = 13;
pub const MSG_DELSETELEM: u16 = 14;

pub const TABLE_NAME: u16 = 1;

pub const CHAIN_TABLE: u16 = 1;
pub const CHAIN_NAME: u16 = 3;
pub const CHAIN_HOOK: u16 = 4;
pub const CHAIN_POLICY: u16 = 5;
pub const CHAIN_TYPE: u16 = 7;
pub const HOOK_HOOKNUM: u16 = 1;
pub const HOOK_PRIORITY: u16 = 2;
pub const HOOK_DEVICE: u16 = 3;
pub const NETDEV_INGRESS: u32 = 0;

pub const RULE_TABLE: u16 = 1;
pub const RULE_CHAIN: u16 = 2;
pub const RULE_EXPRESSIONS: u16 = 4;
pub const LIST_ELEM: u16 = 1;
pub const EXPR_NAME: u16 = 1;
pub const EXPR_DATA: u16 = 2;

pub const SET_TABLE: u16 = 1;
pub const SET_NAME: u16 = 2;
pub const SET_FLAGS: u16 = 3;
pub const SET_KEY_TYPE: u16 = 4;
pub const SET_KEY_LEN: u16 = 5;
pub const SET_DATA_TYPE: u16 = 6;
pub const SET_DATA_LEN: u16 = 7;
pub const SET_DESC: u16 = 9;
pub const SET_ID: u16 = 10;
pub const SET_DESC_SIZE: u16 = 1;
pub const SET_DESC_CONCAT: u16 = 2;
pub const SET_FIELD_LEN: u16 = 1;

pub const ELEM_KEY: u16 = 1;
pub const ELEM_DATA: u16 = 2;
pub const ELEM_FLAGS: u16 = 3;
pub const ELEM_KEY_END: u16 = 10;
pub const ELEM_INTERVAL_END: u32 = 1;
pub const ELEM_LIST_TABLE: u16 = 1;
pub const ELEM_LIST_SET: u16 = 2;
pub const ELEM_LIST_ELEMENTS: u16 = 3;
pub const ELEM_LIST_SET_ID: u16 = 4;

pub const DATA_VALUE: u16 = 1;
pub const DATA_VERDICT: u16 = 2;
pub const VERDICT_CODE: u16 = 1;
pub const VERDICT_CHAIN: u16 = 2;

pub const NF_DROP: i32 = 0;
pub const NF_ACCEPT: i32 = 1;
pub const NFT_RETURN: i32 = -5;
pub const NFT_JUMP: i32 = -3;
pub const NFT_GOTO: i32 = -4;

pub const IMMEDIATE_DREG: u16 = 1;
pub const IMMEDIATE_DATA: u16 = 2;
pub const BITWISE_SREG: u16 = 1;
pub const BITWISE_DREG: u16 = 2;
pub const BITWISE_LEN: u16 = 3;
pub const BITWISE_MASK: u16 = 4;
pub const BITWISE_XOR: u16 = 5;
pub const CMP_SREG: u16 = 1;
pub const CMP_OP: u16 = 2;
pub const CMP_DATA: u16 = 3;
pub const LOOKUP_SET: u16 = 1;
pub const LOOKUP_SREG: u16 = 2;
pub const LOOKUP_DREG: u16 = 3;
pub const LOOKUP_SET_ID: u16 = 4;
pub const LOOKUP_FLAGS: u16 = 5;
pub const DYNSET_SET_NAME: u16 = 1;
pub const DYNSET_SET_ID: u16 = 2;
pub const DYNSET_OP: u16 = 3;
pub const DYNSET_SREG_KEY: u16 = 4;
pub const DYNSET_TIMEOUT: u16 = 6;
pub const DYNSET_OP_UPDATE: u32 = 1;
pub const PAYLOAD_DREG: u16 = 1;
pub const PAYLOAD_BASE: u16 = 2;
pub const PAYLOAD_OFFSET: u16 = 3;
pub const PAYLOAD_LEN: u16 = 4;
pub const META_DREG: u16 = 1;
pub const META_KEY: u16 = 2;
pub const META_SREG: u16 = 3;
pub const CT_DREG: u16 = 1;
pub const CT_KEY: u16 = 2;
pub const LIMIT_RATE: u16 = 1;
pub const LIMIT_UNIT: u16 = 2;
pub const LIMIT_BURST: u16 = 3;
pub const LIMIT_TYPE: u16 = 4;
pub const REJECT_TYPE: u16 = 1;
pub const REJECT_ICMP_CODE: u16 = 2;
pub const NAT_TYPE: u16 = 1;
pub const NAT_FAMILY: u16 = 2;
pub const NAT_REG_ADDR_MIN: u16 = 3;
pub const NAT_REG_PROTO_MIN: u16 = 5;
pub const MASQ_FLAGS: u16 = 1;
pub const FIB_DREG: u16 = 1;
pub const FIB_RESULT: u16 = 2;
pub const FIB_FLAGS: u16 = 3;
pub const FIB_RESULT_ADDRTYPE: u32 = 3;
pub const NG_DREG: u16 = 1;
pub const NG_MODULUS: u16 = 2;
pub const NG_TYPE: u16 = 3;
pub const NG_RANDOM: u32 = 1;

pub const META_KEY_MARK: u32 = 3;
pub const META_KEY_IIFNAME: u32 = 6;
pub const META_KEY_OIFNAME: u32 = 7;
pub const META_KEY_L4PROTO: u32 = 16;
pub const CT_KEY_STATE: u32 = 0;
pub const CT_KEY_STATUS: u32 = 2;

/// Returns an `nfgenmsg`: family, version, resource id.
pub fn header(family: u8) -> [u8; 4] {
    [family, 0, 0, 0]
}

/// Returns the message type of nf_tables in netlink's numbering.
pub fn kind(message: u16) -> u16 {
    SUBSYSTEM_NFTABLES << 8 | message
}
