//! The page of tables made from the result file.

use std::fmt::Write as _;

use super::cell::{Protocol, Way};
use super::results::{Measured, Results, Row, median, range};

/// What issue 4 asks for: TCP with coalescing by TCP without, at least.
const WANTED: f64 = 2.0;

/// The page.
pub(super) fn page(results: &Results) -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut page, results);
    page
}

fn write(page: &mut String, results: &Results) -> std::fmt::Result {
    let machine = &results.machine;
    writeln!(
        page,
        "# Coalescing where packets are expensive\n\n\
         Made by `bng-perf downloads` (`make bench-coalescing`) from [coalescing.json](coalescing.json); do not edit. What is \
         measured and how: [docs/benchmarks.md](../../docs/benchmarks.md).\n\n\
         ironbng {} ({}), {}, {} usable core(s), Linux {}, DPDK {}. {} runs of each, off and on in turns, {} s each; medians, in \
         brackets the smallest and the largest.\n\n\
         **How to read the figures.** Gbit/s are payload that receivers have read from their sockets. Mpps are the full-size \
         frames (1,500 bytes behind the Ethernet header) that payload takes. \"Frames per super-packet\" is the gateway's \
         own counters `coalesce_merged / coalesce_supers`, \"frames per packet\" is over all that the port was given, single \
         frames included. A train is what a flow sends at once; flows take turns, so short trains of several flows are interleaved in a \
         burst. At most {} frames are on their way, half as many to the virtio port. A run is disturbed if other programs had \
         more than a tenth of a core meanwhile. Core {}: the gateway's host thread or the vhost machine (\"host\"), both with the kernel's \
         receive path, and the reader of the sockets. Core {}: the gateway's worker and the sender, which is a TCP in user space, not \
         a kernel. Both are nearly full in either case, so totals are of this division of two cores. Columns with threads are their \
         shares of a core; those of the kernel's receive path are the host's.\n",
        results.version,
        results.commit.as_deref().unwrap_or("no commit"),
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.dpdk,
        results.repeats,
        results.seconds,
        results.in_flight,
        results.cores.kernel,
        results.cores.packets,
    )?;
    targets(page, results)?;
    let mut left: Vec<&Row> = results.rows.iter().collect();
    while let Some(first) = left.first().copied() {
        let of_table = |row: &&Row| (row.way, row.protocol) == (first.way, first.protocol);
        let (rows, others) = left.into_iter().partition::<Vec<_>, _>(of_table);
        table(page, &rows, first)?;
        left = others;
    }
    seeds(page)
}

fn targets(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "## Target\n\n\
         TCP with coalescing: at least {WANTED:.1} times the throughput of TCP without, with trains of {} frames.\n\n\
         | where | least gain | at | met |\n|---|---|---|---|",
        results.train
    )?;
    for way in [Way::Twin, Way::Vhost] {
        let rows = results.rows.iter();
        let tcp = rows.filter(|row| {
            (row.way, row.protocol, row.train) == (way, Protocol::Tcp, results.train)
        });
        let Some(least) = tcp.min_by(|a, b| a.gain().total_cmp(&b.gain())) else {
            continue;
        };
        writeln!(
            page,
            "| {} | {:.2} | {} flows | {} |",
            place(way),
            least.gain(),
            least.flows,
            if least.gain() >= WANTED {
                "yes"
            } else {
                "**no**"
            },
        )?;
    }
    writeln!(page)
}

const fn place(way: Way) -> &'static str {
    match way {
        Way::Twin => "TAP twin",
        Way::Vhost => "virtio port, vhost peer",
    }
}

fn table(page: &mut String, rows: &[&Row], of: &Row) -> std::fmt::Result {
    let protocol = match of.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
    };
    let what = match of.way {
        Way::Twin => "the kernel downloads through the TAP twin, with and without `twin_offloads`",
        Way::Vhost => {
            "what a subscriber uploads goes to a machine at the vhost end of a virtio port, with and without `segmentation: port`"
        }
    };
    writeln!(
        page,
        "## {protocol}: {what}\n\n\
         {} bytes of payload in a frame.\n\n\
         | flows | train | off Gbit/s | on Gbit/s | off Mpps | on Mpps | on/off | frames per super-packet | frames per packet | \
         off: worker, sender; host, reader | on: worker, sender; host, reader | loss | disturbed |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        of.payload,
    )?;
    for row in rows {
        let gbps = |runs: &[Measured]| {
            let (low, high) = range(runs, Measured::gbps);
            format!(
                "{:.2} ({low:.2} to {high:.2})",
                median(runs, Measured::gbps)
            )
        };
        let mpps = |runs: &[Measured]| {
            let bits = row.payload as f64 * 8.0;
            median(runs, Measured::gbps) * 1e3 / bits
        };
        let busy = |runs: &[Measured]| {
            let percent = |figure: fn(&Measured) -> f64| median(runs, figure) * 100.0;
            format!(
                "{:.0}, {:.0}; {:.0}, {:.0} %",
                percent(|run| run.processor.worker),
                percent(|run| run.processor.sender),
                percent(|run| run.processor.host),
                percent(|run| run.processor.receiver),
            )
        };
        let supers = median(&row.on, |run| run.frames_per_super().unwrap_or(f64::NAN));
        let all = row.off.iter().chain(&row.on);
        let unclean = all.clone().filter(|run| !run.is_clean()).count();
        let disturbed = all.filter(|run| run.is_disturbed()).count();
        let runs = |count| match count {
            0 => "none".to_owned(),
            count => format!("{count} of {}", row.off.len() + row.on.len()),
        };
        writeln!(
            page,
            "| {} | {} | {} | {} | {:.3} | {:.3} | {:.2} | {} | {:.1} | {} | {} | {} | {} |",
            row.flows,
            row.train,
            gbps(&row.off),
            gbps(&row.on),
            mpps(&row.off),
            mpps(&row.on),
            row.gain(),
            if supers.is_nan() {
                "none".to_owned()
            } else {
                format!("{supers:.1}")
            },
            median(&row.on, Measured::frames_per_packet),
            busy(&row.off),
            busy(&row.on),
            runs(unclean),
            runs(disturbed),
        )?;
    }
    writeln!(page)
}

/// What the seeds printed, for the shape.
fn seeds(page: &mut String) -> std::fmt::Result {
    writeln!(
        page,
        "## Beside the seeds\n\n\
         Other machines and other paths, so the shape is what may be compared: how much more goes through when packets are \
         merged first.\n\n\
         | | off | on | on/off | frames per packet |\n|---|---|---|---|---|\n\
         | seed, UDP, TAP to PPPoE in Linux, 1 core, both locks | 13.44 Gbit/s | 14.35 Gbit/s | 1.07 | 3.33 to 5.07 |\n\
         | seed, the same, 16 cores | 46.84 Gbit/s | 142.00 Gbit/s | 3.03 | 3.33 to 5.07 |\n\
         | seed, the same, 16 cores, no lock | 122.52 Gbit/s | 142.89 Gbit/s | 1.17 | 3.33 to 5.07 |\n\
         | seed, TCP with NAT, a small router (MT7621) | 130 Mbit/s | 630 Mbit/s | 4.85 | not given |"
    )
}
