//! RADIUS servers.

use super::{Page, signed};
use crate::radius::view::ExchangeView;
use crate::status::Status;

/// Adds what there is of RADIUS.
///
/// # Errors
/// Never for the names used here.
pub(super) fn fill(page: &Page, status: &Status) -> prometheus::Result<()> {
    let Some(radius) = &status.radius else {
        return Ok(());
    };
    let of_server = ["server", "service"];
    let up = page.gauge(
        "bng_radius_server_up",
        "Whether a server answers; 0: it counts as dead and is asked last.",
        &of_server,
    )?;
    let pending = page.gauge(
        "bng_radius_pending",
        "Requests under way to a server.",
        &of_server,
    )?;
    let events = page.counter(
        "bng_radius_events_total",
        "Requests to a server, retransmissions, answers, requests it was given up for, times it was declared dead.",
        &["server", "service", "event"],
    )?;
    let discarded = page.counter(
        "bng_radius_discarded_total",
        "Datagrams of a server that were discarded.",
        &["server", "service", "reason"],
    )?;
    let seconds = page.real(
        "bng_radius_round_trip_seconds_sum",
        "Sum of the round trips of requests that were sent once.",
        &of_server,
    )?;
    let count = page.counter(
        "bng_radius_round_trip_seconds_count",
        "Round trips in that sum.",
        &of_server,
    )?;
    for server in &radius.servers {
        for (service, view) in [
            ("authentication", &server.authentication),
            ("accounting", &server.accounting),
        ] {
            let name = format!("{}:{}", server.address, view.port);
            let labels = [name.as_str(), service];
            up.with_label_values(&labels).set((!view.is_dead).into());
            pending.with_label_values(&labels).set(signed(view.pending));
            for (event, value) in of_exchange(view) {
                let labels = [name.as_str(), service, event];
                events.with_label_values(&labels).inc_by(value);
            }
            for (reason, value) in &view.discarded {
                let labels = [name.as_str(), service, reason];
                discarded.with_label_values(&labels).inc_by(*value);
            }
            let sum = view.round_trips_us as f64 / 1e6;
            seconds.with_label_values(&labels).set(sum);
            count.with_label_values(&labels).inc_by(view.timed);
        }
    }
    let unusable = page.counter(
        "bng_radius_unusable_terms_total",
        "Access-Accepts whose terms cannot be met, by the attribute to blame.",
        &["attribute"],
    )?;
    for (attribute, value) in &radius.unusable_terms {
        unusable.with_label_values(&[attribute]).inc_by(*value);
    }
    let queue = page.gauge(
        "bng_radius_queued",
        "Access-Requests that wait for an identifier.",
        &[],
    )?;
    queue
        .with_label_values::<&str>(&[])
        .set(signed(radius.queued));
    let failed = page.counter(
        "bng_radius_failed_total",
        "Access-Requests that found no room to wait (queue_full) or could not be sent (send_failed).",
        &["cause"],
    )?;
    for (cause, value) in [
        ("queue_full", radius.queue_full),
        ("send_failed", radius.send_failed),
    ] {
        failed.with_label_values(&[cause]).inc_by(value);
    }
    let spool = &radius.spool;
    let waiting = page.gauge(
        "bng_accounting_waiting",
        "Accounting messages that no server has answered yet.",
        &[],
    )?;
    waiting
        .with_label_values::<&str>(&[])
        .set(signed(spool.waiting));
    let bytes = page.gauge(
        "bng_accounting_waiting_bytes",
        "Bytes of those messages on disk.",
        &[],
    )?;
    bytes
        .with_label_values::<&str>(&[])
        .set(signed(spool.waiting_bytes));
    let held = page.gauge(
        "bng_accounting_held_sessions",
        "Sessions that are over and keep their session ids until their stop is on disk or answered, for more than a second.",
        &[],
    )?;
    held.with_label_values::<&str>(&[])
        .set(signed(spool.held_sessions));
    let events = page.counter(
        "bng_accounting_events_total",
        "Accounting messages taken and delivered, and what else became of them.",
        &["event"],
    )?;
    for (event, value) in [
        ("taken", spool.taken),
        ("delivered", spool.delivered),
        ("interim_given_up", spool.interims_given_up),
        ("interim_passed_over", spool.interims_passed_over),
        ("start_given_up", spool.starts_given_up),
        ("repeated_stop", spool.repeated_stops),
        ("repeated_start", spool.repeated_starts),
        ("write_error", spool.write_errors),
        ("torn", spool.torn),
        ("lost", spool.lost),
        ("unwritable", spool.unwritable),
    ] {
        events.with_label_values(&[event]).inc_by(value);
    }
    let dynamic = page.counter(
        "bng_radius_dynamic_total",
        "CoA-Requests and Disconnect-Requests: done, refused by Error-Cause, repeated, discarded by reason.",
        &["result", "cause"],
    )?;
    let view = &radius.dynamic;
    for (result, value) in [
        ("changed", view.changed),
        ("ended", view.ended),
        ("repeated", view.repeated),
    ] {
        dynamic.with_label_values(&[result, ""]).inc_by(value);
    }
    for (result, causes) in [("refused", &view.refused), ("discarded", &view.discarded)] {
        for (cause, value) in causes {
            dynamic.with_label_values(&[result, cause]).inc_by(*value);
        }
    }
    Ok(())
}

fn of_exchange(view: &ExchangeView) -> [(&'static str, u64); 5] {
    [
        ("request", view.requests),
        ("retransmission", view.retransmissions),
        ("answer", view.answers),
        ("timeout", view.timeouts),
        ("death", view.deaths),
    ]
}
