//! What tests of several crates need; a dev-dependency only.

pub mod fake_api;
pub mod faults;
pub mod hook_server;

pub use fake_api::FakeApi;
pub use hook_server::HookServer;
