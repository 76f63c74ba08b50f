//! Stage: the MSS option of a TCP SYN is lowered to what the session carries (RFC 9293 section 3.7.1, RFC 6691).
//!
//! A PPPoE session carries 1,492 bytes where the hosts at both ends believe in 1,500; whoever relies on path MTU
//! discovery through filters that drop its messages would hang.

use bng_wire::TcpHdr;
use bng_wire::checksum::Delta;
use bng_wire::l4::TCP_MIN_LEN;
use zerocopy::FromBytes;

/// IPv4 and TCP header without options (RFC 6691 section 2).
pub(crate) const HEADERS_V4: u16 = 40;

/// Option kinds (RFC 9293 section 3.2).
mod kind {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
}
const MSS_LEN: usize = 4;

/// Lowers the MSS option of a SYN, or SYN and ACK, to `mss` and updates the checksum; true when it was higher. `tcp` is
/// the segment, of either IP version. A SYN without the option stays without, and from a malformed option on nothing
/// is looked at.
#[cold]
#[inline(never)]
pub(crate) fn clamp(tcp: &mut [u8], mss: u16) -> bool {
    let Some(at) = find(tcp) else {
        return false;
    };
    let Some(Ok(field)) = tcp.get_mut(at..at + 2).map(<&mut [u8; 2]>::try_from) else {
        return false;
    };
    let old = u16::from_be_bytes(*field);
    if old <= mss {
        return false;
    }
    *field = mss.to_be_bytes();
    // A field at an odd offset lies across two words of the sum, with its bytes swapped (RFC 1071 section 2 (B)).
    let delta = if at.is_multiple_of(2) {
        Delta::new().u16(old, mss)
    } else {
        Delta::new().u16(old.swap_bytes(), mss.swap_bytes())
    };
    if let Ok((header, _)) = TcpHdr::mut_from_prefix(tcp) {
        header.checksum.set(delta.apply(header.checksum.get()));
    }
    true
}

/// Offset of the value of the MSS option.
fn find(tcp: &[u8]) -> Option<usize> {
    let (header, _) = TcpHdr::ref_from_prefix(tcp).ok()?;
    let end = header.header_len();
    let mut at = TCP_MIN_LEN;
    // Every turn goes on by at least one byte.
    while at < end {
        match *tcp.get(at)? {
            kind::END => return None,
            kind::NOP => at += 1,
            option => {
                let len = usize::from(*tcp.get(at + 1)?);
                if len < 2 || at + len > end || at + len > tcp.len() {
                    return None;
                }
                if option == kind::MSS {
                    return (len == MSS_LEN).then_some(at + 2);
                }
                at += len;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_wire::checksum::l4_checksum;
    use proptest::prelude::*;

    /// A SYN with these options and a right checksum.
    fn syn(options: &[u8]) -> Vec<u8> {
        let mut tcp = vec![0; TCP_MIN_LEN];
        tcp[..4].copy_from_slice(&[0x12, 0x34, 0, 80]);
        tcp.extend(options);
        tcp.resize(tcp.len().next_multiple_of(4), kind::END);
        tcp[12] = (tcp.len() as u8 / 4) << 4;
        tcp[13] = 2;
        let check = l4_checksum(1, 2, 6, &tcp);
        tcp[16..18].copy_from_slice(&check.to_be_bytes());
        tcp
    }

    fn is_right(tcp: &[u8]) -> bool {
        l4_checksum(1, 2, 6, tcp) == 0
    }

    #[test]
    fn a_higher_value_is_lowered_wherever_it_stands_and_the_checksum_stays_right() {
        let mss = [kind::MSS, 4, 0x05, 0xb4];
        for before in [vec![], vec![kind::NOP], vec![4, 2], vec![3, 3, 7]] {
            let mut tcp = syn(&[&before[..], &mss, &[4, 2]].concat());
            assert!(clamp(&mut tcp, 1_452));
            let at = TCP_MIN_LEN + before.len();
            assert_eq!(tcp[at..at + 4], [kind::MSS, 4, 0x05, 0xac]);
            assert!(is_right(&tcp));
            assert!(!clamp(&mut tcp, 1_452), "it is low enough now");
        }
    }

    #[test]
    fn it_is_never_raised() {
        let mut tcp = syn(&[kind::MSS, 4, 0x02, 0x18]);
        let before = tcp.clone();
        assert!(!clamp(&mut tcp, 1_452));
        assert_eq!(tcp, before);
    }

    #[test]
    fn malformed_options_stay_and_end_the_search() {
        let mss = [kind::MSS, 4, 0x05, 0xb4];
        for before in [
            vec![kind::END],
            vec![kind::MSS, 3, 0],
            vec![8, 0],
            vec![8, 1],
            vec![8, 40],
            vec![8, 255],
        ] {
            let mut tcp = syn(&[&before[..], &mss].concat());
            let was = tcp.clone();
            assert!(!clamp(&mut tcp, 1_452), "{before:?}");
            assert_eq!(tcp, was);
        }
        for cut in 0..24 {
            let mut tcp = syn(&mss);
            tcp.truncate(cut);
            let was = tcp.clone();
            assert!(!clamp(&mut tcp, 1_452), "cut to {cut}");
            assert_eq!(tcp, was);
        }
    }

    proptest! {
        #[test]
        fn any_options_end_and_change_nothing_but_a_value_that_was_higher(
            options in prop::collection::vec(prop_oneof![Just(1u8), Just(2), Just(4), any::<u8>()], 0..40),
            mss: u16, offset in prop::option::of(any::<u8>()),
        ) {
            let mut tcp = syn(&options);
            if let Some(offset) = offset {
                tcp[12] = offset;
            }
            let before = tcp.clone();
            let right = is_right(&before);
            if clamp(&mut tcp, mss) {
                let value = find(&before).unwrap();
                prop_assert!(before[value..value + 2] > tcp[value..value + 2]);
                prop_assert_eq!(&tcp[value..value + 2], &mss.to_be_bytes()[..]);
                prop_assert_eq!(is_right(&tcp), right);
                tcp[value..value + 2].copy_from_slice(&before[value..value + 2]);
                tcp[16..18].copy_from_slice(&before[16..18]);
            }
            prop_assert_eq!(tcp, before);
        }
    }
}
