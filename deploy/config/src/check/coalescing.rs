//! Coalescing that has nothing to act on.

use super::Checker;
use crate::error::{ConfigError, Problem};
use crate::ports::PortRole;

impl Checker<'_> {
    pub(super) fn coalescing(&self) -> Result<(), ConfigError> {
        let coalescing = &self.config.dataplane.coalescing;
        let key = |name| format!("dataplane.coalescing.{name}");
        let directions = [
            ("upstream", coalescing.upstream, PortRole::Access),
            ("downstream", coalescing.downstream, PortRole::Core),
        ];
        let is_asked_for = directions.iter().any(|(_, what, _)| what.is_on());
        if !is_asked_for && coalescing.hold_us > 0 {
            return self.fail(&key("hold_us"), Problem::NothingHeld);
        }
        if is_asked_for && !coalescing.is_on() {
            return self.fail(&key("ipv4"), Problem::NoFamilyCoalesced);
        }
        for (name, what, role) in directions {
            let mut ports = self.config.dataplane.ports.iter();
            let has_port = ports.any(|port| port.role == role && port.coalescing);
            if what.is_on() && !has_port {
                return self.fail(&key(name), Problem::NoPortCoalesces { role });
            }
        }
        Ok(())
    }
}
