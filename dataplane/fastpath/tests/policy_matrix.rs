//! Every kind of policy on every IPv4 path a packet can take (HZ-07 C(a)).
//!
//! The cells are made from the lists below. Each sends one packet that the policy is not about and one that it is, and
//! looks at the verdict and at the counter. [`rule_of`] has no wildcard: a new kind or shape without its cells does not
//! compile. Paths that end before any policy are stated there too, with the reason they end for.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod support;

use std::net::Ipv4Addr;

use bng_fastpath::testing::{Spec, TestBuf, World, echo, tcp, udp};
use bng_fastpath::{Origin, PacketBuf, Verdict};
use bng_shm::{
    Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Rate, Session,
    SlotIndex, Vlans,
};
use bng_wire::pppoe::protocol;

const SLOT: SlotIndex = World::slot(0);
const ROUTED: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
const OTHER_HOST: Ipv4Addr = Ipv4Addr::new(8, 8, 8, 8);
const PORT: u16 = 53;

/// What a configuration can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    PolicyThere,
    FilterThere,
    SourceCheck,
    FilterAddressUp,
    FilterAddressDown,
    FilterPortUp,
    FilterPortDown,
    PolicerUp,
    PolicerDown,
    MssClamp,
    PuntLimit,
}

const KINDS: [Kind; 11] = [
    Kind::PolicyThere,
    Kind::FilterThere,
    Kind::SourceCheck,
    Kind::FilterAddressUp,
    Kind::FilterAddressDown,
    Kind::FilterPortUp,
    Kind::FilterPortDown,
    Kind::PolicerUp,
    Kind::PolicerDown,
    Kind::MssClamp,
    Kind::PuntLimit,
];

/// What a packet looks like: the usual way, and the others past it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Udp,
    Tcp,
    Icmp,
    FirstFragment,
    LaterFragment,
    Oversized,
    Options,
    PppControl,
}

const SHAPES: [Shape; 8] = [
    Shape::Udp,
    Shape::Tcp,
    Shape::Icmp,
    Shape::FirstFragment,
    Shape::LaterFragment,
    Shape::Oversized,
    Shape::Options,
    Shape::PppControl,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

#[derive(Debug, Clone, Copy)]
struct Cell {
    kind: Kind,
    shape: Shape,
    way: Way,
    is_routed: bool,
    tags: u8,
    origin: Origin,
}

/// What a cell must show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Without a match it passes; with one it is dropped for this reason.
    Drops(Counter),
    /// It passes either way; with a match this is counted and the packet changed.
    Changes(Counter),
    /// The policy is about something else: it passes either way.
    Passes,
    /// The path ends for this reason whatever the policy says.
    Ends(Counter),
    /// There is no such path.
    None,
}

fn rule_of(cell: &Cell) -> Rule {
    use Kind::*;
    let up = cell.way == Way::Up;
    let has_ports = match cell.shape {
        Shape::Icmp => false,
        Shape::Udp | Shape::Tcp | Shape::FirstFragment | Shape::Oversized => true,
        // Not known, unless NAT knows the first one: a rule that drops fits.
        Shape::LaterFragment => true,
        Shape::Options => return Rule::Ends(Counter::Ipv4Options),
        Shape::PppControl => {
            return match (cell.kind, cell.way) {
                (_, Way::Down) => Rule::None,
                (PuntLimit, Way::Up) => Rule::Drops(Counter::PuntRateLimited),
                (
                    PolicyThere | FilterThere | SourceCheck | FilterAddressUp | FilterAddressDown
                    | FilterPortUp | FilterPortDown | PolicerUp | PolicerDown | MssClamp,
                    Way::Up,
                ) => Rule::Passes,
            };
        }
    };
    let when = |condition, reason| {
        if condition {
            Rule::Drops(reason)
        } else {
            Rule::Passes
        }
    };
    match cell.kind {
        PolicyThere | FilterThere => Rule::Drops(Counter::NoPolicy),
        SourceCheck => when(up, Counter::SourceSpoofed),
        FilterAddressUp => when(up, Counter::FilterUpstream),
        FilterAddressDown => when(!up, Counter::FilterDownstream),
        FilterPortUp => when(up && has_ports, Counter::FilterUpstream),
        FilterPortDown => when(!up && has_ports, Counter::FilterDownstream),
        PolicerUp => when(up, Counter::PolicerUpstream),
        PolicerDown => when(!up, Counter::PolicerDownstream),
        MssClamp if cell.shape == Shape::Tcp => Rule::Changes(Counter::MssClamped),
        MssClamp | PuntLimit => Rule::Passes,
    }
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for kind in KINDS {
        for shape in SHAPES {
            for way in [Way::Up, Way::Down] {
                for is_routed in [false, true] {
                    for tags in 0..3 {
                        for origin in [Origin::Port, Origin::HandedOver] {
                            let cell = Cell {
                                kind,
                                shape,
                                way,
                                is_routed,
                                tags,
                                origin,
                            };
                            cells.push(cell);
                        }
                    }
                }
            }
        }
    }
    cells
}

/// A TCP SYN with an MSS option.
fn syn(src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), mss: u16) -> Vec<u8> {
    let [high, low] = mss.to_be_bytes();
    let mut packet = tcp(src, dst, 2, &[2, 4, high, low]);
    packet[32] = 0x60;
    packet[36..38].fill(0);
    let check = bng_wire::checksum::l4_checksum(src.0.to_bits(), dst.0.to_bits(), 6, &packet[20..]);
    packet[36..38].copy_from_slice(&check.to_be_bytes());
    packet
}

/// The shape's packet, 200 bytes or more; `MssClamp` looks at a SYN, all others at data.
fn packet(cell: &Cell, src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16), mss: u16) -> Vec<u8> {
    let data = udp(src, dst, &[7; 172]);
    match cell.shape {
        Shape::Udp => data,
        Shape::Tcp if cell.kind == Kind::MssClamp => syn(src, dst, mss),
        Shape::Tcp => tcp(src, dst, 0x10, &[7; 160]),
        Shape::Icmp => {
            let (is_request, id) = match cell.way {
                Way::Up => (true, src.1),
                Way::Down => (false, dst.1),
            };
            echo(src.0, dst.0, is_request, id, &[7; 172])
        }
        Shape::FirstFragment => support::edited(data, 6, 0x20),
        Shape::LaterFragment => support::edited(data, 7, 9),
        Shape::Oversized => udp(src, dst, &[7; 1_480]),
        Shape::Options => {
            // A "no operation" option of four bytes.
            let mut packet = data;
            packet.splice(20..20, [1, 1, 1, 0]);
            let len = packet.len() as u16;
            packet[2..4].copy_from_slice(&len.to_be_bytes());
            support::edited(packet, 0, 0x46)
        }
        Shape::PppControl => b"\x09\x01\x00\x08....".to_vec(),
    }
}

fn drop_rule(remote: Option<Ipv4Addr>, port: Option<u16>) -> FilterRule {
    FilterRule {
        action: FilterAction::Drop,
        protocol: None,
        remote: remote.map(|address| (address.into(), 32)),
        remote_ports: port.map(|port| (port, port)),
        local_ports: None,
    }
}

/// The policy of a cell, with its filter (number 0), and the identity of the policy the session names.
fn policy_of(cell: &Cell, is_match: bool) -> (PolicyId, Policy, Filter) {
    let tight = Some(Rate {
        kbps: 1,
        burst_bytes: 250,
    });
    let wide = Some(Rate {
        kbps: 1_000_000,
        burst_bytes: 1_000_000,
    });
    let rate = if is_match { tight } else { wide };
    let (mut id, mut policy, mut filter) = (PolicyId(2), Policy::default(), Filter::default());
    // Later fragments of routed packets have no port to tell them apart by: there the rule is another protocol's.
    let by_port = |is_match: bool| match (cell.shape, is_match) {
        (Shape::LaterFragment, false) if cell.is_routed => FilterRule {
            protocol: Some(6),
            ..drop_rule(None, Some(PORT))
        },
        (_, true) => drop_rule(None, Some(PORT)),
        (_, false) => drop_rule(None, Some(PORT + 1)),
    };
    let by_address =
        |is_match| drop_rule(Some(if is_match { World::HOST } else { OTHER_HOST }), None);
    match cell.kind {
        Kind::PolicyThere if is_match => id = PolicyId(3),
        Kind::FilterThere => policy.filter = Some(FilterId(u8::from(is_match))),
        Kind::FilterAddressUp => filter.up.push(by_address(is_match)),
        Kind::FilterAddressDown => filter.down.push(by_address(is_match)),
        Kind::FilterPortUp => filter.up.push(by_port(is_match)),
        Kind::FilterPortDown => filter.down.push(by_port(is_match)),
        Kind::PolicerUp => policy.up = rate,
        Kind::PolicerDown => policy.down = rate,
        Kind::PolicyThere | Kind::SourceCheck | Kind::MssClamp | Kind::PuntLimit => {}
    }
    if !filter.up.is_empty() || !filter.down.is_empty() {
        policy.filter = Some(FilterId(0));
    }
    (id, policy, filter)
}

fn count(world: &World, counter: Counter) -> u64 {
    let counted = world.counted(0);
    counted.iter().find(|c| c.0 == counter).map_or(0, |c| c.1)
}

/// Sends the cell's packet to a world of its own; the verdict, and how much `counter` grew by it.
fn send(cell: &Cell, is_match: bool, counter: Counter) -> (Verdict, u64) {
    let is_limit = cell.kind == Kind::PuntLimit && is_match;
    let mut world = World::new(Spec {
        access_ports: 1,
        punts_per_second: if is_limit { 1 } else { 0 },
        ..Spec::default()
    });
    let mut session = Session {
        vlans: match cell.tags {
            0 => Vlans::default(),
            1 => Vlans {
                s_vlan: Some(7),
                ..Vlans::default()
            },
            _ => Vlans {
                s_vlan: Some(7),
                c_vlan: Some(9),
                outer_is_88a8: true,
            },
        },
        ..world.session(0)
    };
    if cell.is_routed {
        (session.framed_ip, session.nat) = (ROUTED, None);
    }
    let session = world.publish(SLOT, session);
    let me = (session.framed_ip, 5_000);
    let core = Verdict::Forward { port: 1 };
    // A mapping for what comes downstream, made before the policy is in force.
    let mut outside = me;
    if cell.way == Way::Down && !cell.is_routed {
        let opener = Cell {
            way: Way::Up,
            shape: match cell.shape {
                Shape::Icmp | Shape::Tcp => cell.shape,
                _ => Shape::Udp,
            },
            ..*cell
        };
        let bytes = packet(&opener, me, (World::HOST, PORT), 536);
        let buf = World::from_subscriber(SLOT, &session, &bytes);
        let (verdict, sent) = world.upstream(0, vec![buf], Origin::Port).remove(0);
        assert_eq!(verdict, core, "{cell:?}");
        let sent = &sent.data()[14..];
        let at = if cell.shape == Shape::Icmp { 24 } else { 20 };
        let source = bng_wire::ipv4::parse(sent).unwrap().src_addr();
        outside = (source, u16::from_be_bytes([sent[at], sent[at + 1]]));
    }
    // So is the first fragment sent that a later one follows.
    if cell.shape == Shape::LaterFragment && !cell.is_routed {
        let first = Cell {
            shape: Shape::FirstFragment,
            ..*cell
        };
        let verdict = match cell.way {
            Way::Up => {
                let bytes = packet(&first, me, (World::HOST, PORT), 0);
                let buf = World::from_subscriber(SLOT, &session, &bytes);
                world.upstream(0, vec![buf], Origin::Port).remove(0).0
            }
            Way::Down => {
                let buf = world.from_core(&packet(&first, (World::HOST, PORT), outside, 0));
                world.downstream(0, vec![buf], Origin::Port).remove(0).0
            }
        };
        assert!(passes(&first, verdict), "{first:?}: {verdict:?}");
    }
    let (policy, words, filter) = policy_of(cell, is_match);
    world
        .publisher
        .write_policy(PolicyId(2), Some(&words))
        .unwrap();
    world.publisher.publish_filters(&[filter]).unwrap();
    world.update(SLOT, Session { policy, ..session });
    world.pass(1, 1);

    let is_spoofed = cell.kind == Kind::SourceCheck && is_match;
    let mss = if is_match { 1_460 } else { 1_000 };
    let buf = match cell.way {
        Way::Up if cell.shape == Shape::PppControl => {
            World::ppp_frame(SLOT, &session, protocol::LCP, &packet(cell, me, me, mss))
        }
        Way::Up => {
            let source = if is_spoofed {
                Ipv4Addr::new(198, 51, 100, 9)
            } else {
                me.0
            };
            let bytes = packet(cell, (source, me.1), (World::HOST, PORT), mss);
            World::from_subscriber(SLOT, &session, &bytes)
        }
        Way::Down => world.from_core(&packet(cell, (World::HOST, PORT), outside, mss)),
    };
    let one = |world: &mut World, buf: TestBuf| match cell.way {
        Way::Up => world.upstream(0, vec![buf], cell.origin).remove(0).0,
        Way::Down => world.downstream(0, vec![buf], cell.origin).remove(0).0,
    };
    // What is metered conforms once.
    let is_metered = matches!(
        cell.kind,
        Kind::PolicerUp | Kind::PolicerDown | Kind::PuntLimit
    );
    if is_metered && is_match && cell.shape != Shape::Oversized {
        one(&mut world, buf.clone());
    }
    let before = count(&world, counter);
    let verdict = one(&mut world, buf);
    (verdict, count(&world, counter) - before)
}

fn passes(cell: &Cell, verdict: Verdict) -> bool {
    match (cell.shape, cell.way) {
        (Shape::PppControl, _) => matches!(verdict, Verdict::Punt(_)),
        (Shape::Oversized, Way::Up) => {
            verdict
                == (Verdict::Fragment {
                    port: 1,
                    mtu: 1_500,
                })
        }
        (Shape::Oversized, Way::Down) => {
            verdict
                == (Verdict::Fragment {
                    port: 0,
                    mtu: 1_492,
                })
        }
        (_, Way::Up) => verdict == (Verdict::Forward { port: 1 }),
        (_, Way::Down) => verdict == (Verdict::Forward { port: 0 }),
    }
}

#[test]
fn every_policy_holds_on_every_path() {
    let cells = cells();
    assert_eq!(cells.len(), KINDS.len() * SHAPES.len() * 2 * 2 * 3 * 2);
    for cell in &cells {
        let rule = rule_of(cell);
        match rule {
            Rule::Drops(reason) => {
                let (verdict, counted) = send(cell, false, reason);
                assert!(
                    passes(cell, verdict),
                    "{cell:?}: {verdict:?} without a match"
                );
                assert_eq!(counted, 0, "{cell:?}");
                let (verdict, counted) = send(cell, true, reason);
                assert_eq!((verdict, counted), (Verdict::Drop(reason), 1), "{cell:?}");
            }
            Rule::Changes(counter) => {
                for is_match in [false, true] {
                    let (verdict, counted) = send(cell, is_match, counter);
                    assert!(passes(cell, verdict), "{cell:?}: {verdict:?}");
                    assert_eq!(counted, u64::from(is_match), "{cell:?}");
                }
            }
            Rule::Passes => {
                for is_match in [false, true] {
                    let (verdict, _) = send(cell, is_match, Counter::NoPolicy);
                    assert!(passes(cell, verdict), "{cell:?}: {verdict:?}");
                }
            }
            Rule::Ends(reason) => {
                let (verdict, counted) = send(cell, false, reason);
                assert_eq!((verdict, counted), (Verdict::Drop(reason), 1), "{cell:?}");
            }
            Rule::None => {}
        }
    }
    // Each kind is enforced on each kind of path it is about.
    for kind in KINDS {
        let enforced = |cell: &&Cell| {
            cell.kind == kind && matches!(rule_of(cell), Rule::Drops(_) | Rule::Changes(_))
        };
        let found: Vec<_> = cells.iter().filter(enforced).collect();
        let has = |wanted: &dyn Fn(&Cell) -> bool| found.iter().any(|cell| wanted(cell));
        assert!(has(&|c| c.is_routed) && has(&|c| !c.is_routed), "{kind:?}");
        assert!(has(&|c| c.tags == 0) && has(&|c| c.tags == 2), "{kind:?}");
        assert!(has(&|c| c.origin == Origin::HandedOver), "{kind:?}");
    }
}
