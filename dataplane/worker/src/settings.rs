//! What workers are started with, from the configuration.

use anyhow::{Context, Result};
use bng_config::{Coalesced, Coalescing, Config, PortRole};
use bng_dataplane::ports::LivePort;
use bng_fastpath::coalesce::{self, Protocols};
use bng_fastpath::{FirstFragments, NatLimits, NatTimers, OtherProtocols, Settings, VlanRange};
use std::sync::Arc;

/// The port as the stages see it.
pub(crate) fn stage_port(port: &LivePort, access_index: u8) -> bng_fastpath::Port {
    bng_fastpath::Port {
        mac: bng_wire::MacAddr(port.mac),
        mtu: port.mtu,
        role: match port.role {
            PortRole::Access => bng_fastpath::PortRole::Access {
                index: access_index,
            },
            PortRole::Core => bng_fastpath::PortRole::Core,
        },
    }
}

/// ICMP echo requests to the gateway address one worker answers per second.
const ECHO_PER_SECOND: u32 = 1_000;
/// Requests to resolve a neighbour one worker makes per second.
const RESOLVE_PER_SECOND: u32 = 100;

/// The VLANs served on a port; none: all.
fn served(port: &bng_config::Port) -> Vec<VlanRange> {
    let entries = port.vlans.iter();
    entries
        .map(|entry| VlanRange {
            s_vlan: entry.s_vlan.bounds(),
            c_vlan: entry.c_vlan.bounds(),
        })
        .collect()
}

/// A secret.
fn random() -> Result<u64> {
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).context("random seed")?;
    Ok(u64::from_ne_bytes(seed))
}

/// The tables that all workers share.
pub(crate) fn shared_tables() -> Result<(Arc<FirstFragments>, Arc<OtherProtocols>)> {
    let fragments = FirstFragments::new(random()?);
    let others = OtherProtocols::new(random()?);
    Ok((Arc::new(fragments), Arc::new(others)))
}

/// What the stages are started with.
pub(crate) fn settings(
    config: &Config,
    ports: &[bng_fastpath::Port],
    (fragments, other_protocols): &(Arc<FirstFragments>, Arc<OtherProtocols>),
) -> Result<Settings> {
    let timers = &config.nat.timers;
    let seconds = |s: u32| u16::try_from(s).unwrap_or(u16::MAX);
    let seed = random()?;
    let workers = u32::try_from(config.dataplane.workers.len()).unwrap_or(u32::MAX);
    Ok(Settings {
        ports: ports.to_vec(),
        vlans: config.dataplane.ports.iter().map(served).collect(),
        nat_mappings: config.nat.max_mappings.div_ceil(workers.max(1)),
        nat_timers: NatTimers {
            udp: seconds(timers.udp_s),
            icmp: seconds(timers.icmp_s),
            tcp_established: seconds(timers.tcp_established_s),
            tcp_transitory: seconds(timers.tcp_transitory_s),
        },
        nat_limits: NatLimits {
            mappings: config.nat.limits.mappings,
            new_per_second: config.nat.limits.new_per_second,
        },
        echo_per_second: ECHO_PER_SECOND,
        resolve_per_second: RESOLVE_PER_SECOND,
        punts_per_second: config.pppoe.punts_per_second_per_session,
        icmp_errors_per_second: config.dataplane.icmp_errors_per_second,
        fragments: Arc::clone(fragments),
        other_protocols: Arc::clone(other_protocols),
        seed,
    })
}

/// What is coalesced.
pub(crate) fn coalescing(config: &Config) -> coalesce::Settings {
    let wanted = &config.dataplane.coalescing;
    let protocols = |Coalesced { tcp, udp }| Protocols { tcp, udp };
    let ports = config.dataplane.ports.iter();
    coalesce::Settings {
        upstream: protocols(wanted.upstream),
        downstream: protocols(wanted.downstream),
        ipv4: wanted.ipv4,
        ipv6: wanted.ipv6,
        ports_off: ports.map(|port| !port.coalescing).collect(),
        hold_ns: u64::from(wanted.hold_us) * 1_000,
        max_frames: wanted.max_frames,
        verify: wanted.verify_checksums,
    }
}

/// The same in words, for the log: what `bngctl` shows is what control was started with.
pub(crate) fn coalescing_in_words(wanted: &Coalescing) -> String {
    if !wanted.is_on() {
        return "off".to_owned();
    }
    let chosen = |names: &[(&'static str, bool)]| {
        let names = names.iter().filter(|(_, is_on)| *is_on);
        let names: Vec<_> = names.map(|(name, _)| *name).collect();
        match names.is_empty() {
            true => "off".to_owned(),
            false => names.join(" and "),
        }
    };
    let protocols = |Coalesced { tcp, udp }| chosen(&[("TCP", tcp), ("UDP", udp)]);
    format!(
        "upstream {}, downstream {}, {}, hold time {} us, at most {} frames, checksums {}",
        protocols(wanted.upstream),
        protocols(wanted.downstream),
        chosen(&[("IPv4", wanted.ipv4), ("IPv6", wanted.ipv6)]),
        wanted.hold_us,
        wanted.max_frames,
        match wanted.verify_checksums {
            true => "verified",
            false => "not verified",
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_coalesced_is_said_in_a_line() {
        let off = Coalescing::default();
        assert_eq!(coalescing_in_words(&off), "off");
        let tcp = Coalesced {
            tcp: true,
            udp: false,
        };
        let some = Coalescing {
            upstream: tcp,
            ipv4: false,
            hold_us: 50,
            verify_checksums: false,
            ..off
        };
        assert_eq!(
            coalescing_in_words(&some),
            "upstream TCP, downstream off, IPv6, hold time 50 us, at most 64 frames, checksums not verified"
        );
        let all = Coalesced {
            tcp: true,
            udp: true,
        };
        let all = Coalescing {
            upstream: all,
            downstream: all,
            ..off
        };
        assert_eq!(
            coalescing_in_words(&all),
            "upstream TCP and UDP, downstream TCP and UDP, IPv4 and IPv6, hold time 0 us, at most 64 frames, checksums verified"
        );
    }
}
