//! What the driver itself counts, beside the counters of the engine and of the workers.

macro_rules! tally {
    ($( $name:ident = $label:literal, $help:literal; )+) => {
        /// Something the driver counts.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Count {
            $( #[doc = $help] $name, )+
        }

        impl Count {
            /// All, in a fixed order.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )+ ];

            /// The label in metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $( Self::$name => $label, )+ }
            }

            /// One sentence for operators.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $( Self::$name => $help, )+ }
            }
        }
    };
}

tally! {
    Adopted = "adopted", "Sessions of an earlier run taken over at start.";
    NotAdoptedNegotiating = "not_adopted_negotiating", "Sessions of an earlier run ended at start: they were not up.";
    NotAdoptedRecord = "not_adopted_record", "Sessions of an earlier run ended at start: no whole recovery record.";
    NotAdoptedPort = "not_adopted_port", "Sessions of an earlier run ended at start: their owner or access port is not configured.";
    NotAdoptedVlan = "not_adopted_vlan", "Sessions of an earlier run ended at start: their access port does not serve their VLAN.";
    NotAdoptedAddress = "not_adopted_address", "Sessions of an earlier run ended at start: their address is in no pool or in use.";
    NotAdoptedBlock = "not_adopted_block", "Sessions of an earlier run ended at start: their port block does not fit the NAT pools.";
    NotAdoptedPrefix = "not_adopted_prefix", "Sessions of an earlier run ended at start: their IPv6 prefix is in no pool or in use.";
    NotAdoptedEngine = "not_adopted_engine", "Sessions of an earlier run ended at start: the PPP engine refused the record.";
    AuthAccepted = "auth_accepted", "Credentials accepted.";
    AuthUnknownUser = "auth_unknown_user", "Credentials refused: nobody has this name.";
    AuthWrongPassword = "auth_wrong_password", "Credentials refused: wrong password.";
    AuthServerRejected = "auth_server_rejected", "Credentials refused by a RADIUS server.";
    AuthServersSilent = "auth_servers_silent", "Credentials not decided on: no RADIUS server answered.";
    AuthTermsUnusable = "auth_terms_unusable", "Accepted by a RADIUS server on terms that cannot be met.";
    AuthUserChanged = "auth_user_changed", "Sessions ended: another user authenticated on a session that was up.";
    UserLimit = "user_limit", "Subscribers refused: the user has as many sessions as allowed.";
    UserReplaced = "user_replaced", "Sessions ended for a newer one of the same user.";
    AddressConflict = "address_conflict", "Subscribers refused: the address or prefix they are to have is in use.";
    PoolUnknown = "pool_unknown", "Subscribers refused: AAA names a pool that is not configured.";
    FilterUnknown = "filter_unknown", "Filter-Ids ignored: neither a policy nor a filter has this name.";
    FramedRouteConflict = "framed_route_conflict", "Networks behind subscribers left out: another session, or the same one, has addresses of it.";
    FramedRouteReserved = "framed_route_reserved", "Networks behind subscribers left out: addresses of a pool, a gateway or a port, no hosts', or shorter than /8.";
    FramedRoutesFull = "framed_routes_full", "Networks behind subscribers left out: there are 65,536 already.";
    TermsNotKept = "terms_not_kept", "What AAA said that has no room in the recovery record: a restart of the control plane forgets it.";
    RadiusBusy = "radius_busy", "Credentials not decided on: too many questions wait for RADIUS, or its thread is gone.";
    HistoryLost = "history_lost", "Ended sessions that are missing in the history on disk: it was too slow, full, or cannot be used.";
    StopHeld = "stop_held", "Ended sessions that kept their session id for more than a second: the disk did not take their stop.";
    PoolEmpty = "pool_empty", "Subscribers refused: no free address in any pool.";
    BlocksEmpty = "blocks_empty", "Subscribers refused: no free port block in the NAT pool.";
    PrefixesEmpty = "prefixes_empty", "Subscribers left without an IPv6 or delegated prefix: none was free.";
    NatLogFull = "nat_log_full", "Subscribers refused: the log of NAT port blocks is full of what a collector has not taken.";
    NatLogUnwritable = "nat_log_unwritable", "Subscribers refused: the log of NAT port blocks cannot be written.";
    BlockAdded = "block_added", "Port blocks given to sessions that ran short of ports.";
    BlockLimit = "block_limit", "Sessions that ran short, or out, of ports with all the blocks a subscriber may have; out of them, once a second.";
    BlockNoneLeft = "block_none_left", "Sessions that ran short, or out, of ports on an address without a free block; out of them, once a second.";
    BlockNotLogged = "block_not_logged", "Further port blocks that were not given since the NAT log is full or cannot be written.";
    BlockExhausted = "block_exhausted", "Reports of workers that a subscriber's port blocks have no free port.";
    ResolveAsked = "resolve_asked", "Neighbours workers asked to have resolved.";
    EventUnknown = "event_unknown", "Worker events of a kind this version does not know.";
    PuntPortUnknown = "punt_port_unknown", "Punted frames dropped: not from an access port.";
    PuntNoMac = "punt_no_mac", "Punted frames dropped: the dataplane has not told the port's MAC address yet.";
    PuntStale = "punt_stale", "Punted frames dropped: their session is gone.";
    RingCorrupt = "ring_corrupt", "Rings from workers emptied because an index was nonsense.";
    InjectQueueFull = "inject_queue_full", "Frames dropped: a worker took none for long and the queue before its ring is full.";
    InjectTooLong = "inject_too_long", "Frames dropped: longer than a ring slot.";
    SlotBusy = "slot_busy", "Sessions ended at once: the slot of their id was still in use.";
    PublishFailed = "publish_failed", "Table entries that could not be published; the log says which.";
    RoutesFull = "routes_full", "Publications of routes that left some out: more routes or next hops than the memory holds.";
    DataplaneStarted = "dataplane_started", "Starts of bng-dataplane seen.";
    DataplaneLost = "dataplane_lost", "Ends of bng-dataplane seen.";
}

/// The counts since the process started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally([u64; Count::ALL.len()]);

impl Default for Tally {
    fn default() -> Self {
        Self([0; Count::ALL.len()])
    }
}

impl Tally {
    /// Adds one.
    pub fn add(&mut self, count: Count) {
        self.0[count as usize] += 1;
    }

    /// Adds some.
    pub fn add_some(&mut self, count: Count, some: u64) {
        self.0[count as usize] += some;
    }

    /// One count.
    #[must_use]
    pub fn get(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    /// All counts in order.
    pub fn iter(&self) -> impl Iterator<Item = (Count, u64)> + '_ {
        Count::ALL.iter().map(|count| (*count, self.get(*count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn labels_are_unique_and_every_count_has_its_own_place() {
        let mut tally = Tally::default();
        for count in Count::ALL {
            tally.add(*count);
        }
        assert!(tally.iter().all(|(_, value)| value == 1));
        let labels: HashSet<_> = Count::ALL.iter().map(|count| count.label()).collect();
        assert_eq!(labels.len(), Count::ALL.len());
    }
}
