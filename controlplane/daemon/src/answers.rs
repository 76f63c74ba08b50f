//! Answers to what REST and metrics ask.

use std::collections::BTreeMap;

use bng_config::PortRole;
use bng_pppoe::TerminateCause;
use bng_shm::{Counter, Offloads, PortState, PortStatus};

use crate::driver::Driver;
use crate::lockouts;
use crate::policy_view;
use crate::publish::Clock;
use crate::radius::view::RadiusView;
use crate::request::{Request, Window};
use crate::selection::{self, HistoryFilter, SessionFilter};
use crate::status::{
    AddressPoolView, DataplaneView, DropView, NatPoolView, PoolsView, PortView, PrefixPoolView,
    RingsView, Status, WorkerView,
};
use crate::views::{EndedView, Page, SessionDetail, SessionView};

/// Answers a request. Who asked may be gone by now, which is no matter.
pub(crate) fn answer(driver: &mut Driver, request: Request, clock: Clock) {
    match request {
        Request::Sessions(filter, window, reply) => {
            let _ = reply.send(sessions(driver, &filter, window));
        }
        Request::Session(slot, reply) => {
            let detail = driver.sessions.at(slot).map(|live| {
                let stats = driver.publisher.session_stats(slot).unwrap_or_default();
                let info = driver.engine.session(live.session);
                let ids = selection::line_ids(driver, live);
                SessionDetail::new(&driver.settings, live, ids, &stats, info.as_ref(), clock)
            });
            let _ = reply.send(detail);
        }
        Request::End(slot, reply) => {
            let session = driver.sessions.at(slot).map(|live| live.session);
            let ended = session.is_some_and(|session| {
                driver
                    .engine
                    .terminate(clock.time(), session, TerminateCause::Operator)
            });
            let _ = reply.send(ended);
        }
        Request::ChangePolicy(slot, change, reply) => {
            driver.change_policy(slot, &change, reply, clock);
        }
        Request::ChangeLimits(slot, change, reply) => {
            let _ = reply.send(driver.change_limits(slot, &change, clock));
        }
        Request::Policies(reply) => {
            let _ = reply.send(policy_view::policies(driver));
        }
        Request::Filters(reply) => {
            let _ = reply.send(policy_view::filters(driver));
        }
        Request::History(filter, window, reply) => {
            let _ = reply.send(history(driver, &filter, window));
        }
        Request::StartTrace(order, reply) => {
            let _ = reply.send(driver.traces.start(*order, &driver.sessions, clock));
        }
        Request::Traces(reply) => {
            let _ = reply.send(driver.traces.views(clock.monotonic_ms));
        }
        Request::Trace(id, reply) => {
            let _ = reply.send(driver.traces.copy(id, clock.monotonic_ms));
        }
        Request::StopTrace(id, reply) => {
            let _ = reply.send(driver.traces.stop(id));
        }
        Request::Lockouts(reply) => {
            let _ = reply.send(lockouts::list(driver, clock));
        }
        Request::Unlock(clients, reply) => {
            let _ = reply.send(lockouts::unlock(driver, &clients, clock));
        }
        Request::Reload(order, reply) => {
            let _ = reply.send(driver.reload(*order, clock));
        }
        Request::Status(reply) => {
            let _ = reply.send(Box::new(status(driver, clock)));
        }
        Request::Verdict(id, verdict) => driver.grants.answered(id, verdict),
        Request::AccountingKept(slot) => driver.free_slot(slot, clock),
        Request::Authorize(selector, change, reply) => {
            driver.authorize(&selector, &change, reply, clock);
        }
        Request::Disconnect(selector, reply) => {
            let _ = reply.send(driver.disconnect(&selector, clock));
        }
        Request::WhoHas(public, port, reply) => {
            let _ = reply.send(driver.who_has(public, port));
        }
        // The driver's loop has taken these itself.
        Request::Kernel(_) | Request::Stop => {}
    }
}

fn sessions(driver: &Driver, filter: &SessionFilter, window: Window) -> Page<SessionView> {
    let fitting = driver.sessions.iter().filter(|it| filter.fits(driver, it));
    page(fitting, window, |live| {
        let stats = driver.publisher.session_stats(live.slot());
        SessionView::new(&driver.settings, live, &stats.unwrap_or_default())
    })
}

fn history(driver: &Driver, filter: &HistoryFilter, window: Window) -> Page<EndedView> {
    let fitting = driver.sessions.history().filter(|it| filter.fits(it));
    page(fitting, window, |it| EndedView::new(&driver.settings, it))
}

/// Only what is shown is made into a view.
fn page<T, V: utoipa::ToSchema>(
    all: impl Iterator<Item = T>,
    window: Window,
    view: impl Fn(T) -> V,
) -> Page<V> {
    let mut total = 0;
    let mut items = Vec::new();
    for item in all {
        if total >= window.offset && items.len() < window.limit {
            items.push(view(item));
        }
        total += 1;
    }
    Page {
        total,
        offset: window.offset,
        items,
    }
}

fn radius_view(driver: &Driver) -> Option<RadiusView> {
    let mut view = driver.radius.view()?;
    view.spool.held_sessions = driver.held.long();
    Some(view)
}

fn status(driver: &Driver, clock: Clock) -> Status {
    let now = clock.monotonic_ms;
    let dataplane = driver.publisher.dataplane_status();
    let (workers, drops) = workers(driver, dataplane.alive, now);
    let counters = driver.engine.counters().iter();
    Status {
        dataplane: DataplaneView {
            alive: dataplane.alive,
            pid: dataplane.pid,
            incarnation: dataplane.incarnation,
            started_unix_ms: dataplane.started_unix_ms,
            heartbeat_ms_ago: now.saturating_sub(dataplane.heartbeat_ms),
        },
        workers,
        ports: ports(driver, dataplane.alive),
        pools: pools(driver),
        drops,
        policies: driver.policies.in_use(),
        sessions: driver.sessions.by_state(),
        engine: counters
            .map(|it| (it.group, it.name, it.help, it.value))
            .collect(),
        driver: (driver.tally.iter())
            .map(|(count, value)| (count.label(), count.help(), value))
            .collect(),
        routes: driver.next_hops.view(&driver.publisher),
        feed: driver.feed().status(),
        radius: radius_view(driver),
        nat_log: driver.nat_log.view(),
    }
}

fn workers(driver: &Driver, alive: bool, now: u64) -> (Vec<WorkerView>, Vec<DropView>) {
    let count = driver.workers();
    let statuses: Vec<_> = (0..=count)
        .filter_map(|worker| driver.publisher.worker_status(worker))
        .collect();
    let views = (0u8..).zip(&statuses).map(|(worker, status)| {
        let is_host = worker == count;
        let value = |counter: Counter| status.counters.get(counter.index()).copied().unwrap_or(0);
        // Workers of a process that was killed are still marked as present.
        let present = alive && (is_host || status.present);
        let load = driver.load.of(worker).filter(|_| present);
        WorkerView {
            worker: match is_host {
                true => "host".to_owned(),
                false => worker.to_string(),
            },
            present,
            core: (present && !is_host).then_some(status.core),
            heartbeat_ms_ago: (present && !is_host)
                .then(|| now.saturating_sub(status.heartbeat_ms)),
            sessions: driver.sessions.owned_by(worker),
            nat_mappings: status.nat_mappings,
            tsc_hz: (present && status.tsc_hz != 0).then_some(status.tsc_hz),
            busy_ratio: load.map(|load| load.busy_ratio),
            cycles_per_packet: load.and_then(|load| load.cycles_per_packet),
            rings: RingsView {
                punt: status.rings.punt,
                inject: status.rings.inject,
                events: status.rings.events,
                inject_waiting: driver.injector.waiting(worker),
            },
            counters: (Counter::ALL.iter())
                .filter(|counter| !counter.is_drop())
                .map(|counter| (counter.label(), value(*counter)))
                .collect(),
            drops: Counter::drops().map(value).sum(),
        }
    });
    let views = views.collect();
    let dataplane = Counter::drops().map(|counter| {
        let mut each: Vec<u64> = (statuses.iter())
            .map(|status| status.counters.get(counter.index()).copied().unwrap_or(0))
            .collect();
        let total = each.iter().sum();
        let host = each.pop().unwrap_or(0);
        DropView {
            reason: counter.label(),
            source: "dataplane",
            help: counter.help(),
            total,
            workers: each,
            host,
        }
    });
    let control = driver
        .engine
        .counters()
        .iter()
        .filter(|it| it.group == "drop");
    let control = control.map(|it| DropView {
        reason: it.name,
        source: "control",
        help: it.help,
        total: it.value,
        workers: Vec::new(),
        host: 0,
    });
    (views, dataplane.chain(control).collect())
}

fn ports(driver: &Driver, alive: bool) -> Vec<PortView> {
    let ports = (0u8..).zip(&driver.settings.ports).map(|(index, port)| {
        let Some(status) = driver.publisher.port_status(index) else {
            return PortView::default();
        };
        // What a process that is gone has said of its links is not true any more.
        let started = alive && status.state == PortState::Started;
        let mac = bng_wire::MacAddr(status.mac);
        PortView {
            name: port.name.clone(),
            role: port.role.as_str(),
            started,
            link_up: started && status.link_up,
            mac: mac.is_unicast().then(|| mac.to_string()),
            mtu: if started { status.mtu } else { port.mtu },
            link_mbps: (started && status.link_mbps != 0).then_some(status.link_mbps),
            steering: status.steering.name(),
            steering_reason: status.steering_reason,
            offloads: status.offloads.names().collect(),
            segmentation: match started && status.offloads.has(Offloads::TX_TCP_SEGMENTATION) {
                true => "port",
                false => "software",
            },
            segmentation_reason: status.segmentation_reason,
            twin_ifindex: (port.role == PortRole::Core && started && status.twin_ifindex != 0)
                .then_some(status.twin_ifindex),
            stats: PortStatus::STAT_NAMES
                .into_iter()
                .zip(status.stats)
                .collect::<BTreeMap<_, _>>(),
            driver: status.driver,
        }
    });
    ports.collect()
}

fn pools(driver: &Driver) -> PoolsView {
    let nat_names: Vec<_> = (driver.grants.block_use()).map(|(name, ..)| name).collect();
    let address = (driver.grants.address_use())
        .zip(&driver.settings.pools)
        .map(|((name, used, total), settings)| AddressPoolView {
            name: name.to_owned(),
            used,
            total,
            nat: (settings.nat)
                .and_then(|nat| nat_names.get(nat))
                .map(|&name| name.to_owned()),
        });
    let nat = (driver.grants.block_use()).map(|(name, used, resting, total)| NatPoolView {
        name: name.to_owned(),
        used,
        resting,
        total,
    });
    let prefixes = (driver.grants.prefix_use()).map(|(name, used, total)| PrefixPoolView {
        name: name.to_owned(),
        used,
        total,
    });
    PoolsView {
        address: address.collect(),
        prefixes: prefixes.collect(),
        nat: nat.collect(),
    }
}
