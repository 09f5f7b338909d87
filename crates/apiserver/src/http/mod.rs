//! The HTTP side: listening, reading requests, negotiating and writing answers.

pub mod bare_items;
pub mod body;
pub mod input;
pub mod listener;
pub mod negotiate;
pub mod output;
pub mod query;
pub mod request_info;
pub mod routes;
pub mod tls;
pub mod unreadable;
pub mod yaml;
