//! Known ways out of a container, tried by pods on a whole server: as root and as a user, with the host's users and with
//! users of their own.
//!
//! Each pod runs `programs/attack.c`. What counts is the host: a folder that no pod has, the kernel's files, the
//! kernel's log and the runtime's executable have to be what they were. Sources: the advisories of the CVEs named with
//! each case; those of runc, containerd, Docker and Kubernetes.

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
