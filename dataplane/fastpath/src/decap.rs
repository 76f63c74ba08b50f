//! Stage: PPPoE and PPP headers of a session frame.

use bng_wire::ethernet::EthFrame;
use bng_wire::pppoe::{self, PPP_LEN, PPPOE_LEN, SessionFrame};

use crate::classify::pppoe_reason;
use crate::verdict::Step;

/// The PPP frame inside, and the offset of its information field in the Ethernet frame.
#[inline(always)]
pub(crate) fn session<'a>(data: &'a [u8], frame: &EthFrame) -> Step<(SessionFrame<'a>, usize)> {
    let bytes = data.get(frame.payload..).unwrap_or(&[]);
    let ppp = pppoe::parse_session(bytes).map_err(pppoe_reason)?;
    Ok((ppp, frame.payload + PPPOE_LEN + PPP_LEN))
}
