//! The real process: what keeps its order, with several workers and between control and traffic.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code
)]

mod running;

use bng_fastpath::testing::{pppoe_session, udp};
use bng_shm::{
    BlockOwner, Counter, FrameMeta, PoolRange, PuntClass, RangeKind, Record, Session, SessionState,
    Vlans,
};
use bng_wire::VlanStack;
use bng_wire::pppoe::protocol;
use running::frames::{from_core, from_subscriber, hop};
use running::{ACCESS, Gateway, HOST, Subscriber, with_workers};
use rustix::process::{Signal, kill_process};
use std::collections::BTreeMap;

/// HZ-05 C(b): frames of one session, spread over the queues of three workers, leave in the order they came.
#[test]
fn one_sessions_flows_over_all_queues_keep_their_order() {
    const FLOWS: u16 = 24;
    const ROUNDS: u16 = 200;
    let mut g = Gateway::start_with("three", |yaml| with_workers(&yaml, 3));
    let s = Subscriber::new(7, 2, Vlans::default());
    g.open(&s);
    let mut last: BTreeMap<u16, u16> = BTreeMap::new();
    let mut received = 0;
    let mut take = |g: &Gateway, limit| {
        while let Some(frame) = g.core.receive_within(limit) {
            let body = &frame[frame.len() - 4..];
            let [flow, round] = [0, 2].map(|at| u16::from_be_bytes([body[at], body[at + 1]]));
            let before = last.insert(flow, round);
            assert!(
                before.is_none_or(|before| before < round),
                "flow {flow}: {before:?}, {round}"
            );
            received += 1;
        }
        received
    };
    for round in 0..ROUNDS {
        for flow in 0..FLOWS {
            let body = [flow.to_be_bytes(), round.to_be_bytes()].concat();
            let packet = udp((s.session.framed_ip, 5_000 + flow), (HOST, 53), &body);
            g.access
                .send(&from_subscriber(&g, &s, protocol::IPV4, &packet));
        }
        // Frames stay on their way, but never more than rings hold.
        let sent = u32::from(round + 1) * u32::from(FLOWS);
        while take(&g, std::time::Duration::ZERO) + 256 < sent {}
    }
    let all = u32::from(FLOWS) * u32::from(ROUNDS);
    g.expect(Counter::ForwardedUpstream, u64::from(all));
    assert_eq!(take(&g, std::time::Duration::from_millis(100)), all);
    assert_eq!(last.len(), usize::from(FLOWS));
    let handed = g.count(Counter::HandedOver);
    println!("{handed} of {all} frames came to another worker than their owner");
    assert!(handed > 0);
    for worker in 0..3 {
        let status = g.control.worker_status(worker).unwrap();
        let counter = |counter: Counter| status.counters[counter.index()];
        assert!(counter(Counter::RxAccess) > 0, "worker {worker} received");
        assert!(status.tsc_hz > 0);
        assert!(counter(Counter::BusyCycles) > 0 && counter(Counter::IdleCycles) > 0);
    }
    let stats = g.control.session_stats(s.slot).unwrap();
    assert_eq!(stats.up_packets, u64::from(all));
    g.assert_conservation();
    assert_eq!(g.terminate().code(), Some(0));
}

/// HZ-05 R4 (INV-INJECT-1): data that waits at the core port when IPCP opens comes after the IPCP Ack, not before it.
#[test]
fn an_injected_frame_leaves_before_the_data_it_allows() {
    let mut g = Gateway::start_with("ack", |yaml| {
        let pool =
            "{ name: routed, ranges: [198.18.0.0/24], gateway: 198.18.0.1, dns: [192.0.2.53] }";
        yaml.replace("pools:\n", &format!("pools:\n  - {pool}\n"))
    });
    let range = PoolRange {
        kind: RangeKind::Routed,
        first: [198, 18, 0, 0].into(),
        last: [198, 18, 0, 255].into(),
        base: 0,
        block_size: 0,
        first_port: 0,
        rules: bng_shm::NatRules::default(),
    };
    let nat = PoolRange {
        kind: RangeKind::Nat,
        first: [203, 0, 113, 0].into(),
        last: [203, 0, 113, 15].into(),
        base: 0,
        block_size: 512,
        first_port: 1_024,
        rules: bng_shm::NatRules::default(),
    };
    g.control.publish_pools(&[range, nat]).unwrap();
    let mut packets = 0;
    for life in 0..40u16 {
        let mut s = Subscriber::new(1 + life, (life % 2) as u8, Vlans::default());
        s.session = Session {
            state: SessionState::Negotiating,
            framed_ip: [198, 18, 0, life as u8].into(),
            ..s.session
        };
        let generation = g.open(&s);
        let owner = BlockOwner {
            slot: s.slot,
            generation,
        };
        g.control
            .set_framed_owner(s.session.framed_ip, Some(owner))
            .unwrap();
        let packet = udp((HOST, 53), (s.session.framed_ip, 5_000), &[7; 30]);
        let ack = pppoe_session(
            s.mac(),
            g.access_mac,
            &VlanStack::UNTAGGED,
            s.slot.session_id(),
            protocol::IPCP,
            &[2; 64],
        );
        // The worker finds both when it goes on, in the order of its loop: the core's packets first.
        kill_process(g.pid(), Signal::STOP).unwrap();
        let meta = FrameMeta {
            port: ACCESS,
            class: PuntClass::Ppp,
            session: Some((s.slot, generation)),
        };
        assert_eq!(g.control.inject(s.session.owner, &meta, &ack), Ok(true));
        let open = Session {
            state: SessionState::Forwarding,
            ..s.session
        };
        g.control
            .update_session(s.slot, &open, &Record::default())
            .unwrap();
        for _ in 0..4 {
            g.core.send(&from_core(&g, &packet));
        }
        kill_process(g.pid(), Signal::CONT).unwrap();
        assert_eq!(g.access.receive(), ack, "life {life}");
        let data = hop(packet.clone());
        for _ in 0..4 {
            let frame = g.access.receive();
            assert_eq!(frame[22..], data[..], "life {life}");
            packets += 1;
        }
    }
    g.expect(Counter::ForwardedDownstream, packets);
    g.expect(Counter::Injected, 40);
    g.assert_conservation();
}
