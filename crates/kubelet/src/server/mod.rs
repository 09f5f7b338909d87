//! The HTTPS server of the node: logs, exec, attach, port-forward, statistics.
