//! The log of NAT port blocks.

use super::{Page, signed};
use crate::status::Status;

/// Adds what there is of the log.
///
/// # Errors
/// Never for the names used here.
pub(super) fn fill(page: &Page, status: &Status) -> prometheus::Result<()> {
    let Some(log) = &status.nat_log else {
        return Ok(());
    };
    let records = page.counter(
        "bng_nat_log_records_total",
        "Records of port blocks that were written to disk.",
        &["event"],
    )?;
    for (event, value) in [
        ("opened", log.counts.opened),
        ("interim", log.counts.interim),
        ("closed", log.counts.closed),
    ] {
        records.with_label_values(&[event]).inc_by(value);
    }
    let events = page.counter(
        "bng_nat_log_events_total",
        "Waits for the disk, writes that failed, damaged places passed over, interim records left out for want of room.",
        &["event"],
    )?;
    for (event, value) in [
        ("sync", log.counts.syncs),
        ("write_error", log.counts.write_errors),
        ("torn", log.counts.torn),
        ("interim_left_out", log.counts.interims_left_out),
    ] {
        events.with_label_values(&[event]).inc_by(value);
    }
    let none: [&str; 0] = [];
    let written = page.counter(
        "bng_nat_log_written_bytes_total",
        "Bytes written to the log.",
        &[],
    )?;
    written.with_label_values(&none).inc_by(log.counts.bytes);
    for (name, help, value) in [
        ("bng_nat_log_bytes", "Bytes of the log on disk.", log.size),
        (
            "bng_nat_log_limit_bytes",
            "Most the log may take (nat.log.spool_mib).",
            log.limit,
        ),
        (
            "bng_nat_log_open_blocks",
            "Port blocks that are open in the log.",
            log.open as u64,
        ),
        (
            "bng_nat_log_since_seconds",
            "Unix time since when the log knows who had a port.",
            log.since_ms / 1_000,
        ),
    ] {
        let gauge = page.gauge(name, help, &[])?;
        gauge.with_label_values(&none).set(signed(value));
    }
    let output = ["output"];
    let up = page.gauge(
        "bng_nat_log_output_up",
        "Whether an output has a connection, or sent its last datagram.",
        &output,
    )?;
    let waiting = page.gauge(
        "bng_nat_log_output_waiting",
        "Records an output has not sent yet.",
        &output,
    )?;
    let of_output = page.counter(
        "bng_nat_log_output_events_total",
        "Records an output has sent (those sent again included) and lost, connections made anew, failures.",
        &["output", "event"],
    )?;
    for it in &log.outputs {
        let name = it.name.as_str();
        up.with_label_values(&[name]).set(it.connected.into());
        waiting.with_label_values(&[name]).set(signed(it.waiting));
        for (event, value) in [
            ("sent", it.sent),
            ("lost", it.lost),
            ("reconnect", it.reconnects),
            ("error", it.errors),
        ] {
            of_output.with_label_values(&[name, event]).inc_by(value);
        }
    }
    Ok(())
}
