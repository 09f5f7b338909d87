//! Reads a table's content from the kernel, for checks and tests.

use std::collections::BTreeMap;

use super::batch::Family;
use super::expr::Verdict;
use super::set::Data;
use super::uapi::*;
use crate::netlink::{Attribute, Message, Netlink, NetlinkError};

const HEADER_LEN: usize = 4;

/// A chain and its number of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedChain {
    pub base: bool,
    pub rules: usize,
}

/// A set, named or anonymous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedSet {
    pub anonymous: bool,
}

/// A table's chains and sets, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    pub chains: BTreeMap<String, ListedChain>,
    pub sets: BTreeMap<String, ListedSet>,
}

/// An element of a set as the kernel returns it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    pub key: Vec<u8>,
    pub data: Data,
}

fn family() -> [u8; 4] {
    header(Family::Ip.number())
}

fn text(message: &Message<'_>, kind: u16) -> String {
    message.attributes(HEADER_LEN).find_kind(kind).map(|a| a.as_str().to_owned()).unwrap_or_default()
}

/// Returns the names of all tables of family ip.
pub fn tables(netlink: &mut Netlink) -> Result<Vec<String>, NetlinkError> {
    tables_of(netlink, Family::Ip)
}

/// Returns the names of all tables of a family.
pub fn tables_of(netlink: &mut Netlink, family: Family) -> Result<Vec<String>, NetlinkError> {
    let header = header(family.number());
    netlink.dump("list tables", kind(MSG_GETTABLE), &header, |_| {}, |m| Some(text(&m, TABLE_NAME)))
}

/// Returns the names of a table's chains; none if the table does not exist.
pub fn chains_of(netlink: &mut Netlink, family: Family, table: &str) -> Result<Vec<String>, NetlinkError> {
    netlink.dump(
        "list chains",
        kind(MSG_GETCHAIN),
        &header(family.number()),
        |_| {},
        |m| (text(&m, CHAIN_TABLE) == table).then(|| text(&m, CHAIN_NAME)),
    )
}

/// Returns the chains and sets of a table; `None` if the table does not exist.
pub fn list_table(netlink: &mut Netlink, table: &str) -> Result<Option<Listing>, NetlinkError> {
    if !tables(netlink)?.iter().any(|t| t == table) {
        return Ok(None);
    }
    let mut listing = Listing::default();
    let chains = netlink.dump(
        "list chains",
        kind(MSG_GETCHAIN),
        &family(),
        |_| {},
        |m| {
            let base = m.attributes(HEADER_LEN).find_kind(CHAIN_HOOK).is_some();
            (text(&m, CHAIN_TABLE) == table).then(|| (text(&m, CHAIN_NAME), base))
        },
    )?;
    for (name, base) in chains {
        listing.chains.insert(name, ListedChain { base, rules: 0 });
    }
    let rules = netlink.dump(
        "list rules",
        kind(MSG_GETRULE),
        &family(),
        |w| w.string(RULE_TABLE, table),
        |m| (text(&m, RULE_TABLE) == table).then(|| text(&m, RULE_CHAIN)),
    )?;
    for chain in rules {
        listing.chains.entry(chain).or_default().rules += 1;
    }
    let sets = netlink.dump(
        "list sets",
        kind(MSG_GETSET),
        &family(),
        |w| w.string(SET_TABLE, table),
        |m| {
            let flags = m.attributes(HEADER_LEN).find_kind(SET_FLAGS).map(|a| a.be32()).unwrap_or_default();
            Some((text(&m, SET_NAME), ListedSet { anonymous: flags & 1 != 0 }))
        },
    )?;
    listing.sets.extend(sets);
    Ok(Some(listing))
}

/// Returns the elements of a named set, sorted.
pub fn elements(netlink: &mut Netlink, table: &str, set: &str) -> Result<Vec<Element>, NetlinkError> {
    let lists = netlink.dump(
        &format!("list elements of {set}"),
        kind(MSG_GETSETELEM),
        &family(),
        |w| {
            w.string(ELEM_LIST_TABLE, table);
            w.string(ELEM_LIST_SET, set);
        },
        |m| {
            let list = m.attributes(HEADER_LEN).find_kind(ELEM_LIST_ELEMENTS)?;
            Some(list.nested().map(element).collect::<Vec<_>>())
        },
    )?;
    let mut elements: Vec<_> = lists.into_iter().flatten().collect();
    elements.sort();
    Ok(elements)
}

fn element(attribute: Attribute<'_>) -> Element {
    let value = |kind| {
        attribute.nested().find_kind(kind).and_then(|a| a.nested().find_kind(DATA_VALUE)).map(|a| a.payload)
    };
    let verdict = attribute
        .nested()
        .find_kind(ELEM_DATA)
        .and_then(|a| a.nested().find_kind(DATA_VERDICT))
        .and_then(|a| verdict(&a));
    let interval_end =
        attribute.nested().find_kind(ELEM_FLAGS).is_some_and(|a| a.be32() & ELEM_INTERVAL_END != 0);
    let data = match (verdict, value(ELEM_DATA), value(ELEM_KEY_END)) {
        (Some(verdict), _, _) => Data::Verdict(verdict),
        (None, Some(value), _) => Data::Value(value.to_vec()),
        (None, None, Some(end)) => Data::RangeEnd(end.to_vec()),
        (None, None, None) if interval_end => Data::IntervalEnd,
        (None, None, None) => Data::None,
    };
    Element { key: value(ELEM_KEY).unwrap_or_default().to_vec(), data }
}

fn verdict(attribute: &Attribute<'_>) -> Option<Verdict> {
    let code = attribute.nested().find_kind(VERDICT_CODE)?.be32() as i32;
    let chain = || attribute.nested().find_kind(VERDICT_CHAIN).map(|a| a.as_str().to_owned());
    Some(match code {
        NF_ACCEPT => Verdict::Accept,
        NF_DROP => Verdict::Drop,
        NFT_RETURN => Verdict::Return,
        NFT_JUMP => Verdict::Jump(chain()?),
        NFT_GOTO => Verdict::Goto(chain()?),
        _ => return None,
    })
}
