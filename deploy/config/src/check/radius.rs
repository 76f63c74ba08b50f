//! `radius`.

use secrecy::{ExposeSecret, SecretString};

use super::{Checker, unique};
use crate::error::{ConfigError, Problem};

impl Checker<'_> {
    pub(super) fn radius(&self) -> Result<(), ConfigError> {
        let Some(radius) = &self.config.radius else {
            return Ok(());
        };
        let servers = radius.servers.iter();
        let names: Vec<String> = servers
            .map(|server| format!("{} port {}", server.address, server.auth_port))
            .collect();
        let names = names.iter().map(String::as_str);
        unique("radius.servers", "", names, self.document)?;
        for (index, server) in radius.servers.iter().enumerate() {
            let key = format!("radius.servers[{index}]");
            self.secret(&key, &server.secret)?;
            if radius
                .source
                .is_some_and(|source| source.is_ipv4() != server.address.is_ipv4())
            {
                let problem = Problem::OtherFamily {
                    other: "radius.source",
                };
                return self.fail(&format!("{key}.address"), problem);
            }
        }
        if let Some(accounting) = &radius.accounting {
            if (1..60).contains(&accounting.interim_s) {
                let found = accounting.interim_s;
                let key = "radius.accounting.interim_s";
                return self.fail(key, Problem::InterimTooOften { found });
            }
            if self.config.state_directory.is_none() {
                let other = "state_directory";
                return self.fail("radius.accounting", Problem::Needs { other });
            }
        }
        let Some(dynamic) = &radius.dynamic_authorization else {
            return Ok(());
        };
        let key = "radius.dynamic_authorization.clients";
        let names: Vec<String> = (dynamic.clients.iter())
            .map(|client| client.address.to_string())
            .collect();
        unique(
            key,
            "address",
            names.iter().map(String::as_str),
            self.document,
        )?;
        for (index, client) in dynamic.clients.iter().enumerate() {
            self.secret(&format!("{key}[{index}]"), &client.secret)?;
        }
        Ok(())
    }

    fn secret(&self, key: &str, secret: &SecretString) -> Result<(), ConfigError> {
        match secret.expose_secret().is_empty() {
            true => self.fail(&format!("{key}.secret"), Problem::EmptySecret),
            false => Ok(()),
        }
    }
}
