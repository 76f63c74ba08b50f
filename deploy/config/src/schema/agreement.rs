//! Schema, structs and `docs/configuration.md` say the same.

use std::collections::BTreeSet;
use std::path::Path;

use serde_yaml::Value;

use super::{Kind, ROOT, keys};
use crate::Config;

/// Every section and list of the file present, so that every key can be tried.
const FULL: &str = r#"
shared_memory: { path: /dev/shm/ironbng }
dataplane:
  workers: [1]
  eal: { extra_args: [--iova-mode=va] }
  ports:
    - { name: core0, role: core, device: a, addresses: [192.0.2.2/30], routes: [{ to: default, via: 192.0.2.1 }] }
    - { name: access0, role: access, device: b, vlans: [{ s_vlan: 100, c_vlan: any, service_names: [internet] }] }
  routes: {}
  coalescing: { upstream: {}, downstream: {} }
pppoe: { service_names: [internet], lcp: {}, echo: {}, lockout: {} }
auth: { protocols: [pap], backends: [local], users: [{ name: alice, password: "secret", framed_routes: [198.18.0.0/24] }] }
state_directory: /var/lib/ironbng
radius:
  servers: [{ address: 192.0.2.20, secret: "secret" }]
  accounting: {}
  dynamic_authorization: { listen: "192.0.2.2:3799", clients: [{ address: 192.0.2.20, secret: "secret" }] }
pools: [{ name: subscribers, ranges: [100.64.0.0/20], gateway: 100.64.0.1, dns: [192.0.2.53], nat: cgn,
           ipv6: { prefixes: [2001:db8::/56], delegated: [2001:db8:1000::/48], delegated_length: 56, dns: [2001:db8::53] } }]
policies: [{ name: gold, up: { rate_kbps: 1000 }, down: { rate_kbps: 1000 }, filter: kids }]
filters:
  - name: kids
    up: [{ action: drop, protocol: tcp, remote: 198.51.100.0/24, remote_ports: 25, local_ports: 1024-65535 }]
    down: [{ action: accept }]
nat: { pools: [{ name: cgn, addresses: [203.0.113.0/28] }], timers: {}, limits: {},
       log: { syslog: [{ server: "192.0.2.9:514" }], ipfix: [{ server: "192.0.2.9:4739" }] } }
api: { listen: "127.0.0.1:8080" }
log: { level: info }
"#;

fn full() -> Value {
    serde_yaml::from_str(FULL).unwrap()
}

/// The value at a documented path; `[]` is the first entry that has the next key, else the first. A last key that is
/// missing is made.
fn at<'a>(value: &'a mut Value, path: &str) -> &'a mut Value {
    let mut value = value;
    let mut steps = path.split('.').filter(|step| !step.is_empty()).peekable();
    while let Some(step) = steps.next() {
        let name = step.trim_end_matches("[]");
        let section = value.as_mapping_mut().unwrap();
        value = section.entry(Value::from(name)).or_insert(Value::Null);
        if step.ends_with("[]") {
            let entries = value.as_sequence_mut().unwrap();
            let next = steps.peek().map(|next| next.trim_end_matches("[]"));
            let has = |entry: &Value| next.is_some_and(|next| entry.get(next).is_some());
            let index = entries.iter().position(has).unwrap_or(0);
            value = &mut entries[index];
        }
    }
    value
}

/// Takes the key at a documented path away.
fn remove(value: &mut Value, path: &str) {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    let sections = match parent.strip_suffix("[]") {
        Some(list) => at(value, list).as_sequence_mut().unwrap().as_mut_slice(),
        None => std::slice::from_mut(at(value, parent)),
    };
    for section in sections {
        section.as_mapping_mut().unwrap().remove(name);
    }
}

/// The names serde lists after "expected" in the error for something it does not know.
fn names_in(error: &serde_yaml::Error) -> BTreeSet<String> {
    let text = error.to_string();
    let (_, list) = text
        .split_once("expected")
        .unwrap_or_else(|| panic!("no names in: {text}"));
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_struct_has_exactly_the_keys_of_the_schema() {
    let mut sections = vec![(String::new(), &ROOT)];
    sections.extend(keys().into_iter().map(|(path, kind, _)| (path, kind)));
    for (path, kind) in sections {
        let Kind::Section(keys) = kind else { continue };
        let mut value = full();
        at(&mut value, &path)
            .as_mapping_mut()
            .unwrap()
            .insert("zzz".into(), 1.into());
        let error = serde_yaml::from_value::<Config>(value).unwrap_err();
        let expected: BTreeSet<String> = keys.iter().map(|key| key.name.to_owned()).collect();
        assert_eq!(names_in(&error), expected, "section `{path}`");
    }
}

#[test]
fn every_struct_takes_the_whole_range_and_every_word() {
    for (path, kind, _) in keys() {
        let values: Vec<Value> = match kind {
            Kind::Whole { min, max, .. } => vec![(*min).into(), (*max).into()],
            Kind::Word(words) => words.iter().map(|word| Value::from(*word)).collect(),
            _ => continue,
        };
        for tried in values {
            let mut value = full();
            *at(&mut value, &path) = tried.clone();
            serde_yaml::from_value::<Config>(value)
                .unwrap_or_else(|error| panic!("{path} = {tried:?}: {error}"));
        }
    }
}

#[test]
fn every_enum_has_exactly_the_words_of_the_schema() {
    for (path, kind, _) in keys() {
        let Kind::Word(words) = kind else { continue };
        let mut value = full();
        *at(&mut value, &path) = "zzz".into();
        let error = serde_yaml::from_value::<Config>(value).unwrap_err();
        let expected: BTreeSet<String> = words.iter().map(|&word| word.to_owned()).collect();
        assert_eq!(names_in(&error), expected, "{path}");
    }
}

/// Key, value and default columns of every table row of the documentation.
fn documented() -> Vec<[String; 3]> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(file).unwrap();
    text.lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let mut cells = line
                .trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned());
            let key = cells.next().unwrap().trim_matches('`').to_owned();
            let row = [key, cells.next().unwrap(), cells.next().unwrap()];
            assert!(
                cells.next().is_some_and(|meaning| !meaning.is_empty()),
                "no meaning: {line}"
            );
            assert_eq!(cells.next(), None, "too many columns: {line}");
            row
        })
        .collect()
}

#[test]
fn documentation_lists_exactly_the_keys_and_their_values() {
    let documented: Vec<(String, String)> = documented()
        .into_iter()
        .map(|[key, value, _]| (key, value))
        .collect();
    let expected: Vec<(String, String)> = keys()
        .into_iter()
        .map(|(path, kind, _)| (path, kind.expected()))
        .collect();
    for row in &expected {
        assert!(
            documented.contains(row),
            "docs/configuration.md lacks the row | `{}` | {} |",
            row.0,
            row.1
        );
    }
    for row in &documented {
        assert!(
            expected.contains(row),
            "docs/configuration.md has a row nothing reads: {row:?}"
        );
    }
    assert_eq!(documented.len(), expected.len(), "a row is there twice");
}

#[test]
fn documented_defaults_are_what_an_absent_key_means() {
    let parse = |value: &Value| {
        Config::parse(
            serde_yaml::to_string(value).unwrap().as_bytes(),
            Path::new("t"),
        )
        .unwrap()
    };
    for [path, _, default] in documented() {
        let (_, kind, required) = keys().into_iter().find(|(key, ..)| *key == path).unwrap();
        assert_eq!(default == "required", required, "{path}");
        let mut without = full();
        if required || path.ends_with("[]") {
            continue;
        }
        // Nothing may refer to what is taken away.
        if path.starts_with("nat") {
            remove(&mut without, "pools[].nat");
        }
        if path == "nat.pools" {
            remove(&mut without, "nat.log");
        }
        if path == "filters" {
            remove(&mut without, "policies[].filter");
        }
        if path.ends_with("ports[].addresses") {
            remove(&mut without, "dataplane.ports[].routes");
        }
        remove(&mut without, &path);
        let mut with = without.clone();
        *at(&mut with, &path) = match (default.as_str(), kind) {
            ("empty", Kind::Section(_)) => Value::Mapping(Default::default()),
            ("empty", Kind::List { .. }) => Value::Sequence(Vec::new()),
            ("none", _) => continue,
            (value, _) => serde_yaml::from_str(value.trim_matches('`')).unwrap(),
        };
        assert_eq!(
            format!("{:?}", parse(&with)),
            format!("{:?}", parse(&without)),
            "{path}"
        );
    }
}
