//! RADIUS (RFC 2865, 2866, 2869, 3162, 3579, 5176), sans-IO.
//!
//! - [`packet`]: bytes to attributes and back, authenticators.
//! - [`Nas`]: what is said of a subscriber and its session.
//! - [`terms`]: what a server says of it.
//! - [`Client`]: requests until a server has answered.
//! - [`dynamic`]: requests of others about live sessions.
//! - [`responder`]: the other end, for tests and measurements.

/// Makes the enum of reasons to discard a datagram. The first three are those of [`packet::Malformed`].
macro_rules! discards {
    ($(#[$meta:meta])* $($name:ident = $label:literal, $help:literal;)+) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Discard {
            $( #[doc = $help] $name, )+
        }

        impl Discard {
            /// All, in a fixed order.
            pub const ALL: &'static [Self] = &[ $( Self::$name, )+ ];

            /// The label in metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $( Self::$name => $label, )+ }
            }
        }

        impl From<$crate::radius::packet::Malformed> for Discard {
            fn from(malformed: $crate::radius::packet::Malformed) -> Self {
                use $crate::radius::packet::Malformed;
                match malformed {
                    Malformed::Short => Self::Short,
                    Malformed::Length => Self::Length,
                    Malformed::Attribute => Self::Attribute,
                }
            }
        }
    };
}

pub mod attribute;
pub mod client;
pub mod dynamic;
pub mod packet;
pub mod request;
pub mod responder;
pub mod terms;

use crate::authenticator::{RejectCause, Verdict};
use client::Outcome;
use packet::{Attributes, code};
use terms::Unusable;

pub use client::{Client, Discard, Draft, Kind, Now, Settings, Stats, Transmit};
pub use request::Nas;

/// What the outcome of an Access-Request means, and, where a server's terms cannot be used, which attribute is to blame.
#[must_use]
pub fn verdict(outcome: &Outcome) -> (Verdict, Option<Unusable>) {
    let reject = |cause| (Verdict::Reject(cause), None);
    match outcome {
        Outcome::Answer {
            code: code::ACCESS_ACCEPT,
            attributes,
            ..
        } => match terms::profile(Attributes::of(attributes)) {
            Ok(profile) => (Verdict::Accept(Box::new(profile)), None),
            Err(unusable) => (Verdict::Reject(RejectCause::TermsUnusable), Some(unusable)),
        },
        // PAP and CHAP have no way to put a challenge to the peer: it counts as a reject (RFC 2865 section 4.4).
        Outcome::Answer { .. } => reject(RejectCause::ServerRejected),
        Outcome::Silence | Outcome::Full => reject(RejectCause::ServersSilent),
        // No server can know a name or a password that no attribute can hold.
        Outcome::TooLong => reject(RejectCause::WrongPassword),
    }
}
