//! Compares our API server with upstream's: with the same users, roles, objects and requests, the responses have to
//! be the same.
//!
//! Run on request only: `KNARR_UPSTREAM` is a directory with kube-apiserver and etcd.

mod access;
mod bodies;
mod compare;
mod forms;
mod requests;
mod reviews;
mod upstream;
mod users;
mod wire;
mod world;
