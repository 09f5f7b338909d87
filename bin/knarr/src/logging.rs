//! The program's log: warnings and errors on standard error, more with `KNARR_LOG`.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging. `KNARR_LOG` takes directives such as `debug` or `knarr_kubelet=debug,warn`.
pub fn start() {
    let filter = EnvFilter::try_from_env("KNARR_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colour = std::io::stderr().is_terminal();
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colour);
    // A second start, as in tests, changes nothing.
    let _ = builder.try_init();
}
