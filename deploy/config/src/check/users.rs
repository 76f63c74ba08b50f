//! `pppoe` and `auth`.

use std::collections::HashSet;

use super::{Checker, unique};
use crate::access::{Backend, User};
use crate::error::{ConfigError, Problem};

impl Checker<'_> {
    pub(super) fn pppoe(&self) -> Result<(), ConfigError> {
        let lockout = &self.config.pppoe.lockout;
        if lockout.first_s > lockout.longest_s {
            let problem = Problem::Order {
                first: lockout.first_s.into(),
                other: "longest_s",
                last: lockout.longest_s.into(),
            };
            return self.fail("pppoe.lockout.first_s", problem);
        }
        Ok(())
    }

    pub(super) fn users(&self) -> Result<(), ConfigError> {
        let auth = &self.config.auth;
        unique(
            "auth.users",
            "name",
            auth.users.iter().map(|user| user.name.as_str()),
            self.document,
        )?;
        let protocols = auth.protocols.iter().map(|protocol| protocol.as_str());
        unique("auth.protocols", "", protocols, self.document)?;
        let backends = auth.backends.iter().map(|backend| backend.as_str());
        unique("auth.backends", "", backends, self.document)?;
        if self.config.radius.is_none()
            && let Some(at) = (auth.backends.iter()).position(|it| *it == Backend::Radius)
        {
            let key = format!("auth.backends[{at}]");
            return self.fail(&key, Problem::Needs { other: "radius" });
        }
        self.user_addresses("auth.users", &auth.users, false)
    }

    /// Pools and addresses of users; `beside` when `auth.users` may have the addresses already.
    pub(super) fn user_addresses(
        &self,
        list: &str,
        users: &[User],
        beside: bool,
    ) -> Result<(), ConfigError> {
        let inline = self.config.auth.users.iter().filter(|_| beside);
        let mut taken: HashSet<_> = inline.filter_map(|user| user.framed_ip).collect();
        for (index, user) in users.iter().enumerate() {
            let key = |name: &str| format!("{list}[{index}].{name}");
            if let Some(name) = &user.pool
                && self.config.pool(name).is_none()
            {
                let known = self.config.pools.iter().map(|pool| pool.name.as_str());
                return self.unknown(&key("pool"), "address pool", name, known);
            }
            let Some(address) = user.framed_ip else {
                continue;
            };
            let mut pools = self.config.pools.iter();
            let is_handed_out = pools.any(|pool| {
                user.pool.as_ref().is_none_or(|name| *name == pool.name) && pool.is_usable(address)
            });
            if !is_handed_out {
                let pool = (user.pool.as_ref())
                    .map_or_else(|| "any pool".to_owned(), |name| format!("pool {name}"));
                return self.fail(&key("framed_ip"), Problem::NotInPool { address, pool });
            }
            if !taken.insert(address) {
                let problem = Problem::AddressOfTwo { address };
                return self.fail(&key("framed_ip"), problem);
            }
        }
        Ok(())
    }
}
