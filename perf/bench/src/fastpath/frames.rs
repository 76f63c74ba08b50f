//! Every flow's packets once through the pipeline, checked, and their starts kept to be measured.

use std::collections::HashSet;

use anyhow::{Context, Result, bail};
use bng_fastpath::BURST;

use super::flows::{
    Flow, Shape, downstream_frame, malformed_frame, plain_downstream_frame, plain_upstream_frame,
    shuffled, upstream_frame,
};
use super::lane::{Head, Lane, Work};
use super::{Direction, FastpathArgs, Locking, check};

/// Index of the good frames of a direction.
pub(super) const GOOD: usize = 0;
/// Index of the malformed ones.
pub(super) const MALFORMED: usize = 1;
/// Index of those for the plain-IP path.
pub(super) const PLAIN: usize = 2;
/// Kinds of frames.
const KINDS: usize = 3;

/// A lane's frames, in a random order, ready to be laid out again and again.
#[derive(Default)]
pub(super) struct Heads {
    up: [Vec<Head>; KINDS],
    down: [Vec<Head>; KINDS],
    /// Packets that were checked.
    pub(super) checked: u64,
}

impl Heads {
    pub(super) const fn of(&self, direction: Direction) -> &[Vec<Head>; KINDS] {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

/// The flows of lane `index`: without a lock those of its own sessions, with one a share of all.
fn share(index: u8, args: &FastpathArgs, shape: &Shape) -> Vec<Flow> {
    let workers = u32::from(args.workers);
    shuffled(shape.flows, args.seed)
        .into_iter()
        .filter(|flow| match args.locking {
            Locking::None => flow % shape.sessions % workers == u32::from(index),
            Locking::Burst | Locking::Packet => flow % workers == u32::from(index),
        })
        .map(|flow| shape.flow(flow))
        .collect()
}

/// Takes a lane's flows through the pipeline, a burst at a time, both ways, and checks what comes out.
pub(super) fn check_all(
    lane: &mut Lane,
    index: u8,
    args: &FastpathArgs,
    shape: &Shape,
) -> Result<Heads> {
    let flows = share(index, args, shape);
    if flows.is_empty() {
        bail!("worker {index} has no flow: more flows, or fewer workers");
    }
    let ip_bytes = args.ip_bytes;
    let directions = args.directions();
    let mut heads = Heads::default();
    let mut outsides = HashSet::with_capacity(flows.len());
    let small = "IP packet too small";
    for part in flows.chunks(BURST) {
        let frames = part.iter().map(|flow| {
            let frame = upstream_frame(flow, ip_bytes).context(small)?;
            Ok((flow.subscriber.access_port, frame))
        });
        let frames = frames.collect::<Result<Vec<_>>>()?;
        let mut sent = lane.through(Work::Pipeline(Direction::Up), &frames)?;
        let mut down = Vec::with_capacity(part.len());
        for (flow, (port, frame)) in part.iter().zip(&frames) {
            let of_flow = || format!("upstream, {flow:?}");
            let out = sent.get_mut(usize::from(shape.core_port()));
            let out = out.and_then(Iterator::next).with_context(of_flow)?;
            let outside = check::upstream(&out, flow, ip_bytes).with_context(of_flow)?;
            if !outsides.insert(outside) {
                bail!("{outside:?} is the mapping of another flow, too: {flow:?}");
            }
            heads.checked += 1;
            if directions.contains(&Direction::Up) {
                heads.up[GOOD].push(Head::new(frame, *port)?);
            }
            let frame = downstream_frame(flow, outside, ip_bytes).context(small)?;
            down.push((shape.core_port(), frame));
        }
        if !directions.contains(&Direction::Down) {
            continue;
        }
        let mut sent = lane.through(Work::Pipeline(Direction::Down), &down)?;
        for (flow, (port, frame)) in part.iter().zip(&down) {
            let of_flow = || format!("downstream, {flow:?}");
            let out = sent.get_mut(usize::from(flow.subscriber.access_port));
            let out = out.and_then(Iterator::next).with_context(of_flow)?;
            check::downstream(&out, flow, ip_bytes).with_context(of_flow)?;
            heads.checked += 1;
            heads.down[GOOD].push(Head::new(frame, *port)?);
        }
    }
    if args.plain_ip {
        check_plain(lane, args, shape, &flows, &mut heads)?;
    }
    if args.malformed {
        for (defect, flow) in flows.iter().enumerate() {
            let frame = malformed_frame(flow, ip_bytes, defect).context(small)?;
            heads.up[MALFORMED].push(Head::new(&frame, flow.subscriber.access_port)?);
        }
    }
    Ok(heads)
}

/// The same for the plain-IP path.
fn check_plain(
    lane: &mut Lane,
    args: &FastpathArgs,
    shape: &Shape,
    flows: &[Flow],
    heads: &mut Heads,
) -> Result<()> {
    let ip_bytes = args.ip_bytes;
    for direction in args.directions() {
        for part in flows.chunks(BURST) {
            let frames = part.iter().map(|flow| {
                let (port, frame) = match direction {
                    Direction::Up => (
                        flow.subscriber.access_port,
                        plain_upstream_frame(flow, ip_bytes),
                    ),
                    Direction::Down => (shape.core_port(), plain_downstream_frame(flow, ip_bytes)),
                };
                Ok((port, frame.context("IP packet too small")?))
            });
            let frames = frames.collect::<Result<Vec<_>>>()?;
            let mut sent = lane.through(Work::Plain(*direction), &frames)?;
            for (flow, (port, frame)) in part.iter().zip(&frames) {
                let of_flow = || format!("plain IP {direction:?}, {flow:?}");
                let egress = match direction {
                    Direction::Up => shape.core_port(),
                    Direction::Down => flow.subscriber.access_port,
                };
                let out = sent.get_mut(usize::from(egress));
                let out = out.and_then(Iterator::next).with_context(of_flow)?;
                let list = match direction {
                    Direction::Up => {
                        check::plain_upstream(&out, flow, ip_bytes).with_context(of_flow)?;
                        &mut heads.up[PLAIN]
                    }
                    Direction::Down => {
                        check::plain_downstream(&out, flow, ip_bytes).with_context(of_flow)?;
                        &mut heads.down[PLAIN]
                    }
                };
                list.push(Head::new(frame, *port)?);
                heads.checked += 1;
            }
        }
    }
    Ok(())
}
