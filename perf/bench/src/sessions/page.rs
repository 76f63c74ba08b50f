//! The page of tables made from the result file.

use std::fmt::Write as _;

use super::results::{Results, Run, median};

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
        "# Sessions by the thousand\n\n\
         Made by `bng-perf sessions` (`make bench-sessions`) from [sessions.json](sessions.json); do not edit. What is measured \
         and how: [docs/benchmarks.md](../../docs/benchmarks.md).\n\n\
         ironbng {} ({}), {}, {} usable core(s), Linux {}, DPDK {}. Both daemons and the emulator share these cores. Where there are \
         several runs, the median.\n",
        results.version,
        results.commit.as_deref().unwrap_or("no commit"),
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.dpdk,
    )?;
    targets(page, results)?;
    runs(page, results)
}

/// A row of the table of targets.
struct Target {
    what: &'static str,
    wanted: String,
    measured: String,
    met: bool,
}

fn of_setups(results: &Results, all: &mut Vec<Target>) {
    let runs = results.of("setups");
    if runs.is_empty() {
        return;
    }
    let up = median(runs.iter().map(|run| run.forwarding as f64));
    let wanted = runs.first().map_or(0, |run| run.sessions());
    all.push(Target {
        what: "sessions up on one access port",
        wanted: "64,000".to_owned(),
        measured: format!("{up:.0}"),
        met: up >= 64_000.0 && wanted >= 64_000,
    });
    let rate = median(runs.iter().map(|run| run.rate()));
    all.push(Target {
        what: "setups per second, local users, over all sessions",
        wanted: "at least 5,000".to_owned(),
        measured: against(rate, 5_000.0),
        met: rate >= 5_000.0,
    });
    let radius = results.of("radius");
    if !radius.is_empty() {
        let rate = median(radius.iter().map(|run| run.rate()));
        all.push(Target {
            what: "setups per second, RADIUS with accounting",
            wanted: "at least 2,000".to_owned(),
            measured: against(rate, 2_000.0),
            met: rate >= 2_000.0,
        });
    }
    let bytes = median(runs.iter().map(|run| run.bytes_per_session()));
    all.push(Target {
        what: "memory of control for an idle session",
        wanted: "at most 2,048 bytes".to_owned(),
        measured: format!("{bytes:.0} bytes"),
        met: bytes <= 2_048.0,
    });
}

/// A value that should be at least `bound`, and how it lies to it.
fn against(value: f64, bound: f64) -> String {
    format!("{value:.0} ({:+.0} %)", (value / bound - 1.0) * 100.0)
}

fn of_others(results: &Results, all: &mut Vec<Target>) {
    let ports = results.of("ports");
    if !ports.is_empty() {
        let up = median(ports.iter().map(|run| run.forwarding as f64));
        all.push(Target {
            what: "sessions up on two access ports",
            wanted: "more than 65,535".to_owned(),
            measured: format!("{up:.0}"),
            met: up > 65_535.0,
        });
    }
    let floods = results.of("flood");
    if !floods.is_empty() {
        let after = median(floods.iter().map(|run| run.all_up()));
        let complete = floods.iter().all(|run| run.forwarding == run.sessions());
        all.push(Target {
            what: "100 clients dial while 10,000 PADI per second come from random addresses: all up after",
            wanted: "at most 5 s".to_owned(),
            measured: format!("{after:.2} s"),
            met: complete && after <= 5.0,
        });
    }
    let churns = results.of("churn");
    for run in &churns {
        let (Some(ends), Some(churn)) = (run.ends, run.dialled.iter().find_map(|it| it.churn))
        else {
            continue;
        };
        all.push(Target {
            what: "churn of 100 sessions per second with traffic: sessions whose account differs from the subscriber's, or is missing",
            wanted: "0".to_owned(),
            measured: format!(
                "{} of {} in {:.0} s",
                ends.different + ends.sessions.abs_diff(ends.known),
                ends.sessions,
                churn.seconds
            ),
            met: ends.different == 0 && ends.sessions == ends.known && churn.seconds >= 600.0,
        });
        if let Some(radius) = run.radius {
            all.push(Target {
                what: "the same: accounting stops a RADIUS server got that are not one for a session, and octets it was told too many or too few",
                wanted: "0, 0".to_owned(),
                measured: format!(
                    "{}, {}",
                    radius.stops.abs_diff(ends.sessions),
                    radius.octets.abs_diff(ends.bytes)
                ),
                met: radius.stops == ends.sessions && radius.octets == ends.bytes,
            });
        }
        all.push(Target {
            what: "the same: sessions, addresses and port blocks left behind",
            wanted: "0".to_owned(),
            measured: format!(
                "{}",
                run.left.sessions + run.left.addresses + run.left.port_blocks
            ),
            met: run.left == super::results::Left::default(),
        });
    }
}

fn targets(page: &mut String, results: &Results) -> std::fmt::Result {
    let mut all = Vec::new();
    of_setups(results, &mut all);
    of_others(results, &mut all);
    writeln!(
        page,
        "## Targets\n\n| target | wanted | measured | met |\n|---|---|---|---|"
    )?;
    for Target {
        what,
        wanted,
        measured,
        met,
    } in &all
    {
        let met = if *met { "yes" } else { "**no**" };
        writeln!(page, "| {what} | {wanted} | {measured} | {met} |")?;
    }
    writeln!(page)
}

fn runs(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "## Runs\n\n\
         Setups per second are sessions up by the time from the first PADI to the last session up. \"Driver\" is the processor time \
         of control's driver thread for each session set up. Memory is control's own (heap and stacks): in all before, for each \
         session that is up, in all when the sessions are over. Pages of the memory it shares with the dataplane are beside it.\n\n\
         | measurement | sessions up | begun per s | setups per s | all up after, s | setup p50, ms | p90 | p99 | max | sent again | driver, us | memory before, KiB | per session, bytes | after, KiB | shared, KiB |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for run in &results.runs {
        row(page, run)?;
    }
    writeln!(page)
}

fn row(page: &mut String, run: &Run) -> std::fmt::Result {
    let worst = |of: fn(&super::results::Times) -> f64| {
        let times = run
            .dialled
            .iter()
            .filter_map(|it| it.setup_time_ms.as_ref());
        times.map(of).fold(0.0, f64::max)
    };
    writeln!(
        page,
        "| {} | {} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} | {:.1} | {:.1} | {} | {:.0} | {} | {:.0} | {} | {} |",
        run.name,
        run.forwarding,
        run.offered,
        run.rate(),
        run.all_up(),
        worst(|it| it.p50),
        worst(|it| it.p90),
        worst(|it| it.p99),
        worst(|it| it.max),
        run.dialled.iter().map(|it| it.retransmissions).sum::<u64>(),
        run.driver_seconds * 1e6 / run.forwarding.max(1) as f64,
        run.before.own_kib,
        run.bytes_per_session(),
        run.after.own_kib,
        run.up.shared_kib,
    )
}
