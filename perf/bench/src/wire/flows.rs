//! Who talks to whom, and the frames that say so.

use std::net::{Ipv4Addr, SocketAddrV4};

use bng_wire::checksum::Sum;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::ipv4::{self, IPV4_MIN_LEN, NewIpv4};
use bng_wire::l4::{UDP_LEN, write_udp};
use bng_wire::pppoe::{PPP_LEN, PPPOE_LEN, protocol, write_session};
use bng_wire::{MacAddr, VlanStack};
use rte_rs::Mbuf;
use zerocopy::IntoBytes;

use super::stamp::{STAMP_LEN, Stamp};

/// Smallest IP packet, bytes: IPv4, UDP and the stamp.
pub(super) const MIN_IP: usize = IPV4_MIN_LEN + UDP_LEN + STAMP_LEN;
/// TTL of every packet.
const TTL: u8 = 64;
/// First port of a subscriber's flows.
const FIRST_PORT: u16 = 10_000;
/// Most flows of one subscriber.
pub(super) const MAX_FLOWS_PER_SESSION: u32 = 50_000;
/// Port of every remote host: discard (RFC 863), so that nobody answers should packets go astray.
const REMOTE_PORT: u16 = 9;
/// Remote hosts: 8.0.0.0/8 has room for all of them and is in nobody's pool.
const FIRST_REMOTE: u32 = 0x0800_0001;
const REMOTES: u32 = 4_096;

/// A session as the generator sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subscriber {
    /// MAC address of the subscriber.
    pub(crate) mac: MacAddr,
    /// MAC address of the access concentrator.
    pub(crate) concentrator: MacAddr,
    pub(crate) vlans: VlanStack,
    pub(crate) session_id: u16,
    /// Framed address.
    pub(crate) address: Ipv4Addr,
}

/// One UDP flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    /// Index of its subscriber.
    pub(super) subscriber: u32,
    /// Address and port of the subscriber.
    pub(super) inside: SocketAddrV4,
    /// Address and port of the other end.
    pub(super) remote: SocketAddrV4,
    /// What the other end sees the subscriber as, once learned.
    pub(super) outside: Option<SocketAddrV4>,
}

impl Flow {
    /// Flow `index`; consecutive ones belong to different subscribers.
    pub(super) fn new(index: u32, subscribers: &[Subscriber]) -> Option<Self> {
        let count = u32::try_from(subscribers.len()).ok()?;
        let subscriber = index.checked_rem(count)?;
        let port = FIRST_PORT.checked_add(u16::try_from(index / count).ok()?)?;
        let remote = FIRST_REMOTE + index.wrapping_mul(0x9e37_79b1) % REMOTES;
        let address = subscribers.get(subscriber as usize)?.address;
        Some(Self {
            subscriber,
            inside: SocketAddrV4::new(address, port),
            remote: SocketAddrV4::new(remote.into(), REMOTE_PORT),
            outside: None,
        })
    }
}

/// Bytes of a frame in front of the stamp, at most: Ethernet with two tags, PPPoE, PPP, IPv4, UDP.
const HEAD: usize = 64;

/// A frame without its stamp. Only its start is kept: the rest of the payload is zero and stays in the buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    head: [u8; HEAD],
    /// Where the stamp goes.
    stamp_at: u16,
    frame_len: u16,
    /// Of the UDP checksum, everything but the stamp.
    sum: Sum,
}

/// An IPv4 header and a UDP header at the end of `head`; returns the sum for the checksum.
fn datagram(
    head: &mut Vec<u8>,
    from: SocketAddrV4,
    to: SocketAddrV4,
    ip_bytes: usize,
) -> Option<Sum> {
    let payload = ip_bytes.checked_sub(IPV4_MIN_LEN + UDP_LEN)?;
    let fields = NewIpv4 {
        src: from.ip().to_bits(),
        dst: to.ip().to_bits(),
        protocol: ipv4::protocol::UDP,
        ttl: TTL,
        tos: 0,
        id: 0,
        dont_fragment: true,
    };
    let mut headers = [0; IPV4_MIN_LEN + UDP_LEN];
    let at = ipv4::write(&mut headers, &fields, UDP_LEN + payload)?;
    write_udp(headers.get_mut(at..)?, from.port(), to.port(), payload)?;
    head.extend_from_slice(&headers);
    let length = u16::try_from(UDP_LEN + payload).ok()?;
    let sum = Sum::new().pseudo_ipv4(fields.src, fields.dst, fields.protocol, length);
    Some(sum.bytes(headers.get(at..)?))
}

impl Template {
    fn new(head: &[u8], frame_len: usize, sum: Sum) -> Option<Self> {
        let mut bytes = [0; HEAD];
        bytes.get_mut(..head.len())?.copy_from_slice(head);
        Some(Self {
            head: bytes,
            stamp_at: u16::try_from(head.len()).ok()?,
            frame_len: u16::try_from(frame_len).ok()?,
            sum,
        })
    }

    /// From the subscriber, `ip_bytes` of IP.
    pub(super) fn upstream(flow: &Flow, from: &Subscriber, ip_bytes: usize) -> Option<Self> {
        let mut head = vec![0; ethernet::ETH_LEN + from.vlans.wire_len() + PPPOE_LEN + PPP_LEN];
        let at = ethernet::write(
            &mut head,
            from.concentrator,
            from.mac,
            &from.vlans,
            ethertype::PPPOE_SESSION,
        )?;
        write_session(
            head.get_mut(at..)?,
            from.session_id,
            protocol::IPV4,
            ip_bytes,
        )?;
        let frame_len = head.len() + ip_bytes;
        let sum = datagram(&mut head, flow.inside, flow.remote, ip_bytes)?;
        Self::new(&head, frame_len, sum)
    }

    /// From the other end, to the address and port learned. `None` before that.
    pub(super) fn downstream(
        flow: &Flow,
        (gateway, router): (MacAddr, MacAddr),
        ip_bytes: usize,
    ) -> Option<Self> {
        let mut head = vec![0; ethernet::ETH_LEN];
        ethernet::write(
            &mut head,
            gateway,
            router,
            &VlanStack::UNTAGGED,
            ethertype::IPV4,
        )?;
        let frame_len = head.len() + ip_bytes;
        let sum = datagram(&mut head, flow.remote, flow.outside?, ip_bytes)?;
        Self::new(&head, frame_len, sum)
    }

    /// Fills a fresh buffer whose payload is zero. `None` when it is too small.
    #[inline]
    pub(super) fn write(&self, mbuf: &mut Mbuf, stamp: &Stamp) -> Option<()> {
        let data = mbuf.append(usize::from(self.frame_len))?;
        *data.first_chunk_mut::<HEAD>()? = self.head;
        let at = usize::from(self.stamp_at);
        let check = self.sum.bytes(stamp.as_bytes()).finish_udp();
        data.get_mut(at - 2..at)?
            .copy_from_slice(&check.to_be_bytes());
        data.get_mut(at..at + STAMP_LEN)?
            .copy_from_slice(stamp.as_bytes());
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use bng_wire::VlanTag;

    use super::*;

    fn subscribers(count: u32) -> Vec<Subscriber> {
        (0..count)
            .map(|index| Subscriber {
                mac: MacAddr([2, 0, 0, 0, 0, 1]),
                concentrator: MacAddr([2, 0, 0, 0, 0, 2]),
                vlans: VlanStack::UNTAGGED,
                session_id: 1,
                address: (0x6440_0001 + index).into(),
            })
            .collect()
    }

    #[test]
    fn flows_are_all_different_and_spread_over_the_subscribers() {
        let subscribers = subscribers(300);
        let flows: Vec<_> = (0..20_000)
            .map(|index| Flow::new(index, &subscribers).unwrap())
            .collect();
        let inside: HashSet<_> = flows.iter().map(|flow| flow.inside).collect();
        assert_eq!(inside.len(), flows.len());
        assert!(flows[..300].iter().map(|flow| flow.subscriber).eq(0..300));
        assert!(Flow::new(MAX_FLOWS_PER_SESSION - 1, &subscribers[..1]).is_some());
        assert!(Flow::new(0, &[]).is_none());
    }

    #[test]
    fn the_longest_header_fits_a_template_and_the_shortest_frame_holds_it() {
        let tag = VlanTag {
            tpid: ethertype::QINQ,
            tci: 5,
        };
        let mut tagged = subscribers(1);
        tagged[0].vlans = VlanStack::double(tag, tag);
        let mut flow = Flow::new(0, &tagged).unwrap();
        let template = Template::upstream(&flow, &tagged[0], MIN_IP).unwrap();
        assert_eq!(usize::from(template.stamp_at), 14 + 8 + 8 + 28);
        let ends = (MacAddr::ZERO, MacAddr::ZERO);
        assert!(Template::downstream(&flow, ends, MIN_IP).is_none());
        flow.outside = Some(SocketAddrV4::new([203, 0, 113, 1].into(), 1_024));
        let template = Template::downstream(&flow, ends, MIN_IP).unwrap();
        assert!(usize::from(template.frame_len) >= HEAD);
    }
}
