//! Stage: the session's filter, a small rule set by name. The first rule that fits decides.
//!
//! Rules see the subscriber's own address and port: upstream before NAT, downstream after it. Ports are those of TCP and
//! UDP; an ICMP error is matched as ICMP, whatever it quotes. A fragment whose ports are not known (any but the first, or
//! a first one cut short) fits a rule with port conditions if that rule drops, and does not if it accepts: fail closed.
//!
//! A packet is rarely one that any rule is about. So rules are compiled: a set of ports (or protocols) per rule set and
//! direction tells in a few instructions that none can fit, and only else the rules are walked.

use bng_shm::{Counter, FilterAction, FilterId, FilterRule, PolicyLine, Reader};
use bng_wire::ipv4::{IPV4_MIN_LEN, protocol};
use std::net::IpAddr;

use crate::flow::Direction;
use crate::ip::Packet;
use crate::verdict::{Step, drop};

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
    fn led_to(self, inside_port: Option<u16>) -> Self {
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
    fn new(rules: &[FilterRule], drop_other: bool) -> Self {
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

/// One direction's rules.
#[derive(Debug, Clone)]
pub(crate) struct Families {
    pub(crate) v4: Rules<u32>,
    /// Addresses as 128-bit integers.
    pub(crate) v6: Rules<u128>,
}

impl Families {
    fn new(rules: &[FilterRule], drop_other: bool) -> Self {
        Self {
            v4: Rules::new(rules, drop_other),
            v6: Rules::new(rules, drop_other),
        }
    }
}

/// A rule set.
#[derive(Debug, Clone)]
pub(crate) struct Filter {
    pub(crate) up: Families,
    pub(crate) down: Families,
}

impl Filter {
    fn new(filter: &bng_shm::Filter) -> Self {
        Self {
            up: Families::new(&filter.up, filter.drop_other_up),
            down: Families::new(&filter.down, filter.drop_other_down),
        }
    }
}

/// A worker's rule sets.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    copy: bng_shm::Filters,
    sets: Vec<Option<Filter>>,
}

impl Filters {
    /// Takes over what control has published.
    #[inline]
    pub(crate) fn refresh(&mut self, reader: &Reader) {
        if reader.refresh_filters(&mut self.copy) {
            self.compile();
        }
    }

    #[cold]
    fn compile(&mut self) {
        self.sets = (0..=u8::MAX)
            .map(|id| self.copy.get(FilterId(id)).map(Filter::new))
            .collect();
    }

    /// The rule set of a policy, if it names one. One that is not published lets nothing pass.
    #[inline(always)]
    pub(crate) fn of(&self, policy: &PolicyLine) -> Step<Option<&Filter>> {
        let Some(id) = policy.filter() else {
            return Ok(None);
        };
        match self.sets.get(usize::from(id.0)) {
            Some(Some(filter)) => Ok(Some(filter)),
            _ => drop(Counter::NoPolicy),
        }
    }
}

/// From the subscriber; `frame` holds the packet as it was received.
#[inline(always)]
pub(crate) fn upstream(
    filters: &Filters,
    policy: &PolicyLine,
    packet: &Packet,
    frame: &[u8],
) -> Step<()> {
    let Some(filter) = filters.of(policy)? else {
        return Ok(());
    };
    let key = Key {
        protocol: packet.protocol,
        remote: packet.dst,
        ports: ports(packet, frame, Direction::Upstream),
    };
    if filter.up.v4.pass(&key) {
        Ok(())
    } else {
        drop(Counter::FilterUpstream)
    }
}

/// To the subscriber; `frame` holds the packet as it was received and `inside_port` is the port NAT leads it to.
#[inline(always)]
pub(crate) fn downstream(
    filters: &Filters,
    policy: &PolicyLine,
    packet: &Packet,
    frame: &[u8],
    inside_port: Option<u16>,
) -> Step<()> {
    let Some(filter) = filters.of(policy)? else {
        return Ok(());
    };
    let key = Key {
        protocol: packet.protocol,
        remote: packet.src,
        ports: ports(packet, frame, Direction::Downstream).led_to(inside_port),
    };
    if filter.down.v4.pass(&key) {
        Ok(())
    } else {
        drop(Counter::FilterDownstream)
    }
}

#[inline(always)]
fn ports(packet: &Packet, frame: &[u8], direction: Direction) -> Ports {
    let l4 = (!packet.is_later_fragment())
        .then(|| packet.bytes(frame).get(IPV4_MIN_LEN..))
        .flatten();
    Ports::read(packet.protocol, l4, direction)
}
