//! The IPv6 packets a session's control protocols are in (RFC 8200). Extension headers are not looked through: neither
//! neighbour discovery nor DHCPv6 is sent with one.

use alloc::vec::Vec;
use core::net::Ipv6Addr;

use bng_wire::ipv6::{self, Ipv6Error};

use crate::DropReason;

/// An IPv6 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Next header: what `body` is.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// What follows the header, bounded by the payload length.
    pub body: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses the PPP information field of an IPv6 packet. Bytes past the payload length are padding.
    ///
    /// # Errors
    /// [`DropReason::Ipv6Truncated`], [`DropReason::Ipv6Version`] or [`DropReason::Ipv6Length`].
    pub fn parse(payload: &'a [u8]) -> Result<Self, DropReason> {
        let header = ipv6::header(payload).map_err(|error| match error {
            Ipv6Error::Truncated { .. } => DropReason::Ipv6Truncated,
            Ipv6Error::Version { .. } => DropReason::Ipv6Version,
            Ipv6Error::PayloadLengthBeyond { .. } => DropReason::Ipv6Length,
        })?;
        let body = payload
            .get(ipv6::IPV6_LEN..header.total_len())
            .ok_or(DropReason::Ipv6Length)?;
        Ok(Self {
            source: header.src.into(),
            destination: header.dst.into(),
            next_header: header.next_header,
            hop_limit: header.hop_limit,
            body,
        })
    }

    /// Builds the packet; a body past 65,535 bytes is cut off.
    #[must_use]
    pub fn write(&self) -> Vec<u8> {
        let body = self.body.get(..usize::from(u16::MAX)).unwrap_or(self.body);
        // Cannot saturate: the body was just cut to fit.
        let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
        let mut packet = Vec::with_capacity(ipv6::IPV6_LEN + body.len());
        packet.extend_from_slice(&[0x60, 0, 0, 0]);
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&[self.next_header, self.hop_limit]);
        packet.extend_from_slice(&self.source.octets());
        packet.extend_from_slice(&self.destination.octets());
        packet.extend_from_slice(body);
        packet
    }
}
