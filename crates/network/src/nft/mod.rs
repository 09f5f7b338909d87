//! nf_tables over netlink: expressions, sets, transactional batches, listing. It changes only the table that it
//! is given.

mod batch;
mod expr;
mod list;
mod set;
mod uapi;

pub use batch::{BaseChain, Batch, Family, Hook, NftError};
pub use expr::{CmpOp, Expr, NatKind, PayloadBase, Reg, RejectKind, SetRef, Verdict, fib_flags};
pub use list::{
    Element, ListedChain, ListedSet, Listing, chains_of, elements, list_table, tables, tables_of,
};
pub use set::{AnonymousMap, Data, DataType, KeyType, SetFlags, SetSpec, key};

/// One rule: its expressions in order.
pub type Rule = Vec<Expr>;
