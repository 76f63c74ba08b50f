//! What the kernel's segments and datagrams say.

use std::net::{Ipv4Addr, SocketAddrV4};

use bng_wire::MacAddr;
use bng_wire::ethernet::ETH_LEN;
use bng_wire::ipv4::protocol;
use bng_wire::l4::tcp_flag::SYN;
use bng_wire::pppoe::{PPP_LEN, PPPOE_LEN};

/// What a frame from the gateway says.
pub(super) struct Segment {
    pub(super) station: MacAddr,
    pub(super) from: SocketAddrV4,
    pub(super) to: SocketAddrV4,
    pub(super) is_udp: bool,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Window scale of a SYN.
    pub(super) scale: u8,
}

impl Segment {
    /// `None` for everything but TCP and UDP in IPv4 without options.
    pub(super) fn read(frame: &[u8], in_session: bool) -> Option<Self> {
        let u16_at = |bytes: &[u8], at: usize| {
            let two = bytes.get(at..at + 2)?.first_chunk::<2>()?;
            Some(u16::from_be_bytes(*two))
        };
        let u32_at = |bytes: &[u8], at: usize| {
            let four = bytes.get(at..at + 4)?.first_chunk::<4>()?;
            Some(u32::from_be_bytes(*four))
        };
        let l3 = if in_session {
            ETH_LEN + PPPOE_LEN + PPP_LEN
        } else {
            ETH_LEN
        };
        let ip = frame.get(l3..)?;
        if ip.first() != Some(&0x45) {
            return None;
        }
        let is_udp = match *ip.get(9)? {
            protocol::TCP => false,
            protocol::UDP => true,
            _ => return None,
        };
        let l4 = ip.get(20..)?;
        let address = |at| Some(Ipv4Addr::from(u32_at(ip, at)?));
        let mut segment = Self {
            station: MacAddr(*frame.get(6..12)?.first_chunk::<6>()?),
            from: SocketAddrV4::new(address(12)?, u16_at(l4, 0)?),
            to: SocketAddrV4::new(address(16)?, u16_at(l4, 2)?),
            is_udp,
            seq: 0,
            ack: 0,
            flags: 0,
            window: 0,
            scale: 0,
        };
        if !is_udp {
            segment.seq = u32_at(l4, 4)?;
            segment.ack = u32_at(l4, 8)?;
            segment.flags = *l4.get(13)?;
            segment.window = u16_at(l4, 14)?;
            if segment.flags & SYN != 0 {
                let header = usize::from(l4.get(12)? >> 4) * 4;
                segment.scale = window_scale(l4.get(20..header)?);
            }
        }
        Some(segment)
    }
}

/// The window scale option (RFC 7323 section 2.2); 0 without one.
fn window_scale(mut options: &[u8]) -> u8 {
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [3, 3, shift, ..] => return (*shift).min(14),
            [kind, len, ..] if *kind > 1 && *len > 1 => match options.get(usize::from(*len)..) {
                Some(rest) => options = rest,
                None => return 0,
            },
            _ => return 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_scale_is_found_among_other_options() {
        let linux = [
            2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7,
        ];
        assert_eq!(window_scale(&linux), 7);
        assert_eq!(window_scale(&[3, 3, 200]), 14);
        for broken in [
            &[][..],
            &[0, 3, 3, 7],
            &[2, 0, 3, 3],
            &[2, 1],
            &[2, 40, 1],
            &[3, 3],
        ] {
            assert_eq!(window_scale(broken), 0, "{broken:?}");
        }
    }
}
