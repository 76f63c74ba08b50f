//! The demo: what `make demo` shows, step by step, for a person to read.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bng_lab::{Daemon, GatewayConfig, Lab, Programs, addresses, cleanup, pppd_status, www};
use serde_json::Value;

const LINK: &str = "wan";
const DIAL_LIMIT: Duration = Duration::from_secs(60);
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// Runs the demo; with `keep` the lab stays up.
pub(crate) fn run(keep: bool) -> anyhow::Result<ExitCode> {
    let mut steps = Steps::new();
    let mut lab = None;
    let outcome = show(&mut steps, &mut lab, keep);
    if cleanup::interrupted() {
        // The thread that took the signal cleans up and ends the process.
        loop {
            std::thread::park();
        }
    }
    match (outcome, lab) {
        (Ok(()), Some(lab)) if keep => {
            let hints = hints(&lab);
            lab.keep()?;
            println!(
                "\nOK in {:.0} s. The lab stays up. Try:\n{hints}",
                steps.seconds()
            );
        }
        (Ok(()), lab) => {
            steps.next("Taking everything down");
            drop(lab);
            println!(
                "\nOK in {:.0} s: a real Linux router dialled in and fetched a page through both daemons.",
                steps.seconds()
            );
        }
        (Err(error), lab) => {
            println!("\nFAILED in step {}: {error:#}", steps.number);
            if let Some(lab) = &lab {
                println!("\n{}", lab.logs());
            }
            drop(lab);
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show(steps: &mut Steps, slot: &mut Option<Lab>, keep: bool) -> anyhow::Result<()> {
    let config = GatewayConfig::default();
    let user = config
        .users
        .first()
        .context("the demo needs a user")?
        .clone();

    steps.next("Subscriber, gateway and internet host as network namespaces, joined by veth pairs");
    let lab = slot.insert(Lab::create(Programs::of_workspace(), &config)?);
    for namespace in [lab.subscriber(), lab.gateway(), lab.internet()] {
        note(format_args!("namespace {}", namespace.name()));
    }

    steps.next("Web server on the internet host");
    lab.start_www()?;
    note(format_args!(
        "http://{}/ behind the router {}",
        addresses::WWW,
        addresses::ROUTER
    ));

    for daemon in [Daemon::Dataplane, Daemon::Controlplane] {
        steps.next(&format!("{} starts", daemon.program()));
        lab.start(daemon)?;
        note(format_args!("ready, process {}", lab.daemon(daemon)?.pid()));
    }

    steps.next("A Linux router boots (User-Mode Linux, kernel PPPoE, pppd)");
    let kernel = lab.boot_client()?.sh("uname -r", COMMAND_LIMIT)?;
    note(format_args!("Linux {}", kernel.trim()));

    steps.next(&format!("It dials in with PAP as {:?}", user.name));
    let link = lab
        .client()?
        .dial(LINK, &user.name, &user.password, "", DIAL_LIMIT)?;
    note(format_args!(
        "{} is up: address {} from IPCP, gateway {}, DNS {}",
        link.interface,
        link.local,
        link.peer,
        link.dns.join(" ")
    ));

    steps.next("It pings and fetches a page from the internet host, through NAT44");
    let ping = format!("busybox ping -c 3 -i 0.2 {}", addresses::WWW);
    note(last_lines(&lab.client()?.sh(&ping, COMMAND_LIMIT)?, 2));
    let page = lab.client()?.sh(
        &format!("curl -sS --max-time 30 http://{}/", addresses::WWW),
        COMMAND_LIMIT,
    )?;
    note(&page);
    ensure!(
        page.contains(www::TITLE),
        "this is not the page of the web server"
    );
    let nat = format!("{}.", nat_prefix(&config));
    ensure!(
        page.contains(&format!("You came as {nat}")),
        "the web server did not see an address of the NAT pool {nat}0"
    );
    let fetch = format!(
        "curl -sS --max-time 50 -o /dev/null -w '%{{size_download}} octets at %{{speed_download}} octets/s' http://{}/bytes/10000000",
        addresses::WWW
    );
    note(lab.client()?.sh(&fetch, COMMAND_LIMIT)?);

    steps.next("What the operator sees: the session");
    let sessions = lab.api().get("/api/v1/sessions")?;
    let id = session_id(&sessions, &user.name)?;
    bngctl(lab, &["sessions"])?;
    steps.next("... its NAT binding");
    bngctl(lab, &["session", "show", &id])?;
    steps.next("... the workers and the reasons for drops");
    bngctl(lab, &["workers"])?;
    bngctl(lab, &["drops"])?;
    steps.next("... and its packets in /metrics");
    let (status, text) = lab.api().get_raw("/metrics")?;
    ensure!(status == 200, "/metrics answered {status}");
    let wanted = |line: &&str| {
        (line.starts_with("bng_sessions") || line.starts_with("bng_packets_total"))
            && !line.ends_with(" 0")
    };
    note(text.lines().filter(wanted).collect::<Vec<_>>().join("\n"));

    if !keep {
        steps.next("The operator ends the session");
        bngctl(lab, &["session", "end", &id])?;
        let status = lab.client()?.wait_link_end(LINK, DIAL_LIMIT)?;
        ensure!(
            status == pppd_status::ENDED_BY_PEER,
            "pppd ended with status {status}, not {}",
            pppd_status::ENDED_BY_PEER
        );
        note("the router's pppd: ended by the peer (exit status 16)");
    }
    Ok(())
}

/// First three octets of the NAT pool as text.
fn nat_prefix(config: &GatewayConfig) -> String {
    let [a, b, c, _] = config.nat_pool.0.octets();
    format!("{a}.{b}.{c}")
}

fn session_id(sessions: &Value, user: &str) -> anyhow::Result<String> {
    let session = sessions
        .get("items")
        .and_then(Value::as_array)
        .and_then(|all| {
            all.iter()
                .find(|session| session.get("user").and_then(Value::as_str) == Some(user))
        });
    match session.and_then(|session| session.get("id")) {
        Some(Value::String(id)) => Ok(id.clone()),
        _ => bail!("no session of {user} in {sessions}"),
    }
}

fn bngctl(lab: &Lab, arguments: &[&str]) -> anyhow::Result<()> {
    println!("     $ bngctl {}", arguments.join(" "));
    note(lab.bngctl(arguments)?);
    Ok(())
}

/// Commands that work as typed while the lab is kept.
fn hints(lab: &Lab) -> String {
    let gateway = format!("ip netns exec {}", lab.gateway().name());
    let bin = &lab.programs().bin_dir;
    let bngctl = format!(
        "{gateway} {} --url http://{} --token-file {}",
        bin.join("bngctl").display(),
        addresses::API,
        lab.token_file().display()
    );
    let client = format!("{} client", bin.join("bng-lab").display());
    format!(
        "
  REST interface and metrics, at http://{api} inside the gateway's namespace:
    {gateway} curl -s -H \"Authorization: Bearer $(cat {token})\" http://{api}/api/v1/sessions
    {gateway} curl -s http://{api}/metrics
    {gateway} curl -s http://{api}/healthz
    {bngctl} sessions
    {bngctl} drops
  The kernel's side of the core port:
    {gateway} ip addr show dev core0
  Inside the Linux router:
    {client} ip addr show ppp0
    {client} curl -s http://{www}/
    {client} busybox ping -c 3 {www}
  Configuration and logs:
    {config}
    tail -n 20 {dir}/bng-controlplane.log {dir}/bng-dataplane.log
  End it all:
    make demo-down
",
        api = addresses::API,
        www = addresses::WWW,
        token = lab.token_file().display(),
        config = lab.config_file().display(),
        dir = lab.dir().display(),
    )
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Prints text indented below the step it belongs to.
fn note(text: impl Display) {
    for line in text.to_string().trim_end().lines() {
        println!("     {line}");
    }
}

struct Steps {
    number: u32,
    start: Instant,
}

impl Steps {
    fn new() -> Self {
        Self {
            number: 0,
            start: Instant::now(),
        }
    }

    fn next(&mut self, title: &str) {
        self.number += 1;
        println!(
            "\n[{:>2}] {title}  ({:.1} s)",
            self.number,
            self.start.elapsed().as_secs_f32()
        );
    }

    fn seconds(&self) -> f32 {
        self.start.elapsed().as_secs_f32()
    }
}
