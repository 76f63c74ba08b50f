//! Stage: packets to the gateway's own address on the session.

use bng_shm::{Counter, PolicyLine, SlotIndex};
use bng_wire::checksum::{Delta, checksum};
use bng_wire::ipv4::{IPV4_MIN_LEN, protocol};
use bng_wire::l4::icmp_type;
use bng_wire::{EthHdr, IcmpHdr, Ipv4Hdr, MacAddr};
use zerocopy::FromBytes;

use crate::ip::Packet;
use crate::policy;
use crate::rate::RateLimit;
use crate::verdict::{Step, Verdict, drop};
use crate::worker::Stages;

/// TTL of our own packets (RFC 1700).
const OWN_TTL: u8 = 64;

/// A packet to the gateway's address on a session: an ICMP echo request becomes its reply (RFC 792), rate-limited per
/// worker; everything else is dropped. The policers of both directions meter it.
///
/// The reply keeps the frame's tags and PPPoE header; it leaves on `port`, where it came in.
#[cold]
pub(crate) fn answer(
    stages: &mut Stages,
    frame: &mut [u8],
    slot: SlotIndex,
    packet: &Packet,
    port: u8,
    policy: &PolicyLine,
) -> Step<()> {
    let (now_ms, now_ns) = (stages.now_ms, stages.now_ns);
    policy::police_up(&stages.shm, slot, policy.up(), packet.len, now_ns)?;
    let (own, _) = stages.ports.access(port)?;
    let own_mac = own.mac;
    echo(frame, packet, &mut stages.echo_limit, now_ms, own_mac)?;
    policy::police_down(&stages.shm, slot, policy.down(), packet.len, now_ns)?;
    stages.shm.count_up(slot, u64::from(packet.len), now_ms);
    stages.shm.count_down(slot, u64::from(packet.len));
    stages.shm.count(Counter::EchoAnswered, 1);
    Err(Verdict::Forward { port })
}

fn echo(
    frame: &mut [u8],
    packet: &Packet,
    limit: &mut RateLimit,
    now_ms: u64,
    own_mac: MacAddr,
) -> Step<()> {
    if packet.protocol != protocol::ICMP || packet.is_fragment() {
        return drop(Counter::DestinationGateway);
    }
    let message = packet.bytes(frame).get(IPV4_MIN_LEN..).unwrap_or(&[]);
    let Ok((icmp, _)) = IcmpHdr::ref_from_prefix(message) else {
        return drop(Counter::L4Truncated);
    };
    if icmp.icmp_type != icmp_type::ECHO_REQUEST {
        return drop(Counter::DestinationGateway);
    }
    if !limit.allow(now_ms) {
        return drop(Counter::EchoRateLimited);
    }
    if checksum(message) != 0 {
        return drop(Counter::IcmpChecksum);
    }
    if let Ok((ip, message)) = Ipv4Hdr::mut_from_prefix(packet.bytes_mut(frame)) {
        // Swapping the addresses does not change a sum; the TTL does.
        (ip.src, ip.dst) = (ip.dst, ip.src);
        let old = u16::from_be_bytes([ip.ttl, ip.protocol]);
        ip.ttl = OWN_TTL;
        let new = u16::from_be_bytes([ip.ttl, ip.protocol]);
        ip.checksum
            .set(Delta::new().u16(old, new).apply(ip.checksum.get()));
        if let Ok((icmp, _)) = IcmpHdr::mut_from_prefix(message) {
            let old = u16::from_be_bytes([icmp.icmp_type, icmp.code]);
            icmp.icmp_type = icmp_type::ECHO_REPLY;
            let new = u16::from_be_bytes([icmp.icmp_type, icmp.code]);
            icmp.checksum
                .set(Delta::new().u16(old, new).apply(icmp.checksum.get()));
        }
    }
    if let Ok((eth, _)) = EthHdr::mut_from_prefix(frame) {
        eth.dst = eth.src;
        eth.src = own_mac;
    }
    Ok(())
}
