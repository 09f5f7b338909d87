//! What a write is about: an object, or one of its subresources.

/// The object, or the subresource of it, that is written.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: Option<&'a str>,
}
