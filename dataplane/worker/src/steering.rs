//! How frames come to the queue of one worker. Hand-over by owner stands behind every way: a frame that comes to another
//! worker than its session's is passed on, in order.
//!
//! What a port can do is tried in this order: hash on the PPPoE session id (RSS), flow rules on its low bits, nothing. Core
//! ports have no rules: which worker a public port belongs to changes with every session, faster than a NIC's table.

use bng_config::PortRole;
use bng_shm::Steering;
use rte_rs::{Port, PppoeMatch, PppoeRule, RssTypes};

/// What decides about a port's steering.
#[derive(Debug, Clone, Copy)]
pub struct Offer {
    /// Access or core.
    pub role: PortRole,
    /// Workers of the process.
    pub workers: u16,
    /// Receive queues in use.
    pub queues: u16,
    /// RSS types in use.
    pub rss: RssTypes,
}

/// A port's steering and why it is that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub steering: Steering,
    /// Why, for the operator.
    pub reason: String,
}

/// A port that can be given rules.
pub trait Rules {
    /// Adds one; the driver's reason if it does not take it.
    ///
    /// # Errors
    /// The driver's reason.
    fn add(&self, rule: &PppoeRule) -> Result<(), String>;
    /// Removes all of them.
    fn flush(&self);
}

impl Rules for Port {
    fn add(&self, rule: &PppoeRule) -> Result<(), String> {
        self.add_rule(rule).map_err(|error| error.to_string())
    }

    fn flush(&self) {
        self.flush_rules();
    }
}

/// The rules that spread session ids evenly over `queues`: by as many low bits as it takes, for 0, 1 and 2 tags.
fn rules(queues: u16, by: PppoeMatch) -> impl Iterator<Item = PppoeRule> {
    let values = queues.checked_next_power_of_two().unwrap_or(1 << 15);
    (0..=2).flat_map(move |tags| {
        (0..values).map(move |session| PppoeRule {
            by,
            tags,
            mask: values - 1,
            session,
            queue: session % queues.max(1),
        })
    })
}

/// Chooses, and gives the port its rules if it is to have some.
pub fn choose(offer: &Offer, port: &impl Rules) -> Choice {
    let choice = |steering, reason: &str| Choice {
        steering,
        reason: reason.to_owned(),
    };
    if offer.workers <= 1 {
        return choice(Steering::Single, "one worker");
    }
    if offer.queues <= 1 {
        return choice(Steering::HandOver, "the port has one receive queue");
    }
    if offer.role == PortRole::Core {
        let reason = if offer.rss.is_empty() {
            "a core port without RSS"
        } else {
            "a core port: RSS on addresses and ports"
        };
        return choice(Steering::HandOver, reason);
    }
    if offer.rss.contains(RssTypes::PPPOE) {
        return choice(Steering::RssPppoe, "the port hashes on PPPoE");
    }
    let mut refusal = String::new();
    for by in [PppoeMatch::Pppoes, PppoeMatch::Raw] {
        match rules(offer.queues, by).try_for_each(|rule| port.add(&rule)) {
            Ok(()) => {
                let how = match by {
                    PppoeMatch::Pppoes => "the port takes rules on PPPoE sessions",
                    PppoeMatch::Raw => "the port takes rules on raw bytes",
                };
                return choice(Steering::FlowRules, how);
            }
            Err(reason) => {
                // All of them or none: half of the sessions on one queue would be worse.
                port.flush();
                if refusal.is_empty() {
                    refusal = reason;
                }
            }
        }
    }
    choice(
        Steering::HandOver,
        &format!("no RSS on PPPoE and no rules: {refusal}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// A port with a table of so many rules of one kind.
    struct Table {
        takes: Option<PppoeMatch>,
        room: usize,
        rules: RefCell<Vec<PppoeRule>>,
    }

    impl Table {
        fn new(takes: Option<PppoeMatch>, room: usize) -> Self {
            Self {
                takes,
                room,
                rules: RefCell::default(),
            }
        }
    }

    impl Rules for Table {
        fn add(&self, rule: &PppoeRule) -> Result<(), String> {
            let mut rules = self.rules.borrow_mut();
            if self.takes != Some(rule.by) {
                return Err("not supported".to_owned());
            }
            if rules.len() == self.room {
                return Err("table full".to_owned());
            }
            rules.push(*rule);
            Ok(())
        }

        fn flush(&self) {
            self.rules.borrow_mut().clear();
        }
    }

    const ACCESS: Offer = Offer {
        role: PortRole::Access,
        workers: 3,
        queues: 3,
        rss: RssTypes::NONE,
    };

    #[test]
    fn the_best_a_port_offers_is_taken() {
        let none = Table::new(None, 0);
        let core = Offer {
            role: PortRole::Core,
            rss: RssTypes::IPV4 | RssTypes::PPPOE,
            ..ACCESS
        };
        for (offer, port, steering, reason) in [
            (
                Offer {
                    workers: 1,
                    ..ACCESS
                },
                &none,
                Steering::Single,
                "one worker",
            ),
            (
                Offer {
                    queues: 1,
                    ..ACCESS
                },
                &none,
                Steering::HandOver,
                "the port has one receive queue",
            ),
            (
                Offer {
                    rss: RssTypes::PPPOE,
                    ..ACCESS
                },
                &none,
                Steering::RssPppoe,
                "the port hashes on PPPoE",
            ),
            (
                Offer {
                    rss: RssTypes::IPV4,
                    ..ACCESS
                },
                &none,
                Steering::HandOver,
                "no RSS on PPPoE and no rules: not supported",
            ),
            (
                ACCESS,
                &Table::new(Some(PppoeMatch::Pppoes), 100),
                Steering::FlowRules,
                "the port takes rules on PPPoE sessions",
            ),
            (
                ACCESS,
                &Table::new(Some(PppoeMatch::Raw), 100),
                Steering::FlowRules,
                "the port takes rules on raw bytes",
            ),
            (
                core,
                &none,
                Steering::HandOver,
                "a core port: RSS on addresses and ports",
            ),
        ] {
            let choice = choose(&offer, port);
            assert_eq!(
                (choice.steering, choice.reason.as_str()),
                (steering, reason)
            );
        }
    }

    #[test]
    fn a_table_too_small_for_all_rules_is_left_empty() {
        let port = Table::new(Some(PppoeMatch::Pppoes), 11);
        let choice = choose(&ACCESS, &port);
        assert_eq!(choice.steering, Steering::HandOver);
        assert_eq!(choice.reason, "no RSS on PPPoE and no rules: table full");
        assert!(port.rules.borrow().is_empty());
    }

    #[test]
    fn every_session_id_has_one_rule_and_queues_share_evenly() {
        for queues in 1..=8 {
            let rules: Vec<_> = rules(queues, PppoeMatch::Pppoes).collect();
            for tags in 0..=2 {
                let mut load = vec![0u32; usize::from(queues)];
                for id in 0..=u16::MAX {
                    let mut fit = rules
                        .iter()
                        .filter(|rule| rule.tags == tags && id & rule.mask == rule.session);
                    let rule = fit.next().unwrap();
                    assert!(fit.next().is_none());
                    load[usize::from(rule.queue)] += 1;
                }
                let (least, most) = (load.iter().min(), load.iter().max());
                assert!(most.unwrap() <= &(least.unwrap() * 2), "{load:?}");
            }
        }
    }
}
