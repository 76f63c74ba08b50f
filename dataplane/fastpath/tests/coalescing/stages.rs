//! The conformance cases through all stages, with coalescing and without.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use bng_fastpath::testing::{Kind, Recipe, Spec, TestBuf, World};
use bng_fastpath::{Direction, Origin, PacketBuf, Verdict};
use bng_shm::{Session, SlotIndex, Vlans};

use crate::case::{Encap, File, Instance, Way};
use crate::drive::{self, Out};
use crate::on_off::Pair;

/// Whether the addresses of a case's sessions are translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Addresses {
    Nat,
    Routed,
}

/// A session as a frame of a case has it.
fn session(world: &World, n: u32, addresses: Addresses) -> Session {
    let mut session = world.session(n);
    if addresses == Addresses::Routed {
        session.nat = None;
        session.framed_ip = Ipv4Addr::new(198, 51, 100, 7 + n as u8);
    }
    session
}

/// The worlds of an instance, and its frames with addresses that these forward.
fn set(instance: &Instance, addresses: Addresses) -> (Pair, Vec<TestBuf>) {
    match instance.encap {
        Encap::Pppoe => upstream(instance, addresses),
        Encap::Plain => downstream(instance, addresses),
    }
}

fn upstream(instance: &Instance, addresses: Addresses) -> (Pair, Vec<TestBuf>) {
    let usual = Recipe::new(Kind::Tcp, false, None).dmac;
    // The first frame of each session id says what the session is like.
    let mut sessions: BTreeMap<u16, (u32, &Recipe)> = BTreeMap::new();
    for input in &instance.inputs {
        let n = sessions.len() as u32;
        let id = input.recipe.session.unwrap();
        sessions.entry(id).or_insert((n, &input.recipe));
    }
    let slot = |id: u16| SlotIndex::new(0, id);
    let world = || {
        let mut world = World::new(Spec::default());
        for (id, (n, first)) in &sessions {
            let session = Session {
                client_mac: first.smac.0,
                vlans: Vlans {
                    s_vlan: first.vlans.first().copied(),
                    c_vlan: first.vlans.get(1).copied(),
                    outer_is_88a8: first.vlans.len() > 1,
                },
                ..session(&world, *n, addresses)
            };
            world.publish(slot(*id), session);
        }
        world
    };
    let slots = sessions.keys().map(|id| slot(*id)).collect();
    let pair = Pair::new(drive::settings(instance.hold_ns), slots, world);
    let made = world();
    let frames = instance.inputs.iter().zip(0..).map(|(input, mark)| {
        let mut recipe = input.recipe.clone();
        let (n, _) = sessions[&recipe.session.unwrap()];
        if recipe.dmac == usual {
            recipe.dmac = World::port_mac(0);
        }
        recipe.addresses = match recipe.addresses.0 {
            IpAddr::V4(_) => {
                let own = session(&made, n, addresses).framed_ip;
                (own.into(), World::HOST.into())
            }
            IpAddr::V6(_) => (World::address6(n).into(), World::HOST6.into()),
        };
        TestBuf::new(0, &recipe.build()).marked(mark)
    });
    let frames = frames.collect();
    (pair, frames)
}

fn downstream(instance: &Instance, addresses: Addresses) -> (Pair, Vec<TestBuf>) {
    let usual = Recipe::new(Kind::Tcp, false, None).dmac;
    let is_tcp = instance.family.kind() == Kind::Tcp;
    let slot = World::slot(0);
    // One port of the session is open to the host, where there is a translation.
    let open = || {
        let mut world = World::new(Spec::default());
        let session = session(&world, 0, addresses);
        let session = world.publish(slot, session);
        let own: Recipe = Recipe {
            smac: World::client_mac(0),
            dmac: World::port_mac(0),
            vlans: vec![100, 1],
            addresses: (session.framed_ip.into(), World::HOST.into()),
            ports: (8_000, 1_500),
            ..Recipe::new(instance.family.kind(), false, Some(slot.session_id()))
        };
        let flags = [Recipe::SYN, Recipe::ACK];
        let bufs = flags.map(|flags| {
            let recipe = Recipe {
                flags,
                ..own.clone()
            };
            TestBuf::new(0, &recipe.build())
        });
        let out = world.upstream(0, bufs[usize::from(!is_tcp)..].to_vec(), Origin::Port);
        let frame = out[0].1.data();
        let source: [u8; 4] = frame[26..30].try_into().unwrap();
        let port = u16::from_be_bytes([frame[34], frame[35]]);
        (world, Ipv4Addr::from(source), port)
    };
    let pair = Pair::new(drive::settings(instance.hold_ns), vec![slot], || open().0);
    let (world, outside, port) = open();
    let frames = instance.inputs.iter().zip(0..).map(|(input, mark)| {
        let mut recipe = input.recipe.clone();
        if recipe.dmac == usual {
            recipe.dmac = World::port_mac(world.core_port());
        }
        recipe.addresses = match recipe.addresses.0 {
            IpAddr::V4(_) => (World::HOST.into(), outside.into()),
            IpAddr::V6(_) => (World::HOST6.into(), World::address6(0).into()),
        };
        if addresses == Addresses::Nat {
            recipe.ports.1 = port;
        }
        TestBuf::new(world.core_port(), &recipe.build()).marked(mark)
    });
    let frames = frames.collect();
    (pair, frames)
}

/// Whether the stages decide about the frames as the case says.
fn is_as_said(instance: &Instance, outs: &[Out]) -> bool {
    outs.iter().all(|out| {
        let way = match out.verdict {
            Verdict::Forward { .. } => Way::Forward,
            Verdict::Drop(_) => Way::Drop,
            Verdict::Punt(_) => Way::Punt,
            _ => return false,
        };
        let inputs = out.frames.iter().map(|frame| frame.mark() as usize);
        inputs.into_iter().all(|at| instance.inputs[at].way == way)
    })
}

#[test]
fn every_case_is_the_same_with_coalescing_and_without() {
    let (mut instances, mut as_said) = (0, 0);
    for addresses in [Addresses::Nat, Addresses::Routed] {
        for instance in File::read().instances() {
            let (mut pair, frames) = set(&instance, addresses);
            let mut now_ns = pair.now_ns();
            let direction = match instance.encap {
                Encap::Pppoe => Direction::Upstream,
                Encap::Plain => Direction::Downstream,
            };
            let inputs: Vec<_> = instance.inputs.iter().zip(frames).collect();
            for burst in inputs.chunk_by(|_, (input, _)| input.gap_ns == 0) {
                now_ns += burst[0].0.gap_ns;
                let bufs = burst.iter().map(|(_, buf)| buf.clone()).collect();
                pair.burst(direction, now_ns, bufs);
            }
            pair.idle();
            // The outputs are those of the case wherever the stages do with the frames what it says.
            if is_as_said(&instance, &pair.outs) {
                let marks: Vec<_> = pair.outs.iter().map(Out::marks).collect();
                assert_eq!(instance.difference(&marks), None, "{}", instance.name);
                as_said += 1;
            }
            pair.assert_same();
            instances += 1;
        }
    }
    assert_eq!(instances, 2 * 387);
    println!("{as_said} of {instances} with the outputs of the case");
    assert!(as_said > 500, "{as_said}");
}
