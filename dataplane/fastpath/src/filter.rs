//! Stage: the session's filter, a small rule set by name. The first rule that fits decides.
//!
//! Rules see the subscriber's own address and port: upstream before NAT, downstream after it. An ICMP error is matched as
//! ICMP, whatever it quotes.

mod rules;

use bng_shm::{Counter, FilterId, FilterRule, PolicyLine, Reader};
use bng_wire::ipv4::IPV4_MIN_LEN;

pub(crate) use rules::{Key, Ports, Rules};

use crate::first_fragments::Note;
use crate::flow::Direction;
use crate::ip::Packet;
use crate::verdict::{Step, drop};

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
        self.by_id(policy.filter())
    }

    /// As [`Self::of`].
    #[inline(always)]
    pub(crate) fn by_id(&self, id: Option<FilterId>) -> Step<Option<&Filter>> {
        let Some(id) = id else {
            return Ok(None);
        };
        match self.sets.get(usize::from(id.0)) {
            Some(Some(filter)) => Ok(Some(filter)),
            _ => drop(Counter::NoPolicy),
        }
    }
}

/// From the subscriber; `frame` holds the packet as it was received. A later fragment has the ports of the `first` one, if
/// that was noted.
#[inline(always)]
pub(crate) fn upstream(
    filters: &Filters,
    policy: &PolicyLine,
    packet: &Packet,
    frame: &[u8],
    first: Option<&Note>,
) -> Step<()> {
    let Some(filter) = filters.of(policy)? else {
        return Ok(());
    };
    let key = Key {
        protocol: packet.protocol,
        remote: packet.dst,
        ports: first.map_or_else(
            || ports(packet, frame, Direction::Upstream),
            |first| first.ports(packet.protocol),
        ),
    };
    if filter.up.v4.pass(&key) {
        Ok(())
    } else {
        drop(Counter::FilterUpstream)
    }
}

/// To the subscriber; `frame` holds the packet as it was received and `inside_port` is the port NAT leads it to. As
/// for [`upstream`], a later fragment has the ports of the `first` one.
#[inline(always)]
pub(crate) fn downstream(
    filters: &Filters,
    policy: &PolicyLine,
    packet: &Packet,
    frame: &[u8],
    inside_port: Option<u16>,
    first: Option<&Note>,
) -> Step<()> {
    let Some(filter) = filters.of(policy)? else {
        return Ok(());
    };
    let key = Key {
        protocol: packet.protocol,
        remote: packet.src,
        ports: first.map_or_else(
            || ports(packet, frame, Direction::Downstream).led_to(inside_port),
            |first| first.ports(packet.protocol),
        ),
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
