//! HZ-12 and HZ-14: buffers in several parts, frames cut anywhere, odd addresses, what is switched off.

use bng_fastpath::coalesce::{Coalescer, Protocols, Settings};
use bng_fastpath::testing::{Kind, Recipe, Spec, TestBuf, World};
use bng_fastpath::{Direction, Origin, PacketBuf, Verdict};
use bng_shm::Counter;

use crate::case::{Encap, File, Instance};
use crate::classify;
use crate::drive::{self, Burst, FORWARD, Out};
use crate::order::{self, Places};

/// Every shape of header: session or not, family, protocol, tags.
pub(crate) fn shapes() -> Vec<Recipe> {
    let mut shapes = Vec::new();
    for session in [None, Some(7)] {
        for is_ipv6 in [false, true] {
            for kind in [Kind::Tcp, Kind::Udp] {
                for vlans in [vec![], vec![100], vec![100, 7]] {
                    let mut recipe = Recipe::new(kind.clone(), is_ipv6, session);
                    recipe.vlans = vlans;
                    recipe.len = 30;
                    recipe.options = vec![1; 12];
                    shapes.push(recipe);
                }
            }
        }
    }
    let mut extended = Recipe::new(Kind::Tcp, true, Some(7));
    extended.dstopt = Some([0; 6]);
    shapes.push(extended);
    shapes
}

pub(crate) fn direction(recipe: &Recipe) -> Direction {
    match recipe.session {
        Some(_) => Direction::Upstream,
        None => Direction::Downstream,
    }
}

/// The frame and its successor in the flow.
pub(crate) fn pair(recipe: &Recipe) -> [Vec<u8>; 2] {
    let next = Recipe {
        seq: recipe.seq + recipe.len as u32,
        ..recipe.clone()
    };
    [recipe.build(), next.build()]
}

/// What comes of one burst; every frame once and as it was.
fn run(direction: Direction, frames: &[TestBuf]) -> Vec<Vec<u32>> {
    let burst = Burst {
        now_ns: 1,
        direction,
        frames: frames.iter().map(|buf| (buf.clone(), FORWARD)).collect(),
    };
    let outs = drive::bursts(&drive::settings(0), &[burst]);
    let mut came: Vec<&TestBuf> = outs.iter().flat_map(|out| &out.frames).collect();
    came.sort_by_key(|buf| buf.mark());
    assert!(came.into_iter().eq(frames), "every frame once, as it was");
    outs.iter().map(Out::marks).collect()
}

#[test]
fn a_frame_cut_at_any_byte_is_left_alone_and_does_not_pass_its_flow() {
    for recipe in shapes() {
        let direction = direction(&recipe);
        let [first, second] = pair(&recipe);
        for cut in 0..second.len() {
            let bufs = [&first[..], &second[..cut], &second[..]];
            let bufs = bufs.into_iter().zip(1..);
            let bufs: Vec<_> = bufs
                .map(|(frame, mark)| TestBuf::new(1, frame).marked(mark))
                .collect();
            let got = run(direction, &bufs);
            assert!(got.contains(&vec![2]), "{recipe:?} cut at {cut}: {got:?}");
            // Whatever the frame is taken for, what is related leaves in order.
            let settings = drive::settings(0);
            let frames = bufs.iter().map(|buf| (direction, buf));
            let places: Places = classify::places(&settings, frames);
            let mut arrived = got.clone();
            arrived.sort();
            let got: Vec<_> = got.iter().map(Vec::as_slice).collect();
            let arrived: Vec<_> = arrived.iter().map(Vec::as_slice).collect();
            let difference = order::difference(&places, &got, &arrived);
            assert_eq!(difference, None, "{recipe:?} cut at {cut}");
        }
    }
}

#[test]
fn a_buffer_in_parts_is_left_alone_wherever_it_is_split() {
    for recipe in shapes() {
        let [first, second] = pair(&recipe);
        let whole = |mark, frame: &[u8]| TestBuf::new(1, frame).marked(mark);
        for cut in 0..=second.len() {
            let bufs = [
                whole(1, &first),
                whole(2, &second[..cut]).segmented(),
                whole(3, &second),
            ];
            let mut got = run(direction(&recipe), &bufs);
            got.sort();
            assert_eq!(got, [vec![1, 3], vec![2]], "{recipe:?} split at {cut}");
        }
    }
}

#[test]
fn no_stage_takes_a_buffer_in_parts() {
    let mut world = World::with_sessions(Spec::default(), 1);
    let session = world.session(0);
    let of_session = |session_id| Recipe {
        smac: World::client_mac(0),
        dmac: World::port_mac(0),
        vlans: vec![100, 1],
        ..Recipe::new(Kind::Udp, false, Some(session_id))
    };
    let up = Recipe {
        addresses: (session.framed_ip.into(), World::HOST.into()),
        ..of_session(World::slot(0).session_id())
    };
    let up6 = Recipe {
        addresses: (World::address6(0).into(), World::HOST6.into()),
        ..up.clone()
    };
    let down6 = Recipe {
        dmac: World::port_mac(world.core_port()),
        addresses: (World::HOST6.into(), World::address6(0).into()),
        ..Recipe::new(Kind::Udp, true, None)
    };
    let segmented = Verdict::Drop(Counter::FrameSegmented);
    for (recipe, port) in [(&up, 0), (&up6, 0), (&down6, world.core_port())] {
        let whole = TestBuf::new(port, &recipe.build());
        let bufs = vec![whole.clone(), whole.segmented()];
        let out = match recipe.session {
            Some(_) => world.upstream(0, bufs, Origin::Port),
            None => world.downstream(0, bufs, Origin::Port),
        };
        assert!(matches!(out[0].0, Verdict::Forward { .. }), "{:?}", out[0]);
        assert_eq!(out[1].0, segmented);
    }
}

#[test]
fn where_a_frame_starts_in_memory_makes_no_difference() {
    for instance in File::read().instances() {
        let settings = drive::settings(instance.hold_ns);
        let mut bursts = instance.bursts();
        let expected = drive::bursts(&settings, &bursts);
        let expected: Vec<_> = expected.iter().map(Out::marks).collect();
        for burst in &mut bursts {
            for (frame, _) in &mut burst.frames {
                let odd = 125 + (frame.mark() as usize * 2) % 8;
                let moved = TestBuf::with_headroom(1, frame.data(), odd);
                *frame = moved.marked(frame.mark());
            }
        }
        let got = drive::bursts(&settings, &bursts);
        let got: Vec<_> = got.iter().map(Out::marks).collect();
        assert_eq!(got, expected, "{}", instance.name);
    }
}

const OFF: Protocols = Protocols {
    tcp: false,
    udp: false,
};

/// The table with something switched off: what is off comes out in order and alone, the rest is as ever.
fn without(settings: impl Fn(&mut Settings), is_off: impl Fn(&Instance) -> bool) {
    let mut off = 0;
    for instance in File::read().instances() {
        let mut these = drive::settings(instance.hold_ns);
        settings(&mut these);
        let got = drive::bursts(&these, &instance.bursts());
        let got: Vec<_> = got.iter().map(Out::marks).collect();
        if is_off(&instance) {
            off += 1;
            let alone: Vec<_> = (0..instance.inputs.len() as u32).map(|n| vec![n]).collect();
            assert_eq!(got, alone, "{}", instance.name);
        } else {
            assert_eq!(instance.difference(&got), None, "{}", instance.name);
        }
    }
    assert!((80..300).contains(&off), "{off} instances of what is off");
}

#[test]
fn without_ipv6_its_frames_pass() {
    without(|settings| settings.ipv6 = false, |one| one.family.is_ipv6());
}

#[test]
fn without_ipv4_its_frames_pass() {
    without(
        |settings| settings.ipv4 = false,
        |one| !one.family.is_ipv6(),
    );
}

#[test]
fn without_udp_its_frames_pass() {
    let tcp = Protocols { tcp: true, ..OFF };
    without(
        |settings| (settings.upstream, settings.downstream) = (tcp, tcp),
        |one| one.family.kind() == Kind::Udp,
    );
}

#[test]
fn without_tcp_its_frames_pass() {
    let udp = Protocols { udp: true, ..OFF };
    without(
        |settings| (settings.upstream, settings.downstream) = (udp, udp),
        |one| one.family.kind() == Kind::Tcp,
    );
}

#[test]
fn without_a_direction_its_frames_pass() {
    without(
        |settings| settings.upstream = OFF,
        |one| one.encap == Encap::Pppoe,
    );
    without(
        |settings| settings.downstream = OFF,
        |one| one.encap == Encap::Plain,
    );
}

#[test]
fn a_port_that_is_off_is_left_alone() {
    let mut settings = drive::settings(0);
    settings.ports_off = vec![false, true];
    let burst = |port| {
        let frames = pair(&shapes()[0]);
        let frames = frames.iter().zip(1..);
        let bufs = frames.map(|(frame, mark)| TestBuf::new(port, frame).marked(mark));
        Burst {
            now_ns: 1,
            direction: Direction::Downstream,
            frames: bufs.map(|buf| (buf, FORWARD)).collect(),
        }
    };
    for (port, outputs) in [(0, 1), (1, 2), (2, 1)] {
        let got = drive::bursts(&settings, &[burst(port)]);
        assert_eq!(got.len(), outputs, "port {port}");
    }
}

#[test]
fn with_everything_off_there_is_no_coalescer() {
    let on = drive::settings(0);
    let families = Settings {
        ipv4: false,
        ipv6: false,
        ..on.clone()
    };
    let protocols = Settings {
        upstream: OFF,
        downstream: OFF,
        ..on.clone()
    };
    assert!(Coalescer::<TestBuf>::new(&families).is_none());
    assert!(Coalescer::<TestBuf>::new(&protocols).is_none());
    let upstream = Settings {
        downstream: OFF,
        ..on
    };
    let coalescer = Coalescer::<TestBuf>::new(&upstream).unwrap();
    assert!(coalescer.is_on(Direction::Upstream) && !coalescer.is_on(Direction::Downstream));
}
