//! Router advertisements as a host reads them (RFC 4861 sections 4.2 and 6.1.2).

use std::net::Ipv6Addr;

use bng_wire::icmpv6::{checksum, icmpv6_type};
use bng_wire::ipv6::{self, next_header};

/// Hop limit that shows that no router has passed a packet on.
const HOP_LIMIT: u8 = 255;
/// Bytes of the message in front of its options.
const FIXED: usize = 16;
/// Prefix Information option, its length in bytes, and its flag A (autonomous address configuration).
const PREFIX_INFORMATION: u8 = 3;
const PREFIX_INFORMATION_LEN: usize = 32;
const FLAG_A: u8 = 0x40;

/// What a host takes from an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advertisement {
    /// Who sent it.
    pub(crate) router: Ipv6Addr,
    /// The /64 to make an address in; none when its valid lifetime is over.
    pub(crate) prefix: Option<Ipv6Addr>,
}

impl Advertisement {
    /// `None` for every other packet, and for an advertisement a host must not believe.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let ip = ipv6::parse(packet).ok()?;
        let message = packet.get(ipv6::IPV6_LEN..ip.total_len)?;
        let (fixed, mut options) = message.split_first_chunk::<FIXED>()?;
        let valid = ip.next_header == next_header::ICMPV6
            && fixed[0] == icmpv6_type::ROUTER_ADVERTISEMENT
            && fixed[1] == 0
            && ip.hop_limit == HOP_LIMIT
            && ip.src.is_unicast_link_local()
            && checksum(ip.src, ip.dst, message) == 0;
        if !valid {
            return None;
        }
        let mut prefix = None;
        while let [kind, length, ..] = *options {
            let (option, rest) = options.split_at_checked(usize::from(length) * 8)?;
            if option.is_empty() {
                return None;
            }
            if kind == PREFIX_INFORMATION
                && let Ok(option) = <&[u8; PREFIX_INFORMATION_LEN]>::try_from(option)
            {
                let [
                    _,
                    _,
                    bits,
                    flags,
                    a,
                    b,
                    c,
                    d,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    _,
                    value @ ..,
                ] = *option;
                let lifetime = u32::from_be_bytes([a, b, c, d]);
                if bits == 64 && flags & FLAG_A != 0 && lifetime > 0 {
                    prefix = Some(Ipv6Addr::from_octets(value));
                }
            }
            options = rest;
        }
        options.is_empty().then_some(Self {
            router: ip.src,
            prefix,
        })
    }
}

#[cfg(test)]
mod tests {
    use bng_pppoe::codec::nd::{ALL_NODES, RouterAdvertisement, link_local, router_solicitation};

    use super::*;

    fn advertisement() -> Vec<u8> {
        RouterAdvertisement {
            hop_limit: 64,
            has_dhcpv6: true,
            router_lifetime: 1_800,
            prefix: "2001:db8:5::".parse().unwrap(),
            prefix_lifetimes: (100, 50),
            mtu: 1_492,
            dns: [Some("2001:db8::53".parse().unwrap()), None],
        }
        .write(link_local(7), ALL_NODES)
    }

    #[test]
    fn the_gateways_own_advertisement_is_read() {
        let read = Advertisement::parse(&advertisement()).unwrap();
        assert_eq!(read.router, link_local(7));
        assert_eq!(read.prefix, Some("2001:db8:5::".parse().unwrap()));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused_or_harmless() {
        let good = advertisement();
        // Traffic class and flow label are nobody's business here.
        let free = 4..32;
        for bit in (0..good.len() * 8).filter(|bit| !free.contains(bit)) {
            let mut packet = good.clone();
            packet[bit / 8] ^= 1 << (7 - bit % 8);
            assert_eq!(Advertisement::parse(&packet), None, "bit {bit}");
        }
        for len in 0..good.len() {
            assert_eq!(Advertisement::parse(&good[..len]), None, "{len}");
        }
        assert_eq!(
            Advertisement::parse(&router_solicitation(link_local(7))),
            None
        );
    }
}
