//! Flow rules that bring a PPPoE session's frames to one receive queue.

use std::ffi::CStr;

use crate::error::{Errno, Error};

/// How a rule finds the session id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PppoeMatch {
    /// The driver knows PPPoE (`RTE_FLOW_ITEM_TYPE_PPPOES`).
    Pppoes,
    /// Two raw bytes at their place behind Ethernet header and tags (`RTE_FLOW_ITEM_TYPE_RAW`).
    Raw,
}

/// A rule: session frames (RFC 2516, EtherType 0x8864) with so many tags and these bits of the session id go to a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PppoeRule {
    /// How to find the session id.
    pub by: PppoeMatch,
    /// VLAN tags in front, 0 to 2.
    pub tags: u8,
    /// Bits of the session id that are compared.
    pub mask: u16,
    /// Their value.
    pub session: u16,
    /// Receive queue.
    pub queue: u16,
}

/// Longest reason of a driver that is kept, with its NUL.
const REASON: usize = 128;

pub(crate) fn add(id: u16, port: &str, rule: &PppoeRule) -> Result<(), Error> {
    let raw = dpdk_sys::shim_pppoe_rule {
        session: rule.session,
        mask: rule.mask,
        queue: rule.queue,
        tags: rule.tags.min(2),
        raw: rule.by == PppoeMatch::Raw,
    };
    let mut why = [0u8; REASON];
    // SAFETY: a valid structure, and a place of `REASON` bytes for a C string.
    let code =
        unsafe { dpdk_sys::shim_flow_add_pppoe(id, &raw, why.as_mut_ptr().cast(), why.len()) };
    if code >= 0 {
        return Ok(());
    }
    let why = CStr::from_bytes_until_nul(&why).unwrap_or_default();
    Err(Error::FlowRule {
        port: port.to_owned(),
        why: why.to_string_lossy().into_owned(),
        errno: Errno::from_code(code),
    })
}

pub(crate) fn flush(id: u16) {
    // A driver without rules refuses, and has none to remove.
    // SAFETY: no preconditions.
    unsafe { dpdk_sys::shim_flow_flush(id) };
}
