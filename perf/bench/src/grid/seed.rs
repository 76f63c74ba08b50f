//! Figures of others that ours are set beside, as printed by their authors.

/// Gbit/s of 1492-byte IP packets in one Mpps.
pub(super) const GBPS_PER_MPPS: f64 = 11.936;

/// A row of the seed's tables 1.1 to 1.3: PPPoE receive in Linux, IP-layer Gbit/s, total of all cores. 1492-byte IP
/// packets from a multiqueue TAP through PPPoE to PPP, senders on the same cores, 16 vCPUs of a KVM guest on E-cores,
/// median of 12.
pub(super) struct SeedRow {
    pub(super) cores: u8,
    /// Both locks.
    pub(super) both: f64,
    /// The lock of the PPP receive path alone.
    pub(super) ppp: f64,
    /// The lock of the PPPoE socket alone.
    pub(super) socket: f64,
    /// No lock.
    pub(super) none: f64,
}

const fn row(cores: u8, both: f64, ppp: f64, socket: f64, none: f64) -> SeedRow {
    SeedRow {
        cores,
        both,
        ppp,
        socket,
        none,
    }
}

pub(super) const SEED: [SeedRow; 5] = [
    row(1, 19.08, 19.63, 19.45, 19.89),
    row(2, 31.52, 33.77, 33.29, 34.92),
    row(4, 53.67, 63.48, 61.72, 67.01),
    row(8, 39.79, 51.50, 44.46, 123.76),
    row(16, 49.40, 61.33, 54.62, 220.48),
];

/// The seed's best single core, Gbit/s of IP.
pub(super) const SEED_BEST_CORE_GBPS: f64 = 19.89;

/// VPP 26.06 with its pppoe plugin and nat44-ed, in memory, generation excluded: clocks of a 2.1 GHz time-stamp counter
/// per 60-byte frame, one worker.
pub(super) struct Vpp {
    pub(super) sessions: u32,
    pub(super) flows: u32,
    pub(super) up: f64,
    pub(super) down: f64,
}

pub(super) const VPP: [Vpp; 2] = [
    Vpp {
        sessions: 1_000,
        flows: 65_536,
        up: 364.0,
        down: 418.0,
    },
    Vpp {
        sessions: 10_000,
        flows: 65_536,
        up: 505.0,
        down: 572.0,
    },
];
/// VPP's plain IPv4 forwarding on the same terms: at 1,000 and at 10,000 sessions' worth of addresses.
pub(super) const VPP_PLAIN: [f64; 2] = [58.0, 66.0];
