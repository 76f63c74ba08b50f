//! PPP control packets and configuration options, RFC 1661 sections 5 and 6.

use alloc::vec::Vec;

use crate::DropReason;

/// Bytes of a control packet's header.
pub const HEADER_LEN: usize = 4;

/// A packet of LCP, an NCP or PAP.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |     Code      |  Identifier   |            Length             |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |    Data ...                                                   ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPacket<'a> {
    /// Code; may be unknown.
    pub code: u8,
    /// Identifier, matches a reply to its request.
    pub id: u8,
    /// Data after the header, bounded by the length field.
    pub data: &'a [u8],
    /// Header and data as received, padding not included.
    pub raw: &'a [u8],
}

impl<'a> ControlPacket<'a> {
    /// Parses the PPP information field of a control protocol. Bytes past the length field are padding.
    ///
    /// # Errors
    /// [`DropReason::ControlTruncated`] or [`DropReason::ControlLength`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, DropReason> {
        let [code, id, l0, l1, ..] = *payload else {
            return Err(DropReason::ControlTruncated);
        };
        let raw = payload
            .get(..usize::from(u16::from_be_bytes([l0, l1])))
            .ok_or(DropReason::ControlLength)?;
        let data = raw.get(HEADER_LEN..).ok_or(DropReason::ControlLength)?;
        Ok(Self {
            code,
            id,
            data,
            raw,
        })
    }
}

/// Builds a control packet; data past 65,531 bytes is cut off.
#[must_use]
pub fn write(code: u8, id: u8, data: &[u8]) -> Vec<u8> {
    let data = data
        .get(..usize::from(u16::MAX) - HEADER_LEN)
        .unwrap_or(data);
    let mut bytes = Vec::with_capacity(HEADER_LEN + data.len());
    bytes.extend_from_slice(&[code, id]);
    // Cannot saturate: the data was just cut to fit.
    let length = u16::try_from(HEADER_LEN + data.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// One configuration option.
///
/// ```text
///  0                   1
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |     Type      |    Length     |  Data ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigOption<'a> {
    /// Type; may be unknown.
    pub kind: u8,
    /// Data after the option's header.
    pub data: &'a [u8],
    /// The whole option as received.
    pub raw: &'a [u8],
}

/// An option list checked as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    bytes: &'a [u8],
}

/// Splits the first option off; `Ok(None)` at the end of the bytes.
fn split(bytes: &[u8]) -> Result<Option<(ConfigOption<'_>, &[u8])>, DropReason> {
    match *bytes {
        [] => Ok(None),
        [kind, length, ..] => {
            let (raw, rest) = bytes
                .split_at_checked(usize::from(length))
                .ok_or(DropReason::OptionLength)?;
            let data = raw.get(2..).ok_or(DropReason::OptionLength)?;
            Ok(Some((ConfigOption { kind, data, raw }, rest)))
        }
        [_] => Err(DropReason::OptionTruncated),
    }
}

impl<'a> Options<'a> {
    /// Checks every option of a Configure packet's data.
    ///
    /// # Errors
    /// [`DropReason::OptionTruncated`] or [`DropReason::OptionLength`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let mut rest = bytes;
        while let Some((_, after)) = split(rest)? {
            rest = after;
        }
        Ok(Self { bytes })
    }

    /// The options in order.
    pub fn iter(&self) -> impl Iterator<Item = ConfigOption<'a>> + use<'a> {
        let mut rest = self.bytes;
        core::iter::from_fn(move || {
            let (option, after) = split(rest).ok()??;
            rest = after;
            Some(option)
        })
    }

    /// The first option of type `kind`.
    #[must_use]
    pub fn find(&self, kind: u8) -> Option<ConfigOption<'a>> {
        self.iter().find(|option| option.kind == kind)
    }

    /// The list's bytes as received.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Appends an option; data past 253 bytes is cut off.
pub fn put_option(out: &mut Vec<u8>, kind: u8, data: &[u8]) {
    let data = data.get(..253).unwrap_or(data);
    // Cannot saturate: the data was just cut to fit.
    let length = u8::try_from(data.len() + 2).unwrap_or(u8::MAX);
    out.extend_from_slice(&[kind, length]);
    out.extend_from_slice(data);
}
