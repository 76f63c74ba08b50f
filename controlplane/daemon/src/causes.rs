//! Why sessions end: in the history, and as accounting is told.

use bng_aaa::accounting::StopCause;
use bng_pppoe::TerminateCause;

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// The PPP engine, or whoever asked it to.
    Engine(TerminateCause),
    /// A restarted control plane could not take it over.
    NotAdopted,
}

/// Name of [`EndCause::NotAdopted`].
const NOT_ADOPTED: &str = "not_adopted";

impl EndCause {
    /// The cause, as in metrics and REST.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Engine(cause) => cause.name(),
            Self::NotAdopted => NOT_ADOPTED,
        }
    }

    /// The cause of a name; `None` for one this version does not know.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        if name == NOT_ADOPTED {
            return Some(Self::NotAdopted);
        }
        let mut all = TerminateCause::ALL.iter();
        let cause = all.find(|cause| cause.name() == name)?;
        Some(Self::Engine(*cause))
    }

    /// Acct-Terminate-Cause (RFC 2866 section 5.10).
    #[must_use]
    pub const fn stop_cause(self) -> StopCause {
        match self {
            Self::Engine(cause) => stop_cause(cause),
            Self::NotAdopted => StopCause::NasRequest,
        }
    }
}

const fn stop_cause(cause: TerminateCause) -> StopCause {
    use TerminateCause as Cause;
    match cause {
        Cause::PeerTerminated | Cause::PeerPadt | Cause::IpcpClosed | Cause::Ipv6cpClosed => {
            StopCause::UserRequest
        }
        Cause::Operator | Cause::AaaDisconnect => StopCause::AdminReset,
        Cause::Shutdown => StopCause::AdminReboot,
        Cause::PortDown => StopCause::PortError,
        Cause::SessionTimeout | Cause::Quota => StopCause::SessionTimeout,
        Cause::IdleTimeout => StopCause::IdleTimeout,
        Cause::Replaced => StopCause::PortPreempted,
        Cause::DeadPeer => StopCause::LostService,
        Cause::LoopedBack => StopCause::LostCarrier,
        // Another authentication on a session that was up has failed, or was not answered.
        Cause::AuthRefused | Cause::AuthTimeout | Cause::WrongCredentials | Cause::AaaRefused => {
            StopCause::UserError
        }
        // The peer does not keep to the protocol when it negotiates anew.
        Cause::SetupTimeout
        | Cause::LcpTimeout
        | Cause::ProtocolError
        | Cause::IpcpTimeout
        | Cause::IpcpFailed
        | Cause::IpcpRefused
        | Cause::Ipv6cpTimeout
        | Cause::Ipv6cpFailed
        | Cause::Ipv6cpRefused => StopCause::NasError,
        Cause::Displaced | Cause::PoolEmpty | Cause::AaaUnavailable => StopCause::NasRequest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_known_by_its_name_and_has_the_stop_cause_of_its_kind() {
        for cause in TerminateCause::ALL {
            let cause = EndCause::Engine(*cause);
            assert_eq!(EndCause::of_name(cause.name()), Some(cause));
            let name = cause.name();
            let is_peers = name.starts_with("peer_") || name.ends_with("_closed");
            assert_eq!(
                cause.stop_cause() == StopCause::UserRequest,
                is_peers,
                "{name}"
            );
            let is_admins = ["operator", "aaa_disconnect"].contains(&name);
            assert_eq!(
                cause.stop_cause() == StopCause::AdminReset,
                is_admins,
                "{name}"
            );
            let is_limit = ["session_timeout", "quota"].contains(&name);
            assert_eq!(
                cause.stop_cause() == StopCause::SessionTimeout,
                is_limit,
                "{name}"
            );
            let is_lost = ["dead_peer"].contains(&name);
            assert_eq!(
                cause.stop_cause() == StopCause::LostService,
                is_lost,
                "{name}"
            );
        }
        assert_eq!(EndCause::of_name("not_adopted"), Some(EndCause::NotAdopted));
        assert_eq!(EndCause::of_name("gone"), None);
    }
}
