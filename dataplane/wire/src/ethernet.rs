//! Ethernet II and IEEE 802.1Q tags.

use core::fmt;

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::U16;

/// EtherType numbers (IEEE 802 registration authority).
pub mod ethertype {
    /// IPv4, RFC 894.
    pub const IPV4: u16 = 0x0800;
    /// ARP, RFC 826.
    pub const ARP: u16 = 0x0806;
    /// IEEE 802.1Q customer tag.
    pub const VLAN: u16 = 0x8100;
    /// IEEE 802.1ad service tag.
    pub const QINQ: u16 = 0x88a8;
    /// IPv6, RFC 2464.
    pub const IPV6: u16 = 0x86dd;
    /// PPPoE discovery stage, RFC 2516 section 4.
    pub const PPPOE_DISCOVERY: u16 = 0x8863;
    /// PPPoE session stage, RFC 2516 section 4.
    pub const PPPOE_SESSION: u16 = 0x8864;
}

/// Length of the Ethernet header without tags, in bytes.
pub const ETH_LEN: usize = 14;
/// Length of one 802.1Q tag, in bytes.
pub const TAG_LEN: usize = 4;
/// Tags a frame may carry here: S-VLAN and C-VLAN.
pub const MAX_TAGS: usize = 2;

/// A MAC address, in transmission order.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// ff:ff:ff:ff:ff:ff.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// 00:00:00:00:00:00, never a station.
    pub const ZERO: Self = Self([0; 6]);

    /// The group bit: multicast or broadcast.
    #[inline]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// A usable station address: neither group nor all zero.
    #[inline]
    #[must_use]
    pub const fn is_unicast(self) -> bool {
        !self.is_group() && self.to_u64() != 0
    }

    /// The address as the low 48 bits of an integer, first byte most significant.
    #[inline]
    #[must_use]
    pub const fn to_u64(self) -> u64 {
        let b = self.0;
        u64::from_be_bytes([0, 0, b[0], b[1], b[2], b[3], b[4], b[5]])
    }

    /// Inverse of [`Self::to_u64`]; the upper 16 bits are ignored.
    #[inline]
    #[must_use]
    pub const fn from_u64(value: u64) -> Self {
        let b = value.to_be_bytes();
        Self([b[2], b[3], b[4], b[5], b[6], b[7]])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let b = self.0;
        write!(
            f,
            "{:02x}:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}",
            b[0], b[1], b[2], b[3], b[4], b[5]
        )
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Ethernet II header (RFC 894, IEEE 802.3). With tags, `ethertype` is the first tag's TPID.
///
/// ```text
/// +----------------------+----------------------+-------------+
/// | destination (6)      | source (6)           | EtherType(2)|
/// +----------------------+----------------------+-------------+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct EthHdr {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// EtherType, or the TPID of the first tag.
    pub ethertype: U16,
}

/// What follows a TPID: tag control information and the next EtherType (IEEE 802.1Q clause 9).
///
/// ```text
///  0                   1                   2                   3
///  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
/// +-----+-+-----------------------+-------------------------------+
/// | PCP |D|          VID          |  next EtherType               |
/// +-----+-+-----------------------+-------------------------------+
/// ```
///
/// No function of this view can panic.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct VlanHdr {
    /// PCP (3 bits), DEI (1 bit), VID (12 bits).
    pub tci: U16,
    /// EtherType of what follows, or the TPID of the next tag.
    pub ethertype: U16,
}

/// One 802.1Q tag, in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct VlanTag {
    /// TPID: [`ethertype::VLAN`] or [`ethertype::QINQ`].
    pub tpid: u16,
    /// PCP (3 bits), DEI (1 bit), VID (12 bits).
    pub tci: u16,
}

impl VlanTag {
    /// VLAN identifier, 0 to 4095; 0 is a priority tag.
    #[inline]
    #[must_use]
    pub const fn vid(self) -> u16 {
        self.tci & 0x0fff
    }

    /// Priority code point, 0 to 7.
    #[inline]
    #[must_use]
    pub const fn pcp(self) -> u8 {
        (self.tci >> 13) as u8
    }
}

/// The tags of a frame, outermost first: none, one (S-VLAN) or two (S-VLAN, C-VLAN).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VlanStack {
    // Unused places stay zero so that the derived equality and hash are those of the used ones.
    tags: [VlanTag; MAX_TAGS],
    count: u8,
}

impl VlanStack {
    /// An untagged frame.
    pub const UNTAGGED: Self = Self {
        tags: [VlanTag { tpid: 0, tci: 0 }; MAX_TAGS],
        count: 0,
    };

    /// One tag.
    #[must_use]
    pub const fn single(tag: VlanTag) -> Self {
        Self {
            tags: [tag, VlanTag { tpid: 0, tci: 0 }],
            count: 1,
        }
    }

    /// Two tags: `outer` is the S-VLAN, `inner` the C-VLAN.
    #[must_use]
    pub const fn double(outer: VlanTag, inner: VlanTag) -> Self {
        Self {
            tags: [outer, inner],
            count: 2,
        }
    }

    /// The tags, outermost first.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[VlanTag] {
        self.tags.get(..usize::from(self.count)).unwrap_or(&[])
    }

    /// Number of tags, 0 to 2.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count as usize
    }

    /// VID of the outer tag; 0 when the frame is untagged or priority-tagged.
    #[inline]
    #[must_use]
    pub const fn s_vlan(&self) -> u16 {
        self.tags[0].vid()
    }

    /// VID of the inner tag; 0 when there is no second tag or it is a priority tag.
    #[inline]
    #[must_use]
    pub const fn c_vlan(&self) -> u16 {
        self.tags[1].vid()
    }

    /// Bytes these tags occupy in a frame.
    #[inline]
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.count as usize * TAG_LEN
    }
}

impl fmt::Debug for VlanStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The parsed link layer of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthFrame {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// Tags, outermost first.
    pub tags: VlanStack,
    /// EtherType after the tags.
    pub ethertype: u16,
    /// Offset of the first byte after the link layer: 14, 18 or 22.
    pub payload: usize,
}

/// Why bytes are not an Ethernet frame this gateway reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum EthError {
    /// Fewer bytes than the header (14) or than the tags it announces.
    #[error("Ethernet frame of {have} bytes ends inside its header")]
    Truncated {
        /// Bytes present.
        have: usize,
    },
    /// A third 802.1Q tag.
    #[error("more than two VLAN tags")]
    TooManyTags,
}

/// Whether `ethertype` announces an 802.1Q tag.
#[inline]
#[must_use]
pub const fn is_tpid(ethertype: u16) -> bool {
    ethertype == self::ethertype::VLAN || ethertype == self::ethertype::QINQ
}

/// Parses the link layer: addresses, up to two tags, EtherType.
///
/// # Errors
/// [`EthError`] when the bytes end inside the header or a third tag follows.
#[inline]
pub fn parse(bytes: &[u8]) -> Result<EthFrame, EthError> {
    let truncated = EthError::Truncated { have: bytes.len() };
    let (eth, mut rest) = EthHdr::ref_from_prefix(bytes).map_err(|_| truncated)?;
    let mut ethertype = eth.ethertype.get();
    let mut tags = VlanStack::UNTAGGED;
    while is_tpid(ethertype) {
        let Some(place) = tags.tags.get_mut(usize::from(tags.count)) else {
            return Err(EthError::TooManyTags);
        };
        let (tag, after) = VlanHdr::ref_from_prefix(rest).map_err(|_| truncated)?;
        *place = VlanTag {
            tpid: ethertype,
            tci: tag.tci.get(),
        };
        tags.count += 1;
        ethertype = tag.ethertype.get();
        rest = after;
    }
    Ok(EthFrame {
        dst: eth.dst,
        src: eth.src,
        tags,
        ethertype,
        payload: ETH_LEN + tags.wire_len(),
    })
}

/// Writes a link-layer header at the start of `buf` and returns its length (14, 18 or 22 bytes).
///
/// Returns `None`, writing nothing, when `buf` is too short.
#[inline]
#[must_use]
pub fn write(
    buf: &mut [u8],
    dst: MacAddr,
    src: MacAddr,
    tags: &VlanStack,
    ethertype: u16,
) -> Option<usize> {
    let len = ETH_LEN + tags.wire_len();
    let header = buf.get_mut(..len)?;
    let (eth, mut rest) = EthHdr::mut_from_prefix(header).ok()?;
    eth.dst = dst;
    eth.src = src;
    let stack = tags.as_slice();
    eth.ethertype = U16::new(stack.first().map_or(ethertype, |tag| tag.tpid));
    for (at, tag) in stack.iter().enumerate() {
        let (vlan, after) = VlanHdr::mut_from_prefix(rest).ok()?;
        vlan.tci = U16::new(tag.tci);
        vlan.ethertype = U16::new(stack.get(at + 1).map_or(ethertype, |next| next.tpid));
        rest = after;
    }
    Some(len)
}
