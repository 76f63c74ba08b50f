//! The MAC addresses of the access ports, which only bng-dataplane knows.
//!
//! The engine is made for fixed addresses. When one becomes known or another (the dataplane started, perhaps with other
//! ports), a new engine takes the sessions over from the old one, as after a restart of this process.

use bng_pppoe::AccessConcentrator;
use bng_shm::Publisher;
use bng_wire::MacAddr;

use crate::driver::Driver;
use crate::publish::Clock;
use crate::sessions::End;

/// Cause of the end of sessions that were not up when the engine changed.
const PORT_CHANGED: &str = "port_changed";

/// What the dataplane has said of a port's MAC address, now or when it last ran.
pub(crate) fn port_mac(publisher: &Publisher, port: u8) -> Option<MacAddr> {
    let mac = MacAddr(publisher.port_status(port)?.mac);
    mac.is_unicast().then_some(mac)
}

/// Looks at all access ports and changes the engine if an address has changed.
pub(crate) fn follow(driver: &mut Driver, clock: Clock) {
    let mut config = None;
    for (access, index) in (0usize..).zip(&driver.settings.access_ports) {
        let Some(mac) = port_mac(&driver.publisher, *index) else {
            continue;
        };
        if driver.engine.config().ports[access].mac != mac {
            let config = config.get_or_insert_with(|| driver.engine.config().clone());
            config.ports[access].mac = mac;
            let port = driver.settings.access_name(access as u8);
            tracing::info!(port, %mac, "access port is answered on with this address");
        }
    }
    if let Some(config) = config {
        change_engine(driver, config, clock);
    }
}

fn change_engine(driver: &mut Driver, config: bng_pppoe::Config, clock: Clock) {
    let mut seed = [0; 32];
    let made = getrandom::fill(&mut seed).map_err(|error| error.to_string());
    let made = made.and_then(|()| {
        AccessConcentrator::new(config, clock.time(), seed).map_err(|error| error.to_string())
    });
    let engine = match made {
        Ok(engine) => engine,
        Err(error) => {
            tracing::error!(error, "access port is not answered on");
            return;
        }
    };
    let old = std::mem::replace(&mut driver.engine, engine);
    driver.add_engine_counters(&old);
    let sessions: Vec<_> = (driver.sessions.iter())
        .map(|live| {
            (
                live.slot(),
                live.session,
                live.line.mac,
                live.vlans,
                live.end,
            )
        })
        .collect();
    for (slot, session, mac, vlans, end) in sessions {
        let record = old.record(session).filter(|_| end.is_none());
        let adopted = record.is_some_and(|it| driver.engine.adopt(clock.time(), it).is_ok());
        if adopted {
            continue;
        }
        // The id rests in the new engine, longer than any worker can know the slot.
        driver.engine.expel(clock.time(), session, mac, vlans);
        match end {
            Some(end) => driver.sessions.set_end(
                session,
                End {
                    release: false,
                    ..end
                },
            ),
            None => {
                let end = End {
                    cause: PORT_CHANGED,
                    was_up: driver
                        .sessions
                        .get(session)
                        .is_some_and(|it| it.record.is_some()),
                    release: false,
                };
                driver.withdraw(slot, end, clock);
            }
        }
    }
}
