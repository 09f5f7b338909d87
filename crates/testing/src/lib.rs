//! Test support that several crates use; a dev-dependency only.

pub mod extension_server;
pub mod fake_api;
pub mod faults;
pub mod hook_server;
mod tls;

pub use extension_server::ExtensionServer;
pub use fake_api::FakeApi;
pub use hook_server::HookServer;
