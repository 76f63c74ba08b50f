//! Attributes of an Access-Accept or of a CoA-Request to the terms of a session.
//!
//! Of attributes that may be there once the first counts. What we do not know is ignored. A value that cannot be is an error
//! that names its attribute: terms are taken whole or not at all.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::attribute as a;
use super::packet::Attributes;
use crate::prefix_pool::Prefix;
use crate::profile::{FramedRoute, Profile, RateLimit};

/// Largest rate a policer knows, kbit/s.
const LARGEST_KBPS: u64 = 400_000_000;
/// Shortest time between interim updates, seconds (RFC 2869 section 5.16).
const SHORTEST_INTERIM: u32 = 60;
/// Longest text for the peer, octets.
const MESSAGE_MAX: usize = 253;
/// Routes of one session.
const ROUTES_MAX: usize = 16;

/// An attribute whose value cannot be, or that asks for what we do not offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0} cannot be used")]
pub struct Unusable(pub &'static str);

/// Reads the terms.
///
/// # Errors
/// [`Unusable`].
pub fn profile(attributes: Attributes<'_>) -> Result<Profile, Unusable> {
    let mut out = Profile::default();
    let mut rates = Rates::default();
    let (mut quota, mut quota_high) = (None, None);
    for (kind, value) in attributes {
        match kind {
            a::SERVICE_TYPE if number(value, "Service-Type")? != a::FRAMED => {
                return Err(Unusable("Service-Type"));
            }
            a::FRAMED_PROTOCOL if number(value, "Framed-Protocol")? != a::PPP => {
                return Err(Unusable("Framed-Protocol"));
            }
            a::FRAMED_IP_ADDRESS => first(&mut out.framed_ip, framed_ip(value)?),
            a::FILTER_ID => first(&mut out.filter_id, Some(text(value, "Filter-Id")?)),
            a::FRAMED_POOL => first(&mut out.framed_pool, Some(text(value, "Framed-Pool")?)),
            a::REPLY_MESSAGE => {
                let room = MESSAGE_MAX - out.message.len();
                out.message.extend(value.iter().take(room));
            }
            a::FRAMED_ROUTE if out.framed_routes.len() < ROUTES_MAX => {
                out.framed_routes.push(framed_route(value)?);
            }
            a::FRAMED_ROUTE => return Err(Unusable("Framed-Route")),
            a::CLASS => out.class.push(value.to_vec()),
            a::SESSION_TIMEOUT => {
                first(&mut out.session_timeout, seconds(value, "Session-Timeout")?);
            }
            a::IDLE_TIMEOUT => first(&mut out.idle_timeout, seconds(value, "Idle-Timeout")?),
            a::ACCT_INTERIM_INTERVAL => {
                let interval = match number(value, "Acct-Interim-Interval")? {
                    0 => 0,
                    seconds => seconds.max(SHORTEST_INTERIM),
                };
                let interval = Duration::from_secs(interval.into());
                first(&mut out.interim_interval, Some(interval));
            }
            a::FRAMED_IPV6_PREFIX => {
                let prefix = prefix(value).filter(|prefix| prefix.length == 64);
                let prefix = prefix.ok_or(Unusable("Framed-IPv6-Prefix"))?;
                first(&mut out.framed_ipv6_prefix, Some(prefix));
            }
            a::DELEGATED_IPV6_PREFIX => {
                let prefix = prefix(value).ok_or(Unusable("Delegated-IPv6-Prefix"))?;
                first(&mut out.delegated_ipv6_prefix, Some(prefix));
            }
            a::DNS_SERVER_IPV6_ADDRESS => {
                let octets: [u8; 16] =
                    (value.try_into()).map_err(|_| Unusable("DNS-Server-IPv6-Address"))?;
                // Further ones are more than we can advertise.
                if let Some(free) = out.dns6.iter_mut().find(|it| it.is_none()) {
                    *free = Some(Ipv6Addr::from_octets(octets));
                }
            }
            a::VENDOR_SPECIFIC => {
                for (vendor, kind, value) in vendor(value) {
                    match (vendor, kind) {
                        (a::MICROSOFT, a::MS_PRIMARY_DNS_SERVER) => {
                            first(&mut out.dns[0], dns(value, "MS-Primary-DNS-Server")?);
                        }
                        (a::MICROSOFT, a::MS_SECONDARY_DNS_SERVER) => {
                            first(&mut out.dns[1], dns(value, "MS-Secondary-DNS-Server")?);
                        }
                        (a::WISPR, a::WISPR_BANDWIDTH_MAX_UP) => {
                            let bits = number(value, "WISPr-Bandwidth-Max-Up")?;
                            first(&mut rates.wispr.0, rate(bits.into()));
                        }
                        (a::WISPR, a::WISPR_BANDWIDTH_MAX_DOWN) => {
                            let bits = number(value, "WISPr-Bandwidth-Max-Down")?;
                            first(&mut rates.wispr.1, rate(bits.into()));
                        }
                        (a::MIKROTIK, a::MIKROTIK_RATE_LIMIT) => {
                            let limits =
                                rate_limit(value).ok_or(Unusable("Mikrotik-Rate-Limit"))?;
                            first(&mut rates.mikrotik, Some(limits));
                        }
                        (a::MIKROTIK, a::MIKROTIK_TOTAL_LIMIT) => {
                            first(&mut quota, Some(number(value, "Mikrotik-Total-Limit")?));
                        }
                        (a::MIKROTIK, a::MIKROTIK_TOTAL_LIMIT_GIGAWORDS) => {
                            let high = number(value, "Mikrotik-Total-Limit-Gigawords")?;
                            first(&mut quota_high, Some(high));
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (out.rate_up, out.rate_down) = rates.mikrotik.unwrap_or(rates.wispr);
    let quota = u64::from(quota_high.unwrap_or(0)) << 32 | u64::from(quota.unwrap_or(0));
    out.quota_octets = (quota != 0).then_some(quota);
    Ok(out)
}

/// Upstream and downstream.
type Limits = (Option<RateLimit>, Option<RateLimit>);

#[derive(Default)]
struct Rates {
    wispr: Limits,
    mikrotik: Option<Limits>,
}

fn first<T>(place: &mut Option<T>, value: Option<T>) {
    if place.is_none() {
        *place = value;
    }
}

fn number(value: &[u8], name: &'static str) -> Result<u32, Unusable> {
    let octets = value.try_into().map_err(|_| Unusable(name))?;
    Ok(u32::from_be_bytes(octets))
}

/// 0 stands for no limit.
fn seconds(value: &[u8], name: &'static str) -> Result<Option<Duration>, Unusable> {
    let seconds = number(value, name)?;
    Ok((seconds != 0).then(|| Duration::from_secs(seconds.into())))
}

fn text(value: &[u8], name: &'static str) -> Result<String, Unusable> {
    let text = std::str::from_utf8(value).map_err(|_| Unusable(name))?;
    match text.is_empty() || text.chars().any(char::is_control) {
        true => Err(Unusable(name)),
        false => Ok(text.to_owned()),
    }
}

/// 255.255.255.254: the gateway chooses; 255.255.255.255: the subscriber would, which we do not offer, so the gateway does.
fn framed_ip(value: &[u8]) -> Result<Option<Ipv4Addr>, Unusable> {
    const NAME: &str = "Framed-IP-Address";
    let address = Ipv4Addr::from_bits(number(value, NAME)?);
    match address.to_bits() {
        0xffff_fffe | 0xffff_ffff => Ok(None),
        _ if is_host(address) => Ok(Some(address)),
        _ => Err(Unusable(NAME)),
    }
}

fn is_host(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    first != 0 && first != 127 && first < 224
}

fn dns(value: &[u8], name: &'static str) -> Result<Option<Ipv4Addr>, Unusable> {
    let address = Ipv4Addr::from_bits(number(value, name)?);
    match address {
        Ipv4Addr::UNSPECIFIED | Ipv4Addr::BROADCAST => Ok(None),
        _ if is_host(address) => Ok(Some(address)),
        _ => Err(Unusable(name)),
    }
}

/// Reserved, length, then as many octets as the length needs, or more (RFC 3162 section 2.3).
fn prefix(value: &[u8]) -> Option<Prefix> {
    let [_, length @ 1..=64, octets @ ..] = value else {
        return None;
    };
    let mut address = [0; 16];
    address.get_mut(..octets.len())?.copy_from_slice(octets);
    let address = u128::from_be_bytes(address);
    let host_bits = u128::MAX >> length;
    (octets.len() * 8 >= usize::from(*length) && address & host_bits == 0 && address != 0).then(
        || Prefix {
            address: Ipv6Addr::from_bits(address),
            length: *length,
        },
    )
}

/// `network[/length] [gateway [metric ...]]` (RFC 2865 section 5.22). Without a length that of the network's class. The
/// gateway is the subscriber, whatever it says; of several metrics the first counts.
fn framed_route(value: &[u8]) -> Result<FramedRoute, Unusable> {
    let text = std::str::from_utf8(value).ok();
    text.and_then(route).ok_or(Unusable("Framed-Route"))
}

fn route(text: &str) -> Option<FramedRoute> {
    let mut words = text.split_whitespace();
    let network = words.next()?;
    let (network, length) = match network.split_once('/') {
        Some((network, length)) => (network.parse().ok()?, length.parse().ok()?),
        None => {
            let network: Ipv4Addr = network.parse().ok()?;
            (network, class_length(network))
        }
    };
    if length > 32 || !(network.is_unspecified() && length == 0 || is_host(network)) {
        return None;
    }
    if u32::MAX.checked_shr(length.into()).unwrap_or(0) & network.to_bits() != 0 {
        return None;
    }
    if let Some(gateway) = words.next() {
        gateway.parse::<Ipv4Addr>().ok()?;
    }
    let metric = words.next().map_or(Some(1), |it| it.parse().ok())?;
    Some(FramedRoute {
        network,
        length,
        metric,
    })
}

const fn class_length(network: Ipv4Addr) -> u8 {
    match network.octets()[0] {
        0..=127 => 8,
        128..=191 => 16,
        _ => 24,
    }
}

/// A rate in bit/s, rounded up; 0 is no rate of its own.
fn rate(bits: u64) -> Option<RateLimit> {
    let kbps = bits.div_ceil(1_000).min(LARGEST_KBPS);
    (kbps != 0).then_some(RateLimit {
        // Fits: at most LARGEST_KBPS.
        kbps: kbps as u32,
        burst_bytes: None,
    })
}

/// `rx[/tx] [bursts ...]`, seen from the gateway: rx is what the subscriber sends. The bursts belong to another kind of
/// limiter and are ignored.
fn rate_limit(value: &[u8]) -> Option<Limits> {
    let text = std::str::from_utf8(value).ok()?;
    let rates = text.split_whitespace().next()?;
    let (up, down) = rates.split_once('/').unwrap_or((rates, rates));
    Some((rate(bits(up)?), rate(bits(down)?)))
}

fn bits(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|it: char| it.is_ascii_alphabetic());
    let factor = match text.get(digits.len()..)? {
        "" => 1,
        "k" | "K" => 1_000,
        "M" | "m" => 1_000_000,
        "G" | "g" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// The sub-attributes of a Vendor-Specific attribute. Of a vendor that writes them in another form, or writes nonsense,
/// there are none.
pub(crate) fn vendor(value: &[u8]) -> impl Iterator<Item = (u32, u8, &[u8])> {
    let (vendor, rest) = match value.split_first_chunk::<4>() {
        Some((vendor, rest)) => (u32::from_be_bytes(*vendor), rest),
        None => (0, &[][..]),
    };
    Attributes::of(rest).map(move |(kind, value)| (vendor, kind, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::radius::packet::List;
    use proptest::prelude::*;

    fn read(write: impl FnOnce(&mut List)) -> Result<Profile, Unusable> {
        let mut list = List::default();
        write(&mut list);
        profile(Attributes::of(list.as_bytes()))
    }

    fn one(kind: u8, value: &[u8]) -> Result<Profile, Unusable> {
        read(|list| list.bytes(kind, value).unwrap())
    }

    fn of_vendor(vendor: u32, kind: u8, value: &[u8]) -> Result<Profile, Unusable> {
        read(|list| list.vendor(vendor, kind, value).unwrap())
    }

    fn kbps(kbps: u32) -> Option<RateLimit> {
        Some(RateLimit {
            kbps,
            burst_bytes: None,
        })
    }

    #[test]
    fn every_attribute_reaches_its_place() {
        let prefix = |text: &str, length| Prefix {
            address: text.parse().unwrap(),
            length,
        };
        let read = read(|list| {
            list.number(a::SERVICE_TYPE, 2);
            list.number(a::FRAMED_PROTOCOL, 1);
            list.bytes(a::FRAMED_IP_ADDRESS, &[100, 64, 0, 9]).unwrap();
            list.bytes(a::FRAMED_POOL, b"office").unwrap();
            list.bytes(a::FILTER_ID, b"gold").unwrap();
            list.bytes(a::FILTER_ID, b"ignored").unwrap();
            list.bytes(a::CLASS, b"one").unwrap();
            list.bytes(a::CLASS, b"").unwrap();
            list.bytes(a::FRAMED_ROUTE, b"10.1.0.0/16 0.0.0.0 5 7")
                .unwrap();
            list.bytes(a::FRAMED_ROUTE, b"192.168.3.0").unwrap();
            list.number(a::SESSION_TIMEOUT, 3_600);
            list.number(a::IDLE_TIMEOUT, 0);
            list.number(a::ACCT_INTERIM_INTERVAL, 1);
            let on_link = [0, 64, 0x20, 1, 0xd, 0xb8, 0, 0, 0, 5];
            list.bytes(a::FRAMED_IPV6_PREFIX, &on_link).unwrap();
            let delegated = [0, 56, 0x20, 1, 0xd, 0xb8, 0, 1, 1];
            list.bytes(a::DELEGATED_IPV6_PREFIX, &delegated).unwrap();
            for last in 1..=3 {
                let mut server = [0; 16];
                (server[0], server[15]) = (0x20, last);
                list.bytes(a::DNS_SERVER_IPV6_ADDRESS, &server).unwrap();
            }
            list.vendor(a::MICROSOFT, a::MS_PRIMARY_DNS_SERVER, &[9, 9, 9, 9])
                .unwrap();
            list.vendor(a::MICROSOFT, a::MS_SECONDARY_DNS_SERVER, &[0; 4])
                .unwrap();
            list.vendor(
                a::WISPR,
                a::WISPR_BANDWIDTH_MAX_UP,
                &5_000_001u32.to_be_bytes(),
            )
            .unwrap();
            list.vendor(a::WISPR, a::WISPR_BANDWIDTH_MAX_DOWN, &0u32.to_be_bytes())
                .unwrap();
            list.vendor(a::MIKROTIK, a::MIKROTIK_TOTAL_LIMIT, &7u32.to_be_bytes())
                .unwrap();
            let gigawords = a::MIKROTIK_TOTAL_LIMIT_GIGAWORDS;
            list.vendor(a::MIKROTIK, gigawords, &2u32.to_be_bytes())
                .unwrap();
            list.vendor(99, 1, b"of somebody else").unwrap();
            list.bytes(250, b"unknown").unwrap();
            list.bytes(a::REPLY_MESSAGE, &[b'a'; 200]).unwrap();
            list.bytes(a::REPLY_MESSAGE, &[b'b'; 200]).unwrap();
        });
        let mut message = vec![b'a'; 200];
        message.extend([b'b'; 53]);
        let route = |network: [u8; 4], length, metric| FramedRoute {
            network: network.into(),
            length,
            metric,
        };
        let expected = Profile {
            framed_ip: Some(Ipv4Addr::new(100, 64, 0, 9)),
            framed_pool: Some("office".to_owned()),
            framed_ipv6_prefix: Some(prefix("2001:db8:0:5::", 64)),
            delegated_ipv6_prefix: Some(prefix("2001:db8:1:100::", 56)),
            framed_routes: vec![route([10, 1, 0, 0], 16, 5), route([192, 168, 3, 0], 24, 1)],
            dns: [Some(Ipv4Addr::new(9, 9, 9, 9)), None],
            dns6: ["2000::1", "2000::2"].map(|it| Some(it.parse().unwrap())),
            session_timeout: Some(Duration::from_secs(3_600)),
            idle_timeout: None,
            quota_octets: Some((2 << 32) + 7),
            interim_interval: Some(Duration::from_secs(60)),
            class: vec![b"one".to_vec(), Vec::new()],
            filter_id: Some("gold".to_owned()),
            rate_up: kbps(5_001),
            rate_down: None,
            message,
        };
        assert_eq!(read, Ok(expected));
    }

    #[test]
    fn mikrotik_s_rates_come_before_wispr_s_and_up_is_what_the_subscriber_sends() {
        let both = read(|list| {
            list.vendor(a::WISPR, a::WISPR_BANDWIDTH_MAX_UP, &9_000u32.to_be_bytes())
                .unwrap();
            list.vendor(
                a::MIKROTIK,
                a::MIKROTIK_RATE_LIMIT,
                b"512k/10M 1M/20M 1/1 8",
            )
            .unwrap();
        });
        let both = both.unwrap();
        assert_eq!((both.rate_up, both.rate_down), (kbps(512), kbps(10_000)));
        for (text, up, down) in [
            ("1G", kbps(1_000_000), kbps(1_000_000)),
            ("0/64000", None, kbps(64)),
            ("999999999999999/1", kbps(400_000_000), kbps(1)),
        ] {
            let read = of_vendor(a::MIKROTIK, a::MIKROTIK_RATE_LIMIT, text.as_bytes()).unwrap();
            assert_eq!((read.rate_up, read.rate_down), (up, down), "{text}");
        }
    }

    #[test]
    fn addresses_that_let_the_gateway_choose_are_no_address() {
        for value in [[255, 255, 255, 254], [255, 255, 255, 255]] {
            assert_eq!(one(a::FRAMED_IP_ADDRESS, &value), Ok(Profile::default()));
        }
    }

    #[test]
    fn each_value_that_cannot_be_names_its_attribute() {
        let cases: &[(u8, &[u8], &str)] = &[
            (a::SERVICE_TYPE, &[0, 0, 0, 6], "Service-Type"),
            (a::SERVICE_TYPE, &[0, 0, 2], "Service-Type"),
            (a::FRAMED_PROTOCOL, &[0, 0, 0, 2], "Framed-Protocol"),
            (a::FRAMED_IP_ADDRESS, &[100, 64, 0], "Framed-IP-Address"),
            (a::FRAMED_IP_ADDRESS, &[0, 0, 0, 0], "Framed-IP-Address"),
            (a::FRAMED_IP_ADDRESS, &[127, 0, 0, 1], "Framed-IP-Address"),
            (a::FRAMED_IP_ADDRESS, &[224, 0, 0, 1], "Framed-IP-Address"),
            (a::FRAMED_POOL, b"", "Framed-Pool"),
            (a::FRAMED_POOL, b"\xff", "Framed-Pool"),
            (a::FILTER_ID, b"a\n", "Filter-Id"),
            (a::SESSION_TIMEOUT, &[0; 5], "Session-Timeout"),
            (a::IDLE_TIMEOUT, &[], "Idle-Timeout"),
            (a::ACCT_INTERIM_INTERVAL, &[0; 3], "Acct-Interim-Interval"),
            (
                a::FRAMED_IPV6_PREFIX,
                &[0, 56, 0x20, 1, 0, 0, 0, 0, 0],
                "Framed-IPv6-Prefix",
            ),
            (a::FRAMED_IPV6_PREFIX, &[0, 64, 0x20], "Framed-IPv6-Prefix"),
            (a::DELEGATED_IPV6_PREFIX, &[0], "Delegated-IPv6-Prefix"),
            (
                a::DELEGATED_IPV6_PREFIX,
                &[0, 0, 0x20],
                "Delegated-IPv6-Prefix",
            ),
            (
                a::DELEGATED_IPV6_PREFIX,
                &[0, 65, 0x20, 0, 0, 0, 0, 0, 0, 0, 0],
                "Delegated-IPv6-Prefix",
            ),
            (
                a::DELEGATED_IPV6_PREFIX,
                &[0, 8, 0x20, 1],
                "Delegated-IPv6-Prefix",
            ),
            (a::DELEGATED_IPV6_PREFIX, &[0; 19], "Delegated-IPv6-Prefix"),
            (
                a::DNS_SERVER_IPV6_ADDRESS,
                &[0; 15],
                "DNS-Server-IPv6-Address",
            ),
            (a::FRAMED_ROUTE, b"", "Framed-Route"),
            (a::FRAMED_ROUTE, b"10.0.0.1/24", "Framed-Route"),
            (a::FRAMED_ROUTE, b"10.0.0.0/33", "Framed-Route"),
            (a::FRAMED_ROUTE, b"224.0.0.0/4", "Framed-Route"),
            (a::FRAMED_ROUTE, b"10.0.0.0/8 gateway", "Framed-Route"),
            (a::FRAMED_ROUTE, b"10.0.0.0/8 0.0.0.0 x", "Framed-Route"),
        ];
        for (kind, value, name) in cases {
            assert_eq!(one(*kind, value), Err(Unusable(name)), "{kind} {value:?}");
        }
        let cases: &[(u32, u8, &[u8], &str)] = &[
            (
                a::MICROSOFT,
                a::MS_PRIMARY_DNS_SERVER,
                &[1],
                "MS-Primary-DNS-Server",
            ),
            (
                a::MICROSOFT,
                a::MS_SECONDARY_DNS_SERVER,
                &[224, 0, 0, 1],
                "MS-Secondary-DNS-Server",
            ),
            (
                a::WISPR,
                a::WISPR_BANDWIDTH_MAX_UP,
                b"1M",
                "WISPr-Bandwidth-Max-Up",
            ),
            (
                a::WISPR,
                a::WISPR_BANDWIDTH_MAX_DOWN,
                b"",
                "WISPr-Bandwidth-Max-Down",
            ),
            (
                a::MIKROTIK,
                a::MIKROTIK_RATE_LIMIT,
                b"",
                "Mikrotik-Rate-Limit",
            ),
            (
                a::MIKROTIK,
                a::MIKROTIK_RATE_LIMIT,
                b"1M/",
                "Mikrotik-Rate-Limit",
            ),
            (
                a::MIKROTIK,
                a::MIKROTIK_RATE_LIMIT,
                b"1X",
                "Mikrotik-Rate-Limit",
            ),
            (
                a::MIKROTIK,
                a::MIKROTIK_RATE_LIMIT,
                b"99999999999999999999",
                "Mikrotik-Rate-Limit",
            ),
            (
                a::MIKROTIK,
                a::MIKROTIK_RATE_LIMIT,
                b"18446744073709551615G",
                "Mikrotik-Rate-Limit",
            ),
            (
                a::MIKROTIK,
                a::MIKROTIK_TOTAL_LIMIT,
                &[0; 8],
                "Mikrotik-Total-Limit",
            ),
            (
                a::MIKROTIK,
                a::MIKROTIK_TOTAL_LIMIT_GIGAWORDS,
                &[0; 3],
                "Mikrotik-Total-Limit-Gigawords",
            ),
        ];
        for (vendor, kind, value, name) in cases {
            assert_eq!(
                of_vendor(*vendor, *kind, value),
                Err(Unusable(name)),
                "{kind} {value:?}"
            );
        }
        let many = read(|list| {
            for n in 0..=16 {
                list.bytes(a::FRAMED_ROUTE, format!("10.{n}.0.0/16").as_bytes())
                    .unwrap();
            }
        });
        assert_eq!(many, Err(Unusable("Framed-Route")));
    }

    #[test]
    fn a_default_route_behind_the_subscriber_is_one() {
        let read = one(a::FRAMED_ROUTE, b"0.0.0.0/0").unwrap();
        assert_eq!(read.framed_routes[0].length, 0);
    }

    proptest! {
        #[test]
        fn terms_are_read_from_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), kind: u8) {
            let _ = profile(Attributes::of(&bytes));
            if let Ok(profile) = one(kind, &bytes) {
                prop_assert!(profile.message.len() <= MESSAGE_MAX);
                for rate in [profile.rate_up, profile.rate_down].into_iter().flatten() {
                    prop_assert!((1..=400_000_000).contains(&rate.kbps));
                }
            }
        }

        #[test]
        fn rates_of_any_text_are_read_or_refused(text in "[0-9kMGx/ ]{0,24}") {
            let _ = of_vendor(a::MIKROTIK, a::MIKROTIK_RATE_LIMIT, text.as_bytes());
            let _ = one(a::FRAMED_ROUTE, text.as_bytes());
        }
    }
}
