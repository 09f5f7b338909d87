//! What tests of several crates need; a dev-dependency only.

pub mod fake_api;

pub use fake_api::FakeApi;
