//! `/healthz`: what works and what does not, by name.
//!
//! `fail` (HTTP 503) means that this process cannot do its work: somebody has to act on it. `degraded` (HTTP 200) means that
//! it does and something beside it is missing, which restarting it would not bring back.

use axum::http::StatusCode;
use serde::Serialize;

use crate::radius::view::{ExchangeView, RadiusView, ServerView};
use crate::request::{Link, Request};
use crate::settings::Settings;
use crate::status::{PortView, Status};

/// The driver beats once a second.
const DRIVER_STALE_MS: u64 = 3_000;
/// The dataplane's main thread beats once a second, its workers more often.
const DATAPLANE_STALE_MS: u64 = 5_000;

/// Records may wait so long for a collector before somebody should know.
const NAT_LOG_BEHIND_MS: u64 = 60_000;

/// How well something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Grade {
    /// Works.
    Ok,
    /// Something is missing; the rest works.
    Degraded,
    /// Does not work.
    Fail,
}

/// One thing that is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Component {
    name: String,
    status: Grade,
    detail: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Health {
    status: Grade,
    components: Vec<Component>,
}

impl Health {
    fn of(components: Vec<Component>) -> Self {
        let worst = components.iter().map(|component| component.status).max();
        Self {
            status: worst.unwrap_or(Grade::Ok),
            components,
        }
    }

    /// 503 when failing, else 200.
    pub(crate) const fn http_status(&self) -> StatusCode {
        match self.status {
            Grade::Fail => StatusCode::SERVICE_UNAVAILABLE,
            Grade::Ok | Grade::Degraded => StatusCode::OK,
        }
    }
}

fn component(name: impl Into<String>, status: Grade, detail: impl Into<String>) -> Component {
    Component {
        name: name.into(),
        status,
        detail: detail.into(),
    }
}

/// Looks at everything.
pub(crate) async fn check(link: &Link, settings: &Settings) -> Health {
    let driver = match link.driver() {
        Ok(driver) => driver,
        Err(reason) => return Health::of(vec![component("shared-memory", Grade::Fail, reason)]),
    };
    let mut components = vec![component(
        "shared-memory",
        Grade::Ok,
        "attached, tables published",
    )];
    let beat = driver.beat_ms_ago();
    match driver.ask(Request::Status).await {
        Ok(status) if beat <= DRIVER_STALE_MS => {
            components.push(component(
                "driver",
                Grade::Ok,
                format!("heartbeat {beat} ms ago"),
            ));
            components.extend(of_status(&status, settings));
        }
        Ok(status) => {
            let detail = format!("last heartbeat {beat} ms ago");
            components.push(component("driver", Grade::Degraded, detail));
            components.extend(of_status(&status, settings));
        }
        Err(error) => {
            let detail = format!("{error}; last heartbeat {beat} ms ago");
            components.push(component("driver", Grade::Fail, detail));
        }
    }
    Health::of(components)
}

fn of_status(status: &Status, settings: &Settings) -> Vec<Component> {
    let mut components = vec![dataplane(status)];
    if status.dataplane.alive {
        components.extend(status.ports.iter().map(port));
        for worker in status
            .workers
            .iter()
            .take(settings.capacities.workers as usize)
        {
            let name = format!("worker-{}", worker.worker);
            components.push(match worker.heartbeat_ms_ago {
                None => component(name, Grade::Degraded, "does not run"),
                Some(ms) if ms > DATAPLANE_STALE_MS => {
                    component(name, Grade::Degraded, format!("last heartbeat {ms} ms ago"))
                }
                Some(_) => component(name, Grade::Ok, "runs"),
            });
        }
    }
    let routes = &status.routes;
    components.push(match (routes.synchronised, routes.unresolved) {
        (false, _) => component(
            "routes",
            Grade::Degraded,
            "the kernel's routes are not mirrored at the moment",
        ),
        (true, _) if routes.full => component(
            "routes",
            Grade::Degraded,
            "the kernel has more routes than the shared memory holds: its latest state is not used",
        ),
        (true, 0) => component("routes", Grade::Ok, format!("{} mirrored", routes.routes)),
        // A gateway that does not answer is what an operator has to know of; traffic to others goes on.
        (true, n) => component(
            "routes",
            Grade::Degraded,
            format!("{n} gateways without a MAC address"),
        ),
    });
    components.extend(status.radius.as_ref().map(radius));
    components.extend(status.radius.as_ref().and_then(accounting));
    components.extend(status.nat_log.as_ref().map(nat_log));
    components
}

fn radius(view: &RadiusView) -> Component {
    let servers = view.servers.len();
    let all_dead = |exchange: fn(&ServerView) -> &ExchangeView| {
        view.servers.iter().all(|server| exchange(server).is_dead)
    };
    let detail = if all_dead(|server| &server.authentication) {
        "no server answers Access-Requests".to_owned()
    } else if all_dead(|server| &server.accounting) {
        "no server answers Accounting-Requests".to_owned()
    } else {
        return component("radius", Grade::Ok, format!("{servers} servers"));
    };
    component("radius", Grade::Degraded, detail)
}

/// Nothing when all is well.
fn accounting(view: &RadiusView) -> Option<Component> {
    let held = view.spool.held_sessions;
    let detail = format!(
        "the disk does not take accounting messages: {held} sessions that are over keep their session ids, of 65535 on each access port"
    );
    (held > 0).then(|| component("accounting", Grade::Degraded, detail))
}

/// The log of NAT port blocks.
fn nat_log(view: &bng_natlog::View) -> Component {
    let name = "nat-log";
    if let Some(error) = &view.failing {
        let detail = format!("cannot be written: {error}; new subscribers behind NAT are refused");
        return component(name, Grade::Degraded, detail);
    }
    let behind = (view.outputs.iter()).find(|it| it.waiting_ms > NAT_LOG_BEHIND_MS);
    let behind = behind.map(|it| {
        let (name, waiting, s) = (&it.name, it.waiting, it.waiting_ms / 1_000);
        format!("{name} has not taken anything for {s} s, {waiting} records wait")
    });
    match (view.full, behind) {
        (true, behind) => {
            let behind = behind.unwrap_or_else(|| "a collector is behind".to_owned());
            component(
                name,
                Grade::Degraded,
                format!("full (nat.log.spool_mib): {behind}"),
            )
        }
        (false, Some(behind)) => component(name, Grade::Degraded, behind),
        (false, None) => {
            let detail = format!("{} blocks open, {} MiB", view.open, view.size >> 20);
            component(name, Grade::Ok, detail)
        }
    }
}

fn dataplane(status: &Status) -> Component {
    let dataplane = &status.dataplane;
    let name = "bng-dataplane";
    if !dataplane.alive {
        return component(
            name,
            Grade::Degraded,
            "bng-dataplane is not running: nothing is forwarded, sessions are kept",
        );
    }
    let age = dataplane.heartbeat_ms_ago;
    if age > DATAPLANE_STALE_MS {
        let detail = format!("bng-dataplane hangs or is stopped: last heartbeat {age} ms ago");
        return component(name, Grade::Degraded, detail);
    }
    component(name, Grade::Ok, format!("runs, process {}", dataplane.pid))
}

fn port(port: &PortView) -> Component {
    let name = format!("port {}", port.name);
    match (port.started, port.link_up) {
        (false, _) => component(name, Grade::Degraded, "not started"),
        (true, false) => component(name, Grade::Degraded, "link is down"),
        (true, true) => component(name, Grade::Ok, "link is up"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nat_log_says_what_is_wrong_with_it() {
        let output = bng_natlog::OutputView {
            name: "syslog-tcp-192.0.2.9:514".to_owned(),
            connected: false,
            waiting: 7,
            waiting_ms: 60_000,
            sent: 0,
            reconnects: 0,
            errors: 3,
            lost: 0,
        };
        let good = bng_natlog::View {
            open: 2,
            size: 3 << 20,
            outputs: vec![output.clone()],
            ..bng_natlog::View::default()
        };
        let mut late = good.clone();
        late.outputs[0].waiting_ms = 61_000;
        let full = bng_natlog::View {
            full: true,
            ..late.clone()
        };
        let failing = bng_natlog::View {
            failing: Some("no space left".to_owned()),
            ..good.clone()
        };
        for (view, grade, words) in [
            (good, Grade::Ok, "2 blocks open, 3 MiB"),
            (
                late,
                Grade::Degraded,
                "syslog-tcp-192.0.2.9:514 has not taken anything for 61 s, 7 records wait",
            ),
            (
                full,
                Grade::Degraded,
                "full (nat.log.spool_mib): syslog-tcp",
            ),
            (failing, Grade::Degraded, "cannot be written: no space left"),
        ] {
            let component = nat_log(&view);
            assert_eq!(component.status, grade, "{}", component.detail);
            assert!(component.detail.contains(words), "{}", component.detail);
        }
    }

    #[tokio::test]
    async fn a_version_mismatch_is_named_and_fails() {
        let config = crate::settings::tests::config();
        let settings = Settings::new(&config).unwrap();
        let link = Link::waiting("ABI version is 2, ours is 1; bng-dataplane is running with it");
        let health = check(&link, &settings).await;
        assert_eq!(health.http_status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(health.components[0].detail.contains("ABI version"));
    }

    #[test]
    fn sessions_that_wait_for_the_disk_degrade() {
        let mut view = RadiusView::default();
        assert_eq!(accounting(&view), None);
        view.spool.held_sessions = 3;
        let found = accounting(&view).unwrap();
        assert_eq!(found.status, Grade::Degraded);
        assert!(found.detail.contains("3 sessions"), "{}", found.detail);
    }

    #[test]
    fn the_worst_component_decides() {
        let grade = |grades: &[Grade]| {
            Health::of(grades.iter().map(|g| component("x", *g, "")).collect()).status
        };
        assert_eq!(grade(&[Grade::Ok, Grade::Ok]), Grade::Ok);
        assert_eq!(grade(&[Grade::Ok, Grade::Degraded]), Grade::Degraded);
        assert_eq!(grade(&[Grade::Fail, Grade::Degraded]), Grade::Fail);
    }
}
