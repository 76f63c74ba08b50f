//! Clients that are kept out because they keep failing, as operators see them.

use bng_pppoe::{LockedOut, LockoutKey};
use serde::Serialize;
use utoipa::ToSchema;

use crate::driver::Driver;
use crate::publish::Clock;
use crate::selection::Subscriber;
use crate::settings::Settings;
use crate::views::text;

/// A client that gets no PADO: a line or, with `circuit_id`, all clients of a circuit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct LockoutView {
    /// Name of the access port.
    pub port: String,
    /// MAC address of a line.
    pub mac: Option<String>,
    /// S-VLAN id of a line, if its frames have a tag.
    pub s_vlan: Option<u16>,
    /// C-VLAN id of a line, if its frames have two tags.
    pub c_vlan: Option<u16>,
    /// Agent-Circuit-Id of a circuit.
    pub circuit_id: Option<String>,
    /// Failures in a row.
    pub failures: u8,
    /// Time until it may dial again.
    pub ms_left: u64,
}

/// What came of letting clients in again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct Unlocked {
    /// How many.
    pub unlocked: usize,
}

impl LockoutView {
    fn new(settings: &Settings, locked: &LockedOut, clock: Clock) -> Self {
        let left = locked.until.since(clock.time()).as_millis();
        let mut view = Self {
            port: String::new(),
            mac: None,
            s_vlan: None,
            c_vlan: None,
            circuit_id: None,
            failures: locked.failures,
            ms_left: u64::try_from(left).unwrap_or(u64::MAX),
        };
        let port = match &locked.client {
            LockoutKey::Line(line) => {
                let tag = |id: u16| (id != 0).then_some(id);
                view.mac = Some(line.mac.to_string());
                view.s_vlan = tag(line.s_vlan);
                view.c_vlan = tag(line.c_vlan);
                line.port
            }
            LockoutKey::Circuit(port, id) => {
                view.circuit_id = Some(text(id));
                *port
            }
        };
        settings.access_name(port.0).clone_into(&mut view.port);
        view
    }
}

fn is_meant(client: &LockoutKey, wanted: &Subscriber) -> bool {
    let (port, mac, circuit) = match client {
        LockoutKey::Line(line) => (line.port, Some(line.mac), None),
        LockoutKey::Circuit(port, id) => (*port, None, Some(id)),
    };
    wanted.access_port.is_none_or(|it| it == port.0)
        && wanted.mac.is_none_or(|it| Some(it) == mac)
        && (wanted.circuit_id.as_ref())
            .is_none_or(|it| circuit.is_some_and(|id| **id == *it.as_bytes()))
}

/// Those that are kept out now.
pub(crate) fn list(driver: &Driver, clock: Clock) -> Vec<LockoutView> {
    let locked = driver.engine.locked_out(clock.time());
    let views = locked.map(|it| LockoutView::new(&driver.settings, &it, clock));
    let mut views: Vec<_> = views.collect();
    views.sort_unstable_by_key(|view| std::cmp::Reverse(view.ms_left));
    views
}

/// Lets clients in again, by port, MAC address or circuit.
pub(crate) fn unlock(driver: &mut Driver, wanted: &Subscriber, clock: Clock) -> Unlocked {
    let locked = driver.engine.locked_out(clock.time());
    let meant = locked.map(|it| it.client).filter(|it| is_meant(it, wanted));
    let meant: Vec<_> = meant.collect();
    let done = meant.iter().filter(|client| driver.engine.unlock(client));
    Unlocked {
        unlocked: done.count(),
    }
}
