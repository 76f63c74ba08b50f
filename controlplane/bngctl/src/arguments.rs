//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Shows and ends subscriber sessions of an ironbng gateway.
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
    /// Show or end one session.
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
    /// Use of address and NAT pools.
    Pools,
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
    /// Address of the subscriber.
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
