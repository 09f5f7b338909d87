//! The cryptography provider: ring's, extended by signatures of P-521 keys, which ring does not verify.

use std::sync::{Arc, OnceLock};

use p521::ecdsa::signature::hazmat::PrehashVerifier;
use p521::ecdsa::{Signature, VerifyingKey};
use rustls::SignatureScheme;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id};
use sha2::{Digest, Sha256, Sha384, Sha512};

/// Verifies ECDSA signatures of a P-521 key over a message's hash.
#[derive(Debug)]
struct P521 {
    id: AlgorithmIdentifier,
    hash: fn(&[u8]) -> Vec<u8>,
}

static SHA512: P521 = P521 { id: alg_id::ECDSA_SHA512, hash: |message| Sha512::digest(message).to_vec() };
static SHA384: P521 = P521 { id: alg_id::ECDSA_SHA384, hash: |message| Sha384::digest(message).to_vec() };
static SHA256: P521 = P521 { id: alg_id::ECDSA_SHA256, hash: |message| Sha256::digest(message).to_vec() };

type Algorithm = &'static dyn SignatureVerificationAlgorithm;

/// The algorithms with which a server may sign a handshake.
static IN_HANDSHAKES: &[Algorithm] = &[&SHA512];

/// The length of a field element. A shorter hash is used as the low-order bytes of a number of this length.
const FIELD_BYTES: usize = 66;

impl SignatureVerificationAlgorithm for P521 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        let hash = (self.hash)(message);
        let mut padded = vec![0; FIELD_BYTES - hash.len()];
        padded.extend_from_slice(&hash);
        key.verify_prehash(&padded, &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.id
    }
}

fn algorithms(of: WebPkiSupportedAlgorithms) -> WebPkiSupportedAlgorithms {
    let ours: [Algorithm; 3] = [&SHA512, &SHA384, &SHA256];
    // Created once and kept for the life of the process.
    WebPkiSupportedAlgorithms {
        all: [of.all, &ours].concat().leak(),
        mapping: [of.mapping, &[(SignatureScheme::ECDSA_NISTP521_SHA512, IN_HANDSHAKES)]].concat().leak(),
    }
}

/// Returns the cryptography provider of all connections.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        let mut provider = rustls::crypto::ring::default_provider();
        provider.signature_verification_algorithms = algorithms(provider.signature_verification_algorithms);
        Arc::new(provider)
    };
    Arc::clone(PROVIDER.get_or_init(make))
}
