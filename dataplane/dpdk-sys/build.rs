//! Finds libdpdk with pkg-config, compiles the C shim and generates the bindings from `shim/shim.h`.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// The oldest release whose API the shim is written for.
const OLDEST_DPDK: &str = "22.11";

/// DPDK functions called as they are: out of line, with plain arguments. Everything else goes through the shim.
const DPDK_FUNCTIONS: &[&str] = &[
    "rte_eal_init",
    "rte_eal_cleanup",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_strerror",
    "rte_version",
    "rte_pktmbuf_pool_create",
    "rte_pktmbuf_free_bulk",
    "rte_mempool_avail_count",
    "rte_mempool_in_use_count",
    "rte_ring_create",
    "rte_ring_free",
    "rte_dev_probe",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_dev_get_mtu",
    "rte_eth_dev_reset",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_allmulticast_enable",
    "rte_eth_promiscuous_enable",
    "rte_eth_promiscuous_get",
    "rte_eth_stats_reset",
    "rte_eth_xstats_get",
    "rte_eth_xstats_get_names",
    "rte_fib_delete",
    "rte_fib_free",
    "rte_fib_lookup_bulk",
    "rte_fib6_free",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=shim/shim.c");
    println!("cargo::rerun-if-changed=shim/shim.h");
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo::error={error}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    let dpdk = pkg_config::Config::new()
        .atleast_version(OLDEST_DPDK)
        .probe("libdpdk")
        .map_err(|cause| {
            let missing = format!(
                "libdpdk {OLDEST_DPDK} or later was not found: install the DPDK development files (Debian and Ubuntu: \
                 libdpdk-dev, Fedora: dpdk-devel) and pkg-config, or point PKG_CONFIG_PATH at libdpdk.pc"
            );
            match cause {
                // pkg-config ran and does not know it, or knows an older one.
                pkg_config::Error::Failure { .. } | pkg_config::Error::ProbeFailure { .. } => missing,
                other => {
                    // Cargo shows an error only when it is one line.
                    let cause = other.to_string();
                    format!("{missing} ({})", cause.split_whitespace().collect::<Vec<_>>().join(" "))
                }
            }
        })?;

    let mut flags = vec!["-include".to_owned(), "rte_config.h".to_owned()];
    // DPDK's headers use SSE4.2 on x86-64; libdpdk.pc asks for it with -march, which the pkg-config crate leaves out.
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
        let v3 = features.split(',').any(|feature| feature == "avx2");
        flags.push(
            if v3 {
                "-march=x86-64-v3"
            } else {
                "-march=corei7"
            }
            .to_owned(),
        );
    }

    let mut shim = cc::Build::new();
    shim.file("shim/shim.c")
        .std("gnu11")
        .opt_level(3)
        // Functions marked experimental in 22.11 are not used; a deprecated one must not pass unseen.
        .flag("-Werror=deprecated-declarations")
        // DPDK's own headers are not clean under -Wextra.
        .extra_warnings(false);
    for path in &dpdk.include_paths {
        shim.flag("-isystem").flag(path);
    }
    for flag in &flags {
        shim.flag(flag);
    }
    shim.try_compile("dpdk_shim")?;

    let mut bindings = bindgen::Builder::default()
        .header("shim/shim.h")
        .allowlist_function("shim_.*")
        .allowlist_type("shim_.*")
        .allowlist_var("SHIM_.*")
        // Read and written in place by Rust; everything larger is filled in C.
        .allowlist_type("rte_eth_xstat")
        .allowlist_type("rte_eth_xstat_name")
        .opaque_type("rte_mbuf")
        .opaque_type("rte_mempool")
        .opaque_type("rte_ring")
        .opaque_type("rte_fib")
        .opaque_type("rte_fib6")
        .rust_edition(bindgen::RustEdition::Edition2024)
        .use_core()
        .generate_comments(false)
        .derive_default(true)
        .layout_tests(true)
        .clang_args(&flags);
    for function in DPDK_FUNCTIONS {
        bindings = bindings.allowlist_function(function);
    }
    for path in &dpdk.include_paths {
        bindings = bindings.clang_arg(format!("-isystem{}", path.display()));
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    bindings
        .generate()?
        .write_to_file(out.join("bindings.rs"))?;
    Ok(())
}
