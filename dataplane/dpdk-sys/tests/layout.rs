//! The structures that Rust reads and writes in place are laid out as C says.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::mem::{offset_of, size_of};

use dpdk_sys::*;

/// Field name to (offset, size), as the C compiler sees it.
fn fields_in_c(
    list: unsafe extern "C" fn(*mut usize) -> *const shim_field,
) -> BTreeMap<String, (usize, usize)> {
    let mut count = 0;
    // SAFETY: the shim returns a static array and stores its length.
    let fields = unsafe { std::slice::from_raw_parts(list(&mut count), count) };
    fields
        .iter()
        .map(|field| {
            // SAFETY: the names are static C strings.
            let name = unsafe { CStr::from_ptr(field.name) };
            (
                name.to_string_lossy().into_owned(),
                (field.offset, field.size),
            )
        })
        .collect()
}

fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! fields_in_rust {
    ($structure:ident: $($field:ident)+) => {
        BTreeMap::from([$((
            stringify!($field).to_owned(),
            (
                offset_of!($structure, $field),
                size_of_field(|value: &$structure| &value.$field),
            ),
        )),+])
    };
}

#[test]
fn mbuf_view_matches_rte_mbuf() {
    // SAFETY: no preconditions.
    assert_eq!(size_of::<shim_mbuf>(), unsafe { shim_rte_mbuf_size() });
    assert_eq!(size_of::<rte_mbuf>(), size_of::<shim_mbuf>());
    assert_eq!(align_of::<rte_mbuf>(), align_of::<shim_mbuf>());
    let rust = fields_in_rust!(shim_mbuf:
        buf_addr data_off refcnt nb_segs port ol_flags packet_type pkt_len data_len vlan_tci hash_rss hash_fdir_hi
        vlan_tci_outer buf_len pool next tx_offload shinfo priv_size timesync dynfield1);
    assert_eq!(rust, fields_in_c(shim_rte_mbuf_fields));
}

#[test]
fn xstat_structures_match() {
    // SAFETY: no preconditions.
    let (xstat, name) = unsafe { (shim_rte_eth_xstat_size(), shim_rte_eth_xstat_name_size()) };
    assert_eq!(size_of::<rte_eth_xstat>(), xstat);
    assert_eq!(size_of::<rte_eth_xstat_name>(), name);
    let rust = fields_in_rust!(rte_eth_xstat: id value);
    assert_eq!(rust, fields_in_c(shim_rte_eth_xstat_fields));
}

#[test]
fn flags_keep_all_64_bits() {
    // Bits that DPDK has used for these since long before 22.11; a truncated constant would read as zero.
    assert_eq!(SHIM_MBUF_TX_VLAN, 1 << 57);
    assert_eq!(SHIM_MBUF_RX_RSS_HASH, 1 << 1);
    assert_eq!(SHIM_RSS_L3_SRC_ONLY, 1 << 63);
    assert_eq!(SHIM_RSS_PPPOE, 1 << 31);
}
