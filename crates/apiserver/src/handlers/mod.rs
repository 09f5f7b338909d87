//! From an authorized request to its answer.

mod access_review;
pub mod dispatch;
pub mod paths;
mod sample;
mod subresources;
mod token;
mod token_review;
