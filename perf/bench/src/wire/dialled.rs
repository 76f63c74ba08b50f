//! Sessions by dialling in: real PPPoE through the generator's access port with a gateway that has its own control plane, on this
//! machine or another.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bng_wire::MacAddr;

use super::arp;
use super::flows::Subscriber;
use crate::dial::emulator::{Emulator, Plan, Stage};
use crate::dial::subscriber::ClientSettings;

/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// Credentials of the subscribers.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    /// User name, or what it begins with when the subscriber's index follows.
    pub(super) user: String,
    pub(super) numbered: bool,
    pub(super) password: String,
}

/// The subscribers and the router behind the core port.
pub(super) struct Dialled {
    emulator: Emulator,
    settings: ClientSettings,
    router: MacAddr,
    start: Instant,
    to_core: Vec<Vec<u8>>,
    /// When the emulator has something to do next.
    next: Option<Duration>,
}

impl Dialled {
    /// Subscribers that begin to dial in, `rate` a second. `router` is the MAC address of the generator's core port.
    pub(super) fn new(
        sessions: u32,
        rate: f64,
        settings: ClientSettings,
        credentials: &Credentials,
        router: MacAddr,
    ) -> Result<Self> {
        let plan = Plan {
            sessions,
            first: 0,
            rate,
            hold: FOR_EVER,
            traffic: None,
            leave_up: false,
            churn: None,
            padi_flood: None,
            ledger: false,
        };
        let run = getrandom::u64().context("no random numbers")?;
        let emulator = Emulator::new(plan, settings.clone(), run, |index| {
            let user = if credentials.numbered {
                format!("{}{index}", credentials.user)
            } else {
                credentials.user.clone()
            };
            (user.into_bytes(), credentials.password.clone().into_bytes())
        })
        .context("cannot make a histogram")?;
        Ok(Self {
            emulator,
            settings,
            router,
            start: Instant::now(),
            to_core: Vec::new(),
            next: Some(Duration::ZERO),
        })
    }

    /// Whether all subscribers are up.
    ///
    /// # Errors
    /// When a session failed: the run would measure less than was asked for.
    pub(super) fn is_up(&self) -> Result<bool> {
        let sums = &self.emulator.sums;
        if let Some((cause, count)) = sums.failures.iter().chain(&sums.ended).next() {
            bail!(
                "{count} session(s) did not come up or did not stay: {}",
                cause.name()
            );
        }
        Ok(matches!(self.emulator.stage(), Stage::Hold(_)))
    }

    /// The sessions, in order. Empty before they are up.
    pub(super) fn subscribers(&self) -> Vec<Subscriber> {
        let clients = self.emulator.clients().iter();
        clients
            .filter_map(|client| {
                let link = client.link(&self.settings);
                Some(Subscriber {
                    mac: link.src,
                    concentrator: link.dst,
                    vlans: link.vlans,
                    session_id: client.session_id(),
                    address: client.address()?,
                })
            })
            .collect()
    }

    /// A frame on the access port that is no stamped packet.
    pub(super) fn access_frame(&mut self, frame: &[u8]) {
        self.emulator.handle_frame(frame, self.start.elapsed());
        self.next = Some(Duration::ZERO);
    }

    /// The same on the core port.
    pub(super) fn core_frame(&mut self, frame: &[u8]) {
        self.to_core.extend(arp::answer(frame, self.router));
    }

    /// Does what is due; frames to send are given to `access` and `core`. Cheap when nothing is.
    pub(super) fn poll(&mut self, mut access: impl FnMut(&[u8]), mut core: impl FnMut(&[u8])) {
        for frame in self.to_core.drain(..) {
            core(&frame);
        }
        let now = self.start.elapsed();
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        self.emulator.poll(now);
        for frame in self.emulator.take_frames() {
            access(&frame);
        }
        self.next = self.emulator.next_wake();
    }

    /// Begins to end the sessions; [`Self::is_done`] says when they are.
    pub(super) fn hang_up(&mut self) {
        self.emulator.interrupt(self.start.elapsed());
        self.next = Some(Duration::ZERO);
    }

    /// Whether all sessions are ended.
    pub(super) fn is_done(&self) -> bool {
        self.emulator.stage() == Stage::Done
    }
}
