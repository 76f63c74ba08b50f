//! How busy the workers are: their cycle counters over the last interval.

use bng_shm::{Counter, Publisher, WorkerStatus};

/// The sums a worker has counted since the memory was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    busy: u64,
    idle: u64,
    packets: u64,
}

impl Sums {
    fn of(status: &WorkerStatus) -> Self {
        let value = |counter: Counter| status.counters.get(counter.index()).copied().unwrap_or(0);
        Self {
            busy: value(Counter::BusyCycles),
            idle: value(Counter::IdleCycles),
            packets: value(Counter::RxAccess) + value(Counter::RxCore) + value(Counter::TakenOver),
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            busy: self.busy.saturating_sub(before.busy),
            idle: self.idle.saturating_sub(before.idle),
            packets: self.packets.saturating_sub(before.packets),
        }
    }
}

/// What a worker did in the last interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WorkerLoad {
    /// Share of its cycles in poll loops that found something, 0 to 1.
    pub(crate) busy_ratio: f64,
    /// Busy cycles for each packet received or taken over; `None` when there was no packet.
    pub(crate) cycles_per_packet: Option<f64>,
}

impl WorkerLoad {
    fn of(sums: Sums) -> Option<Self> {
        let all = sums.busy + sums.idle;
        (all != 0).then(|| Self {
            busy_ratio: sums.busy as f64 / all as f64,
            cycles_per_packet: (sums.packets != 0).then(|| sums.busy as f64 / sums.packets as f64),
        })
    }
}

/// The load of all workers.
#[derive(Debug, Default)]
pub(crate) struct Load {
    sums: Vec<Sums>,
    loads: Vec<Option<WorkerLoad>>,
}

impl Load {
    /// Ends an interval, and begins the next one.
    pub(crate) fn sample(&mut self, publisher: &Publisher, workers: u8) {
        let sums = (0..workers).map(|worker| {
            let status = publisher.worker_status(worker);
            status.map_or_else(Sums::default, |status| Sums::of(&status))
        });
        let sums: Vec<_> = sums.collect();
        if !self.sums.is_empty() {
            let both = sums.iter().zip(&self.sums);
            let loads = both.map(|(now, before)| WorkerLoad::of(now.since(*before)));
            self.loads = loads.collect();
        }
        self.sums = sums;
    }

    /// A worker's load in the last whole interval; `None` while it is unknown or the worker does not run.
    pub(crate) fn of(&self, worker: u8) -> Option<WorkerLoad> {
        self.loads.get(usize::from(worker)).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bng_shm::{Capacities, Dataplane};

    #[test]
    fn load_is_of_the_last_interval_alone() {
        let capacities = Capacities::of_gateway(1, 2, 1, 0, 0);
        let (mut dataplane, publisher) = Dataplane::in_process(capacities).unwrap();
        let worker = dataplane.worker(0).unwrap();
        let mut load = Load::default();
        worker.count(Counter::BusyCycles, 1_000_000);
        load.sample(&publisher, 1);
        assert_eq!(load.of(0), None, "no interval is over yet");
        worker.count(Counter::BusyCycles, 300);
        worker.count(Counter::IdleCycles, 900);
        worker.count(Counter::RxAccess, 2);
        worker.count(Counter::TakenOver, 1);
        load.sample(&publisher, 1);
        let expected = WorkerLoad {
            busy_ratio: 0.25,
            cycles_per_packet: Some(100.0),
        };
        assert_eq!(load.of(0), Some(expected));
        worker.count(Counter::IdleCycles, 5);
        load.sample(&publisher, 1);
        let idle = load.of(0).unwrap();
        assert_eq!((idle.busy_ratio, idle.cycles_per_packet), (0.0, None));
        load.sample(&publisher, 1);
        assert_eq!(load.of(0), None, "a worker that stands still has no load");
        assert_eq!(load.of(1), None);
    }
}
