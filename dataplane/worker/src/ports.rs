//! Bringing up the ports: probe, configure, share out the queues, choose the steering.

use crate::segmentation::{self, may_lack_checksums};
use crate::steering::{self, Choice, Offer};
use bng_config::{Coalesced, Coalescing, Config, PortRole};
use bng_shm::{Offloads, PortState, PortStatus, Steering};
use rte_rs::{
    AppliedConfig, Eal, Error, Mempool, Port, PortConfig, PortInfo, Queues, RssTypes, RxOffloads,
    TxOffloads,
};

/// Why a port could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// DPDK said no.
    #[error("port {port}")]
    Dpdk {
        /// Name in the configuration.
        port: String,
        /// What DPDK said.
        source: Error,
    },
    /// Every worker needs a transmit queue of its own.
    #[error(
        "port {port}: {driver} offers {offered} transmit queue(s), {workers} workers need one each: {advice}"
    )]
    TxQueues {
        /// Name in the configuration.
        port: String,
        /// DPDK driver.
        driver: String,
        /// Queues it offers.
        offered: u16,
        /// Workers configured.
        workers: u16,
        /// What to do.
        advice: String,
    },
}

/// A port that runs.
#[derive(Debug)]
pub struct LivePort {
    /// The DPDK port.
    pub port: Port,
    /// Name in the configuration.
    pub name: String,
    /// Access or core.
    pub role: PortRole,
    /// MAC address.
    pub mac: [u8; 6],
    /// Layer 3 MTU, bytes.
    pub mtu: u16,
    /// DPDK driver.
    pub driver: String,
    /// How frames come to their owner.
    pub steering: Steering,
    /// Why it is that.
    pub steering_reason: String,
    /// Why the port segments, or does not; empty if it is not asked to.
    pub segmentation_reason: String,
    /// Most frames in a super-packet, if it segments (M10).
    pub most_frames: u16,
    /// What it does for us.
    pub offloads: Offloads,
    /// Kernel interface index of the TAP twin, 0 if none.
    pub twin_ifindex: u32,
}

/// Whether a device string names a PCI device, which EAL must be allowed to take.
#[must_use]
pub fn is_pci(device: &str) -> bool {
    let address = device.split(',').next().unwrap_or(device);
    let digits =
        |text: &str, n: usize| text.len() == n && text.bytes().all(|b| b.is_ascii_hexdigit());
    let (front, function) = match address.rsplit_once('.') {
        Some(parts) => parts,
        None => return false,
    };
    let parts: Vec<_> = front.split(':').collect();
    digits(function, 1)
        && match parts.as_slice() {
            [bus, slot] => digits(bus, 2) && digits(slot, 2),
            [domain, bus, slot] => digits(domain, 4) && digits(bus, 2) && digits(slot, 2),
            _ => false,
        }
}

/// Bytes a buffer needs for the frames of a port: its MTU with two VLAN tags and the check sequence, 2,048 at least
/// and what `net_af_packet` is told to take in one piece (`framesz`), since it asks for buffers of that size.
#[must_use]
pub fn frame_room(device: &str, mtu: u16) -> u16 {
    let framesz = device.split(',').find_map(|argument| {
        let value = argument.trim().strip_prefix("framesz=")?;
        value.parse().ok()
    });
    mtu.saturating_add(14 + 8 + 4)
        .max(framesz.unwrap_or(0))
        .max(2_048)
        .checked_next_multiple_of(64)
        .unwrap_or(u16::MAX)
}

/// How many receive queues to use on a port for `workers` workers.
///
/// `net_af_packet` spreads frames over all its queue pairs whether they are read or not, so all are read.
fn rx_queues(info: &PortInfo, workers: u16) -> u16 {
    if info.driver == "net_af_packet" {
        info.max_rx_queues
    } else {
        workers.min(info.max_rx_queues)
    }
}

/// The MTU to ask DPDK for. `net_af_packet` says that it takes 1,500 bytes and has no MTU of its own: it
/// carries what the kernel interface and its `framesz` (2,048 bytes unless given) carry.
fn mtu(info: &PortInfo, wanted: u16) -> Option<u16> {
    (info.driver != "net_af_packet" || wanted <= info.max_mtu).then_some(wanted)
}

/// Frames that the port takes in one piece (M10). Half of the descriptors: a driver needs some besides those of the frames, and
/// what it has no room for now it must have room for later. `net_virtio_user` says how many it has only in its arguments.
fn most_frames(device: &str, max_segments: Option<u16>, descriptors: u16) -> u16 {
    let argument = |text: &str| text.strip_prefix("queue_size=")?.parse::<u16>().ok();
    let descriptors = device
        .split(',')
        .find_map(argument)
        .map_or(descriptors, |size| size.min(descriptors));
    let by_room = descriptors / 2;
    max_segments.map_or(by_room, |most| most.min(by_room))
}

/// Receive offloads wished for. Of checksums only the IPv4 header's: nobody on a router's way checks those of layer 4, which
/// NAT updates without looking at the payload (RFC 1624), but the coalescer where it is on (C17).
fn rx_offloads(coalesces: bool, driver: &str) -> RxOffloads {
    if coalesces && !may_lack_checksums(driver) {
        RxOffloads::IPV4_CKSUM | L4_CKSUM
    } else {
        RxOffloads::IPV4_CKSUM
    }
}

const L4_CKSUM: RxOffloads = RxOffloads::TCP_CKSUM.with(RxOffloads::UDP_CKSUM);

/// Whether what a port receives is coalesced.
fn coalesces(coalescing: &Coalescing, port: &bng_config::Port) -> bool {
    let Coalesced { tcp, udp } = match port.role {
        PortRole::Access => coalescing.upstream,
        PortRole::Core => coalescing.downstream,
    };
    port.coalescing && (tcp || udp)
}

/// Transmit offloads wished for where the port does not segment. All buffers are of one pool, single and unshared, fragments
/// included, so the port need not look at them to free them. Checksums are never computed anew: there is nothing to offload.
const TX_OFFLOADS: TxOffloads = TxOffloads::MBUF_FAST_FREE;

/// Of what was applied, what the status shows.
fn offloads(applied: &AppliedConfig) -> Offloads {
    let used = [
        (
            applied.rx_offloads.contains(RxOffloads::IPV4_CKSUM),
            Offloads::RX_IPV4_CHECKSUM,
        ),
        (
            applied.rx_offloads.contains(L4_CKSUM),
            Offloads::RX_L4_CHECKSUM,
        ),
        (!applied.rss_types.is_empty(), Offloads::RSS),
        (
            applied.tx_offloads.contains(TxOffloads::MBUF_FAST_FREE),
            Offloads::FAST_FREE,
        ),
        (
            applied.tx_offloads.contains(TxOffloads::TCP_TSO),
            Offloads::TX_TCP_SEGMENTATION,
        ),
    ];
    let used = used.into_iter().filter(|(used, _)| *used);
    used.fold(Offloads::default(), |all, (_, one)| all.with(one))
}

/// Probes, configures and starts every port of the configuration, in its order.
///
/// # Errors
/// The first port that could not be brought up, by name.
pub fn bring_up(
    eal: &Eal,
    pool: &Mempool,
    config: &Config,
) -> Result<Vec<(LivePort, Queues)>, PortError> {
    let workers = u16::try_from(config.dataplane.workers.len()).unwrap_or(u16::MAX);
    let mut live = Vec::new();
    for wanted in &config.dataplane.ports {
        let failed = |source| PortError::Dpdk {
            port: wanted.name.clone(),
            source,
        };
        let mut port = Port::probe(eal, &wanted.device).map_err(failed)?;
        let info = port.info().map_err(failed)?;
        if info.max_tx_queues < workers {
            let advice = if info.driver == "net_af_packet" {
                format!("add qpairs={workers} to its device string")
            } else {
                format!("configure at most {} worker(s)", info.max_tx_queues)
            };
            return Err(PortError::TxQueues {
                port: wanted.name.clone(),
                driver: info.driver,
                offered: info.max_tx_queues,
                workers,
                advice,
            });
        }
        let queues = PortConfig {
            rx_queues: rx_queues(&info, workers),
            tx_queues: workers,
            rx_descriptors: wanted.rx_descriptors,
            tx_descriptors: wanted.tx_descriptors,
            mtu: mtu(&info, wanted.mtu),
            rx_offloads: rx_offloads(
                coalesces(&config.dataplane.coalescing, wanted),
                &info.driver,
            ),
            tx_offloads: TX_OFFLOADS,
            rss_types: match wanted.role {
                PortRole::Access => RssTypes::PPPOE,
                PortRole::Core => {
                    RssTypes::IPV4
                        | RssTypes::NONFRAG_IPV4_OTHER
                        | RssTypes::IPV6
                        | RssTypes::TCP
                        | RssTypes::UDP
                }
            },
            // Control frames to the broadcast address reach us anyway; frames for others must not.
            promiscuous: false,
            // Neighbour discovery, OSPF, VRRP: the kernel behind the twin knows its groups, the port does not.
            all_multicast: wanted.role == PortRole::Core,
            loopback: false,
        };
        let segmentation = segmentation::choose(
            wanted.segmentation,
            config.dataplane.coalescing.verify_checksums,
            &mut port,
            &info,
            &queues,
            pool,
        );
        let queues = PortConfig {
            tx_offloads: segmentation.offloads().unwrap_or(TX_OFFLOADS),
            ..queues
        };
        let applied = port.configure(&queues, pool).map_err(failed)?;
        let mac = port.mac().map_err(failed)?.0;
        let handles = port.start().map_err(failed)?;
        let offer = Offer {
            role: wanted.role,
            workers,
            queues: queues.rx_queues,
            rss: applied.rss_types,
        };
        let Choice { steering, reason } = steering::choose(&offer, &port);
        let offloads = offloads(&applied);
        let most_frames = most_frames(&wanted.device, info.max_tx_segments, applied.tx_descriptors);
        if !segmentation.reason.is_empty() {
            let who = if segmentation.port {
                "the port"
            } else {
                "the worker"
            };
            tracing::info!(
                "port {}: super-packets are cut by {who} ({})",
                wanted.name,
                segmentation.reason
            );
        }
        let names: Vec<_> = offloads.names().collect();
        tracing::info!(
            "port {}: {} ({}), mtu {}, {} receive and {} transmit queue(s), steering {} ({reason}), offloads {}",
            wanted.name,
            wanted.device,
            info.driver,
            wanted.mtu,
            queues.rx_queues,
            queues.tx_queues,
            steering.name(),
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            },
        );
        let port = LivePort {
            port,
            name: wanted.name.clone(),
            role: wanted.role,
            mac,
            mtu: wanted.mtu,
            driver: info.driver,
            steering,
            steering_reason: reason,
            segmentation_reason: segmentation.reason,
            most_frames,
            offloads,
            twin_ifindex: 0,
        };
        live.push((port, handles));
    }
    Ok(live)
}

impl LivePort {
    /// What the control plane shall know of the port now.
    #[must_use]
    pub fn status(&self) -> PortStatus {
        let link = self.port.link().ok();
        let stats = self.port.stats().unwrap_or_default();
        PortStatus {
            state: PortState::Started,
            link_up: link.as_ref().is_some_and(|link| link.up),
            mac: self.mac,
            mtu: self.mtu,
            twin_ifindex: self.twin_ifindex,
            link_mbps: link.and_then(|link| link.speed_mbps).unwrap_or(0),
            steering: self.steering,
            steering_reason: self.steering_reason.clone(),
            segmentation_reason: self.segmentation_reason.clone(),
            offloads: self.offloads,
            stats: [
                stats.rx_packets,
                stats.tx_packets,
                stats.rx_bytes,
                stats.tx_bytes,
                stats.rx_missed,
                stats.rx_errors,
                stats.tx_errors,
                stats.rx_no_mbuf,
            ],
            driver: self.driver.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M10.
    #[test]
    fn a_super_packet_finds_room_in_the_queue() {
        let virtio = "net_virtio_user0,path=/run/vm.sock,queue_size=128";
        for (device, segments, descriptors, most) in [
            ("3b:00.0", None, 1_024, 512),
            ("3b:00.0", Some(40), 1_024, 40),
            ("3b:00.0", Some(40), 64, 32),
            (virtio, Some(u16::MAX), 1_024, 64),
            (virtio, Some(u16::MAX), 64, 32),
        ] {
            assert_eq!(most_frames(device, segments, descriptors), most);
        }
    }

    #[test]
    fn pci_addresses_are_told_from_virtual_devices() {
        for (device, pci) in [
            ("0000:3b:00.0", true),
            ("3b:00.1", true),
            ("0000:3b:00.0,rx_vec=0", true),
            ("net_af_packet0,iface=eth0.100", false),
            ("net_memif0,socket=/run/memif.sock", false),
            ("3b:00", false),
        ] {
            assert_eq!(is_pci(device), pci, "{device}");
        }
    }

    #[test]
    fn a_buffer_holds_a_frame_of_the_port() {
        for (device, mtu, room) in [
            ("0000:3b:00.0", 1_500, 2_048),
            ("0000:3b:00.0", 9_600, 9_664),
            (
                "net_af_packet0,iface=a,framesz=16384,blocksz=16384",
                9_000,
                16_384,
            ),
            ("net_af_packet0,iface=a,framesz=nonsense", 1_500, 2_048),
            ("net_af_packet0,iface=a,framesz=65535", 1_500, u16::MAX),
        ] {
            assert_eq!(frame_room(device, mtu), room, "{device}");
        }
    }

    #[test]
    fn the_status_shows_the_offloads_in_use() {
        let applied = AppliedConfig {
            rx_descriptors: 1_024,
            tx_descriptors: 1_024,
            mtu: 1_500,
            rx_offloads: rx_offloads(false, "net_ice"),
            tx_offloads: TX_OFFLOADS,
            rss_types: RssTypes::IPV4,
        };
        let names: Vec<_> = offloads(&applied).names().collect();
        assert_eq!(names, ["rx-ipv4-checksum", "rss", "mbuf-fast-free"]);
        let segmenting = segmentation::Choice {
            port: true,
            ..segmentation::Choice::default()
        };
        let coalescing = AppliedConfig {
            rx_offloads: rx_offloads(true, "net_ice"),
            tx_offloads: segmenting.offloads().unwrap(),
            ..applied.clone()
        };
        let names: Vec<_> = offloads(&coalescing).names().collect();
        let expected = [
            "rx-ipv4-checksum",
            "rx-l4-checksum",
            "rss",
            "tx-tcp-segmentation",
        ];
        assert_eq!(names, expected);
        assert_eq!(
            rx_offloads(true, "net_virtio_user"),
            RxOffloads::IPV4_CKSUM,
            "or its peer leaves checksums out"
        );
        let none = AppliedConfig {
            rx_offloads: RxOffloads::NONE,
            tx_offloads: TxOffloads::NONE,
            rss_types: RssTypes::NONE,
            ..applied
        };
        assert_eq!(offloads(&none), Offloads::default());
    }
}
