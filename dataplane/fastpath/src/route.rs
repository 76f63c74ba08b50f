//! Stage: from the FIB's answer to a port and a MAC address.

use bng_shm::{Adjacency, Counter, NextHopId, Worker};
use bng_wire::MacAddr;

use crate::ip::Packet;
use crate::ports::{Port, Ports};
use crate::resolve::Resolver;
use crate::verdict::{Step, drop};

/// Where a packet leaves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Egress {
    /// Index among all ports.
    pub(crate) port: u8,
    /// The port's own address.
    pub(crate) src: MacAddr,
    /// The next hop's address.
    pub(crate) dst: MacAddr,
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
    match shm.reader().adjacency(hop) {
        Adjacency::Neighbour { port, mac } => {
            let Port { mac: src, mtu, .. } = *ports.core(port)?;
            if packet.len > mtu {
                return drop(Counter::PacketTooBig);
            }
            Ok(Egress {
                port,
                src,
                dst: MacAddr(mac),
            })
        }
        Adjacency::NoRoute => drop(Counter::NoRoute),
        Adjacency::Blackhole => drop(Counter::RouteBlackhole),
        Adjacency::Local { .. } => drop(Counter::DestinationGateway),
        Adjacency::Unresolved { port } => {
            let gateway = shm.reader().next_hop_address(hop).to_bits();
            resolver.ask(shm, port, gateway, now_ms);
            drop(Counter::NeighbourUnresolved)
        }
        Adjacency::Connected { port } => {
            resolver.ask(shm, port, packet.dst, now_ms);
            drop(Counter::NeighbourUnresolved)
        }
    }
}
