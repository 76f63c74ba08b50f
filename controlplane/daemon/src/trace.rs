//! Traces: the control frames of chosen subscribers, both ways, as they pass the driver.
//!
//! Without a trace the driver pays one comparison per frame. With traces, what fits is copied into bounded memory; decoding and
//! packing are left to who asks. A frame is kept as it was on the wire but for the password of PAP, which is blanked before it
//! is kept unless the trace was told otherwise.

pub(crate) mod pcapng;
mod secrets;
mod text;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bng_pppoe::codec::{Body, frame};
use bng_pppoe::{AccessLine, PortId};
use bng_shm::SlotIndex;
use bng_wire::ethernet::{self, EthFrame};
use serde::Serialize;
use utoipa::ToSchema;

use crate::publish::Clock;
use crate::selection::Subscriber;
use crate::sessions::{Live, Sessions};
use crate::settings::Settings;

/// Traces at a time, ended ones included.
pub(crate) const TRACES_MAX: usize = 8;
/// Frames a trace keeps: default and most.
pub(crate) const FRAMES: u32 = 1_000;
pub(crate) const FRAMES_MAX: u32 = 10_000;
/// How long a trace takes frames, seconds: default and most.
pub(crate) const SECONDS: u32 = 600;
pub(crate) const SECONDS_MAX: u32 = 86_400;
/// Bytes of frames a trace keeps.
const BYTES_MAX: usize = 4 << 20;
/// Lines of a user that are watched before it gives its name.
const LINES_MAX: usize = 16;

/// What is to be traced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceOrder {
    /// Whose frames. Something of it is given.
    pub subscriber: Subscriber,
    /// Latest frames to keep, at least 1.
    pub frames: u32,
    /// Seconds after which no more frames are taken, at least 1.
    pub seconds: u32,
    /// Whether passwords are kept.
    pub with_passwords: bool,
}

/// Why no trace is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {TRACES_MAX} traces under way; end one first")]
pub struct TooManyTraces;

/// A kept frame.
#[derive(Debug, Clone)]
pub struct Captured {
    /// Unix time, nanoseconds.
    pub unix_ns: u64,
    /// Index among the access ports.
    pub access_port: u8,
    /// Whether it came from the subscriber.
    pub upstream: bool,
    /// Why it had no effect, if so.
    pub drop: Option<&'static str>,
    /// Its bytes from the destination address on.
    pub bytes: Arc<[u8]>,
}

/// A trace as REST shows it.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TraceView {
    /// Its number.
    pub id: u32,
    /// Whether it still takes frames.
    pub running: bool,
    /// When it began.
    pub started_unix_ms: u64,
    /// When it ends or ended taking frames.
    pub ends_unix_ms: u64,
    /// Whether passwords are kept.
    pub with_passwords: bool,
    /// Frames kept now.
    pub frames: usize,
    /// Frames that made room for later ones.
    pub forgotten: u64,
}

/// A trace with its frames.
#[derive(Debug, Clone)]
pub struct TraceCopy {
    /// The trace.
    pub view: TraceView,
    /// Its frames, oldest first.
    pub frames: Vec<Captured>,
}

/// A line of a decoded trace.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TraceLine {
    /// Unix time, microseconds.
    pub unix_us: u64,
    /// `up` from the subscriber, `down` to it.
    pub direction: &'static str,
    /// Name of the access port.
    pub port: String,
    /// The frame in words.
    pub text: String,
    /// Why it had no effect, if so.
    pub drop: Option<&'static str>,
}

/// A decoded trace.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct TraceText {
    /// The trace.
    #[serde(flatten)]
    pub trace: TraceView,
    /// Its frames, oldest first.
    pub lines: Vec<TraceLine>,
}

impl TraceText {
    /// Puts the frames of a trace into words.
    #[must_use]
    pub fn new(copy: TraceCopy, settings: &Settings) -> Self {
        let lines = copy.frames.iter().map(|frame| TraceLine {
            unix_us: frame.unix_ns / 1_000,
            direction: if frame.upstream { "up" } else { "down" },
            port: settings.access_name(frame.access_port).to_owned(),
            text: text::describe(&frame.bytes),
            drop: frame.drop,
        });
        Self {
            lines: lines.collect(),
            trace: copy.view,
        }
    }
}

#[derive(Debug)]
struct Trace {
    id: u32,
    order: TraceOrder,
    /// Lines on which the user was seen.
    lines: Vec<AccessLine>,
    started_unix_ms: u64,
    started_ms: u64,
    frames: VecDeque<Captured>,
    bytes: usize,
    forgotten: u64,
}

/// A frame on its way past the driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passing<'a> {
    pub(crate) access_port: u8,
    pub(crate) upstream: bool,
    pub(crate) drop: Option<&'static str>,
    pub(crate) bytes: &'a [u8],
}

/// All traces.
#[derive(Debug, Default)]
pub(crate) struct Traces {
    all: Vec<Trace>,
    /// Whether any takes frames.
    on: bool,
    last_id: u32,
}

impl Trace {
    fn ends_ms(&self) -> u64 {
        self.started_ms + u64::from(self.order.seconds) * 1_000
    }

    fn view(&self, now_ms: u64) -> TraceView {
        TraceView {
            id: self.id,
            running: now_ms < self.ends_ms(),
            started_unix_ms: self.started_unix_ms,
            ends_unix_ms: self.started_unix_ms + u64::from(self.order.seconds) * 1_000,
            with_passwords: self.order.with_passwords,
            frames: self.frames.len(),
            forgotten: self.forgotten,
        }
    }

    /// Whether a frame is wanted. MAC address, port, VLANs and session id are the frame's own. User, addresses and line ids are
    /// those of its session or, in discovery, of its tags; a line on which they were seen is watched from then on.
    fn wants(&mut self, seen: &Seen<'_>, live: Option<&Live>) -> bool {
        let wanted = &self.order.subscriber;
        let line = &seen.line;
        let is_here = wanted.mac.is_none_or(|mac| line.mac == mac)
            && (wanted.access_port).is_none_or(|port| line.port.0 == port)
            && wanted.s_vlan.is_none_or(|vlan| line.s_vlan == vlan)
            && wanted.c_vlan.is_none_or(|vlan| line.c_vlan == vlan)
            && (wanted.session_id).is_none_or(|id| seen.session_id == id);
        if !is_here || self.lines.contains(line) {
            return is_here;
        }
        let is = |wanted: &Option<String>, known: Option<&[u8]>| {
            (wanted.as_ref()).is_none_or(|wanted| Some(wanted.as_bytes()) == known)
        };
        let id = |of: fn(&Live) -> &[u8]| live.map(of).filter(|id| !id.is_empty());
        let circuit = id(|live| &live.circuit_id);
        let remote = id(|live| &live.remote_id);
        let is_known = is(&wanted.user, live.map(|live| &*live.user))
            && (wanted.ip).is_none_or(|ip| live.is_some_and(|live| live.has_address(ip)))
            && is(&wanted.circuit_id, circuit.or(seen.circuit_id))
            && is(&wanted.remote_id, remote.or(seen.remote_id));
        if is_known && wanted.names_somebody() {
            self.watch(*line);
        }
        is_known
    }

    fn watch(&mut self, line: AccessLine) {
        if self.lines.len() < LINES_MAX && !self.lines.contains(&line) {
            self.lines.push(line);
        }
    }

    fn keep(&mut self, frame: Captured) {
        let (frames, bytes) = (self.order.frames as usize, frame.bytes.len());
        while self.frames.len() >= frames || self.bytes + bytes > BYTES_MAX {
            let Some(oldest) = self.frames.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes.len();
            self.forgotten += 1;
        }
        self.bytes += bytes;
        self.frames.push_back(frame);
    }
}

/// What a frame says of its client.
#[derive(Debug)]
struct Seen<'a> {
    line: AccessLine,
    session_id: u16,
    circuit_id: Option<&'a [u8]>,
    remote_id: Option<&'a [u8]>,
}

impl<'a> Seen<'a> {
    /// Also of frames the engine makes nothing of, as long as they have addresses.
    fn new(passing: &Passing<'a>) -> Option<Self> {
        let EthFrame {
            dst,
            src,
            tags,
            payload,
            ..
        } = ethernet::parse(passing.bytes).ok()?;
        let mac = if passing.upstream { src } else { dst };
        let id = passing.bytes.get(payload + 2..payload + 4);
        let session_id = id.map_or(0, |id| u16::from_be_bytes([id[0], id[1]]));
        let ids = match frame::parse(passing.bytes).map(|frame| frame.body) {
            Ok(Body::Discovery { tags, .. }) => tags.access_line_ids().ok(),
            _ => None,
        };
        let port = PortId(passing.access_port);
        Some(Self {
            line: AccessLine::new(port, &tags.without_priority_tags(), mac),
            session_id,
            circuit_id: ids.map(|ids| ids.circuit_id),
            remote_id: ids.map(|ids| ids.remote_id),
        })
    }
}

impl Traces {
    /// Whether any trace takes frames: all a frame costs while none does.
    pub(crate) const fn is_on(&self) -> bool {
        self.on
    }

    /// Begins a trace, if need be in place of the oldest that has ended.
    ///
    /// # Errors
    /// [`TooManyTraces`] that have not ended.
    pub(crate) fn start(
        &mut self,
        order: TraceOrder,
        sessions: &Sessions,
        clock: Clock,
    ) -> Result<TraceView, TooManyTraces> {
        let now = clock.monotonic_ms;
        if self.all.len() >= TRACES_MAX {
            let ended = self.all.iter().position(|trace| trace.ends_ms() <= now);
            self.all.remove(ended.ok_or(TooManyTraces)?);
        }
        self.last_id += 1;
        let mut trace = Trace {
            id: self.last_id,
            order,
            lines: Vec::new(),
            started_unix_ms: clock.unix_ms,
            started_ms: now,
            frames: VecDeque::new(),
            bytes: 0,
            forgotten: 0,
        };
        if trace.order.subscriber.names_somebody() {
            // A subscriber who cannot come in has no session that bears its name for long, but it had one.
            let ended = sessions.history().map(|ended| &*ended.live);
            for live in sessions.iter().chain(ended) {
                let ids = (live.circuit_id.as_slice(), live.remote_id.as_slice());
                if trace.order.subscriber.fits(live, ids) {
                    trace.watch(live.line);
                }
                if trace.lines.len() == LINES_MAX {
                    break;
                }
            }
        }
        let view = trace.view(now);
        self.all.push(trace);
        self.on = true;
        Ok(view)
    }

    /// Ends a trace and forgets its frames; false if there is none of this number.
    pub(crate) fn stop(&mut self, id: u32) -> bool {
        let before = self.all.len();
        self.all.retain(|trace| trace.id != id);
        self.on &= !self.all.is_empty();
        self.all.len() < before
    }

    /// All traces, the oldest first.
    pub(crate) fn views(&self, now_ms: u64) -> Vec<TraceView> {
        self.all.iter().map(|trace| trace.view(now_ms)).collect()
    }

    /// A trace with its frames.
    pub(crate) fn copy(&self, id: u32, now_ms: u64) -> Option<TraceCopy> {
        let trace = self.all.iter().find(|trace| trace.id == id)?;
        Some(TraceCopy {
            view: trace.view(now_ms),
            frames: trace.frames.iter().cloned().collect(),
        })
    }

    /// Keeps a frame for whoever wants it. Only when [`Traces::is_on`].
    pub(crate) fn note(&mut self, passing: &Passing<'_>, sessions: &Sessions, now_ms: u64) {
        self.on = self.all.iter().any(|trace| now_ms < trace.ends_ms());
        let Some(seen) = Seen::new(passing) else {
            return;
        };
        let slot = SlotIndex::new(passing.access_port, seen.session_id);
        let live = sessions.at(slot).filter(|live| live.line == seen.line);
        let mut copies: [Option<Arc<[u8]>>; 2] = [None, None];
        for trace in &mut self.all {
            if now_ms >= trace.ends_ms() || !trace.wants(&seen, live) {
                continue;
            }
            let with_passwords = trace.order.with_passwords;
            let bytes = copies[usize::from(with_passwords)].get_or_insert_with(|| {
                let mut bytes = passing.bytes.to_vec();
                if !with_passwords {
                    secrets::blank(&mut bytes);
                }
                bytes.into()
            });
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            trace.keep(Captured {
                unix_ns: u64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(u64::MAX),
                access_port: passing.access_port,
                upstream: passing.upstream,
                drop: passing.drop,
                bytes: bytes.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::tests::live;
    use bng_pppoe::codec::LinkHeader;
    use bng_wire::pppoe::{code, protocol};
    use bng_wire::{MacAddr, VlanStack, VlanTag};

    const OURS: MacAddr = MacAddr([2, 0xac, 0, 0, 0, 1]);

    fn link(last: u8, upstream: bool) -> LinkHeader {
        let client = MacAddr([2, 0, 0, 0, 0, last]);
        let (src, dst) = if upstream {
            (client, OURS)
        } else {
            (OURS, client)
        };
        let vlans = VlanStack::UNTAGGED;
        LinkHeader { dst, src, vlans }
    }

    fn padi(last: u8) -> Vec<u8> {
        frame::discovery(&link(last, true), code::PADI, 0, &[]).unwrap()
    }

    fn padi_of_circuit(last: u8, circuit: &[u8]) -> Vec<u8> {
        let mut value = 3561u32.to_be_bytes().to_vec();
        value.extend([1, circuit.len() as u8]);
        value.extend(circuit);
        let mut tags = vec![1, 5, 0, value.len() as u8];
        tags.extend(value);
        frame::discovery(&link(last, true), code::PADI, 0, &tags).unwrap()
    }

    fn pap(last: u8, session_id: u16) -> Vec<u8> {
        let request = [1, 9, 0, 12, 2, b'a', b'l', 4, b'p', b'w', b'p', b'w'];
        frame::session(&link(last, true), session_id, protocol::PAP, &request).unwrap()
    }

    struct Bench {
        traces: Traces,
        sessions: Sessions,
        clock: Clock,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                traces: Traces::default(),
                sessions: Sessions::default(),
                clock: Clock::now(),
            }
        }

        fn start(&mut self, order: TraceOrder) -> u32 {
            let started = self.traces.start(order, &self.sessions, self.clock);
            started.unwrap().id
        }

        fn pass(&mut self, upstream: bool, bytes: &[u8]) {
            let passing = Passing {
                access_port: 0,
                upstream,
                drop: None,
                bytes,
            };
            let now = self.clock.monotonic_ms;
            if self.traces.is_on() {
                self.traces.note(&passing, &self.sessions, now);
            }
        }

        fn frames(&self, id: u32) -> Vec<Arc<[u8]>> {
            let copy = self.traces.copy(id, self.clock.monotonic_ms).unwrap();
            copy.frames.into_iter().map(|frame| frame.bytes).collect()
        }
    }

    fn order(subscriber: Subscriber) -> TraceOrder {
        TraceOrder {
            subscriber,
            frames: 3,
            seconds: 10,
            with_passwords: false,
        }
    }

    fn of_user(user: &str) -> Subscriber {
        Subscriber {
            user: Some(user.to_owned()),
            ..Subscriber::default()
        }
    }

    #[test]
    fn frames_of_a_client_without_a_session_are_kept_both_ways_and_no_others() {
        let mut bench = Bench::new();
        let id = bench.start(order(Subscriber {
            mac: Some(MacAddr([2, 0, 0, 0, 0, 7])),
            ..Subscriber::default()
        }));
        let pado = frame::discovery(&link(7, false), code::PADO, 0, &[]).unwrap();
        bench.pass(true, &padi(7));
        bench.pass(true, &padi(8));
        bench.pass(false, &pado);
        bench.pass(true, &[2, 0, 0]);
        let kept = bench.frames(id);
        assert_eq!(kept, [padi(7).into(), Arc::<[u8]>::from(pado)]);
    }

    #[test]
    fn a_circuit_seen_in_discovery_is_watched_from_then_on() {
        let mut bench = Bench::new();
        let id = bench.start(order(Subscriber {
            circuit_id: Some("olt1".to_owned()),
            ..Subscriber::default()
        }));
        bench.pass(true, &padi(7));
        bench.pass(true, &padi_of_circuit(7, b"olt2"));
        assert_eq!(bench.frames(id).len(), 0);
        bench.pass(true, &padi_of_circuit(7, b"olt1"));
        bench.pass(true, &padi(7));
        assert_eq!(bench.frames(id).len(), 2);
    }

    #[test]
    fn a_user_is_watched_where_it_was_seen_last() {
        let mut bench = Bench::new();
        let mut ended = live(0, 5, 0);
        ended.user = b"alice".as_slice().into();
        let end = crate::sessions::End {
            cause: crate::causes::EndCause::NotAdopted,
            was_up: false,
            release: true,
        };
        let stats = bng_shm::StatsCopy::default();
        let ended = crate::sessions::Ended::new(Box::new(ended), end, 1, stats);
        bench.sessions.remember(ended);
        let (alice, bob) = (
            bench.start(order(of_user("alice"))),
            bench.start(order(of_user("bob"))),
        );
        bench.pass(true, &padi(9));
        assert_eq!((bench.frames(alice).len(), bench.frames(bob).len()), (1, 0));
    }

    #[test]
    fn frames_of_a_session_and_a_vlan_are_told_apart() {
        let mut bench = Bench::new();
        let id = bench.start(order(Subscriber {
            session_id: Some(5),
            s_vlan: Some(100),
            ..Subscriber::default()
        }));
        let tagged = LinkHeader {
            vlans: VlanStack::single(VlanTag {
                tpid: 0x8100,
                tci: 0xe064,
            }),
            ..link(7, true)
        };
        for session_id in [5, 6] {
            let echo = [9, 1, 0, 8, 0, 0, 0, 1];
            let bytes = frame::session(&tagged, session_id, protocol::LCP, &echo).unwrap();
            bench.pass(true, &bytes);
        }
        bench.pass(true, &pap(7, 5));
        assert_eq!(bench.frames(id).len(), 1);
    }

    #[test]
    fn passwords_are_kept_only_where_that_was_asked_for() {
        let mut bench = Bench::new();
        let all = Subscriber::default();
        let without = bench.start(order(all.clone()));
        let with = bench.start(TraceOrder {
            with_passwords: true,
            ..order(all)
        });
        bench.pass(true, &pap(7, 5));
        let (without, with) = (bench.frames(without), bench.frames(with));
        assert_eq!(&*with[0], pap(7, 5).as_slice());
        let mut blanked = pap(7, 5);
        let at = blanked.len() - 4;
        blanked[at..].fill(b'*');
        assert_eq!(&*without[0], blanked.as_slice());
    }

    #[test]
    fn a_trace_keeps_the_latest_frames_until_its_time_is_over() {
        let mut bench = Bench::new();
        let id = bench.start(order(Subscriber::default()));
        for last in 1..=5 {
            bench.pass(true, &padi(last));
        }
        let kept = bench.frames(id);
        assert_eq!(kept, [3, 4, 5].map(|last| Arc::<[u8]>::from(padi(last))));
        let views = bench.traces.views(bench.clock.monotonic_ms);
        assert_eq!((views[0].forgotten, views[0].running), (2, true));
        bench.clock.monotonic_ms += 10_000;
        bench.pass(true, &padi(6));
        assert!(!bench.traces.is_on());
        assert_eq!(bench.frames(id).len(), 3);
        assert!(!bench.traces.views(bench.clock.monotonic_ms)[0].running);
        assert!(bench.traces.stop(id) && !bench.traces.stop(id));
    }

    #[test]
    fn bytes_are_bounded_too_and_ended_traces_make_room() {
        let mut bench = Bench::new();
        let big = TraceOrder {
            frames: FRAMES_MAX,
            ..order(Subscriber::default())
        };
        let first = bench.start(big.clone());
        let tags = [1, 1, 5, 200]
            .into_iter()
            .chain(vec![0; 1480])
            .collect::<Vec<u8>>();
        let padi = frame::discovery(&link(1, true), code::PADI, 0, &tags).unwrap();
        for _ in 0..5_000 {
            bench.pass(true, &padi);
        }
        let kept = bench.frames(first).len() * padi.len();
        assert!(kept <= BYTES_MAX && kept > BYTES_MAX / 2, "{kept}");
        for _ in 1..TRACES_MAX {
            bench.start(big.clone());
        }
        let more = bench
            .traces
            .start(big.clone(), &bench.sessions, bench.clock);
        assert_eq!(more.unwrap_err(), TooManyTraces);
        bench.clock.monotonic_ms += 10_000;
        bench.start(big);
        assert!(bench.traces.copy(first, bench.clock.monotonic_ms).is_none());
    }
}
