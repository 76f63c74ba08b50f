//! Random traffic of sessions of every kind through all stages, with coalescing and without.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use bng_fastpath::testing::{Kind, Recipe, Spec, TestBuf, World};
use bng_fastpath::{L4Verdict, Origin, PacketBuf, Verdict};
use bng_shm::{
    Adjacency, Counter, Filter, FilterAction, FilterId, FilterRule, Policy, PolicyId, Rate, Session,
};

use crate::drive;
use crate::on_off::Pair;
use crate::traffic::{Flow, Random, Step, Traffic};

const SESSIONS: u32 = 6;
const POLICED: PolicyId = PolicyId(5);
const ABSENT: PolicyId = PolicyId(9);

/// Sessions of every kind, every other one of the second worker; `.1` is where each is reached over IPv4.
fn world() -> (World, Vec<Session>, Vec<(Ipv4Addr, u16)>) {
    let mut world = World::new(Spec {
        workers: 2,
        icmp_errors_per_second: 20,
        punts_per_second: 1,
        ..Spec::default()
    });
    let rule = FilterRule {
        action: FilterAction::Drop,
        protocol: None,
        remote: None,
        remote_ports: Some((25, 25)),
        local_ports: None,
    };
    let filter = Filter {
        up: vec![rule],
        down: vec![rule],
        ..Filter::default()
    };
    world.publisher.publish_filters(&[filter]).unwrap();
    let rate = Some(Rate {
        kbps: 100,
        burst_bytes: 4_000,
    });
    let policy = Policy {
        up: rate,
        down: rate,
        filter: Some(FilterId(0)),
        ..Policy::default()
    };
    let policy = Some(&policy);
    world.publisher.write_policy(POLICED, policy).unwrap();
    let sessions: Vec<_> = (0..SESSIONS)
        .map(|n| {
            let mut session = world.session(n);
            match n {
                0 | 1 => (),
                2 => session.policy = POLICED,
                3 => {
                    session.nat = None;
                    session.framed_ip = Ipv4Addr::new(198, 51, 100, 7);
                    session.policy = POLICED;
                }
                4 => session.mtu = 110,
                _ => session.policy = ABSENT,
            }
            world.publish(World::slot(n), session)
        })
        .collect();
    world.pass(1, 1);
    let outside = (0..SESSIONS).zip(&sessions).map(|(n, session)| {
        let own = (session.framed_ip, 1_000);
        if session.nat.is_none() || session.policy == ABSENT {
            return own;
        }
        let recipe = Recipe {
            kind: Kind::Udp,
            ..upstream(n, session, IpAddr::V4(World::HOST))
        };
        let bufs = vec![TestBuf::new(0, &recipe.build())];
        let out = world.upstream(session.owner, bufs, Origin::Port);
        let frame = out[0].1.data();
        let address: [u8; 4] = frame[26..30].try_into().unwrap();
        (address.into(), u16::from_be_bytes([frame[34], frame[35]]))
    });
    let outside = outside.collect();
    (world, sessions, outside)
}

/// The first frame of a flow from session `n`.
fn upstream(n: u32, session: &Session, to: IpAddr) -> Recipe {
    let slot = World::slot(n);
    let from = match to {
        IpAddr::V4(_) => session.framed_ip.into(),
        IpAddr::V6(_) => World::address6(n).into(),
    };
    Recipe {
        smac: World::client_mac(n),
        dmac: World::port_mac(0),
        vlans: vec![100, 1 + n as u16],
        addresses: (from, to),
        ports: (1_000, 443),
        ..Recipe::new(Kind::Tcp, to.is_ipv6(), Some(slot.session_id()))
    }
}

/// The flows of a scenario.
fn flows(random: &mut Random, sessions: &[Session], outside: &[(Ipv4Addr, u16)]) -> Vec<Flow> {
    let core = Spec::default().access_ports;
    let mut flows = Vec::new();
    for _ in 0..2 + random.below(8) {
        let n = random.below(sessions.len());
        let usual: [IpAddr; 2] = [World::HOST.into(), World::HOST6.into()];
        let unusual: [IpAddr; 4] = [
            // Unresolved, without a route, another subscriber, its port outside.
            Ipv4Addr::new(10, 3, 0, 1).into(),
            Ipv4Addr::new(10, 6, 0, 1).into(),
            Ipv4Addr::new(198, 51, 100, 7).into(),
            outside[0].0.into(),
        ];
        let far = if random.once_in(6) {
            random.pick(&unusual)
        } else {
            random.pick(&usual)
        };
        let mut recipe = upstream(n as u32, &sessions[n], far);
        let mut port = 0;
        if random.once_in(2) {
            let near = match far {
                IpAddr::V4(_) => outside[n].0.into(),
                IpAddr::V6(_) => World::address6(n as u32).into(),
            };
            recipe = Recipe {
                smac: World::NEXT_HOP,
                dmac: World::port_mac(core),
                addresses: (far, near),
                ports: (443, outside[n].1),
                ..Recipe::new(Kind::Tcp, far.is_ipv6(), None)
            };
            port = core;
        } else {
            recipe.ports.0 += random.below(3) as u16;
        }
        let of_both = random.once_in(3);
        recipe.kind = if of_both { Kind::Udp } else { Kind::Tcp };
        recipe.len = random.pick(&[100, 100, 60, 1_400]);
        recipe.ttl = random.pick(&[64, 64, 2, 1]);
        recipe.df = random.once_in(2);
        if random.once_in(8) {
            recipe.ports.1 = 25;
        }
        flows.push(Flow::new(random, port, recipe));
    }
    flows
}

/// Damages a frame, mostly so that nobody can tell by a checksum.
fn damage(random: &mut Random, mut buf: TestBuf) -> TestBuf {
    let len = buf.data().len();
    for _ in 0..1 + random.below(2) {
        let at = random.below(len.min(100));
        buf.data_mut()[at] ^= 1 << random.below(8);
    }
    if random.once_in(4) {
        buf.truncate(random.below(len) + 1);
    }
    for l3 in [14, 18, 22, 30] {
        let at = l3..l3 + 20;
        if let Some(header) = buf.data_mut().get_mut(at)
            && header[0] == 0x45
        {
            header[10..12].fill(0);
            let check = bng_wire::checksum::checksum(header);
            header[10..12].copy_from_slice(&check.to_be_bytes());
        }
    }
    buf.with_l4_verdict(random.pick(&[L4Verdict::Good, L4Verdict::Good, L4Verdict::Unknown]))
}

/// What control does while runs are held, to both worlds alike.
fn control(random: &mut Random, pair: &mut Pair, sessions: &mut [Session], open: &mut [bool]) {
    let n = random.below(sessions.len());
    let slot = World::slot(n as u32);
    let session = &mut sessions[n];
    if !open[n] {
        session.generation = pair.each(|world| world.publish(slot, *session)).generation;
        open[n] = true;
        return;
    }
    match random.below(6) {
        0 => {
            pair.each(|world| world.close(slot));
            open[n] = false;
            return;
        }
        1 => session.policy = random.pick(&[POLICED, ABSENT, World::POLICY, World::POLICY]),
        2 => session.mtu = random.pick(&[110, 1_492, 1_492]),
        _ => {
            let port = Spec::default().access_ports + random.below(2) as u8;
            let mac = World::NEXT_HOP.0;
            let next = random.pick(&[
                Adjacency::Neighbour { port, mac },
                Adjacency::Neighbour { port, mac },
                Adjacency::Unresolved { port },
            ]);
            let id = World::DEFAULT_HOP;
            let address = Ipv4Addr::new(192, 0, 2, id.0 as u8).into();
            pair.each(|world| world.publisher.set_next_hop(id, address, next).unwrap());
            return;
        }
    }
    pair.each(|world| world.update(slot, *session));
}

/// What was seen over all scenarios, so that a test does not pass because nothing happened.
#[derive(Debug, Default)]
struct Seen {
    counted: BTreeMap<Counter, u64>,
    fragments: u64,
    handed_over: u64,
}

fn scenario(seed: u64, seen: &mut Seen, wild: bool) {
    let mut random = Random::new(seed);
    let settings = Traffic::settings(&mut random);
    let (_, mut sessions, outside) = world();
    let mut open = vec![true; sessions.len()];
    let flows = flows(&mut random, &sessions, &outside);
    let slots = (0..SESSIONS).map(World::slot).collect();
    let mut pair = Pair::new(settings, slots, || world().0);
    let mut traffic = Traffic::of(random, flows, pair.now_ns());
    for _ in 0..3 {
        for _ in 0..6 {
            match traffic.step(60) {
                Step::Burst(burst) => {
                    let random = &mut traffic.random;
                    let bufs = burst.frames.into_iter().map(|(buf, _)| {
                        if wild && random.once_in(6) {
                            damage(random, buf)
                        } else {
                            buf
                        }
                    });
                    let bufs = bufs.collect();
                    pair.burst(burst.direction, burst.now_ns, bufs);
                }
                Step::Flush(_) => pair.idle(),
            }
            if wild && traffic.random.once_in(2) {
                control(&mut traffic.random, &mut pair, &mut sessions, &mut open);
            }
        }
        for out in &pair.outs {
            let fragment = matches!(out.verdict, Verdict::Fragment { .. });
            seen.fragments += u64::from(fragment);
        }
        pair.assert_same();
    }
    for counter in Counter::ALL {
        *seen.counted.entry(*counter).or_default() += pair.count(*counter);
    }
    seen.handed_over += pair.handed_over;
}

fn assert_seen(seen: &Seen) {
    let wanted = [
        Counter::CoalesceSupers,
        Counter::EndVerdict,
        Counter::ForwardedUpstream,
        Counter::ForwardedDownstream,
        Counter::NatMappingCreated,
        Counter::PolicerUpstream,
        Counter::PolicerDownstream,
        Counter::FilterUpstream,
        Counter::FilterDownstream,
        Counter::NoPolicy,
        Counter::SourceSpoofed,
        Counter::TtlExpired,
        Counter::IcmpErrorSent,
        Counter::PuntRateLimited,
        Counter::NoRoute,
        Counter::PppoeLengthLong,
        Counter::FrameSegmented,
    ];
    for counter in wanted {
        assert!(seen.counted[&counter] > 0, "{counter:?} never: {seen:?}");
    }
    assert!(seen.fragments > 0, "nothing to be sent in fragments");
    assert!(seen.handed_over > 0, "nothing handed over");
    assert!(seen.counted[&Counter::CoalesceMerged] > 1_000, "{seen:?}");
}

#[test]
fn a_mix_of_sessions_is_the_same_with_coalescing_and_without() {
    let mut seen = Seen::default();
    for seed in 0..150 {
        scenario(seed, &mut seen, false);
    }
    assert_seen(&seen);
}

/// P0, whatever arrives, and whatever control does while runs are held.
#[test]
fn damage_and_changes_are_the_same_with_coalescing_and_without() {
    let mut seen = Seen::default();
    for seed in 2_000_000..2_000_150 {
        scenario(seed, &mut seen, true);
    }
    assert!(seen.counted[&Counter::CoalesceMerged] > 1_000, "{seen:?}");
    assert!(seen.counted[&Counter::EndVerdict] > 0, "{seen:?}");
}

/// `cargo nextest run --release -p bng-fastpath --run-ignored only long_mix`.
#[test]
#[ignore = "minutes; for a nightly run, in release"]
fn a_long_mix_of_sessions_is_the_same_with_coalescing_and_without() {
    let mut seen = Seen::default();
    for seed in 1_000_000..1_010_000 {
        scenario(seed, &mut seen, false);
    }
    assert_seen(&seen);
    println!("{seen:?}");
}

/// A burst of UDP frames to the limit of a policer, each of a port of the far side and a length.
fn assert_burst_is_same(way: &Flow, frames: &[(u16, usize)]) {
    let slots = (0..SESSIONS).map(World::slot).collect();
    let mut pair = Pair::new(drive::settings(0), slots, || world().0);
    let bufs = frames.iter().zip(0..).map(|((far, len), mark)| {
        let mut recipe = way.next.clone();
        let is_up = recipe.session.is_some();
        let port = if is_up {
            &mut recipe.ports.1
        } else {
            &mut recipe.ports.0
        };
        *port = *far;
        recipe.len = *len;
        TestBuf::new(way.port, &recipe.build()).marked(mark)
    });
    let bufs = bufs.collect();
    pair.burst(way.direction, pair.now_ns(), bufs);
    pair.assert_same();
    let dropped = [Counter::PolicerUpstream, Counter::PolicerDownstream];
    let dropped: u64 = dropped.iter().map(|counter| pair.count(*counter)).sum();
    assert!(dropped > 0, "not at the limit: {frames:?}");
}

/// The usual frames of a burst meet the policer before the others. Which those are must not depend on the hints: not for a
/// frame that is like a longer one and too short for the shortcut, and not for one that is like a frame beyond the MTU.
#[test]
fn frames_like_others_meet_the_policer_as_if_they_were_not() {
    let (_, sessions, outside) = world();
    let random = &mut Random::new(0);
    let up = Recipe {
        kind: Kind::Udp,
        ttl: 64,
        ..upstream(2, &sessions[2], World::HOST.into())
    };
    let up = Flow::new(random, 0, up);
    let core = Spec::default().access_ports;
    let down = Recipe {
        smac: World::NEXT_HOP,
        dmac: World::port_mac(core),
        addresses: (World::HOST.into(), outside[3].0.into()),
        ports: (443, outside[3].1),
        ttl: 64,
        ..Recipe::new(Kind::Udp, false, None)
    };
    let down = Flow::new(random, core, down);
    for last in (1..=400).step_by(9) {
        let frames = [1_200, 1, 1_200, 1_200, last, 300];
        let far = [443, 443, 444, 444, 445, 446];
        let frames: Vec<_> = far.into_iter().zip(frames).collect();
        assert_burst_is_same(&up, &frames);
        let frames = [1_600, 1_400, 1_400, 1_000 + last, 1_000];
        let far = [443, 443, 444, 445, 446];
        let frames: Vec<_> = far.into_iter().zip(frames).collect();
        assert_burst_is_same(&down, &frames);
    }
}
