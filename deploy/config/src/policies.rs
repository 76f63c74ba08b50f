//! `policies` and `filters`: what sessions may send and receive.

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

use crate::text::{decimal, from_text};

/// Name of the policy of sessions that have no other. Without an entry of this name it limits nothing, has no filter, and has
/// source check and MSS clamping on.
pub const DEFAULT_POLICY: &str = "default";

/// One entry of `policies`: what a session may do, by name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Name in users, VLAN entries and REST. 1 to 32 of `a-z 0-9 -`, unique among policies.
    pub name: String,
    /// Limit of what the subscriber sends. Default none: not limited.
    #[serde(default)]
    pub up: Option<Rate>,
    /// Limit of what the subscriber receives. Default none: not limited.
    #[serde(default)]
    pub down: Option<Rate>,
    /// Drop packets whose source address is not the session's (BCP 38). Default true.
    #[serde(default = "on")]
    pub source_check: bool,
    /// Lower the MSS option of TCP SYN packets to the session's MTU. Default true.
    #[serde(default = "on")]
    pub mss_clamp: bool,
    /// Name of the filter applied. Default none.
    #[serde(default)]
    pub filter: Option<String>,
}

fn on() -> bool {
    true
}

/// Section `up` or `down` of a policy: committed rate and burst (RFC 2697 without an excess burst).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Committed information rate of the IP packets, in kbit/s, 1 to 400,000,000.
    pub rate_kbps: u32,
    /// Committed burst size, in bytes of IP packets, 1,500 to 4,000,000,000. Default: see [`Rate::burst`].
    #[serde(default)]
    pub burst_bytes: Option<u32>,
}

/// Bytes of the smallest default burst: two packets of the usual size.
const SMALLEST_DEFAULT_BURST: u32 = 2 * 1500;
/// Largest burst, bytes.
pub(crate) const LARGEST_BURST: u32 = 4_000_000_000;

impl Rate {
    /// The burst, in bytes: as configured, or what the rate carries in 100 ms, but no less than two packets of 1,500 bytes.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.burst_bytes.unwrap_or_else(|| {
            // kbit/s over 100 ms: 100 bits or 12.5 bytes for each.
            let bytes = u64::from(self.rate_kbps) * 25 / 2;
            let bytes = u32::try_from(bytes).unwrap_or(LARGEST_BURST);
            bytes.clamp(SMALLEST_DEFAULT_BURST, LARGEST_BURST)
        })
    }
}

/// One entry of `filters`: a rule set by name. The first rule that fits decides.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Name in policies and REST. 1 to 32 of `a-z 0-9 -`, unique among filters.
    pub name: String,
    /// Rules for what the subscriber sends, 0 to 32.
    #[serde(default)]
    pub up: Vec<FilterRule>,
    /// Rules for what the subscriber receives, 0 to 32.
    #[serde(default)]
    pub down: Vec<FilterRule>,
    /// What becomes of upstream packets that no rule fits. Default accept.
    #[serde(default)]
    pub other_up: FilterAction,
    /// What becomes of downstream packets that no rule fits. Default accept.
    #[serde(default)]
    pub other_down: FilterAction,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FilterAction {
    /// It goes on.
    #[default]
    Accept,
    /// It is dropped and counted.
    Drop,
}

/// One rule of a filter; all conditions given must hold. "Remote" is the other end and "local" the subscriber (inside
/// NAT), in both directions.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterRule {
    /// What becomes of a packet that fits.
    pub action: FilterAction,
    /// IP protocol. Default none: any.
    #[serde(default)]
    pub protocol: Option<Protocol>,
    /// Remote network. Default none: any address of either family.
    #[serde(default)]
    pub remote: Option<Network>,
    /// Remote TCP or UDP ports. Default none: any, and packets without ports.
    #[serde(default)]
    pub remote_ports: Option<Ports>,
    /// The subscriber's TCP or UDP ports. Default none: any, and packets without ports.
    #[serde(default)]
    pub local_ports: Option<Ports>,
}

/// An IP protocol number (IANA registry): in the file a number or `tcp`, `udp`, `icmp`, `icmpv6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP (RFC 792).
    pub const ICMP: Self = Self(1);
    /// TCP (RFC 9293).
    pub const TCP: Self = Self(6);
    /// UDP (RFC 768).
    pub const UDP: Self = Self(17);
    /// ICMPv6 (RFC 4443).
    pub const ICMPV6: Self = Self(58);

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "icmp" => Self::ICMP,
            "tcp" => Self::TCP,
            "udp" => Self::UDP,
            "icmpv6" => Self::ICMPV6,
            number => Self(decimal(number, 0, 255)?.try_into().ok()?),
        })
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, Self::parse)
    }
}

/// An IPv4 or IPv6 network; an address stands for itself alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(pub IpNet);

impl Network {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let prefix = text.parse().ok();
        let address = || Some(IpNet::from(text.parse::<std::net::IpAddr>().ok()?));
        prefix.or_else(address).map(Self)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, Self::parse)
    }
}

/// TCP or UDP ports, both ends included: in the file a number, or `first-last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// First port.
    pub first: u16,
    /// Last port, not below the first.
    pub last: u16,
}

impl Ports {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text| u16::try_from(decimal(text, 0, 65_535)?).ok();
        let (first, last) = (port(first)?, port(last)?);
        (first <= last).then_some(Self { first, last })
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer, Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_100_ms_of_the_rate_unless_that_is_less_than_two_packets() {
        let burst = |rate_kbps, burst_bytes| {
            Rate {
                rate_kbps,
                burst_bytes,
            }
            .burst()
        };
        assert_eq!(burst(20_000, None), 250_000);
        assert_eq!(burst(64, None), 3_000);
        assert_eq!(burst(400_000_000, None), LARGEST_BURST);
        assert_eq!(burst(20_000, Some(1_500)), 1_500);
    }

    #[test]
    fn ports_and_protocols_are_numbers_ranges_and_names() {
        assert_eq!(
            Ports::parse("25"),
            Some(Ports {
                first: 25,
                last: 25
            })
        );
        assert_eq!(
            Ports::parse("0-65535"),
            Some(Ports {
                first: 0,
                last: 65_535
            })
        );
        for wrong in [
            "", "-", "1-", "-1", "9-8", "65536", "025", "1-2-3", " 1", "+1",
        ] {
            assert_eq!(Ports::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Protocol::parse("icmpv6"), Some(Protocol(58)));
        assert_eq!(Protocol::parse("47"), Some(Protocol(47)));
        for wrong in ["", "TCP", "256", "-1", "06"] {
            assert_eq!(Protocol::parse(wrong), None, "{wrong}");
        }
    }
}
