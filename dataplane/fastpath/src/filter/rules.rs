//! Rules, compiled for one direction and address family.
//!
//! Ports are those of TCP and UDP. A fragment whose ports are not known (any but the first, or a first one cut short) fits
//! a rule with port conditions if that rule drops, and does not if it accepts: fail closed.
//!
//! A packet is rarely one that any rule is about. So a set of ports (or of protocols, for rules without ports) tells in a
//! few instructions that none can fit, and only else the rules are walked.

use std::net::IpAddr;

use bng_shm::{FilterAction, FilterRule};
use bng_wire::ipv4::protocol;

use crate::flow::Direction;

/// What rules look at in a packet; `A` is the address, an integer in host order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key<A> {
    /// Protocol of the payload (IPv6: behind the extension headers).
    pub(crate) protocol: u8,
    /// The other end's address.
    pub(crate) remote: A,
    pub(crate) ports: Ports,
}

/// Ports of a packet, as the subscriber sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ports {
    /// The protocol has none.
    None,
    /// TCP or UDP whose header is not in this packet.
    Unknown,
    Known {
        remote: u16,
        local: u16,
    },
}

impl Ports {
    /// The ports of a packet of this protocol and direction. `l4` is what follows the IP headers, `None` in a fragment other
    /// than the first.
    #[inline(always)]
    pub(crate) fn read(protocol: u8, l4: Option<&[u8]>, direction: Direction) -> Self {
        if !matches!(protocol, protocol::TCP | protocol::UDP) {
            return Self::None;
        }
        let Some([a, b, c, d]) = l4.and_then(|l4| l4.first_chunk()) else {
            return Self::Unknown;
        };
        let source = u16::from_be_bytes([*a, *b]);
        let destination = u16::from_be_bytes([*c, *d]);
        match direction {
            Direction::Upstream => Self::Known {
                remote: destination,
                local: source,
            },
            Direction::Downstream => Self::Known {
                remote: source,
                local: destination,
            },
        }
    }

    /// With the local port that NAT leads to, if it does.
    #[inline(always)]
    pub(crate) fn led_to(self, inside_port: Option<u16>) -> Self {
        match (self, inside_port) {
            (Self::Known { remote, .. }, Some(local)) => Self::Known { remote, local },
            (ports, _) => ports,
        }
    }
}

/// An address as rules compare it.
pub(crate) trait Address: Copy + Eq {
    /// The network's address and mask; `None` for a network of the other family.
    fn network(address: IpAddr, length: u8) -> Option<(Self, Self)>;
    /// Bits of both.
    fn masked(self, mask: Self) -> Self;
    /// The network of all addresses.
    const ANY: (Self, Self);
}

impl Address for u32 {
    const ANY: (Self, Self) = (0, 0);

    fn network(address: IpAddr, length: u8) -> Option<(Self, Self)> {
        let IpAddr::V4(address) = address else {
            return None;
        };
        let mask = u32::MAX
            .checked_shl(32 - u32::from(length.min(32)))
            .unwrap_or(0);
        Some((address.to_bits() & mask, mask))
    }

    fn masked(self, mask: Self) -> Self {
        self & mask
    }
}

impl Address for u128 {
    const ANY: (Self, Self) = (0, 0);

    fn network(address: IpAddr, length: u8) -> Option<(Self, Self)> {
        let IpAddr::V6(address) = address else {
            return None;
        };
        let mask = u128::MAX
            .checked_shl(128 - u32::from(length.min(128)))
            .unwrap_or(0);
        Some((address.to_bits() & mask, mask))
    }

    fn masked(self, mask: Self) -> Self {
        self & mask
    }
}

/// Numbers that may be in a set: membership by the lower bits, so "no" is certain and "yes" is not.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sieve([u64; 8]);

impl Sieve {
    const EMPTY: Self = Self([0; 8]);
    const BITS: u16 = 512;

    fn add(&mut self, low: u16, high: u16) {
        if high.saturating_sub(low) >= Self::BITS {
            self.0 = [u64::MAX; 8];
            return;
        }
        for number in low..=high {
            if let Some(word) = self.0.get_mut(usize::from(number % Self::BITS / 64)) {
                *word |= 1 << (number % 64);
            }
        }
    }

    #[inline(always)]
    fn may_have(&self, number: u16) -> bool {
        let word = self.0.get(usize::from(number / 64) % 8);
        word.is_some_and(|word| word >> (number % 64) & 1 != 0)
    }
}

/// A rule for one family.
#[derive(Debug, Clone)]
struct Rule<A> {
    protocol: Option<u8>,
    network: (A, A),
    remote_ports: Option<(u16, u16)>,
    local_ports: Option<(u16, u16)>,
    drops: bool,
}

impl<A: Address> Rule<A> {
    /// `None` when the rule is about the other family.
    fn of(rule: &FilterRule) -> Option<Self> {
        let network = match rule.remote {
            None => A::ANY,
            Some((address, length)) => A::network(address, length)?,
        };
        Some(Self {
            protocol: rule.protocol,
            network,
            remote_ports: rule.remote_ports,
            local_ports: rule.local_ports,
            drops: rule.action == FilterAction::Drop,
        })
    }

    fn fits(&self, key: &Key<A>) -> bool {
        let (network, mask) = self.network;
        self.protocol.is_none_or(|wanted| wanted == key.protocol)
            && key.remote.masked(mask) == network
            && self.fits_ports(key.ports)
    }

    fn fits_ports(&self, ports: Ports) -> bool {
        let within = |range: Option<(u16, u16)>, port: u16| {
            range.is_none_or(|(low, high)| (low..=high).contains(&port))
        };
        match ports {
            _ if self.remote_ports.is_none() && self.local_ports.is_none() => true,
            Ports::None => false,
            Ports::Unknown => self.drops,
            Ports::Known { remote, local } => {
                within(self.remote_ports, remote) && within(self.local_ports, local)
            }
        }
    }
}

/// The rules of one set, direction and family.
#[derive(Debug, Clone)]
pub(crate) struct Rules<A> {
    /// Protocols of rules without ports.
    protocols: Sieve,
    /// Ports of rules with ports.
    remote_ports: Sieve,
    local_ports: Sieve,
    rules: Box<[Rule<A>]>,
    /// What no rule fits is dropped.
    drop_other: bool,
}

impl<A: Address> Rules<A> {
    pub(super) fn new(rules: &[FilterRule], drop_other: bool) -> Self {
        let rules: Box<[Rule<A>]> = rules.iter().filter_map(Rule::of).collect();
        let mut compiled = Self {
            protocols: Sieve::EMPTY,
            remote_ports: Sieve::EMPTY,
            local_ports: Sieve::EMPTY,
            rules: Box::default(),
            drop_other,
        };
        for rule in &rules {
            match (rule.remote_ports, rule.local_ports, rule.protocol) {
                // One of its conditions is enough to tell that a rule does not fit.
                (Some((low, high)), _, _) => compiled.remote_ports.add(low, high),
                (None, Some((low, high)), _) => compiled.local_ports.add(low, high),
                (None, None, Some(protocol)) => {
                    compiled.protocols.add(protocol.into(), protocol.into());
                }
                (None, None, None) => compiled.protocols.add(0, u16::MAX),
            }
        }
        compiled.rules = rules;
        compiled
    }

    /// Whether the rules let the packet pass.
    #[inline(always)]
    pub(crate) fn pass(&self, key: &Key<A>) -> bool {
        let by_ports = match key.ports {
            Ports::None => false,
            Ports::Unknown => true,
            Ports::Known { remote, local } => {
                self.remote_ports.may_have(remote) | self.local_ports.may_have(local)
            }
        };
        if by_ports | self.protocols.may_have(key.protocol.into()) {
            self.walk(key)
        } else {
            !self.drop_other
        }
    }

    #[inline(never)]
    fn walk(&self, key: &Key<A>) -> bool {
        let first = self.rules.iter().find(|rule| rule.fits(key));
        !first.map_or(self.drop_other, |rule| rule.drops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TCP: u8 = protocol::TCP;
    const UDP: u8 = protocol::UDP;
    const ICMP: u8 = protocol::ICMP;

    fn rule(drops: bool) -> FilterRule {
        FilterRule {
            action: if drops {
                FilterAction::Drop
            } else {
                FilterAction::Accept
            },
            protocol: None,
            remote: None,
            remote_ports: None,
            local_ports: None,
        }
    }

    fn known(remote: u16, local: u16) -> Ports {
        Ports::Known { remote, local }
    }

    fn key(protocol: u8, remote: [u8; 4], ports: Ports) -> Key<u32> {
        let remote = u32::from_be_bytes(remote);
        Key {
            protocol,
            remote,
            ports,
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides_and_else_the_default() {
        let dns = FilterRule {
            protocol: Some(UDP),
            remote: Some(([9, 9, 9, 0].into(), 24)),
            remote_ports: Some((53, 53)),
            ..rule(false)
        };
        let no_dns = FilterRule {
            remote_ports: Some((53, 53)),
            ..rule(true)
        };
        for drop_other in [false, true] {
            let rules = Rules::new(&[dns, no_dns], drop_other);
            assert!(rules.pass(&key(UDP, [9, 9, 9, 9], known(53, 5_000))));
            assert!(!rules.pass(&key(UDP, [9, 9, 8, 9], known(53, 5_000))));
            assert!(!rules.pass(&key(TCP, [9, 9, 9, 9], known(53, 5_000))));
            let other = key(TCP, [9, 9, 9, 9], known(54, 53));
            assert_eq!(rules.pass(&other), !drop_other);
            assert_eq!(
                rules.pass(&key(ICMP, [9, 9, 9, 9], Ports::None)),
                !drop_other
            );
        }
    }

    #[test]
    fn rules_about_local_ports_protocols_or_networks_alone_work() {
        let local = FilterRule {
            local_ports: Some((135, 139)),
            ..rule(true)
        };
        let gre = FilterRule {
            protocol: Some(47),
            ..rule(true)
        };
        let network = FilterRule {
            remote: Some(([10, 0, 0, 0].into(), 8)),
            ..rule(true)
        };
        let only = |rule: FilterRule| Rules::<u32>::new(&[rule], false);
        let far = [8, 8, 8, 8];
        assert!(!only(local).pass(&key(TCP, far, known(1, 137))));
        assert!(only(local).pass(&key(TCP, far, known(137, 1))));
        assert!(!only(gre).pass(&key(47, far, Ports::None)));
        assert!(only(gre).pass(&key(50, far, Ports::None)));
        assert!(!only(network).pass(&key(ICMP, [10, 1, 2, 3], Ports::None)));
        assert!(only(network).pass(&key(ICMP, [11, 1, 2, 3], Ports::None)));
        let all = FilterRule {
            remote: Some(([0, 0, 0, 0].into(), 0)),
            ..rule(true)
        };
        assert!(!only(all).pass(&key(TCP, far, known(1, 1))));
    }

    #[test]
    fn rules_of_the_other_family_fit_nothing_and_rules_without_a_network_both() {
        let network: (IpAddr, u8) = ("2001:db8::".parse().unwrap(), 32);
        let v6 = FilterRule {
            remote: Some(network),
            ..rule(true)
        };
        let address = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().to_bits();
        let key6 = |remote| Key {
            protocol: TCP,
            remote,
            ports: known(1, 2),
        };
        let far = key(TCP, [32, 1, 13, 184], known(1, 2));
        assert!(Rules::<u32>::new(&[v6], false).pass(&far));
        let rules = Rules::<u128>::new(&[v6], false);
        assert!(!rules.pass(&key6(address("2001:db8:ffff::1"))));
        assert!(rules.pass(&key6(address("2001:db9::1"))));
        assert!(!Rules::<u32>::new(&[rule(true)], false).pass(&far));
        assert!(!Rules::<u128>::new(&[rule(true)], false).pass(&key6(1)));
    }

    #[test]
    fn a_fragment_without_ports_fits_what_drops_and_not_what_accepts() {
        let ports = |drops, protocol| FilterRule {
            protocol,
            remote_ports: Some((25, 25)),
            ..rule(drops)
        };
        let fragment = key(TCP, [8, 8, 8, 8], Ports::Unknown);
        let pass = |rules: &[FilterRule], drop_other| Rules::new(rules, drop_other).pass(&fragment);
        assert!(!pass(&[ports(true, None)], false));
        assert!(!pass(&[ports(false, None)], true));
        assert!(!pass(&[ports(false, None), rule(true)], false));
        assert!(pass(&[ports(true, Some(UDP))], false), "another protocol's");
        // What has no ports at all is no fragment of what has.
        let gre = key(47, [8, 8, 8, 8], Ports::None);
        assert!(Rules::new(&[ports(true, None)], false).pass(&gre));
    }

    #[test]
    fn ports_are_the_subscribers_and_the_other_ends_in_both_directions() {
        let l4 = [0x13, 0x88, 0x00, 0x35, 0];
        let up = Ports::read(UDP, Some(&l4), Direction::Upstream);
        assert_eq!(up, known(53, 5_000));
        let down = Ports::read(UDP, Some(&l4), Direction::Downstream);
        assert_eq!(down, known(5_000, 53));
        assert_eq!(down.led_to(Some(7)), known(5_000, 7));
        assert_eq!(
            Ports::read(UDP, Some(&l4[..3]), Direction::Upstream),
            Ports::Unknown
        );
        assert_eq!(Ports::read(TCP, None, Direction::Upstream), Ports::Unknown);
        assert_eq!(Ports::Unknown.led_to(Some(7)), Ports::Unknown);
        assert_eq!(
            Ports::read(ICMP, Some(&l4), Direction::Upstream),
            Ports::None
        );
    }

    /// The rules as the documentation says them, one after the other.
    fn by_the_book(rules: &[FilterRule], drop_other: bool, key: &Key<u32>) -> bool {
        let fits = |rule: &&FilterRule| {
            let network = match rule.remote {
                None => true,
                Some((IpAddr::V4(network), length)) => (0..u32::from(length)).all(|bit| {
                    let mask = 1 << (31 - bit);
                    network.to_bits() & mask == key.remote & mask
                }),
                Some((IpAddr::V6(_), _)) => false,
            };
            let conditions = rule.remote_ports.is_some() || rule.local_ports.is_some();
            let range =
                |range: Option<(u16, u16)>, port| range.is_none_or(|(l, h)| l <= port && port <= h);
            let ports = match key.ports {
                Ports::None => !conditions,
                Ports::Unknown => !conditions || rule.action == FilterAction::Drop,
                Ports::Known { remote, local } => {
                    range(rule.remote_ports, remote) && range(rule.local_ports, local)
                }
            };
            rule.protocol.is_none_or(|wanted| wanted == key.protocol) && network && ports
        };
        match rules.iter().find(fits) {
            Some(rule) => rule.action == FilterAction::Accept,
            None => !drop_other,
        }
    }

    fn any_port() -> impl Strategy<Value = u16> {
        prop_oneof![Just(0), Just(25), Just(537), Just(u16::MAX), any::<u16>()]
    }

    fn any_range() -> impl Strategy<Value = Option<(u16, u16)>> {
        // Also the wrong way round, which holds nothing.
        prop::option::of((any_port(), any_port()))
    }

    fn any_protocol() -> impl Strategy<Value = u8> {
        prop_oneof![Just(TCP), Just(UDP), Just(ICMP), Just(47)]
    }

    prop_compose! {
        fn any_rule()(
            drops: bool, protocol in prop::option::of(any_protocol()),
            remote in prop::option::of((0u32..4, 28u8..=32, any::<bool>())),
            remote_ports in any_range(), local_ports in any_range(),
        ) -> FilterRule {
            let remote = remote.map(|(address, length, v6)| match v6 {
                true => (IpAddr::from([address as u16; 8]), length),
                false => (IpAddr::from(address.to_be_bytes()), length),
            });
            FilterRule { protocol, remote, remote_ports, local_ports, ..rule(drops) }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_048))]
        #[test]
        fn compiled_rules_say_what_the_rules_say(
            rules in prop::collection::vec(any_rule(), 0..8), drop_other: bool,
            protocol in any_protocol(), remote in 0u32..20,
            ports in prop::option::of((any_port(), any_port())),
        ) {
            let ports = match ports {
                _ if !matches!(protocol, TCP | UDP) => Ports::None,
                None => Ports::Unknown,
                Some((remote, local)) => known(remote, local),
            };
            let key = Key { protocol, remote, ports };
            let compiled = Rules::new(&rules, drop_other);
            prop_assert_eq!(compiled.pass(&key), by_the_book(&rules, drop_other, &key));
        }
    }
}
