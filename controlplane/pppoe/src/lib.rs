//! PPPoE discovery and PPP as a sans-IO state machine.
