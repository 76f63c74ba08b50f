//! What REST shows. Field names are the interface; times are Unix milliseconds, ages milliseconds, bytes IP bytes.

use std::net::{Ipv4Addr, Ipv6Addr};

use bng_pppoe::codec::nd::link_local;
use bng_pppoe::{SessionInfo, SessionRecord};
use bng_shm::StatsCopy;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::grants::Holding;
use crate::networks;
use crate::policy_view::PolicyView;
use crate::publish::{Clock, table_vlans};
use crate::sessions::{Ended, Live, state_name};
use crate::settings::Settings;

/// A port block on a public address.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NatBlockView {
    /// Public address.
    #[schema(value_type = String)]
    pub address: Ipv4Addr,
    /// First port of the block.
    pub first_port: u16,
    /// Last port of the block.
    pub last_port: u16,
    /// Further blocks on the same address, in the order they were given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<PortsView>,
}

/// A range of ports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortsView {
    /// First port.
    pub first_port: u16,
    /// Last port.
    pub last_port: u16,
}

impl NatBlockView {
    /// The blocks of a holding, if it has any.
    #[must_use]
    pub fn of(holding: &Holding) -> Option<Self> {
        let ports = |block: bng_shm::PortBlock| PortsView {
            first_port: block.first_port,
            // Whole blocks end at port 65,535 at the latest.
            last_port: block.first_port + block.size.saturating_sub(1),
        };
        let mut blocks = holding.published_blocks();
        let first = blocks.next()?;
        let PortsView {
            first_port,
            last_port,
        } = ports(first);
        Some(Self {
            address: first.address,
            first_port,
            last_port,
            further: blocks.map(ports).collect(),
        })
    }
}

/// Packets and IP bytes of a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TrafficView {
    /// Packets from the subscriber.
    pub upstream_packets: u64,
    /// Their IP bytes.
    pub upstream_bytes: u64,
    /// Packets to the subscriber.
    pub downstream_packets: u64,
    /// Their IP bytes.
    pub downstream_bytes: u64,
}

impl From<&StatsCopy> for TrafficView {
    fn from(stats: &StatsCopy) -> Self {
        Self {
            upstream_packets: stats.up_packets,
            upstream_bytes: stats.up_bytes,
            downstream_packets: stats.down_packets,
            downstream_bytes: stats.down_bytes,
        }
    }
}

/// A session in a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionView {
    /// Access port and session id, such as `access0-4660`.
    pub id: String,
    /// Name of the access port.
    pub port: String,
    /// PPPoE session id.
    pub session_id: u16,
    /// `negotiating`, `forwarding` or `closing`.
    pub state: &'static str,
    /// Name of the subscriber; empty before authentication.
    pub user: String,
    /// Client MAC address.
    pub mac: String,
    /// S-VLAN id, if the frames have a tag.
    pub s_vlan: Option<u16>,
    /// C-VLAN id, if the frames have two tags.
    pub c_vlan: Option<u16>,
    /// Address of the subscriber, once granted.
    #[schema(value_type = Option<String>)]
    pub framed_ip: Option<Ipv4Addr>,
    /// The session's /64, once granted.
    pub ipv6_prefix: Option<String>,
    /// Prefix delegated to the subscriber, once granted.
    pub delegated_prefix: Option<String>,
    /// Networks behind the subscriber that the session has.
    pub framed_routes: Vec<String>,
    /// Port block, if the subscriber is translated.
    pub nat: Option<NatBlockView>,
    /// What it may do; none before authentication.
    pub policy: Option<PolicyView>,
    /// Index of the worker that owns the session.
    pub worker: u8,
    /// When it started.
    pub started_unix_ms: u64,
    /// Packets and bytes so far.
    #[serde(flatten)]
    pub traffic: TrafficView,
}

/// What was negotiated with the peer.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct NegotiatedView {
    /// Phase of the link (RFC 1661 section 3.2).
    pub phase: &'static str,
    /// LCP automaton state (RFC 1661 section 4.2).
    pub lcp: &'static str,
    /// IPCP automaton state.
    pub ipcp: &'static str,
    /// IPv6CP automaton state.
    pub ipv6cp: &'static str,
    /// Authentication protocol, `pap` or `chap`, once LCP has agreed on it.
    pub auth_protocol: Option<&'static str>,
    /// Largest PPP payload we take, bytes.
    pub our_mru: u16,
    /// Largest PPP payload the peer takes, bytes.
    pub peer_mru: u16,
    /// Our magic number, 0 for none.
    pub our_magic: u32,
    /// The peer's magic number, 0 for none.
    pub peer_magic: u32,
    /// Our address on the session.
    #[schema(value_type = Option<String>)]
    pub gateway_ip: Option<Ipv4Addr>,
    /// Our link-local address, while IPv6CP is Opened.
    #[schema(value_type = Option<String>)]
    pub gateway_ipv6: Option<Ipv6Addr>,
    /// The subscriber's link-local address, while IPv6CP is Opened.
    #[schema(value_type = Option<String>)]
    pub peer_ipv6: Option<Ipv6Addr>,
    /// DNS servers given.
    #[schema(value_type = Vec<String>)]
    pub dns: Vec<Ipv4Addr>,
    /// Echo-Requests since the last sign of life.
    pub echo_missed: u8,
    /// Since when nothing was heard of the client by the control plane.
    pub last_heard_ms_ago: Option<u64>,
    /// What is left of the session time.
    pub session_time_left_s: Option<u64>,
    /// What is left of the idle time, unless there is traffic.
    pub idle_time_left_s: Option<u64>,
    /// Time to the next CHAP challenge.
    pub next_challenge_s: Option<u64>,
    /// Time to the next Echo-Request, unless something is heard.
    pub next_echo_s: Option<u64>,
}

/// A session with everything known of it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionDetail {
    /// As in the list.
    #[serde(flatten)]
    pub session: SessionView,
    /// When the network phase opened, if it has.
    pub opened_unix_ms: Option<u64>,
    /// TR-101 Agent-Circuit-Id.
    pub circuit_id: String,
    /// TR-101 Agent-Remote-Id.
    pub remote_id: String,
    /// Service-Name the client asked for.
    pub service_name: String,
    /// Name of the address pool.
    pub pool: Option<String>,
    /// Accounting id, unique over restarts.
    pub accounting_id: Option<u64>,
    /// Most bytes of both directions together, if there is a limit.
    pub quota_bytes: Option<u64>,
    /// What is left of them.
    pub quota_left_bytes: Option<u64>,
    /// Generation of the table entry.
    pub generation: u32,
    /// Whether an earlier run of the control plane set it up.
    pub adopted: bool,
    /// Time since the dataplane last saw a frame of the client.
    pub last_upstream_ms_ago: Option<u64>,
    /// Why it is ending, if it is.
    pub cause: Option<&'static str>,
    /// PPP's side; absent when the link is gone and the entry waits for the workers.
    pub ppp: Option<NegotiatedView>,
}

/// What was agreed on with the peer of a session that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AgreedView {
    /// Authentication protocol.
    pub auth_protocol: String,
    /// Service-Name the client asked for.
    pub service_name: String,
    /// Largest PPP payload we took, bytes.
    pub our_mru: u16,
    /// Largest PPP payload the peer took, bytes.
    pub peer_mru: u16,
}

impl From<&SessionRecord> for AgreedView {
    fn from(record: &SessionRecord) -> Self {
        Self {
            auth_protocol: record.auth_protocol.name().to_owned(),
            service_name: text(&record.service_name),
            our_mru: record.our_mru,
            peer_mru: record.peer_mru,
        }
    }
}

/// A session that is over. The history on disk has a line of these.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EndedView {
    /// Access port and session id it had.
    pub id: String,
    /// Name of the subscriber; empty if it never authenticated.
    pub user: String,
    /// Client MAC address.
    pub mac: String,
    /// S-VLAN id, if the frames had a tag.
    pub s_vlan: Option<u16>,
    /// C-VLAN id, if the frames had two tags.
    pub c_vlan: Option<u16>,
    /// Address it had.
    #[schema(value_type = Option<String>)]
    pub framed_ip: Option<Ipv4Addr>,
    /// Port block it had.
    pub nat: Option<NatBlockView>,
    /// The /64 it had.
    #[serde(default)]
    pub ipv6_prefix: Option<String>,
    /// Delegated prefix it had.
    #[serde(default)]
    pub delegated_prefix: Option<String>,
    /// Networks behind the subscriber that it had.
    #[serde(default)]
    pub framed_routes: Vec<String>,
    /// TR-101 Agent-Circuit-Id.
    #[serde(default)]
    pub circuit_id: String,
    /// TR-101 Agent-Remote-Id.
    #[serde(default)]
    pub remote_id: String,
    /// Why it ended.
    pub cause: String,
    /// Why its credentials were refused, if they were.
    #[serde(default)]
    pub refused: Option<String>,
    /// Whether it was ever up.
    pub was_up: bool,
    /// What was agreed on with the peer, if it was ever up.
    #[serde(default)]
    pub agreed: Option<AgreedView>,
    /// Accounting id, unique over restarts, if it was ever authenticated.
    #[serde(default)]
    pub accounting_id: Option<u64>,
    /// When it started.
    pub started_unix_ms: u64,
    /// When its network phase opened, if it did.
    #[serde(default)]
    pub opened_unix_ms: Option<u64>,
    /// When it ended.
    pub ended_unix_ms: u64,
    /// Final packets and bytes.
    #[serde(flatten)]
    pub traffic: TrafficView,
}

/// A part of a list.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct Page<T: ToSchema> {
    /// Entries that match, in all.
    pub total: usize,
    /// Entries left out before the first one here.
    pub offset: usize,
    /// The entries.
    pub items: Vec<T>,
}

/// The id of a session in REST.
#[must_use]
pub fn session_id(settings: &Settings, live: &Live) -> String {
    let port = settings.access_name(live.session.port.0);
    format!("{port}-{}", live.session.session_id)
}

/// Names are bytes; what is no UTF-8 is replaced, for people to read.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn nat(live: &Live) -> Option<NatBlockView> {
    NatBlockView::of(&live.holding?)
}

impl SessionView {
    /// A session with its counters.
    #[must_use]
    pub fn new(settings: &Settings, live: &Live, stats: &StatsCopy) -> Self {
        let vlans = table_vlans(&live.vlans);
        let prefixes = live.holding.and_then(|holding| holding.prefixes);
        Self {
            id: session_id(settings, live),
            port: settings.access_name(live.session.port.0).to_owned(),
            session_id: live.session.session_id,
            state: state_name(live.state),
            user: text(&live.user),
            mac: live.line.mac.to_string(),
            s_vlan: vlans.s_vlan,
            c_vlan: vlans.c_vlan,
            framed_ip: live.framed_ip(),
            ipv6_prefix: prefixes.map(|prefixes| prefixes.on_link.to_string()),
            delegated_prefix: (prefixes.and_then(|prefixes| prefixes.delegated))
                .map(|prefix| prefix.to_string()),
            framed_routes: networks::shown(live),
            nat: nat(live),
            policy: PolicyView::of(settings, live),
            worker: live.owner,
            started_unix_ms: live.started_unix_ms,
            traffic: stats.into(),
        }
    }
}

impl NegotiatedView {
    /// The engine's view of a session at a moment.
    #[must_use]
    pub fn new(info: &SessionInfo<'_>, clock: Clock) -> Self {
        let now = clock.time();
        let left = |at: bng_pppoe::Time| at.since(now).as_secs();
        let ago = |time| u64::try_from(now.since(time).as_millis()).unwrap_or(u64::MAX);
        Self {
            phase: info.phase.name(),
            lcp: info.lcp.name(),
            ipcp: info.ipcp.name(),
            ipv6cp: info.ipv6cp.name(),
            auth_protocol: info.auth_protocol.map(|protocol| protocol.name()),
            our_mru: info.our_mru,
            peer_mru: info.peer_mru,
            our_magic: info.our_magic,
            peer_magic: info.peer_magic,
            gateway_ip: info.gateway_ip,
            gateway_ipv6: info.interface_ids.map(|ids| link_local(ids.ours)),
            peer_ipv6: info.interface_ids.map(|ids| link_local(ids.peer)),
            dns: info.dns.into_iter().flatten().collect(),
            echo_missed: info.echo_missed,
            last_heard_ms_ago: info.last_heard.map(ago),
            session_time_left_s: info.session_deadline.map(left),
            idle_time_left_s: info.idle_deadline.map(left),
            next_challenge_s: info.next_challenge.map(left),
            next_echo_s: info.next_echo.map(left),
        }
    }
}

impl SessionDetail {
    /// Everything known of a session; with its line's circuit id and remote id.
    #[must_use]
    pub fn new(
        settings: &Settings,
        live: &Live,
        (circuit_id, remote_id): (&[u8], &[u8]),
        stats: &StatsCopy,
        info: Option<&SessionInfo<'_>>,
        clock: Clock,
    ) -> Self {
        let seen = stats.last_up_ms;
        let pool = live.holding.and_then(|h| settings.pools.get(h.lease.pool));
        let quota = (live.quota_octets != 0).then_some(live.quota_octets);
        let ending = info.and_then(|info| info.cause).map(|cause| cause.name());
        Self {
            session: SessionView::new(settings, live, stats),
            opened_unix_ms: (live.opened_unix_ms != 0).then_some(live.opened_unix_ms),
            circuit_id: text(circuit_id),
            remote_id: text(remote_id),
            service_name: info.map_or_else(String::new, |info| text(info.service_name)),
            pool: pool.map(|pool| pool.name.clone()),
            accounting_id: (live.accounting_id != 0).then_some(live.accounting_id),
            quota_bytes: quota,
            quota_left_bytes: quota
                .map(|quota| quota.saturating_sub(stats.up_bytes + stats.down_bytes)),
            generation: live.generation,
            adopted: live.adopted,
            last_upstream_ms_ago: (seen != 0).then(|| clock.monotonic_ms.saturating_sub(seen)),
            cause: live.end.map(|end| end.cause.name()).or(ending),
            ppp: info.map(|info| NegotiatedView::new(info, clock)),
        }
    }
}

impl EndedView {
    /// A session of the history.
    #[must_use]
    pub fn new(settings: &Settings, ended: &Ended) -> Self {
        let live = &ended.live;
        let vlans = table_vlans(&live.vlans);
        let prefixes = live.holding.and_then(|holding| holding.prefixes);
        Self {
            id: session_id(settings, live),
            user: text(&live.user),
            mac: live.line.mac.to_string(),
            s_vlan: vlans.s_vlan,
            c_vlan: vlans.c_vlan,
            framed_ip: live.framed_ip(),
            nat: nat(live),
            circuit_id: text(&live.circuit_id),
            remote_id: text(&live.remote_id),
            ipv6_prefix: prefixes.map(|prefixes| prefixes.on_link.to_string()),
            delegated_prefix: (prefixes.and_then(|prefixes| prefixes.delegated))
                .map(|prefix| prefix.to_string()),
            framed_routes: networks::shown(live),
            cause: ended.end.cause.name().to_owned(),
            refused: ended.refused.as_deref().map(str::to_owned),
            was_up: ended.end.was_up,
            agreed: ended.agreed.clone(),
            accounting_id: (live.accounting_id != 0).then_some(live.accounting_id),
            opened_unix_ms: (live.opened_unix_ms != 0).then_some(live.opened_unix_ms),
            started_unix_ms: live.started_unix_ms,
            ended_unix_ms: ended.ended_unix_ms,
            traffic: (&ended.stats).into(),
        }
    }
}
