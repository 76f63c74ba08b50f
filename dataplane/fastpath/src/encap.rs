//! Stage: the new link layer.

use bng_shm::{Counter, SessionLine, SlotIndex, Vlans};
use bng_wire::ethernet::{self, ETH_LEN, TAG_LEN, ethertype};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, VERSION_TYPE, code, protocol};
use bng_wire::{MacAddr, VlanStack, VlanTag};

use crate::buffer::PacketBuf;
use crate::ports::SourceAndType;
use crate::verdict::{Step, drop};

/// Where an IP packet lies in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Offset of the IP header.
    pub(crate) l3: u16,
    /// Length of the packet, bytes.
    pub(crate) len: u16,
}

/// Towards the core: PPPoE, PPP and tags give way to a plain Ethernet header; padding is cut off.
#[inline(always)]
pub(crate) fn core<B: PacketBuf>(buf: &mut B, extent: Extent, dst: [u8; 8], source: SourceAndType) {
    // A session frame has at least 22 bytes in front of the packet, so the new header always fits.
    buf.trim_front(usize::from(extent.l3).saturating_sub(ETH_LEN));
    buf.truncate(ETH_LEN + usize::from(extent.len));
    if let Some(header) = buf.data_mut().first_chunk_mut::<ETH_LEN>() {
        // Two words that overlap: the second goes over the end of the first.
        if let Some(first) = header.first_chunk_mut() {
            *first = dst;
        }
        if let Some(last) = header.last_chunk_mut() {
            *last = source;
        }
    }
}

/// The tags a session's frames carry; outer TPID as the subscriber's, inner 0x8100, priority 0.
#[inline(always)]
fn tags(vlans: &Vlans) -> VlanStack {
    let tpid = if vlans.outer_is_88a8 {
        ethertype::QINQ
    } else {
        ethertype::VLAN
    };
    match (vlans.s_vlan, vlans.c_vlan) {
        (Some(s), Some(c)) => VlanStack::double(
            VlanTag { tpid, tci: s },
            VlanTag {
                tpid: ethertype::VLAN,
                tci: c,
            },
        ),
        (Some(s), None) => VlanStack::single(VlanTag { tpid, tci: s }),
        (None, _) => VlanStack::UNTAGGED,
    }
}

/// Towards the subscriber: Ethernet, tags, PPPoE and PPP in front of the packet of this PPP protocol; padding is cut off.
#[inline(always)]
pub(crate) fn access<B: PacketBuf>(
    buf: &mut B,
    protocol: u16,
    extent: Extent,
    session: &SessionLine,
    slot: SlotIndex,
    own_mac: MacAddr,
) -> Step<()> {
    let vlans = session.vlans();
    if vlans.s_vlan.is_none() {
        return put(
            buf,
            protocol,
            extent,
            session,
            slot,
            own_mac,
            &VlanStack::UNTAGGED,
        );
    }
    put(buf, protocol, extent, session, slot, own_mac, &tags(&vlans))
}

#[inline(always)]
fn put<B: PacketBuf>(
    buf: &mut B,
    protocol: u16,
    extent: Extent,
    session: &SessionLine,
    slot: SlotIndex,
    own_mac: MacAddr,
    tags: &VlanStack,
) -> Step<()> {
    let header = ETH_LEN + tags.wire_len() + PPPOE_LEN + PPP_LEN;
    let len = usize::from(extent.len);
    if !buf.prepend(header.saturating_sub(usize::from(extent.l3))) {
        return drop(Counter::HeadroomMissing);
    }
    buf.truncate(header + len);
    let data = buf.data_mut();
    let client = MacAddr(session.client_mac());
    ethernet::write(data, client, own_mac, tags, ethertype::PPPOE_SESSION)
        .and_then(|at| data.get_mut(at..))
        .and_then(|rest| pppoe::write_session(rest, slot.session_id(), protocol, len))
        .map_or_else(|| drop(Counter::HeadroomMissing), |_| Ok(()))
}

/// The tags of a session's frames, as they stand there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tags {
    count: u8,
    bytes: [[u8; TAG_LEN]; 2],
}

impl Tags {
    pub(crate) const NONE: Self = Self {
        count: 0,
        bytes: [[0; TAG_LEN]; 2],
    };

    #[inline(always)]
    pub(crate) fn of(session: &SessionLine) -> Self {
        match session.tags() {
            0 => Self::NONE,
            _ => Self::some(&session.vlans()),
        }
    }

    #[inline(always)]
    fn some(vlans: &Vlans) -> Self {
        let stack = tags(vlans);
        let bytes = [stack.outer(), stack.inner()].map(|tag| {
            let VlanTag { tpid, tci } = tag.unwrap_or_default();
            let ([a, b], [c, d]) = (tpid.to_be_bytes(), tci.to_be_bytes());
            [a, b, c, d]
        });
        let count = stack.count() as u8;
        Self { count, bytes }
    }

    /// Length of the headers in front of the packet.
    #[inline(always)]
    pub(crate) fn header_len(&self) -> usize {
        ETH_LEN + TAG_LEN * usize::from(self.count) + PPPOE_LEN + PPP_LEN
    }
}

/// The headers in front of IPv4 packets to the sessions of one access port. Writes what [`access`] writes, in few words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccessHeader {
    own_mac: MacAddr,
}

impl AccessHeader {
    pub(crate) const fn of_port(own_mac: MacAddr) -> Self {
        Self { own_mac }
    }

    /// Writes the header for a packet of `ip_len` bytes to the start of `frame`; returns the packet's bytes.
    #[inline(always)]
    pub(crate) fn write<'a>(
        &self,
        frame: &'a mut [u8],
        client: [u8; 6],
        tags: &Tags,
        session_id: u16,
        ip_len: u16,
    ) -> Option<&'a mut [u8]> {
        let (macs, mut rest) = frame.split_first_chunk_mut::<12>()?;
        *macs.first_chunk_mut()? = client;
        *macs.last_chunk_mut()? = self.own_mac.0;
        if tags.count != 0 {
            for tag in tags.bytes.iter().take(usize::from(tags.count)) {
                let (place, behind) = rest.split_first_chunk_mut()?;
                *place = *tag;
                rest = behind;
            }
        }
        let (ethertype, rest) = rest.split_first_chunk_mut()?;
        *ethertype = ethertype::PPPOE_SESSION.to_be_bytes();
        // Version and type, code, session id, length, PPP protocol.
        let length = u64::from(ip_len) + PPP_LEN as u64;
        let word = u64::from(VERSION_TYPE) << 56
            | u64::from(code::SESSION) << 48
            | u64::from(session_id) << 32
            | length << 16
            | u64::from(protocol::IPV4);
        let (pppoe, rest) = rest.split_first_chunk_mut()?;
        *pppoe = word.to_be_bytes();
        Some(rest)
    }
}
