//! Certificate requests and a certificate that OpenSSL created, for this folder's tests.

/// `CN=system:node:n1, O=system:nodes`; names `n1` and 10.0.0.1; P-256.
pub const NODE: &str = include_str!("testdata/node.csr");
/// `CN=jane, O=dev, O=ops`; RSA 2048.
pub const JANE: &str = include_str!("testdata/jane.csr");
/// Self-signed, ends at 2100-10-24T07:15:30Z.
pub const CERTIFICATE: &str = include_str!("testdata/certificate.crt");
