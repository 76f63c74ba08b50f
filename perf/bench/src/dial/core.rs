//! The network behind the gateway's core port, when that is a DPDK device as well: it answers for every address, and
//! sends the subscribers' datagrams back as `bng-perf reflect` does.

use std::net::SocketAddr;

use bng_wire::ethernet::{self, ETH_LEN, ethertype};
use bng_wire::ipv4;
use bng_wire::l4::{UDP_LEN, UdpHdr};
use bng_wire::{MacAddr, VlanStack};
use zerocopy::FromBytes;

use super::traffic::{Header, datagram_between};
use crate::reflect::{Answer, Reflector};
use crate::wire::arp;

/// What lies behind the core port.
#[derive(Debug)]
pub(super) struct Core {
    mac: MacAddr,
    reflector: Reflector,
    /// Requests for an address that were answered.
    asked: u64,
}

impl Core {
    pub(super) fn new(mac: MacAddr) -> Self {
        Self {
            mac,
            reflector: Reflector::default(),
            asked: 0,
        }
    }

    /// Whether the gateway has asked for an address here, and was told.
    pub(super) const fn is_known(&self) -> bool {
        self.asked > 0
    }

    /// The answer to a frame, if it gets one.
    pub(super) fn answer(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let told = arp::answer(frame, self.mac);
        self.asked += u64::from(told.is_some());
        told.or_else(|| self.reflect(frame))
    }

    fn reflect(&mut self, frame: &[u8]) -> Option<Vec<u8>> {
        let (eth, packet) = ethernet::split(frame).ok()?;
        if eth.ethertype != ethertype::IPV4 {
            return None;
        }
        let ip = ipv4::parse(packet).ok()?;
        if ip.protocol != ipv4::protocol::UDP || ip.is_fragment() {
            return None;
        }
        let segment = packet.get(ip.header_len..ip.total_len)?;
        let (udp, payload) = UdpHdr::ref_from_prefix(segment).ok()?;
        let payload = payload.get(..usize::from(udp.length.get()).checked_sub(UDP_LEN)?)?;
        let from = SocketAddr::new(ip.src_addr().into(), udp.src_port.get());
        let to = SocketAddr::new(ip.dst_addr().into(), udp.dst_port.get());
        let (answer, id) = self.reflector.handle(payload, from, || 0);
        let said = match &answer {
            Answer::Echo => payload,
            Answer::Say(other) => other,
        };
        let packet = datagram_between(to, from, Header::default(), 0, said);
        if id.is_some() {
            self.reflector.sent(id, packet.is_some());
        }
        let mut frame = vec![0; ETH_LEN];
        let untagged = VlanStack::UNTAGGED;
        ethernet::write(&mut frame, eth.src, self.mac, &untagged, ethertype::IPV4)?;
        frame.extend(packet?);
        Some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dial::traffic::datagram;
    use crate::probe::{Family, Probe, StreamId};

    const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
    const GATEWAY: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);

    #[test]
    fn a_datagram_comes_back_with_everything_turned_around_and_is_counted() {
        let id = StreamId {
            run: 5,
            session: 1,
            family: Family::V4,
        };
        let probe = Probe::Data {
            id,
            sequence: 0,
            sent_ns: 1,
        };
        let (subscriber, remote) = ([198, 51, 100, 1].into(), ([8, 0, 0, 1], 7_000).into());
        let packet = datagram(subscriber, remote, Header::default(), 1, &probe.write(100)).unwrap();
        let mut frame = vec![0; ETH_LEN];
        let untagged = VlanStack::UNTAGGED;
        ethernet::write(&mut frame, OURS, GATEWAY, &untagged, ethertype::IPV4).unwrap();
        frame.extend(&packet);
        let mut core = Core::new(OURS);
        let back = core.answer(&frame).unwrap();
        let (eth, packet) = ethernet::split(&back).unwrap();
        assert_eq!((eth.dst, eth.src), (GATEWAY, OURS));
        let ip = ipv4::parse(packet).unwrap();
        assert_eq!(ip.src_addr().octets(), [8, 0, 0, 1]);
        assert_eq!(ip.dst_addr().octets(), [198, 51, 100, 1]);
        assert!(matches!(
            Probe::parse(&packet[28..]),
            Ok(Probe::Data { sequence: 0, .. })
        ));
        for len in 0..frame.len() {
            // What is cut short gets no answer, or is none of ours.
            let _ = core.answer(&frame[..len]);
        }
        assert_eq!(core.reflector.received, 1);
    }
}
