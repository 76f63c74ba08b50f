//! DHCPv6 on a session (RFC 8415): what each message of a client gets, and what gets nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test"
)]

mod peer;

use std::net::Ipv6Addr;

use bng_pppoe::codec::dhcpv6::{
    self, ALL_SERVERS, CLIENT_PORT, IaKind, Lease, Leased, Message, SERVER_PORT, Status, Writer,
    kind, option,
};
use bng_pppoe::codec::frame::{self, Body};
use bng_pppoe::codec::ipv6::Packet;
use bng_pppoe::codec::{lcp::code as lcp_code, nd};
use bng_pppoe::{DropReason, Ipv6Grant, Outcome};
use bng_wire::checksum::l4_checksum_ipv6;
use bng_wire::pppoe::protocol;
use peer::*;

const PEER: u64 = 0x1122_3344_5566_7788;
const CLIENT_ID: &[u8] = &[0, 1, 0, 1, 0x2a, 1, 2, 3, 2, 0, 0, 0, 0, 1];
/// DUID-LL of the access port.
const SERVER_ID: &[u8] = &[0, 3, 0, 1, 2, 0xac, 0, 0, 0, 1];
const ADDRESS: Lease = Lease::Address(Ipv6Addr::new(0x2001, 0xdb8, 0, 0x77, 0, 0, 0, 2));
const ELSEWHERE: Lease = Lease::Address(Ipv6Addr::new(0x2001, 0xdb8, 0, 0x78, 0, 0, 0, 2));
const OTHER_PREFIX: Lease =
    Lease::Prefix(Ipv6Addr::new(0x2001, 0xdb8, 0x1000, 0x7800, 0, 0, 0, 0), 56);
const NA: IaKind = IaKind::Address;
const TA: IaKind = IaKind::Temporary;
const PD: IaKind = IaKind::Prefix;

fn prefix() -> Lease {
    let (prefix, length) = IPV6.delegated.unwrap();
    Lease::Prefix(prefix, length)
}

fn dial(ipv6: Ipv6Grant) -> (World, Client) {
    let mut world = World::new(config());
    world.grant = dual_stack();
    world.grant.ipv6 = Some(ipv6);
    let mut client = Client {
        interface_id: Some(PEER),
        ..Client::new(1)
    };
    client.dial(&mut world);
    assert_eq!(world.event_names(), ["started", "auth", "up", "changed"]);
    (world, client)
}

fn own_address(world: &World) -> Ipv6Addr {
    nd::link_local(record_of(world).interface_ids.unwrap().ours)
}

/// A client's message, by what is in it.
#[derive(Clone)]
struct Ask {
    kind: u8,
    client: Option<&'static [u8]>,
    server: Option<&'static [u8]>,
    /// Kind and identifier of each identity association, and what it names.
    ias: Vec<(IaKind, u32, Vec<Lease>)>,
    is_rapid: bool,
    wants_dns: bool,
}

impl Ask {
    /// With the identifiers a message of this type has, and no identity association.
    fn new(kind: u8) -> Self {
        let is_to_one = matches!(
            kind,
            kind::REQUEST | kind::RENEW | kind::RELEASE | kind::DECLINE
        );
        Self {
            kind,
            client: Some(CLIENT_ID),
            server: is_to_one.then_some(SERVER_ID),
            ias: vec![],
            is_rapid: false,
            wants_dns: true,
        }
    }

    fn ia(mut self, kind: IaKind, id: u32, leases: &[Lease]) -> Self {
        self.ias.push((kind, id, leases.to_vec()));
        self
    }

    fn message(&self) -> Vec<u8> {
        let mut out = Writer::new(self.kind, [7, 8, 9]);
        // Elapsed Time, Reconfigure Accept and something unknown are ignored.
        out.put(8, &[0, 0]);
        out.put(20, &[]);
        out.put(0xfff0, b"whatever");
        if let Some(client) = self.client {
            out.put(option::CLIENT_ID, client);
        }
        if let Some(server) = self.server {
            out.put(option::SERVER_ID, server);
        }
        if self.is_rapid {
            out.put(option::RAPID_COMMIT, &[]);
        }
        if self.wants_dns {
            out.put(option::OPTION_REQUEST, &[0, 82, 0, 23]);
        }
        for (kind, id, leases) in &self.ias {
            out.put_ia(*kind, *id, (0, 0), |out| {
                for lease in leases {
                    out.put_lease(&Leased {
                        lease: *lease,
                        preferred: 100,
                        valid: 200,
                    });
                }
            });
        }
        out.finish()
    }

    /// From the client's link-local address to all servers.
    fn packet(&self) -> Vec<u8> {
        packet(ALL_SERVERS, &self.message())
    }
}

fn packet(destination: Ipv6Addr, message: &[u8]) -> Vec<u8> {
    let ports = (CLIENT_PORT, SERVER_PORT);
    dhcpv6::datagram(nd::link_local(PEER), destination, ports, message)
}

/// Makes the UDP checksum right again.
fn reseal(packet: &mut [u8]) {
    packet[46..48].fill(0);
    let address = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&packet[at..at + 16]).unwrap());
    let sum = l4_checksum_ipv6(address(8), address(24), 17, &packet[40..]);
    packet[46..48].copy_from_slice(&sum.to_be_bytes());
}

/// An identity association of an answer: kind, identifier, T1 and T2, leases, status.
type Got = (IaKind, u32, (u32, u32), Vec<Leased>, Option<u16>);

/// What an answer says.
#[derive(Debug, PartialEq)]
struct Answer {
    kind: u8,
    /// Codes of the options that are not in the fields below, in order.
    others: Vec<u16>,
    status: Option<u16>,
    dns: Vec<u8>,
    ias: Vec<Got>,
}

fn status(data: &[u8]) -> u16 {
    u16::from_be_bytes(data[..2].try_into().unwrap())
}

/// Takes the one frame of an answer apart; addresses, ports, checksum, transaction and identifiers are those they have to be.
fn answer(world: &World, frames: &[Vec<u8>]) -> Answer {
    let [bytes] = frames else {
        panic!("one answer, not {frames:?}; {:?}", world.last_drop);
    };
    let Body::Session {
        protocol: protocol::IPV6,
        payload,
        ..
    } = frame::parse(bytes).unwrap().body
    else {
        panic!("no IPv6: {bytes:?}");
    };
    assert!(payload.len() <= 1_280);
    let packet = Packet::parse(payload).unwrap();
    assert_eq!(
        (packet.source, packet.destination),
        (own_address(world), nd::link_local(PEER))
    );
    assert_eq!(
        (packet.next_header, packet.body.len()),
        (17, payload.len() - 40)
    );
    let sum = l4_checksum_ipv6(packet.source, packet.destination, 17, packet.body);
    assert_eq!(sum, 0, "checksum");
    assert_eq!(
        packet.body[..4],
        [547u16, 546].map(u16::to_be_bytes).concat()
    );
    let message = Message::parse(&packet.body[8..]).unwrap();
    assert_eq!(message.transaction, [7, 8, 9]);
    assert_eq!(message.server, Some(SERVER_ID));
    let known = [
        option::CLIENT_ID,
        option::SERVER_ID,
        option::STATUS_CODE,
        option::DNS_SERVERS,
        option::IA_NA,
        option::IA_TA,
        option::IA_PD,
    ];
    let codes = message.options.iter().map(|(code, _)| code);
    Answer {
        kind: message.kind,
        others: codes.filter(|code| !known.contains(code)).collect(),
        status: message.options.find(option::STATUS_CODE).map(status),
        dns: message
            .options
            .find(option::DNS_SERVERS)
            .unwrap_or(&[])
            .to_vec(),
        ias: message
            .ias()
            .map(|ia| {
                let status = ia.options.find(option::STATUS_CODE).map(status);
                (ia.kind, ia.id, ia.times, ia.leases().collect(), status)
            })
            .collect(),
    }
}

fn feed(world: &mut World, client: &Client, packet: &[u8]) -> Vec<Vec<u8>> {
    // So that no rate counts, and the session lives on.
    world.pass(1_000);
    assert!(world.ac.note_traffic(world.now, world.session()));
    world.feed(&client.ppp(protocol::IPV6, packet))
}

fn ask(world: &mut World, client: &Client, ask: &Ask) -> Answer {
    let frames = feed(world, client, &ask.packet());
    let answer = answer(world, &frames);
    let Body::Session { payload, .. } = frame::parse(&frames[0]).unwrap().body else {
        unreachable!()
    };
    let message = Message::parse(&payload[48..]).unwrap();
    assert_eq!(
        message.client, ask.client,
        "the client's identifier comes back"
    );
    answer
}

fn refused(world: &mut World, client: &Client, packet: &[u8]) -> DropReason {
    let frames = feed(world, client, packet);
    assert!(frames.is_empty(), "{frames:?}");
    world.last_drop.unwrap()
}

/// A lease for as long as the router advertises the prefix.
fn full(lease: Lease) -> Leased {
    Leased {
        lease,
        preferred: 14_400,
        valid: 86_400,
    }
}

fn over(lease: Lease) -> Leased {
    Leased {
        lease,
        preferred: 0,
        valid: 0,
    }
}

const TIMES: (u32, u32) = (7_200, 11_520);

fn given(kind: IaKind, id: u32, lease: Lease) -> Got {
    (kind, id, TIMES, vec![full(lease)], None)
}

fn none(kind: IaKind, id: u32, status: Status) -> Got {
    (kind, id, (0, 0), vec![], Some(status as u16))
}

#[test]
fn a_cpe_gets_its_prefix_an_address_and_dns_in_four_messages_and_keeps_them() {
    let (mut world, client) = dial(IPV6);
    let dns = IPV6.dns[0].unwrap().octets().to_vec();
    let both = vec![given(NA, 1, ADDRESS), given(PD, 2, prefix())];

    let solicit = Ask::new(kind::SOLICIT).ia(NA, 1, &[]).ia(PD, 2, &[]);
    let offer = ask(&mut world, &client, &solicit);
    assert_eq!((offer.kind, &offer.ias), (kind::ADVERTISE, &both));
    assert_eq!(offer.others, [option::PREFERENCE]);
    assert_eq!((offer.status, &offer.dns), (None, &dns));

    for kind in [kind::REQUEST, kind::RENEW, kind::REBIND] {
        let message = Ask::new(kind).ia(NA, 1, &[ADDRESS]).ia(PD, 2, &[prefix()]);
        let reply = ask(&mut world, &client, &message);
        assert_eq!(
            (reply.kind, &reply.ias),
            (kind::REPLY, &both),
            "type {kind}"
        );
        assert_eq!(
            (reply.others, reply.status, reply.dns),
            (vec![], None, dns.clone())
        );
    }
    assert_eq!(world.count(Outcome::Dhcpv6Advertises), 1);
    assert_eq!(world.count(Outcome::Dhcpv6Replies), 3);
    assert_eq!(world.events.len(), 4, "nothing of it is the driver's");
}

#[test]
fn a_rapid_commit_is_answered_at_once_when_there_is_something_to_give() {
    let (mut world, client) = dial(IPV6);
    let solicit = |ask: Ask| Ask {
        is_rapid: true,
        ..ask
    };
    let message = solicit(Ask::new(kind::SOLICIT).ia(PD, 5, &[]));
    let reply = ask(&mut world, &client, &message);
    assert_eq!(reply.kind, kind::REPLY);
    assert_eq!(reply.others, [option::RAPID_COMMIT]);
    assert_eq!(reply.ias, [given(PD, 5, prefix())]);

    let without = Ipv6Grant {
        delegated: None,
        ..IPV6
    };
    let (mut world, client) = dial(without);
    let offer = ask(&mut world, &client, &message);
    assert_eq!(
        (offer.kind, offer.others),
        (kind::ADVERTISE, vec![option::PREFERENCE])
    );
    assert_eq!(offer.ias, [none(PD, 5, Status::NoPrefixAvail)]);
}

#[test]
fn a_session_without_a_delegated_prefix_says_so_and_gives_the_address() {
    let without = Ipv6Grant {
        delegated: None,
        dns: [None; 2],
        ..IPV6
    };
    let (mut world, client) = dial(without);
    for (kind, status) in [
        (kind::SOLICIT, Status::NoPrefixAvail),
        (kind::REQUEST, Status::NoPrefixAvail),
        (kind::RENEW, Status::NoBinding),
        (kind::REBIND, Status::NoBinding),
    ] {
        let message = Ask::new(kind).ia(PD, 9, &[prefix()]).ia(NA, 8, &[]);
        let answer = ask(&mut world, &client, &message);
        assert_eq!(answer.ias, [none(PD, 9, status), given(NA, 8, ADDRESS)]);
        assert!(answer.dns.is_empty(), "there is no server");
    }
}

#[test]
fn what_a_client_hints_at_or_had_before_gives_way_to_what_is_its_own() {
    let (mut world, client) = dial(IPV6);
    let any = Lease::Prefix(Ipv6Addr::UNSPECIFIED, 48);
    let solicit = Ask::new(kind::SOLICIT)
        .ia(PD, 1, &[any])
        .ia(NA, 1, &[ELSEWHERE]);
    let offer = ask(&mut world, &client, &solicit);
    assert_eq!(offer.ias, [given(PD, 1, prefix()), given(NA, 1, ADDRESS)]);

    // After a redial a CPE rebinds what it had.
    for kind in [kind::RENEW, kind::REBIND] {
        let message = Ask::new(kind)
            .ia(PD, 1, &[any, OTHER_PREFIX])
            .ia(NA, 2, &[ELSEWHERE]);
        let reply = ask(&mut world, &client, &message);
        let prefixes = vec![full(prefix()), over(OTHER_PREFIX)];
        let addresses = vec![full(ADDRESS), over(ELSEWHERE)];
        assert_eq!(
            reply.ias,
            [
                (PD, 1, TIMES, prefixes, None),
                (NA, 2, TIMES, addresses, None)
            ]
        );
    }
    let request = Ask::new(kind::REQUEST).ia(NA, 2, &[ELSEWHERE]);
    let reply = ask(&mut world, &client, &request);
    assert_eq!(reply.ias, [none(NA, 2, Status::NotOnLink)]);
}

#[test]
fn of_several_associations_of_a_kind_one_gets_the_lease() {
    let (mut world, client) = dial(IPV6);
    let solicit = Ask::new(kind::SOLICIT)
        .ia(PD, 1, &[])
        .ia(PD, 2, &[])
        .ia(NA, 3, &[])
        .ia(NA, 4, &[ADDRESS]);
    let offer = ask(&mut world, &client, &solicit);
    let expected = [
        given(PD, 1, prefix()),
        none(PD, 2, Status::NoPrefixAvail),
        none(NA, 3, Status::NoAddrsAvail),
        given(NA, 4, ADDRESS),
    ];
    assert_eq!(offer.ias, expected, "the first, or the one that names it");
    let renew = Ask::new(kind::RENEW).ia(PD, 1, &[]).ia(PD, 2, &[prefix()]);
    let reply = ask(&mut world, &client, &renew);
    assert_eq!(
        reply.ias,
        [none(PD, 1, Status::NoBinding), given(PD, 2, prefix())]
    );
}

#[test]
fn temporary_addresses_are_not_given_and_every_question_about_them_is_answered() {
    let (mut world, client) = dial(IPV6);
    for (kind, status) in [
        (kind::SOLICIT, Status::NoAddrsAvail),
        (kind::REQUEST, Status::NoAddrsAvail),
        (kind::RENEW, Status::NoBinding),
        (kind::REBIND, Status::NoBinding),
        (kind::RELEASE, Status::NoBinding),
        (kind::DECLINE, Status::NoBinding),
    ] {
        // Not even an address the session has elsewhere.
        for leases in [&[][..], &[ADDRESS]] {
            let message = Ask::new(kind).ia(TA, 6, leases);
            let answer = ask(&mut world, &client, &message);
            assert_eq!(answer.ias, [none(TA, 6, status)], "type {kind}");
        }
    }
    let solicit = Ask::new(kind::SOLICIT).ia(TA, 1, &[ADDRESS]).ia(NA, 1, &[]);
    let offer = ask(&mut world, &client, &solicit);
    let expected = [none(TA, 1, Status::NoAddrsAvail), given(NA, 1, ADDRESS)];
    assert_eq!(offer.ias, expected, "nor was it declined");
    let rapid = Ask {
        is_rapid: true,
        ..Ask::new(kind::SOLICIT).ia(TA, 1, &[])
    };
    assert_eq!(ask(&mut world, &client, &rapid).kind, kind::ADVERTISE);
    for (address, status) in [(ADDRESS, Status::Success), (ELSEWHERE, Status::NotOnLink)] {
        let confirm = Ask::new(kind::CONFIRM).ia(TA, 1, &[address]);
        let reply = ask(&mut world, &client, &confirm);
        assert_eq!((reply.status, reply.ias), (Some(status as u16), vec![]));
    }
    let message = Ask::new(kind::INFORMATION_REQUEST).ia(TA, 1, &[]);
    let reason = refused(&mut world, &client, &message.packet());
    assert_eq!(reason, DropReason::Dhcpv6Identifier);
}

#[test]
fn an_address_of_another_link_is_told_so_whether_or_not_there_is_one_to_give() {
    let (mut world, client) = dial(IPV6);
    let request = Ask::new(kind::REQUEST)
        .ia(NA, 1, &[ADDRESS])
        .ia(NA, 2, &[ELSEWHERE])
        .ia(TA, 3, &[ELSEWHERE])
        .ia(PD, 4, &[OTHER_PREFIX]);
    let reply = ask(&mut world, &client, &request);
    let expected = [
        given(NA, 1, ADDRESS),
        none(NA, 2, Status::NotOnLink),
        none(TA, 3, Status::NotOnLink),
        given(PD, 4, prefix()),
    ];
    assert_eq!(reply.ias, expected);
}

#[test]
fn a_release_is_thanked_for_and_changes_nothing() {
    let (mut world, client) = dial(IPV6);
    let before = record_of(&world);
    let release = Ask::new(kind::RELEASE)
        .ia(PD, 1, &[prefix()])
        .ia(NA, 2, &[ADDRESS])
        .ia(PD, 3, &[OTHER_PREFIX]);
    let reply = ask(&mut world, &client, &release);
    assert_eq!((reply.kind, reply.status), (kind::REPLY, Some(0)));
    assert_eq!(reply.ias, [none(PD, 3, Status::NoBinding)]);
    assert_eq!(world.count(Outcome::Dhcpv6Releases), 1);
    assert_eq!(world.events.len(), 4);
    assert_eq!(world.ac.record(before.session), Some(before));
    let request = Ask::new(kind::REQUEST).ia(PD, 1, &[prefix()]);
    let reply = ask(&mut world, &client, &request);
    assert_eq!(reply.ias, [given(PD, 1, prefix())]);
}

#[test]
fn a_declined_address_is_not_given_again_until_ipv6_opens_anew() {
    let (mut world, mut client) = dial(IPV6);
    let solicit = Ask::new(kind::SOLICIT).ia(NA, 1, &[]).ia(PD, 1, &[]);
    let decline = |lease| Ask::new(kind::DECLINE).ia(NA, 1, &[lease]);
    let reply = ask(&mut world, &client, &decline(ELSEWHERE));
    assert_eq!(
        (reply.status, reply.ias),
        (Some(0), vec![none(NA, 1, Status::NoBinding)])
    );
    let offer = ask(&mut world, &client, &solicit);
    assert_eq!(offer.ias[0], given(NA, 1, ADDRESS), "not what was declined");

    let reply = ask(&mut world, &client, &decline(ADDRESS));
    assert_eq!((reply.status, reply.ias), (Some(0), vec![]));
    assert_eq!(world.count(Outcome::Dhcpv6Declines), 2);
    let offer = ask(&mut world, &client, &solicit);
    assert_eq!(
        offer.ias,
        [none(NA, 1, Status::NoAddrsAvail), given(PD, 1, prefix())]
    );

    world.feed(&client.ipv6cp(lcp_code::TERMINATE_REQUEST, 1, &[]));
    world.pass(10_000);
    let request = client.ipv6cp_request();
    client.converse(&mut world, vec![request]);
    let offer = ask(&mut world, &client, &solicit);
    assert_eq!(offer.ias[0], given(NA, 1, ADDRESS));
}

#[test]
fn a_confirm_tells_whether_addresses_are_of_the_link() {
    let (mut world, client) = dial(IPV6);
    let same_link = Lease::Address(Ipv6Addr::new(0x2001, 0xdb8, 0, 0x77, 1, 2, 3, 4));
    for (leases, expected) in [
        (vec![ADDRESS, same_link], Status::Success),
        (vec![ADDRESS, ELSEWHERE], Status::NotOnLink),
    ] {
        let confirm = Ask::new(kind::CONFIRM).ia(NA, 1, &leases);
        let reply = ask(&mut world, &client, &confirm);
        assert_eq!(
            (reply.kind, reply.status),
            (kind::REPLY, Some(expected as u16))
        );
        assert!(reply.ias.is_empty());
    }
    for confirm in [
        Ask::new(kind::CONFIRM),
        Ask::new(kind::CONFIRM).ia(NA, 1, &[]),
        Ask::new(kind::CONFIRM).ia(PD, 1, &[prefix()]),
    ] {
        let reason = refused(&mut world, &client, &confirm.packet());
        assert_eq!(reason, DropReason::Dhcpv6NothingToConfirm);
    }
}

#[test]
fn an_information_request_gets_dns_servers_if_it_asks_for_them_and_needs_no_name() {
    let (mut world, client) = dial(IPV6);
    let dns = IPV6.dns[0].unwrap().octets().to_vec();
    let plain = Ask::new(kind::INFORMATION_REQUEST);
    for (message, expected) in [
        (plain.clone(), dns.clone()),
        (
            Ask {
                client: None,
                server: Some(SERVER_ID),
                ..plain.clone()
            },
            dns,
        ),
        (
            Ask {
                wants_dns: false,
                ..plain
            },
            vec![],
        ),
    ] {
        let reply = ask(&mut world, &client, &message);
        assert_eq!((reply.kind, reply.dns), (kind::REPLY, expected));
        assert_eq!((reply.status, reply.ias), (None, vec![]));
    }
}

#[test]
fn a_message_without_its_identifiers_or_with_too_many_is_malformed() {
    let (mut world, client) = dial(IPV6);
    let all = |kind| {
        [None, Some(CLIENT_ID)].map(|client| {
            [None, Some(SERVER_ID)].map(|server| Ask {
                client,
                server,
                ..Ask::new(kind).ia(NA, 1, &[ADDRESS])
            })
        })
    };
    let mut answered = vec![];
    for kind in (1..=9).filter(|it| ![kind::ADVERTISE, kind::REPLY].contains(it)) {
        for message in all(kind).as_flattened() {
            let has = (message.client.is_some(), message.server.is_some());
            if feed(&mut world, &client, &message.packet()).is_empty() {
                assert_eq!(world.last_drop, Some(DropReason::Dhcpv6Identifier));
            } else {
                answered.push((kind, has));
            }
        }
    }
    let expected = [
        (kind::SOLICIT, (true, false)),
        (kind::REQUEST, (true, true)),
        (kind::CONFIRM, (true, false)),
        (kind::RENEW, (true, true)),
        (kind::REBIND, (true, false)),
        (kind::RELEASE, (true, true)),
        (kind::DECLINE, (true, true)),
    ];
    assert_eq!(answered, expected);
    let message = Ask::new(kind::INFORMATION_REQUEST).ia(NA, 1, &[]);
    let reason = refused(&mut world, &client, &message.packet());
    assert_eq!(reason, DropReason::Dhcpv6Identifier);
}

#[test]
fn messages_of_servers_and_relays_and_for_others_get_no_answer() {
    let (mut world, client) = dial(IPV6);
    for kind in [0, kind::ADVERTISE, kind::REPLY, 10, 14, 255] {
        let reason = refused(&mut world, &client, &Ask::new(kind).packet());
        assert_eq!(reason, DropReason::Dhcpv6Type, "type {kind}");
    }
    for kind in [kind::RELAY_FORWARD, kind::RELAY_REPLY] {
        let reason = refused(&mut world, &client, &Ask::new(kind).packet());
        assert_eq!(reason, DropReason::Dhcpv6Relay);
    }
    let to = |server| Ask {
        server: Some(server),
        ..Ask::new(kind::REQUEST).ia(PD, 1, &[])
    };
    for server in [&SERVER_ID[..9], &[0, 3, 0, 1, 2, 0xac, 0, 0, 0, 2]] {
        let reason = refused(&mut world, &client, &to(server).packet());
        assert_eq!(reason, DropReason::Dhcpv6OtherServer);
    }
}

#[test]
fn what_comes_to_our_address_has_no_effect_and_what_was_for_one_server_is_told_so() {
    let (mut world, client) = dial(IPV6);
    let own = own_address(&world);
    for kind in (1..=11).filter(|it| ![2, 7, 10].contains(it)) {
        let mut message = Ask::new(kind);
        if kind != kind::INFORMATION_REQUEST {
            message = message.ia(NA, 1, &[ADDRESS]);
        }
        let frames = feed(&mut world, &client, &packet(own, &message.message()));
        match message.server {
            Some(_) => {
                let answer = answer(&world, &frames);
                assert_eq!(answer.kind, kind::REPLY);
                assert_eq!(answer.status, Some(Status::UseMulticast as u16));
                assert_eq!((answer.others, answer.ias), (vec![], vec![]));
                assert!(answer.dns.is_empty(), "no other option");
            }
            None => {
                assert!(frames.is_empty());
                assert_eq!(world.last_drop, Some(DropReason::Dhcpv6Destination));
            }
        }
    }
    assert_eq!(world.count(Outcome::Dhcpv6Unicasts), 4);
    assert_eq!(world.count(Outcome::Dhcpv6Declines), 0);
    let solicit = Ask::new(kind::SOLICIT).ia(NA, 1, &[]);
    let offer = ask(&mut world, &client, &solicit);
    assert_eq!(offer.ias, [given(NA, 1, ADDRESS)], "not declined");
    let renew = Ask::new(kind::RENEW).ia(NA, 1, &[ADDRESS]).message();
    for other in [
        nd::ALL_NODES,
        nd::link_local(77),
        Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3),
    ] {
        let reason = refused(&mut world, &client, &packet(other, &renew));
        assert_eq!(reason, DropReason::Dhcpv6Destination);
    }
}

#[test]
fn a_client_speaks_from_its_link_local_address_and_any_port() {
    let (mut world, client) = dial(IPV6);
    let solicit = Ask::new(kind::SOLICIT).ia(PD, 1, &[]).message();
    let from = |source, ports| dhcpv6::datagram(source, ALL_SERVERS, ports, &solicit);
    let frames = feed(
        &mut world,
        &client,
        &from(nd::link_local(PEER), (50_000, SERVER_PORT)),
    );
    assert_eq!(answer(&world, &frames).ias, [given(PD, 1, prefix())]);
    for source in [ADDRESS.address(), Ipv6Addr::UNSPECIFIED] {
        let reason = refused(
            &mut world,
            &client,
            &from(source, (CLIENT_PORT, SERVER_PORT)),
        );
        assert_eq!(reason, DropReason::Dhcpv6Source);
    }
    let elsewhere = from(nd::link_local(PEER), (CLIENT_PORT, CLIENT_PORT));
    let reason = refused(&mut world, &client, &elsewhere);
    assert_eq!(reason, DropReason::Ipv6Ignored);
}

#[test]
fn messages_are_answered_within_a_rate_and_only_while_ipv6_is_open() {
    let (mut world, client) = dial(IPV6);
    let solicit = Ask::new(kind::SOLICIT).ia(PD, 1, &[]);
    let frame = client.ppp(protocol::IPV6, &solicit.packet());
    let answered = (0..30).filter(|_| !world.feed(&frame).is_empty()).count();
    assert_eq!(answered, 8);
    assert_eq!(world.last_drop, Some(DropReason::Dhcpv6Rate));
    world.pass(1_000);
    assert_eq!(world.feed(&frame).len(), 1);
    world.feed(&client.ipv6cp(lcp_code::TERMINATE_REQUEST, 1, &[]));
    assert_eq!(
        refused(&mut world, &client, &solicit.packet()),
        DropReason::Ipv6NotOpen
    );
}

#[test]
fn an_adopted_session_is_served_as_before() {
    let (world, client) = dial(IPV6);
    let record = record_of(&world);
    let mut next = World::new(config());
    next.now = world.now;
    next.ac.adopt(next.now, record).unwrap();
    next.events = world.events;
    let renew = Ask::new(kind::RENEW)
        .ia(NA, 1, &[ADDRESS])
        .ia(PD, 1, &[prefix()]);
    let reply = ask(&mut next, &client, &renew);
    assert_eq!(reply.ias, [given(NA, 1, ADDRESS), given(PD, 1, prefix())]);
}

#[test]
fn each_defect_of_a_datagram_has_its_reason() {
    let (mut world, client) = dial(IPV6);
    let good = Ask::new(kind::SOLICIT).ia(PD, 1, &[prefix()]).packet();
    let udp_length = (good.len() - 40) as u16;
    let set = |at: usize, value: u16| {
        let mut bad = good.clone();
        bad[at..at + 2].copy_from_slice(&value.to_be_bytes());
        bad
    };
    for length in [0, 7, udp_length + 1, 0xffff] {
        let reason = refused(&mut world, &client, &set(44, length));
        assert_eq!(reason, DropReason::UdpLength, "length {length}");
    }
    let mut short = good[..47].to_vec();
    short[5] = 7;
    assert_eq!(refused(&mut world, &client, &short), DropReason::UdpLength);
    let sum = u16::from_be_bytes([good[46], good[47]]);
    for wrong in [0, sum ^ 1] {
        let reason = refused(&mut world, &client, &set(46, wrong));
        assert_eq!(reason, DropReason::UdpChecksum);
    }
    // What follows the datagram in its packet is not looked at.
    let mut longer = [&good[..], &[0xa5; 3]].concat();
    longer[4..6].copy_from_slice(&(udp_length + 3).to_be_bytes());
    assert_eq!(feed(&mut world, &client, &longer).len(), 1);
    for length in 0..4 {
        let reason = refused(
            &mut world,
            &client,
            &packet(ALL_SERVERS, &[1, 7, 8, 9][..length]),
        );
        assert_eq!(reason, DropReason::Dhcpv6Truncated);
    }
}

#[test]
fn each_defect_of_an_option_has_its_reason() {
    let (mut world, client) = dial(IPV6);
    let with = |options: &[&[u8]]| {
        let mut message = Ask::new(kind::SOLICIT).message();
        message.extend_from_slice(&options.concat());
        packet(ALL_SERVERS, &message)
    };
    let prefix_of = |length: u8| [&[0, 26, 0, 25][..], &[0; 8], &[length], &[0; 16]].concat();
    let ia = |code: u8, inside: &[u8]| {
        let length = (12 + inside.len()) as u8;
        [&[0, code, 0, length][..], &[0; 12], inside].concat()
    };
    let good = [
        ia(25, &prefix_of(128)),
        ia(3, &[&[0, 5, 0, 24][..], &[0; 24]].concat()),
        ia(3, &[0xff, 0, 0, 0]),
        vec![0, 4, 0, 4, 0, 0, 0, 1],
        vec![0, 14, 0, 0],
        vec![0, 6, 0, 0],
    ];
    for option in &good {
        assert_eq!(
            feed(&mut world, &client, &with(&[option])).len(),
            1,
            "{option:?}"
        );
    }
    let bad = [
        vec![0],
        vec![0, 99, 0],
        vec![0, 99, 0, 1],
        vec![0, 1, 0, 3, 0, 3, 0],
        [&[0, 2, 0, 2][..], &[0; 2]].concat(),
        [&[0, 2, 0, 131][..], &[0; 131]].concat(),
        vec![0, 6, 0, 1, 0],
        vec![0, 14, 0, 1, 0],
        [&[0, 3, 0, 11][..], &[0; 11]].concat(),
        [&[0, 25, 0, 11][..], &[0; 11]].concat(),
        [&[0, 4, 0, 3][..], &[0; 3]].concat(),
        vec![0, 4, 0, 8, 0, 0, 0, 1, 0, 5, 0, 1],
        ia(3, &[0, 5, 0]),
        ia(3, &[0, 5, 0, 1]),
        ia(3, &[&[0, 5, 0, 23][..], &[0; 23]].concat()),
        ia(3, &[&[0, 5, 0, 25][..], &[0; 25]].concat()),
        ia(25, &[&[0, 26, 0, 24][..], &[0; 24]].concat()),
        ia(25, &[&[0, 26, 0, 26][..], &[0; 26]].concat()),
        ia(25, &prefix_of(129)),
    ];
    for option in &bad {
        let reason = refused(&mut world, &client, &with(&[option]));
        assert_eq!(reason, DropReason::Dhcpv6Option, "{option:?}");
    }
}

#[test]
fn as_many_associations_and_leases_as_are_allowed_are_answered_in_one_small_packet() {
    let (mut world, client) = dial(Ipv6Grant {
        dns: [IPV6.dns[0]; 2],
        ..IPV6
    });
    let ias = |count: u32, leases: &[Lease]| {
        (0..count).fold(Ask::new(kind::REBIND), |ask, id| {
            ask.ia(if id % 2 == 0 { NA } else { PD }, id, leases)
        })
    };
    let longest: &[u8] = &[9; 130];
    let most = Ask {
        client: Some(longest),
        ..ias(8, &[ELSEWHERE])
    };
    assert_eq!(ask(&mut world, &client, &most).ias.len(), 8);
    let one = Ask::new(kind::REBIND).ia(NA, 1, &[ELSEWHERE; 8]);
    assert_eq!(ask(&mut world, &client, &one).ias[0].3.len(), 9);
    for too_many in [
        ias(9, &[]),
        Ask::new(kind::REBIND).ia(PD, 1, &[OTHER_PREFIX; 9]),
        (0..3).fold(Ask::new(kind::REBIND), |ask, id| {
            ask.ia(NA, id, &[ELSEWHERE; 3])
        }),
    ] {
        let reason = refused(&mut world, &client, &too_many.packet());
        assert_eq!(reason, DropReason::Dhcpv6TooMany);
    }
}

#[test]
fn every_byte_of_a_message_may_have_any_value_and_every_cut_is_survived() {
    let (mut world, client) = dial(IPV6);
    let message = Ask::new(kind::RENEW)
        .ia(PD, 1, &[prefix()])
        .ia(NA, 2, &[ADDRESS]);
    let good = message.packet();
    let (mut malformed, mut fine) = (0, 0);
    let mut take = |world: &mut World, packet: &[u8]| {
        let answers = feed(world, &client, packet).len();
        match world.last_drop {
            Some(reason) => {
                assert_eq!(answers, 0, "{reason:?}");
                malformed += u32::from(reason.is_malformed());
            }
            None => {
                assert_eq!(answers, 1);
                fine += 1;
            }
        }
    };
    for at in 48..good.len() {
        for value in 0..=255 {
            let mut packet = good.clone();
            packet[at] = value;
            reseal(&mut packet);
            take(&mut world, &packet);
        }
    }
    for end in 48..good.len() {
        let mut packet = good[..end].to_vec();
        let length = (end as u16 - 40).to_be_bytes();
        packet[4..6].copy_from_slice(&length);
        packet[44..46].copy_from_slice(&length);
        reseal(&mut packet);
        take(&mut world, &packet);
    }
    assert!(malformed > 1_000 && fine > 1_000, "{malformed} {fine}");
}
