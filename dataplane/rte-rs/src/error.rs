//! What can go wrong outside the packet path, with the facts an operator needs.

use std::ffi::{CStr, CString};
use std::fmt;

use crate::port_config::QueueKind;

/// An errno value as DPDK reports it: the system's numbers and a few of DPDK's own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// `EPERM`: not permitted; also what `-1` from a driver means, which is no reason at all.
    pub const PERM: Errno = Errno(1);
    /// `ENOENT`: no such file, interface or route.
    pub const NOENT: Errno = Errno(2);
    /// `EFAULT`: bad address; from `rte_dev_probe`, a name that means nothing.
    pub const FAULT: Errno = Errno(14);
    /// `ENOMEM`: no memory.
    pub const NOMEM: Errno = Errno(12);
    /// `EEXIST`: an object of this name exists.
    pub const EXIST: Errno = Errno(17);
    /// `ENODEV`: no such device.
    pub const NODEV: Errno = Errno(19);
    /// `EINVAL`: invalid argument.
    pub const INVAL: Errno = Errno(22);
    /// `ENOSPC`: a table is full.
    pub const NOSPC: Errno = Errno(28);
    /// `ENAMETOOLONG`: a name is too long.
    pub const NAMETOOLONG: Errno = Errno(36);
    /// `EPROTO`: this DPDK is not laid out as expected.
    pub const PROTO: Errno = Errno(71);
    /// `ENOTSUP`: the device or its driver cannot do this.
    pub const NOTSUP: Errno = Errno(95);

    /// The calling thread's `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local variable.
        Errno(unsafe { dpdk_sys::shim_rte_errno() })
    }

    /// The errno in the negative return code of a DPDK function.
    pub(crate) fn from_code(code: i32) -> Self {
        Errno(code.saturating_neg())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: rte_strerror returns a NUL-terminated string, static or in a buffer of the calling thread, which stays as
        // it is until this thread's next call.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(self.0)) };
        write!(f, "{} (errno {})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why an operation on EAL, a port, a pool, a ring or a FIB failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `rte_eal_init` works once per process, also when it failed.
    #[error("EAL was initialised before: it starts once per process")]
    EalInitialisedBefore,
    /// `rte_eal_init` failed; its own log on stderr says more.
    #[error("rte_eal_init failed: {errno}; the arguments were: {arguments}")]
    EalInit {
        /// The arguments, joined by blanks.
        arguments: String,
        /// What EAL gave as the reason.
        errno: Errno,
    },
    /// The calling thread's CPU affinity could not be read or restored.
    #[error("the calling thread's CPU affinity could not be {action}: errno {errno}")]
    Affinity {
        /// `read` or `restored`.
        action: &'static str,
        /// The system's errno.
        errno: i32,
    },
    /// The thread has an lcore id already: it started EAL, or it is registered.
    #[error("the calling thread is an EAL thread already (lcore {lcore})")]
    ThreadRegisteredBefore {
        /// Its lcore id.
        lcore: u32,
    },
    /// A name or argument that goes to C contains a NUL byte.
    #[error("{text:?} contains a NUL byte")]
    NulByte {
        /// The text.
        text: String,
    },
    /// No device of this name exists, or no driver claims it.
    #[error(
        "no such device: {device:?} (a PCI address of a device bound to a DPDK-capable driver, or a virtual device such as \
         net_af_packet0,iface=eth1)"
    )]
    NoSuchDevice {
        /// The device as it was asked for.
        device: String,
    },
    /// The device's driver refused it without giving a reason; its log on stderr says more.
    #[error(
        "device {device:?} was refused by its driver (see the driver's log lines above; often a wrong argument or interface)"
    )]
    DeviceRefused {
        /// The device as it was asked for.
        device: String,
    },
    /// The port of this device is in use in this process.
    #[error("device {device:?} (port {port}) is in use already")]
    PortInUse {
        /// The device as it was asked for.
        device: String,
        /// The port number of its port.
        port: u16,
    },
    /// More queues than the port has, or none.
    #[error("port {port} ({driver}) was asked for {asked} {kind} queues and offers 1 to {offered}")]
    QueueCount {
        /// Port name.
        port: String,
        /// Driver name.
        driver: String,
        /// Which direction.
        kind: QueueKind,
        /// How many were asked for.
        asked: u16,
        /// How many there can be.
        offered: u16,
    },
    /// The MTU is outside what the port can be configured for.
    #[error("port {port} ({driver}) was asked for MTU {asked} and accepts {min} to {max}")]
    MtuOutOfRange {
        /// Port name.
        port: String,
        /// Driver name.
        driver: String,
        /// The MTU asked for.
        asked: u16,
        /// The smallest accepted.
        min: u16,
        /// The largest accepted.
        max: u16,
    },
    /// The port is not in a state for this: for example it is started, or not configured.
    #[error("port {port}: cannot {operation} while the port is {state}")]
    PortState {
        /// Port name.
        port: String,
        /// What was asked for.
        operation: &'static str,
        /// The state the port is in.
        state: &'static str,
    },
    /// Queue handles of the port exist, so that a thread may be polling it.
    #[error("port {port}: cannot {operation} while {queues} of its queue handles exist")]
    QueuesInUse {
        /// Port name.
        port: String,
        /// What was asked for.
        operation: &'static str,
        /// How many handles there are.
        queues: usize,
    },
    /// A next hop that does not fit the FIB's next-hop size.
    #[error("FIB {fib}: next hop {next_hop} is larger than {max}, the largest of its size")]
    NextHopTooLarge {
        /// FIB name.
        fib: String,
        /// The value given.
        next_hop: u64,
        /// The largest value.
        max: u64,
    },
    /// EAL's memory does not hold a FIB.
    #[error("FIB {fib} of {routes} routes does not fit EAL's memory: it needs about {mib} MiB")]
    FibMemory {
        /// FIB name.
        fib: String,
        /// Routes it was to hold.
        routes: u32,
        /// MiB it needs.
        mib: u64,
    },
    /// The driver takes no such flow rule.
    #[error("port {port}: flow rule refused: {why} ({errno})")]
    FlowRule {
        /// Port name.
        port: String,
        /// The driver's reason, if it gave one.
        why: String,
        /// The reason as an errno.
        errno: Errno,
    },
    /// Any other DPDK function that failed.
    #[error("{function} failed for {object}: {errno}")]
    Call {
        /// The DPDK function.
        function: &'static str,
        /// The port, pool, ring or route it was called for.
        object: String,
        /// The reason.
        errno: Errno,
    },
}

/// Turns the return code of a DPDK function (negative errno) into an error that names the call.
pub(crate) fn check(function: &'static str, object: &str, code: i32) -> Result<i32, Error> {
    if code >= 0 {
        return Ok(code);
    }
    Err(Error::Call {
        function,
        object: object.to_owned(),
        errno: Errno::from_code(code),
    })
}

pub(crate) fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::NulByte {
        text: text.to_owned(),
    })
}
