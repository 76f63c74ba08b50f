//! Ports on kernel interfaces: a veth pair in a network namespace that exists only for this process.

// The helpers below are test code too, which Clippy does not see.
#![allow(clippy::unwrap_used)]

mod support;

use rte_rs::{
    Burst, Error, Mempool, Port, PortConfig, PppoeMatch, PppoeRule, Queues, RssTypes, RxChecksum,
    RxOffloads, TxOffloads,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Local experimental ethertype (IEEE 802), which the kernel never sends.
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];

/// Moves the calling thread into a network namespace of its own with a veth pair `left` and `right`, both up.
fn veth_pair(left: &str, right: &str, mtu: u16) {
    // SAFETY: no file descriptors or memory are unshared, the namespace of this thread only.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
    support::command(&format!(
        "ip link add {left} mtu {mtu} type veth peer name {right} mtu {mtu}"
    ));
    for interface in [left, right] {
        support::command(&format!("ip link set {interface} addrgenmode none up"));
    }
}

fn start(device: &str, queues: u16, pool: &Mempool) -> (Port, Queues) {
    let mut port = Port::probe(&support::eal(), device).unwrap();
    let config = PortConfig {
        rx_queues: queues,
        tx_queues: queues,
        promiscuous: true,
        rss_types: RssTypes::PPPOE,
        ..PortConfig::default()
    };
    let applied = port.configure(&config, pool).unwrap();
    assert_eq!(applied.rss_types, RssTypes::NONE, "the driver cannot hash");
    let queues = port.start().unwrap();
    (port, queues)
}

/// A frame of `len` bytes between two arbitrary stations, with `tags` before its ethertype and contents that depend on `seed`.
fn frame(len: usize, seed: u8, tags: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, seed];
    frame.extend_from_slice(tags);
    frame.extend_from_slice(&EXPERIMENTAL);
    let header = frame.len();
    frame.extend((header..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)));
    frame
}

fn experimental(frame: &[u8]) -> bool {
    frame.get(12..).is_some_and(|rest| {
        rest.chunks(4)
            .take(3)
            .any(|word| word.starts_with(&EXPERIMENTAL))
    })
}

fn sorted(mut frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.sort();
    frames
}

#[test]
fn frames_arrive_intact_both_ways_over_two_queue_pairs() {
    veth_pair("left", "right", 1500);
    let pool = support::pool("veth", 2047);
    let (left_port, mut left) = start("net_af_packet_left,iface=left,qpairs=2", 2, &pool);
    let (right_port, mut right) = start("net_af_packet_right,iface=right,qpairs=2", 2, &pool);
    assert_eq!(left_port.info().unwrap().driver, "net_af_packet");
    assert!(left_port.info().unwrap().kernel_if_index.is_some());
    assert_ne!(left_port.mac().unwrap(), right_port.mac().unwrap());
    assert!(left_port.link().unwrap().up);
    assert!(left_port.is_promiscuous());

    let frames: Vec<Vec<u8>> = (0..64u8)
        .map(|n| frame([60, 61, 777, 1514][usize::from(n % 4)], n, &[]))
        .collect();
    let cross = |sender: &mut Queues, receiver: &mut Queues| {
        let (first, second) = frames.split_at(32);
        support::send(&mut sender.tx[0], &pool, first);
        support::send(&mut sender.tx[1], &pool, second);
        let received = support::receive(&mut receiver.rx, frames.len(), experimental);
        assert_eq!(sorted(received), sorted(frames.clone()));
    };
    cross(&mut left, &mut right);
    cross(&mut right, &mut left);
    assert_eq!(pool.in_use(), 0);

    let stats = left_port.stats().unwrap();
    assert_eq!((stats.tx_packets, stats.tx_errors), (64, 0));
    assert!(stats.rx_packets >= 64);
    let xstats = left_port.xstats().unwrap();
    let value = |name: &str| {
        xstats
            .iter()
            .find(|xstat| xstat.name == name)
            .map(|xstat| xstat.value)
    };
    assert_eq!(value("tx_good_packets"), Some(64));
    assert_eq!(value("tx_q0_packets"), Some(32));
    assert_eq!(value("tx_q1_packets"), Some(32));

    let error = right_port_asked_for_too_many_queues(&pool);
    assert_eq!(
        error.to_string(),
        "port net_af_packet_third (net_af_packet) was asked for 2 receive queues and offers 1 to 1"
    );
    drop((left, right));
    left_port.close().unwrap();
    right_port.close().unwrap();
}

fn right_port_asked_for_too_many_queues(pool: &Mempool) -> Error {
    let mut port = Port::probe(&support::eal(), "net_af_packet_third,iface=right").unwrap();
    let config = PortConfig {
        rx_queues: 2,
        ..PortConfig::default()
    };
    port.configure(&config, pool).unwrap_err()
}
#[test]
fn vlan_tags_stay_in_the_frame() {
    // 1,500 bytes behind two tags; the kernel grants 4 bytes above the MTU only to an outer 0x8100.
    veth_pair("tag-left", "tag-right", 1508);
    let pool = support::pool("tags", 2047);
    let (_left_port, mut left) = start("net_af_packet_tag0,iface=tag-left", 1, &pool);
    let (_right_port, mut right) = start("net_af_packet_tag1,iface=tag-right", 1, &pool);
    let s_vlan = [0x20, 0x64];
    let c_vlan = [0x81, 0x00, 0x00, 0x07];
    let single = [[0x81, 0x00], s_vlan].concat();
    let double = [&single[..], &c_vlan].concat();
    let provider = [&[0x88, 0xa8], &s_vlan[..], &c_vlan].concat();
    for (tags, len) in [(single, 1518), (double, 1522), (provider.clone(), 1522)] {
        let sent = frame(len, 1, &tags);
        support::send(&mut left.tx[0], &pool, std::slice::from_ref(&sent));
        let mut received = support::receive(&mut right.rx, 1, experimental);
        if tags == provider {
            // The driver puts the tag back that the kernel took out, always with 0x8100.
            assert_eq!(received[0][12..14], [0x81, 0x00]);
            received[0][12..14].copy_from_slice(&[0x88, 0xa8]);
        }
        assert_eq!(received, [sent]);
    }
}

/// An untagged IPv4 frame with header checksum `check`.
fn ipv4(check: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
    // 192.0.2.1 to 192.0.2.2, protocol 253 (RFC 3692).
    frame.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 253]);
    frame.extend(check.to_be_bytes());
    frame.extend([192, 0, 2, 1, 192, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
    frame.resize(60, 0);
    frame
}

#[test]
fn a_port_that_verifies_ipv4_checksums_says_which_are_wrong() {
    // SAFETY: no file descriptors or memory are unshared, the namespace of this thread only.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
    let pool = support::pool("verified", 2047);
    let mut port = Port::probe(&support::eal(), "net_tap_verify,iface=verify").unwrap();
    let config = PortConfig {
        rx_offloads: RxOffloads::IPV4_CKSUM,
        tx_offloads: TxOffloads::MBUF_FAST_FREE,
        ..PortConfig::default()
    };
    let applied = port.configure(&config, &pool).unwrap();
    assert!(applied.rx_offloads.contains(RxOffloads::IPV4_CKSUM));
    let mut verified = port.start().unwrap();
    support::command("ip link set verify addrgenmode none up");
    let (_sender, mut sender) = start("net_af_packet_verify,iface=verify", 1, &pool);
    let right = 0xf5e1;
    support::send(&mut sender.tx[0], &pool, &[ipv4(right), ipv4(right ^ 1)]);
    let mut found = Vec::new();
    let mut burst = Burst::<32>::new();
    support::until("both frames", || {
        verified.rx[0].burst(&mut burst);
        let ours = burst.iter().filter(|mbuf| mbuf.data()[12..14] == [8, 0]);
        found.extend(ours.map(rte_rs::Mbuf::rx_ip_checksum));
        burst.clear();
        found.len() >= 2
    });
    assert_eq!(found, [RxChecksum::Good, RxChecksum::Bad]);
}

#[test]
fn a_driver_that_takes_no_rules_on_pppoe_says_so() {
    veth_pair("rule-left", "rule-right", 1500);
    let pool = support::pool("rules", 2047);
    let (port, _queues) = start("net_af_packet_rules,iface=rule-left", 1, &pool);
    for by in [PppoeMatch::Pppoes, PppoeMatch::Raw] {
        for tags in 0..=2 {
            let rule = PppoeRule {
                by,
                tags,
                mask: 1,
                session: 0,
                queue: 0,
            };
            let error = port.add_rule(&rule).unwrap_err();
            assert!(matches!(error, Error::FlowRule { .. }), "{error}");
            println!("{error}");
        }
    }
    port.flush_rules();
}
