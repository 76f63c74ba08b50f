//! Stage: PPPoE and PPP headers of a session frame.

use bng_wire::ethernet::EthFrame;
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, SessionFrame};

use crate::classify::pppoe_reason;
use crate::verdict::Step;

/// The PPP frame in what follows the link layer, and the offset of its information field in the Ethernet frame.
#[inline(always)]
pub(crate) fn session<'a>(link: &EthFrame, bytes: &'a [u8]) -> Step<(SessionFrame<'a>, usize)> {
    let ppp = pppoe::parse_session(bytes).map_err(pppoe_reason)?;
    Ok((ppp, link.payload + PPPOE_LEN + PPP_LEN))
}
