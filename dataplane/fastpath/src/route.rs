//! Stage: from the FIB's answer to a port and a MAC address.

use std::net::{IpAddr, Ipv4Addr};

use bng_shm::{Adjacency, Counter, NextHopId, Worker};

use crate::ip::Packet;
use crate::ports::Ports;
use crate::resolve::Resolver;
use crate::verdict::{Step, Verdict};

/// Where a packet leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Egress {
    /// Index among all ports.
    pub(crate) port: u8,
    /// The next hop's MAC address and two bytes without meaning.
    pub(crate) dst: [u8; 8],
    /// Largest IP packet the port sends, bytes.
    pub(crate) mtu: u16,
}

/// A number that is the same for all packets of a flow, spread over all of 32 bits: which of equal paths it takes (RFC
/// 2992). `ports` is 0 where a packet has none, or where only some of a datagram's fragments have.
#[inline]
pub(crate) const fn spread(src: u32, dst: u32, ports: u32) -> u32 {
    let addresses = (src as u64) << 32 | dst as u64;
    let wide = (addresses ^ 0x9e37_79b9_7f4a_7c15) as u128
        * (ports as u64 ^ 0xd1b5_4a32_d192_ed03) as u128;
    let folded = wide as u64 ^ (wide >> 64) as u64;
    (folded ^ folded >> 32) as u32
}

/// The next hop that a FIB answer names.
#[inline(always)]
pub(crate) fn named(answer: u64) -> NextHopId {
    // A value beyond 32 bits is none of ours.
    NextHopId(u32::try_from(answer).unwrap_or(0))
}

/// Resolves a FIB answer for `packet` of a flow with this [`spread`]. An unresolved next hop is asked for, rate-limited.
pub(crate) fn egress(
    shm: &mut Worker,
    ports: &Ports,
    resolver: &mut Resolver,
    answer: u64,
    packet: &Packet,
    spread: u32,
    now_ms: u64,
) -> Step<Egress> {
    let hop = shm.reader().member(named(answer), spread);
    let Some((port, dst)) = shm.reader().neighbour(hop) else {
        let destination = Ipv4Addr::from_bits(packet.dst).into();
        return Err(unreachable(shm, resolver, hop, destination, now_ms));
    };
    let mtu = ports.core(port)?.mtu;
    Ok(Egress { port, dst, mtu })
}

/// What becomes of a packet to `destination` whose next hop is no neighbour with a known address.
#[cold]
pub(crate) fn unreachable(
    shm: &mut Worker,
    resolver: &mut Resolver,
    hop: NextHopId,
    destination: IpAddr,
    now_ms: u64,
) -> Verdict {
    Verdict::Drop(match shm.reader().adjacency(hop) {
        Adjacency::NoRoute => Counter::NoRoute,
        Adjacency::Blackhole => Counter::RouteBlackhole,
        Adjacency::Local { .. } => Counter::DestinationGateway,
        Adjacency::Unresolved { port } => {
            let gateway = shm.reader().next_hop_address(hop);
            resolver.ask(shm, port, gateway, now_ms);
            Counter::NeighbourUnresolved
        }
        Adjacency::Connected { port } => {
            resolver.ask(shm, port, destination, now_ms);
            Counter::NeighbourUnresolved
        }
        // It has become one since the caller looked; the next packet finds it.
        Adjacency::Neighbour { .. } | Adjacency::Group { .. } => Counter::NeighbourUnresolved,
    })
}
