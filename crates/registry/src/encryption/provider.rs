//! The ciphers: AES-GCM, AES-CBC, XSalsa20 with Poly1305, and identity.
//!
//! The formats are upstream's, so each program can read what the other wrote. Source:
//! `k8s.io/apiserver/pkg/storage/value/encrypt`.

use aes::cipher::{BlockDecryptMut, BlockEncryptMut, KeyIvInit, block_padding::Pkcs7};
use crypto_secretbox::XSalsa20Poly1305;
use crypto_secretbox::aead::{Aead, KeyInit};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use super::kms::Kms;

const CBC_BLOCK: usize = 16;
const SECRETBOX_NONCE: usize = 24;
/// The prefix of every encrypted value.
pub const RESERVED: &[u8] = b"k8s:enc:";

/// The name of providers that use a key service.
pub const KMS: &str = "kms";

/// One key of one provider.
#[allow(clippy::large_enum_variant, reason = "only a few exist, created when the configuration is read")]
pub enum Cipher {
    Identity,
    AesGcm(Box<LessSafeKey>),
    AesCbc(Vec<u8>),
    Secretbox(Box<XSalsa20Poly1305>),
    Kms(Kms),
}

/// A cipher, with the prefix of its values.
pub struct Provider {
    pub name: &'static str,
    pub prefix: Vec<u8>,
    pub cipher: Cipher,
}

#[derive(Debug, thiserror::Error)]
pub enum CipherError {
    #[error("secret is not of the expected length, got {got}, expected one of {expected}")]
    KeyLength { got: usize, expected: &'static str },
    #[error("the stored data was shorter than the required size")]
    TooShort,
    #[error("identity transformer tried to read encrypted data")]
    Encrypted,
    #[error("the data does not decrypt with this key")]
    Wrong,
    #[error("no randomness")]
    Random,
    #[error("{0}")]
    Kms(String),
}

impl Provider {
    pub fn identity() -> Self {
        Self { name: "identity", prefix: Vec::new(), cipher: Cipher::Identity }
    }

    fn new(name: &'static str, key: &str, cipher: Cipher) -> Self {
        Self { name, prefix: format!("k8s:enc:{name}:v1:{key}:").into_bytes(), cipher }
    }

    pub fn aes_gcm(key: &str, secret: &[u8]) -> Result<Self, CipherError> {
        let wrong = || CipherError::KeyLength { got: secret.len(), expected: "[16 32]" };
        let algorithm = match secret.len() {
            16 => &AES_128_GCM,
            32 => &AES_256_GCM,
            _ => return Err(wrong()),
        };
        let unbound = UnboundKey::new(algorithm, secret).map_err(|_| wrong())?;
        Ok(Self::new("aesgcm", key, Cipher::AesGcm(Box::new(LessSafeKey::new(unbound)))))
    }

    pub fn aes_cbc(key: &str, secret: &[u8]) -> Result<Self, CipherError> {
        if !matches!(secret.len(), 16 | 24 | 32) {
            return Err(CipherError::KeyLength { got: secret.len(), expected: "[16 24 32]" });
        }
        Ok(Self::new("aescbc", key, Cipher::AesCbc(secret.to_vec())))
    }

    pub fn secretbox(key: &str, secret: &[u8]) -> Result<Self, CipherError> {
        let cipher = XSalsa20Poly1305::new_from_slice(secret)
            .map_err(|_| CipherError::KeyLength { got: secret.len(), expected: "[32]" })?;
        Ok(Self::new("secretbox", key, Cipher::Secretbox(Box::new(cipher))))
    }

    pub fn kms(kms: Kms) -> Self {
        let prefix = format!("k8s:enc:kms:v2:{}:", kms.name()).into_bytes();
        Self { name: KMS, prefix, cipher: Cipher::Kms(kms) }
    }

    /// Returns the key service, if the provider uses one.
    pub fn key_service(&self) -> Option<&Kms> {
        match &self.cipher {
            Cipher::Kms(kms) => Some(kms),
            _ => None,
        }
    }

    /// Returns whether this provider wrote the value.
    pub fn wrote(&self, stored: &[u8]) -> bool {
        match self.cipher {
            Cipher::Identity => !stored.starts_with(RESERVED),
            _ => stored.starts_with(&self.prefix),
        }
    }

    /// Encrypts a value. `context` is its key in the store, so that the value cannot be moved to another key.
    pub async fn encrypt(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        let mut out = self.prefix.clone();
        match &self.cipher {
            Cipher::Identity => out.extend_from_slice(plain),
            Cipher::AesGcm(key) => {
                let nonce = random::<NONCE_LEN>()?;
                let mut body = plain.to_vec();
                key.seal_in_place_append_tag(
                    Nonce::assume_unique_for_key(nonce),
                    Aad::from(context),
                    &mut body,
                )
                .map_err(|_| CipherError::Wrong)?;
                out.extend_from_slice(&nonce);
                out.append(&mut body);
            }
            Cipher::AesCbc(secret) => {
                let iv = random::<CBC_BLOCK>()?;
                out.extend_from_slice(&iv);
                out.append(&mut cbc_encrypt(secret, &iv, plain)?);
            }
            Cipher::Secretbox(cipher) => {
                let nonce = random::<SECRETBOX_NONCE>()?;
                let mut body = cipher.encrypt(&nonce.into(), plain).map_err(|_| CipherError::Wrong)?;
                out.extend_from_slice(&nonce);
                out.append(&mut body);
            }
            Cipher::Kms(kms) => out.append(&mut kms.encrypt(plain, context).await?),
        }
        Ok(out)
    }

    /// Decrypts a value that this provider [`wrote`](Provider::wrote).
    pub async fn decrypt(&self, stored: &[u8], context: &[u8]) -> Result<Vec<u8>, CipherError> {
        let body = stored.get(self.prefix.len()..).ok_or(CipherError::TooShort)?;
        match &self.cipher {
            Cipher::Identity if stored.starts_with(RESERVED) => Err(CipherError::Encrypted),
            Cipher::Identity => Ok(body.to_vec()),
            Cipher::AesGcm(key) => {
                let (nonce, body) = body.split_at_checked(NONCE_LEN).ok_or(CipherError::TooShort)?;
                let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| CipherError::TooShort)?;
                let mut body = body.to_vec();
                let plain = key
                    .open_in_place(nonce, Aad::from(context), &mut body)
                    .map_err(|_| CipherError::Wrong)?
                    .len();
                body.truncate(plain);
                Ok(body)
            }
            Cipher::AesCbc(secret) => {
                let (iv, body) = body.split_at_checked(CBC_BLOCK).ok_or(CipherError::TooShort)?;
                cbc_decrypt(secret, iv, body)
            }
            Cipher::Secretbox(cipher) => {
                let (nonce, body) = body.split_at_checked(SECRETBOX_NONCE).ok_or(CipherError::TooShort)?;
                let nonce: [u8; SECRETBOX_NONCE] = nonce.try_into().map_err(|_| CipherError::TooShort)?;
                cipher.decrypt(&nonce.into(), body).map_err(|_| CipherError::Wrong)
            }
            Cipher::Kms(kms) => kms.decrypt(body, context).await,
        }
    }
}

fn random<const N: usize>() -> Result<[u8; N], CipherError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| CipherError::Random)?;
    Ok(bytes)
}

fn cbc_encrypt(secret: &[u8], iv: &[u8], plain: &[u8]) -> Result<Vec<u8>, CipherError> {
    let wrong = |_| CipherError::Wrong;
    Ok(match secret.len() {
        16 => cbc::Encryptor::<aes::Aes128>::new_from_slices(secret, iv)
            .map_err(wrong)?
            .encrypt_padded_vec_mut::<Pkcs7>(plain),
        24 => cbc::Encryptor::<aes::Aes192>::new_from_slices(secret, iv)
            .map_err(wrong)?
            .encrypt_padded_vec_mut::<Pkcs7>(plain),
        _ => cbc::Encryptor::<aes::Aes256>::new_from_slices(secret, iv)
            .map_err(wrong)?
            .encrypt_padded_vec_mut::<Pkcs7>(plain),
    })
}

fn cbc_decrypt(secret: &[u8], iv: &[u8], body: &[u8]) -> Result<Vec<u8>, CipherError> {
    let wrong = |_| CipherError::Wrong;
    match secret.len() {
        16 => cbc::Decryptor::<aes::Aes128>::new_from_slices(secret, iv)
            .map_err(wrong)?
            .decrypt_padded_vec_mut::<Pkcs7>(body),
        24 => cbc::Decryptor::<aes::Aes192>::new_from_slices(secret, iv)
            .map_err(wrong)?
            .decrypt_padded_vec_mut::<Pkcs7>(body),
        _ => cbc::Decryptor::<aes::Aes256>::new_from_slices(secret, iv)
            .map_err(wrong)?
            .decrypt_padded_vec_mut::<Pkcs7>(body),
    }
    .map_err(|_| CipherError::Wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a provider from a key, and the valid lengths of the key.
    type Maker = (fn(&[u8]) -> Provider, &'static [usize]);

    #[tokio::test]
    async fn what_is_encrypted_decrypts_with_the_same_key_alone() {
        let make: [Maker; 3] = [
            (|k| Provider::aes_gcm("k", k).unwrap(), &[16, 32]),
            (|k| Provider::aes_cbc("k", k).unwrap(), &[16, 24, 32]),
            (|k| Provider::secretbox("k", k).unwrap(), &[32]),
        ];
        for (make, lengths) in make {
            for length in lengths {
                let (one, other) = (make(&vec![1; *length]), make(&vec![2; *length]));
                for plain in [&b""[..], b"x", b"sixteen bytes 16", &[7; 5000]] {
                    let stored = one.encrypt(plain, b"/registry/a").await.unwrap();
                    assert!(one.wrote(&stored) && stored.starts_with(b"k8s:enc:"));
                    assert!(plain.len() < 2 || !stored.windows(plain.len()).any(|w| w == plain));
                    assert_ne!(stored, one.encrypt(plain, b"/registry/a").await.unwrap());
                    assert_eq!(one.decrypt(&stored, b"/registry/a").await.unwrap(), plain);
                    let foreign = other.decrypt(&stored, b"/registry/a").await;
                    assert!(foreign.is_err() || foreign.unwrap() != plain, "{}", one.name);
                    for cut in [0, 20, stored.len() - 1] {
                        assert!(one.decrypt(&stored[..cut], b"/registry/a").await.is_err());
                    }
                }
            }
        }
        let gcm = Provider::aes_gcm("k", &[1; 32]).unwrap();
        let stored = gcm.encrypt(b"x", b"/registry/a").await.unwrap();
        assert!(gcm.decrypt(&stored, b"/registry/b").await.is_err(), "moved to another key");
    }

    #[tokio::test]
    async fn plain_values_are_nobody_elses() {
        let identity = Provider::identity();
        assert!(identity.wrote(b"{}") && !identity.wrote(b"k8s:enc:aescbc:v1:k:x"));
        assert_eq!(identity.encrypt(b"{}", b"").await.unwrap(), b"{}");
        assert!(identity.decrypt(b"k8s:enc:x", b"").await.is_err());
        for wrong in
            [Provider::aes_gcm("k", &[0; 5]), Provider::aes_cbc("k", &[]), Provider::secretbox("k", &[0; 16])]
        {
            assert!(wrong.err().unwrap().to_string().starts_with("secret is not of the expected length"));
        }
    }
}
