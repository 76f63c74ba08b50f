//! What the engine is told at start.

use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use core::ops::RangeInclusive;
use core::time::Duration;

use bng_wire::MacAddr;
use thiserror::Error;

use crate::codec::lcp::PPPOE_MRU;
use crate::events::{AccessLine, AuthProtocol};

/// Smallest access-port MTU, in bytes: the smallest MRU floor and the PPPoE header.
pub const MIN_MTU: u16 = MIN_MRU_FLOOR + PPPOE_OVERHEAD;
/// Smallest MRU floor, in bytes. A control packet with its options fits.
pub const MIN_MRU_FLOOR: u16 = 128;
/// PPPoE header and PPP protocol field, in bytes.
pub(crate) const PPPOE_OVERHEAD: u16 = 8;

/// Number of an access port, as the dataplane numbers its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId(pub u8);

impl fmt::Display for PortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One access port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Its number.
    pub id: PortId,
    /// Its MAC address, the source of every frame sent on it.
    pub mac: MacAddr,
    /// Largest Ethernet payload in bytes, VLAN tags not counted, at least [`MIN_MTU`]. Above 1500 RFC 4638 is
    /// offered.
    pub mtu: u16,
}

impl PortConfig {
    /// Largest PPP information field the port carries, in bytes.
    pub(crate) const fn max_mru(&self) -> u16 {
        self.mtu.saturating_sub(PPPOE_OVERHEAD)
    }
}

/// What clients on some VLANs of an access port get in place of what [`Config`] says for all. A port with profiles serves
/// no other VLANs; the first profile that fits counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VlanProfile {
    /// The access port.
    pub port: PortId,
    /// VLAN ids of the outer or only tag; 0 stands for none.
    pub s_vlan: RangeInclusive<u16>,
    /// VLAN ids of the inner tag; 0 stands for none.
    pub c_vlan: RangeInclusive<u16>,
    /// In place of [`Config::services`].
    pub services: ServicePolicy,
    /// In place of [`Limits::sessions_per_mac`], at least 1.
    pub sessions_per_mac: u32,
    /// Largest MRU in bytes, where the port carries as much.
    pub max_mru: u16,
    /// In place of [`Config::pado_delay`].
    pub pado_delay: Duration,
}

impl VlanProfile {
    pub(crate) fn fits(&self, line: &AccessLine) -> bool {
        self.s_vlan.contains(&line.s_vlan) && self.c_vlan.contains(&line.c_vlan)
    }
}

/// Which Service-Names are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServicePolicy {
    /// Any name a client asks for.
    Any,
    /// These names, and the empty name that asks for any service.
    Listed(Vec<Vec<u8>>),
}

impl ServicePolicy {
    pub(crate) fn serves(&self, name: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(names) => name.is_empty() || names.iter().any(|n| n == name),
        }
    }
}

/// A token bucket's rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Sustained events per second.
    pub per_second: u32,
    /// Events that may come at once, at least 1.
    pub burst: u32,
}

/// Clients that keep failing get no PADO for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lockout {
    /// Sessions in a row that ended before the network phase; 0 turns it off.
    pub failures: u8,
    /// First time; doubled by each further failure.
    pub first: Duration,
    /// Longest time, and how long a client without a failure is remembered.
    pub longest: Duration,
}

/// Admission limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Live sessions of one MAC address on one access port and VLAN pair.
    pub sessions_per_mac: u32,
    /// Live sessions with one Agent-Circuit-Id on one access port.
    pub sessions_per_circuit: u32,
    /// Live sessions on one access port; 65,534 session ids exist.
    pub sessions_per_port: u32,
    /// Sessions that have not reached the network phase, over all ports. Half of it is shared out equally among the ports, so
    /// that a flood on one cannot starve the others; the rest is for whoever comes first.
    pub half_open: u32,
    /// PADI per access port.
    pub padi_per_port: Rate,
    /// PADI per MAC address.
    pub padi_per_mac: Rate,
    /// MAC addresses whose PADI rate is remembered; the longest silent one is forgotten. About 32 bytes each.
    pub padi_macs: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions_per_mac: 8,
            sessions_per_circuit: 64,
            sessions_per_port: 65_534,
            half_open: 16_384,
            padi_per_port: Rate {
                per_second: 20_000,
                burst: 20_000,
            },
            padi_per_mac: Rate {
                per_second: 10,
                burst: 20,
            },
            padi_macs: 16_384,
        }
    }
}

/// Everything the engine is told at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Access ports.
    pub ports: Vec<PortConfig>,
    /// VLANs, in the order they are tried. A port without any serves every VLAN alike.
    pub vlans: Vec<VlanProfile>,
    /// AC-Name tag.
    pub ac_name: Vec<u8>,
    /// Service-Names served.
    pub services: ServicePolicy,
    /// Admission limits.
    pub limits: Limits,
    /// Whether a client at its limit may take the place of a session of its own that no longer answers.
    pub replace_stale: bool,
    /// How long a PADO is held back.
    pub pado_delay: Duration,
    /// Clients that keep failing.
    pub lockout: Lockout,
    /// Authentication protocols offered, first choice first; at least one.
    pub auth_protocols: Vec<AuthProtocol>,
    /// Time between two CHAP challenges on a live session; `None` for only one.
    pub chap_interval: Option<Duration>,
    /// How long after PADO an AC-Cookie is accepted.
    pub cookie_lifetime: Duration,
    /// How long a session id rests between two sessions.
    pub session_id_quarantine: Duration,
    /// Smallest MRU a peer may ask for, in bytes, [`MIN_MRU_FLOOR`] to 1492.
    pub mru_floor: u16,
    /// First period of the Restart timer; doubled at each retransmission (RFC 1661 section 4.6).
    pub restart_timer: Duration,
    /// Longest period of the Restart timer.
    pub restart_timer_max: Duration,
    /// Configure-Requests sent without an answer before giving up.
    pub max_configure: u8,
    /// Terminate-Requests sent without an answer before giving up.
    pub max_terminate: u8,
    /// Configure-Naks in a row, ours or the peer's, before an option is refused or the session ended.
    pub max_failure: u8,
    /// How long a peer may take to send credentials once LCP is Opened.
    pub auth_timeout: Duration,
    /// How long a session may take from PADS, or from a renegotiation, to the network phase.
    pub setup_timeout: Duration,
    /// Silence after which an Echo-Request is sent, and time between two of them.
    pub echo_interval: Duration,
    /// Echo-Requests without any sign of life before the peer counts as dead, at least 1.
    pub echo_max_missed: u8,
    /// Whether an empty password is handed to AAA instead of being refused at once.
    pub allow_empty_password: bool,
}

impl Default for Config {
    /// Values for an ISP edge; ports are missing and must be given.
    fn default() -> Self {
        Self {
            ports: vec![],
            vlans: vec![],
            ac_name: b"bng".to_vec(),
            services: ServicePolicy::Any,
            limits: Limits::default(),
            replace_stale: true,
            pado_delay: Duration::ZERO,
            lockout: Lockout {
                failures: 10,
                first: Duration::from_secs(10),
                longest: Duration::from_secs(300),
            },
            auth_protocols: vec![AuthProtocol::Pap],
            chap_interval: None,
            cookie_lifetime: Duration::from_secs(30),
            session_id_quarantine: Duration::from_secs(10),
            mru_floor: 576,
            restart_timer: Duration::from_secs(1),
            restart_timer_max: Duration::from_secs(4),
            max_configure: 10,
            max_terminate: 2,
            max_failure: 5,
            auth_timeout: Duration::from_secs(20),
            setup_timeout: Duration::from_secs(60),
            echo_interval: Duration::from_secs(30),
            echo_max_missed: 3,
            allow_empty_password: false,
        }
    }
}

/// Why a configuration cannot be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// No access port.
    #[error("no access port is configured")]
    NoPort,
    /// Two access ports with one number.
    #[error("access port {0} is configured twice")]
    DuplicatePort(PortId),
    /// The port's MAC is a group address or zero.
    #[error("access port {port} has MAC address {mac}, which is not a station's")]
    PortMac {
        /// The port.
        port: PortId,
        /// Its address.
        mac: MacAddr,
    },
    /// The port's MTU is too small.
    #[error("access port {port} has MTU {mtu}, less than {MIN_MTU}")]
    PortMtu {
        /// The port.
        port: PortId,
        /// Its MTU.
        mtu: u16,
    },
    /// A VLAN profile of a port that is not configured.
    #[error("VLANs of access port {0}, which is not configured")]
    VlanPort(PortId),
    /// A VLAN profile's largest MRU is below the floor.
    #[error("largest MRU {max_mru} of VLANs of access port {port} is below the floor {floor}")]
    VlanMru {
        /// The port.
        port: PortId,
        /// The profile's largest MRU.
        max_mru: u16,
        /// Configured floor.
        floor: u16,
    },
    /// The MRU floor is out of range, or above what a port carries.
    #[error("MRU floor {floor} is not within {MIN_MRU_FLOOR} to {max}")]
    MruFloor {
        /// Configured floor.
        floor: u16,
        /// Highest floor the ports allow.
        max: u16,
    },
    /// A count or a time that must not be zero is zero.
    #[error("{0} must not be zero")]
    Zero(&'static str),
    /// No authentication protocol is offered, or one twice.
    #[error("authentication protocols must be one or more, each once")]
    AuthProtocols,
    /// A PADO would be held back until its cookie has expired.
    #[error(
        "PADO delay of {delay_ms} ms is not shorter than the {lifetime_ms} ms an AC-Cookie lives"
    )]
    PadoDelay {
        /// Longest configured delay, milliseconds.
        delay_ms: u128,
        /// Life of a cookie, milliseconds.
        lifetime_ms: u128,
    },
    /// A running engine cannot take on a port.
    #[error("access port {0} is new, which needs a restart")]
    PortAdded(PortId),
    /// A running engine cannot lose a port.
    #[error("access port {0} is gone, which needs a restart")]
    PortRemoved(PortId),
    /// A running engine cannot change a port's MTU.
    #[error("access port {port} has MTU {to} in place of {from}, which needs a restart")]
    PortMtuChanged {
        /// The port.
        port: PortId,
        /// MTU it runs with.
        from: u16,
        /// MTU asked for.
        to: u16,
    },
    /// AC-Name longer than a tag of it may be.
    #[error("AC-Name of {0} bytes, more than 255")]
    AcName(usize),
}

impl Config {
    /// Period of the Restart timer after `retransmissions`: doubled at each of them, up to the longest.
    pub(crate) fn restart_period(&self, retransmissions: u8) -> Duration {
        let factor = 1u32
            .checked_shl(u32::from(retransmissions))
            .unwrap_or(u32::MAX);
        self.restart_timer
            .saturating_mul(factor)
            .min(self.restart_timer_max.max(self.restart_timer))
    }

    /// The authentication protocol offered first.
    pub(crate) fn first_auth(&self) -> AuthProtocol {
        // `check` lets no empty list through.
        self.auth_protocols
            .first()
            .copied()
            .unwrap_or(AuthProtocol::Pap)
    }

    /// What is offered after a peer's Nak of `now`: what the peer hints at if that is offered at all, else the next in
    /// order.
    pub(crate) fn next_auth(&self, now: AuthProtocol, hint: Option<AuthProtocol>) -> AuthProtocol {
        if let Some(hint) = hint.filter(|hint| self.auth_protocols.contains(hint)) {
            return hint;
        }
        let mut after = self
            .auth_protocols
            .iter()
            .skip_while(|it| **it != now)
            .skip(1);
        after.next().copied().unwrap_or_else(|| self.first_auth())
    }

    /// Checks that the values can be run together.
    ///
    /// # Errors
    /// The first [`ConfigError`] found.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut max_floor = PPPOE_MRU;
        for (at, port) in self.ports.iter().enumerate() {
            if self.ports.iter().take(at).any(|p| p.id == port.id) {
                return Err(ConfigError::DuplicatePort(port.id));
            }
            if !port.mac.is_unicast() {
                return Err(ConfigError::PortMac {
                    port: port.id,
                    mac: port.mac,
                });
            }
            if port.mtu < MIN_MTU {
                return Err(ConfigError::PortMtu {
                    port: port.id,
                    mtu: port.mtu,
                });
            }
            max_floor = max_floor.min(port.max_mru());
        }
        if self.ports.is_empty() {
            return Err(ConfigError::NoPort);
        }
        if self.mru_floor < MIN_MRU_FLOOR || self.mru_floor > max_floor {
            return Err(ConfigError::MruFloor {
                floor: self.mru_floor,
                max: max_floor,
            });
        }
        for profile in &self.vlans {
            let VlanProfile { port, max_mru, .. } = *profile;
            if self.ports.iter().all(|it| it.id != port) {
                return Err(ConfigError::VlanPort(port));
            }
            if max_mru < self.mru_floor {
                let floor = self.mru_floor;
                return Err(ConfigError::VlanMru {
                    port,
                    max_mru,
                    floor,
                });
            }
            if profile.sessions_per_mac == 0 {
                return Err(ConfigError::Zero("sessions_per_mac of VLANs"));
            }
        }
        if self.ac_name.len() > 255 {
            return Err(ConfigError::AcName(self.ac_name.len()));
        }
        let twice = |at, it| {
            self.auth_protocols
                .iter()
                .take(at)
                .any(|before| before == it)
        };
        if self.auth_protocols.is_empty()
            || self
                .auth_protocols
                .iter()
                .enumerate()
                .any(|(at, it)| twice(at, it))
        {
            return Err(ConfigError::AuthProtocols);
        }
        let of_vlans = self.vlans.iter().map(|profile| profile.pado_delay);
        let delay = of_vlans.fold(self.pado_delay, Duration::max);
        if !delay.is_zero() && delay >= self.cookie_lifetime {
            return Err(ConfigError::PadoDelay {
                delay_ms: delay.as_millis(),
                lifetime_ms: self.cookie_lifetime.as_millis(),
            });
        }
        let locks = self.lockout.failures != 0;
        let no_chap_interval = self.chap_interval.is_some_and(|it| it.as_millis() == 0);
        let zero = [
            ("chap_interval", no_chap_interval),
            ("lockout.first", locks && self.lockout.first.is_zero()),
            ("lockout.longest", locks && self.lockout.longest.is_zero()),
            ("sessions_per_mac", self.limits.sessions_per_mac == 0),
            (
                "sessions_per_circuit",
                self.limits.sessions_per_circuit == 0,
            ),
            ("sessions_per_port", self.limits.sessions_per_port == 0),
            ("half_open", self.limits.half_open == 0),
            ("padi_per_port.burst", self.limits.padi_per_port.burst == 0),
            ("padi_per_mac.burst", self.limits.padi_per_mac.burst == 0),
            ("padi_macs", self.limits.padi_macs == 0),
            ("cookie_lifetime", self.cookie_lifetime.is_zero()),
            ("restart_timer", self.restart_timer.as_millis() == 0),
            ("max_configure", self.max_configure == 0),
            ("max_terminate", self.max_terminate == 0),
            ("max_failure", self.max_failure == 0),
            ("auth_timeout", self.auth_timeout.is_zero()),
            ("setup_timeout", self.setup_timeout.is_zero()),
            ("echo_interval", self.echo_interval.as_millis() == 0),
            ("echo_max_missed", self.echo_max_missed == 0),
        ];
        match zero.iter().find(|(_, is_zero)| *is_zero) {
            Some((name, _)) => Err(ConfigError::Zero(name)),
            None => Ok(()),
        }
    }
}
