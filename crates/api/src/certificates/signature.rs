//! Verifies that a certificate request is signed with the private key of its own public key.
//!
//! Supports more than x509-parser, as Go's crypto/x509 does: RSA keys from 1024 bits, and P-521, which ring
//! lacks.

use p521::ecdsa::signature::hazmat::PrehashVerifier;
use p521::ecdsa::{Signature, VerifyingKey};
use ring::signature::{
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    UnparsedPublicKey, VerificationAlgorithm,
};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::error::X509Error;
use x509_parser::oid_registry as oid;

use super::request::RequestError;

/// The size of a P-521 scalar. A shorter hash is padded with leading zeros to this size.
const P521_BYTES: usize = 66;

/// Verifies the signature with the request's own key.
pub fn check(csr: &X509CertificationRequest<'_>) -> Result<(), RequestError> {
    let key = &csr.certification_request_info.subject_pki;
    let algorithm = &csr.signature_algorithm.algorithm;
    let (message, signature) = (csr.certification_request_info.raw, &csr.signature_value.data);
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    let legacy: Option<&'static dyn VerificationAlgorithm> = if *algorithm == oid::OID_PKCS1_SHA256WITHRSA {
        Some(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY)
    } else if *algorithm == oid::OID_PKCS1_SHA512WITHRSA {
        Some(&RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY)
    } else {
        None
    };
    if curve == Some(oid::OID_NIST_EC_P521) {
        let hash = if *algorithm == oid::OID_SIG_ECDSA_WITH_SHA512 {
            Sha512::digest(message).to_vec()
        } else if *algorithm == oid::OID_SIG_ECDSA_WITH_SHA384 {
            Sha384::digest(message).to_vec()
        } else if *algorithm == oid::OID_SIG_ECDSA_WITH_SHA256 {
            Sha256::digest(message).to_vec()
        } else {
            return Err(RequestError::Algorithm);
        };
        return p521(&key.subject_public_key.data, &hash, signature).ok_or(RequestError::Signature);
    }
    if let Some(algorithm) = legacy {
        let key = UnparsedPublicKey::new(algorithm, &key.subject_public_key.data);
        return key.verify(message, signature).map_err(|_| RequestError::Signature);
    }
    csr.verify_signature().map_err(|error| match error {
        X509Error::SignatureUnsupportedAlgorithm => RequestError::Algorithm,
        _ => RequestError::Signature,
    })
}

/// Verifies an ECDSA signature of the hash; `None` if it does not match.
fn p521(key: &[u8], hash: &[u8], signature: &[u8]) -> Option<()> {
    let key = VerifyingKey::from_sec1_bytes(key).ok()?;
    let signature = Signature::from_der(signature).ok()?;
    let mut padded = vec![0; P521_BYTES.checked_sub(hash.len())?];
    padded.extend_from_slice(hash);
    key.verify_prehash(&padded, &signature).ok()
}

#[cfg(test)]
mod tests {
    use super::super::request::CertificateRequest;

    /// Created with OpenSSL: `openssl req -new -nodes -subj /CN=u -newkey rsa:1024` and
    /// `ec -pkeyopt ec_paramgen_curve:P-521`, with the hash in their names.
    const REQUESTS: [(&str, &str); 5] = [
        ("rsa1024-sha256", include_str!("testdata/rsa1024-sha256.csr")),
        ("rsa1024-sha512", include_str!("testdata/rsa1024-sha512.csr")),
        ("p521-sha256", include_str!("testdata/p521-sha256.csr")),
        ("p521-sha384", include_str!("testdata/p521-sha384.csr")),
        ("p521-sha512", include_str!("testdata/p521-sha512.csr")),
    ];

    #[test]
    fn keys_that_go_accepts_are_accepted() {
        for (name, pem) in REQUESTS {
            let request = CertificateRequest::parse(pem.as_bytes()).unwrap();
            assert_eq!(request.check_signature(), Ok(()), "{name}");
            let mut forged = request.der.clone();
            let last = forged.len() - 1;
            forged[last] ^= 1;
            let forged = CertificateRequest::from_der(forged).and_then(|r| r.check_signature());
            assert!(forged.is_err(), "{name}");
            let mut renamed = request.der.clone();
            let at = renamed.windows(3).position(|w| w == [0x0c, 1, b'u']).unwrap();
            renamed[at + 2] = b'v';
            let renamed = CertificateRequest::from_der(renamed).and_then(|r| r.check_signature());
            assert!(renamed.is_err(), "{name}");
        }
    }
}
