//! The router behind the core port, as far as a gateway's kernel asks for it (RFC 826).

use std::net::Ipv4Addr;

use bng_wire::ethernet::{self, ETH_LEN, ethertype};
use bng_wire::{MacAddr, VlanStack};

/// Ethernet and IPv4, lengths 6 and 4.
const ETHERNET_IPV4: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
/// Bytes of the packet.
const ARP_LEN: usize = 28;

fn address(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk::<4>().copied().map(Ipv4Addr::from)
}

/// The answer to a request for any address, since every address on that side is the generator's. None to announcements and probes
/// (RFC 5227): whoever sends those asks for its own address.
pub(crate) fn answer(frame: &[u8], our_mac: MacAddr) -> Option<Vec<u8>> {
    let (eth, rest) = ethernet::split(frame).ok()?;
    let packet = rest.first_chunk::<ARP_LEN>()?;
    let (fixed, operation) = packet.split_first_chunk::<6>()?;
    let (operation, body) = operation.split_first_chunk::<2>()?;
    if eth.ethertype != ethertype::ARP
        || *fixed != ETHERNET_IPV4
        || u16::from_be_bytes(*operation) != REQUEST
    {
        return None;
    }
    let sender_mac = body.first_chunk::<6>()?;
    let sender = address(body.get(6..)?)?;
    let target = address(body.get(16..)?)?;
    if sender.is_unspecified() || sender == target || !eth.src.is_unicast() {
        return None;
    }
    let mut reply = vec![0; ETH_LEN];
    ethernet::write(
        &mut reply,
        eth.src,
        our_mac,
        &VlanStack::UNTAGGED,
        ethertype::ARP,
    )?;
    reply.extend_from_slice(&ETHERNET_IPV4);
    reply.extend_from_slice(&REPLY.to_be_bytes());
    reply.extend_from_slice(&our_mac.0);
    reply.extend_from_slice(&target.octets());
    reply.extend_from_slice(sender_mac);
    reply.extend_from_slice(&sender.octets());
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATEWAY: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
    const OURS: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

    fn request(sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0; ETH_LEN];
        let to = MacAddr::BROADCAST;
        ethernet::write(
            &mut frame,
            to,
            GATEWAY,
            &VlanStack::UNTAGGED,
            ethertype::ARP,
        )
        .unwrap();
        frame.extend_from_slice(&ETHERNET_IPV4);
        frame.extend_from_slice(&REQUEST.to_be_bytes());
        frame.extend_from_slice(&GATEWAY.0);
        frame.extend_from_slice(&sender);
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&target);
        frame
    }

    #[test]
    fn whoever_asks_for_a_router_is_told_our_address() {
        let reply = answer(&request([192, 0, 2, 2], [192, 0, 2, 1]), OURS).unwrap();
        assert_eq!(reply[..6], GATEWAY.0);
        assert_eq!(reply[20..22], [0, 2]);
        assert_eq!(reply[22..28], OURS.0);
        assert_eq!(reply[28..32], [192, 0, 2, 1]);
        assert_eq!(reply[38..42], [192, 0, 2, 2]);
    }

    #[test]
    fn announcements_probes_and_other_frames_get_no_answer() {
        assert_eq!(answer(&request([192, 0, 2, 2], [192, 0, 2, 2]), OURS), None);
        assert_eq!(answer(&request([0; 4], [192, 0, 2, 2]), OURS), None);
        let good = request([192, 0, 2, 2], [192, 0, 2, 1]);
        for len in 0..good.len() {
            assert_eq!(answer(&good[..len], OURS), None);
        }
        let reply = answer(&good, OURS).unwrap();
        assert_eq!(answer(&reply, GATEWAY), None);
    }
}
