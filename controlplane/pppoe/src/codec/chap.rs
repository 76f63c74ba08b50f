//! CHAP packets, RFC 1994 section 4.

use alloc::vec::Vec;

use md5::{Digest, Md5};

use super::control;
use crate::DropReason;

/// Packet codes.
pub mod code {
    /// Challenge.
    pub const CHALLENGE: u8 = 1;
    /// Response.
    pub const RESPONSE: u8 = 2;
    /// Success.
    pub const SUCCESS: u8 = 3;
    /// Failure.
    pub const FAILURE: u8 = 4;
}

/// Bytes of a response with MD5, and of the challenges we send.
pub const VALUE_LEN: usize = 16;

/// Value and name of a Challenge or Response: bytes, not text.
///
/// ```text
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |   Value-Size  |  Value ...                              ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |  Name ...                                               ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value<'a> {
    /// The challenge, or the response to one: 1 to 255 bytes.
    pub value: &'a [u8],
    /// Who sent it, 0 to 255 bytes.
    pub name: &'a [u8],
}

/// Parses the data of a Challenge or Response. RFC 1994 knows no limit of the name but the packet; 255 bytes are what PAP
/// can carry and AAA takes.
///
/// # Errors
/// [`DropReason::ChapLength`] when the value is empty or goes past the data, or the name is too long.
pub fn parse_value(data: &[u8]) -> Result<Value<'_>, DropReason> {
    let (size, rest) = data.split_first().ok_or(DropReason::ChapLength)?;
    let (value, name) = rest
        .split_at_checked(usize::from(*size))
        .ok_or(DropReason::ChapLength)?;
    if value.is_empty() || name.len() > 255 {
        return Err(DropReason::ChapLength);
    }
    Ok(Value { value, name })
}

/// Builds a Challenge or Response; value and name past 255 bytes are cut off.
#[must_use]
pub fn write_value(code: u8, id: u8, value: Value<'_>) -> Vec<u8> {
    let cut = |bytes| <[u8]>::get(bytes, ..255).unwrap_or(bytes);
    let (bytes, name) = (cut(value.value), cut(value.name));
    let mut data = Vec::with_capacity(1 + bytes.len() + name.len());
    // Cannot saturate: the value was just cut to fit.
    data.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    data.extend_from_slice(bytes);
    data.extend_from_slice(name);
    control::write(code, id, &data)
}

/// The response to a challenge: MD5 over identifier, secret and challenge (RFC 1994 section 4.1).
#[must_use]
pub fn md5_response(id: u8, secret: &[u8], challenge: &[u8]) -> [u8; VALUE_LEN] {
    Md5::new()
        .chain_update([id])
        .chain_update(secret)
        .chain_update(challenge)
        .finalize()
        .into()
}
