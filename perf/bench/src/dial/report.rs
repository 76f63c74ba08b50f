//! The result of a run, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::churn::Churn;
use super::emulator::Emulator;
use super::link::Link;
use super::subscriber::EndCause;
use super::traffic::Stream;
use crate::probe::Family;

/// Spread of a time.
#[derive(Debug, Serialize)]
pub(crate) struct Percentiles {
    min: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Percentiles {
    /// Of nanoseconds, in units of `unit_ns`. `None` without a value.
    fn of(histogram: &Histogram<u64>, unit_ns: f64) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / unit_ns;
        (!histogram.is_empty()).then(|| Self {
            min: histogram.min() as f64 / unit_ns,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: histogram.max() as f64 / unit_ns,
        })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "min {:.2}, median {:.2}, p90 {:.2}, p99 {:.2}, max {:.2}",
            self.min, self.p50, self.p90, self.p99, self.max
        )
    }
}

/// Whose fault a loss cannot be: the emulator's own socket.
#[derive(Debug, Serialize)]
pub(crate) struct SocketReport {
    receive_drops: u64,
    truncated: u64,
    send_errors: u64,
}

/// What became of the datagrams of some streams.
#[derive(Debug, Default, Serialize)]
pub(crate) struct StreamsReport {
    sent: u64,
    returned: u64,
    lost: u64,
    lost_up: u64,
    lost_down: u64,
    lost_unknown: u64,
    reflector_reports_missing: u64,
    duplicates_up: u64,
    duplicates_down: u64,
    reordered_up: u64,
    reordered_down: u64,
    too_late: u64,
    corrupt_at_reflector: u64,
    reflector_socket_drops: u64,
    reflector_send_failures: u64,
}

/// ICMP errors of one kind.
#[derive(Debug, Serialize)]
pub(crate) struct IcmpReport {
    from: std::net::IpAddr,
    kind: &'static str,
    /// MTU told, bytes of IP; 0 for none.
    mtu: u32,
    count: u64,
}

/// Traffic, counted over all subscribers. Rates are totals of both process and run.
#[derive(Debug, Default, Serialize)]
pub(crate) struct TrafficReport {
    ip_bytes: usize,
    payload_bytes: usize,
    seconds: f64,
    pps_planned: f64,
    pps_sent: f64,
    mbps_ip_sent: f64,
    mbps_ip_received: f64,
    #[serde(flatten)]
    all: StreamsReport,
    /// The same for each family that has traffic.
    by_family: BTreeMap<&'static str, StreamsReport>,
    received: u64,
    misdelivered: u64,
    corrupt: u64,
    bad_ip: u64,
    bad_udp: u64,
    udp_checksum_absent: u64,
    unrelated: u64,
    /// Fragments of what came back; they are counted, not put together.
    fragments: u64,
    icmp_errors: Vec<IcmpReport>,
    round_trip_us: Option<Percentiles>,
}

/// Sessions that ended and began again.
#[derive(Debug, Serialize)]
pub(crate) struct ChurnReport {
    seconds: f64,
    hung_up: u64,
    redialled: u64,
    came_up: u64,
    ups_per_second: f64,
    setup_time_ms: Option<Percentiles>,
}

/// PADI from random addresses.
#[derive(Debug, Serialize)]
pub(crate) struct FloodReport {
    padi_sent: u64,
    pado_received: u64,
}

/// The whole result.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    sessions: u32,
    sessions_up: u32,
    sessions_up_at_end: u32,
    interrupted: bool,
    setups_per_second: f64,
    /// From the first PADI of the run until the last session was up.
    all_up_after_seconds: f64,
    retransmissions: u64,
    renegotiations: u64,
    failures: BTreeMap<&'static str, u64>,
    setup_time_ms: Option<Percentiles>,
    echo_requests_answered: u64,
    ended_by_peer: u64,
    ended: BTreeMap<&'static str, u64>,
    router_advertisements: u64,
    malformed_frames: u64,
    unexpected_frames: u64,
    wrong_vlan_frames: u64,
    emulator_socket: SocketReport,
    traffic: Option<TrafficReport>,
    churn: Option<ChurnReport>,
    padi_flood: Option<FloodReport>,
    /// Sessions that were up and are over, if they were remembered.
    over: Option<OverReport>,
}

/// Sums over the sessions that are over (`--ledger`).
#[derive(Debug, Default, Serialize)]
pub(crate) struct OverReport {
    sessions: u64,
    up_packets: u64,
    up_bytes: u64,
    down_packets: u64,
    down_bytes: u64,
}

impl OverReport {
    fn of(run: &Emulator) -> Self {
        let mut sums = Self::default();
        for finished in run.finished() {
            sums.sessions += 1;
            sums.up_packets += finished.octets.up_packets;
            sums.up_bytes += finished.octets.up_bytes;
            sums.down_packets += finished.octets.down_packets;
            sums.down_bytes += finished.octets.down_bytes;
        }
        sums
    }
}

impl ChurnReport {
    fn of(churn: &Churn) -> Self {
        let seconds = churn.time.as_secs_f64();
        Self {
            seconds,
            hung_up: churn.hung_up,
            redialled: churn.redialled,
            came_up: churn.came_up,
            ups_per_second: churn.came_up as f64 / seconds.max(1e-6),
            setup_time_ms: Percentiles::of(&churn.setup, 1e6),
        }
    }
}

fn named(causes: &BTreeMap<EndCause, u64>) -> BTreeMap<&'static str, u64> {
    causes
        .iter()
        .map(|(cause, count)| (cause.name(), *count))
        .collect()
}

impl StreamsReport {
    fn of<'a>(streams: impl Iterator<Item = &'a Stream>) -> Self {
        let mut report = Self::default();
        for stream in streams {
            let back = stream.returned.counts();
            report.sent += stream.sent;
            report.returned += back.unique;
            report.lost += stream.sent.saturating_sub(back.unique);
            report.duplicates_down += back.duplicates;
            report.reordered_down += back.reordered;
            report.too_late += back.too_late;
            match &stream.report {
                Some(seen) => {
                    report.lost_up += stream.sent.saturating_sub(seen.counts.unique);
                    report.lost_down += seen.counts.unique.saturating_sub(back.unique);
                    report.duplicates_up += seen.counts.duplicates;
                    report.reordered_up += seen.counts.reordered;
                    report.too_late += seen.counts.too_late;
                    report.corrupt_at_reflector += seen.corrupt;
                    report.reflector_send_failures += seen.send_failures;
                    // One figure of the whole reflector, in every report.
                    report.reflector_socket_drops =
                        report.reflector_socket_drops.max(seen.socket_drops);
                }
                None if stream.sent > 0 => {
                    report.reflector_reports_missing += 1;
                    report.lost_unknown += stream.sent.saturating_sub(back.unique);
                }
                None => {}
            }
        }
        report
    }
}

impl TrafficReport {
    fn of(run: &Emulator) -> Option<Self> {
        let plan = run.plan.traffic?;
        let account = &run.account;
        let seconds = run.sums.traffic_time.as_secs_f64();
        let per_second = |count: u64| {
            if seconds > 0.0 {
                count as f64 / seconds
            } else {
                0.0
            }
        };
        let families = || {
            let wanted = |family: &Family| plan.to.get(family.index()).is_some_and(Option::is_some);
            Family::BOTH.into_iter().filter(wanted)
        };
        let streams = |family: Family| {
            let each = Family::BOTH.len();
            run.streams.iter().skip(family.index()).step_by(each)
        };
        Some(Self {
            ip_bytes: plan.payload_bytes + families().next().map_or(0, Family::headers),
            payload_bytes: plan.payload_bytes,
            seconds,
            pps_planned: plan.per_second,
            pps_sent: per_second(account.sent),
            mbps_ip_sent: per_second(account.sent_bytes) * 8e-6,
            mbps_ip_received: per_second(account.received_bytes) * 8e-6,
            all: StreamsReport::of(run.streams.iter()),
            by_family: families()
                .map(|family| (family.name(), StreamsReport::of(streams(family))))
                .collect(),
            received: account.received,
            misdelivered: account.misdelivered,
            corrupt: account.corrupt,
            bad_ip: account.bad_ip,
            bad_udp: account.bad_udp,
            udp_checksum_absent: account.udp_checksum_absent,
            unrelated: account.unrelated,
            fragments: account.fragments,
            icmp_errors: account
                .icmp_errors
                .iter()
                .map(|(error, count)| IcmpReport {
                    from: error.from,
                    kind: error.kind.name(),
                    mtu: error.mtu,
                    count: *count,
                })
                .collect(),
            round_trip_us: Percentiles::of(&account.round_trip, 1e3),
        })
    }

    /// Whether everything came back whole, to whom it belongs, and the reflector confirmed it.
    const fn is_lossless(&self) -> bool {
        let all = &self.all;
        all.sent > 0
            && all.lost == 0
            && all.lost_up == 0
            && all.lost_down == 0
            && all.reflector_reports_missing == 0
    }

    const fn is_intact(&self) -> bool {
        self.misdelivered == 0
            && self.corrupt == 0
            && self.all.corrupt_at_reflector == 0
            && self.bad_ip == 0
            && self.bad_udp == 0
            && self.udp_checksum_absent == 0
    }
}

impl Report {
    /// The result of `run` over `link`.
    pub(crate) fn new(
        run: &Emulator,
        up_at_end: u32,
        interrupted: bool,
        link: &mut Link,
    ) -> anyhow::Result<Self> {
        let sums = &run.sums;
        let setup_seconds = sums.last_up.max(Duration::from_micros(1)).as_secs_f64();
        Ok(Self {
            sessions: run.plan.sessions,
            sessions_up: sums.came_up,
            sessions_up_at_end: up_at_end,
            interrupted,
            setups_per_second: f64::from(sums.came_up) / setup_seconds,
            all_up_after_seconds: setup_seconds,
            retransmissions: sums.clients.retransmissions,
            renegotiations: sums.clients.renegotiations,
            failures: named(&sums.failures),
            setup_time_ms: Percentiles::of(&sums.setup, 1e6),
            echo_requests_answered: sums.clients.echo_answered,
            ended_by_peer: [EndCause::PeerPadt, EndCause::PeerTerminated]
                .iter()
                .filter_map(|cause| sums.ended.get(cause))
                .sum(),
            ended: named(&sums.ended),
            router_advertisements: sums.clients.advertisements,
            malformed_frames: sums.malformed,
            wrong_vlan_frames: sums.wrong_vlan,
            unexpected_frames: sums.clients.unexpected,
            emulator_socket: SocketReport {
                receive_drops: link.receive_drops()?,
                truncated: link.truncated(),
                send_errors: link.send_errors(),
            },
            traffic: TrafficReport::of(run),
            churn: run.churn.as_ref().map(ChurnReport::of),
            padi_flood: run.flood.as_ref().map(|flood| FloodReport {
                padi_sent: flood.sent,
                pado_received: flood.offers,
            }),
            over: run.plan.ledger.then(|| OverReport::of(run)),
        })
    }

    /// Whether the run passed: all sessions came up, nothing was damaged or misdelivered, and with
    /// `require_zero_loss` nothing was lost.
    pub(crate) fn passed(&self, require_zero_loss: bool) -> bool {
        let churned = self.churn.as_ref().is_none_or(|churn| {
            churn.hung_up > 0
                && churn.came_up == churn.redialled
                && churn.redialled >= churn.hung_up
        });
        self.sessions_up == self.sessions
            && churned
            && self.traffic.as_ref().is_none_or(|traffic| {
                traffic.is_intact() && (!require_zero_loss || traffic.is_lossless())
            })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "sessions       {} of {} came up, {:.0} setups per second, {} up at the end{}",
            self.sessions_up,
            self.sessions,
            self.setups_per_second,
            self.sessions_up_at_end,
            if self.interrupted {
                " (interrupted)"
            } else {
                ""
            }
        )?;
        if let Some(setup) = &self.setup_time_ms {
            writeln!(f, "setup time     {setup} ms")?;
        }
        writeln!(
            f,
            "protocol       {} retransmissions, {} renegotiations, {} echo requests answered, {} ended by the peer",
            self.retransmissions,
            self.renegotiations,
            self.echo_requests_answered,
            self.ended_by_peer
        )?;
        for (cause, count) in &self.failures {
            writeln!(f, "  never up     {cause}: {count}")?;
        }
        for (cause, count) in &self.ended {
            writeln!(f, "  ended        {cause}: {count}")?;
        }
        if let Some(churn) = &self.churn {
            writeln!(
                f,
                "churn          {} hung up, {} dialled again, {} came up in {:.1} s: {:.0} per second",
                churn.hung_up, churn.redialled, churn.came_up, churn.seconds, churn.ups_per_second
            )?;
            if let Some(setup) = &churn.setup_time_ms {
                writeln!(f, "  setup time   {setup} ms")?;
            }
        }
        if let Some(flood) = &self.padi_flood {
            writeln!(
                f,
                "flood          {} PADI from random addresses, {} PADO for them",
                flood.padi_sent, flood.pado_received
            )?;
        }
        let socket = &self.emulator_socket;
        writeln!(
            f,
            "own socket     {} dropped on receive, {} too long, {} refused on send",
            socket.receive_drops, socket.truncated, socket.send_errors
        )?;
        let Some(traffic) = &self.traffic else {
            return Ok(());
        };
        writeln!(
            f,
            "traffic        {} datagrams of {} bytes of IP in {:.1} s: {:.0} per second, {:.1} Mbit/s of IP, all sessions together",
            traffic.all.sent,
            traffic.ip_bytes,
            traffic.seconds,
            traffic.pps_sent,
            traffic.mbps_ip_sent
        )?;
        writeln!(
            f,
            "  came back    {}; lost {} upstream, {} downstream, {} where the reflector did not answer",
            traffic.all.returned,
            traffic.all.lost_up,
            traffic.all.lost_down,
            traffic.all.lost_unknown
        )?;
        writeln!(
            f,
            "  order        repeated {} up {} down, out of order {} up {} down, beyond the window {}",
            traffic.all.duplicates_up,
            traffic.all.duplicates_down,
            traffic.all.reordered_up,
            traffic.all.reordered_down,
            traffic.all.too_late
        )?;
        writeln!(
            f,
            "  damage       misdelivered {}, corrupt {} ({} at the reflector), IP {}, UDP {}, without UDP checksum {}",
            traffic.misdelivered,
            traffic.corrupt,
            traffic.all.corrupt_at_reflector,
            traffic.bad_ip,
            traffic.bad_udp,
            traffic.udp_checksum_absent
        )?;
        for error in &traffic.icmp_errors {
            writeln!(
                f,
                "  ICMP         {} {} from {}, MTU {}",
                error.count, error.kind, error.from, error.mtu
            )?;
        }
        if let Some(round_trip) = &traffic.round_trip_us {
            writeln!(f, "  round trip   {round_trip} us")?;
        }
        Ok(())
    }
}
