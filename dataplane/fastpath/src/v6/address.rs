//! What an address is, by its upper half (RFC 4291 section 2.4).

/// Kinds of address the stages tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Any unicast address that may cross a router, unique local ones (RFC 4193) included.
    Unicast,
    /// fe80::/10.
    LinkLocal,
    /// ff00::/8.
    Multicast,
    /// ::/64: unspecified, loopback, IPv4-mapped (RFC 4291 section 2.5.5.2) and nothing else that is used.
    Reserved,
}

impl Kind {
    /// The kind of an address with this upper half.
    #[inline(always)]
    pub(crate) const fn of(high: u64) -> Self {
        // 2000::/3 are nearly all there are (RFC 3587).
        if high >> 61 == 1 {
            return Self::Unicast;
        }
        match high >> 48 {
            0xff00.. => Self::Multicast,
            0xfe80..=0xfebf => Self::LinkLocal,
            _ if high == 0 => Self::Reserved,
            _ => Self::Unicast,
        }
    }
}

/// The address goes no further than the link: link-local unicast, and multicast of that scope (ff02::/16 with any flags,
/// RFC 4291 section 2.7).
#[inline(always)]
pub(crate) const fn is_link_scope(high: u64) -> bool {
    matches!(Kind::of(high), Kind::LinkLocal) || (high >> 48) & 0xff0f == 0xff02
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn high(text: &str) -> u64 {
        let address: Ipv6Addr = text.parse().unwrap_or(Ipv6Addr::UNSPECIFIED);
        (address.to_bits() >> 64) as u64
    }

    #[test]
    fn addresses_are_told_apart_by_their_upper_half() {
        for (text, kind, link) in [
            ("::", Kind::Reserved, false),
            ("::1", Kind::Reserved, false),
            ("::ffff:192.0.2.1", Kind::Reserved, false),
            ("64:ff9b::192.0.2.1", Kind::Unicast, false),
            ("2001:db8::1", Kind::Unicast, false),
            ("3fff::1", Kind::Unicast, false),
            ("fd00::1", Kind::Unicast, false),
            ("fe7f::1", Kind::Unicast, false),
            ("fe80::1", Kind::LinkLocal, true),
            ("febf:ffff::1", Kind::LinkLocal, true),
            ("fec0::1", Kind::Unicast, false),
            ("ff02::2", Kind::Multicast, true),
            ("ff12::2", Kind::Multicast, true),
            ("ff05::1:3", Kind::Multicast, false),
            ("ff0e::1", Kind::Multicast, false),
        ] {
            assert_eq!(Kind::of(high(text)), kind, "{text}");
            assert_eq!(is_link_scope(high(text)), link, "{text}");
        }
    }
}
