//! The subscribers' UDP traffic: what is sent, and the account of what comes back.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use bng_wire::checksum::l4_checksum;
use bng_wire::ipv4::{self, IPV4_MIN_LEN, NewIpv4};
use bng_wire::l4::{self, UDP_LEN, UdpHdr};
use hdrhistogram::Histogram;
use zerocopy::FromBytes;

use crate::probe::{NoProbe, Probe, StreamId, StreamReport};
use crate::sequence::SequenceTracker;

/// UDP source port of every subscriber, in front of NAT.
pub(crate) const SOURCE_PORT: u16 = 5_000;
const TTL: u8 = 64;

/// An IPv4 packet that carries `payload` from a subscriber to the reflector, both checksums filled in.
///
/// `None` when it does not fit IPv4.
pub(crate) fn datagram(
    from: Ipv4Addr,
    to: SocketAddrV4,
    ip_id: u16,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let mut packet = vec![0; IPV4_MIN_LEN + UDP_LEN];
    let fields = NewIpv4 {
        src: from.to_bits(),
        dst: to.ip().to_bits(),
        protocol: ipv4::protocol::UDP,
        ttl: TTL,
        tos: 0,
        id: ip_id,
        dont_fragment: true,
    };
    ipv4::write(&mut packet, &fields, UDP_LEN + payload.len())?;
    let segment = packet.get_mut(IPV4_MIN_LEN..)?;
    l4::write_udp(segment, SOURCE_PORT, to.port(), payload.len())?;
    packet.extend_from_slice(payload);
    let segment = packet.get_mut(IPV4_MIN_LEN..)?;
    let check = match l4_checksum(fields.src, fields.dst, ipv4::protocol::UDP, segment) {
        // RFC 768: zero says "no checksum".
        0 => 0xffff,
        check => check,
    };
    segment.get_mut(6..8)?.copy_from_slice(&check.to_be_bytes());
    Some(packet)
}

/// Why a received packet does not count as traffic that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// IPv4 header malformed or its checksum wrong.
    Ip,
    /// UDP header malformed, or its checksum wrong.
    Udp,
    /// UDP without a checksum.
    UdpChecksumAbsent,
    /// Something else: another protocol, another peer, another run.
    Unrelated,
    /// Addressed to another subscriber than the session it came through.
    WrongAddress,
    /// Ours, but damaged.
    Corrupt,
}

fn open(packet: &[u8], subscriber: Ipv4Addr, reflector: SocketAddrV4) -> Result<Probe, Fault> {
    let ip = ipv4::parse(packet).map_err(|_| Fault::Ip)?;
    let segment = packet.get(ip.header_len..ip.total_len).ok_or(Fault::Ip)?;
    if ip.protocol != ipv4::protocol::UDP || ip.is_fragment() || ip.src_addr() != *reflector.ip() {
        return Err(Fault::Unrelated);
    }
    let (udp, payload) = UdpHdr::ref_from_prefix(segment).map_err(|_| Fault::Udp)?;
    if usize::from(udp.length.get()) != segment.len() {
        return Err(Fault::Udp);
    }
    if udp.checksum.get() == 0 {
        return Err(Fault::UdpChecksumAbsent);
    }
    if l4_checksum(ip.src, ip.dst, ip.protocol, segment) != 0 {
        return Err(Fault::Udp);
    }
    if udp.src_port.get() != reflector.port() {
        return Err(Fault::Unrelated);
    }
    if ip.dst_addr() != subscriber || udp.dst_port.get() != SOURCE_PORT {
        return Err(Fault::WrongAddress);
    }
    Probe::parse(payload).map_err(|error| match error {
        NoProbe::Foreign => Fault::Unrelated,
        NoProbe::Corrupt(_) => Fault::Corrupt,
    })
}

/// The stream of one subscriber.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stream {
    /// Datagrams sent; the next sequence number.
    pub(crate) sent: u64,
    /// Those that came back.
    pub(crate) returned: SequenceTracker,
    /// What the reflector says it saw.
    pub(crate) report: Option<StreamReport>,
}

/// Sums over all subscribers.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    run: u64,
    /// Datagrams sent.
    pub(crate) sent: u64,
    /// Datagrams that came back, repeated ones included.
    pub(crate) received: u64,
    /// Bytes of IP packets sent.
    pub(crate) sent_bytes: u64,
    /// Bytes of IP packets received.
    pub(crate) received_bytes: u64,
    /// Datagrams of another subscriber's stream, or addressed to another one.
    pub(crate) misdelivered: u64,
    /// Datagrams of ours with a damaged payload.
    pub(crate) corrupt: u64,
    /// IPv4 headers malformed or with a wrong checksum.
    pub(crate) bad_ip: u64,
    /// UDP headers malformed or with a wrong checksum.
    pub(crate) bad_udp: u64,
    /// UDP datagrams without a checksum.
    pub(crate) udp_checksum_absent: u64,
    /// Packets that have nothing to do with this run.
    pub(crate) unrelated: u64,
    /// Round trips, nanoseconds, from building the datagram to reading it from the ring.
    pub(crate) round_trip: Histogram<u64>,
}

impl Account {
    /// An empty account. `None` when the histogram cannot be made.
    pub(crate) fn new(run: u64) -> Option<Self> {
        Some(Self {
            run,
            sent: 0,
            received: 0,
            sent_bytes: 0,
            received_bytes: 0,
            misdelivered: 0,
            corrupt: 0,
            bad_ip: 0,
            bad_udp: 0,
            udp_checksum_absent: 0,
            unrelated: 0,
            round_trip: Histogram::new_with_max(60_000_000_000, 3).ok()?,
        })
    }

    /// Counts a packet that arrived through the session of subscriber `session`.
    pub(crate) fn accept(
        &mut self,
        packet: &[u8],
        session: u32,
        subscriber: Ipv4Addr,
        reflector: SocketAddrV4,
        now: Duration,
        stream: &mut Stream,
    ) {
        let ours = StreamId {
            run: self.run,
            session,
        };
        match open(packet, subscriber, reflector) {
            Ok(Probe::Data {
                id,
                sequence,
                sent_ns,
            }) if id == ours => {
                self.received += 1;
                self.received_bytes += packet.len() as u64;
                stream.returned.observe(sequence);
                let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
                self.round_trip
                    .saturating_record(now_ns.saturating_sub(sent_ns));
            }
            Ok(Probe::Report(id, report)) if id == ours => stream.report = Some(report),
            Ok(Probe::Data { id, .. } | Probe::Report(id, _)) if id.run == self.run => {
                self.misdelivered += 1;
            }
            Ok(_) | Err(Fault::Unrelated) => self.unrelated += 1,
            Err(Fault::Ip) => self.bad_ip += 1,
            Err(Fault::Udp) => self.bad_udp += 1,
            Err(Fault::UdpChecksumAbsent) => self.udp_checksum_absent += 1,
            Err(Fault::WrongAddress) => self.misdelivered += 1,
            Err(Fault::Corrupt) => self.corrupt += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBSCRIBER: Ipv4Addr = Ipv4Addr::new(100, 64, 0, 9);
    const REFLECTOR: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 7_000);

    /// What the reflector and the gateway make of a datagram: source and destination exchanged.
    fn turn(mut packet: Vec<u8>) -> Vec<u8> {
        for at in 0..4 {
            packet.swap(12 + at, 16 + at);
        }
        packet.swap(20, 22);
        packet.swap(21, 23);
        packet
    }

    fn returned(session: u32, sequence: u64) -> Vec<u8> {
        let id = StreamId { run: 1, session };
        let payload = Probe::Data {
            id,
            sequence,
            sent_ns: 1_000,
        }
        .write(200);
        turn(datagram(SUBSCRIBER, REFLECTOR, 7, &payload).unwrap())
    }

    fn accept(account: &mut Account, stream: &mut Stream, packet: &[u8]) {
        account.accept(
            packet,
            4,
            SUBSCRIBER,
            REFLECTOR,
            Duration::from_nanos(51_000),
            stream,
        );
    }

    #[test]
    fn what_comes_back_is_counted_once_and_timed() {
        let (mut account, mut stream) = (Account::new(1).unwrap(), Stream::default());
        for sequence in [0, 1, 3, 2, 2] {
            accept(&mut account, &mut stream, &returned(4, sequence));
        }
        let counts = stream.returned.counts();
        assert_eq!(
            (counts.unique, counts.duplicates, counts.reordered),
            (4, 1, 1)
        );
        assert_eq!(account.received, 5);
        assert!((49_900..=50_100).contains(&account.round_trip.max()));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let good = returned(4, 0);
        for bit in 0..good.len() * 8 {
            let (mut account, mut stream) = (Account::new(1).unwrap(), Stream::default());
            let mut packet = good.clone();
            packet[bit / 8] ^= 1 << (bit % 8);
            accept(&mut account, &mut stream, &packet);
            assert_eq!(account.received, 0, "bit {bit}");
            assert_eq!(stream.returned.counts().unique, 0, "bit {bit}");
        }
    }

    #[test]
    fn another_sessions_datagram_is_misdelivered() {
        let (mut account, mut stream) = (Account::new(1).unwrap(), Stream::default());
        accept(&mut account, &mut stream, &returned(5, 0));
        let mut elsewhere = returned(4, 0);
        account.accept(
            &elsewhere,
            4,
            Ipv4Addr::new(100, 64, 0, 10),
            REFLECTOR,
            Duration::ZERO,
            &mut stream,
        );
        assert_eq!((account.misdelivered, account.received), (2, 0));
        // Without a UDP checksum nothing can be said about the rest.
        elsewhere[26] = 0;
        elsewhere[27] = 0;
        accept(&mut account, &mut stream, &elsewhere);
        assert_eq!(account.udp_checksum_absent, 1);
    }
}
