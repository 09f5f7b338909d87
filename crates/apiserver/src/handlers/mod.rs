//! The handlers of authorized requests.

mod access_review;
pub mod dispatch;
pub mod paths;
mod sample;
mod subresources;
mod token;
mod token_review;
