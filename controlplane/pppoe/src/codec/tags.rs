//! Discovery tags, RFC 2516 appendix A, RFC 4638 and TR-101.

use alloc::vec::Vec;

use crate::DropReason;

/// Tag types.
pub mod kind {
    /// End of the list.
    pub const END_OF_LIST: u16 = 0x0000;
    /// Service the client wants or the concentrator offers; empty is any.
    pub const SERVICE_NAME: u16 = 0x0101;
    /// Name of the access concentrator.
    pub const AC_NAME: u16 = 0x0102;
    /// Opaque value of the client, echoed.
    pub const HOST_UNIQ: u16 = 0x0103;
    /// Opaque value of the access concentrator, echoed.
    pub const AC_COOKIE: u16 = 0x0104;
    /// Vendor id and vendor data; TR-101 access-line information travels here.
    pub const VENDOR_SPECIFIC: u16 = 0x0105;
    /// Opaque value of an intermediate agent, echoed.
    pub const RELAY_SESSION_ID: u16 = 0x0110;
    /// RFC 4638: largest PPP payload above 1492 the sender can take.
    pub const PPP_MAX_PAYLOAD: u16 = 0x0120;
    /// The requested Service-Name is not offered.
    pub const SERVICE_NAME_ERROR: u16 = 0x0201;
    /// The access concentrator cannot serve the request.
    pub const AC_SYSTEM_ERROR: u16 = 0x0202;
    /// Any other error.
    pub const GENERIC_ERROR: u16 = 0x0203;
}

/// IANA enterprise number of the Broadband Forum (ADSL Forum), TR-101 section 3.9.2.
pub const VENDOR_BROADBAND_FORUM: u32 = 3561;
const AGENT_CIRCUIT_ID: u8 = 0x01;
const AGENT_REMOTE_ID: u8 = 0x02;

/// One discovery tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag<'a> {
    /// Type, see [`kind`]; may be unknown.
    pub kind: u16,
    /// Value.
    pub value: &'a [u8],
}

/// A tag list checked as a whole.
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |          TAG_TYPE             |        TAG_LENGTH             |
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// |          TAG_VALUE ...                                        ~
/// +-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tags<'a> {
    // Whole tags only, End-Of-List and what follows it left out.
    bytes: &'a [u8],
}

/// Splits the first tag off; `Ok(None)` at the end of the bytes.
fn split(bytes: &[u8]) -> Result<Option<(Tag<'_>, &[u8])>, DropReason> {
    match *bytes {
        [] => Ok(None),
        [k0, k1, l0, l1, ref rest @ ..] => {
            let (value, rest) = rest
                .split_at_checked(usize::from(u16::from_be_bytes([l0, l1])))
                .ok_or(DropReason::TagLength)?;
            let kind = u16::from_be_bytes([k0, k1]);
            Ok(Some((Tag { kind, value }, rest)))
        }
        _ => Err(DropReason::TagTruncated),
    }
}

impl<'a> Tags<'a> {
    /// Checks every tag up to End-Of-List or the end of `bytes`, the payload bounded by the PPPoE length.
    ///
    /// # Errors
    /// [`DropReason::TagTruncated`] or [`DropReason::TagLength`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DropReason> {
        let mut rest = bytes;
        while let Some((tag, after)) = split(rest)? {
            if tag.kind == kind::END_OF_LIST {
                break;
            }
            rest = after;
        }
        let used = bytes.len() - rest.len();
        Ok(Self {
            bytes: bytes.get(..used).unwrap_or(&[]),
        })
    }

    /// The tags in order, without End-Of-List.
    pub fn iter(&self) -> impl Iterator<Item = Tag<'a>> + use<'a> {
        let mut rest = self.bytes;
        core::iter::from_fn(move || {
            let (tag, after) = split(rest).ok()??;
            rest = after;
            Some(tag)
        })
    }

    /// Value of the first tag of type `kind`.
    #[must_use]
    pub fn find(&self, kind: u16) -> Option<&'a [u8]> {
        self.iter()
            .find_map(|tag| (tag.kind == kind).then_some(tag.value))
    }

    /// The RFC 4638 PPP-Max-Payload; a value that is not two bytes long counts as absent.
    #[must_use]
    pub fn ppp_max_payload(&self) -> Option<u16> {
        let value = self.find(kind::PPP_MAX_PAYLOAD)?;
        Some(u16::from_be_bytes(value.try_into().ok()?))
    }

    /// The TR-101 access-line identification an intermediate agent added; empty when there is none.
    ///
    /// # Errors
    /// [`DropReason::VendorTagLength`] when a Vendor-Specific tag has no vendor id or an item goes past it.
    pub fn access_line_ids(&self) -> Result<AccessLineIds<'a>, DropReason> {
        let mut ids = AccessLineIds::default();
        for tag in self.iter().filter(|t| t.kind == kind::VENDOR_SPECIFIC) {
            let (vendor, mut items) = tag
                .value
                .split_first_chunk::<4>()
                .ok_or(DropReason::VendorTagLength)?;
            if u32::from_be_bytes(*vendor) != VENDOR_BROADBAND_FORUM {
                continue;
            }
            while let Some((item, rest)) = items.split_first() {
                let (length, rest) = rest.split_first().ok_or(DropReason::VendorTagLength)?;
                let (value, rest) = rest
                    .split_at_checked(usize::from(*length))
                    .ok_or(DropReason::VendorTagLength)?;
                match *item {
                    AGENT_CIRCUIT_ID => ids.circuit_id = value,
                    AGENT_REMOTE_ID => ids.remote_id = value,
                    _ => {}
                }
                items = rest;
            }
        }
        Ok(ids)
    }
}

/// TR-101 section 3.9.3: which line of which access node the subscriber is on. Empty where unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessLineIds<'a> {
    /// Agent-Circuit-Id.
    pub circuit_id: &'a [u8],
    /// Agent-Remote-Id.
    pub remote_id: &'a [u8],
}

/// Builds a tag list no longer than a limit.
#[derive(Debug)]
pub struct TagWriter {
    bytes: Vec<u8>,
    limit: usize,
}

impl TagWriter {
    /// An empty list that will not grow beyond `limit` bytes.
    #[must_use]
    pub const fn new(limit: usize) -> Self {
        Self {
            bytes: Vec::new(),
            limit,
        }
    }

    /// Appends a tag and returns whether it fitted; a tag that does not fit leaves the list as it was.
    #[must_use]
    pub fn put(&mut self, kind: u16, value: &[u8]) -> bool {
        let Ok(length) = u16::try_from(value.len()) else {
            return false;
        };
        if self.bytes.len() + 4 + value.len() > self.limit {
            return false;
        }
        self.bytes.extend_from_slice(&kind.to_be_bytes());
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(value);
        true
    }

    /// Appends TR-101 access-line identification, as an intermediate agent does; items over 255 bytes do not fit.
    #[must_use]
    pub fn put_access_line_ids(&mut self, ids: AccessLineIds<'_>) -> bool {
        let mut value = VENDOR_BROADBAND_FORUM.to_be_bytes().to_vec();
        for (item, bytes) in [
            (AGENT_CIRCUIT_ID, ids.circuit_id),
            (AGENT_REMOTE_ID, ids.remote_id),
        ] {
            let Ok(length) = u8::try_from(bytes.len()) else {
                return false;
            };
            if length > 0 {
                value.extend_from_slice(&[item, length]);
                value.extend_from_slice(bytes);
            }
        }
        self.put(kind::VENDOR_SPECIFIC, &value)
    }

    /// The list's bytes.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
