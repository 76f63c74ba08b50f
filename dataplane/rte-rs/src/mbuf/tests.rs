use super::*;
use std::mem::ManuallyDrop;

/// A segment that no pool knows: never dropped as an `Mbuf`.
fn segment(data: &mut [u8], next: *mut shim_mbuf) -> shim_mbuf {
    shim_mbuf {
        buf_addr: data.as_mut_ptr().cast(),
        buf_len: data.len() as u16,
        data_off: 2,
        data_len: data.len() as u16 - 4,
        nb_segs: 1,
        next: next.cast(),
        ..shim_mbuf::default()
    }
}

#[test]
fn a_chain_is_read_whole_and_changed_at_its_front_only() {
    let (mut first, mut second, mut third) = (*b"..abcd..", *b"..ef..", *b"..ghi..");
    let mut third = segment(&mut third, std::ptr::null_mut());
    let mut second = segment(&mut second, &mut third);
    let mut first = segment(&mut first, &mut second);
    first.nb_segs = 3;
    first.pkt_len = 9;
    // SAFETY: a valid chain on the stack, held by nobody else, and kept from being dropped.
    let mut mbuf = ManuallyDrop::new(unsafe { Mbuf::from_raw(NonNull::from(&mut first).cast()) });
    assert_eq!(
        mbuf.segments().collect::<Vec<_>>(),
        [&b"abcd"[..], b"ef", b"ghi"]
    );
    assert_eq!(
        (mbuf.len(), mbuf.nb_segs(), mbuf.is_contiguous()),
        (9, 3, false)
    );
    assert!(mbuf.append(1).is_none() && !mbuf.truncate(1));
    assert!(!mbuf.trim_front(5), "longer than the first segment");
    assert!(mbuf.trim_front(4));
    assert_eq!((mbuf.data(), mbuf.len()), (&b""[..], 5));
    assert!(mbuf.prepend(7).is_none());
    assert_eq!(mbuf.prepend(6), Some(&mut b"..abcd"[..6].to_vec()[..]));
    assert_eq!(mbuf.len(), 11);
    assert!(!mbuf.reframe(0, 1), "a chain");
}

#[test]
fn a_new_frame_stays_between_headroom_and_old_end() {
    let mut bytes = *b"..abcd..";
    let mut first = segment(&mut bytes, std::ptr::null_mut());
    first.pkt_len = 4;
    // SAFETY: as above.
    let mut mbuf = ManuallyDrop::new(unsafe { Mbuf::from_raw(NonNull::from(&mut first).cast()) });
    assert!(!mbuf.reframe(-3, 1) && !mbuf.reframe(0, 5) && !mbuf.reframe(5, 0));
    assert!(!mbuf.reframe(isize::MIN, usize::MAX) && !mbuf.reframe(-1, usize::MAX));
    assert_eq!(mbuf.data(), b"abcd");
    assert!(mbuf.reframe(1, 2));
    assert_eq!((mbuf.data(), mbuf.len()), (&b"bc"[..], 2));
    assert!(mbuf.reframe(-3, 5));
    assert_eq!((mbuf.data(), mbuf.len()), (&b"..abc"[..], 5));
}

#[test]
fn transmit_lengths_take_their_places() {
    let mut first = shim_mbuf::default();
    // SAFETY: as above; only its fields are used.
    let mut mbuf = ManuallyDrop::new(unsafe { Mbuf::from_raw(NonNull::from(&mut first).cast()) });
    mbuf.set_tx_lengths(TxLengths {
        l2: 22,
        l3: 20,
        l4: 32,
        segment: 1440,
    });
    // RTE_MBUF_*_BITS: 7, 9, 8 and 16 bits from the lowest.
    assert_eq!(
        mbuf.fields().tx_offload,
        22 | 20 << 7 | 32 << 16 | 1440 << 24
    );
    let lengths = mbuf.tx_lengths();
    assert_eq!((lengths.l2, lengths.l3), (22, 20));
    assert_eq!((lengths.l4, lengths.segment), (32, 1440));
    mbuf.set_tx_lengths(TxLengths {
        l2: u16::MAX,
        ..TxLengths::default()
    });
    assert_eq!(mbuf.fields().tx_offload, 127);
    let all = TxLengths {
        l2: 127,
        l3: 511,
        l4: 255,
        segment: u16::MAX,
    };
    mbuf.set_tx_lengths(all);
    assert_eq!(mbuf.tx_lengths(), all);
}
