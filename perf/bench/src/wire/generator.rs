//! Trials: packets out at a rate, packets in, and what became of each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rte_rs::tsc;

use super::control::StandIn;
use super::dialled::Dialled;
use super::ends::End;
use super::flows::{Flow, Subscriber, Template};
use super::lane::{Direction, Lane, Pace};

/// Packets per second at which flows are introduced.
const LEARN_RATE: f64 = 200e3;
/// Rounds until every flow must have a mapping.
const LEARN_ROUNDS: u32 = 10;
/// How long sessions may take to end.
const HANG_UP_LIMIT: Duration = Duration::from_secs(30);
/// How long to wait for the last packets of a trial.
const DRAIN: Duration = Duration::from_secs(1);
/// A mapping idle for longer than this is used once before a trial that goes downstream only: half of the shortest UDP time-out
/// RFC 4787 REQ-5 allows.
const REFRESH: Duration = Duration::from_secs(60);

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Packets per second upstream, if any.
    pub(super) up: Option<f64>,
    /// Packets per second downstream, if any.
    pub(super) down: Option<f64>,
    pub(super) duration: Duration,
}

/// What came of it: the counts are in the lanes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    /// How long packets were sent.
    pub(super) sending: Duration,
    /// Frames that were not ours, either port.
    pub(super) foreign: u64,
    /// Whether a signal ended it.
    pub(super) interrupted: bool,
}

/// Where the sessions come from.
pub(super) enum Control {
    /// The shared memory of a dataplane without a control plane.
    StandIn(Box<StandIn>),
    /// PPPoE with a whole gateway.
    Dialled(Box<Dialled>),
}

impl Control {
    fn access_frame(&mut self, frame: &[u8]) {
        if let Self::Dialled(dialled) = self {
            dialled.access_frame(frame);
        }
    }

    fn core_frame(&mut self, frame: &[u8]) {
        if let Self::Dialled(dialled) = self {
            dialled.core_frame(frame);
        }
    }

    /// Does what is due. Cheap when nothing is.
    pub(super) fn poll(&mut self, access: &mut End, core: &mut End) {
        match self {
            Self::StandIn(control) => control.poll(),
            Self::Dialled(dialled) => {
                dialled.poll(|frame| access.send(frame), |frame| core.send(frame))
            }
        }
    }

    /// What the dataplane says it lost; nothing where it cannot be asked.
    pub(super) fn losses(&self) -> BTreeMap<String, u64> {
        match self {
            Self::StandIn(control) => control.losses(),
            Self::Dialled(_) => BTreeMap::new(),
        }
    }
}

/// Everything the generator has.
pub(super) struct Generator<'a> {
    pub(super) access: End,
    pub(super) core: End,
    pub(super) control: Control,
    pub(super) up: Lane,
    pub(super) down: Option<Lane>,
    flows: Vec<Flow>,
    subscribers: Vec<Subscriber>,
    tsc_hz: u64,
    trials: u16,
    /// When every flow was last used upstream.
    used: Instant,
    /// Whether a dataplane thread may want this core.
    shares_core: bool,
    stop: &'a AtomicBool,
}

impl<'a> Generator<'a> {
    /// Introduces every flow with a packet upstream, and makes the frames downstream from what came out on the core side.
    #[allow(clippy::too_many_arguments, reason = "made in one place")]
    pub(super) fn new(
        (access, core): (End, End),
        control: Control,
        subscribers: Vec<Subscriber>,
        flow_count: u32,
        ip_bytes: usize,
        tsc_hz: u64,
        shares_core: bool,
        stop: &'a AtomicBool,
    ) -> Result<Self> {
        let flows: Vec<_> = (0..flow_count)
            .map_while(|index| Flow::new(index, &subscribers))
            .collect();
        let templates: Option<Vec<_>> = flows
            .iter()
            .map(|flow| {
                let from = subscribers.get(flow.subscriber as usize)?;
                Template::upstream(flow, from, ip_bytes)
            })
            .collect();
        let templates = templates.context("these packets cannot be made")?;
        let up = Lane::new(Direction::Up, templates, access.tx.len(), tsc_hz)?;
        let mut generator = Self {
            up,
            down: None,
            access,
            core,
            control,
            flows,
            subscribers,
            tsc_hz,
            trials: 0,
            used: Instant::now(),
            shares_core,
            stop,
        };
        generator.learn()?;
        let ends = (generator.up.sender, generator.core.mac);
        let templates: Option<Vec<_>> = generator
            .flows
            .iter()
            .map(|flow| Template::downstream(flow, ends, ip_bytes))
            .collect();
        let templates = templates.context("a flow has no mapping")?;
        let queues = generator.core.tx.len();
        generator.down = Some(Lane::new(Direction::Down, templates, queues, tsc_hz)?);
        Ok(generator)
    }

    fn next_trial(&mut self) -> u16 {
        self.trials = self.trials.wrapping_add(1);
        self.trials
    }

    /// One packet of every flow upstream, again for those that did not arrive.
    fn learn(&mut self) -> Result<()> {
        let losses = self.control.losses();
        let count = self.flows.len() as u64;
        let trial = self.next_trial();
        self.up.begin(trial);
        let mut pace = Pace::new(LEARN_RATE, self.tsc_hz, tsc(), count);
        for round in 0..LEARN_ROUNDS {
            if round == 0 {
                while !pace.is_done() && !self.stopped() {
                    self.up.send(&mut pace, &mut self.access, tsc())?;
                    self.receive(true);
                }
            } else {
                let missing: Vec<u32> = (0u32..)
                    .zip(&self.up.states)
                    .filter(|(_, state)| state.seen.counts().unique == 0)
                    .map(|(flow, _)| flow)
                    .collect();
                for flow in missing {
                    self.up.send_flow(flow, &mut self.access, tsc())?;
                    self.receive(true);
                    if self.stopped() {
                        break;
                    }
                }
            }
            let end = Instant::now() + Duration::from_millis(200 * u64::from(round + 1));
            while self.up.unique() < count && Instant::now() < end {
                self.receive(true);
                std::thread::yield_now();
            }
            let arrived = self
                .up
                .states
                .iter()
                .filter(|state| state.seen.counts().unique > 0)
                .count() as u64;
            if arrived == count {
                self.used = Instant::now();
                return Ok(());
            }
            if self.stopped() {
                bail!("interrupted");
            }
        }
        let lost = difference(&losses, &self.control.losses());
        bail!(
            "{} of {count} flows did not get through upstream in {LEARN_ROUNDS} attempts ({} packets arrived, {} elsewhere); \
             the dataplane dropped: {lost:?}",
            count - self.up.unique().min(count),
            self.up.counts.received,
            self.up.counts.misdelivered
        )
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// One burst from each queue of both ports. Returns the frames and how many of them were not ours.
    fn receive(&mut self, learn: bool) -> (usize, u64) {
        let mut foreign = 0;
        let (flows, subscribers) = (&mut self.flows, &self.subscribers);
        let (access, core, control) = (&mut self.access, &mut self.core, &mut self.control);
        let mut frames = self.up.receive(core, flows, subscribers, learn, |frame| {
            foreign += 1;
            control.core_frame(frame);
        });
        let others = |frame: &[u8]| {
            foreign += 1;
            control.access_frame(frame);
        };
        frames += match &mut self.down {
            Some(down) => down.receive(access, flows, subscribers, false, others),
            None => access.receive_others(others),
        };
        control.poll(access, core);
        (frames, foreign)
    }

    /// Offers a load and waits for what is on its way.
    pub(super) fn trial(&mut self, load: &Load) -> Result<Trial> {
        if load.up.is_none() && self.used.elapsed() > REFRESH {
            self.learn()?;
        }
        let trial = self.next_trial();
        self.up.begin(trial);
        if let Some(down) = &mut self.down {
            down.begin(trial);
        }
        let mut result = Trial {
            sending: Duration::ZERO,
            foreign: 0,
            interrupted: false,
        };
        let start = tsc();
        let ticks = (load.duration.as_secs_f64() * self.tsc_hz as f64) as u64;
        let pace = |rate: f64| Pace::new(rate, self.tsc_hz, start, u64::MAX);
        let (mut up, mut down) = (load.up.map(pace), load.down.map(pace));
        let mut end = start;
        while end - start < ticks {
            if self.stopped() {
                result.interrupted = true;
                break;
            }
            let mut moved = 0;
            if let Some(pace) = &mut up {
                moved += self.up.send(pace, &mut self.access, tsc())?;
            }
            if let (Some(pace), Some(lane)) = (&mut down, &mut self.down) {
                moved += lane.send(pace, &mut self.core, tsc())?;
            }
            let (frames, foreign) = self.receive(false);
            result.foreign += foreign;
            if moved + frames == 0 && self.shares_core {
                std::thread::yield_now();
            }
            end = tsc();
        }
        result.sending = Duration::from_secs_f64((end - start) as f64 / self.tsc_hz as f64);
        let limit = Instant::now() + DRAIN;
        while self.outstanding() > 0 && Instant::now() < limit {
            let (frames, foreign) = self.receive(false);
            result.foreign += foreign;
            if frames == 0 {
                std::thread::yield_now();
            }
        }
        if load.up.is_some() {
            self.used = Instant::now();
        }
        Ok(result)
    }

    /// Packets sent and not yet received.
    fn outstanding(&self) -> u64 {
        [Some(&self.up), self.down.as_ref()]
            .into_iter()
            .flatten()
            .map(|lane| {
                let counts = &lane.counts;
                let sent = counts.offered - counts.refused;
                sent.saturating_sub(counts.received + counts.misdelivered + counts.corrupt)
            })
            .sum()
    }

    /// Ends the sessions.
    pub(super) fn close(&mut self) -> Result<()> {
        match &mut self.control {
            Control::StandIn(control) => return control.close(),
            Control::Dialled(dialled) => dialled.hang_up(),
        }
        let limit = Instant::now() + HANG_UP_LIMIT;
        while !matches!(&self.control, Control::Dialled(dialled) if dialled.is_done()) {
            if Instant::now() >= limit {
                bail!("the sessions did not end within {HANG_UP_LIMIT:?}");
            }
            if self.receive(false).0 == 0 {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// The lane of a direction.
    pub(super) fn lane(&self, direction: Direction) -> Option<&Lane> {
        match direction {
            Direction::Up => Some(&self.up),
            Direction::Down => self.down.as_ref(),
        }
    }
}

/// What has grown, and by how much.
pub(crate) fn difference(
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    after
        .iter()
        .map(|(name, count)| {
            let old = before.get(name).copied().unwrap_or(0);
            (name.clone(), count.saturating_sub(old))
        })
        .filter(|(_, count)| *count > 0)
        .collect()
}
