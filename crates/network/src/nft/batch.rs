//! A transaction: either all of it comes into force at once, or nothing does.

use thiserror::Error;

use super::Rule;
use super::set::{Data, SetSpec, write_element};
use super::uapi::*;
use crate::netlink::{Message, Messages, Netlink, NetlinkError, Writer};

/// Elements are sent in lists of at most this many bytes, because an attribute's length has 16 bits.
const ELEMENT_LIST_BYTES: usize = 48 * 1024;

/// Why a transaction was not committed.
#[derive(Debug, Error)]
pub enum NftError {
    #[error("communicating with nf_tables")]
    Netlink(#[from] NetlinkError),
    /// The kernel refused the transaction because of this message.
    #[error("nf_tables refuses to {what}: {}{}", std::io::Error::from_raw_os_error(*.errno), .detail.as_deref().map(|d| format!(" ({d})")).unwrap_or_default())]
    Refused { what: String, errno: i32, detail: Option<String> },
}

impl NftError {
    /// Returns whether the kernel refused the transaction with this errno.
    pub fn is(&self, wanted: i32) -> bool {
        match self {
            Self::Refused { errno, .. } => *errno == wanted,
            Self::Netlink(error) => error.is(wanted),
        }
    }
}

/// The point of packet processing to which a base chain is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Prerouting = 0,
    Input = 1,
    Forward = 2,
    Output = 3,
    Postrouting = 4,
}

/// A chain that the kernel calls at a hook; its policy is accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseChain {
    pub name: &'static str,
    /// `filter` or `nat`
    pub kind: &'static str,
    pub hook: Hook,
    pub priority: i32,
}

/// The kind of packets that a table's rules see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 packets.
    Ip,
    /// Every frame that arrives at particular devices.
    Netdev,
    /// Frames that pass through bridges.
    Bridge,
}

impl Family {
    pub(super) fn number(self) -> u8 {
        match self {
            Self::Ip => libc::NFPROTO_IPV4 as u8,
            Self::Netdev => libc::NFPROTO_NETDEV as u8,
            Self::Bridge => libc::NFPROTO_BRIDGE as u8,
        }
    }

    /// Returns the family's name in the `nft` program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Netdev => "netdev",
            Self::Bridge => "bridge",
        }
    }
}

/// Messages about one table, collected to be sent together.
pub struct Batch {
    table: String,
    writer: Writer,
    sequence: u32,
    next_set_id: u32,
    family: Family,
}

const CREATE: u16 = libc::NLM_F_CREATE as u16;
const EXCLUSIVE: u16 = libc::NLM_F_EXCL as u16;
const APPEND: u16 = libc::NLM_F_APPEND as u16;

impl Batch {
    /// Starts a batch for a table of family ip.
    pub fn new(table: &str) -> Self {
        Self::of(Family::Ip, table)
    }

    pub fn of(family: Family, table: &str) -> Self {
        let mut batch =
            Self { table: table.to_owned(), writer: Writer::new(), sequence: 0, next_set_id: 0, family };
        batch.marker(NFNL_MSG_BATCH_BEGIN);
        batch
    }

    /// Makes further messages refer to the table of the same name in this family.
    pub fn switch(&mut self, family: Family) {
        self.family = family;
    }

    pub fn table(&self) -> &str {
        &self.table
    }

    /// Returns whether the batch has no messages yet.
    pub fn is_empty(&self) -> bool {
        self.sequence == 1
    }

    /// Returns the size in bytes, for measurements.
    pub fn len(&self) -> usize {
        self.writer.len()
    }

    fn marker(&mut self, kind: u16) {
        let [a, b] = SUBSYSTEM_NFTABLES.to_be_bytes();
        self.sequence += 1;
        let flags = libc::NLM_F_REQUEST as u16;
        self.writer.message(kind, flags, self.sequence, &[libc::AF_UNSPEC as u8, 0, a, b], |_| {});
    }

    fn message(&mut self, message: u16, flags: u16, body: impl FnOnce(&mut Writer, &str)) {
        self.sequence += 1;
        let flags = flags | libc::NLM_F_REQUEST as u16;
        let table = &self.table;
        self.writer.message(kind(message), flags, self.sequence, &header(self.family.number()), |writer| {
            body(writer, table)
        });
    }

    /// Creates the table if it is missing.
    pub fn add_table(&mut self) {
        self.message(MSG_NEWTABLE, CREATE, |w, table| w.string(TABLE_NAME, table));
    }

    /// Deletes the table and its content; the table must exist.
    pub fn delete_table(&mut self) {
        self.message(MSG_DELTABLE, 0, |w, table| w.string(TABLE_NAME, table));
    }

    /// Creates an empty table and removes an existing one.
    pub fn recreate_table(&mut self) {
        self.add_table();
        self.delete_table();
        self.add_table();
    }

    /// Creates a chain that is attached to a hook.
    pub fn add_base_chain(&mut self, chain: &BaseChain) {
        self.message(MSG_NEWCHAIN, CREATE, |w, table| {
            w.string(CHAIN_TABLE, table);
            w.string(CHAIN_NAME, chain.name);
            w.nested(CHAIN_HOOK, |hook| {
                hook.be32(HOOK_HOOKNUM, chain.hook as u32);
                hook.be32(HOOK_PRIORITY, chain.priority as u32);
            });
            w.be32(CHAIN_POLICY, NF_ACCEPT as u32);
            w.string(CHAIN_TYPE, chain.kind);
        });
    }

    /// Adds a chain that sees every frame arriving at the device, before all other parts of the kernel except
    /// packet sockets; its policy is accept. The device must exist.
    pub fn add_ingress_chain(&mut self, name: &str, device: &str, priority: i32) {
        self.message(MSG_NEWCHAIN, CREATE, |w, table| {
            w.string(CHAIN_TABLE, table);
            w.string(CHAIN_NAME, name);
            w.nested(CHAIN_HOOK, |hook| {
                hook.be32(HOOK_HOOKNUM, NETDEV_INGRESS);
                hook.be32(HOOK_PRIORITY, priority as u32);
                hook.string(HOOK_DEVICE, device);
            });
            w.be32(CHAIN_POLICY, NF_ACCEPT as u32);
            w.string(CHAIN_TYPE, "filter");
        });
    }

    /// Creates the chain if it is missing.
    pub fn add_chain(&mut self, name: &str) {
        self.message(MSG_NEWCHAIN, CREATE, |w, table| {
            w.string(CHAIN_TABLE, table);
            w.string(CHAIN_NAME, name);
        });
    }

    /// Deletes a chain, to which no rule may refer any more.
    pub fn delete_chain(&mut self, name: &str) {
        self.message(MSG_DELCHAIN, 0, |w, table| {
            w.string(CHAIN_TABLE, table);
            w.string(CHAIN_NAME, name);
        });
    }

    /// Removes all rules of a chain.
    pub fn flush_chain(&mut self, name: &str) {
        self.message(MSG_DELRULE, 0, |w, table| {
            w.string(RULE_TABLE, table);
            w.string(RULE_CHAIN, name);
        });
    }

    /// Appends a rule, after creating the anonymous maps that it contains.
    pub fn add_rule(&mut self, chain: &str, rule: &Rule) {
        let mut anonymous = Vec::with_capacity(rule.len());
        for expr in rule {
            let Some(map) = expr.anonymous() else {
                anonymous.push(None);
                continue;
            };
            self.next_set_id += 1;
            let id = self.next_set_id;
            let name = if map.data == super::DataType::None { "__set%d" } else { "__map%d" };
            self.message(MSG_NEWSET, CREATE, |w, table| map.write(table, name, id, w));
            let elements = map.elements.iter().map(|(key, data)| (key.as_slice(), data));
            self.element_lists(MSG_NEWSETELEM, CREATE, name, Some(id), elements);
            anonymous.push(Some((name, id)));
        }
        self.message(MSG_NEWRULE, CREATE | APPEND, |w, table| {
            w.string(RULE_TABLE, table);
            w.string(RULE_CHAIN, chain);
            w.nested(RULE_EXPRESSIONS, |list| {
                for (expr, anonymous) in rule.iter().zip(&anonymous) {
                    expr.write(list, *anonymous);
                }
            });
        });
    }

    /// Creates a set or map.
    pub fn add_set(&mut self, set: &SetSpec) {
        self.next_set_id += 1;
        let id = self.next_set_id;
        self.message(MSG_NEWSET, CREATE, |w, table| set.write(table, id, w));
    }

    /// Deletes a set, to which no rule may refer any more.
    pub fn delete_set(&mut self, name: &str) {
        self.message(MSG_DELSET, 0, |w, table| {
            w.string(SET_TABLE, table);
            w.string(SET_NAME, name);
        });
    }

    /// Adds elements; if one exists already, the transaction fails with EEXIST.
    pub fn add_elements<'a>(&mut self, set: &str, elements: impl IntoIterator<Item = (&'a [u8], &'a Data)>) {
        self.element_lists(MSG_NEWSETELEM, CREATE | EXCLUSIVE, set, None, elements);
    }

    /// Removes elements; if one is missing, the transaction fails with ENOENT.
    pub fn delete_elements<'a>(
        &mut self,
        set: &str,
        elements: impl IntoIterator<Item = (&'a [u8], &'a Data)>,
    ) {
        self.element_lists(MSG_DELSETELEM, 0, set, None, elements);
    }

    fn element_lists<'a>(
        &mut self,
        kind: u16,
        flags: u16,
        set: &str,
        id: Option<u32>,
        elements: impl IntoIterator<Item = (&'a [u8], &'a Data)>,
    ) {
        let mut list = Writer::new();
        for (key, data) in elements {
            write_element(&mut list, key, data);
            if list.len() >= ELEMENT_LIST_BYTES {
                self.element_list(kind, flags, set, id, &list);
                list.clear();
            }
        }
        if !list.is_empty() {
            self.element_list(kind, flags, set, id, &list);
        }
    }

    fn element_list(&mut self, kind: u16, flags: u16, set: &str, id: Option<u32>, list: &Writer) {
        self.message(kind, flags, |w, table| {
            w.string(ELEM_LIST_TABLE, table);
            w.string(ELEM_LIST_SET, set);
            if let Some(id) = id {
                w.be32(ELEM_LIST_SET_ID, id);
            }
            w.nested(ELEM_LIST_ELEMENTS, |w| w.append(list));
        });
    }

    /// Sends the transaction. The error names the first message that the kernel refused.
    pub fn commit(mut self, netlink: &mut Netlink) -> Result<(), NftError> {
        if self.is_empty() {
            return Ok(());
        }
        self.marker(NFNL_MSG_BATCH_END);
        let errors = netlink.batch("commit an nf_tables transaction", self.writer.as_bytes())?;
        match errors.into_iter().next() {
            None => Ok(()),
            Some((sequence, errno, detail)) => {
                Err(NftError::Refused { what: describe(self.writer.as_bytes(), sequence), errno, detail })
            }
        }
    }
}

/// Describes the message with this sequence number by parsing the batch.
fn describe(batch: &[u8], sequence: u32) -> String {
    match Messages::new(batch).find(|m| m.sequence == sequence) {
        Some(message) => describe_message(&message),
        None => "run the transaction".to_owned(),
    }
}

fn describe_message(message: &Message<'_>) -> String {
    let attribute =
        |kind| message.attributes(4).find_kind(kind).map(|a| a.as_str().to_owned()).unwrap_or_default();
    if message.kind == NFNL_MSG_BATCH_BEGIN || message.kind == NFNL_MSG_BATCH_END {
        return "commit the transaction".to_owned();
    }
    match message.kind & 0xff {
        MSG_NEWTABLE => format!("add table {}", attribute(TABLE_NAME)),
        MSG_DELTABLE => format!("delete table {}", attribute(TABLE_NAME)),
        MSG_NEWCHAIN => format!("add chain {}", attribute(CHAIN_NAME)),
        MSG_DELCHAIN => format!("delete chain {}", attribute(CHAIN_NAME)),
        MSG_NEWRULE => format!("add a rule to chain {}", attribute(RULE_CHAIN)),
        MSG_DELRULE => format!("flush chain {}", attribute(RULE_CHAIN)),
        MSG_NEWSET => format!("add set {}", attribute(SET_NAME)),
        MSG_DELSET => format!("delete set {}", attribute(SET_NAME)),
        MSG_NEWSETELEM => format!("add elements to {}", attribute(ELEM_LIST_SET)),
        MSG_DELSETELEM => format!("delete elements of {}", attribute(ELEM_LIST_SET)),
        other => format!("handle message {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::{DataType, KeyType};

    #[test]
    fn errors_name_what_failed() {
        let mut batch = Batch::new("t");
        batch.add_table();
        batch.add_set(&SetSpec::new("clients", &[KeyType::Ipv4Addr], DataType::None));
        assert_eq!(describe(batch.writer.as_bytes(), 3), "add set clients");
        assert_eq!(describe(batch.writer.as_bytes(), 99), "run the transaction");
    }

    #[test]
    fn long_element_lists_are_split() {
        let mut batch = Batch::new("t");
        let keys: Vec<Vec<u8>> = (0..10_000u32).map(|n| n.to_be_bytes().to_vec()).collect();
        batch.add_elements("s", keys.iter().map(|k| (k.as_slice(), &Data::None)));
        let messages: Vec<_> = Messages::new(batch.writer.as_bytes()).collect();
        assert!(messages.len() > 3);
        let elements: usize = messages[1..]
            .iter()
            .map(|m| m.attributes(4).find_kind(ELEM_LIST_ELEMENTS).unwrap().nested().count())
            .sum();
        assert_eq!(elements, keys.len());
    }
}
