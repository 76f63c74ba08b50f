//! Another configuration for a running engine. Every session lives on under what it has agreed on; what is asked, offered and
//! admitted from now on goes by the new one, and so do the intervals of echoes and challenges.

use alloc::vec::Vec;

use crate::Time;
use crate::config::{Config, ConfigError};
use crate::context::Context;
use crate::engine::AccessConcentrator;
use crate::events::SessionRef;
use crate::limits::BucketTable;
use crate::session::Session;

/// What another configuration means for the sessions there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconfigured {
    /// Sessions on VLANs the new configuration does not serve. They live on; whoever wants them gone terminates them.
    pub unserved: Vec<SessionRef>,
}

impl AccessConcentrator {
    /// What [`reconfigure`](Self::reconfigure) would do, without doing it.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration cannot be run, or not without a restart.
    pub fn would_reconfigure(&self, config: &Config) -> Result<Reconfigured, ConfigError> {
        config.check()?;
        for port in &config.ports {
            let Some(running) = self.ports.get(&port.id) else {
                return Err(ConfigError::PortAdded(port.id));
            };
            if running.config.mtu != port.mtu {
                return Err(ConfigError::PortMtuChanged {
                    port: port.id,
                    from: running.config.mtu,
                    to: port.mtu,
                });
            }
        }
        let is_gone = |id| config.ports.iter().all(|port| port.id != id);
        if let Some(id) = self.ports.keys().find(|id| is_gone(**id)) {
            return Err(ConfigError::PortRemoved(*id));
        }
        let is_unserved = |session: &&Session| {
            let line = session.line;
            let mut profiles = config.vlans.iter().filter(|it| it.port == line.port);
            let mut any = false;
            !profiles.any(|profile| {
                any = true;
                profile.fits(&line)
            }) && any
        };
        let unserved = self.table.iter().filter(is_unserved);
        Ok(Reconfigured {
            unserved: unserved.map(|session| session.lower.session).collect(),
        })
    }

    /// Goes on with another configuration. The ports must be the same and of the same MTU; their MAC addresses stay as they
    /// are (see [`set_port_mac`](Self::set_port_mac)). On an error nothing has changed.
    ///
    /// # Errors
    /// [`ConfigError`] when the configuration cannot be run, or not without a restart.
    pub fn reconfigure(&mut self, now: Time, config: Config) -> Result<Reconfigured, ConfigError> {
        let outcome = self.would_reconfigure(&config)?;
        self.advance(now);
        let mut config = config;
        for port in &mut config.ports {
            if let Some(running) = self.ports.get(&port.id) {
                port.mac = running.config.mac;
            }
        }
        for port in self.ports.values_mut() {
            let vlans = config.vlans.iter().filter(|it| it.port == port.config.id);
            port.vlans = vlans.cloned().collect();
            port.ids.set_quarantine(config.session_id_quarantine);
        }
        let (old, new) = (&self.config.limits, &config.limits);
        if (old.padi_macs, old.padi_per_mac) != (new.padi_macs, new.padi_per_mac) {
            self.padi_macs = BucketTable::new(new.padi_macs, new.padi_per_mac);
        }
        self.cookies.set_lifetime(config.cookie_lifetime);
        if config.lockout.failures == 0 {
            self.failures.clear();
        }
        let echo = self.config.echo_interval != config.echo_interval;
        let challenges = self.config.chap_interval != config.chap_interval;
        self.config = config;
        if echo {
            self.visit_all(Session::echo_interval_changed);
        }
        if challenges {
            self.visit_all(Session::chap_interval_changed);
        }
        Ok(outcome)
    }

    fn visit_all(&mut self, act: impl Fn(&mut Session, &mut Context<'_>)) {
        for slot in 0..self.table.slots() {
            self.visit(slot, &act);
        }
    }
}
