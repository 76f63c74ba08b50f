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
///
/// One word, so that it is compared and copied in a register: `outer TPID | outer TCI | inner TPID | inner TCI`,
/// 16 bits each. A TPID of zero means that there is no such tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct VlanStack(u64);

impl VlanStack {
    /// An untagged frame.
    pub const UNTAGGED: Self = Self(0);

    /// One tag. Its TPID is not zero.
    #[must_use]
    pub const fn single(tag: VlanTag) -> Self {
        Self((tag.tpid as u64) << 48 | (tag.tci as u64) << 32)
    }

    /// Two tags: `outer` is the S-VLAN, `inner` the C-VLAN. Their TPIDs are not zero.
    #[must_use]
    pub const fn double(outer: VlanTag, inner: VlanTag) -> Self {
        Self(Self::single(outer).0 | (inner.tpid as u64) << 16 | inner.tci as u64)
    }

    /// The outer (or only) tag.
    #[inline]
    #[must_use]
    pub const fn outer(&self) -> Option<VlanTag> {
        tag_of((self.0 >> 32) as u32)
    }

    /// The inner tag.
    #[inline]
    #[must_use]
    pub const fn inner(&self) -> Option<VlanTag> {
        tag_of(self.0 as u32)
    }

    /// The tags, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = VlanTag> {
        self.outer().into_iter().chain(self.inner())
    }

    /// Number of tags, 0 to 2.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> usize {
        (self.0 >> 48 != 0) as usize + (self.0 & 0xffff_0000 != 0) as usize
    }

    /// The tags that name a VLAN: one with VID 0 carries a priority only and is left out (IEEE 802.1Q section 6.9).
    #[must_use]
    pub fn without_priority_tags(&self) -> Self {
        let mut tags = self.iter().filter(|tag| tag.vid() != 0);
        match (tags.next(), tags.next()) {
            (Some(outer), Some(inner)) => Self::double(outer, inner),
            (Some(only), None) => Self::single(only),
            _ => Self::UNTAGGED,
        }
    }

    /// VID of the outer tag; 0 when the frame is untagged or priority-tagged.
    #[inline]
    #[must_use]
    pub const fn s_vlan(&self) -> u16 {
        (self.0 >> 32) as u16 & 0x0fff
    }

    /// VID of the inner tag; 0 when there is no second tag or it is a priority tag.
    #[inline]
    #[must_use]
    pub const fn c_vlan(&self) -> u16 {
        self.0 as u16 & 0x0fff
    }

    /// Bytes these tags occupy in a frame.
    #[inline]
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.count() * TAG_LEN
    }
}

/// A tag from its half of a [`VlanStack`].
#[inline]
const fn tag_of(half: u32) -> Option<VlanTag> {
    let tag = VlanTag {
        tpid: (half >> 16) as u16,
        tci: half as u16,
    };
    if tag.tpid == 0 { None } else { Some(tag) }
}

impl fmt::Debug for VlanStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
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
#[inline(always)]
pub fn parse(bytes: &[u8]) -> Result<EthFrame, EthError> {
    split(bytes).map(|(frame, _)| frame)
}

/// As [`parse`], with the bytes after the link layer.
///
/// # Errors
/// As [`parse`].
#[inline(always)]
pub fn split(bytes: &[u8]) -> Result<(EthFrame, &[u8]), EthError> {
    let truncated = EthError::Truncated { have: bytes.len() };
    let (eth, rest) = EthHdr::ref_from_prefix(bytes).map_err(|_| truncated)?;
    let frame = |tags, ethertype, payload| EthFrame {
        dst: eth.dst,
        src: eth.src,
        tags,
        ethertype,
        payload,
    };
    let ethertype = eth.ethertype.get();
    if !is_tpid(ethertype) {
        return Ok((frame(VlanStack::UNTAGGED, ethertype, ETH_LEN), rest));
    }
    let (vlan, rest) = VlanHdr::ref_from_prefix(rest).map_err(|_| truncated)?;
    let outer = VlanTag {
        tpid: ethertype,
        tci: vlan.tci.get(),
    };
    let ethertype = vlan.ethertype.get();
    if !is_tpid(ethertype) {
        return Ok((
            frame(VlanStack::single(outer), ethertype, ETH_LEN + TAG_LEN),
            rest,
        ));
    }
    let (vlan, rest) = VlanHdr::ref_from_prefix(rest).map_err(|_| truncated)?;
    let inner = VlanTag {
        tpid: ethertype,
        tci: vlan.tci.get(),
    };
    let ethertype = vlan.ethertype.get();
    if is_tpid(ethertype) {
        return Err(EthError::TooManyTags);
    }
    Ok((
        frame(
            VlanStack::double(outer, inner),
            ethertype,
            ETH_LEN + 2 * TAG_LEN,
        ),
        rest,
    ))
}

/// Writes a link-layer header at the start of `buf` and returns its length (14, 18 or 22 bytes).
///
/// Returns `None`, writing nothing, when `buf` is too short.
#[inline(always)]
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
    let (eth, rest) = EthHdr::mut_from_prefix(header).ok()?;
    eth.dst = dst;
    eth.src = src;
    let (outer, inner) = (tags.outer(), tags.inner());
    eth.ethertype = U16::new(outer.map_or(ethertype, |tag| tag.tpid));
    if let Some(outer) = outer {
        let (vlan, rest) = VlanHdr::mut_from_prefix(rest).ok()?;
        vlan.tci = U16::new(outer.tci);
        vlan.ethertype = U16::new(inner.map_or(ethertype, |tag| tag.tpid));
        if let Some(inner) = inner {
            let (vlan, _) = VlanHdr::mut_from_prefix(rest).ok()?;
            vlan.tci = U16::new(inner.tci);
            vlan.ethertype = U16::new(ethertype);
        }
    }
    Some(len)
}
