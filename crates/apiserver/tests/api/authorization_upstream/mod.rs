//! The same users, roles, objects and questions at our API server and at upstream's: the answers have to be the same.
//!
//! Run on request only: `KNARR_UPSTREAM` is a folder with kube-apiserver and etcd.

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
