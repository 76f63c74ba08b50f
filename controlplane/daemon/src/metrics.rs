//! `/metrics` in Prometheus' text format.
//!
//! The numbers live in shared memory and in the driver; each scrape copies them into a registry of its own.

mod coalescing;
mod nat_log;
mod radius;

use bng_config::Coalescing;
use bng_shm::{Counter, Group, INJECT_RING_SLOTS, PUNT_RING_SLOTS};
use prometheus::{Encoder, GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use crate::reload::ReloadCounts;
use crate::status::{Status, WorkerView};

/// Content type of the answer.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A registry that is filled once.
struct Page(Registry);

impl Page {
    fn counter(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(counter.clone()))?;
        Ok(counter)
    }

    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }
}

impl Page {
    fn real(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
        self.0.register(Box::new(gauge.clone()))?;
        Ok(gauge)
    }
}

fn signed(value: impl TryInto<i64>) -> i64 {
    value.try_into().unwrap_or(i64::MAX)
}

/// The whole page.
///
/// # Errors
/// Never for the names used here.
pub(crate) fn text(
    status: &Status,
    configured: &Coalescing,
    reloads: ReloadCounts,
) -> prometheus::Result<String> {
    let page = Page(Registry::new());
    sessions(&page, status)?;
    workers(&page, status)?;
    coalescing::fill(&page, status, configured)?;
    ports(&page, status)?;
    pools(&page, status)?;
    control(&page, status)?;
    events(&page, status)?;
    fill_reloads(&page, reloads)?;
    radius::fill(&page, status)?;
    nat_log::fill(&page, status)?;
    let mut out = Vec::new();
    let mut families = page.0.gather();
    families.extend(coalescing::sizes(status));
    TextEncoder::new().encode(&families, &mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

fn sessions(page: &Page, status: &Status) -> prometheus::Result<()> {
    let sessions = page.gauge("bng_sessions", "Sessions by state.", &["state"])?;
    for (state, count) in ["negotiating", "forwarding", "closing"]
        .iter()
        .zip(status.sessions)
    {
        sessions.with_label_values(&[state]).set(signed(count));
    }
    Ok(())
}

fn events(page: &Page, status: &Status) -> prometheus::Result<()> {
    let feed = &status.feed;
    let events = page.counter(
        "bng_events_total",
        "Events told to whoever listens to the stream of events.",
        &["event"],
    )?;
    for (event, count) in &feed.events {
        events.with_label_values(&[*event]).inc_by(*count);
    }
    let streams = page.gauge("bng_event_streams", "Open streams of events.", &[])?;
    streams
        .with_label_values(&[] as &[&str])
        .set(signed(feed.streams));
    let cut_off = page.counter(
        "bng_event_streams_lost_total",
        "Streams of events ended because their readers were too slow.",
        &[],
    )?;
    cut_off
        .with_label_values(&[] as &[&str])
        .inc_by(feed.cut_off);
    Ok(())
}

fn fill_reloads(page: &Page, counts: ReloadCounts) -> prometheus::Result<()> {
    let reloads = page.counter(
        "bng_config_reloads_total",
        "Reloads of the configuration: in force since, refused because of what it would take, or failed.",
        &["result"],
    )?;
    for (result, count) in counts.results {
        reloads.with_label_values(&[result]).inc_by(count);
    }
    let loaded = page.real(
        "bng_config_loaded_timestamp_seconds",
        "When the configuration in force was read.",
        &[],
    )?;
    let seconds = counts.loaded_unix_ms as f64 / 1e3;
    loaded.with_label_values(&[] as &[&str]).set(seconds);
    Ok(())
}

fn workers(page: &Page, status: &Status) -> prometheus::Result<()> {
    let by_counter = ["worker", "counter"];
    let packets = page.counter(
        "bng_packets_total",
        "Frames received, sent, forwarded, punted and injected, by worker; see the list of counters.",
        &by_counter,
    )?;
    let bytes = page.counter(
        "bng_bytes_total",
        "Bytes received and sent, by worker.",
        &by_counter,
    )?;
    let work = page.counter(
        "bng_work_total",
        "What workers did beside forwarding.",
        &by_counter,
    )?;
    let drops = page.counter(
        "bng_drops_total",
        "Frames the dataplane dropped, by worker and reason.",
        &["worker", "reason"],
    )?;
    let rings = page.gauge(
        "bng_ring_fill",
        "Frames or events in a ring; inject_waiting is control's queue before the inject ring.",
        &["worker", "ring"],
    )?;
    let capacity = page.gauge("bng_ring_slots", "Slots of a ring.", &["ring"])?;
    for (ring, slots) in [("punt", PUNT_RING_SLOTS), ("inject", INJECT_RING_SLOTS)] {
        capacity.with_label_values(&[ring]).set(signed(slots));
    }
    let owned = page.gauge(
        "bng_worker_sessions",
        "Sessions a worker owns.",
        &["worker"],
    )?;
    let nat = page.gauge("bng_nat_mappings", "Live NAT mappings.", &["worker"])?;
    let up = page.gauge(
        "bng_worker_up",
        "Whether the worker's thread runs.",
        &["worker"],
    )?;
    let busy = page.real(
        "bng_worker_busy_ratio",
        "Share of a worker's cycles in poll loops that found something, over the last second.",
        &["worker"],
    )?;
    let cycles = page.real(
        "bng_worker_cycles_per_packet",
        "Busy cycles of a worker for each packet received or taken over, over the last second.",
        &["worker"],
    )?;
    let hertz = page.gauge(
        "bng_worker_tsc_hz",
        "Ticks per second of the clock that busy_cycles and idle_cycles count.",
        &["worker"],
    )?;
    for worker in &status.workers {
        let name = worker.worker.as_str();
        for (gauge, value) in [
            (&busy, worker.busy_ratio),
            (&cycles, worker.cycles_per_packet),
        ] {
            if let Some(value) = value {
                gauge.with_label_values(&[name]).set(value);
            }
        }
        if let Some(value) = worker.tsc_hz {
            hertz.with_label_values(&[name]).set(signed(value));
        }
        counters(&packets, &bytes, &work, worker);
        for (ring, fill) in [
            ("punt", worker.rings.punt),
            ("inject", worker.rings.inject),
            ("events", worker.rings.events),
            ("inject_waiting", worker.rings.inject_waiting),
        ] {
            rings.with_label_values(&[name, ring]).set(signed(fill));
        }
        if name != "host" {
            owned.with_label_values(&[name]).set(worker.sessions.into());
            nat.with_label_values(&[name])
                .set(worker.nat_mappings.into());
            up.with_label_values(&[name]).set(worker.present.into());
        }
    }
    for drop in status
        .drops
        .iter()
        .filter(|drop| drop.source == "dataplane")
    {
        for (worker, count) in drop.workers.iter().enumerate() {
            let labels = [worker.to_string().as_str(), drop.reason].map(str::to_owned);
            drops.with_label_values(&labels).inc_by(*count);
        }
        drops
            .with_label_values(&["host".to_owned(), drop.reason.to_owned()])
            .inc_by(drop.host);
    }
    Ok(())
}

fn counters(
    packets: &IntCounterVec,
    bytes: &IntCounterVec,
    work: &IntCounterVec,
    worker: &WorkerView,
) {
    for counter in Counter::ALL {
        let Some(value) = worker.counters.get(counter.label()) else {
            continue;
        };
        let label = counter.label();
        let name = worker.worker.as_str();
        match (counter.group(), label.strip_suffix("_bytes")) {
            // By reason, and by result: in metrics of their own.
            (Group::Drop | Group::Coalesce | Group::CoalescePass | Group::CoalesceEnd, _) => {}
            (Group::Work, _) => work.with_label_values(&[name, label]).inc_by(*value),
            (Group::Traffic, Some(label)) => {
                bytes.with_label_values(&[name, label]).inc_by(*value);
            }
            (Group::Traffic | Group::Punt | Group::Host | Group::Inject, _) => {
                packets.with_label_values(&[name, label]).inc_by(*value)
            }
        }
    }
}

fn ports(page: &Page, status: &Status) -> prometheus::Result<()> {
    let up = page.gauge(
        "bng_port_link_up",
        "Link state of a port.",
        &["port", "role"],
    )?;
    let stats = page.counter(
        "bng_port_stat_total",
        "Counters DPDK keeps of a port.",
        &["port", "stat"],
    )?;
    let info = page.gauge(
        "bng_port_info",
        "How a port is used, always 1: DPDK driver, steering of frames to workers, offloads in use.",
        &["port", "role", "driver", "steering", "offloads"],
    )?;
    for port in &status.ports {
        if port.started {
            let (driver, offloads) = (port.driver.as_str(), port.offloads.join(","));
            let labels = [&port.name, port.role, driver, port.steering, &offloads];
            info.with_label_values(&labels).set(1);
        }
        up.with_label_values(&[port.name.as_str(), port.role])
            .set(port.link_up.into());
        for (stat, value) in &port.stats {
            stats
                .with_label_values(&[port.name.as_str(), stat])
                .inc_by(*value);
        }
    }
    Ok(())
}

fn pools(page: &Page, status: &Status) -> prometheus::Result<()> {
    let addresses = page.gauge(
        "bng_pool_addresses",
        "Addresses of an address pool, in use and free.",
        &["pool", "state"],
    )?;
    for pool in &status.pools.address {
        let name = pool.name.as_str();
        addresses
            .with_label_values(&[name, "used"])
            .set(pool.used.into());
        addresses
            .with_label_values(&[name, "free"])
            .set((pool.total - pool.used).into());
    }
    let prefixes = page.gauge(
        "bng_pool_prefixes",
        "IPv6 prefixes of an address pool, on-link or delegated, in use and free.",
        &["pool", "state"],
    )?;
    for pool in &status.pools.prefixes {
        let free = pool.total.saturating_sub(pool.used);
        for (state, count) in [("used", pool.used), ("free", free)] {
            let labels = [pool.name.as_str(), state];
            prefixes.with_label_values(&labels).set(count.into());
        }
    }
    let blocks = page.gauge(
        "bng_nat_blocks",
        "Port blocks of a NAT pool: in use, resting before their next owner, and free.",
        &["pool", "state"],
    )?;
    for pool in &status.pools.nat {
        let name = pool.name.as_str();
        blocks
            .with_label_values(&[name, "used"])
            .set(pool.used.into());
        blocks
            .with_label_values(&[name, "resting"])
            .set(pool.resting.into());
        blocks
            .with_label_values(&[name, "free"])
            .set(pool.total.saturating_sub(pool.used + pool.resting).into());
    }
    Ok(())
}

fn control(page: &Page, status: &Status) -> prometheus::Result<()> {
    for (group, name, help, label) in [
        (
            "drop",
            "bng_pppoe_drops_total",
            "Frames the PPP engine dropped, by reason.",
            "reason",
        ),
        (
            "outcome",
            "bng_pppoe_outcomes_total",
            "What the PPP engine did: discovery, authentication and set-up outcomes.",
            "outcome",
        ),
        (
            "ended",
            "bng_pppoe_ended_total",
            "Sessions that ended, by cause.",
            "cause",
        ),
    ] {
        let counter = page.counter(name, help, &[label])?;
        for (_, name, _, value) in status.engine.iter().filter(|it| it.0 == group) {
            counter.with_label_values(&[name]).inc_by(*value);
        }
    }
    let events = page.counter(
        "bng_control_events_total",
        "What the control plane's driver counted.",
        &["event"],
    )?;
    for (event, _, value) in &status.driver {
        events.with_label_values(&[event]).inc_by(*value);
    }
    let alive = page.gauge("bng_dataplane_up", "Whether bng-dataplane runs.", &[])?;
    alive
        .with_label_values::<&str>(&[])
        .set(status.dataplane.alive.into());
    let policies = page.gauge(
        "bng_policies",
        "Different policies given to the workers, of at most 65,535.",
        &[],
    )?;
    policies
        .with_label_values::<&str>(&[])
        .set(signed(status.policies));
    let routes = page.gauge(
        "bng_routes",
        "Routes and next hops mirrored from the kernel.",
        &["kind"],
    )?;
    for (kind, value) in [
        ("routes", status.routes.routes),
        ("routes6", status.routes.routes6),
        ("left_out", status.routes.left_out),
        ("next_hops", status.routes.next_hops),
        ("unresolved", status.routes.unresolved),
    ] {
        routes.with_label_values(&[kind]).set(signed(value));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
