//! Authentication: proxy headers, client certificates, tokens of several kinds, impersonation.

pub mod bearer;
pub mod bootstrap_token;
pub mod chain;
mod header_text;
pub mod impersonation;
pub mod issuer;
pub mod jwt;
pub mod keys;
pub mod options;
pub mod request_header;
pub mod service_account;
pub mod signer;
pub mod token_file;
pub mod webhook;
pub mod x509;

pub use knarr_wire::identity::{ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED, UserInfo};

/// A user, and those of the requested audiences for which the credentials are valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authenticated {
    pub user: UserInfo,
    pub audiences: Vec<String>,
}
