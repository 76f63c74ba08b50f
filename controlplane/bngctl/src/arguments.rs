//! The command line.

use std::path::PathBuf;

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
    History(Window),
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
    /// Change what a session may do, until it ends. Done when every worker uses the new policy.
    SetPolicy {
        /// As in the list, such as access0-4660.
        id: String,
        #[command(flatten)]
        change: PolicyChange,
    },
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

/// Which sessions. Everything given must be met.
#[derive(Debug, Args)]
pub(crate) struct SessionFilter {
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
    /// negotiating, forwarding or closing.
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    window: Window,
}

impl SessionFilter {
    /// As REST wants it.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = given([
            ("user", self.user.clone()),
            ("ip", self.ip.clone()),
            ("mac", self.mac.clone()),
            ("port", self.port.clone()),
            ("state", self.state.clone()),
        ]);
        query.extend(self.window.query());
        query
    }
}

fn given<const N: usize>(all: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    let all = all.into_iter();
    all.filter_map(|(name, value)| Some((name, value?)))
        .collect()
}
