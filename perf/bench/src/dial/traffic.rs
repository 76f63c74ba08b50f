//! The subscribers' UDP traffic: what is sent, and the account of what comes back.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bng_wire::checksum::{l4_checksum, l4_checksum_ipv6};
use bng_wire::ipv4::{self, NewIpv4};
use bng_wire::ipv6::{self, IPV6_LEN, NewIpv6};
use bng_wire::l4::{self, UDP_LEN, UdpHdr};
use hdrhistogram::Histogram;
use zerocopy::FromBytes;

use super::icmp::{self, IcmpError};
use crate::probe::{NoProbe, Probe, StreamId, StreamReport};
use crate::sequence::SequenceTracker;

/// UDP source port of every subscriber, in front of NAT.
pub(crate) const SOURCE_PORT: u16 = 5_000;

/// What a run may vary in the IP header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    /// TTL or hop limit.
    pub(crate) ttl: u8,
    /// IPv4 "don't fragment".
    pub(crate) dont_fragment: bool,
}

impl Default for Header {
    fn default() -> Self {
        Self {
            ttl: 64,
            dont_fragment: true,
        }
    }
}

/// A packet that carries `payload` from a subscriber to the reflector, checksums filled in.
///
/// `None` when it does not fit IP, or the addresses are of different families.
pub(crate) fn datagram(
    from: IpAddr,
    to: SocketAddr,
    header: Header,
    ip_id: u16,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let from = SocketAddr::new(from, SOURCE_PORT);
    datagram_between(from, to, header, ip_id, payload)
}

/// The same from any address and port.
pub(super) fn datagram_between(
    from: SocketAddr,
    to: SocketAddr,
    header: Header,
    ip_id: u16,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let length = UDP_LEN + payload.len();
    let protocol = ipv4::protocol::UDP;
    let mut packet = vec![0; IPV6_LEN];
    let at = match (from.ip(), to.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let fields = NewIpv4 {
                src: src.to_bits(),
                dst: dst.to_bits(),
                protocol,
                ttl: header.ttl,
                tos: 0,
                id: ip_id,
                dont_fragment: header.dont_fragment,
            };
            ipv4::write(&mut packet, &fields, length)?
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let fields = NewIpv6 {
                src,
                dst,
                next_header: protocol,
                hop_limit: header.ttl,
            };
            ipv6::write(&mut packet, &fields, length)?
        }
        _ => return None,
    };
    packet.resize(at + UDP_LEN, 0);
    l4::write_udp(packet.get_mut(at..)?, from.port(), to.port(), payload.len())?;
    packet.extend_from_slice(payload);
    let segment = packet.get_mut(at..)?;
    let check = match checksum(from.ip(), to.ip(), protocol, segment) {
        // RFC 768: zero says "no checksum"; RFC 8200 section 8.1 forbids it.
        0 => 0xffff,
        check => check,
    };
    segment.get_mut(6..8)?.copy_from_slice(&check.to_be_bytes());
    Some(packet)
}

/// Checksum of a segment with its pseudo header; 0 when it contains its right one.
fn checksum(from: IpAddr, to: IpAddr, protocol: u8, segment: &[u8]) -> u16 {
    match (from, to) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            l4_checksum(src.to_bits(), dst.to_bits(), protocol, segment)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => l4_checksum_ipv6(src, dst, protocol, segment),
        _ => 0xffff,
    }
}

/// Why a received packet does not count as traffic that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// IP header malformed or its checksum wrong.
    Ip,
    /// UDP header malformed, or its checksum wrong.
    Udp,
    /// UDP without a checksum.
    UdpChecksumAbsent,
    /// Part of a packet the gateway cut.
    Fragment,
    /// An ICMP error about a packet of ours.
    Error(IcmpError),
    /// Something else: another protocol, another peer, another run.
    Unrelated,
    /// Addressed to another subscriber than the session it came through.
    WrongAddress,
    /// Ours, but damaged.
    Corrupt,
}

/// A packet without its IP header.
struct Opened<'a> {
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    fragment: bool,
    segment: &'a [u8],
}

fn open_ip(packet: &[u8]) -> Result<Opened<'_>, Fault> {
    if packet.first().is_some_and(|byte| byte >> 4 == 6) {
        let ip = ipv6::parse(packet).map_err(|_| Fault::Ip)?;
        let packet = packet.get(..ip.total_len).ok_or(Fault::Ip)?;
        let upper = ipv6::upper(ip.next_header, packet).map_err(|_| Fault::Ip)?;
        return Ok(Opened {
            from: ip.src.into(),
            to: ip.dst.into(),
            protocol: upper.protocol,
            fragment: upper.fragment,
            segment: packet.get(upper.offset..).ok_or(Fault::Ip)?,
        });
    }
    let ip = ipv4::parse(packet).map_err(|_| Fault::Ip)?;
    Ok(Opened {
        from: ip.src_addr().into(),
        to: ip.dst_addr().into(),
        protocol: ip.protocol,
        fragment: ip.is_fragment(),
        segment: packet.get(ip.header_len..ip.total_len).ok_or(Fault::Ip)?,
    })
}

fn open(packet: &[u8], subscriber: IpAddr, reflector: SocketAddr) -> Result<Probe, Fault> {
    let ip = open_ip(packet)?;
    let segment = ip.segment;
    if ip.fragment && ip.from == reflector.ip() {
        return Err(Fault::Fragment);
    }
    if let Some(error) = icmp::error(ip.from, ip.to, ip.protocol, segment) {
        let quoted = error.quoted;
        let ours =
            quoted.from == SocketAddr::new(subscriber, SOURCE_PORT) && quoted.to == reflector;
        return Err(if ip.to == subscriber && ours {
            Fault::Error(error.what)
        } else {
            Fault::Unrelated
        });
    }
    if ip.protocol != ipv4::protocol::UDP || ip.from != reflector.ip() {
        return Err(Fault::Unrelated);
    }
    let (udp, payload) = UdpHdr::ref_from_prefix(segment).map_err(|_| Fault::Udp)?;
    if usize::from(udp.length.get()) != segment.len() {
        return Err(Fault::Udp);
    }
    if udp.checksum.get() == 0 {
        return Err(Fault::UdpChecksumAbsent);
    }
    if checksum(ip.from, ip.to, ip.protocol, segment) != 0 {
        return Err(Fault::Udp);
    }
    if udp.src_port.get() != reflector.port() {
        return Err(Fault::Unrelated);
    }
    if ip.to != subscriber || udp.dst_port.get() != SOURCE_PORT {
        return Err(Fault::WrongAddress);
    }
    Probe::parse(payload).map_err(|error| match error {
        NoProbe::Foreign => Fault::Unrelated,
        NoProbe::Corrupt(_) => Fault::Corrupt,
    })
}

/// One stream of a subscriber.
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
    /// IP headers malformed or with a wrong checksum.
    pub(crate) bad_ip: u64,
    /// Fragments of datagrams that came back; they are not put together.
    pub(crate) fragments: u64,
    /// ICMP errors about packets sent.
    pub(crate) icmp_errors: BTreeMap<IcmpError, u64>,
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
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            sent: 0,
            received: 0,
            sent_bytes: 0,
            received_bytes: 0,
            misdelivered: 0,
            corrupt: 0,
            bad_ip: 0,
            fragments: 0,
            icmp_errors: BTreeMap::new(),
            bad_udp: 0,
            udp_checksum_absent: 0,
            unrelated: 0,
            round_trip: Histogram::new_with_max(60_000_000_000, 3).ok()?,
        })
    }

    /// Counts a packet that arrived through the session of a subscriber, whose stream with `reflector` is `ours`.
    pub(crate) fn accept(
        &mut self,
        packet: &[u8],
        ours: StreamId,
        subscriber: IpAddr,
        reflector: SocketAddr,
        now: Duration,
        stream: &mut Stream,
    ) {
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
            Ok(Probe::Data { id, .. } | Probe::Report(id, _)) if id.run == ours.run => {
                self.misdelivered += 1;
            }
            Ok(_) | Err(Fault::Unrelated) => self.unrelated += 1,
            Err(Fault::Fragment) => self.fragments += 1,
            Err(Fault::Error(error)) => *self.icmp_errors.entry(error).or_default() += 1,
            Err(Fault::Ip) => self.bad_ip += 1,
            Err(Fault::Udp) => self.bad_udp += 1,
            Err(Fault::UdpChecksumAbsent) => self.udp_checksum_absent += 1,
            Err(Fault::WrongAddress) => self.misdelivered += 1,
            Err(Fault::Corrupt) => self.corrupt += 1,
        }
    }
}

/// What the reflector and the gateway make of a datagram: source and destination exchanged.
#[cfg(test)]
pub(super) fn turn(mut packet: Vec<u8>) -> Vec<u8> {
    let (at, len, udp) = if packet[0] >> 4 == 6 {
        (8, 16, 40)
    } else {
        (12, 4, 20)
    };
    let (front, back) = packet[at..at + 2 * len].split_at_mut(len);
    front.swap_with_slice(back);
    packet.swap(udp, udp + 2);
    packet.swap(udp + 1, udp + 3);
    packet
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use bng_wire::icmpv6;

    use super::*;
    use crate::probe::Family;

    /// Subscriber and reflector of a family.
    fn ends(family: Family) -> (IpAddr, SocketAddr) {
        match family {
            Family::V4 => ([100, 64, 0, 9].into(), ([192, 0, 2, 1], 7_000).into()),
            Family::V6 => (
                "2001:db8:5::1".parse().unwrap(),
                "[2001:db8::80]:7000".parse().unwrap(),
            ),
        }
    }

    fn id(family: Family, session: u32) -> StreamId {
        StreamId {
            run: 1,
            session,
            family,
        }
    }

    fn sent(family: Family, session: u32, sequence: u64) -> Vec<u8> {
        let (subscriber, reflector) = ends(family);
        let payload = Probe::Data {
            id: id(family, session),
            sequence,
            sent_ns: 1_000,
        }
        .write(200);
        datagram(subscriber, reflector, Header::default(), 7, &payload).unwrap()
    }

    fn returned(family: Family, session: u32, sequence: u64) -> Vec<u8> {
        turn(sent(family, session, sequence))
    }

    fn accept(account: &mut Account, stream: &mut Stream, family: Family, packet: &[u8]) {
        let (subscriber, reflector) = ends(family);
        account.accept(
            packet,
            id(family, 4),
            subscriber,
            reflector,
            Duration::from_nanos(51_000),
            stream,
        );
    }

    fn empty() -> (Account, Stream) {
        (Account::new().unwrap(), Stream::default())
    }

    #[test]
    fn what_comes_back_is_counted_once_and_timed() {
        for family in Family::BOTH {
            let (mut account, mut stream) = empty();
            for sequence in [0, 1, 3, 2, 2] {
                let packet = returned(family, 4, sequence);
                accept(&mut account, &mut stream, family, &packet);
            }
            let counts = stream.returned.counts();
            assert_eq!(
                (counts.unique, counts.duplicates, counts.reordered),
                (4, 1, 1)
            );
            assert_eq!(account.received, 5);
            assert!((49_900..=50_100).contains(&account.round_trip.max()));
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for family in Family::BOTH {
            let good = returned(family, 4, 0);
            // Nothing protects IPv6's traffic class, flow label and hop limit.
            let free =
                |bit| family == Family::V6 && ((4..32).contains(&bit) || (56..64).contains(&bit));
            for bit in (0..good.len() * 8).filter(|bit| !free(*bit)) {
                let (mut account, mut stream) = empty();
                let mut packet = good.clone();
                packet[bit / 8] ^= 1 << (7 - bit % 8);
                accept(&mut account, &mut stream, family, &packet);
                assert_eq!(account.received, 0, "{family:?} bit {bit}");
                assert_eq!(stream.returned.counts().unique, 0, "{family:?} bit {bit}");
            }
        }
    }

    #[test]
    fn another_sessions_datagram_is_misdelivered() {
        for family in Family::BOTH {
            let (_, reflector) = ends(family);
            let (mut account, mut stream) = empty();
            accept(&mut account, &mut stream, family, &returned(family, 5, 0));
            let mut elsewhere = returned(family, 4, 0);
            let other = match family {
                Family::V4 => IpAddr::from([100, 64, 0, 10]),
                Family::V6 => Ipv6Addr::LOCALHOST.into(),
            };
            account.accept(
                &elsewhere,
                id(family, 4),
                other,
                reflector,
                Duration::ZERO,
                &mut stream,
            );
            assert_eq!((account.misdelivered, account.received), (2, 0));
            // Without a UDP checksum nothing can be said about the rest.
            let udp = elsewhere.len() - 208;
            elsewhere[udp + 6..udp + 8].fill(0);
            accept(&mut account, &mut stream, family, &elsewhere);
            assert_eq!(account.udp_checksum_absent, 1);
        }
    }

    #[test]
    fn icmp_errors_about_our_packets_are_told_by_kind_sender_and_mtu() {
        let family = Family::V6;
        let (mut account, mut stream) = empty();
        let router: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let (IpAddr::V6(subscriber), _) = ends(family) else {
            panic!("IPv6")
        };
        for (session, to) in [(4, subscriber), (4, router)] {
            let quote = sent(family, session, 0);
            let what = icmpv6::Icmpv6Error {
                icmp_type: icmpv6::icmpv6_type::PACKET_TOO_BIG,
                code: 0,
                value: 1_400,
            };
            let mut error = icmpv6::error_head(router, to, what, &quote)
                .unwrap()
                .to_vec();
            error.extend_from_slice(&quote);
            accept(&mut account, &mut stream, family, &error);
        }
        let told: Vec<_> = account.icmp_errors.iter().collect();
        let (error, count) = told[0];
        assert_eq!((told.len(), *count), (1, 1));
        assert_eq!((error.kind.name(), error.mtu), ("packet-too-big", 1_400));
        assert_eq!(error.from, IpAddr::V6(router));
        assert_eq!(account.unrelated, 1, "one was addressed to somebody else");
    }
}
