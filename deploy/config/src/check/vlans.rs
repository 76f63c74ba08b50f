//! `vlans` of access ports.

use super::{Checker, unique};
use crate::error::{ConfigError, Problem};
use crate::ports::Port;
use crate::vlans::{VlanEntry, VlanIds, unreachable};

impl Checker<'_> {
    pub(super) fn vlans(&self) -> Result<(), ConfigError> {
        for (index, port) in self.config.dataplane.ports.iter().enumerate() {
            let list = format!("dataplane.ports[{index}].vlans");
            for (at, entry) in port.vlans.iter().enumerate() {
                self.vlan(&format!("{list}[{at}]"), port, entry)?;
            }
            if let Some((at, shared)) = unreachable(&port.vlans) {
                let other = format!("{list}[{shared}]");
                let other_line = self.line(&other);
                let problem = Problem::VlanTaken { other, other_line };
                return self.fail(&format!("{list}[{at}]"), problem);
            }
        }
        Ok(())
    }

    fn vlan(&self, key: &str, port: &Port, entry: &VlanEntry) -> Result<(), ConfigError> {
        if entry.s_vlan == VlanIds::NONE && entry.c_vlan != VlanIds::NONE {
            return self.fail(&format!("{key}.c_vlan"), Problem::InnerTagAlone);
        }
        if let Some(name) = &entry.policy {
            self.policy_exists(&format!("{key}.policy"), name)?;
        }
        if let Some(name) = &entry.pool
            && self.config.pool(name).is_none()
        {
            let pools = self.config.pools.iter();
            let known = pools.map(|pool| pool.name.as_str());
            return self.unknown(&format!("{key}.pool"), "address pool", name, known);
        }
        if let Some(names) = &entry.service_names {
            let names = names.iter().map(String::as_str);
            unique(&format!("{key}.service_names"), "", names, self.document)?;
        }
        let Some(mru) = entry.mru else { return Ok(()) };
        let key = format!("{key}.mru");
        let min_mru = self.config.pppoe.min_mru;
        if mru < min_mru {
            return self.fail(&key, Problem::MruBelowMin { mru, min_mru });
        }
        // 1,492 is what every PPPoE session has without RFC 4638; a port with a smaller MTU just offers less.
        if mru > 1492 && mru > port.mtu.saturating_sub(8) {
            return self.fail(&key, Problem::MruAbovePort { mru, mtu: port.mtu });
        }
        Ok(())
    }
}
