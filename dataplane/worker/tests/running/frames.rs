//! Frames on both sides of the process, and the two subscribers most tests have.

use super::{Gateway, ROUTER_MAC, Subscriber};
use bng_fastpath::testing::{ethernet, pppoe_session};
use bng_shm::Vlans;
use bng_wire::checksum::checksum;
use bng_wire::ethernet::ethertype;
use bng_wire::pppoe::protocol;
use bng_wire::{VlanStack, VlanTag};

pub(crate) const QINQ: Vlans = Vlans {
    s_vlan: Some(100),
    c_vlan: Some(7),
    outer_is_88a8: true,
};

pub(crate) fn tags(subscriber: &Subscriber, outer: u16) -> VlanStack {
    match (
        subscriber.session.vlans.s_vlan,
        subscriber.session.vlans.c_vlan,
    ) {
        (Some(s), Some(c)) => VlanStack::double(
            VlanTag {
                tpid: outer,
                tci: s,
            },
            VlanTag {
                tpid: ethertype::VLAN,
                tci: c,
            },
        ),
        _ => VlanStack::UNTAGGED,
    }
}

/// A PPP frame as the subscriber sends it.
pub(crate) fn from_subscriber(g: &Gateway, s: &Subscriber, ppp: u16, payload: &[u8]) -> Vec<u8> {
    let tags = tags(s, ethertype::QINQ);
    pppoe_session(
        g.access_mac,
        s.mac(),
        &tags,
        s.slot.session_id(),
        ppp,
        payload,
    )
}

/// An IPv4 packet as the subscriber is to get it.
pub(crate) fn to_subscriber(g: &Gateway, s: &Subscriber, packet: &[u8]) -> Vec<u8> {
    let tags = tags(s, ethertype::QINQ);
    let id = s.slot.session_id();
    pppoe_session(s.mac(), g.access_mac, &tags, id, protocol::IPV4, packet)
}

pub(crate) fn from_core(g: &Gateway, packet: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(g.core_mac, ROUTER_MAC, ethertype::IPV4, packet);
    // Short frames are padded on the wire (IEEE 802.3), and padding is no part of the packet.
    frame.resize(frame.len().max(60), 0xee);
    frame
}

pub(crate) fn to_core(g: &Gateway, packet: &[u8]) -> Vec<u8> {
    ethernet(ROUTER_MAC, g.core_mac, ethertype::IPV4, packet)
}

/// The packet behind one more hop.
pub(crate) fn hop(mut packet: Vec<u8>) -> Vec<u8> {
    packet[8] -= 1;
    packet[10..12].fill(0);
    let check = checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
    packet
}

/// The source port of a TCP or UDP packet in an untagged frame.
pub(crate) fn source_port(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

/// Two subscribers of two workers, tagged and untagged, with their sessions open.
pub(crate) fn two_subscribers(g: &mut Gateway) -> [Subscriber; 2] {
    let both = [
        Subscriber::new(7, 0, QINQ),
        Subscriber::new(9, 1, Vlans::default()),
    ];
    for subscriber in &both {
        g.open(subscriber);
    }
    both
}
