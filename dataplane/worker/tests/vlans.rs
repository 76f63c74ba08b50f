//! The real process and the tags of its subscribers.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code
)]

mod running;

use bng_fastpath::testing::{echo, pppoe_discovery, pppoe_session, udp};
use bng_shm::{Counter, Vlans};
use bng_wire::ethernet::ethertype::{QINQ, VLAN};
use bng_wire::pppoe::{code, protocol};
use bng_wire::{MacAddr, VlanStack, VlanTag};
use running::frames::{from_core, hop, source_port, to_core};
use running::{GATEWAY, Gateway, HOST, Subscriber};

const fn tag(tpid: u16, vid: u16) -> VlanTag {
    // Some priority, which nothing depends on.
    VlanTag {
        tpid,
        tci: 0xa000 | vid,
    }
}

const fn vlans(s_vlan: Option<u16>, c_vlan: Option<u16>, outer_is_88a8: bool) -> Vlans {
    Vlans {
        s_vlan,
        c_vlan,
        outer_is_88a8,
    }
}

/// The tags that frames to the subscriber carry.
fn answered(vlans: &Vlans) -> VlanStack {
    let plain = |tpid, tci| VlanTag { tpid, tci };
    let outer = if vlans.outer_is_88a8 { QINQ } else { VLAN };
    match (vlans.s_vlan, vlans.c_vlan) {
        (Some(s), Some(c)) => VlanStack::double(plain(outer, s), plain(VLAN, c)),
        (Some(s), None) => VlanStack::single(plain(outer, s)),
        _ => VlanStack::UNTAGGED,
    }
}

/// Frames with `sent` in front are the subscriber's whose VLANs are `seen`; both ways, byte for byte.
fn exchange(g: &mut Gateway, id: u16, sent: &VlanStack, seen: Vlans) {
    let s = Subscriber::new(id, (id % 2) as u8, seen);
    g.open(&s);
    let sid = s.slot.session_id();
    let from = |g: &Gateway, packet: &[u8]| {
        pppoe_session(g.access_mac, s.mac(), sent, sid, protocol::IPV4, packet)
    };
    let question = udp((s.session.framed_ip, 5_000), (HOST, 53), b"question");
    g.access.send(&from(g, &question));
    let came = g.core.receive();
    let port = source_port(&came);
    let translated = hop(udp((s.block().address, port), (HOST, 53), b"question"));
    assert_eq!(came, to_core(g, &translated), "{sent:?}");
    let answer = udp((HOST, 53), (s.block().address, port), b"answer");
    g.core.send(&from_core(g, &answer));
    let answer = hop(udp((HOST, 53), (s.session.framed_ip, 5_000), b"answer"));
    let back = pppoe_session(
        s.mac(),
        g.access_mac,
        &answered(&seen),
        sid,
        protocol::IPV4,
        &answer,
    );
    assert_eq!(g.access.receive(), back, "{sent:?}");
    // An echo turns round with the tags it came with.
    let request = echo(s.session.framed_ip, GATEWAY, true, 1, b"hello");
    g.access.send(&from(g, &request));
    let reply = echo(GATEWAY, s.session.framed_ip, false, 1, b"hello");
    let reply = pppoe_session(s.mac(), g.access_mac, sent, sid, protocol::IPV4, &reply);
    assert_eq!(g.access.receive(), reply, "{sent:?}");
    g.close(&s);
}

#[test]
fn tagged_and_priority_tagged_subscribers_are_served_both_ways() {
    let mut g = Gateway::start("tags");
    let one = |tpid, vid| VlanStack::single(tag(tpid, vid));
    let two = |outer, inner| VlanStack::double(tag(VLAN, outer), tag(VLAN, inner));
    for (id, sent, seen) in [
        (1, VlanStack::UNTAGGED, vlans(None, None, false)),
        (2, one(VLAN, 0), vlans(None, None, false)),
        (3, one(VLAN, 7), vlans(Some(7), None, false)),
        (4, two(100, 7), vlans(Some(100), Some(7), false)),
        (5, two(0, 7), vlans(Some(7), None, false)),
        (6, two(100, 0), vlans(Some(100), None, false)),
        (7, two(0, 0), vlans(None, None, false)),
    ] {
        exchange(&mut g, id, &sent, seen);
    }
    g.assert_silent();
    g.assert_conservation();
}

#[test]
fn a_port_of_s_tags_sends_and_punts_s_tags() {
    let change = |yaml: String| yaml.replacen("mtu: 1500", "mtu: 1500, outer_tpid: 0x88a8", 1);
    let mut g = Gateway::start_with("stags", change);
    let outer = VlanStack::double(tag(QINQ, 100), tag(VLAN, 7));
    exchange(&mut g, 1, &outer, vlans(Some(100), Some(7), true));
    let single = VlanStack::single(tag(QINQ, 9));
    exchange(&mut g, 2, &single, vlans(Some(9), None, true));
    exchange(&mut g, 3, &VlanStack::UNTAGGED, vlans(None, None, false));
    // Control sees the tags that were on the wire.
    let client = MacAddr([2, 0, 0, 0, 1, 9]);
    let padi = pppoe_discovery(
        MacAddr::BROADCAST,
        client,
        &outer,
        code::PADI,
        &[1, 1, 0, 0],
    );
    g.access.send(&padi);
    assert_eq!(g.punted().1, padi);
    g.assert_conservation();
}

#[test]
fn discovery_from_vlans_that_no_entry_has_is_dropped_by_name() {
    let change = |yaml: String| {
        let vlans = "vlans: [{ s_vlan: 100-199, c_vlan: any }, { s_vlan: 7 }, { s_vlan: none }]";
        yaml.replacen("mtu: 1500", &format!("mtu: 1500, {vlans}"), 1)
    };
    let mut g = Gateway::start_with("served", change);
    let client = MacAddr([2, 0, 0, 0, 1, 9]);
    let padi = |tags: &VlanStack| {
        pppoe_discovery(MacAddr::BROADCAST, client, tags, code::PADI, &[1, 1, 0, 0])
    };
    let one = |vid| VlanStack::single(tag(VLAN, vid));
    let two = |outer, inner| VlanStack::double(tag(VLAN, outer), tag(VLAN, inner));
    let served = [
        VlanStack::UNTAGGED,
        one(0),
        one(7),
        two(7, 0),
        two(100, 1),
        two(199, 4_094),
    ];
    for tags in &served {
        g.access.send(&padi(tags));
        assert_eq!(g.punted().1, padi(tags));
    }
    let refused = [one(8), one(100), two(7, 7), two(99, 1), two(200, 1)];
    for (n, tags) in (1..).zip(&refused) {
        g.access.send(&padi(tags));
        g.expect(Counter::VlanNotConfigured, n);
    }
    // A session's frames are its own only with its own tags: there is nothing left to admit.
    let s = Subscriber::new(5, 0, vlans(Some(7), None, false));
    g.open(&s);
    let packet = udp((s.session.framed_ip, 5_000), (HOST, 53), b"");
    let sid = s.slot.session_id();
    let frame = pppoe_session(g.access_mac, s.mac(), &one(8), sid, protocol::IPV4, &packet);
    g.access.send(&frame);
    g.expect(Counter::SessionUnknown, 1);
    g.expect(Counter::PuntDiscovery, served.len() as u64);
    g.assert_silent();
    g.assert_conservation();
}
