//! The API on the wire: reads requests, negotiates formats, writes responses and tables; and the request metrics.
//!
//! This crate does not depend on where objects come from.

pub mod annotations;
pub mod bare_items;
pub mod body;
pub mod identity;
pub mod input;
pub mod keypair;
pub mod metrics;
pub mod negotiate;
pub mod output;
pub mod query;
pub mod request;
pub mod request_info;
pub mod routes;
pub mod table;
pub mod unreadable;
pub mod yaml;
