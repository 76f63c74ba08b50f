//! Every key of the file: what its value may be and whether it may be left out.
//!
//! The list below is the one source of the reader's checks and of the words "write ..." in its errors. Tests hold it against the
//! structs (every field is here, every range fits the field) and against `docs/configuration.md`.

use crate::policies::LARGEST_BURST;

/// What a value may be.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Section(&'static [Key]),
    List {
        of: &'static Kind,
        min: usize,
        max: usize,
    },
    /// A whole number; the unit is for people.
    Whole {
        min: u32,
        max: u32,
        unit: &'static str,
    },
    Switch,
    Word(&'static [&'static str]),
    /// Any text, length in bytes.
    Text {
        min: usize,
        max: usize,
    },
    /// Text that is never shown.
    Secret {
        max: usize,
    },
    /// 1 to `max` of a-z, 0-9 and what `more` holds.
    Name {
        max: usize,
        more: &'static str,
    },
    /// IPv4 address.
    Address,
    /// IPv6 address.
    Address6,
    /// Address of either family.
    AnyAddress,
    /// IPv6 prefix.
    Prefix6,
    /// Prefix or address of either family.
    Network,
    /// VLAN id, range of them, or `any` or `none`.
    Vlan,
    /// Port or range of ports.
    Ports,
    /// Number or name of an IP protocol.
    Protocol,
    /// Prefix, or an address standing for its /32.
    Range,
    /// Prefix, or the word `default`.
    Destination,
    /// Address with prefix length.
    Interface,
    Socket,
    Path,
    AbsolutePath,
}

/// One key of a section.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) required: bool,
}

const fn required(name: &'static str, kind: Kind) -> Key {
    Key {
        name,
        kind,
        required: true,
    }
}

const fn optional(name: &'static str, kind: Kind) -> Key {
    Key {
        name,
        kind,
        required: false,
    }
}

const fn whole(min: u32, max: u32, unit: &'static str) -> Kind {
    Kind::Whole { min, max, unit }
}

const fn list(of: &'static Kind, min: usize, max: usize) -> Kind {
    Kind::List { of, min, max }
}

/// Entries a list without a limit of its own may have: bounds the work for a hostile or mistaken file.
pub(crate) const LIST_LIMIT: usize = 1_000_000;

pub(crate) const ROOT: Kind = Kind::Section(&[
    optional(
        "shared_memory",
        Kind::Section(&[optional("path", Kind::AbsolutePath)]),
    ),
    required("dataplane", Kind::Section(DATAPLANE)),
    optional("pppoe", Kind::Section(PPPOE)),
    optional("auth", Kind::Section(AUTH)),
    optional("radius", Kind::Section(RADIUS)),
    optional("state_directory", Kind::AbsolutePath),
    optional("policies", list(&Kind::Section(POLICY), 0, 1024)),
    optional("filters", list(&Kind::Section(FILTER), 0, 256)),
    required("pools", list(&Kind::Section(ADDRESS_POOL), 1, 64)),
    optional("nat", Kind::Section(NAT)),
    optional(
        "api",
        Kind::Section(&[
            optional("listen", Kind::Socket),
            optional("token_file", Kind::AbsolutePath),
            optional("metrics_listen", Kind::Socket),
        ]),
    ),
    optional(
        "log",
        Kind::Section(&[optional(
            "level",
            Kind::Word(&["error", "warn", "info", "debug", "trace"]),
        )]),
    ),
]);

/// Every key with its documented path, `[]` for list entries.
pub(crate) fn keys() -> Vec<(String, &'static Kind, bool)> {
    fn walk(kind: &'static Kind, path: &str, found: &mut Vec<(String, &'static Kind, bool)>) {
        match kind {
            Kind::Section(keys) => {
                for Key {
                    name,
                    kind,
                    required,
                } in *keys
                {
                    let path = if path.is_empty() {
                        (*name).to_owned()
                    } else {
                        format!("{path}.{name}")
                    };
                    found.push((path.clone(), kind, *required));
                    walk(kind, &path, found);
                }
            }
            Kind::List { of, .. } => {
                let path = format!("{path}[]");
                found.push((path.clone(), of, true));
                walk(of, &path, found);
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    walk(&ROOT, "", &mut found);
    found
}

const CORE: Kind = whole(0, 1023, "core id");

const DATAPLANE: &[Key] = &[
    optional("main_core", CORE),
    required("workers", list(&CORE, 1, 64)),
    optional("idle_backoff_us", whole(0, 10_000, "microseconds")),
    optional(
        "eal",
        Kind::Section(&[
            optional("hugepages", Kind::Switch),
            optional("memory_mib", whole(64, 1_048_576, "MiB")),
            optional(
                "file_prefix",
                Kind::Name {
                    max: 32,
                    more: "-_",
                },
            ),
            optional("extra_args", list(&Kind::Text { min: 1, max: 1024 }, 0, 64)),
        ]),
    ),
    optional("mbufs", whole(1024, 4_194_304, "packet buffers")),
    optional(
        "routes",
        Kind::Section(&[
            optional("ipv4", whole(1024, 4_194_304, "routes")),
            optional("ipv6", whole(1024, 2_097_152, "routes")),
        ]),
    ),
    optional(
        "icmp_errors_per_second",
        whole(0, 1_000_000, "ICMP errors per second"),
    ),
    optional("coalescing", Kind::Section(COALESCING)),
    required("ports", list(&Kind::Section(PORT), 2, 32)),
];

const COALESCING: &[Key] = &[
    optional("upstream", Kind::Section(COALESCED)),
    optional("downstream", Kind::Section(COALESCED)),
    optional("ipv4", Kind::Switch),
    optional("ipv6", Kind::Switch),
    optional("hold_us", whole(0, 200, "microseconds")),
    optional("max_frames", whole(2, 128, "frames")),
    optional("verify_checksums", Kind::Switch),
];

const COALESCED: &[Key] = &[optional("tcp", Kind::Switch), optional("udp", Kind::Switch)];

const PORT: &[Key] = &[
    required("name", Kind::Name { max: 15, more: "-" }),
    required("role", Kind::Word(&["access", "core"])),
    required("device", Kind::Text { min: 1, max: 255 }),
    optional("mtu", whole(576, 9600, "bytes")),
    optional("rx_descriptors", whole(64, 32_768, "descriptors")),
    optional("tx_descriptors", whole(64, 32_768, "descriptors")),
    optional("addresses", list(&Kind::Interface, 0, 64)),
    optional("routes", list(&Kind::Section(ROUTE), 0, 1024)),
    optional("outer_tpid", Kind::Word(&["0x8100", "0x88a8"])),
    optional("vlans", list(&Kind::Section(VLAN), 0, 256)),
    optional("coalescing", Kind::Switch),
    optional("segmentation", Kind::Word(&["software", "port"])),
    optional("twin_offloads", Kind::Switch),
];

const VLAN: &[Key] = &[
    required("s_vlan", Kind::Vlan),
    optional("c_vlan", Kind::Vlan),
    optional("policy", NAME),
    optional("pool", NAME),
    optional("mru", MRU),
    optional("max_sessions_per_mac", SESSIONS_PER_MAC),
    optional("pado_delay_ms", PADO_DELAY),
    optional("service_names", SERVICE_NAMES),
];

const ROUTE: &[Key] = &[
    required("to", Kind::Destination),
    required("via", Kind::AnyAddress),
];

const COUNTER: Kind = whole(1, 100, "packets");

const PPPOE: &[Key] = &[
    optional("ac_name", Kind::Text { min: 1, max: 64 }),
    optional("service_names", SERVICE_NAMES),
    optional("max_sessions_per_mac", SESSIONS_PER_MAC),
    optional("max_sessions_per_circuit", SESSIONS_PER_PORT),
    optional("max_sessions_per_port", SESSIONS_PER_PORT),
    optional("replace_stale_sessions", Kind::Switch),
    optional("max_half_open", whole(1, 65_535, "sessions")),
    optional("padi_per_second", whole(1, 1_000_000, "PADI per second")),
    optional("padi_per_second_per_mac", whole(1, 1000, "PADI per second")),
    optional("pado_delay_ms", PADO_DELAY),
    optional("session_id_quarantine_s", whole(1, 3600, "seconds")),
    optional(
        "lockout",
        Kind::Section(&[
            optional("failures", whole(0, 100, "failures")),
            optional("first_s", whole(1, 3600, "seconds")),
            optional("longest_s", whole(1, 43_200, "seconds")),
        ]),
    ),
    optional("cookie_lifetime_s", whole(1, 300, "seconds")),
    optional("mru", MRU),
    optional("min_mru", whole(128, 1492, "bytes")),
    optional(
        "lcp",
        Kind::Section(&[
            optional("restart_ms", whole(100, 60_000, "milliseconds")),
            optional("max_configure", COUNTER),
            optional("max_terminate", COUNTER),
            optional("max_failure", COUNTER),
        ]),
    ),
    optional(
        "echo",
        Kind::Section(&[
            optional("interval_s", whole(1, 3600, "seconds")),
            optional("failures", COUNTER),
        ]),
    ),
    optional("auth_timeout_s", whole(1, 300, "seconds")),
    optional(
        "punts_per_second_per_session",
        whole(1, 100_000, "frames per second"),
    ),
];

const SERVICE_NAMES: Kind = list(&Kind::Text { min: 1, max: 64 }, 0, 16);
const SESSIONS_PER_PORT: Kind = whole(1, 65_534, "sessions");
const PADO_DELAY: Kind = whole(0, 5000, "milliseconds");
const SESSIONS_PER_MAC: Kind = whole(1, 1024, "sessions");
const MRU: Kind = whole(576, 9592, "bytes");

const AUTH: &[Key] = &[
    optional("protocols", list(&Kind::Word(&["pap", "chap"]), 1, 2)),
    optional("chap_interval_s", whole(0, 86_400, "seconds")),
    optional("backends", list(&Kind::Word(&["local", "radius"]), 1, 2)),
    optional("max_sessions_per_user", whole(0, 65_535, "sessions")),
    optional("beyond_max", Kind::Word(&["replace", "refuse"])),
    optional("users", USERS),
    optional("users_file", Kind::Path),
    optional("default_policy", NAME),
];

/// The list in `auth.users` and in the users file.
pub(crate) const USERS: Kind = list(
    &Kind::Section(&[
        required("name", Kind::Text { min: 1, max: 255 }),
        required("password", Kind::Secret { max: 255 }),
        optional("policy", NAME),
        optional("pool", NAME),
        optional("framed_ip", Kind::Address),
        optional("framed_routes", list(&Kind::Range, 0, 16)),
        optional("session_timeout_s", whole(1, 31_536_000, "seconds")),
        optional("idle_timeout_s", whole(1, 604_800, "seconds")),
        optional("quota_mib", whole(1, u32::MAX, "MiB")),
    ]),
    0,
    LIST_LIMIT,
);

const RADIUS: &[Key] = &[
    required("servers", list(&Kind::Section(RADIUS_SERVER), 1, 8)),
    optional("nas_identifier", Kind::Text { min: 1, max: 253 }),
    optional("nas_address", Kind::Address),
    optional("source", Kind::AnyAddress),
    optional("timeout_ms", whole(100, 30_000, "milliseconds")),
    optional("tries", whole(1, 10, "requests")),
    optional("dead_s", whole(1, 3600, "seconds")),
    optional(
        "accounting",
        Kind::Section(&[
            optional("interim_s", whole(0, 86_400, "seconds")),
            optional("spool_mib", whole(1, 65_536, "MiB")),
        ]),
    ),
    optional(
        "dynamic_authorization",
        Kind::Section(&[
            required("listen", Kind::Socket),
            required("clients", list(&Kind::Section(RADIUS_CLIENT), 1, 16)),
            optional("require_event_timestamp", Kind::Switch),
        ]),
    ),
];

const RADIUS_SERVER: &[Key] = &[
    required("address", Kind::AnyAddress),
    optional("auth_port", UDP_PORT),
    optional("accounting_port", UDP_PORT),
    required("secret", Kind::Secret { max: 128 }),
];

const RADIUS_CLIENT: &[Key] = &[
    required("address", Kind::AnyAddress),
    required("secret", Kind::Secret { max: 128 }),
];

const UDP_PORT: Kind = whole(1, 65_535, "UDP port");

const NAME: Kind = Kind::Name { max: 32, more: "-" };

const POLICY: &[Key] = &[
    required("name", NAME),
    optional("up", Kind::Section(RATE)),
    optional("down", Kind::Section(RATE)),
    optional("source_check", Kind::Switch),
    optional("mss_clamp", Kind::Switch),
    optional("filter", NAME),
];

const RATE: &[Key] = &[
    required("rate_kbps", whole(1, 400_000_000, "kbit/s")),
    optional("burst_bytes", whole(1500, LARGEST_BURST, "bytes")),
];

const FILTER: &[Key] = &[
    required("name", NAME),
    optional("up", RULES),
    optional("down", RULES),
    optional("other_up", ACTION),
    optional("other_down", ACTION),
];

const ACTION: Kind = Kind::Word(&["accept", "drop"]);

const RULES: Kind = list(
    &Kind::Section(&[
        required("action", ACTION),
        optional("protocol", Kind::Protocol),
        optional("remote", Kind::Network),
        optional("remote_ports", Kind::Ports),
        optional("local_ports", Kind::Ports),
    ]),
    0,
    32,
);

const POOL_IPV6: &[Key] = &[
    required("prefixes", list(&Kind::Prefix6, 1, 32)),
    optional("delegated", list(&Kind::Prefix6, 0, 32)),
    optional("delegated_length", whole(32, 64, "bits")),
    optional("dns", list(&Kind::Address6, 0, 2)),
];

const ADDRESS_POOL: &[Key] = &[
    required("name", NAME),
    required("ranges", list(&Kind::Range, 1, 256)),
    required("gateway", Kind::Address),
    optional("dns", list(&Kind::Address, 0, 2)),
    optional("ipv6", Kind::Section(POOL_IPV6)),
    optional("nat", NAME),
];

const NAT: &[Key] = &[
    optional("pools", list(&Kind::Section(NAT_POOL), 0, 64)),
    optional("max_mappings", whole(1024, 268_435_456, "mappings")),
    optional(
        "timers",
        Kind::Section(&[
            optional("udp_s", whole(120, 64_800, "seconds")),
            optional("icmp_s", whole(60, 64_800, "seconds")),
            optional("tcp_established_s", whole(7440, 64_800, "seconds")),
            optional("tcp_transitory_s", whole(240, 64_800, "seconds")),
        ]),
    ),
    optional(
        "limits",
        Kind::Section(&[
            optional("mappings", whole(0, 196_608, "mappings")),
            optional("new_per_second", whole(0, 65_535, "mappings per second")),
        ]),
    ),
    optional("log", Kind::Section(NAT_LOG)),
];

const NAT_LOG: &[Key] = &[
    optional("interim_s", whole(60, 604_800, "seconds")),
    optional("retention_days", whole(1, 3_650, "days")),
    optional("spool_mib", whole(16, 16_777_216, "MiB")),
    optional("when_full", Kind::Word(&["refuse", "forget"])),
    optional(
        "syslog",
        list(
            &Kind::Section(&[
                required("server", Kind::Socket),
                optional("transport", Kind::Word(&["udp", "tcp"])),
            ]),
            0,
            8,
        ),
    ),
    optional(
        "ipfix",
        list(
            &Kind::Section(&[
                required("server", Kind::Socket),
                optional("transport", Kind::Word(&["udp", "tcp"])),
                optional("observation_domain", whole(0, u32::MAX, "number")),
            ]),
            0,
            8,
        ),
    ),
];

const NAT_POOL: &[Key] = &[
    required("name", NAME),
    required("addresses", list(&Kind::Range, 1, 256)),
    optional("block_size", whole(64, 16_384, "ports")),
    optional("first_port", whole(1024, 49_152, "port number")),
    optional("blocks_per_subscriber", whole(1, 8, "blocks")),
    optional("quarantine_s", whole(0, 86_400, "seconds")),
    optional("other_protocols", Kind::Word(&["drop", "one_subscriber"])),
];

impl Kind {
    /// What to write, as the end of a sentence that starts with "write".
    pub(crate) fn expected(&self) -> String {
        match self {
            Kind::Section(_) => "keys and values, indented below".to_owned(),
            Kind::List { min, max, .. } => match (min, max) {
                (0, &LIST_LIMIT) => "a list".to_owned(),
                (0, max) => format!("a list of at most {max} entries"),
                (min, max) => format!("a list of {min} to {max} entries"),
            },
            Kind::Whole { min, max, unit } => {
                format!("a whole number from {min} to {max} ({unit})")
            }
            Kind::Switch => "true or false".to_owned(),
            Kind::Word(words) => words.join(" or "),
            Kind::Text { min, max } => format!("text of {min} to {max} bytes"),
            Kind::Secret { max } => format!("text of at most {max} bytes, in quotes"),
            Kind::Name { max, more } => format!("1 to {max} of a-z 0-9 {more}"),
            Kind::Address => "an IPv4 address such as 192.0.2.1".to_owned(),
            Kind::Address6 => "an IPv6 address such as 2001:db8::53".to_owned(),
            Kind::AnyAddress => {
                "an IPv4 or IPv6 address such as 192.0.2.1 or 2001:db8::1".to_owned()
            }
            Kind::Prefix6 => "an IPv6 prefix such as 2001:db8::/48".to_owned(),
            Kind::Network => {
                "an IPv4 or IPv6 prefix or address such as 198.51.100.0/24 or 2001:db8::/32"
                    .to_owned()
            }
            Kind::Vlan => {
                "a VLAN id from 1 to 4094, a range such as 100-199, any or none".to_owned()
            }
            Kind::Ports => "a port from 0 to 65535, or a range such as 137-139".to_owned(),
            Kind::Protocol => "tcp, udp, icmp, icmpv6 or a number from 0 to 255".to_owned(),
            Kind::Range => "an IPv4 prefix or address such as 198.51.100.0/24".to_owned(),
            Kind::Destination => {
                "an IPv4 or IPv6 prefix such as 198.51.100.0/24 or 2001:db8::/32, or default"
                    .to_owned()
            }
            Kind::Interface => {
                "an address with prefix length such as 192.0.2.2/30 or 2001:db8::2/64".to_owned()
            }
            Kind::Socket => "an IP address and TCP port such as 127.0.0.1:8080".to_owned(),
            Kind::Path => "the path of a file".to_owned(),
            Kind::AbsolutePath => "a path that starts with /".to_owned(),
        }
    }
}

#[cfg(test)]
mod agreement;
