//! Known container escapes, attempted by pods on a whole server: as root and as a user, with the host's user
//! namespace and with their own.
//!
//! Each pod runs `programs/attack.c`. The host is checked: a folder that no pod mounts, the kernel's files,
//! the kernel's log and the runtime's executable have to be unchanged. Sources: the advisories of the CVEs
//! named with each case; those of runc, containerd, Docker and Kubernetes.

mod attacker;
mod cases;
mod host;
mod layers;
mod logs;
mod outcome;
mod processes;
mod table;
mod unpacking;
mod volumes;
