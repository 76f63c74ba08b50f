//! What somebody outside may ask about a live session: to change its terms, or to end it (RFC 5176).

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::accounting::Line;
use crate::profile::RateLimit;

/// Which session is meant. All that is given must fit; nothing given fits no session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Acct-Session-Id.
    pub accounting_id: Option<u64>,
    /// User-Name.
    pub user: Option<Vec<u8>>,
    /// Framed-IP-Address.
    pub framed_ip: Option<Ipv4Addr>,
    /// NAS-Port-Id, see [`Line::nas_port_id`].
    pub nas_port_id: Option<Vec<u8>>,
    /// Calling-Station-Id.
    pub mac: Option<[u8; 6]>,
}

impl Selector {
    /// Whether a session is meant. `line` is only asked for where nothing else has ruled the session out: there may be tens of
    /// thousands, and names of lines are written anew each time.
    #[must_use]
    pub fn fits(
        &self,
        accounting_id: u64,
        user: &[u8],
        framed_ip: Option<Ipv4Addr>,
        mac: [u8; 6],
        line: impl FnOnce() -> Line,
    ) -> bool {
        *self != Self::default()
            // 0 is that of a session nobody has authenticated on yet.
            && self.accounting_id.is_none_or(|id| id == accounting_id && id != 0)
            && self.user.as_deref().is_none_or(|it| it == user)
            && self.framed_ip.is_none_or(|ip| Some(ip) == framed_ip)
            && self.mac.is_none_or(|it| it == mac)
            && (self.nas_port_id.as_deref())
                .is_none_or(|it| it == line().nas_port_id().as_bytes())
    }
}

/// What is to be different. What is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Rate of what the subscriber sends.
    pub rate_up: Option<RateLimit>,
    /// Rate of what the subscriber receives.
    pub rate_down: Option<RateLimit>,
    /// Name of a policy or of a filter, as in [`crate::Profile::filter_id`].
    pub filter_id: Option<String>,
    /// Longest time of the session, from the change on.
    pub session_timeout: Option<Duration>,
    /// Longest time without traffic of the subscriber.
    pub idle_timeout: Option<Duration>,
    /// Most octets of both directions together, since the session's start.
    pub quota_octets: Option<u64>,
    /// Time between interim updates; zero for none.
    pub interim_interval: Option<Duration>,
}

/// Why it is not done: Error-Cause (RFC 5176 section 3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Refusal {
    /// An attribute we cannot act on.
    UnsupportedAttribute = 401,
    /// Nothing says which session is meant, or what is to change.
    MissingAttribute = 402,
    /// It is meant for another gateway.
    NasIdentificationMismatch = 403,
    /// The request contradicts itself.
    InvalidRequest = 404,
    /// Service-Type asks for something else than a change.
    UnsupportedService = 405,
    /// A value out of range, or a name nobody knows.
    InvalidAttributeValue = 407,
    /// No session fits.
    SessionNotFound = 503,
    /// The session cannot be ended or changed now.
    NotRemovable = 504,
    /// The driver has too much to do.
    ResourcesUnavailable = 506,
    /// Several sessions fit.
    SeveralSessions = 508,
}

impl Refusal {
    /// Label for counters and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UnsupportedAttribute => "unsupported_attribute",
            Self::MissingAttribute => "missing_attribute",
            Self::NasIdentificationMismatch => "nas_identification_mismatch",
            Self::InvalidRequest => "invalid_request",
            Self::UnsupportedService => "unsupported_service",
            Self::InvalidAttributeValue => "invalid_attribute_value",
            Self::SessionNotFound => "session_not_found",
            Self::NotRemovable => "not_removable",
            Self::ResourcesUnavailable => "resources_unavailable",
            Self::SeveralSessions => "several_sessions",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_given_must_fit_and_nothing_fits_nothing() {
        let line = Line {
            port: "access0".to_owned(),
            s_vlan: 7,
            mac: [2, 0, 0, 0, 0, 9],
            ..Line::default()
        };
        let ip = Ipv4Addr::new(100, 64, 0, 2);
        let fits =
            |selector: &Selector| selector.fits(5, b"alice", Some(ip), line.mac, || line.clone());
        assert!(!fits(&Selector::default()));
        let all = Selector {
            accounting_id: Some(5),
            user: Some(b"alice".to_vec()),
            framed_ip: Some(ip),
            nas_port_id: Some(b"access0/7.0".to_vec()),
            mac: Some(line.mac),
        };
        assert!(fits(&all));
        let unnamed = Selector {
            accounting_id: Some(0),
            ..Selector::default()
        };
        assert!(!unnamed.fits(0, b"", None, line.mac, || line.clone()));
        let others = [
            Selector {
                accounting_id: Some(6),
                ..all.clone()
            },
            Selector {
                user: Some(b"alic".to_vec()),
                ..all.clone()
            },
            Selector {
                framed_ip: Some(Ipv4Addr::UNSPECIFIED),
                ..all.clone()
            },
            Selector {
                nas_port_id: Some(b"access0/7".to_vec()),
                ..all.clone()
            },
            Selector {
                mac: Some([0; 6]),
                ..all
            },
        ];
        for other in others {
            assert!(!fits(&other), "{other:?}");
        }
    }
}
