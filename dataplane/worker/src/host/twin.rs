//! The kernel's side of a core port: its TAP device.

use super::bell::Room;
use super::kernel_packets::KernelPackets;
use super::virtio::VirtioHeader;
use crate::ports::LivePort;
use crate::super_packet::PIECES;
use arrayvec::ArrayVec;
use bng_fastpath::coalesce::{Ids, Protocols};
use bng_fastpath::segment::{Cwr, How, Segmenter};
use rte_rs::{Mbuf, Producer, ol_flags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::sync::Arc;
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

/// The kernel's side of a core port.
pub struct Twin {
    /// Index of the port.
    pub(super) port: u8,
    /// Name of the port.
    pub(super) name: String,
    pub(super) device: SyncDevice,
    /// To the worker that sends on the port.
    pub(super) out: Producer,
    pub(super) room: Arc<Room>,
    /// With offloads, every packet has a virtio header.
    pub(super) offloads: Option<Offloads>,
    /// A frame cut from a super-packet that the kernel does not take.
    scratch: Vec<u8>,
}

/// What a twin with offloads does besides.
pub(super) struct Offloads {
    /// Whether the kernel takes and sends super-packets of UDP.
    pub(super) udp: bool,
    /// What comes from it.
    pub(super) packets: KernelPackets,
}

/// What became of a packet for the kernel, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Written {
    /// Frames it took.
    pub(super) taken: u64,
    /// Frames it refused.
    pub(super) refused: u64,
    /// Super-packets it took in one piece.
    pub(super) supers: u64,
}

/// What is wrong with a twin.
#[derive(Debug, thiserror::Error)]
pub enum TwinError {
    /// It could not be made.
    #[error("TAP twin of port {port}: {advice}")]
    Create {
        /// Name of the port and of the twin.
        port: String,
        /// What to do.
        advice: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Somebody deleted it. A new process makes a new one; the sessions go on with it.
    #[error("TAP twin of port {port} was deleted under bng-dataplane, which must start again")]
    Deleted {
        /// Name of the port and of the twin.
        port: String,
    },
}

/// What an operator can do about a refused twin.
fn advice(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::INVAL | Errno::BUSY | Errno::EXIST) => {
            "an interface of this name exists already; remove it or rename the port"
        }
        Some(Errno::PERM | Errno::ACCESS) => "making interfaces needs CAP_NET_ADMIN",
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO | Errno::NOTTY) => {
            "/dev/net/tun is missing; load the kernel module tun (modprobe tun)"
        }
        _ => "the kernel refuses it",
    }
}

/// A TAP device that is up. With `offloads`, every packet has a virtio header.
pub(super) fn tap(name: &str, mac: [u8; 6], mtu: u16, offloads: bool) -> io::Result<SyncDevice> {
    DeviceBuilder::new()
        .name(name)
        .layer(Layer::L2)
        .mac_addr(mac)
        .mtu(mtu)
        .offload(offloads)
        .build_sync()
}

impl Twin {
    /// Makes the TAP device named after the port, with the port's MAC address and MTU, and brings it up. `offloads`: with
    /// virtio headers, if the kernel has them; what it has not is logged and done without.
    ///
    /// # Errors
    /// The name is taken by another kind of interface, or the process may not make interfaces.
    pub fn create(
        index: u8,
        port: &mut LivePort,
        offloads: bool,
        out: Producer,
        room: Arc<Room>,
    ) -> Result<Self, TwinError> {
        let failed = |source| TwinError::Create {
            port: port.name.clone(),
            advice: advice(&source),
            source,
        };
        let build = |offloads| tap(&port.name, port.mac, port.mtu, offloads);
        let device = match build(offloads) {
            Err(error) if offloads => {
                // If it was something else, it is again.
                let device = build(false).map_err(failed)?;
                tracing::warn!(
                    "TAP twin of port {}: the kernel has no offloads for it ({error}); it gets and sends single frames",
                    port.name
                );
                device
            }
            other => other.map_err(failed)?,
        };
        device.set_nonblocking(true).map_err(failed)?;
        port.twin_ifindex = device.if_index().map_err(failed)?;
        let twin = Self::over(index, &port.name, device, out, room);
        if let Some(offloads) = &twin.offloads {
            tracing::info!(
                "TAP twin of port {}: super-packets of TCP{}",
                port.name,
                if offloads.udp {
                    " and UDP"
                } else {
                    "; the kernel has none of UDP (since Linux 6.2)"
                }
            );
        }
        Ok(twin)
    }

    /// The twin that is this device.
    pub(super) fn over(
        index: u8,
        name: &str,
        device: SyncDevice,
        out: Producer,
        room: Arc<Room>,
    ) -> Self {
        let offloads = device.tcp_gso().then(|| Offloads {
            udp: device.udp_gso(),
            packets: KernelPackets::new(),
        });
        Self {
            port: index,
            name: name.to_owned(),
            device,
            out,
            room,
            offloads,
            scratch: Vec::new(),
        }
    }

    /// Of which protocols the kernel takes super-packets in one piece. It gets others as frames.
    #[must_use]
    pub fn supers(&self) -> Protocols {
        let offloads = self.offloads.as_ref();
        Protocols {
            tcp: offloads.is_some(),
            udp: offloads.is_some_and(|offloads| offloads.udp),
        }
    }

    /// Whether a packet of the kernel is here still, or a part of it.
    pub(super) fn has_packet(&self) -> bool {
        let offloads = self.offloads.as_ref();
        offloads.is_some_and(|offloads| !offloads.packets.is_empty())
    }

    /// Gives the kernel a frame or a super-packet.
    pub(super) fn write(&mut self, mbuf: &Mbuf) -> Written {
        if !mbuf.is_super() {
            return written(self.write_frame(mbuf.data()), 1);
        }
        let mut pieces: ArrayVec<&[u8], PIECES> = ArrayVec::new();
        if mbuf.segments().any(|piece| pieces.try_push(piece).is_err()) {
            return written(Err(Errno::MSGSIZE), mbuf.frames().into());
        }
        let Protocols { tcp, udp } = self.supers();
        let is_tcp = mbuf.ol_flags() & ol_flags::TX_TCP_SEG != 0;
        if if is_tcp { tcp } else { udp } {
            let outcome = self.write_pieces(VirtioHeader::of_super(mbuf), &pieces);
            let supers = u64::from(outcome.is_ok());
            Written {
                supers,
                ..written(outcome, mbuf.frames().into())
            }
        } else {
            self.write_cut(mbuf, &pieces)
        }
    }

    fn write_frame(&self, frame: &[u8]) -> Result<(), Errno> {
        if self.offloads.is_some() {
            self.write_pieces(VirtioHeader::PLAIN, &[frame])
        } else {
            rustix::io::write(&self.device, frame).map(drop)
        }
    }

    fn write_pieces(&self, header: VirtioHeader, pieces: &[&[u8]]) -> Result<(), Errno> {
        let header = header.to_bytes();
        let mut slices: ArrayVec<IoSlice<'_>, { PIECES + 1 }> = ArrayVec::new();
        slices.push(IoSlice::new(&header));
        slices.extend(pieces.iter().take(PIECES).map(|piece| IoSlice::new(piece)));
        rustix::io::writev(&self.device, &slices).map(drop)
    }

    /// A super-packet frame by frame.
    fn write_cut(&mut self, mbuf: &Mbuf, pieces: &[&[u8]]) -> Written {
        let refused = written(Err(Errno::INVAL), mbuf.frames().into());
        let Some((first, others)) = pieces.split_first() else {
            return refused;
        };
        // As `merge` made it: without CWR.
        let how = How {
            segment: mbuf.tx_lengths().segment,
            ids: Ids::Rising,
            cwr: Cwr::Every,
        };
        let Ok(segmenter) = Segmenter::new(first, others, how) else {
            return refused;
        };
        let mut all = Written::default();
        let mut frame = std::mem::take(&mut self.scratch);
        for at in 0..segmenter.len() {
            frame.resize(segmenter.frame_len(at), 0);
            let is_cut = segmenter.write(at, &mut frame);
            match is_cut.then(|| self.write_frame(&frame)) {
                Some(Ok(())) => all.taken += 1,
                _ => all.refused += 1,
            }
        }
        self.scratch = frame;
        all
    }
}

fn written(outcome: Result<(), Errno>, frames: u64) -> Written {
    match outcome {
        Ok(()) => Written {
            taken: frames,
            ..Written::default()
        },
        Err(_) => Written {
            refused: frames,
            ..Written::default()
        },
    }
}
