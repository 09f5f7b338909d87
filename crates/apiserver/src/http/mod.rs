//! The HTTP side: listening, reading requests, negotiating and writing answers.

pub mod annotations;
pub mod bare_items;
pub mod body;
pub mod identity;
pub mod input;
pub mod keypair;
pub mod negotiate;
pub mod output;
pub mod query;
pub mod request;
pub mod request_info;
pub mod routes;
pub mod unreadable;
pub mod yaml;
