//! Sandboxes and containers on the real kernel; as root.

mod lifecycle;
mod world;
