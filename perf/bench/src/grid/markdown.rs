//! The result page.

use std::fmt::Write;

use super::cells::{FULL, LARGE, LOCKS, SHAPES, SMALL, TRAINS};
use super::results::{Results, Which};
use super::seed::{GBPS_PER_MPPS, SEED, VPP, VPP_PLAIN};
use crate::fastpath::{Checksums, Copying, Direction, Features, Figures, Locking};

const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Up, "up"), (Direction::Down, "down")];

/// The page of a run. The same results give the same page.
pub(super) fn page(results: &Results) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut page, results);
    page
}

fn write(page: &mut String, results: &Results) -> std::fmt::Result {
    let machine = &results.machine;
    let quick = if results.quick { "a quick run; " } else { "" };
    writeln!(
        page,
        "# Results of `make bench`\n\n\
         Made by `bng-perf bench` from [bench.json](bench.json); do not edit. What is measured and how: \
         [docs/benchmarks.md](../../docs/benchmarks.md).\n\n\
         ironbng {}{}, {}{}, {} usable core(s), Linux {}, {:.0} MHz time-stamp counter, {}, buffers in {}. {} run(s) of the grid, \
         {} s for each cell and direction; of each cell the run with the median cost counts.\n\n\
         **How to read the figures.** Sizes are bytes of the IP packet, and Gbit/s counts those alone: no Ethernet, PPPoE, check \
         sequence, preamble or gap. ns and clocks are what one worker on one pinned core spends on a packet, from receive to \
         transmit and free. Mpps and Gbit/s are totals of all workers, which with one worker is also per core. MAC forward is a loop on \
         the same ports that only exchanges the MAC addresses, measured in turns with the pipeline in the same process. Generating \
         frames is not measured. The column after the median is the quartiles of the samples.",
        results.version,
        results
            .commit
            .as_ref()
            .map_or_else(String::new, |commit| format!(" ({commit})")),
        quick,
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.tsc_hz as f64 / 1e6,
        machine.dpdk,
        machine.packet_memory,
        results.repeats,
        results.seconds,
    )?;
    targets(page, results)?;
    size(page, results)?;
    vpp(page, results)?;
    copies(page, results)?;
    coalescing(page, results)?;
    locks(page, results)?;
    others(page, results)
}

fn targets(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Targets\n\nAll features on and NAT, 1492-byte IP, one worker unless it says otherwise.\n\n\
         | target | wanted | measured | met |\n|---|---|---|---|"
    )?;
    for target in &results.targets {
        let met = match target.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "-",
        };
        writeln!(
            page,
            "| {} | {} | {} | {met} |",
            target.what, target.wanted, target.measured
        )?;
    }
    Ok(())
}

fn shape_name((sessions, flows): (u32, u32)) -> String {
    let short = |n: u32| match n {
        1_000_000.. => format!("{}M", n / 1_000_000),
        _ => format!("{}k", n / 1_000),
    };
    format!("{} / {}", short(sessions), short(flows))
}

fn figures_head(page: &mut String, first: &str) -> std::fmt::Result {
    writeln!(
        page,
        "\n| {first} | direction | ns | quartiles | clocks | clocks at 2.1 GHz | Mpps | Gbit/s IP | MAC forward ns | part of MAC-forward rate |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    )
}

fn figures_row(page: &mut String, first: &str, way: &str, figures: &Figures) -> std::fmt::Result {
    writeln!(
        page,
        "| {first} | {way} | {:.1} | {:.1} to {:.1} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} | {:.3} |",
        figures.ns_per_packet,
        figures.spread_ns.p25,
        figures.spread_ns.p75,
        figures.clocks,
        figures.clocks_at_2_1_ghz,
        figures.mpps,
        figures.gbps_ip,
        figures.mac_forward_ns,
        figures.ratio_to_mac_forward,
    )
}

fn size(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Cost per packet by sessions and flows\n\nOne worker, no copies.\n\n![cost per packet](cost.svg)"
    )?;
    for (ip_bytes, features, title) in [
        (LARGE, Features::All, "1492-byte IP, all features"),
        (SMALL, Features::All, "40-byte IP, all features"),
        (LARGE, Features::Minimal, "1492-byte IP, minimal features"),
    ] {
        let rows: Vec<_> = SHAPES
            .iter()
            .flat_map(|shape| DIRECTIONS.map(|(direction, way)| (*shape, direction, way)))
            .filter_map(|(shape, direction, way)| {
                let which = Which {
                    features,
                    ..Which::of(direction, ip_bytes, shape)
                };
                Some((shape, way, results.find(which)?))
            })
            .collect();
        if rows.is_empty() {
            continue;
        }
        writeln!(page, "\n### {title}")?;
        figures_head(page, "sessions / flows")?;
        for (shape, way, figures) in rows {
            figures_row(page, &shape_name(shape), way, figures)?;
        }
    }
    Ok(())
}

fn vpp(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Beside VPP\n\n\
         VPP 26.06 with its pppoe plugin and nat44-ed, one worker, measured in memory on a machine of this kind, generation excluded: \
         clocks of a 2.1 GHz time-stamp counter per 60-byte frame. Ours: 40-byte IP packets, which make frames of 60 to 62 bytes, all \
         features on, nanoseconds of the table above times 2.1. VPP's plain IPv4 forwarding takes {:.0} and {:.0} clocks.\n\n\
         ![clocks beside VPP](vpp.svg)\n\n\
         | sessions / flows | direction | VPP | ironbng | times VPP's rate |\n|---|---|---|---|---|",
        VPP_PLAIN[0], VPP_PLAIN[1]
    )?;
    for vpp in &VPP {
        let shape = (vpp.sessions, vpp.flows);
        for (direction, way) in DIRECTIONS {
            let theirs = match direction {
                Direction::Up => vpp.up,
                Direction::Down => vpp.down,
            };
            if let Some(ours) = results.find(Which::of(direction, SMALL, shape)) {
                let ours = ours.clocks_at_2_1_ghz;
                writeln!(
                    page,
                    "| {} | {way} | {theirs:.0} | {ours:.0} | {:.1} |",
                    shape_name(shape),
                    theirs / ours
                )?;
            }
        }
    }
    Ok(())
}

fn copies(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "\n## With copies\n\n\
         Each frame is copied into its buffer after receive and out of it before transmit, in the pipeline and in the MAC-forward loop, \
         as a kernel or memory port does. 1492-byte IP, all features, one worker."
    )?;
    figures_head(page, "sessions / flows")?;
    for shape in SHAPES {
        for (direction, way) in DIRECTIONS {
            let which = Which {
                copy: Copying::Both,
                ..Which::of(direction, LARGE, shape)
            };
            if let Some(figures) = results.find(which) {
                figures_row(page, &shape_name(shape), way, figures)?;
            }
        }
    }
    Ok(())
}

fn coalescing(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Coalescing\n\n\
         64 TCP flows, one in each session, that send trains of 16 frames in a row; trains do not begin where receive bursts do. 1492-byte \
         IP, all features, one worker, both ways out take frames. *Without* is a loop that knows nothing of coalescing; it, off and on run in turns \
         in one process. The ratios are medians (quartiles) over the turns, each of two costs of the same turn."
    )?;
    writeln!(
        page,
        "\n| checksums verified by | direction | without ns | off ns | off by without | on ns | on by off | frames in a super-packet |\n\
         |---|---|---|---|---|---|---|---|"
    )?;
    for (checksums, by) in [(Checksums::Port, "port"), (Checksums::Software, "worker")] {
        for (direction, way) in DIRECTIONS {
            let which = Which {
                coalescing: Some(checksums),
                ..Which::of(direction, LARGE, TRAINS)
            };
            let found = results.find(which);
            if let Some((figures, trains)) = found.and_then(|f| Some((f, f.coalescing.as_ref()?))) {
                writeln!(
                    page,
                    "| {by} | {way} | {:.1} | {:.1} | {:.3} ({:.3} to {:.3}) | {:.1} | {:.3} ({:.3} to {:.3}) | {:.1} |",
                    trains.bare_ns_per_packet,
                    figures.ns_per_packet,
                    trains.off_by_bare,
                    trains.off_by_bare_spread.p25,
                    trains.off_by_bare_spread.p75,
                    trains.on_ns_per_packet,
                    trains.on_by_off,
                    trains.on_by_off_spread.p25,
                    trains.on_by_off_spread.p75,
                    trains.frames_per_super_packet,
                )?;
            }
        }
    }
    Ok(())
}

/// The locks of the seed tables and ours, weakest first.
const LOCKINGS: [Locking; 3] = [Locking::Packet, Locking::Burst, Locking::None];

fn locks(page: &mut String, results: &Results) -> std::fmt::Result {
    let find = |workers, locking, copy| {
        results.find(Which {
            workers,
            locking,
            copy,
            ..Which::of(Direction::Up, LARGE, LOCKS)
        })
    };
    writeln!(
        page,
        "\n## Workers and locks: the seed's tables 1.1 to 1.3, and ours\n\n\
         IP-layer Gbit/s (Mpps), **total of all cores**, 1492-byte IP packets upstream, {} sessions / flows. The product takes no lock; the locks exist in this \
         benchmark alone: all workers share one state (sessions, NAT), behind one lock taken for each burst of 32 or for each packet.\n\n\
         **What may be compared.** The seed's path copies each packet, so only our figures with `--copy both` stand beside it. The seed \
         is the Linux kernel: TAP, PPPoE and PPP, without NAT, a socket or a policer, its senders on the same cores, on 16 E-cores of a guest. \
         Ours: PPPoE, NAT44, policers, filter, FIB, with generation not counted, on the cores named above. Their \"both locks\" are two locks \
         per packet; our \"per packet\" is one. The shape of the columns is the same matter; the height of the figures is not the same machine.\n\n\
         ![workers and locks](locks.svg)\n",
        shape_name(LOCKS)
    )?;
    writeln!(
        page,
        "| cores | seed: both locks | seed: PPP lock | seed: socket lock | seed: no lock | ours, copies: per packet | ours, copies: per burst | ours, copies: none | ours, no copies: per packet | ours, no copies: per burst | ours, no copies: none |\n\
         |---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    let cell = |figures: Option<&Figures>| {
        figures.map_or_else(
            || "-".to_owned(),
            |figures| format!("{:.1} ({:.2})", figures.gbps_ip, figures.mpps),
        )
    };
    for row in &SEED {
        write!(page, "| {} ", row.cores)?;
        for gbps in [row.both, row.ppp, row.socket, row.none] {
            write!(page, "| {gbps:.2} ({:.3}) ", gbps / GBPS_PER_MPPS)?;
        }
        for copy in [Copying::Both, Copying::None] {
            for locking in LOCKINGS {
                write!(page, "| {} ", cell(find(row.cores, locking, copy)))?;
            }
        }
        writeln!(page, "|")?;
    }
    writeln!(
        page,
        "\nPer core, and what more cores bring: the rate of all workers by that of one worker alone, which ran in turns with them in the \
         same process.\n\n\
         | workers | copies | lock | ns per packet | Mpps per core | Gbit/s IP per core | times one worker | seed, same cores: times one core |\n\
         |---|---|---|---|---|---|---|---|"
    )?;
    for row in SEED.iter().skip(1) {
        for copy in [Copying::Both, Copying::None] {
            for locking in LOCKINGS {
                let Some(figures) = find(row.cores, locking, copy) else {
                    continue;
                };
                let [first, ..] = &SEED;
                let (copies, lock, theirs) = (
                    if copy == Copying::Both {
                        "both"
                    } else {
                        "none"
                    },
                    match locking {
                        Locking::Packet => "per packet",
                        Locking::Burst => "per burst",
                        Locking::None => "none",
                    },
                    match (copy, locking) {
                        (Copying::Both, Locking::Packet) => {
                            format!("{:.2} (both locks)", row.both / first.both)
                        }
                        (Copying::Both, Locking::None) => {
                            format!("{:.2} (no lock)", row.none / first.none)
                        }
                        _ => "-".to_owned(),
                    },
                );
                writeln!(
                    page,
                    "| {} | {copies} | {lock} | {:.1} | {:.2} | {:.1} | {} | {theirs} |",
                    row.cores,
                    figures.ns_per_packet,
                    figures.mpps_per_worker,
                    figures.gbps_ip_per_worker,
                    figures
                        .scaling
                        .map_or_else(|| "-".to_owned(), |scaling| format!("{scaling:.2}")),
                )?;
            }
        }
    }
    Ok(())
}

fn others(page: &mut String, results: &Results) -> std::fmt::Result {
    writeln!(
        page,
        "\n## Further\n\n1492-byte IP, 64k sessions and 1M flows, all features, one worker, no copies.\n\n| what | direction | figure |\n|---|---|---|"
    )?;
    for (direction, way) in DIRECTIONS {
        let full = Which::of(direction, LARGE, FULL);
        let plain = results.find(Which {
            plain_ip: true,
            ..full
        });
        if let Some((figures, (ns, ratio))) = plain.and_then(|figures| {
            let both = figures
                .pppoe_nat_ns_per_packet
                .zip(figures.pppoe_nat_to_plain_ip)?;
            Some((figures, both))
        }) {
            writeln!(
                page,
                "| plain-IP forwarding, and PPPoE with NAT in the same run | {way} | {:.1} ns and {ns:.1} ns: {ratio:.2} of the rate |",
                figures.ns_per_packet
            )?;
        }
        let tagged = results.find(Which { tags: 2, ..full });
        if let Some((tagged, untagged)) = tagged.zip(results.find(full)) {
            writeln!(
                page,
                "| two VLAN tags on subscribers' frames, and none | {way} | {:.1} ns and {:.1} ns |",
                tagged.ns_per_packet, untagged.ns_per_packet
            )?;
        }
        let flood = results.find(Which {
            malformed: true,
            ..full
        });
        if let Some((figures, ns)) = flood.and_then(|f| Some((f, f.malformed_ns_per_packet?))) {
            writeln!(
                page,
                "| malformed PPPoE frames (length 0, 1, too long; version; code; one-byte protocol), and good ones | {way} | {ns:.1} ns and {:.1} ns |",
                figures.ns_per_packet
            )?;
        }
        let reading = results.find(Which {
            reading: true,
            ..full
        });
        if let Some((figures, (us, ns))) = reading.and_then(|figures| {
            let both = figures.reading_us.zip(figures.reading_ns_per_packet)?;
            Some((figures, both))
        }) {
            writeln!(
                page,
                "| while another core reads the counters of all sessions without pause ({us:.0} us each time), and while none does | {way} | {ns:.1} ns and {:.1} ns |",
                figures.ns_per_packet
            )?;
        }
    }
    Ok(())
}
