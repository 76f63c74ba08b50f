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

/// Resolves a FIB answer for `packet`. An unresolved next hop is asked for, rate-limited.
#[inline(always)]
pub(crate) fn egress(
    shm: &mut Worker,
    ports: &Ports,
    resolver: &mut Resolver,
    answer: u64,
    packet: &Packet,
    now_ms: u64,
) -> Step<Egress> {
    // A value beyond 32 bits is none of ours.
    let hop = NextHopId(u32::try_from(answer).unwrap_or(0));
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
