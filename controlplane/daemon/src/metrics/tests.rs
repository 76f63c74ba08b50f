//! Every counter has a metric, with its value.

use super::*;
use crate::status::{DropView, RoutesView};

#[test]
fn counters_beyond_32_bits_are_whole_and_bytes_are_apart_from_packets() {
    let mut worker = WorkerView {
        worker: "0".to_owned(),
        present: true,
        ..WorkerView::default()
    };
    worker.counters.insert("rx_access", 5_000_000_000);
    worker.counters.insert("rx_access_bytes", 7_000_000_000_000);
    worker.counters.insert("idle_loops", 3);
    let status = Status {
        sessions: [1, 2, 0],
        workers: vec![worker],
        drops: vec![DropView {
            reason: "no_route",
            source: "dataplane",
            total: 9,
            workers: vec![4],
            host: 5,
            ..DropView::default()
        }],
        routes: RoutesView::default(),
        ..Status::default()
    };
    let text = text(&status, &Coalescing::default(), ReloadCounts::default()).unwrap();
    for line in [
        r#"bng_sessions{state="forwarding"} 2"#,
        r#"bng_packets_total{counter="rx_access",worker="0"} 5000000000"#,
        r#"bng_bytes_total{counter="rx_access",worker="0"} 7000000000000"#,
        r#"bng_work_total{counter="idle_loops",worker="0"} 3"#,
        r#"bng_drops_total{reason="no_route",worker="0"} 4"#,
        r#"bng_drops_total{reason="no_route",worker="host"} 5"#,
        "bng_dataplane_up 0",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

/// A counter that no metric shows would be counted for nobody.
#[test]
fn every_counter_has_its_value_in_exactly_one_sample() {
    // Far apart, so that neither sums nor cumulative buckets give one of the others.
    let value = |counter: &Counter| 1u64 << 40 | (counter.index() as u64 + 1) << 20;
    let worker = WorkerView {
        worker: "0".to_owned(),
        counters: (Counter::ALL.iter())
            .filter(|counter| !counter.is_drop())
            .map(|counter| (counter.label(), value(counter)))
            .collect(),
        ..WorkerView::default()
    };
    let drops = Counter::ALL.iter().filter(|counter| counter.is_drop());
    let drops = drops.map(|counter| DropView {
        reason: counter.label(),
        source: "dataplane",
        workers: vec![value(counter)],
        ..DropView::default()
    });
    let status = Status {
        workers: vec![worker],
        drops: drops.collect(),
        ..Status::default()
    };
    let text = text(&status, &Coalescing::default(), ReloadCounts::default()).unwrap();
    let samples: Vec<_> = (text.lines())
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .collect();
    let mut below = 0;
    for counter in Counter::ALL {
        let mut wanted = value(counter);
        let is_size = crate::coalescing::SIZES
            .iter()
            .any(|(size, _)| size == counter);
        if is_size {
            wanted += below;
            below = wanted;
        }
        let wanted = wanted.to_string();
        let found = samples.iter().filter(|(_, value)| *value == wanted).count();
        // The last bucket and the number of super-packets are the same.
        let meant = match counter {
            Counter::CoalesceSegmentsMore => 2,
            // Its sum is the number of merged frames.
            Counter::CoalesceMerged => 2,
            // The sum of its sizes.
            Counter::CoalesceSupers => 0,
            _ => 1,
        };
        assert_eq!(found, meant, "{counter:?} = {wanted}\n{text}");
    }
}

#[test]
fn super_packets_are_a_histogram_whose_sum_is_their_frames() {
    let counters = [
        (Counter::CoalesceFrames, 60),
        (Counter::CoalesceMerged, 50),
        (Counter::CoalesceSingle, 10),
        (Counter::CoalesceSupers, 4),
        (Counter::CoalesceSegments2, 1),
        (Counter::CoalesceSegments16, 3),
        (Counter::SuperSent, 2),
        (Counter::PassPush, 5),
        (Counter::EndBurst, 14),
    ];
    let of = |name: &str| WorkerView {
        worker: name.to_owned(),
        counters: (counters.iter())
            .map(|(counter, value)| (counter.label(), *value))
            .collect(),
        ..WorkerView::default()
    };
    let status = Status {
        workers: vec![of("0"), of("host")],
        ..Status::default()
    };
    let configured = Coalescing {
        upstream: bng_config::Coalesced {
            tcp: true,
            udp: false,
        },
        hold_us: 50,
        verify_checksums: false,
        ..Coalescing::default()
    };
    let text = text(&status, &configured, ReloadCounts::default()).unwrap();
    for line in [
        r#"bng_coalesce_info{downstream="none",families="ipv4,ipv6",hold_us="50",max_frames="64",upstream="tcp",verify_checksums="false"} 1"#,
        r#"bng_coalesce_candidates_total{worker="0"} 60"#,
        r#"bng_coalesce_frames_total{result="merged",worker="0"} 50"#,
        r#"bng_coalesce_frames_total{result="single",worker="0"} 10"#,
        r#"bng_coalesce_super_packet_frames_bucket{worker="0",le="2"} 1"#,
        r#"bng_coalesce_super_packet_frames_bucket{worker="0",le="8"} 1"#,
        r#"bng_coalesce_super_packet_frames_bucket{worker="0",le="16"} 4"#,
        r#"bng_coalesce_super_packet_frames_bucket{worker="0",le="+Inf"} 4"#,
        r#"bng_coalesce_super_packet_frames_sum{worker="0"} 50"#,
        r#"bng_coalesce_super_packet_frames_count{worker="0"} 4"#,
        r#"bng_super_packets_total{counter="super_sent",worker="0"} 2"#,
        r#"bng_super_packets_total{counter="super_sent",worker="host"} 2"#,
        r#"bng_coalesce_passed_total{reason="pass_push",worker="0"} 5"#,
        r#"bng_coalesce_ended_total{reason="end_burst",worker="0"} 14"#,
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
    // The host path has no run table.
    assert!(!text.contains(r#"bng_coalesce_candidates_total{worker="host"}"#));
}
