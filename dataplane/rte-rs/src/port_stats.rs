//! Port counters.

use std::ffi::CStr;

use dpdk_sys::{rte_eth_xstat, rte_eth_xstat_name};

use crate::error::{Error, check};

/// A port's basic counters since it was started or its counters were reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortStats {
    /// Packets received.
    pub rx_packets: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes received, without the frame check sequence.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Packets the device dropped because a receive queue was full.
    pub rx_missed: u64,
    /// Erroneous packets received.
    pub rx_errors: u64,
    /// Packets that failed to be sent.
    pub tx_errors: u64,
    /// Receptions that failed for want of an mbuf.
    pub rx_no_mbuf: u64,
}

/// One extended counter of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xstat {
    /// The driver's name for it, for example `rx_good_packets`.
    pub name: String,
    /// Its value.
    pub value: u64,
}

pub(crate) fn stats(port: u16, name: &str) -> Result<PortStats, Error> {
    let mut stats = dpdk_sys::shim_port_stats::default();
    // SAFETY: `stats` is a valid place for the result.
    let code = unsafe { dpdk_sys::shim_port_stats(port, &mut stats) };
    check("rte_eth_stats_get", name, code)?;
    Ok(PortStats {
        rx_packets: stats.rx_packets,
        tx_packets: stats.tx_packets,
        rx_bytes: stats.rx_bytes,
        tx_bytes: stats.tx_bytes,
        rx_missed: stats.rx_missed,
        rx_errors: stats.rx_errors,
        tx_errors: stats.tx_errors,
        rx_no_mbuf: stats.rx_no_mbuf,
    })
}

pub(crate) fn xstats(port: u16, name: &str) -> Result<Vec<Xstat>, Error> {
    // SAFETY: a null array of length 0 asks for the number of counters.
    let count = unsafe { dpdk_sys::rte_eth_xstats_get_names(port, std::ptr::null_mut(), 0) };
    let count = check("rte_eth_xstats_get_names", name, count)? as u32;
    let mut names = vec![rte_eth_xstat_name { name: [0; 64] }; count as usize];
    // SAFETY: `names` has room for `count` names.
    let got = unsafe { dpdk_sys::rte_eth_xstats_get_names(port, names.as_mut_ptr(), count) };
    names.truncate(check("rte_eth_xstats_get_names", name, got)? as usize);
    let mut values = vec![rte_eth_xstat { id: 0, value: 0 }; count as usize];
    // SAFETY: `values` has room for `count` counters.
    let got = unsafe { dpdk_sys::rte_eth_xstats_get(port, values.as_mut_ptr(), count) };
    values.truncate(check("rte_eth_xstats_get", name, got)? as usize);
    Ok(values
        .iter()
        .filter_map(|xstat| {
            let name = names.get(usize::try_from(xstat.id).ok()?)?;
            // SAFETY: reading characters as bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts(name.name.as_ptr().cast::<u8>(), name.name.len())
            };
            let name = CStr::from_bytes_until_nul(bytes).ok()?;
            Some(Xstat {
                name: name.to_string_lossy().into_owned(),
                value: xstat.value,
            })
        })
        .collect())
}
