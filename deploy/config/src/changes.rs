//! What is different between two configurations, key by key.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{Hash, Hasher};

use secrecy::ExposeSecret;
use serde_yaml::Value;

use crate::{Config, User};

/// How a key is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// It has another value.
    Changed,
}

/// A key that is different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Where it stands: entries of lists by their name where they have one, else by their position, such as
    /// `policies[gold].up.rate_kbps`. Never a value, which may be secret.
    pub key: String,
    /// How.
    pub change: Change,
}

impl Difference {
    /// The key as `docs/configuration.md` lists it, such as `policies[].up.rate_kbps`.
    #[must_use]
    pub fn documented(&self) -> String {
        if self.key.starts_with(USERS) {
            // Names of users may have brackets.
            return "auth.users[]".to_owned();
        }
        let mut path = String::new();
        let mut inside = false;
        for c in self.key.chars() {
            match c {
                '[' => {
                    inside = true;
                    path.push_str("[]");
                }
                ']' => inside = false,
                c if !inside => path.push(c),
                _ => {}
            }
        }
        path
    }
}

/// Lists whose order counts: indexes follow from it, or who is tried first.
const ORDERED: [&str; 3] = ["dataplane.ports", "pools", "nat.pools"];
const USERS: &str = "auth.users[";

/// The keys of a file with a fingerprint of each value; users are left out, they are compared as they are.
#[derive(Clone, Default)]
pub(crate) struct Written(BTreeMap<String, u64>);

impl fmt::Debug for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written(..)")
    }
}

fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Written {
    pub(crate) fn new(file: &Value) -> Self {
        let mut written = Self::default();
        written.put("", file);
        written
    }

    fn put(&mut self, path: &str, value: &Value) {
        match value {
            Value::Mapping(section) => {
                for (key, value) in section {
                    let key = key.as_str().unwrap_or_default();
                    match path {
                        "" => self.put(key, value),
                        "auth" if key == "users" => {}
                        _ => self.put(&format!("{path}.{key}"), value),
                    }
                }
            }
            Value::Sequence(list) if list.iter().any(Value::is_mapping) => {
                if ORDERED.contains(&path) {
                    let names: Vec<_> = list.iter().map(|entry| entry.get("name")).collect();
                    self.0.insert(path.to_owned(), fingerprint(&names));
                }
                for (index, entry) in list.iter().enumerate() {
                    let name = entry.get("name").and_then(Value::as_str);
                    // A name is made of a-z, 0-9 and - wherever one is asked for.
                    let entry_path = match name {
                        Some(name) => format!("{path}[{name}]"),
                        None => format!("{path}[{index}]"),
                    };
                    self.put(&entry_path, entry);
                    self.0.insert(entry_path, 0);
                }
            }
            _ => {
                self.0.insert(path.to_owned(), fingerprint(value));
            }
        }
    }
}

impl Config {
    /// What is different in `next`, in the order of the keys. A section in which only defaults were written out, or left out, is
    /// no difference.
    #[must_use]
    pub fn differences(&self, next: &Self) -> Vec<Difference> {
        let (old, new) = (&self.written.0, &next.written.0);
        let mut all = Vec::new();
        for (key, value) in old {
            match new.get(key) {
                None => all.push((key, Change::Removed)),
                Some(other) if other != value => all.push((key, Change::Changed)),
                Some(_) => {}
            }
        }
        let added = new.keys().filter(|key| !old.contains_key(*key));
        all.extend(added.map(|key| (key, Change::Added)));
        all.sort_unstable_by_key(|(key, _)| *key);
        let mut found: Vec<Difference> = Vec::new();
        for (key, change) in all {
            let is_part = |of: &Difference| {
                of.key.ends_with(']') && key.starts_with(&of.key) && of.change == change
            };
            if !self.is_same_section(next, key) && !found.last().is_some_and(is_part) {
                let key = key.clone();
                found.push(Difference { key, change });
            }
        }
        found.extend(self.user_differences(next));
        found
    }

    /// Whether the section of a key says the same as a whole. Sections with secrets are not compared: what is shown of them is
    /// not all of them.
    fn is_same_section(&self, next: &Self, key: &str) -> bool {
        fn same<T: fmt::Debug>(one: &T, other: &T) -> bool {
            format!("{one:?}") == format!("{other:?}")
        }
        let section = key.split(['.', '[']).next().unwrap_or_default();
        match section {
            "shared_memory" => same(&self.shared_memory, &next.shared_memory),
            "dataplane" => same(&self.dataplane, &next.dataplane),
            "pppoe" => same(&self.pppoe, &next.pppoe),
            "policies" => self.policies == next.policies,
            "filters" => self.filters == next.filters,
            "pools" => same(&self.pools, &next.pools),
            "nat" => same(&self.nat, &next.nat),
            "api" => same(&self.api, &next.api),
            "log" => same(&self.log, &next.log),
            _ => false,
        }
    }

    fn user_differences(&self, next: &Self) -> Vec<Difference> {
        let (old, new) = (by_name(&self.auth.users), by_name(&next.auth.users));
        let difference = |name: &str, change| Difference {
            key: format!("{USERS}{}]", name.escape_default()),
            change,
        };
        let mut found = Vec::new();
        for user in &self.auth.users {
            match new.get(user.name.as_str()) {
                None => found.push(difference(&user.name, Change::Removed)),
                Some(other) if !is_same_user(user, other) => {
                    found.push(difference(&user.name, Change::Changed));
                }
                Some(_) => {}
            }
        }
        let added = next
            .auth
            .users
            .iter()
            .filter(|user| !old.contains_key(user.name.as_str()));
        found.extend(added.map(|user| difference(&user.name, Change::Added)));
        found
    }
}

fn by_name(users: &[User]) -> HashMap<&str, &User> {
    users
        .iter()
        .map(|user| (user.name.as_str(), user))
        .collect()
}

fn is_same_user(one: &User, other: &User) -> bool {
    let User {
        name,
        password,
        policy,
        pool,
        framed_ip,
        framed_routes,
        session_timeout_s,
        idle_timeout_s,
        quota_mib,
    } = one;
    *name == other.name
        && password.expose_secret() == other.password.expose_secret()
        && *policy == other.policy
        && *pool == other.pool
        && *framed_ip == other.framed_ip
        && *framed_routes == other.framed_routes
        && *session_timeout_s == other.session_timeout_s
        && *idle_timeout_s == other.idle_timeout_s
        && *quota_mib == other.quota_mib
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TEXT: &str = r#"
dataplane:
  workers: [1]
  ports:
    - {name: core0, role: core, device: a}
    - {name: access0, role: access, device: b, vlans: [{s_vlan: 7}, {s_vlan: 8}]}
auth:
  users: [{name: alice, password: a}, {name: "b]ob", password: b}]
radius:
  servers: [{address: 192.0.2.20, secret: "first"}]
policies: [{name: gold, up: {rate_kbps: 1000}}]
pools: [{name: home, ranges: [100.64.0.0/29], gateway: 100.64.0.1}]
"#;

    fn differences(replace: &[(&str, &str)]) -> Vec<(String, String, Change)> {
        let parse = |text: &str| Config::parse(text.as_bytes(), Path::new("t.yaml")).unwrap();
        let mut next = TEXT.to_owned();
        for (from, to) in replace {
            assert!(next.contains(from), "{from}");
            next = next.replace(from, to);
        }
        let all = parse(TEXT).differences(&parse(&next));
        let all = all.into_iter();
        all.map(|it| (it.key.clone(), it.documented(), it.change))
            .collect()
    }

    fn one(replace: &[(&str, &str)], key: &str, documented: &str, change: Change) {
        let expected = [(key.to_owned(), documented.to_owned(), change)];
        assert_eq!(differences(replace), expected, "{replace:?}");
    }

    #[test]
    fn a_changed_value_is_named_by_its_key() {
        use Change::{Added, Changed, Removed};
        one(
            &[("[1]", "[1, 2]")],
            "dataplane.workers",
            "dataplane.workers",
            Changed,
        );
        one(
            &[("1000", "2000")],
            "policies[gold].up.rate_kbps",
            "policies[].up.rate_kbps",
            Changed,
        );
        one(
            &[("s_vlan: 8", "s_vlan: 9")],
            "dataplane.ports[access0].vlans[1].s_vlan",
            "dataplane.ports[].vlans[].s_vlan",
            Changed,
        );
        one(
            &[("}}]", "}}, {name: tin, down: {rate_kbps: 9}}]")],
            "policies[tin]",
            "policies[]",
            Added,
        );
        one(
            &[(", up: {rate_kbps: 1000}", "")],
            "policies[gold].up.rate_kbps",
            "policies[].up.rate_kbps",
            Removed,
        );
    }

    #[test]
    fn the_order_of_ports_counts() {
        let core = "    - {name: core0, role: core, device: a}\n";
        let access =
            "    - {name: access0, role: access, device: b, vlans: [{s_vlan: 7}, {s_vlan: 8}]}\n";
        let swap = [(&*format!("{core}{access}"), &*format!("{access}{core}"))];
        one(&swap, "dataplane.ports", "dataplane.ports", Change::Changed);
    }

    #[test]
    fn secrets_are_compared_and_never_shown() {
        let changed = Change::Changed;
        one(
            &[("first", "second")],
            "radius.servers[0].secret",
            "radius.servers[].secret",
            changed,
        );
        one(
            &[("password: a", "password: z")],
            "auth.users[alice]",
            "auth.users[]",
            changed,
        );
        let renamed = differences(&[("b]ob", "bob")]);
        let keys: Vec<_> = renamed.iter().map(|(key, ..)| key.as_str()).collect();
        assert_eq!(keys, ["auth.users[b]ob]", "auth.users[bob]"]);
    }

    #[test]
    fn defaults_written_out_and_another_order_are_no_difference() {
        let written = [
            ("[1]", "[1]\n  idle_backoff_us: 0\n  eal: {}"),
            ("\nauth:", "\npppoe: {max_half_open: 1024}\nauth:"),
        ];
        assert_eq!(differences(&written), []);
        let order = [(
            "[{name: alice, password: a}, {name: \"b]ob\", password: b}]",
            "[{name: \"b]ob\", password: b}, {name: alice, password: a}]",
        )];
        assert_eq!(differences(&order), []);
    }
}
