//! When a change of each key of the configuration takes effect: the one table.

use std::fmt::Write;

/// When a change takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// At once, for the sessions there are too.
    Live,
    /// For sessions, or attempts of theirs, that begin afterwards.
    NewSessions,
    /// For new sessions, and sessions it has no place for must be ended first.
    NeedsDrop,
    /// When bng-dataplane is started the next time.
    DataplaneRestart,
    /// When bng-controlplane is started the next time; a reload refuses it. Where the shared memory is another one then,
    /// bng-dataplane has to be restarted as well.
    Restart,
}

impl Class {
    /// Its name in REST and in the documentation.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::NewSessions => "new_sessions",
            Self::NeedsDrop => "needs_drop",
            Self::DataplaneRestart => "dataplane_restart",
            Self::Restart => "restart",
        }
    }
}

use Class::{DataplaneRestart, Live, NeedsDrop, NewSessions, Restart};

/// What stands for a key stands for all keys below it that have no line of their own.
const CLASSES: &[(&str, Class)] = &[
    ("shared_memory", Restart),
    ("dataplane", Restart),
    ("dataplane.main_core", DataplaneRestart),
    ("dataplane.idle_backoff_us", DataplaneRestart),
    ("dataplane.eal", DataplaneRestart),
    ("dataplane.mbufs", DataplaneRestart),
    ("dataplane.icmp_errors_per_second", DataplaneRestart),
    ("dataplane.coalescing", DataplaneRestart),
    ("dataplane.ports[].coalescing", DataplaneRestart),
    ("dataplane.ports[].segmentation", DataplaneRestart),
    ("dataplane.ports[].twin_offloads", DataplaneRestart),
    ("dataplane.ports[].device", DataplaneRestart),
    ("dataplane.ports[].rx_descriptors", DataplaneRestart),
    ("dataplane.ports[].tx_descriptors", DataplaneRestart),
    ("dataplane.ports[].outer_tpid", DataplaneRestart),
    ("dataplane.ports[].vlans", NeedsDrop),
    ("dataplane.ports[].vlans[].policy", Live),
    ("dataplane.ports[].vlans[].pool", NewSessions),
    (
        "dataplane.ports[].vlans[].max_sessions_per_mac",
        NewSessions,
    ),
    ("dataplane.ports[].vlans[].pado_delay_ms", NewSessions),
    ("dataplane.ports[].vlans[].service_names", NewSessions),
    ("dataplane.ports[].vlans[].mru", Restart),
    ("pppoe", NewSessions),
    ("pppoe.mru", Restart),
    ("pppoe.lcp", Live),
    ("pppoe.echo", Live),
    ("pppoe.punts_per_second_per_session", DataplaneRestart),
    ("auth", NewSessions),
    ("auth.chap_interval_s", Live),
    ("auth.default_policy", Live),
    ("auth.users[].policy", Live),
    ("radius", Restart),
    ("radius.servers", Live),
    ("radius.nas_identifier", Live),
    ("radius.nas_address", Live),
    ("radius.source", Live),
    ("radius.timeout_ms", Live),
    ("radius.tries", Live),
    ("radius.dead_s", Live),
    ("radius.accounting.interim_s", Live),
    ("radius.accounting.spool_mib", Live),
    ("radius.dynamic_authorization.clients", Live),
    ("radius.dynamic_authorization.require_event_timestamp", Live),
    ("state_directory", Restart),
    ("policies", Live),
    ("filters", Live),
    ("pools", Restart),
    ("pools[].dns", NewSessions),
    ("pools[].ipv6.dns", NewSessions),
    ("nat", Restart),
    ("nat.max_mappings", DataplaneRestart),
    ("nat.timers", DataplaneRestart),
    ("nat.limits", DataplaneRestart),
    ("api", Restart),
    ("api.token_file", Live),
    ("log.level", Live),
    ("log", Live),
];

/// The class of a key as `docs/configuration.md` lists it. A key nobody has classified needs a restart.
#[must_use]
pub fn class_of(key: &str) -> Class {
    let covers = |of: &&(&str, Class)| {
        let rest = key.strip_prefix(of.0);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let longest = CLASSES.iter().filter(covers).max_by_key(|(of, _)| of.len());
    longest.map_or(Restart, |(_, class)| *class)
}

/// `docs/reload.md`'s table.
#[must_use]
pub fn document() -> String {
    let mut table = "| key | a change takes effect |\n|---|---|\n".to_owned();
    for key in bng_config::keys() {
        // A string takes everything.
        let _ = writeln!(table, "| `{key}` | {} |", class_of(&key).as_str());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::path::Path;

    #[test]
    fn every_key_has_a_class_and_every_class_its_keys() {
        let keys = bng_config::keys();
        for key in &keys {
            let top = key.split(['.', '[']).next().unwrap();
            assert!(
                CLASSES.iter().any(|(of, _)| of == &top),
                "{key} has no class"
            );
        }
        let known: HashSet<_> = keys.iter().map(String::as_str).collect();
        let mut seen = HashSet::new();
        for (key, _) in CLASSES {
            assert!(known.contains(key), "{key} is no key of the configuration");
            assert!(seen.insert(key), "{key} is there twice");
        }
    }

    #[test]
    fn a_key_of_its_own_comes_before_the_section_it_is_in() {
        assert_eq!(class_of("dataplane.ports[].vlans[].policy"), Live);
        assert_eq!(class_of("dataplane.ports[].vlans[].s_vlan"), NeedsDrop);
        assert_eq!(class_of("dataplane.ports[].name"), Restart);
        assert_eq!(class_of("pppoe.lcp.restart_ms"), Live);
        assert_eq!(class_of("pppoe.min_mru"), NewSessions);
        assert_eq!(class_of("poolsx"), Restart);
    }

    #[test]
    fn the_documentation_has_this_table() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reload.md");
        let text = std::fs::read_to_string(&file).unwrap();
        let at = text.find("| key |").unwrap();
        let expected = format!("{}{}", &text[..at], document());
        if std::env::var_os("BNG_WRITE_DOCS").is_some() {
            std::fs::write(&file, &expected).unwrap();
        }
        let hint = "run this test once with BNG_WRITE_DOCS=1";
        assert!(
            text == expected,
            "docs/reload.md is not what the table says: {hint}"
        );
    }
}
