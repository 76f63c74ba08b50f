//! `nat.log`.

use super::{Checker, unique};
use crate::error::{ConfigError, Problem};

impl Checker<'_> {
    pub(super) fn nat_log(&self) -> Result<(), ConfigError> {
        let Some(log) = &self.config.nat.log else {
            return Ok(());
        };
        if self.config.state_directory.is_none() {
            let other = "state_directory";
            return self.fail("nat.log", Problem::Needs { other });
        }
        if self.config.nat.pools.is_empty() {
            let other = "nat.pools";
            return self.fail("nat.log", Problem::Needs { other });
        }
        // Each has a cursor of its own.
        let syslog = log.syslog.iter().map(|it| (it.server, it.transport));
        let ipfix = log.ipfix.iter().map(|it| (it.server, it.transport));
        for (key, collectors) in [
            ("nat.log.syslog", syslog.collect::<Vec<_>>()),
            ("nat.log.ipfix", ipfix.collect()),
        ] {
            let names: Vec<_> = (collectors.iter())
                .map(|(server, transport)| format!("{server} over {}", transport.as_str()))
                .collect();
            let names = names.iter().map(String::as_str);
            unique(key, "", names, self.document)?;
        }
        Ok(())
    }
}
