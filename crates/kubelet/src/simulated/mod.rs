//! A node without processes: a container runtime that only remembers, for tests and scale.
