//! Sessions whose client may have forgotten them: it has lost power, say, and dials again before our echoes have found out.

use bng_wire::pppoe::protocol;

use super::{Phase, Session};
use crate::Time;
use crate::automaton::State;
use crate::codec::control;
use crate::codec::lcp::code;
use crate::config::Config;
use crate::context::Context;
use crate::counters::Outcome;

impl Session {
    /// Asks the peer for a sign of life because its client wants another session: an Echo-Request, unless one is unanswered
    /// or less than a period of the Restart timer old.
    pub(crate) fn probe(&mut self, cx: &mut Context<'_>) {
        let open = self.lcp.state() == State::Opened;
        let recent = self
            .probed
            .is_some_and(|at| cx.now.since(at) < cx.config.restart_timer);
        if !open || recent || self.probe_is_open {
            return;
        }
        (self.probed, self.probe_is_open) = (Some(cx.now), true);
        let magic = self.lcp.options.our_magic().to_be_bytes();
        let packet = control::write(code::ECHO_REQUEST, self.lcp.fresh_id(), &magic);
        self.lower.send(protocol::LCP, &packet, cx);
        cx.counters.count(Outcome::StaleProbes);
    }

    /// Whether the session may make room for another one of the same client: it is ending anyway; or it has left an echo
    /// unanswered for a period of the Restart timer; or its link never opened and nothing was heard for the longest period.
    pub(crate) fn is_stale(&self, now: Time, config: &Config) -> bool {
        let (since, period) = match (self.phase, self.lcp.state()) {
            (Phase::Terminate | Phase::Dead, _) => return true,
            (_, State::Opened) if !self.probe_is_open => return false,
            (_, State::Opened) => (self.probed, config.restart_timer),
            _ => (self.last_heard, config.restart_timer_max),
        };
        since.is_some_and(|at| now.since(at) >= period)
    }
}
