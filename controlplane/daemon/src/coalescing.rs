//! What coalescing does and what it is set to, for REST and `bngctl`.

use bng_config::{Coalesced, Coalescing};
use bng_shm::{Counter, Group};
use serde::Serialize;
use utoipa::ToSchema;

use crate::settings::Settings;
use crate::status::{PortView, WorkerView};

/// Counters of super-packets by their size: the largest number of frames, and none for what is beyond.
pub(crate) const SIZES: [(Counter, Option<u16>); 6] = [
    (Counter::CoalesceSegments2, Some(2)),
    (Counter::CoalesceSegments4, Some(4)),
    (Counter::CoalesceSegments8, Some(8)),
    (Counter::CoalesceSegments16, Some(16)),
    (Counter::CoalesceSegments32, Some(32)),
    (Counter::CoalesceSegmentsMore, None),
];

/// Protocols that are coalesced in one direction.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ProtocolsView {
    /// TCP.
    pub tcp: bool,
    /// UDP.
    pub udp: bool,
}

impl From<Coalesced> for ProtocolsView {
    fn from(Coalesced { tcp, udp }: Coalesced) -> Self {
        Self { tcp, udp }
    }
}

/// The settings of the configuration, see there.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CoalescingSettingsView {
    /// Whether anything is coalesced.
    pub on: bool,
    /// Inside PPPoE sessions.
    pub upstream: ProtocolsView,
    /// On core ports.
    pub downstream: ProtocolsView,
    /// Whether IPv4 packets are.
    pub ipv4: bool,
    /// Whether IPv6 packets are.
    pub ipv6: bool,
    /// How long a run may wait for more, microseconds; 0: until the receive burst ends.
    pub hold_us: u32,
    /// Most frames in a super-packet.
    pub max_frames: u16,
    /// Whether TCP and UDP checksums that no port has verified are verified in software.
    pub verify_checksums: bool,
}

impl From<&Coalescing> for CoalescingSettingsView {
    fn from(settings: &Coalescing) -> Self {
        Self {
            on: settings.is_on(),
            upstream: settings.upstream.into(),
            downstream: settings.downstream.into(),
            ipv4: settings.ipv4,
            ipv6: settings.ipv6,
            hold_us: settings.hold_us,
            max_frames: settings.max_frames,
            verify_checksums: settings.verify_checksums,
        }
    }
}

/// What a port does for coalescing.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CoalescingPortView {
    /// Name in the configuration.
    pub name: String,
    /// `access` or `core`.
    pub role: &'static str,
    /// Whether what arrives here may be coalesced.
    pub coalescing: bool,
    /// Who cuts super-packets into frames: `port` or `software`.
    pub segmentation: &'static str,
    /// Why, if it was asked to be the port.
    pub segmentation_reason: String,
    /// Whether the TAP twin and the kernel exchange super-packets.
    pub twin_offloads: bool,
}

/// Super-packets of a size.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SizeView {
    /// Most frames in them; none: no limit. Those of the size before have fewer.
    pub up_to: Option<u16>,
    /// How many there were.
    pub super_packets: u64,
}

/// What became of the frames that could be merged.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct RunsView {
    /// TCP and UDP frames that could be merged with others of their flow.
    pub candidates: u64,
    /// Of these, frames that found no other.
    pub single: u64,
    /// Of these, frames that became part of a super-packet.
    pub merged: u64,
    /// Super-packets.
    pub super_packets: u64,
    /// Frames in a super-packet, on average; none without a super-packet.
    pub frames_per_super_packet: Option<f64>,
    /// Super-packets by their number of frames.
    pub sizes: Vec<SizeView>,
    /// Super-packets given to a core port in one piece.
    pub sent_to_port: u64,
    /// Super-packets given to the kernel in one piece.
    pub sent_to_host: u64,
    /// Super-packets of the kernel, cut into frames.
    pub from_host: u64,
}

impl RunsView {
    fn of(value: impl Fn(Counter) -> u64) -> Self {
        let merged = value(Counter::CoalesceMerged);
        let super_packets = value(Counter::CoalesceSupers);
        Self {
            candidates: value(Counter::CoalesceFrames),
            single: value(Counter::CoalesceSingle),
            merged,
            super_packets,
            frames_per_super_packet: (super_packets != 0)
                .then(|| merged as f64 / super_packets as f64),
            sizes: (SIZES.into_iter())
                .map(|(counter, up_to)| SizeView {
                    up_to,
                    super_packets: value(counter),
                })
                .collect(),
            sent_to_port: value(Counter::SuperSent),
            sent_to_host: value(Counter::SuperHost),
            from_host: value(Counter::HostSupers),
        }
    }
}

/// What a worker did.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct WorkerRunsView {
    /// Its index, or `host` for the host path.
    pub worker: String,
    /// What became of the frames.
    #[serde(flatten)]
    pub runs: RunsView,
}

/// A reason for leaving frames alone, or for ending runs.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ReasonView {
    /// Its label.
    pub reason: &'static str,
    /// What it means.
    pub help: &'static str,
    /// Frames or runs in all.
    pub total: u64,
    /// Frames or runs per worker.
    pub workers: Vec<u64>,
}

/// Coalescing and segmentation.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CoalescingView {
    /// What the configuration asks for.
    pub settings: CoalescingSettingsView,
    /// Ports in the order of the configuration.
    pub ports: Vec<CoalescingPortView>,
    /// All workers together.
    pub total: RunsView,
    /// Each worker, and the host path.
    pub workers: Vec<WorkerRunsView>,
    /// Frames left alone, by reason.
    pub passed: Vec<ReasonView>,
    /// Runs that ended, by reason.
    pub ended: Vec<ReasonView>,
}

/// Everything about coalescing, from the views of workers and ports.
pub(crate) fn view(
    settings: &Settings,
    workers: &[WorkerView],
    ports: &[PortView],
) -> CoalescingView {
    let of = |worker: &WorkerView, counter: Counter| {
        let value = worker.counters.get(counter.label());
        value.copied().unwrap_or(0)
    };
    let all = |counter| workers.iter().map(|worker| of(worker, counter)).sum();
    let reasons = |group| {
        let counters = Counter::ALL.iter().filter(move |it| it.group() == group);
        let views = counters.map(|counter| ReasonView {
            reason: counter.label(),
            help: counter.help(),
            total: all(*counter),
            // The host path coalesces nothing.
            workers: (workers.iter().filter(|worker| worker.worker != "host"))
                .map(|worker| of(worker, *counter))
                .collect(),
        });
        views.collect()
    };
    let has = |port: &PortView, offload| port.started && port.offloads.contains(&offload);
    let ports = ports.iter().zip(&settings.ports);
    CoalescingView {
        settings: (&settings.coalescing).into(),
        ports: ports
            .map(|(port, configured)| CoalescingPortView {
                name: configured.name.clone(),
                role: configured.role.as_str(),
                coalescing: configured.coalescing,
                segmentation: port.segmentation,
                segmentation_reason: port.segmentation_reason.clone(),
                twin_offloads: has(port, "twin"),
            })
            .collect(),
        total: RunsView::of(all),
        workers: (workers.iter())
            .map(|worker| WorkerRunsView {
                worker: worker.worker.clone(),
                runs: RunsView::of(|counter| of(worker, counter)),
            })
            .collect(),
        passed: reasons(Group::CoalescePass),
        ended: reasons(Group::CoalesceEnd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every counter of the list must be in one of the views: what nobody shows is not worth counting.
    #[test]
    fn every_counter_of_coalescing_is_shown_once() {
        let mut shown = Vec::new();
        let seen = std::cell::RefCell::new(Vec::new());
        RunsView::of(|counter| {
            seen.borrow_mut().push(counter);
            0
        });
        shown.append(&mut seen.borrow_mut());
        shown.sort();
        let all = Counter::ALL.iter().copied();
        let all: Vec<_> = all.filter(|it| it.group() == Group::Coalesce).collect();
        assert_eq!(shown, all);
    }

    #[test]
    fn the_ratio_is_of_merged_frames_and_there_is_none_without_super_packets() {
        let runs = RunsView::of(|counter| match counter {
            Counter::CoalesceFrames => 100,
            Counter::CoalesceMerged => 90,
            Counter::CoalesceSupers => 8,
            Counter::CoalesceSegments16 => 7,
            _ => 0,
        });
        assert_eq!(runs.frames_per_super_packet, Some(11.25));
        let size = &runs.sizes[3];
        assert_eq!((size.up_to, size.super_packets), (Some(16), 7));
        assert_eq!(RunsView::of(|_| 0).frames_per_super_packet, None);
    }
}
