//! An mbuf behaves as a byte vector with bounded room on both sides.

mod support;

use proptest::prelude::*;
use rte_rs::{Chain, HEADROOM, Mbuf, RxChecksum, TxLengths, ol_flags};

#[derive(Debug, Clone)]
enum Step {
    Prepend(Vec<u8>),
    Append(Vec<u8>),
    TrimFront(usize),
    Truncate(usize),
    Write(usize, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || {
        prop_oneof![4 => 0..40usize, 1 => 0..2500usize]
            .prop_map(|n| (0..n).map(|i| i as u8).collect())
    };
    prop_oneof![
        bytes().prop_map(Step::Prepend),
        bytes().prop_map(Step::Append),
        (0..60usize).prop_map(Step::TrimFront),
        (0..2500usize).prop_map(Step::Truncate),
        (0..2500usize, any::<u8>()).prop_map(|(at, byte)| Step::Write(at, byte)),
    ]
}

/// Applies `step` to the mbuf and to `model`, a vector with `headroom` bytes in front of it.
fn apply(step: &Step, mbuf: &mut Mbuf, model: &mut Vec<u8>, headroom: &mut usize, room: usize) {
    match step {
        Step::Prepend(bytes) => {
            let fits = bytes.len() <= *headroom;
            match mbuf.prepend(bytes.len()) {
                Some(front) => {
                    assert!(fits);
                    front.copy_from_slice(bytes);
                    model.splice(0..0, bytes.iter().copied());
                    *headroom -= bytes.len();
                }
                None => assert!(!fits),
            }
        }
        Step::Append(bytes) => {
            let fits = *headroom + model.len() + bytes.len() <= room;
            match mbuf.append(bytes.len()) {
                Some(end) => {
                    assert!(fits);
                    end.copy_from_slice(bytes);
                    model.extend_from_slice(bytes);
                }
                None => assert!(!fits),
            }
        }
        Step::TrimFront(n) => {
            let fits = *n <= model.len();
            assert_eq!(mbuf.trim_front(*n), fits);
            if fits {
                model.drain(..n);
                *headroom += n;
            }
        }
        Step::Truncate(len) => {
            let fits = *len <= model.len();
            assert_eq!(mbuf.truncate(*len), fits);
            if fits {
                model.truncate(*len);
            }
        }
        Step::Write(at, byte) => {
            let place = mbuf.data_mut().get_mut(*at);
            assert_eq!(place.is_some(), *at < model.len());
            if let Some(place) = place {
                *place = *byte;
                model[*at] = *byte;
            }
        }
    }
}

#[test]
fn mbuf_follows_the_vector_model() {
    let pool = support::pool("model", 1023);
    let room = usize::from(pool.data_room());
    proptest!(|(steps in prop::collection::vec(step(), 1..60))| {
        let mut mbuf = pool.alloc().unwrap();
        let mut model = Vec::new();
        let mut headroom = usize::from(HEADROOM);
        for step in &steps {
            apply(step, &mut mbuf, &mut model, &mut headroom, room);
            prop_assert_eq!(mbuf.data(), &model[..]);
            prop_assert_eq!(mbuf.len(), model.len());
            prop_assert_eq!(mbuf.headroom(), headroom);
            prop_assert_eq!(mbuf.tailroom(), room - headroom - model.len());
            prop_assert!(mbuf.is_contiguous());
        }
        prop_assert_eq!(mbuf.segments().collect::<Vec<_>>(), vec![&model[..]]);
    });
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn an_mbuf_is_one_pointer_and_has_a_niche() {
    assert_eq!(size_of::<Mbuf>(), size_of::<usize>());
    assert_eq!(size_of::<Option<Mbuf>>(), size_of::<usize>());
}

#[test]
fn metadata_round_trips_and_is_reset_by_allocation() {
    let pool = support::pool("metadata", 63);
    let mut mbuf = pool.alloc().unwrap();
    assert_eq!(
        (mbuf.port(), mbuf.nb_segs(), mbuf.ol_flags()),
        (u16::MAX, 1, 0)
    );
    assert_eq!(mbuf.rss_hash(), None);
    assert_eq!(mbuf.rx_ip_checksum(), RxChecksum::Unknown);
    mbuf.set_port(7);
    mbuf.set_vlan_tci(0x2fff);
    mbuf.set_ol_flags(ol_flags::RX_VLAN | ol_flags::RX_IP_CKSUM_BAD | ol_flags::RX_L4_CKSUM_GOOD);
    assert_eq!((mbuf.port(), mbuf.vlan_tci()), (7, 0x2fff));
    assert_eq!(mbuf.rx_ip_checksum(), RxChecksum::Bad);
    assert_eq!(mbuf.rx_l4_checksum(), RxChecksum::Good);
    mbuf.set_tx_lengths(TxLengths {
        l2: 14,
        l3: 20,
        l4: 20,
        segment: 1452,
    });
    mbuf.prefetch_header();
    mbuf.prefetch_data();
    drop(mbuf);
    // The pool is a stack per thread or a ring: go through all of it to meet the same mbuf again.
    let all: Vec<Mbuf> = std::iter::from_fn(|| pool.alloc()).collect();
    assert_eq!(all.len(), 63);
    assert!(
        all.iter()
            .all(|mbuf| mbuf.ol_flags() == 0 && mbuf.port() == u16::MAX)
    );
}

#[test]
fn flags_that_say_how_the_buffer_is_held_cannot_be_set() {
    let pool = support::pool("held", 63);
    let mut mbuf = pool.alloc().unwrap();
    // With RTE_MBUF_F_EXTERNAL or RTE_MBUF_F_INDIRECT set, freeing would follow pointers that are not there.
    mbuf.set_ol_flags(u64::MAX);
    assert_eq!(mbuf.ol_flags() & (1 << 61 | 1 << 62), 0);
    assert_ne!(mbuf.ol_flags() & ol_flags::TX_VLAN, 0);
    drop(mbuf);
    assert_eq!(pool.in_use(), 0);
}

/// HZ-12: what is asked of a packet's one segment is refused to a chain.
#[test]
fn a_chain_holds_its_parts_in_order_and_frees_them_all() {
    let pool = support::pool("chain", 255);
    proptest!(|(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..100), cut in 0..200usize)| {
        let mut mbufs = parts.iter().map(|part| pool.alloc_copy(part).unwrap());
        let mut chain = Chain::new(mbufs.next().unwrap());
        for mut next in mbufs {
            let cut = cut.min(next.len());
            prop_assert!(next.trim_front(cut));
            prop_assert!(chain.push(next).is_ok());
        }
        let mbuf = chain.finish();
        let expected: Vec<&[u8]> = parts.iter().enumerate().map(|(at, part)| match at {
            0 => &part[..],
            _ => &part[cut.min(part.len())..],
        }).collect();
        prop_assert_eq!(mbuf.segments().collect::<Vec<_>>(), expected.clone());
        prop_assert_eq!(mbuf.len(), expected.iter().map(|part| part.len()).sum::<usize>());
        prop_assert_eq!(usize::from(mbuf.nb_segs()), parts.len());
        prop_assert_eq!(mbuf.is_contiguous(), parts.len() == 1);
        prop_assert_eq!(pool.in_use() as usize, parts.len());
        drop(mbuf);
        prop_assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn chains_are_joined_whole() {
    let pool = support::pool("joined", 63);
    let one = |bytes: &[u8]| pool.alloc_copy(bytes).unwrap();
    let pair = |a: &[u8], b: &[u8]| {
        let mut chain = Chain::new(one(a));
        chain.push(one(b)).unwrap();
        chain.finish()
    };
    let mut chain = Chain::new(pair(b"a", b"b"));
    chain.push(pair(b"c", b"d")).unwrap();
    chain.push(one(b"e")).unwrap();
    let mbuf = chain.finish();
    assert_eq!(mbuf.segments().collect::<Vec<_>>().concat(), b"abcde");
    assert_eq!((mbuf.nb_segs(), mbuf.len()), (5, 5));
    let mut burst = rte_rs::Burst::<4>::new();
    burst.push(mbuf);
    Mbuf::free_bulk(&mut burst);
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn a_super_packet_says_how_many_frames_and_bytes_it_stands_for() {
    let pool = support::pool("super", 63);
    let (l2, l3, l4, segment) = (14, 20, 32, 100);
    for (payload, frames) in [(1, 1), (100, 1), (101, 2), (200, 2), (350, 4)] {
        let mut mbuf = pool.alloc_copy(&vec![0; 66 + payload]).unwrap();
        assert_eq!((mbuf.frames(), mbuf.is_super()), (1, false));
        assert_eq!(mbuf.frame_bytes(), 66 + payload as u64);
        mbuf.set_tx_lengths(TxLengths {
            l2,
            l3,
            l4,
            segment,
        });
        assert_eq!(mbuf.frames(), 1, "lengths alone make no super-packet");
        for flag in [ol_flags::TX_TCP_SEG, ol_flags::TX_UDP_SEG] {
            mbuf.set_ol_flags(flag | ol_flags::TX_IPV4);
            assert_eq!((mbuf.frames(), mbuf.is_super()), (frames, true));
            assert_eq!(mbuf.frame_bytes(), payload as u64 + 66 * u64::from(frames));
        }
    }
    // Nonsense stands for one frame.
    let mut mbuf = pool.alloc_copy(&[0; 10]).unwrap();
    mbuf.set_ol_flags(ol_flags::TX_TCP_SEG);
    mbuf.set_tx_lengths(TxLengths {
        l2,
        l3,
        l4,
        segment: 0,
    });
    assert_eq!((mbuf.frames(), mbuf.frame_bytes()), (1, 10));
}
