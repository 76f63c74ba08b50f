//! Every flow's packets once through the pipeline, checked, and their starts kept to be measured.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use bng_fastpath::BURST;
use bng_shm::SlotIndex;

use super::check::Expected;
use super::flows::{
    Content, Flow, Shape, downstream_frame, malformed_frame, plain_downstream_frame,
    plain_upstream_frame, shuffled, upstream_frame,
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

/// What the flows send, in order. Trains do not begin where bursts do: the first one has begun before, and its beginning
/// is at the end.
fn contents(flows: &[Flow], args: &FastpathArgs) -> Vec<(Flow, Content)> {
    let Some(train) = args.trains() else {
        let contents = flows.iter().map(|flow| (*flow, Content::Datagram));
        return contents.collect();
    };
    let contents = flows.iter().flat_map(|flow| {
        let places = 0..train;
        places.map(|at| (*flow, Content::Segment(at)))
    });
    let mut contents: Vec<_> = contents.collect();
    contents.rotate_left(usize::from(train) / 3);
    contents
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
    let contents = contents(&flows, args);
    let ip_bytes = args.ip_bytes;
    let directions = args.directions();
    let head = |frame: &[u8], port| Head::new(frame, port, args.whole_frames());
    let mut heads = Heads::default();
    let mut outsides = Outsides::default();
    let small = "IP packet too small";
    for part in contents.chunks(BURST) {
        let frames = part.iter().map(|(flow, content)| {
            let frame = upstream_frame(flow, *content, ip_bytes).context(small)?;
            Ok((flow.subscriber.access_port, frame))
        });
        let frames = frames.collect::<Result<Vec<_>>>()?;
        for work in args.checked_works(Direction::Up) {
            let mut sent = lane.through(work, &frames)?;
            for (flow, content) in part {
                let of_flow = || format!("upstream, {work:?}, {content:?}, {flow:?}");
                let out = sent.get_mut(usize::from(shape.core_port()));
                let out = out.and_then(Iterator::next).with_context(of_flow)?;
                let expected = Expected {
                    flow,
                    content: *content,
                    ip_bytes,
                };
                let outside = check::upstream(&out, expected).with_context(of_flow)?;
                outsides.add(flow, outside)?;
                heads.checked += 1;
            }
        }
        if directions.contains(&Direction::Up) {
            for (port, frame) in &frames {
                heads.up[GOOD].push(head(frame, *port)?);
            }
        }
        if !directions.contains(&Direction::Down) {
            continue;
        }
        let frames = part.iter().map(|(flow, content)| {
            let outside = outsides.of(flow).context("a flow without a mapping")?;
            let frame = downstream_frame(flow, outside, *content, ip_bytes).context(small)?;
            Ok((shape.core_port(), frame))
        });
        let frames = frames.collect::<Result<Vec<_>>>()?;
        for work in args.checked_works(Direction::Down) {
            let mut sent = lane.through(work, &frames)?;
            for (flow, content) in part {
                let of_flow = || format!("downstream, {work:?}, {content:?}, {flow:?}");
                let out = sent.get_mut(usize::from(flow.subscriber.access_port));
                let out = out.and_then(Iterator::next).with_context(of_flow)?;
                let expected = Expected {
                    flow,
                    content: *content,
                    ip_bytes,
                };
                check::downstream(&out, expected).with_context(of_flow)?;
                heads.checked += 1;
            }
        }
        for (port, frame) in &frames {
            heads.down[GOOD].push(head(frame, *port)?);
        }
    }
    if args.plain_ip {
        check_plain(lane, args, shape, &flows, &mut heads)?;
    }
    if args.malformed {
        for (defect, flow) in flows.iter().enumerate() {
            let frame = malformed_frame(flow, ip_bytes, defect).context(small)?;
            heads.up[MALFORMED].push(head(&frame, flow.subscriber.access_port)?);
        }
    }
    Ok(heads)
}

/// Public address and port of each flow.
#[derive(Default)]
struct Outsides {
    by_flow: HashMap<(SlotIndex, u16), (Ipv4Addr, u16)>,
    taken: HashMap<(Ipv4Addr, u16), (SlotIndex, u16)>,
}

impl Outsides {
    /// A flow was seen with this one. It keeps it, and no other flow has it.
    fn add(&mut self, flow: &Flow, outside: (Ipv4Addr, u16)) -> Result<()> {
        let key = (flow.subscriber.slot, flow.port);
        let first = *self.by_flow.entry(key).or_insert(outside);
        if first != outside {
            bail!("the mapping was {first:?} and is {outside:?}: {flow:?}");
        }
        if *self.taken.entry(outside).or_insert(key) != key {
            bail!("{outside:?} is the mapping of another flow, too: {flow:?}");
        }
        Ok(())
    }

    fn of(&self, flow: &Flow) -> Option<(Ipv4Addr, u16)> {
        let key = (flow.subscriber.slot, flow.port);
        self.by_flow.get(&key).copied()
    }
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
                let expected = Expected {
                    flow,
                    content: Content::Datagram,
                    ip_bytes,
                };
                let list = match direction {
                    Direction::Up => {
                        check::plain_upstream(&out, expected).with_context(of_flow)?;
                        &mut heads.up[PLAIN]
                    }
                    Direction::Down => {
                        check::plain_downstream(&out, expected).with_context(of_flow)?;
                        &mut heads.down[PLAIN]
                    }
                };
                list.push(Head::new(frame, *port, false)?);
                heads.checked += 1;
            }
        }
    }
    Ok(())
}
