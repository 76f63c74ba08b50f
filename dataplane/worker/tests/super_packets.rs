//! A run becomes one packet, whose payload stays where it is and which counts as its frames.
#![allow(missing_docs, clippy::unwrap_used)]

use bng_dataplane::frame::Frame;
use bng_dataplane::host::host_ring;
use bng_dataplane::super_packet::{Checksums, build, cut};
use bng_fastpath::PacketBuf;
use bng_fastpath::coalesce::{Ids, Run};
use bng_fastpath::segment::{Cwr, How, Segmenter};
use bng_fastpath::testing::L4Frame;
use rte_rs::{
    Burst, Eal, EalArgs, Mbuf, Memory, Mempool, MempoolConfig, RingConfig, TxLengths, ol_flags,
    sp_sc_ring,
};
use std::sync::OnceLock;

const SEGMENT: usize = 1_400;

fn eal() -> Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    let init = || {
        let arguments = EalArgs::new(&format!("super{}", std::process::id()))
            .memory(Memory::NoHugepages { mib: 64 })
            .pci(false)
            .telemetry(false)
            .restore_affinity(true);
        Eal::init(&arguments).unwrap()
    };
    EAL.get_or_init(init).clone()
}

fn pool(name: &str) -> Mempool {
    Mempool::create(&eal(), &MempoolConfig::new(name, 255)).unwrap()
}

/// A run whose packet carries so many bytes.
fn run(ipv6: bool, tcp: bool, len: usize) -> (Run, Vec<Vec<u8>>) {
    let payload: Vec<u8> = (0..len).map(|at| (at / 5) as u8).collect();
    let mut packet = L4Frame::new(None, ipv6, tcp, &payload);
    packet.flags = 0x18;
    if tcp {
        packet.tcp_options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
    }
    let frames = packet.cut(SEGMENT, 1);
    let run = Run {
        is_tcp: tcp,
        is_ipv6: ipv6,
        segment: SEGMENT as u16,
        last_segment: frames.last().unwrap().payload.len() as u16,
        ids: if ipv6 { Ids::Fixed } else { Ids::Rising },
        cwr: false,
        received_bytes: 0,
        arrived_ns: 0,
    };
    (run, frames.iter().map(L4Frame::frame).collect())
}

fn held(pool: &Mempool, frames: &[Vec<u8>]) -> Vec<Frame> {
    let held = frames
        .iter()
        .map(|frame| pool.alloc_copy(frame).unwrap().into());
    held.collect()
}

#[test]
fn a_run_is_one_packet_and_cut_it_is_the_run_again() {
    let pool = pool("runs");
    for (ipv6, tcp) in [(false, true), (true, true), (false, false), (true, false)] {
        let (run, frames) = run(ipv6, tcp, 10 * SEGMENT + 7);
        let mut buffers = held(&pool, &frames);
        let data: Vec<_> = buffers.iter().map(|frame| frame.data().as_ptr()).collect();
        let mbuf = build(&run, &mut buffers, Checksums::Virtio).unwrap();
        assert!(buffers.is_empty());
        let bytes: usize = frames.iter().map(Vec::len).sum();
        assert_eq!((mbuf.frames(), mbuf.frame_bytes()), (11, bytes as u64));
        let (l3, l4) = (if ipv6 { 40 } else { 20 }, if tcp { 32 } else { 8 });
        let lengths = TxLengths {
            l2: 14,
            l3,
            l4,
            segment: SEGMENT as u16,
        };
        assert_eq!(mbuf.tx_lengths(), lengths);
        // HZ-12: no stage takes it.
        assert!(mbuf.is_super() && !mbuf.is_contiguous());
        let pieces: Vec<_> = mbuf.segments().collect();
        let headers = usize::from(14 + l3 + l4);
        for (at, (piece, data)) in pieces.iter().zip(&data).enumerate() {
            let start = if at == 0 { 0 } else { headers };
            assert_eq!(piece.as_ptr(), data.wrapping_add(start), "not copied");
        }
        let how = How {
            segment: SEGMENT as u16,
            ids: Ids::Rising,
            cwr: Cwr::First,
        };
        let segmenter = Segmenter::new(pieces[0], &pieces[1..], how).unwrap();
        for (at, expected) in frames.iter().enumerate() {
            let mut frame = vec![0; segmenter.frame_len(at)];
            assert!(segmenter.write(at, &mut frame));
            assert_eq!(frame, *expected);
        }
        drop(mbuf);
        assert_eq!(pool.in_use(), 0);
    }
}

/// What a driver refuses.
#[test]
fn a_packet_that_was_made_for_a_port_is_cut_again() {
    let mut pool = pool("again");
    for (ipv6, len) in [(false, 10 * SEGMENT + 7), (true, 2 * SEGMENT)] {
        let (run, frames) = run(ipv6, true, len);
        let mut buffers = held(&pool, &frames);
        let mbuf = build(&run, &mut buffers, Checksums::Port { ipv4: true }).unwrap();
        let mut came = Vec::new();
        let outcome = cut(&mbuf, &mut pool, |frame| came.push(frame));
        assert_eq!((outcome.made, outcome.lost), (frames.len(), 0));
        let bytes: Vec<_> = came.iter().map(|frame| frame.data().to_vec()).collect();
        assert_eq!(bytes, frames);
        drop((mbuf, came));
        assert_eq!(pool.in_use(), 0);
    }
    // S8: without buffers.
    let (run, frames) = run(false, true, 5 * SEGMENT);
    let mut buffers = held(&pool, &frames);
    let mbuf = build(&run, &mut buffers, Checksums::Port { ipv4: true }).unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
    let outcome = cut(&mbuf, &mut pool, |_| ());
    assert_eq!((outcome.made, outcome.lost), (0, 5));
    drop(taken);
}

#[test]
fn a_port_is_asked_for_what_it_does() {
    let pool = pool("ports");
    let segmentation = ol_flags::TX_TCP_SEG | ol_flags::TX_UDP_SEG;
    for (ipv6, tcp, ipv4, flags) in [
        (
            false,
            true,
            true,
            ol_flags::TX_TCP_SEG | ol_flags::TX_IPV4 | ol_flags::TX_IP_CKSUM,
        ),
        (false, true, false, ol_flags::TX_TCP_SEG | ol_flags::TX_IPV4),
        (true, true, true, ol_flags::TX_TCP_SEG | ol_flags::TX_IPV6),
        (true, false, false, ol_flags::TX_UDP_SEG | ol_flags::TX_IPV6),
    ] {
        let (run, frames) = run(ipv6, tcp, 3 * SEGMENT);
        let mut buffers = held(&pool, &frames);
        let mbuf = build(&run, &mut buffers, Checksums::Port { ipv4 }).unwrap();
        let all = segmentation | ol_flags::TX_IPV4 | ol_flags::TX_IPV6 | ol_flags::TX_IP_CKSUM;
        assert_eq!(mbuf.ol_flags() & all, flags);
        if !ipv6 {
            let check = &mbuf.data()[24..26];
            assert_eq!(check == [0, 0], ipv4);
        }
    }
}

#[test]
fn frames_that_are_no_run_stay_as_they_are() {
    let pool = pool("apart");
    let (run, mut frames) = run(false, true, 4 * SEGMENT);
    frames[2][8] ^= 1;
    let mut buffers = held(&pool, &frames);
    assert!(build(&run, &mut buffers, Checksums::Virtio).is_none());
    let bytes: Vec<_> = buffers.iter().map(|frame| frame.data().to_vec()).collect();
    assert_eq!(bytes, frames);
}

/// F5.
#[test]
fn a_ring_to_the_host_holds_no_more_frames_than_entries() {
    let pool = pool("ring");
    let config = RingConfig {
        name: "f5".to_owned(),
        capacity: 20,
        numa_node: None,
    };
    let (mut to, mut from) = host_ring(sp_sc_ring(&eal(), &config).unwrap());
    let packet = |frames: usize| -> Mbuf {
        let (run, bytes) = run(true, true, frames * SEGMENT);
        let mut buffers = held(&pool, &bytes);
        match frames {
            1 => buffers.pop().unwrap().into(),
            _ => build(&run, &mut buffers, Checksums::Virtio).unwrap(),
        }
    };
    let counts = |burst: &Burst<32>| burst.iter().map(Mbuf::frames).collect::<Vec<_>>();
    let put = |to: &mut bng_dataplane::host::ToHost, frames: &[usize]| {
        let mut burst: Burst<32> = frames.iter().map(|frames| packet(*frames)).collect();
        to.enqueue_burst(&mut burst);
        counts(&burst)
    };
    let take = |from: &mut bng_dataplane::host::FromWorker| {
        let mut burst: Burst<32> = Burst::new();
        from.dequeue_burst(&mut burst);
        counts(&burst)
    };
    // In order: what follows one without room has none either.
    assert_eq!(put(&mut to, &[8, 1, 8, 4, 1]), [4, 1]);
    assert_eq!(put(&mut to, &[4]), [4]);
    assert_eq!(put(&mut to, &[2, 1, 1]), [1]);
    assert_eq!(put(&mut to, &[1]), [1]);
    assert_eq!(take(&mut from), [8, 1, 8, 2, 1]);
    assert_eq!(put(&mut to, &[20, 1]), [1]);
    assert_eq!(take(&mut from), [20]);
    assert_eq!(put(&mut to, &[21]), [21]);
    // With single frames it is a ring as any other.
    assert_eq!(put(&mut to, &[1; 32]), [1; 12]);
    assert_eq!(take(&mut from), [1; 20]);
    assert_eq!(from.count(), 0);
    assert_eq!(pool.in_use(), 0);
}
