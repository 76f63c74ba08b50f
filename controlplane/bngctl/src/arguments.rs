//! The command line.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};

/// Shows, changes and ends subscriber sessions of an ironbng gateway.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit status: 0 done, 1 refused or failing, 2 wrong usage, 3 gateway not reached."
)]
pub(crate) struct Arguments {
    /// Where the control plane listens (api.listen).
    #[arg(
        long,
        global = true,
        env = "BNG_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub(crate) url: String,
    /// File whose first line is the token (api.token_file).
    #[arg(
        long,
        global = true,
        env = "BNG_TOKEN_FILE",
        default_value = "/etc/ironbng/token",
        value_name = "FILE"
    )]
    pub(crate) token_file: PathBuf,
    /// Print what the gateway answers, as JSON.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List sessions.
    Sessions(SessionFilter),
    /// Show, change or end one session.
    #[command(subcommand)]
    Session(SessionCommand),
    /// List sessions that have ended, latest first, with their cause.
    History(HistoryFilter),
    /// Reasons for which frames were dropped.
    Drops {
        /// Also those that never happened.
        #[arg(long)]
        all: bool,
    },
    /// Workers: load, rings, NAT mappings.
    Workers,
    /// Ports: link, MAC address, driver.
    Ports,
    /// Coalescing: settings, runs, frames per super-packet, reasons.
    Coalescing {
        /// All reasons, also those that never happened.
        #[arg(long)]
        all: bool,
    },
    /// Use of address pools, their IPv6 prefixes, and NAT pools.
    Pools,
    /// Follow what happens: sessions up and down, refused subscribers, the dataplane, reloads.
    Events {
        /// Only these: session_up, session_down, auth_failure, dataplane_up, dataplane_down, reload,
        /// framed_route_refused.
        #[arg(long, value_name = "EVENT,...", value_delimiter = ',')]
        only: Vec<String>,
        /// Begin after the event with this id, as far as it is remembered; 0 for all that is.
        #[arg(long, value_name = "ID")]
        since: Option<String>,
    },
    /// Keep and read the control frames of chosen subscribers.
    #[command(subcommand)]
    Trace(TraceCommand),
    /// Have the gateway read its configuration again.
    Reload {
        /// Only say what would be done.
        #[arg(long)]
        dry_run: bool,
        /// End sessions the new configuration has no place for: on VLANs it does not serve, of users it does not have.
        #[arg(long)]
        allow_drops: bool,
    },
    /// Clients that are kept out because they keep failing.
    #[command(subcommand)]
    Lockout(LockoutCommand),
    /// Network address translation.
    #[command(subcommand)]
    Nat(NatCommand),
    /// Policies of the configuration.
    #[command(subcommand)]
    Policy(ListCommand),
    /// Filters of the configuration.
    #[command(subcommand)]
    Filter(ListCommand),
    /// What works and what does not. Needs no token.
    Health,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Everything known of a session.
    Show {
        /// As in the list, such as access0-4660.
        id: String,
    },
    /// End a session; the subscriber may dial again.
    End {
        /// As in the list, such as access0-4660.
        id: String,
    },
    /// Change the limits of a session, until it ends.
    SetLimits {
        /// As in the list, such as access0-4660.
        id: String,
        #[command(flatten)]
        change: LimitsChange,
    },
    /// Change what a session may do, until it ends. Done when every worker uses the new policy.
    SetPolicy {
        /// As in the list, such as access0-4660.
        id: String,
        #[command(flatten)]
        change: PolicyChange,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// Begin a trace. A client needs no session for it.
    Start(TraceOrder),
    /// List the traces.
    List,
    /// Show the frames of a trace in words.
    Show {
        /// As in the list.
        id: u32,
    },
    /// Write the frames of a trace into a file for Wireshark.
    Save {
        /// As in the list.
        id: u32,
        /// The pcapng file; `-` for standard output.
        file: PathBuf,
    },
    /// End a trace and forget its frames.
    Stop {
        /// As in the list.
        id: u32,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum NatCommand {
    /// Name the subscriber that had a public port. Exit status 1 if nobody is known to have had it.
    Who {
        /// Public address and port, such as 198.51.100.7:40000.
        #[arg(value_name = "ADDRESS:PORT")]
        public: std::net::SocketAddrV4,
        /// RFC 3339 time such as 2026-03-01T12:00:00Z; otherwise now.
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
    },
}

impl NatCommand {
    /// As REST wants it.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let Self::Who { public, at } = self;
        given([
            ("address", Some(public.ip().to_string())),
            ("port", Some(public.port().to_string())),
            ("at", at.clone()),
        ])
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum LockoutCommand {
    /// List them.
    List,
    /// Let clients in again at once. Everything given must be met.
    Clear(LockedOut),
}

/// Which clients.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct LockedOut {
    /// MAC address.
    #[arg(long)]
    mac: Option<String>,
    /// Agent-Circuit-Id, whole.
    #[arg(long)]
    circuit: Option<String>,
    /// Name of the access port.
    #[arg(long)]
    port: Option<String>,
}

impl LockedOut {
    /// As REST wants it.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        given([
            ("mac", self.mac.clone()),
            ("circuit", self.circuit.clone()),
            ("port", self.port.clone()),
        ])
    }
}

/// Whose frames, how many and how long.
#[derive(Debug, Args)]
pub(crate) struct TraceOrder {
    #[command(flatten)]
    subscriber: Subscriber,
    /// Everybody's frames.
    #[arg(long)]
    all: bool,
    /// Latest frames to keep (1 to 10000), otherwise 1000.
    #[arg(long)]
    frames: Option<u32>,
    /// Seconds after which no more frames are taken (1 to 86400), otherwise 600.
    #[arg(long)]
    seconds: Option<u32>,
    /// Leave the passwords of PAP in the frames.
    #[arg(long)]
    with_passwords: bool,
}

impl TraceOrder {
    /// As REST wants it.
    pub(crate) fn body(&self) -> Value {
        let number = |name: &str| matches!(name, "s_vlan" | "c_vlan" | "session_id");
        let given = self.subscriber.query().into_iter();
        let mut body: Map<_, _> = given
            .map(|(name, text)| match text.parse::<u16>() {
                Ok(value) if number(name) => (name.to_owned(), value.into()),
                _ => (name.to_owned(), text.into()),
            })
            .collect();
        let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
        if let Some(frames) = self.frames {
            put("frames", frames.into());
        }
        if let Some(seconds) = self.seconds {
            put("seconds", seconds.into());
        }
        if self.all {
            put("all", true.into());
        }
        if self.with_passwords {
            put("with_passwords", true.into());
        }
        Value::Object(body)
    }
}

/// What can be done with what the configuration lists.
#[derive(Debug, Clone, Copy, Subcommand)]
pub(crate) enum ListCommand {
    /// List them.
    List,
}

/// What becomes of a policy. What is not given stays, or is as the named policy says.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct PolicyChange {
    /// Policy of the configuration to begin with.
    name: Option<String>,
    /// Limit of what the subscriber sends, in kbit/s.
    #[arg(long, conflicts_with = "no_up_limit")]
    up_kbps: Option<u32>,
    /// Its burst, in bytes; otherwise 100 ms of the rate.
    #[arg(long, requires = "up_kbps")]
    up_burst_bytes: Option<u32>,
    /// No limit of what the subscriber sends.
    #[arg(long)]
    no_up_limit: bool,
    /// Limit of what the subscriber receives, in kbit/s.
    #[arg(long, conflicts_with = "no_down_limit")]
    down_kbps: Option<u32>,
    /// Its burst, in bytes; otherwise 100 ms of the rate.
    #[arg(long, requires = "down_kbps")]
    down_burst_bytes: Option<u32>,
    /// No limit of what the subscriber receives.
    #[arg(long)]
    no_down_limit: bool,
    /// Drop packets with another source address than the session's.
    #[arg(long, value_name = "on|off")]
    source_check: Option<Toggle>,
    /// Lower TCP MSS options to the session's MTU.
    #[arg(long, value_name = "on|off")]
    mss_clamp: Option<Toggle>,
    /// Filter of the configuration.
    #[arg(long, conflicts_with = "no_filter")]
    filter: Option<String>,
    /// No filter.
    #[arg(long)]
    no_filter: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Toggle {
    On,
    Off,
}

impl PolicyChange {
    /// As REST wants it.
    pub(crate) fn body(&self) -> Value {
        let rate = |kbps: u32, burst: Option<u32>| match burst {
            Some(burst) => json!({ "rate_kbps": kbps, "burst_bytes": burst }),
            None => json!({ "rate_kbps": kbps }),
        };
        let mut body = Map::new();
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(key.to_owned(), value);
            }
        };
        let nothing = |wanted: bool| wanted.then_some(Value::Null);
        let is_on = |toggle: Toggle| Value::Bool(toggle == Toggle::On);
        put("policy", self.name.clone().map(Value::from));
        let up = self.up_kbps.map(|kbps| rate(kbps, self.up_burst_bytes));
        put("up", up.or(nothing(self.no_up_limit)));
        let down = (self.down_kbps).map(|kbps| rate(kbps, self.down_burst_bytes));
        put("down", down.or(nothing(self.no_down_limit)));
        put("source_check", self.source_check.map(is_on));
        put("mss_clamp", self.mss_clamp.map(is_on));
        let filter = self.filter.clone().map(Value::from);
        put("filter", filter.or(nothing(self.no_filter)));
        Value::Object(body)
    }
}

/// What becomes of a session's limits. What is not given stays.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub(crate) struct LimitsChange {
    /// Longest time of the session, in seconds.
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_session_timeout")]
    session_timeout: Option<u32>,
    /// No longest time of the session.
    #[arg(long)]
    no_session_timeout: bool,
    /// Longest time without traffic of the subscriber, in seconds.
    #[arg(long, value_name = "SECONDS", conflicts_with = "no_idle_timeout")]
    idle_timeout: Option<u32>,
    /// No longest time without traffic.
    #[arg(long)]
    no_idle_timeout: bool,
    /// Most bytes of both directions together since the start of the session, in MiB.
    #[arg(long, value_name = "MIB", conflicts_with = "no_quota")]
    quota: Option<u32>,
    /// As many bytes as it likes.
    #[arg(long)]
    no_quota: bool,
}

impl LimitsChange {
    /// As REST wants it.
    pub(crate) fn body(&self) -> Value {
        let limits = [
            (
                "session_timeout_s",
                self.session_timeout,
                self.no_session_timeout,
            ),
            ("idle_timeout_s", self.idle_timeout, self.no_idle_timeout),
            ("quota_mib", self.quota, self.no_quota),
        ];
        let given = limits.into_iter().filter_map(|(key, value, none)| {
            let value = value.map(Value::from).or(none.then_some(Value::Null))?;
            Some((key.to_owned(), value))
        });
        Value::Object(given.collect())
    }
}

/// A part of a list.
#[derive(Debug, Args)]
pub(crate) struct Window {
    /// Entries at most (1 to 1000).
    #[arg(long)]
    limit: Option<usize>,
    /// Entries to leave out.
    #[arg(long)]
    offset: Option<usize>,
}

impl Window {
    /// As REST wants it.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let number = |n: usize| n.to_string();
        given([
            ("limit", self.limit.map(number)),
            ("offset", self.offset.map(number)),
        ])
    }
}

/// Whose sessions. Everything given must be met.
#[derive(Debug, Args)]
pub(crate) struct Subscriber {
    /// Name of the subscriber, whole.
    #[arg(long)]
    user: Option<String>,
    /// Address of the subscriber, or an IPv6 address in one of its prefixes.
    #[arg(long)]
    ip: Option<String>,
    /// Client MAC address.
    #[arg(long)]
    mac: Option<String>,
    /// Name of the access port.
    #[arg(long)]
    port: Option<String>,
    /// Agent-Circuit-Id of the line, whole.
    #[arg(long)]
    circuit: Option<String>,
    /// Agent-Remote-Id of the line, whole.
    #[arg(long)]
    remote: Option<String>,
    /// S-VLAN id; 0 for frames without a tag.
    #[arg(long)]
    s_vlan: Option<u16>,
    /// C-VLAN id; 0 for frames without a second tag.
    #[arg(long)]
    c_vlan: Option<u16>,
    /// PPPoE session id.
    #[arg(long)]
    session_id: Option<u16>,
}

impl Subscriber {
    /// As REST wants it.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let number = |n: u16| n.to_string();
        given([
            ("user", self.user.clone()),
            ("ip", self.ip.clone()),
            ("mac", self.mac.clone()),
            ("port", self.port.clone()),
            ("circuit", self.circuit.clone()),
            ("remote", self.remote.clone()),
            ("s_vlan", self.s_vlan.map(number)),
            ("c_vlan", self.c_vlan.map(number)),
            ("session_id", self.session_id.map(number)),
        ])
    }
}

/// Which sessions. Everything given must be met.
#[derive(Debug, Args)]
pub(crate) struct SessionFilter {
    #[command(flatten)]
    subscriber: Subscriber,
    /// negotiating, forwarding or closing.
    #[arg(long)]
    state: Option<String>,
    /// Name of the address pool.
    #[arg(long)]
    pool: Option<String>,
    /// Name of the policy.
    #[arg(long)]
    policy: Option<String>,
    #[command(flatten)]
    window: Window,
}

impl SessionFilter {
    /// As REST wants it.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = self.subscriber.query();
        query.extend(given([
            ("state", self.state.clone()),
            ("pool", self.pool.clone()),
            ("policy", self.policy.clone()),
        ]));
        query.extend(self.window.query());
        query
    }
}

/// Which ended sessions. Everything given must be met.
#[derive(Debug, Args)]
pub(crate) struct HistoryFilter {
    #[command(flatten)]
    subscriber: Subscriber,
    /// Why it ended.
    #[arg(long)]
    cause: Option<String>,
    /// Whether it was ever up.
    #[arg(long, value_name = "true|false")]
    was_up: Option<bool>,
    /// Sessions that ended since then: a time ago such as 90s, 15m, 2h or 7d.
    #[arg(long, value_name = "AGO", value_parser = ago)]
    since: Option<Duration>,
    /// Sessions that started before then; with --since all that were there at some time between.
    #[arg(long, value_name = "AGO", value_parser = ago)]
    until: Option<Duration>,
    #[command(flatten)]
    window: Window,
}

impl HistoryFilter {
    /// As REST wants it.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let unix_ms = |ago: Duration| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let moment = now.unwrap_or_default().saturating_sub(ago);
            moment.as_millis().to_string()
        };
        let mut query = self.subscriber.query();
        query.extend(given([
            ("cause", self.cause.clone()),
            ("was_up", self.was_up.map(|was_up| was_up.to_string())),
            ("since", self.since.map(unix_ms)),
            ("until", self.until.map(unix_ms)),
        ]));
        query.extend(self.window.query());
        query
    }
}

/// A time such as 90s, 15m, 2h or 7d.
fn ago(text: &str) -> Result<Duration, &'static str> {
    let span = || {
        let (at, unit) = text.char_indices().next_back()?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3_600,
            'd' => 86_400,
            _ => return None,
        };
        let count: u64 = text.get(..at)?.parse().ok()?;
        count.checked_mul(seconds).map(Duration::from_secs)
    };
    span().ok_or("write a number and s, m, h or d, such as 15m")
}

fn given<const N: usize>(all: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    let all = all.into_iter();
    all.filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_ago_is_a_number_and_a_unit() {
        for (text, seconds) in [("90s", 90), ("15m", 900), ("2h", 7_200), ("7d", 604_800)] {
            assert_eq!(ago(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in [
            "",
            "s",
            "15",
            "-1s",
            "1.5h",
            "2w",
            "99999999999999999999d",
            "1\u{e9}",
        ] {
            assert!(ago(wrong).is_err(), "{wrong}");
        }
    }
}
