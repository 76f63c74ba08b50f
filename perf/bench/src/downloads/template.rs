//! Frames of the sender: headers written into buffers whose payload is zero.

use std::net::SocketAddrV4;

use bng_wire::MacAddr;
use bng_wire::checksum::Sum;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::ipv4::{self, IPV4_MIN_LEN, NewIpv4, protocol};
use bng_wire::l4::{TCP_MIN_LEN, UDP_LEN, write_udp};
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, write_session};
use rte_rs::Mbuf;

use super::cell::{Protocol, Way};
use crate::wire::flows::Subscriber;

/// TTL of every packet.
const TTL: u8 = 64;
/// Our window, bytes: of the side that gets no data.
const WINDOW: u16 = 65_535;
/// Bytes in front of the payload, at most.
const HEAD: usize = 64;
/// Where things are in the IPv4 header.
const IP_ID: usize = 4;
const IP_CHECK: usize = 10;
/// Where things are in the TCP header.
const TCP_SEQ: usize = 4;
const TCP_ACK: usize = 8;
const TCP_CHECK: usize = 16;

/// What is in front of the IP packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Link {
    /// The station behind the core port: own MAC address and the gateway's.
    Plain {
        /// Ours.
        own: MacAddr,
        /// The gateway's.
        gateway: MacAddr,
    },
    /// A subscriber.
    Session(Subscriber),
}

/// Payload bytes of a full segment or datagram: what 1,500 bytes of Ethernet payload leave.
pub(super) const fn full(way: Way, of: Protocol) -> usize {
    let ip = match way {
        Way::Twin => 1_500,
        Way::Vhost => 1_500 - PPPOE_LEN - PPP_LEN,
    };
    ip - IPV4_MIN_LEN
        - match of {
            Protocol::Tcp => TCP_MIN_LEN,
            Protocol::Udp => UDP_LEN,
        }
}

impl Link {
    /// Everything up to an IP packet of `ip_bytes`.
    fn head(&self, ip_bytes: usize) -> Option<Vec<u8>> {
        let mut head = Vec::new();
        match self {
            Self::Plain { own, gateway } => {
                head.resize(ethernet::ETH_LEN, 0);
                let tags = bng_wire::VlanStack::UNTAGGED;
                ethernet::write(&mut head, *gateway, *own, &tags, ethertype::IPV4)?;
            }
            Self::Session(subscriber) => {
                let tags = &subscriber.vlans;
                head.resize(ethernet::ETH_LEN + tags.wire_len() + PPPOE_LEN + PPP_LEN, 0);
                let (to, from) = (subscriber.concentrator, subscriber.mac);
                let at = ethernet::write(&mut head, to, from, tags, ethertype::PPPOE_SESSION)?;
                let protocol = pppoe::protocol::IPV4;
                write_session(
                    head.get_mut(at..)?,
                    subscriber.session_id,
                    protocol,
                    ip_bytes,
                )?;
            }
        }
        Some(head)
    }

    /// A TCP segment without payload.
    pub(super) fn control(
        &self,
        (from, to): (SocketAddrV4, SocketAddrV4),
        flags: u8,
        (seq, ack): (u32, u32),
        options: &[u8],
    ) -> Option<Vec<u8>> {
        let l4_bytes = TCP_MIN_LEN + options.len();
        let mut frame = self.head(IPV4_MIN_LEN + l4_bytes)?;
        let l3 = frame.len();
        frame.extend(ip(from, to, protocol::TCP, l4_bytes)?);
        frame.extend(tcp(from, to, flags, options.len())?);
        frame.extend(options);
        let l4 = frame.get_mut(l3 + IPV4_MIN_LEN..)?;
        l4.get_mut(TCP_SEQ..TCP_ACK)?
            .copy_from_slice(&seq.to_be_bytes());
        l4.get_mut(TCP_ACK..TCP_ACK + 4)?
            .copy_from_slice(&ack.to_be_bytes());
        let sum = pseudo(from, to, protocol::TCP, l4_bytes)?
            .bytes(l4)
            .finish();
        l4.get_mut(TCP_CHECK..TCP_CHECK + 2)?
            .copy_from_slice(&sum.to_be_bytes());
        Some(frame)
    }
}

fn ip(
    from: SocketAddrV4,
    to: SocketAddrV4,
    protocol: u8,
    payload: usize,
) -> Option<[u8; IPV4_MIN_LEN]> {
    let mut header = [0; IPV4_MIN_LEN];
    let fields = NewIpv4 {
        src: from.ip().to_bits(),
        dst: to.ip().to_bits(),
        protocol,
        ttl: TTL,
        tos: 0,
        id: 0,
        dont_fragment: true,
    };
    ipv4::write(&mut header, &fields, payload)?;
    Some(header)
}

/// A TCP header whose numbers and checksum are zero.
fn tcp(
    from: SocketAddrV4,
    to: SocketAddrV4,
    flags: u8,
    options: usize,
) -> Option<[u8; TCP_MIN_LEN]> {
    let offset = u8::try_from((TCP_MIN_LEN + options) / 4).ok()? << 4;
    let mut header = [0; TCP_MIN_LEN];
    let (ports, rest) = header.split_first_chunk_mut::<4>()?;
    let (source, destination) = ports.split_at_mut(2);
    source.copy_from_slice(&from.port().to_be_bytes());
    destination.copy_from_slice(&to.port().to_be_bytes());
    rest.get_mut(8..10)?.copy_from_slice(&[offset, flags]);
    rest.get_mut(10..12)?.copy_from_slice(&WINDOW.to_be_bytes());
    Some(header)
}

fn pseudo(from: SocketAddrV4, to: SocketAddrV4, protocol: u8, l4_bytes: usize) -> Option<Sum> {
    let (from, to) = (from.ip().to_bits(), to.ip().to_bits());
    Some(Sum::new().pseudo_ipv4(from, to, protocol, u16::try_from(l4_bytes).ok()?))
}

/// The full-size frames of one flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    head: [u8; HEAD],
    head_len: usize,
    l3: usize,
    payload: usize,
    protocol: Protocol,
    /// Of the IPv4 header, without the identification.
    ip_sum: Sum,
    /// Of the TCP checksum, everything but the two numbers.
    l4_sum: Sum,
}

impl Template {
    /// Frames with `payload` zero bytes each.
    pub(super) fn new(
        link: &Link,
        of: Protocol,
        from: SocketAddrV4,
        to: SocketAddrV4,
        payload: usize,
        flags: u8,
    ) -> Option<Self> {
        let (number, l4_len) = match of {
            Protocol::Tcp => (protocol::TCP, TCP_MIN_LEN),
            Protocol::Udp => (protocol::UDP, UDP_LEN),
        };
        let l4_bytes = l4_len + payload;
        let mut frame = link.head(IPV4_MIN_LEN + l4_bytes)?;
        let l3 = frame.len();
        let mut header = ip(from, to, number, l4_bytes)?;
        header.get_mut(IP_CHECK..IP_CHECK + 2)?.fill(0);
        frame.extend(header);
        let sum = pseudo(from, to, number, l4_bytes)?;
        let l4_sum = match of {
            Protocol::Tcp => {
                let header = tcp(from, to, flags, 0)?;
                frame.extend(header);
                sum.bytes(&header)
            }
            Protocol::Udp => {
                let mut header = [0; UDP_LEN];
                write_udp(&mut header, from.port(), to.port(), payload)?;
                let sum = sum.bytes(&header);
                header
                    .get_mut(6..)?
                    .copy_from_slice(&sum.finish_udp().to_be_bytes());
                frame.extend(header);
                sum
            }
        };
        let mut head = [0; HEAD];
        head.get_mut(..frame.len())?.copy_from_slice(&frame);
        Some(Self {
            head,
            head_len: frame.len(),
            l3,
            payload,
            protocol: of,
            ip_sum: Sum::new().bytes(&header),
            l4_sum,
        })
    }

    /// Payload bytes of a frame.
    pub(super) const fn payload(&self) -> usize {
        self.payload
    }

    /// Fills a fresh buffer whose bytes behind the headers are zero. `None` when it is too small.
    #[inline]
    pub(super) fn write(&self, mbuf: &mut Mbuf, id: u16, seq: u32, ack: u32) -> Option<()> {
        let data = mbuf.append(self.head_len + self.payload)?;
        self.fill(data.get_mut(..self.head_len)?, id, seq, ack)
    }

    /// The headers of a frame.
    #[inline]
    fn fill(&self, head: &mut [u8], id: u16, seq: u32, ack: u32) -> Option<()> {
        head.copy_from_slice(self.head.get(..self.head_len)?);
        let (ip, l4) = head
            .get_mut(self.l3..)?
            .split_first_chunk_mut::<IPV4_MIN_LEN>()?;
        let check = self.ip_sum.word(id).finish();
        ip.get_mut(IP_ID..IP_ID + 2)?
            .copy_from_slice(&id.to_be_bytes());
        ip.get_mut(IP_CHECK..IP_CHECK + 2)?
            .copy_from_slice(&check.to_be_bytes());
        if self.protocol == Protocol::Tcp {
            let check = self.l4_sum.dword(seq).dword(ack).finish();
            l4.get_mut(TCP_SEQ..TCP_ACK)?
                .copy_from_slice(&seq.to_be_bytes());
            l4.get_mut(TCP_ACK..TCP_ACK + 4)?
                .copy_from_slice(&ack.to_be_bytes());
            l4.get_mut(TCP_CHECK..TCP_CHECK + 2)?
                .copy_from_slice(&check.to_be_bytes());
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_wire::checksum::{checksum, l4_checksum};
    use bng_wire::l4::tcp_flag::{ACK, SYN};
    use std::net::Ipv4Addr;

    const FROM: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(100, 64, 0, 2), 5_000);
    const TO: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 1), 5_001);

    fn links() -> [(Way, Link, usize); 2] {
        let (own, gateway) = (MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2]));
        let subscriber = Subscriber {
            mac: own,
            concentrator: gateway,
            vlans: bng_wire::VlanStack::UNTAGGED,
            session_id: 7,
            address: *FROM.ip(),
        };
        [
            (Way::Twin, Link::Plain { own, gateway }, 14),
            (Way::Vhost, Link::Session(subscriber), 22),
        ]
    }

    /// Lengths and checksums, from the IP header on.
    fn check(ip: &[u8], protocol: u8) {
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(checksum(&ip[..IPV4_MIN_LEN]), 0);
        let (from, to) = (FROM.ip().to_bits(), TO.ip().to_bits());
        assert_eq!(l4_checksum(from, to, protocol, &ip[IPV4_MIN_LEN..]), 0);
    }

    #[test]
    fn full_frames_have_right_lengths_numbers_and_checksums() {
        for (way, link, l3) in links() {
            for (of, number) in [
                (Protocol::Tcp, protocol::TCP),
                (Protocol::Udp, protocol::UDP),
            ] {
                let payload = full(way, of);
                let template = Template::new(&link, of, FROM, TO, payload, ACK).unwrap();
                let mut frame = vec![0; template.head_len + payload];
                // A whole Ethernet frame.
                assert_eq!(frame.len(), 1_514);
                let (id, seq, ack) = (0xfffe, 0xffff_fff0, 0x1234_5678);
                template
                    .fill(&mut frame[..template.head_len], id, seq, ack)
                    .unwrap();
                let ip = &frame[l3..];
                check(ip, number);
                assert_eq!(ip[4..6], id.to_be_bytes());
                if of == Protocol::Tcp {
                    assert_eq!(ip[24..28], seq.to_be_bytes());
                    assert_eq!(ip[28..32], ack.to_be_bytes());
                }
            }
        }
    }

    #[test]
    fn segments_of_the_handshake_are_right() {
        for (_, link, l3) in links() {
            let options = [2, 4, 5, 0xb4, 1, 3, 3, 0];
            let frame = link.control((FROM, TO), SYN, (1, 2), &options).unwrap();
            check(&frame[l3..], protocol::TCP);
            assert_eq!(frame[l3 + 32], 7 << 4);
            assert_eq!(frame[l3 + 40..], options);
        }
    }
}
