//! Timers of a session, and the order of all sessions' next deadlines.

use alloc::collections::BTreeSet;

use crate::Time;

/// The timers a session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Timer {
    /// LCP Restart timer.
    LcpRestart,
    /// IPCP Restart timer.
    IpcpRestart,
    /// IPv6CP Restart timer.
    Ipv6cpRestart,
    /// The peer's credentials are awaited.
    Auth,
    /// The next CHAP challenge is due, or an answer to one.
    Challenge,
    /// The network phase must be reached.
    Setup,
    /// The next Echo-Request is due, unless something was heard.
    Echo,
    /// The session's time is used up.
    Session,
    /// The idle time may be used up.
    Idle,
    /// The next unsolicited router advertisement is due.
    RouterAdvertisement,
}

impl Timer {
    /// All timers.
    pub(crate) const ALL: [Self; 10] = [
        Self::LcpRestart,
        Self::IpcpRestart,
        Self::Ipv6cpRestart,
        Self::Auth,
        Self::Challenge,
        Self::Setup,
        Self::Echo,
        Self::Session,
        Self::Idle,
        Self::RouterAdvertisement,
    ];
}

/// Deadlines of one session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    deadlines: [Option<Time>; Timer::ALL.len()],
}

impl Timers {
    pub(crate) fn arm(&mut self, timer: Timer, deadline: Time) {
        self.deadlines[timer as usize] = Some(deadline);
    }

    pub(crate) fn disarm(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = None;
    }

    pub(crate) fn set(&mut self, timer: Timer, deadline: Option<Time>) {
        self.deadlines[timer as usize] = deadline;
    }

    pub(crate) fn deadline(&self, timer: Timer) -> Option<Time> {
        self.deadlines[timer as usize]
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.deadlines.iter().flatten().min().copied()
    }

    /// Disarms and returns a timer that is due, the earliest first.
    pub(crate) fn expire(&mut self, now: Time) -> Option<Timer> {
        let due = Timer::ALL
            .into_iter()
            .filter_map(|t| Some((self.deadline(t)?, t)))
            .filter(|(deadline, _)| *deadline <= now)
            .min_by_key(|(deadline, _)| *deadline)?
            .1;
        self.disarm(due);
        Some(due)
    }
}

/// Next deadline of every session slot, in order.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    order: BTreeSet<(Time, u32)>,
}

impl Schedule {
    /// Moves `slot` from the deadline it had to the one it has.
    pub(crate) fn set(&mut self, slot: u32, had: &mut Option<Time>, has: Option<Time>) {
        if *had == has {
            return;
        }
        if let Some(deadline) = had.take() {
            self.order.remove(&(deadline, slot));
        }
        if let Some(deadline) = has {
            self.order.insert((deadline, slot));
        }
        *had = has;
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.order.first().map(|(deadline, _)| *deadline)
    }

    /// The slot with the earliest deadline, when that is due.
    pub(crate) fn due(&self, now: Time) -> Option<u32> {
        self.order
            .first()
            .filter(|(deadline, _)| *deadline <= now)
            .map(|(_, slot)| *slot)
    }
}
