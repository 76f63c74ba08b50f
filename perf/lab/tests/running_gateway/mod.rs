//! What the end-to-end tests share: a lab whose daemons run, and the operator's view of it.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use bng_lab::{Daemon, GatewayConfig, Lab, Metrics, Programs, wait_until};
use serde::Deserialize;

/// For whatever comes at once on a machine with time to spare; others may be busy on this one.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const USER: &str = "alice";
pub(crate) const PASSWORD: &str = "wonderland";

/// One entry of `GET /api/v1/sessions`, as far as the tests look.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Session {
    pub(crate) id: String,
    pub(crate) user: String,
    pub(crate) framed_ip: Option<String>,
    pub(crate) state: String,
    pub(crate) worker: u8,
    pub(crate) started_unix_ms: u64,
}

#[derive(Debug, Deserialize)]
struct SessionPage {
    items: Vec<Session>,
    total: usize,
}

/// A lab with web server and both daemons up.
pub(crate) fn start(config: &GatewayConfig) -> Lab {
    let mut lab = Lab::create(Programs::of_workspace(), config).unwrap();
    lab.start_www().unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    lab
}

/// All sessions, by id.
pub(crate) fn sessions(lab: &Lab) -> BTreeMap<String, Session> {
    let answer = lab.api().get("/api/v1/sessions?limit=1000").unwrap();
    let page: SessionPage =
        serde_json::from_value(answer.clone()).unwrap_or_else(|e| panic!("{e}: {answer}"));
    assert_eq!(page.items.len(), page.total, "one page holds all: {answer}");
    page.items
        .into_iter()
        .map(|session| (session.id.clone(), session))
        .collect()
}

/// Waits until exactly `count` sessions are listed and all are up, and returns them.
pub(crate) fn wait_for_sessions(lab: &Lab, count: usize) -> BTreeMap<String, Session> {
    let what = format!("{count} sessions that are up");
    let up = |all: &BTreeMap<String, Session>| {
        all.len() == count && all.values().all(|s| s.state == "forwarding")
    };
    wait_until(&what, LIMIT, || Ok(sessions(lab)), up).unwrap()
}

/// Frames the dataplane dropped since `before`, by reason.
pub(crate) fn drops_since(before: &Metrics, now: &Metrics) -> BTreeMap<String, f64> {
    by_label(before, now, "bng_drops_total", "reason")
}

/// Value of one of the dataplane's counters of packets, all workers together.
pub(crate) fn counted(lab: &Lab, counter: &str) -> f64 {
    let metrics = lab.api().metrics().unwrap();
    metrics.sum("bng_packets_total", &[("counter", counter)])
}

/// Value of one of the coalescer's counters, all workers together.
pub(crate) fn coalesced(lab: &Lab, counter: &str) -> u64 {
    let answer = lab.api().get("/api/v1/workers").unwrap();
    let workers = answer.as_array().unwrap().iter();
    let values = workers.filter_map(|worker| worker["counters"][counter].as_u64());
    values.sum()
}

/// Frames dropped for one reason, all workers together.
pub(crate) fn dropped(lab: &Lab, reason: &str) -> f64 {
    let metrics = lab.api().metrics().unwrap();
    metrics.sum("bng_drops_total", &[("reason", reason)])
}

/// Waits until exactly `count` frames are dropped for `reason`: a worker may still have them in its queue.
pub(crate) fn wait_for_drops(lab: &Lab, reason: &str, count: f64) {
    let ask = || {
        let metrics = lab.api().metrics()?;
        Ok(metrics.sum("bng_drops_total", &[("reason", reason)]))
    };
    let seen = wait_until(reason, LIMIT, ask, |seen| *seen >= count).unwrap();
    assert_eq!(seen, count, "{reason}");
}

/// Frames the PPPoE engine dropped since `before`, by reason.
pub(crate) fn engine_drops_since(before: &Metrics, now: &Metrics) -> BTreeMap<String, f64> {
    by_label(before, now, "bng_pppoe_drops_total", "reason")
}

fn by_label(before: &Metrics, now: &Metrics, name: &str, label: &str) -> BTreeMap<String, f64> {
    let (old, mut changes) = (before.by_label(name, label), now.by_label(name, label));
    for (reason, count) in &mut changes {
        *count -= old.get(reason).copied().unwrap_or(0.0);
    }
    changes.retain(|_, count| *count != 0.0);
    changes
}

/// Waits until `/healthz` says `status` (`ok`, `degraded`, `fail`), and returns its text.
pub(crate) fn wait_for_health(lab: &Lab, status: &str) -> String {
    #[derive(Deserialize)]
    struct Health {
        status: String,
    }
    let what = format!("/healthz says {status}");
    let says = |text: &String| {
        serde_json::from_str::<Health>(text).is_ok_and(|health| health.status == status)
    };
    wait_until(&what, LIMIT, || Ok(lab.api().get_raw("/healthz")?.1), says).unwrap()
}

/// How often the PPP engine came to `outcome`.
pub(crate) fn outcomes(lab: &Lab, outcome: &str) -> f64 {
    let metrics = lab.api().metrics().unwrap();
    metrics.sum("bng_pppoe_outcomes_total", &[("outcome", outcome)])
}

/// Everything REST says about a session.
pub(crate) fn session_page(lab: &Lab, id: &str) -> serde_json::Value {
    lab.api().get(&format!("/api/v1/sessions/{id}")).unwrap()
}

/// Name of the policy a session is under, as the session's own page says it.
pub(crate) fn policy_of(lab: &Lab, id: &str) -> String {
    let session = session_page(lab, id);
    session["policy"]["name"]
        .as_str()
        .unwrap_or_else(|| panic!("no policy in {session}"))
        .to_owned()
}
