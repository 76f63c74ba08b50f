//! PAP packets, RFC 1334 section 2.2.

use alloc::vec::Vec;

use super::control;
use crate::DropReason;

/// Packet codes.
pub mod code {
    /// Authenticate-Request.
    pub const AUTHENTICATE_REQUEST: u8 = 1;
    /// Authenticate-Ack.
    pub const AUTHENTICATE_ACK: u8 = 2;
    /// Authenticate-Nak.
    pub const AUTHENTICATE_NAK: u8 = 3;
}

/// Name and password of an Authenticate-Request: bytes, not text.
///
/// ```text
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// | Peer-ID Length|  Peer-Id ...                            ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// | Passwd-Length |  Password ...                           ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// Peer-Id, 0 to 255 bytes.
    pub name: &'a [u8],
    /// Password, 0 to 255 bytes.
    pub password: &'a [u8],
}

fn split_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// Parses the data of an Authenticate-Request.
///
/// # Errors
/// [`DropReason::PapLength`] when a length goes past the data.
pub fn parse_request(data: &[u8]) -> Result<Credentials<'_>, DropReason> {
    let (name, rest) = split_counted(data).ok_or(DropReason::PapLength)?;
    let (password, _) = split_counted(rest).ok_or(DropReason::PapLength)?;
    Ok(Credentials { name, password })
}

/// Parses the message of an Authenticate-Ack or -Nak; some peers leave even its length out.
///
/// # Errors
/// [`DropReason::PapLength`] when the length goes past the data.
pub fn parse_reply(data: &[u8]) -> Result<&[u8], DropReason> {
    if data.is_empty() {
        return Ok(&[]);
    }
    split_counted(data)
        .map(|(message, _)| message)
        .ok_or(DropReason::PapLength)
}

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = bytes.get(..255).unwrap_or(bytes);
    // Cannot saturate: the bytes were just cut to fit.
    out.push(u8::try_from(bytes.len()).unwrap_or(u8::MAX));
    out.extend_from_slice(bytes);
}

/// Builds an Authenticate-Request; name and password past 255 bytes are cut off.
#[must_use]
pub fn write_request(id: u8, credentials: Credentials<'_>) -> Vec<u8> {
    let mut data = Vec::new();
    put_counted(&mut data, credentials.name);
    put_counted(&mut data, credentials.password);
    control::write(code::AUTHENTICATE_REQUEST, id, &data)
}

/// Builds the data of an Authenticate-Ack or -Nak; a message past 255 bytes is cut off.
#[must_use]
pub fn reply_data(message: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    put_counted(&mut data, message);
    data
}
