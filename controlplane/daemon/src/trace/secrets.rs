//! Passwords out of frames.

use bng_pppoe::codec::lcp::code;
use bng_pppoe::codec::pap;
use bng_wire::ethernet::{self, ethertype};
use bng_wire::pppoe::{PPP_LEN, PPPOE_LEN, protocol};

/// What stands in the place of a byte of a password.
const BLANK: u8 = b'*';
/// Code, identifier and length of a control packet.
const HEADER: usize = 4;

/// Blanks the password of a PAP request, also of one that is rejected and quoted. Lengths in the frame are not believed where
/// they would save a byte that may be of a password.
pub(super) fn blank(frame: &mut [u8]) {
    let Ok(eth) = ethernet::parse(frame) else {
        return;
    };
    if eth.ethertype != ethertype::PPPOE_SESSION {
        return;
    }
    let ppp = frame.get_mut(eth.payload + PPPOE_LEN..);
    if let Some((number, packet)) = ppp.and_then(|ppp| ppp.split_at_mut_checked(PPP_LEN)) {
        blank_packet(u16::from_be_bytes([number[0], number[1]]), packet);
    }
}

fn blank_packet(number: u16, packet: &mut [u8]) {
    let Some((header, data)) = packet.split_at_mut_checked(HEADER) else {
        return;
    };
    match (number, header[0]) {
        // A code nobody knows may be a request that was damaged.
        (protocol::PAP, code)
            if code != pap::code::AUTHENTICATE_ACK && code != pap::code::AUTHENTICATE_NAK =>
        {
            let name = data.first().map_or(0, |length| usize::from(*length));
            // The length of the password follows the name. A name that leaves no room for it may be the password as well.
            let password = if data.len() > 1 + name { 2 + name } else { 1 };
            if let Some(password) = data.get_mut(password..) {
                password.fill(BLANK);
            }
        }
        (protocol::LCP, code::PROTOCOL_REJECT) => {
            if let Some((rejected, packet)) = data.split_at_mut_checked(PPP_LEN)
                && u16::from_be_bytes([rejected[0], rejected[1]]) == protocol::PAP
            {
                blank_packet(protocol::PAP, packet);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_pppoe::codec::{LinkHeader, frame};
    use bng_wire::{MacAddr, VlanStack};

    fn session(number: u16, packet: &[u8]) -> Vec<u8> {
        let link = LinkHeader {
            dst: MacAddr([2, 0, 0, 0, 0, 1]),
            src: MacAddr([2, 0, 0, 0, 0, 2]),
            vlans: VlanStack::UNTAGGED,
        };
        frame::session(&link, 7, number, packet).unwrap()
    }

    fn blanked(number: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = session(number, packet);
        let header = frame.len() - packet.len();
        blank(&mut frame);
        frame.split_off(header)
    }

    const REQUEST: &[u8] = b"\x01\x09\x00\x0c\x02al\x04pass";

    #[test]
    fn the_password_goes_and_all_else_stays() {
        assert_eq!(
            blanked(protocol::PAP, REQUEST),
            b"\x01\x09\x00\x0c\x02al\x04****"
        );
        let nak = b"\x03\x09\x00\x0c\x07go away";
        assert_eq!(blanked(protocol::PAP, nak), nak);
        assert_eq!(blanked(protocol::CHAP, REQUEST), REQUEST);
    }

    #[test]
    fn wrong_lengths_and_codes_save_no_byte_of_a_password() {
        for (request, kept) in [
            (
                &b"\x01\x09\x00\x04\x02al\x01pass"[..],
                &b"\x01\x09\x00\x04\x02al\x01****"[..],
            ),
            (
                b"\x01\x09\xff\xff\x02al\xffpass",
                b"\x01\x09\xff\xff\x02al\xff****",
            ),
            (
                b"\x01\x09\x00\x0c\xffal\x04pass",
                b"\x01\x09\x00\x0c\xff*******",
            ),
            (
                b"\x11\x09\x00\x0c\x02al\x04pass",
                b"\x11\x09\x00\x0c\x02al\x04****",
            ),
        ] {
            assert_eq!(blanked(protocol::PAP, request), kept);
        }
        for end in 0..REQUEST.len() {
            let cut = blanked(protocol::PAP, &REQUEST[..end]);
            assert!(!cut.windows(2).any(|two| two == b"pa"), "{cut:?}");
        }
        let mut frame = session(protocol::PAP, REQUEST);
        // A PPPoE length beyond the frame: the engine refuses the frame, the password is there all the same.
        frame[18..20].fill(0xff);
        blank(&mut frame);
        assert!(frame.ends_with(b"\x04****"));
    }

    #[test]
    fn a_request_that_is_quoted_in_a_reject_is_blanked() {
        let mut reject = b"\x08\x01\x00\x12\xc0\x23".to_vec();
        reject.extend(REQUEST);
        assert!(blanked(protocol::LCP, &reject).ends_with(b"\x02al\x04****"));
    }
}
