//! The same server over real TLS.
