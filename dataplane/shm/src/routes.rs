//! Routes and next hops as control mirrors them from the kernel.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Index of a next hop. 0 is always [`Adjacency::NoRoute`], so that a FIB's default means "no route".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NextHopId(pub u32);

/// A route: prefix and next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route {
    /// Network address; host bits are zero.
    pub prefix: Ipv4Addr,
    /// Prefix length, 0 to 32.
    pub length: u8,
    /// Where to.
    pub next_hop: NextHopId,
}

impl Route {
    pub(crate) fn to_words(self) -> [u64; 2] {
        [
            u64::from(self.prefix.to_bits()) << 32 | u64::from(self.length),
            u64::from(self.next_hop.0),
        ]
    }

    pub(crate) fn from_words(words: [u64; 2]) -> Option<Self> {
        let length = (words[0] & 0xff) as u8;
        (length <= 32).then_some(Self {
            prefix: Ipv4Addr::from_bits((words[0] >> 32) as u32),
            length,
            next_hop: NextHopId(words[1] as u32),
        })
    }
}

/// An IPv6 route: prefix and next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Route6 {
    /// Network address; host bits are zero.
    pub prefix: Ipv6Addr,
    /// Prefix length, 0 to 128.
    pub length: u8,
    /// Where to.
    pub next_hop: NextHopId,
}

impl Route6 {
    pub(crate) fn to_words(self) -> [u64; 3] {
        let prefix = self.prefix.to_bits();
        [
            (prefix >> 64) as u64,
            prefix as u64,
            u64::from(self.length) << 32 | u64::from(self.next_hop.0),
        ]
    }

    pub(crate) fn from_words(words: [u64; 3]) -> Option<Self> {
        let length = (words[2] >> 32) as u8;
        (length <= 128).then_some(Self {
            prefix: Ipv6Addr::from_bits(u128::from(words[0]) << 64 | u128::from(words[1])),
            length,
            next_hop: NextHopId(words[2] as u32),
        })
    }
}

/// What a worker does with a packet for a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Adjacency {
    /// Nothing leads there: drop `no_route`.
    NoRoute,
    /// Send out of the port to this MAC address.
    Neighbour {
        /// Index of the core port among all ports.
        port: u8,
        /// Destination MAC address.
        mac: [u8; 6],
    },
    /// A gateway without a MAC address yet: drop `neighbour_unresolved` and ask control.
    Unresolved {
        /// Index of the core port among all ports.
        port: u8,
    },
    /// Connected network: the destination itself must be resolved (RFC 1812 section 5.2.4.2).
    Connected {
        /// Index of the core port among all ports.
        port: u8,
    },
    /// An address of the gateway itself: the kernel's, by the port's TAP twin.
    Local {
        /// Index of the core port among all ports.
        port: u8,
    },
    /// Blackhole, unreachable or prohibit route.
    Blackhole,
    /// Equal-cost paths (ECMP): one of `count` next hops from `first` on, by the flow's hash. None of them is a group.
    Group {
        /// The first member.
        first: NextHopId,
        /// Members, 1 to 64; a weight is a member more than once.
        count: u8,
    },
}

/// Members a group may have.
pub const MAX_GROUP: u8 = 64;

/// The kind of [`Adjacency::Neighbour`] in its word.
pub(crate) const NEIGHBOUR: u64 = 1;
/// The kind of [`Adjacency::Group`].
pub(crate) const GROUP: u64 = 6;

impl Adjacency {
    pub(crate) fn to_word(self) -> u64 {
        let word = |kind: u64, port: u8, mac: [u8; 6]| {
            let mut raw = [0; 8];
            raw[..6].copy_from_slice(&mac);
            u64::from_le_bytes(raw) | u64::from(port) << 48 | kind << 56
        };
        match self {
            Self::NoRoute => 0,
            Self::Neighbour { port, mac } => word(NEIGHBOUR, port, mac),
            Self::Unresolved { port } => word(2, port, [0; 6]),
            Self::Connected { port } => word(3, port, [0; 6]),
            Self::Local { port } => word(4, port, [0; 6]),
            Self::Blackhole => word(5, 0, [0; 6]),
            Self::Group { first, count } => {
                GROUP << 56 | u64::from(count) << 32 | u64::from(first.0)
            }
        }
    }

    #[inline]
    pub(crate) fn from_word(word: u64) -> Self {
        let port = (word >> 48) as u8;
        let b = word.to_le_bytes();
        match word >> 56 {
            NEIGHBOUR => Self::Neighbour {
                port,
                mac: [b[0], b[1], b[2], b[3], b[4], b[5]],
            },
            2 => Self::Unresolved { port },
            3 => Self::Connected { port },
            4 => Self::Local { port },
            5 => Self::Blackhole,
            GROUP => Self::Group {
                first: NextHopId(word as u32),
                count: (word >> 32) as u8,
            },
            _ => Self::NoRoute,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_adjacency_survives_its_word(port: u8, mac: [u8; 6], kind in 0..7) {
            let adjacency = match kind {
                0 => Adjacency::NoRoute,
                1 => Adjacency::Neighbour { port, mac },
                2 => Adjacency::Unresolved { port },
                3 => Adjacency::Connected { port },
                4 => Adjacency::Local { port },
                5 => Adjacency::Group {
                    first: NextHopId(u32::from_le_bytes([mac[0], mac[1], mac[2], mac[3]])),
                    count: port,
                },
                _ => Adjacency::Blackhole,
            };
            prop_assert_eq!(Adjacency::from_word(adjacency.to_word()), adjacency);
        }

        #[test]
        fn an_ipv6_route_survives_its_words(prefix: u128, length in 0u8..=128, next_hop: u32) {
            let route = Route6 { prefix: prefix.into(), length, next_hop: NextHopId(next_hop) };
            prop_assert_eq!(Route6::from_words(route.to_words()), Some(route));
        }

        #[test]
        fn a_route_survives_its_words(prefix: u32, length in 0u8..=32, next_hop: u32) {
            let route = Route { prefix: prefix.into(), length, next_hop: NextHopId(next_hop) };
            prop_assert_eq!(Route::from_words(route.to_words()), Some(route));
        }
    }
}
