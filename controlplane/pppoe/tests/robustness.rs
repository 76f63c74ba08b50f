//! Laws that hold for any input: no panic, bounded answers, silence to malformed frames, balanced books.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::net::Ipv6Addr;

use bng_pppoe::DropReason;
use bng_pppoe::codec::{ControlPacket, Options, Tags, dhcpv6, frame, ipv6, nd, pap};
use bng_wire::pppoe::protocol;
use peer::*;
use proptest::prelude::*;

/// A client with its network up, and every frame it may send then.
fn frames_of_a_live_client() -> (World, Client, Vec<(&'static str, Vec<u8>)>) {
    let mut world = World::new(config());
    world.grant = dual_stack();
    let mut client = Client::new(1);
    client.interface_id = Some(9);
    client.dial(&mut world);
    let source = nd::link_local(9);
    let ours = nd::link_local(record_of(&world).interface_ids.unwrap().ours);
    let echo = client.magic.to_be_bytes();
    let frames = vec![
        ("PADI", client.padi()),
        (
            "PADI with access line",
            client.padi_with(&[
                1, 5, 0, 12, 0, 0, 0x0d, 0xe9, 1, 3, b'o', b'l', b't', 2, 1, b'r',
            ]),
        ),
        ("PADR", client.padr()),
        ("LCP Configure-Request", client.lcp_request()),
        ("LCP Terminate-Request", client.lcp(5, 1, b"bye")),
        ("LCP Code-Reject", client.lcp(7, 1, &[12, 1, 0, 4])),
        ("LCP Protocol-Reject", client.lcp(8, 1, &[0x80, 0x57])),
        ("LCP Echo-Request", client.lcp(9, 1, &echo)),
        ("PAP Authenticate-Request", client.pap(1)),
        ("CHAP Response", client.chap_with(1, &[7; 16])),
        ("IPCP Configure-Request", client.ipcp_request()),
        ("IPCP Terminate-Request", client.ipcp(5, 1, &[])),
        ("IPv6CP Configure-Request", client.ipv6cp_request()),
        ("IPv6CP Terminate-Request", client.ipv6cp(5, 1, &[])),
        (
            "router solicitation",
            client.ppp(protocol::IPV6, &nd::router_solicitation(source)),
        ),
        (
            "neighbour solicitation",
            client.ppp(protocol::IPV6, &nd::neighbour_solicitation(source, ours)),
        ),
        (
            "DHCPv6 Solicit",
            client.ppp(protocol::IPV6, &solicit(source)),
        ),
        (
            "CCP Configure-Request",
            client.ppp(protocol::CCP, &[1, 1, 0, 4]),
        ),
    ];
    (world, client, frames)
}

/// A Solicit for a prefix and an address.
fn solicit(source: Ipv6Addr) -> Vec<u8> {
    let mut out = dhcpv6::Writer::new(dhcpv6::kind::SOLICIT, [1, 2, 3]);
    out.put(dhcpv6::option::CLIENT_ID, &[0, 3, 0, 1, 2, 0, 0, 0, 0, 1]);
    let prefix = dhcpv6::Leased {
        lease: dhcpv6::Lease::Prefix(Ipv6Addr::UNSPECIFIED, 56),
        preferred: 0,
        valid: 0,
    };
    out.put_ia(dhcpv6::IaKind::Prefix, 1, (0, 0), |out| {
        out.put_lease(&prefix);
    });
    out.put_ia(dhcpv6::IaKind::Address, 1, (0, 0), |_| {});
    let ports = (dhcpv6::CLIENT_PORT, dhcpv6::SERVER_PORT);
    dhcpv6::datagram(source, dhcpv6::ALL_SERVERS, ports, &out.finish())
}

/// Offsets of the length fields of a frame: PPPoE, then tags or control packet, options, PAP strings.
fn length_fields(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut fields = vec![(18, 2)];
    let end = 20 + usize::from(u16::from_be_bytes([bytes[18], bytes[19]]));
    if bytes[13] == 0x63 {
        let mut at = 20;
        while at + 4 <= end {
            fields.push((at + 2, 2));
            let next = at + 4 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
            if bytes[at..at + 2] == [1, 5] {
                // Vendor-Specific: a vendor's number, then its own tags.
                let mut sub = at + 8;
                while sub + 2 <= next {
                    fields.push((sub + 1, 1));
                    sub += 2 + usize::from(bytes[sub + 1]);
                }
            }
            at = next;
        }
        return fields;
    }
    if bytes[20..22] == protocol::IPV6.to_be_bytes() {
        fields.push((26, 2));
        if bytes[28] == 17 {
            // UDP. What is inside is behind its checksum; tests/dhcpv6.rs makes that right again.
            fields.push((66, 2));
        }
        return fields;
    }
    fields.push((24, 2));
    match (u16::from_be_bytes([bytes[20], bytes[21]]), bytes[22]) {
        (protocol::PAP, _) => {
            fields.push((26, 1));
            fields.push((27 + usize::from(bytes[26]), 1));
        }
        (protocol::CHAP, _) => fields.push((26, 1)),
        (protocol::LCP | protocol::IPCP | protocol::IPV6CP, 1) => {
            let mut at = 26;
            while at + 2 <= end {
                fields.push((at + 1, 1));
                at += usize::from(bytes[at + 1]).max(2);
            }
        }
        _ => {}
    }
    fields
}

#[test]
fn every_length_field_from_zero_to_beyond_the_frame_is_survived_and_silent_when_malformed() {
    let (_, _, frames) = frames_of_a_live_client();
    let (mut malformed, mut fine) = (0, 0);
    for (index, (_, intact)) in frames.iter().enumerate() {
        for (offset, width) in length_fields(intact) {
            let most = if width == 1 { 255 } else { intact.len() + 3 };
            for value in (0..=most).chain([0x7fff, 0xffff]) {
                let (mut world, _, fresh) = frames_of_a_live_client();
                let (name, mut bytes) = fresh.into_iter().nth(index).unwrap();
                let value = (value as u16).to_be_bytes();
                bytes[offset..offset + width].copy_from_slice(&value[2 - width..]);
                let events = world.events.len();
                let before = world.ac.counters().clone();
                let answers = world.feed(&bytes);
                if world.last_drop.is_some_and(DropReason::is_malformed) {
                    malformed += 1;
                    assert!(answers.is_empty(), "{name}: {value:?} at {offset}");
                    assert_eq!(world.events.len(), events);
                    let changed = world.ac.counters().iter().zip(before.iter());
                    let changed: u64 = changed.map(|(now, then)| now.value - then.value).sum();
                    assert_eq!(changed, 1, "one counter, by one");
                } else {
                    fine += 1;
                }
            }
        }
    }
    assert!(
        malformed > 2_500 && fine > 100,
        "{malformed} malformed, {fine} fine"
    );
}

#[test]
fn every_truncation_of_every_frame_is_malformed_and_padding_is_not_payload() {
    let (_, _, frames) = frames_of_a_live_client();
    for (index, (_, intact)) in frames.iter().enumerate() {
        for len in 0..intact.len() {
            let (mut world, _, fresh) = frames_of_a_live_client();
            let (name, bytes) = fresh.into_iter().nth(index).unwrap();
            assert!(world.feed(&bytes[..len]).is_empty());
            let reason = world.last_drop;
            assert!(
                reason.is_some_and(DropReason::is_malformed),
                "{name} {len}: {reason:?}"
            );
        }
        let (mut world, _, fresh) = frames_of_a_live_client();
        let (mut other, ..) = frames_of_a_live_client();
        let (_, bytes) = fresh.into_iter().nth(index).unwrap();
        let mut padded = bytes.clone();
        padded.extend_from_slice(&[0xa5; 46]);
        let (plain, padded) = (world.feed(&bytes), other.feed(&padded));
        assert_eq!(plain, padded, "padding changes nothing and is never echoed");
    }
}

#[test]
fn the_seed_script_of_the_fuzz_target_reaches_the_network_phase() {
    for who in 0..4 {
        assert_eq!(peer::storm::play(&peer::storm::dial_script(who)), 1);
    }
    let all: Vec<u8> = (0..4).flat_map(peer::storm::dial_script).collect();
    assert_eq!(peer::storm::play(&all), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn parsers_take_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = frame::parse(&bytes);
        let _ = nd::parse(&bytes);
        if let Ok(packet) = ipv6::Packet::parse(&bytes) {
            let _ = dhcpv6::to_server(&packet);
        }
        if let Ok(message) = dhcpv6::Message::parse(&bytes) {
            let leases = message.ias().flat_map(|ia| ia.leases()).count();
            prop_assert!(leases * 28 <= bytes.len());
        }
        if let Ok(tags) = Tags::parse(&bytes) {
            let total: usize = tags.iter().map(|t| t.value.len() + 4).sum();
            prop_assert!(total <= bytes.len());
            let _ = tags.access_line_ids();
            let _ = tags.ppp_max_payload();
        }
        if let Ok(packet) = ControlPacket::parse(&bytes) {
            prop_assert_eq!(packet.raw, &bytes[..packet.raw.len()]);
            let _ = pap::parse_reply(packet.data);
        }
        if let Ok(options) = Options::parse(&bytes) {
            let joined: Vec<u8> = options.iter().flat_map(|o| o.raw.to_vec()).collect();
            prop_assert_eq!(joined, bytes.clone());
        }
        if let Ok(credentials) = pap::parse_request(&bytes) {
            prop_assert!(credentials.name.len() + credentials.password.len() + 2 <= bytes.len());
        }
    }

    #[test]
    fn what_is_built_is_parsed_back(
        name in proptest::collection::vec(any::<u8>(), 0..256),
        password in proptest::collection::vec(any::<u8>(), 0..256),
        padding in 0usize..50,
    ) {
        let client = Client { name: name.clone(), password: password.clone(), ..Client::new(1) };
        let mut bytes = client.pap(7);
        bytes.extend(std::iter::repeat_n(0xff, padding));
        let (proto, packet) = as_control(&bytes);
        let credentials = pap::parse_request(packet.data).unwrap();
        prop_assert_eq!((proto, packet.id), (protocol::PAP, 7));
        prop_assert_eq!((credentials.name, credentials.password), (&name[..], &password[..]));
    }

    #[test]
    fn a_storm_of_any_bytes_leaves_the_books_balanced(
        script in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        peer::storm::play(&script);
    }

    #[test]
    fn a_storm_upon_live_sessions_leaves_the_books_balanced(
        ops in proptest::collection::vec((any::<u8>(), any::<u8>(), proptest::collection::vec(any::<u8>(), 0..20)), 0..60),
        dialled in 0u8..5,
    ) {
        let mut script: Vec<u8> = (0..dialled).flat_map(peer::storm::dial_script).collect();
        for (op, who, rest) in ops {
            script.extend_from_slice(&[op, who]);
            script.extend_from_slice(&rest);
        }
        peer::storm::play(&script);
    }
}
