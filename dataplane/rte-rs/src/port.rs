//! Ethernet ports: probing, configuration, starting and stopping.

use std::cell::Cell;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::eal::Eal;
use crate::error::{Errno, Error, c_string, check};
use crate::flags::{RssTypes, RxOffloads, TxOffloads};
use crate::flow::{self, PppoeRule};
use crate::mac::MacAddr;
use crate::mempool::Mempool;
use crate::port_config::{AppliedConfig, LinkStatus, PortConfig, PortInfo, QueueKind};
use crate::port_stats::{self, PortStats, Xstat};
use crate::queue::{RxQueue, TxQueue};

/// An Ethernet port and its control functions. There is one per port in the process. It can be sent to another thread and,
/// as DPDK's control functions want it, is used by one thread at a time; its queues are polled by others meanwhile.
///
/// A dropped port is stopped and closed and its device unplugged, once its last queue handle is gone too.
///
/// # `net_af_packet`
///
/// Ports on kernel interfaces have ways of their own, observed with DPDK 22.11 on veth pairs:
///
/// - The kernel takes the outer VLAN tag out and the driver puts it back, with ethertype 0x8100 whatever it was: an S-VLAN
///   with 0x88a8 arrives as 0x8100. The tag is in the frame, and `ol_flags` has `RX_VLAN` without `RX_VLAN_STRIPPED`.
/// - [`PortConfig::mtu`] accepts no more than 1,500, and the driver checks lengths against its `framesz` alone: set the
///   interface's own MTU. The kernel grants 4 bytes above it only to an outer 0x8100, so 1,500 bytes behind 0x88a8 and a
///   second tag need 1,508. It drops what is larger without a trace in the port's counters.
/// - With the default `framesz=2048`, received frames above 1,982 bytes are cut without notice and sent ones above 2,016
///   dropped (`tx_errors`). For larger ones give `framesz` (a power of two) and a `blocksz` of at least that, and a pool with
///   a data room of [`HEADROOM`](crate::HEADROOM) more.
/// - A kernel that sends through the other end of a veth pair leaves checksums and segmentation to it: switch both off
///   there (`ethtool -K IF tx off tso off gso off`), or wrong checksums and cut frames arrive.
/// - Frames that the kernel itself sends on the interface are received as well.
/// - The link is always reported up. While the interface is down, sent frames are counted in `tx_errors` but stay in the
///   transmit ring (512 frames, then the burst is refused), and leave when it comes up again.
#[derive(Debug)]
pub struct Port {
    shared: Arc<PortShared>,
    state: State,
    _one_thread_at_a_time: PhantomData<Cell<()>>,
}

/// DPDK does not lock plugging and unplugging against each other, and a port may be dropped in any thread.
static HOTPLUG: Mutex<()> = Mutex::new(());

fn lock_hotplug() -> MutexGuard<'static, ()> {
    HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Probed,
    Configured {
        rx_queues: u16,
        tx_queues: u16,
        promiscuous: bool,
        all_multicast: bool,
    },
    Started {
        rx_queues: u16,
        tx_queues: u16,
        promiscuous: bool,
        all_multicast: bool,
    },
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Probed => "not configured",
            State::Configured { .. } => "stopped",
            State::Started { .. } => "started",
        }
    }
}

/// The queue handles of a started port, by queue number.
#[derive(Debug)]
pub struct Queues {
    /// Receive queues.
    pub rx: Vec<RxQueue>,
    /// Transmit queues.
    pub tx: Vec<TxQueue>,
}

/// What a port and its queue handles share: the last of them closes the port.
#[derive(Debug)]
pub(crate) struct PortShared {
    id: u16,
    name: String,
    /// For the one that closes the port: DPDK complains of a second stop.
    started: AtomicBool,
    _eal: Eal,
}

impl PortShared {
    pub(crate) fn id(&self) -> u16 {
        self.id
    }
}

impl Drop for PortShared {
    fn drop(&mut self) {
        let _alone = lock_hotplug();
        // A failure leaves the device with EAL, whose clean-up tries again; there is nobody to tell.
        // SAFETY: the port is ours (claimed at probing) and no handle to it is left.
        unsafe {
            if *self.started.get_mut() {
                dpdk_sys::rte_eth_dev_stop(self.id);
            }
            dpdk_sys::shim_port_remove(self.id);
        }
    }
}

impl Port {
    /// Takes the port of a device, plugging the device in if EAL does not have it yet.
    ///
    /// `device` is a PCI address (`0000:3b:00.0`), the name of a device that EAL found at its start, or a virtual device with
    /// its arguments (`net_af_packet0,iface=eth1,qpairs=2`).
    ///
    /// # Errors
    /// [`Error::NoSuchDevice`], [`Error::DeviceRefused`], [`Error::PortInUse`] when this process has a [`Port`] for it, and
    /// [`Error::Call`] for `rte_dev_probe` with a driver's reason.
    pub fn probe(eal: &Eal, device: &str) -> Result<Self, Error> {
        let devargs = c_string(device)?;
        let name = device.split(',').next().unwrap_or(device);
        let bare = c_string(name)?;
        let mut id = u16::MAX;
        let _alone = lock_hotplug();
        // SAFETY: EAL runs; a C string and a place for the result.
        let mut code = unsafe { dpdk_sys::shim_port_find(bare.as_ptr(), &mut id) };
        if code < 0 {
            // SAFETY: EAL runs; a C string.
            let probe = unsafe { dpdk_sys::rte_dev_probe(devargs.as_ptr()) };
            match Errno::from_code(probe) {
                _ if probe >= 0 => {}
                Errno::EXIST => {}
                // EFAULT: no bus takes this for the name of one of its devices.
                Errno::NODEV | Errno::FAULT => {
                    return Err(Error::NoSuchDevice {
                        device: device.to_owned(),
                    });
                }
                // The -1 of drivers that give no reason.
                Errno::PERM => {
                    return Err(Error::DeviceRefused {
                        device: device.to_owned(),
                    });
                }
                errno => {
                    return Err(Error::Call {
                        function: "rte_dev_probe",
                        object: format!("device {device:?}"),
                        errno,
                    });
                }
            }
            // SAFETY: as above.
            code = unsafe { dpdk_sys::shim_port_find(bare.as_ptr(), &mut id) };
        }
        if code < 0 {
            return Err(Error::NoSuchDevice {
                device: device.to_owned(),
            });
        }
        // SAFETY: a C string.
        let claim = unsafe { dpdk_sys::shim_port_claim(id, c"rte-rs".as_ptr()) };
        if Errno::from_code(claim) == Errno::PERM {
            return Err(Error::PortInUse {
                device: device.to_owned(),
                port: id,
            });
        }
        check("rte_eth_dev_owner_set", name, claim)?;
        Ok(Port {
            shared: Arc::new(PortShared {
                id,
                name: name.to_owned(),
                started: AtomicBool::new(false),
                _eal: eal.clone(),
            }),
            state: State::Probed,
            _one_thread_at_a_time: PhantomData,
        })
    }

    /// Port number, as in [`Mbuf::port`](crate::Mbuf::port).
    #[must_use]
    pub fn id(&self) -> u16 {
        self.shared.id
    }

    /// The device's name, without arguments.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What the port is and can do.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn info(&self) -> Result<PortInfo, Error> {
        let mut info = dpdk_sys::shim_port_info::default();
        // SAFETY: a place for the result.
        let code = unsafe { dpdk_sys::shim_port_info(self.shared.id, &mut info) };
        self.check("rte_eth_dev_info_get", code)?;
        let driver = if info.driver.is_null() {
            String::new()
        } else {
            // SAFETY: the driver's name, a C string that lives as long as the device.
            unsafe { CStr::from_ptr(info.driver) }
                .to_string_lossy()
                .into_owned()
        };
        Ok(PortInfo {
            driver,
            numa_node: u32::try_from(info.numa_node).ok(),
            kernel_if_index: (info.if_index != 0).then_some(info.if_index),
            max_rx_queues: info.max_rx_queues,
            max_tx_queues: info.max_tx_queues,
            min_mtu: info.min_mtu,
            max_mtu: info.max_mtu,
            min_rx_buffer: info.min_rx_buffer,
            reta_size: info.reta_size,
            max_tx_segments: (info.max_tx_segments != 0).then_some(info.max_tx_segments),
            rx_offloads: RxOffloads::from_bits(info.rx_offloads),
            tx_offloads: TxOffloads::from_bits(info.tx_offloads),
            rss_types: RssTypes::from_bits(info.rss_types),
        })
    }

    /// Configures the port and all its queues, whose packets come from `pool`. The port must not be started.
    ///
    /// # Errors
    /// [`Error::PortState`], [`Error::QueueCount`], [`Error::MtuOutOfRange`], or [`Error::Call`] with the DPDK function that
    /// the driver refused.
    pub fn configure(
        &mut self,
        config: &PortConfig,
        pool: &Mempool,
    ) -> Result<AppliedConfig, Error> {
        if matches!(self.state, State::Started { .. }) {
            return Err(self.wrong_state("configure"));
        }
        let info = self.info()?;
        for (kind, asked, offered) in [
            (QueueKind::Rx, config.rx_queues, info.max_rx_queues),
            (QueueKind::Tx, config.tx_queues, info.max_tx_queues),
        ] {
            if asked == 0 || asked > offered {
                return Err(Error::QueueCount {
                    port: self.shared.name.clone(),
                    driver: info.driver,
                    kind,
                    asked,
                    offered,
                });
            }
        }
        if let Some(mtu) = config.mtu
            && !(info.min_mtu.max(1)..=info.max_mtu).contains(&mtu)
        {
            return Err(Error::MtuOutOfRange {
                port: self.shared.name.clone(),
                driver: info.driver,
                asked: mtu,
                min: info.min_mtu,
                max: info.max_mtu,
            });
        }
        let rss_types = if config.rx_queues > 1 {
            config.rss_types & info.rss_types
        } else {
            RssTypes::NONE
        };
        let rx_offloads = config.rx_offloads & info.rx_offloads;
        let tx_offloads = config.tx_offloads & info.tx_offloads;
        let id = self.shared.id;
        self.state = State::Probed;
        let conf = dpdk_sys::shim_port_conf {
            rx_offloads: rx_offloads.bits(),
            tx_offloads: tx_offloads.bits(),
            rss_types: rss_types.bits(),
            rx_queues: config.rx_queues,
            tx_queues: config.tx_queues,
            mtu: config.mtu.unwrap_or(0),
            loopback: config.loopback,
        };
        // SAFETY: a valid structure, and the port is stopped.
        let code = unsafe { dpdk_sys::shim_port_configure(id, &conf) };
        self.check("rte_eth_dev_configure", code)?;
        let (mut rx_descriptors, mut tx_descriptors) =
            (config.rx_descriptors, config.tx_descriptors);
        // SAFETY: places for the results.
        let code = unsafe {
            dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(id, &mut rx_descriptors, &mut tx_descriptors)
        };
        self.check("rte_eth_dev_adjust_nb_rx_tx_desc", code)?;
        for queue in 0..config.rx_queues {
            // SAFETY: the queue is within the configured number, the port is stopped, and pools live as long as EAL.
            let code =
                unsafe { dpdk_sys::shim_rx_queue_setup(id, queue, rx_descriptors, pool.as_ptr()) };
            self.check("rte_eth_rx_queue_setup", code)?;
        }
        for queue in 0..config.tx_queues {
            // SAFETY: as above.
            let code = unsafe { dpdk_sys::shim_tx_queue_setup(id, queue, tx_descriptors) };
            self.check("rte_eth_tx_queue_setup", code)?;
        }
        let mut mtu = 0;
        // SAFETY: a place for the result.
        let code = unsafe { dpdk_sys::rte_eth_dev_get_mtu(id, &mut mtu) };
        self.check("rte_eth_dev_get_mtu", code)?;
        self.state = State::Configured {
            rx_queues: config.rx_queues,
            tx_queues: config.tx_queues,
            promiscuous: config.promiscuous,
            all_multicast: config.all_multicast,
        };
        Ok(AppliedConfig {
            rx_descriptors,
            tx_descriptors,
            mtu,
            rx_offloads,
            tx_offloads,
            rss_types,
        })
    }

    /// Starts the port and hands out its queues. A driver without promiscuous or all-multicast mode does not fail this: see
    /// [`Port::is_promiscuous`].
    ///
    /// `net_af_packet` cannot be started a second time, since stopping closes its sockets: drop the port and probe it again.
    ///
    /// # Errors
    /// [`Error::PortState`] unless configured and stopped; [`Error::Call`].
    pub fn start(&mut self) -> Result<Queues, Error> {
        let State::Configured {
            rx_queues,
            tx_queues,
            promiscuous,
            all_multicast,
        } = self.state
        else {
            return Err(self.wrong_state("start"));
        };
        let id = self.shared.id;
        // SAFETY: the port is configured, all its queues are set up.
        let code = unsafe { dpdk_sys::rte_eth_dev_start(id) };
        self.check("rte_eth_dev_start", code)?;
        self.shared.started.store(true, Ordering::Relaxed);
        self.state = State::Started {
            rx_queues,
            tx_queues,
            promiscuous,
            all_multicast,
        };
        if promiscuous {
            // SAFETY: no preconditions.
            let code = unsafe { dpdk_sys::rte_eth_promiscuous_enable(id) };
            self.check_mode("rte_eth_promiscuous_enable", code)?;
        }
        if all_multicast {
            // SAFETY: no preconditions.
            let code = unsafe { dpdk_sys::rte_eth_allmulticast_enable(id) };
            self.check_mode("rte_eth_allmulticast_enable", code)?;
        }
        Ok(Queues {
            rx: (0..rx_queues)
                .map(|queue| RxQueue::new(&self.shared, queue))
                .collect(),
            tx: (0..tx_queues)
                .map(|queue| TxQueue::new(&self.shared, queue))
                .collect(),
        })
    }

    /// Stops the port; [`Port::start`] starts it again.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`] while queue handles exist: drop them first, in their threads. [`Error::PortState`] unless it is
    /// started; [`Error::Call`].
    pub fn stop(&mut self) -> Result<(), Error> {
        let State::Started {
            rx_queues,
            tx_queues,
            promiscuous,
            all_multicast,
        } = self.state
        else {
            return Err(self.wrong_state("stop"));
        };
        self.check_no_queues("stop")?;
        // SAFETY: no thread polls the port, for there are no queue handles.
        let code = unsafe { dpdk_sys::rte_eth_dev_stop(self.shared.id) };
        self.check("rte_eth_dev_stop", code)?;
        self.shared.started.store(false, Ordering::Relaxed);
        self.state = State::Configured {
            rx_queues,
            tx_queues,
            promiscuous,
            all_multicast,
        };
        Ok(())
    }

    /// Stops the port if need be and resets the device, as after a fatal error or a reset of the physical function below it.
    /// It must be configured anew.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`]; [`Error::Call`] with `ENOTSUP` for drivers that have no reset, the virtual ones among them.
    pub fn reset(&mut self) -> Result<(), Error> {
        self.check_no_queues("reset")?;
        if matches!(self.state, State::Started { .. }) {
            self.stop()?;
        }
        // SAFETY: the port is stopped.
        let code = unsafe { dpdk_sys::rte_eth_dev_reset(self.shared.id) };
        self.check("rte_eth_dev_reset", code)?;
        self.state = State::Probed;
        Ok(())
    }

    /// Stops and closes the port and unplugs its device, as dropping does, but with an answer.
    ///
    /// # Errors
    /// [`Error::QueuesInUse`] while queue handles exist: the port then closes with the last of them.
    pub fn close(mut self) -> Result<(), Error> {
        self.check_no_queues("close")?;
        if matches!(self.state, State::Started { .. }) {
            self.stop()?;
        }
        Ok(())
    }

    /// The port's MAC address.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn mac(&self) -> Result<MacAddr, Error> {
        let mut mac = [0; 6];
        // SAFETY: a place for six bytes.
        let code = unsafe { dpdk_sys::shim_port_mac(self.shared.id, mac.as_mut_ptr()) };
        self.check("rte_eth_macaddr_get", code)?;
        Ok(MacAddr(mac))
    }

    /// State of the link, without waiting for one to come up.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn link(&self) -> Result<LinkStatus, Error> {
        let mut link = dpdk_sys::shim_port_link::default();
        // SAFETY: a place for the result.
        let code = unsafe { dpdk_sys::shim_port_link(self.shared.id, &mut link) };
        self.check("rte_eth_link_get_nowait", code)?;
        Ok(LinkStatus {
            up: link.up,
            speed_mbps: (link.speed != 0 && link.speed != u32::MAX).then_some(link.speed),
            full_duplex: link.full_duplex,
        })
    }

    /// Whether the port receives frames for other MAC addresses too.
    #[must_use]
    pub fn is_promiscuous(&self) -> bool {
        // SAFETY: no preconditions.
        unsafe { dpdk_sys::rte_eth_promiscuous_get(self.shared.id) == 1 }
    }

    /// Adds a flow rule to the started port. Frames that no rule fits go where they went before.
    ///
    /// # Errors
    /// [`Error::FlowRule`].
    pub fn add_rule(&self, rule: &PppoeRule) -> Result<(), Error> {
        flow::add(self.shared.id, &self.shared.name, rule)
    }

    /// Removes all flow rules.
    pub fn flush_rules(&self) {
        flow::flush(self.shared.id);
    }

    /// Basic counters.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn stats(&self) -> Result<PortStats, Error> {
        port_stats::stats(self.shared.id, &self.shared.name)
    }

    /// Sets the basic counters to zero.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn reset_stats(&self) -> Result<(), Error> {
        // SAFETY: no preconditions.
        let code = unsafe { dpdk_sys::rte_eth_stats_reset(self.shared.id) };
        self.check("rte_eth_stats_reset", code)
    }

    /// All counters of the port, in the driver's order.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn xstats(&self) -> Result<Vec<Xstat>, Error> {
        port_stats::xstats(self.shared.id, &self.shared.name)
    }

    fn check(&self, function: &'static str, code: i32) -> Result<(), Error> {
        if code >= 0 {
            return Ok(());
        }
        let object = format!("port {}", self.shared.name);
        check(function, &object, code).map(drop)
    }

    /// For a receive mode a started port was asked for: a driver that has none is no failure, anything else stops the port.
    fn check_mode(&mut self, function: &'static str, code: i32) -> Result<(), Error> {
        if code >= 0 || Errno::from_code(code) == Errno::NOTSUP {
            return Ok(());
        }
        let failed = self.check(function, code);
        self.stop()?;
        failed
    }

    fn wrong_state(&self, operation: &'static str) -> Error {
        Error::PortState {
            port: self.shared.name.clone(),
            operation,
            state: self.state.name(),
        }
    }

    fn check_no_queues(&mut self, operation: &'static str) -> Result<(), Error> {
        // get_mut, unlike a look at the count, also waits for what other threads did with their handles before they dropped
        // them.
        if Arc::get_mut(&mut self.shared).is_some() {
            return Ok(());
        }
        Err(Error::QueuesInUse {
            port: self.shared.name.clone(),
            operation,
            queues: Arc::strong_count(&self.shared).saturating_sub(1),
        })
    }
}
