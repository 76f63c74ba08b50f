//! Whole frames: Ethernet, VLAN tags, PPPoE, and the PPP protocol field.

use alloc::vec;
use alloc::vec::Vec;

use bng_wire::ethernet::{self, EthError, ethertype};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, PppoeError};
use bng_wire::{MacAddr, VlanStack};

use super::tags::Tags;
use crate::DropReason;

/// Addresses and tags of a frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHeader {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address.
    pub src: MacAddr,
    /// VLAN tags, outermost first.
    pub vlans: VlanStack,
}

/// A received PPPoE frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Destination address.
    pub dst: MacAddr,
    /// Source address, always unicast.
    pub src: MacAddr,
    /// VLAN tags, outermost first.
    pub vlans: VlanStack,
    /// What the frame carries.
    pub body: Body<'a>,
}

/// The two stages of PPPoE (RFC 2516 sections 5 and 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// Discovery stage.
    Discovery {
        /// PADI, PADO, PADR, PADS, PADT or an unknown code.
        code: u8,
        /// Session id, 0 where there is none yet.
        session_id: u16,
        /// The tag list, checked as a whole.
        tags: Tags<'a>,
    },
    /// Session stage.
    Session {
        /// Session id.
        session_id: u16,
        /// PPP protocol number.
        protocol: u16,
        /// PPP information field; Ethernet padding is not part of it.
        payload: &'a [u8],
    },
}

impl From<EthError> for DropReason {
    fn from(error: EthError) -> Self {
        match error {
            EthError::Truncated { .. } => Self::FrameTruncated,
            EthError::TooManyTags => Self::TooManyTags,
        }
    }
}

impl From<PppoeError> for DropReason {
    fn from(error: PppoeError) -> Self {
        match error {
            PppoeError::Truncated { .. } => Self::PppoeTruncated,
            PppoeError::VersionType { .. } => Self::PppoeVersion,
            PppoeError::SessionCode { .. } => Self::PppoeSessionCode,
            PppoeError::LengthBeyondFrame { .. } => Self::PppoeLength,
            PppoeError::LengthZero | PppoeError::LengthOne => Self::PppLength,
            PppoeError::CompressedProtocol { .. } => Self::PppCompressedProtocol,
        }
    }
}

/// Parses a frame from its first destination-address byte; it may end with Ethernet padding.
///
/// # Errors
/// The [`DropReason`] of the first defect, outermost layer first.
pub fn parse(bytes: &[u8]) -> Result<Frame<'_>, DropReason> {
    let eth = ethernet::parse(bytes)?;
    let rest = bytes.get(eth.payload..).unwrap_or(&[]);
    let body = match eth.ethertype {
        ethertype::PPPOE_DISCOVERY => {
            let discovery = pppoe::parse_discovery(rest)?;
            Body::Discovery {
                code: discovery.code,
                session_id: discovery.session_id,
                tags: Tags::parse(discovery.tags)?,
            }
        }
        ethertype::PPPOE_SESSION => {
            let session = pppoe::parse_session(rest)?;
            Body::Session {
                session_id: session.session_id,
                protocol: session.protocol,
                payload: session.payload,
            }
        }
        _ => return Err(DropReason::NotPppoe),
    };
    if !eth.src.is_unicast() {
        return Err(DropReason::SourceMac);
    }
    Ok(Frame {
        dst: eth.dst,
        src: eth.src,
        vlans: eth.tags,
        body,
    })
}

/// Builds a discovery-stage frame around a tag list (see [`TagWriter`](super::TagWriter)).
///
/// Returns `None` when `tags` does not fit the 16-bit length field.
#[must_use]
pub fn discovery(link: &LinkHeader, code: u8, session_id: u16, tags: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(tags.len()).ok()?;
    let eth = ethernet::ETH_LEN + link.vlans.wire_len();
    let mut bytes = vec![0; eth + PPPOE_LEN];
    ethernet::write(
        &mut bytes,
        link.dst,
        link.src,
        &link.vlans,
        ethertype::PPPOE_DISCOVERY,
    )?;
    pppoe::write(bytes.get_mut(eth..)?, code, session_id, length)?;
    bytes.extend_from_slice(tags);
    Some(bytes)
}

/// Builds a session-stage frame around a PPP information field.
///
/// Returns `None` when `payload` does not fit the 16-bit length field.
#[must_use]
pub fn session(
    link: &LinkHeader,
    session_id: u16,
    protocol: u16,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let eth = ethernet::ETH_LEN + link.vlans.wire_len();
    let mut bytes = Vec::with_capacity(eth + PPPOE_LEN + PPP_LEN + payload.len());
    bytes.resize(eth + PPPOE_LEN + PPP_LEN, 0);
    ethernet::write(
        &mut bytes,
        link.dst,
        link.src,
        &link.vlans,
        ethertype::PPPOE_SESSION,
    )?;
    pppoe::write_session(bytes.get_mut(eth..)?, session_id, protocol, payload.len())?;
    bytes.extend_from_slice(payload);
    Some(bytes)
}
