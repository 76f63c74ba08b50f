//! Stage: is the frame for us, and what is it?

use bng_shm::Counter;
use bng_wire::ethernet::{self, EthFrame, ethertype};
use bng_wire::{EthError, MacAddr, PppoeError, pppoe};

use crate::buffer::PacketBuf;
use crate::ports::Port;
use crate::verdict::{Punt, Step, Verdict, drop};

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

/// The link layer of a frame whose bytes are all in one segment.
#[inline(always)]
fn link<B: PacketBuf>(buf: &B) -> Step<EthFrame> {
    if !buf.is_contiguous() {
        return drop(Counter::FrameSegmented);
    }
    ethernet::parse(buf.data()).map_err(eth_reason)
}

/// A frame from an access port: goes on only if it is a PPPoE session frame to the port's MAC address.
/// Discovery to us or to everybody is the control plane's.
#[inline(always)]
pub(crate) fn access<B: PacketBuf>(buf: &B, port: &Port) -> Step<EthFrame> {
    let frame = link(buf)?;
    match frame.ethertype {
        ethertype::PPPOE_SESSION if frame.dst == port.mac => Ok(frame),
        ethertype::PPPOE_DISCOVERY if frame.dst == port.mac || frame.dst == MacAddr::BROADCAST => {
            let pppoe = buf.data().get(frame.payload..).unwrap_or(&[]);
            pppoe::parse_discovery(pppoe).map_err(pppoe_reason)?;
            Err(Verdict::Punt(Punt::Discovery))
        }
        ethertype::PPPOE_SESSION | ethertype::PPPOE_DISCOVERY => drop(Counter::NotForUs),
        _ => drop(Counter::NotPppoe),
    }
}

/// A frame from a core port: goes on only if it is untagged IPv4 to the port's MAC address; returns the offset of
/// the IPv4 header. Everything else that is to us or to a group is the kernel's.
#[inline(always)]
pub(crate) fn core<B: PacketBuf>(buf: &B, port: &Port) -> Step<usize> {
    let frame = link(buf)?;
    if frame.dst == port.mac && frame.ethertype == ethertype::IPV4 && frame.tags.count() == 0 {
        return Ok(frame.payload);
    }
    if frame.dst == port.mac || frame.dst.is_group() {
        return Err(Verdict::Host { port: buf.port() });
    }
    drop(Counter::NotForUs)
}
