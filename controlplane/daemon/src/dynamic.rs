//! Requests from outside about live sessions (RFC 5176), once the listener has checked who asks.

use bng_aaa::accounting::Line;
use bng_aaa::{Refusal, Selector};
use bng_pppoe::TerminateCause;

use crate::driver::Driver;
use crate::publish::Clock;
use crate::sessions::Live;
use crate::settings::Settings;

/// Where a session is, as RADIUS is told.
pub(crate) fn line(settings: &Settings, live: &Live) -> Line {
    let port = live.session.port.0;
    Line {
        port: settings.access_name(port).to_owned(),
        port_index: port,
        s_vlan: live.line.s_vlan,
        c_vlan: live.line.c_vlan,
        mac: live.line.mac.0,
        session_id: live.session.session_id,
        circuit_id: live.circuit_id.clone(),
        remote_id: live.remote_id.clone(),
    }
}

fn the_one<'a>(mut found: impl Iterator<Item = &'a Live>) -> Result<&'a Live, Refusal> {
    match (found.next(), found.next()) {
        (None, _) => Err(Refusal::SessionNotFound),
        (Some(live), None) => Ok(live),
        (Some(_), Some(_)) => Err(Refusal::SeveralSessions),
    }
}

impl Driver {
    /// The one live session that is meant. One that has not authenticated is nobody's, whatever name it gives.
    pub(crate) fn selected(&self, selector: &Selector) -> Result<&Live, Refusal> {
        let fits = |live: &&Live| {
            live.end.is_none()
                && live.admitted.is_some()
                && selector.fits(
                    live.accounting_id,
                    &live.user,
                    live.framed_ip(),
                    live.line.mac.0,
                    || line(&self.settings, live),
                )
        };
        match &selector.user {
            Some(user) => the_one(self.sessions.of_user(user).filter(fits)),
            None => the_one(self.sessions.iter().filter(fits)),
        }
    }

    /// Ends the one session that is meant.
    pub(crate) fn disconnect(&mut self, selector: &Selector, clock: Clock) -> Result<(), Refusal> {
        let session = self.selected(selector)?.session;
        let cause = TerminateCause::AaaDisconnect;
        match self.engine.terminate(clock.time(), session, cause) {
            true => Ok(()),
            false => Err(Refusal::NotRemovable),
        }
    }
}
