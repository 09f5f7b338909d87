//! Containers: sandboxes, the shim process that outlives the server, exec, logs, cgroups.
