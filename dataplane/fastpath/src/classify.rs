//! Stage: is the frame for us, and what is it?

use bng_shm::Counter;
use bng_wire::ethernet::{self, EthFrame, ethertype};
use bng_wire::{EthError, MacAddr, PppoeError, pppoe};

use crate::buffer::PacketBuf;
use crate::ports::Port;
use crate::verdict::{Punt, Step, Verdict, drop};
use crate::vlans::{self, VlanRange};

fn eth_reason(error: EthError) -> Verdict {
    Verdict::Drop(match error {
        EthError::Truncated { .. } => Counter::FrameTruncated,
        EthError::TooManyTags => Counter::TooManyTags,
    })
}

/// The drop reason of a PPPoE defect.
pub(crate) fn pppoe_reason(error: PppoeError) -> Verdict {
    Verdict::Drop(match error {
        PppoeError::Truncated { .. } => Counter::PppoeTruncated,
        PppoeError::VersionType { .. } => Counter::PppoeVersion,
        PppoeError::SessionCode { .. } => Counter::PppoeCode,
        PppoeError::LengthBeyondFrame { .. } => Counter::PppoeLengthLong,
        PppoeError::LengthZero => Counter::PppoeLengthZero,
        PppoeError::LengthOne => Counter::PppoeLengthOne,
        PppoeError::CompressedProtocol { .. } => Counter::PppProtocolCompressed,
    })
}

/// The link layer of a frame whose bytes are all in one segment, and what follows it.
#[inline(always)]
fn link<B: PacketBuf>(buf: &B) -> Step<(EthFrame, &[u8])> {
    if !buf.is_contiguous() {
        return drop(Counter::FrameSegmented);
    }
    ethernet::split(buf.data()).map_err(eth_reason)
}

/// A frame from an access port: goes on only if it is a PPPoE session frame to the port's MAC address;
/// returns its link layer and what follows.
/// Discovery to us or to everybody is the control plane's, from one of the VLANs served.
#[inline(always)]
pub(crate) fn access<'a, B: PacketBuf>(
    buf: &'a B,
    port: &Port,
    served: &[VlanRange],
) -> Step<(EthFrame, &'a [u8])> {
    let (frame, rest) = link(buf)?;
    match frame.ethertype {
        ethertype::PPPOE_SESSION if frame.dst == port.mac => Ok((frame, rest)),
        ethertype::PPPOE_DISCOVERY if frame.dst == port.mac || frame.dst == MacAddr::BROADCAST => {
            pppoe::parse_discovery(rest).map_err(pppoe_reason)?;
            vlans::served(served, &frame.tags)?;
            Err(Verdict::Punt(Punt::Discovery))
        }
        ethertype::PPPOE_SESSION | ethertype::PPPOE_DISCOVERY => drop(Counter::NotForUs),
        _ => drop(Counter::NotPppoe),
    }
}

/// A frame from a core port: goes on only if it is untagged IPv4 to the port's MAC address; returns the offset of
/// the IPv4 header and the bytes from there on. Everything else that is to us or to a group is the kernel's.
#[inline(always)]
pub(crate) fn core<'a, B: PacketBuf>(buf: &'a B, port: &Port) -> Step<(usize, &'a [u8])> {
    let (frame, rest) = link(buf)?;
    if frame.dst == port.mac && frame.ethertype == ethertype::IPV4 && frame.tags.count() == 0 {
        return Ok((frame.payload, rest));
    }
    if frame.dst == port.mac || frame.dst.is_group() {
        return Err(Verdict::Host { port: buf.port() });
    }
    drop(Counter::NotForUs)
}
