//! Stage: from the FIB's answer to a port and a MAC address.

use std::hash::BuildHasher;

use bng_shm::{NextHopId, Worker};
use bng_wire::Ipv6Hdr;
use bng_wire::ipv4::protocol;
use foldhash::fast::FixedState;
use zerocopy::FromBytes;

use super::packet::Packet;
use crate::ports::Ports;
use crate::resolve::Resolver;
use crate::route::{Egress, unreachable};
use crate::verdict::Step;

/// Resolves a FIB answer for `packet`. An unresolved next hop is asked for, rate-limited.
#[inline(always)]
pub(crate) fn egress(
    shm: &mut Worker,
    ports: &Ports,
    resolver: &mut Resolver,
    answer: u64,
    packet: &Packet,
    frame: &[u8],
    now_ms: u64,
) -> Step<Egress> {
    // A value beyond 32 bits is none of ours.
    let hop = NextHopId(u32::try_from(answer).unwrap_or(0));
    let neighbour = shm.reader().neighbour(hop);
    let (port, dst) = match neighbour {
        Some(found) => found,
        None => indirect(shm, resolver, hop, packet, frame, now_ms)?,
    };
    let mtu = ports.core(port)?.mtu;
    Ok(Egress { port, dst, mtu })
}

/// A next hop that is a group, or no neighbour with a known address.
#[inline(never)]
fn indirect(
    shm: &mut Worker,
    resolver: &mut Resolver,
    hop: NextHopId,
    packet: &Packet,
    frame: &[u8],
    now_ms: u64,
) -> Step<(u8, [u8; 8])> {
    let member = shm.reader().member(hop, flow_hash(packet.bytes(frame)));
    shm.reader().neighbour(member).ok_or_else(|| {
        let destination = packet.dst_addr(frame).into();
        unreachable(shm, resolver, member, destination, now_ms)
    })
}

/// A hash of the flow (RFC 6438): addresses and flow label or, without one, the ports of TCP and UDP. All packets of a flow
/// have the same, so they stay in order.
fn flow_hash(bytes: &[u8]) -> u32 {
    let Ok((header, payload)) = Ipv6Hdr::ref_from_prefix(bytes) else {
        return 0;
    };
    let label = header.flow_label();
    let ports = match (header.next_header, payload.first_chunk()) {
        (protocol::TCP | protocol::UDP, Some(ports)) if label == 0 => u32::from_be_bytes(*ports),
        _ => 0,
    };
    let hash = FixedState::default().hash_one((header.src, header.dst, label, ports));
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::testing::{World, udp6};

    #[test]
    fn a_flow_has_one_hash_and_flows_differ() {
        let packet = |port: u16| udp6((World::HOST6, 53), (World::HOST6, port), b"x");
        let hashes: HashSet<u32> = (0..1_000).map(|port| flow_hash(&packet(port))).collect();
        assert!(hashes.len() > 990);
        // Spread over the upper bits, which choose the member.
        let quarters: HashSet<u32> = hashes.iter().map(|hash| hash >> 30).collect();
        assert_eq!(quarters.len(), 4);
        let labelled = |label: u8, port: u16| {
            let mut packet = packet(port);
            packet[3] = label;
            flow_hash(&packet)
        };
        // With a label the ports do not matter: fragments have none.
        assert_eq!(labelled(7, 1), labelled(7, 2));
        assert_ne!(labelled(7, 1), labelled(8, 1));
        assert_eq!(flow_hash(&[]), 0);
    }
}
