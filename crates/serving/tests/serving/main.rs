//! Tests of the listener over real sockets.

mod harness;
mod head;
mod peers;
