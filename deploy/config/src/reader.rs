//! Reads a document against the schema into a value the structs are made from.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::{IpNet, Ipv6Net};
use serde_yaml::{Mapping, Value};

use crate::address_plan::parse_prefix;
use crate::document::{Content, Document, Entry, Node, printable};
use crate::error::{ConfigError, Position, Problem};
use crate::policies::{Network, Ports, Protocol};
use crate::schema::{Key, Kind};
use crate::text::decimal;
use crate::vlans::VlanIds;

/// The document as a value in which every scalar already has the type its key asks for.
pub(crate) fn read(document: &Document, kind: &Kind) -> Result<Value, ConfigError> {
    let root = &document.root;
    Reader { document }.value(kind, root, root.position, "")
}

struct Reader<'document> {
    document: &'document Document,
}

impl Reader<'_> {
    fn value(
        &self,
        kind: &Kind,
        node: &Node,
        at: Position,
        path: &str,
    ) -> Result<Value, ConfigError> {
        let bad = |problem| Err(self.document.error(at, path, problem));
        match (kind, &node.content) {
            // A section or list whose entries are all commented out.
            (Kind::Section(keys), _) if node.is_null() => self.section(keys, &[], at, path),
            (Kind::List { min: 0, .. }, _) if node.is_null() => Ok(Value::Sequence(Vec::new())),
            (Kind::Section(keys), Content::Section(entries)) => {
                self.section(keys, entries, at, path)
            }
            (Kind::List { of, min, max }, Content::List(items)) => {
                if !(*min..=*max).contains(&items.len()) {
                    return bad(Problem::BadCount {
                        found: items.len(),
                        expected: kind.expected(),
                    });
                }
                let items = items.iter().enumerate().map(|(index, item)| {
                    self.value(of, item, item.position, &format!("{path}[{index}]"))
                });
                Ok(Value::Sequence(items.collect::<Result<_, _>>()?))
            }
            (_, Content::Scalar(text, plain)) => {
                if node.is_null() {
                    return bad(Problem::NoValue {
                        expected: kind.expected(),
                    });
                }
                match scalar(kind, text, *plain) {
                    Some(value) => Ok(value),
                    None => bad(Problem::BadValue {
                        found: if holds_secret(kind) {
                            "this value".to_owned()
                        } else {
                            format!("`{}`", printable(text))
                        },
                        expected: kind.expected(),
                    }),
                }
            }
            (_, Content::List(_)) => bad(Problem::BadValue {
                found: "a list".to_owned(),
                expected: kind.expected(),
            }),
            (_, Content::Section(_)) => bad(Problem::BadValue {
                found: "a section".to_owned(),
                expected: kind.expected(),
            }),
        }
    }

    fn unknown(&self, keys: &[Key], entry: &Entry, path: &str) -> ConfigError {
        // `password:x` is one word to YAML; what follows the colon may be a password.
        let meant = entry
            .key
            .split_once(':')
            .and_then(|(name, _)| keys.iter().find(|key| key.name == name));
        let (name, problem) = match meant {
            Some(key) => (key.name.to_owned(), Problem::NoSpace { key: key.name }),
            None => (
                printable(&entry.key),
                Problem::UnknownKey {
                    nearest: nearest(&entry.key, keys),
                    known: keys.iter().map(|key| key.name).collect(),
                },
            ),
        };
        self.document
            .error(entry.position, &below(path, &name), problem)
    }

    fn section(
        &self,
        keys: &[Key],
        entries: &[Entry],
        at: Position,
        path: &str,
    ) -> Result<Value, ConfigError> {
        let mut values = Mapping::new();
        for entry in entries {
            let Some(key) = keys.iter().find(|key| key.name == entry.key) else {
                return Err(self.unknown(keys, entry, path));
            };
            let value = self.value(
                &key.kind,
                &entry.value,
                entry.value.position,
                &below(path, key.name),
            )?;
            values.insert(Value::from(key.name), value);
        }
        match keys
            .iter()
            .find(|key| key.required && !values.contains_key(key.name))
        {
            Some(missing) => Err(self.document.error(
                at,
                path,
                Problem::MissingKey {
                    key: missing.name,
                    expected: missing.kind.expected(),
                },
            )),
            None => Ok(Value::Mapping(values)),
        }
    }
}

fn below(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// Whether a password can be in such a value, which then is not shown even when it has the wrong shape.
fn holds_secret(kind: &Kind) -> bool {
    match kind {
        Kind::Secret { .. } => true,
        Kind::Section(keys) => keys.iter().any(|key| holds_secret(&key.kind)),
        Kind::List { of, .. } => holds_secret(of),
        _ => false,
    }
}

/// The key that was most likely meant.
fn nearest(unknown: &str, keys: &[Key]) -> Option<&'static str> {
    // Beyond this length no key is near; the distance costs length times length.
    if unknown.len() > 64 {
        return None;
    }
    keys.iter()
        .map(|key| (strsim::damerau_levenshtein(unknown, key.name), key.name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .map(|(_, name)| name)
}

/// The value of a scalar, or `None` when the kind does not allow it.
fn scalar(kind: &Kind, text: &str, plain: bool) -> Option<Value> {
    let keep = |allowed: bool| allowed.then(|| Value::from(text));
    match kind {
        Kind::Section(_) | Kind::List { .. } => None,
        Kind::Whole { min, max, .. } => {
            let number = decimal(text, *min, *max);
            number.filter(|_| plain).map(Value::from)
        }
        Kind::Switch => match (text, plain) {
            ("true", true) => Some(Value::Bool(true)),
            ("false", true) => Some(Value::Bool(false)),
            _ => None,
        },
        Kind::Word(words) => keep(words.contains(&text)),
        Kind::Text { min, max } => {
            keep((*min..=*max).contains(&text.len()) && !text.contains(char::is_control))
        }
        Kind::Secret { max } => keep(text.len() <= *max),
        Kind::Name { max, more } => {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
            keep((1..=*max).contains(&text.len()) && text.chars().all(fits))
        }
        Kind::Address => keep(text.parse::<Ipv4Addr>().is_ok()),
        Kind::Address6 => keep(text.parse::<Ipv6Addr>().is_ok()),
        Kind::AnyAddress => keep(text.parse::<IpAddr>().is_ok()),
        Kind::Prefix6 => keep(text.parse::<Ipv6Net>().is_ok()),
        Kind::Network => keep(Network::parse(text).is_some()),
        Kind::Vlan => keep(VlanIds::parse(text).is_some()),
        Kind::Ports => keep(Ports::parse(text).is_some()),
        Kind::Protocol => keep(Protocol::parse(text).is_some()),
        Kind::Range => keep(parse_prefix(text).is_some()),
        Kind::Destination => keep(text == "default" || text.parse::<IpNet>().is_ok()),
        Kind::Interface => keep(text.parse::<IpNet>().is_ok()),
        Kind::Socket => keep(text.parse::<SocketAddr>().is_ok()),
        Kind::Path => keep(!text.is_empty()),
        Kind::AbsolutePath => keep(text.starts_with('/')),
    }
}
