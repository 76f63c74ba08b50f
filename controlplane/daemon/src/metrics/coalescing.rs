//! Coalescing: settings, runs, and the reasons of frames and runs.

use bng_config::{Coalesced, Coalescing};
use bng_shm::{Counter, Group};
use prometheus::proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily, MetricType};

use super::Page;
use crate::coalescing::SIZES;
use crate::status::{Status, WorkerView};

fn value(worker: &WorkerView, counter: Counter) -> u64 {
    let value = worker.counters.get(counter.label());
    value.copied().unwrap_or(0)
}

fn protocols(coalesced: Coalesced) -> &'static str {
    match (coalesced.tcp, coalesced.udp) {
        (true, true) => "tcp,udp",
        (true, false) => "tcp",
        (false, true) => "udp",
        (false, false) => "none",
    }
}

pub(super) fn fill(
    page: &Page,
    status: &Status,
    configured: &Coalescing,
) -> prometheus::Result<()> {
    settings(page, configured)?;
    let candidates = page.counter(
        "bng_coalesce_candidates_total",
        "TCP and UDP frames that could be merged with others of their flow.",
        &["worker"],
    )?;
    let frames = page.counter(
        "bng_coalesce_frames_total",
        "What became of candidates: merged into a super-packet, or single.",
        &["worker", "result"],
    )?;
    let supers = page.counter(
        "bng_super_packets_total",
        "Super-packets that were exchanged in one piece: with core ports and the kernel.",
        &["worker", "counter"],
    )?;
    let passed = page.counter(
        "bng_coalesce_passed_total",
        "Frames the coalescer left alone, by worker and reason.",
        &["worker", "reason"],
    )?;
    let ended = page.counter(
        "bng_coalesce_ended_total",
        "Runs that ended, by worker and reason.",
        &["worker", "reason"],
    )?;
    for worker in &status.workers {
        let name = worker.worker.as_str();
        for counter in [Counter::SuperSent, Counter::SuperHost, Counter::HostSupers] {
            let labels = [name, counter.label()];
            supers
                .with_label_values(&labels)
                .inc_by(value(worker, counter));
        }
        // The host path coalesces nothing.
        if name == "host" {
            continue;
        }
        candidates
            .with_label_values(&[name])
            .inc_by(value(worker, Counter::CoalesceFrames));
        for (result, counter) in [
            ("merged", Counter::CoalesceMerged),
            ("single", Counter::CoalesceSingle),
        ] {
            frames
                .with_label_values(&[name, result])
                .inc_by(value(worker, counter));
        }
        for counter in Counter::ALL {
            let vector = match counter.group() {
                Group::CoalescePass => &passed,
                Group::CoalesceEnd => &ended,
                _ => continue,
            };
            vector
                .with_label_values(&[name, counter.label()])
                .inc_by(value(worker, *counter));
        }
    }
    Ok(())
}

fn settings(page: &Page, settings: &Coalescing) -> prometheus::Result<()> {
    let info = page.gauge(
        "bng_coalesce_info",
        "What is coalesced by the configuration, always 1.",
        &[
            "upstream",
            "downstream",
            "families",
            "hold_us",
            "max_frames",
            "verify_checksums",
        ],
    )?;
    let families = match (settings.ipv4, settings.ipv6) {
        (true, true) => "ipv4,ipv6",
        (true, false) => "ipv4",
        (false, true) => "ipv6",
        (false, false) => "none",
    };
    let labels = [
        protocols(settings.upstream),
        protocols(settings.downstream),
        families,
        &settings.hold_us.to_string(),
        &settings.max_frames.to_string(),
        &settings.verify_checksums.to_string(),
    ];
    info.with_label_values(&labels).set(1);
    Ok(())
}

/// How many frames super-packets have. Workers count in the buckets themselves, so this is no sample of them: sum and count
/// are exact, but for what a worker counts while it is read.
pub(super) fn sizes(status: &Status) -> Option<MetricFamily> {
    let workers = status.workers.iter().filter(|it| it.worker != "host");
    let metrics: Vec<_> = workers.map(size_of).collect();
    let mut family = MetricFamily::default();
    family.set_name("bng_coalesce_super_packet_frames".to_owned());
    family.set_help("Frames in a super-packet.".to_owned());
    family.set_field_type(MetricType::HISTOGRAM);
    let is_empty = metrics.is_empty();
    family.set_metric(metrics);
    (!is_empty).then_some(family)
}

fn size_of(worker: &WorkerView) -> Metric {
    let mut count = 0;
    let mut buckets = Vec::new();
    for (counter, up_to) in SIZES {
        count += value(worker, counter);
        // The bucket of all is the encoder's, made from the count.
        if let Some(up_to) = up_to {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(up_to.into());
            bucket.set_cumulative_count(count);
            buckets.push(bucket);
        }
    }
    let mut histogram = Histogram::default();
    histogram.set_bucket(buckets);
    histogram.set_sample_count(count);
    histogram.set_sample_sum(value(worker, Counter::CoalesceMerged) as f64);
    let mut label = LabelPair::default();
    label.set_name("worker".to_owned());
    label.set_value(worker.worker.clone());
    let mut metric = Metric::from_label(vec![label]);
    metric.set_histogram(histogram);
    metric
}
