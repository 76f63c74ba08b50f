//! The MAC addresses of the access ports, which only bng-dataplane knows.

use bng_pppoe::PortId;
use bng_shm::Publisher;
use bng_wire::MacAddr;

use crate::driver::Driver;
use crate::publish::Clock;

/// What the dataplane has said of a port's MAC address, now or when it last ran.
pub(crate) fn port_mac(publisher: &Publisher, port: u8) -> Option<MacAddr> {
    let mac = MacAddr(publisher.port_status(port)?.mac);
    mac.is_unicast().then_some(mac)
}

/// Looks at all access ports and tells the engine of an address that has become known or has changed (the dataplane
/// started, perhaps with other ports).
pub(crate) fn follow(driver: &mut Driver, clock: Clock) {
    for (access, index) in (0u8..).zip(&driver.settings.access_ports) {
        let Some(mac) = port_mac(&driver.publisher, *index) else {
            continue;
        };
        if driver.engine.config().ports[usize::from(access)].mac != mac {
            let port = driver.settings.access_name(access);
            tracing::info!(port, %mac, "access port is answered on with this address");
            driver
                .engine
                .set_port_mac(clock.time(), PortId(access), mac);
        }
    }
}
