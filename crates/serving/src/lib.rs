//! Serves HTTP over TLS, with limits on connections, handshakes, idle peers and streams that are the same for
//! every server of the program.
//!
//! A [`Service`] answers requests; [`serve`] accepts its connections within [`Limits`].

mod activity;
mod answer;
mod connection;
mod idle;
mod limits;
mod listener;
mod place;
mod slots;

pub use answer::{Answered, CloseConnection, KnownSender};
pub use connection::{Protocol, speak};
pub use idle::IdleMonitor;
pub use limits::Limits;
pub use listener::{Service, serve};
