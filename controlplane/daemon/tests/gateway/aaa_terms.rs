//! Terms that AAA gives a session: address, pool, rates, filter; changed while it lives, and kept over a restart.

use std::time::Duration;

use bng_aaa::{Change, RateLimit, Refusal};
use bng_shm::{FilterId, Policy, Rate};

use crate::client::Client;
use crate::world::{CONFIG, World};

const POLICIES: &str = r#"
policies:
  - {name: bronze, up: {rate_kbps: 1000}}
  - {name: gold, down: {rate_kbps: 9000}}
filters:
  - {name: games, other_up: drop}
  - {name: mail}
"#;

const OFFICE: &str =
    "  - {name: office, ranges: [100.65.0.0/28], gateway: 100.65.0.1, dns: [9.9.9.9]}\n";

fn alice() -> Client {
    Client::new(1, 0, "alice", "wonderland")
}

fn world_of(terms: &str) -> World {
    let terms = format!("password: wonderland, {terms}");
    let config = CONFIG.replace("password: wonderland", &terms);
    World::new(&config.replace("nat:\n", &format!("{OFFICE}nat:\n")))
}

#[test]
fn the_pool_of_a_user_comes_before_the_order_of_pools() {
    let mut world = world_of("pool: office");
    let mut clients = [alice(), Client::new(2, 0, "bob", "builder")];
    world.dial(&mut clients);
    assert_eq!(clients[0].address.unwrap().octets()[..2], [100, 65]);
    assert_eq!(clients[1].address.unwrap().octets()[..2], [100, 64]);
    assert_eq!(world.entry(&clients[0]).nat, None);
    let pool = world.session(&clients[0]).unwrap().pool;
    assert_eq!(pool.as_deref(), Some("office"));
}

#[test]
fn a_user_s_address_may_be_of_any_pool_and_is_its_own_after_a_restart() {
    let mut world = world_of("framed_ip: 100.65.0.9");
    let mut clients = [alice(), Client::new(2, 0, "bob", "builder")];
    world.dial(&mut clients);
    assert_eq!(clients[0].address, Some([100, 65, 0, 9].into()));
    let before = world.entry(&clients[0]);
    world.stop_control();
    world.start_control();
    assert_eq!(world.entry(&clients[0]), before);
    clients[0].hang_up();
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 1
    });
    world.dial(&mut clients[..1]);
    assert_eq!(clients[0].address, Some([100, 65, 0, 9].into()));
}

fn limit(kbps: u32) -> Option<RateLimit> {
    Some(RateLimit {
        kbps,
        burst_bytes: None,
    })
}

#[test]
fn aaa_changes_rates_and_filter_of_a_live_session_and_a_restart_keeps_them() {
    let mut world = World::new(&format!("{CONFIG}{POLICIES}"));
    let mut clients = [alice(), Client::new(2, 0, "bob", "builder")];
    world.dial(&mut clients);
    let bob = world.policy(&clients[1]);
    let change = Change {
        filter_id: Some("gold".to_owned()),
        rate_up: limit(2000),
        interim_interval: Some(Duration::from_secs(60)),
        quota_octets: Some(1 << 40),
        ..Change::default()
    };
    assert_eq!(world.authorize("alice", change), Ok(()));
    let gold = Policy {
        up: Some(Rate {
            kbps: 2000,
            burst_bytes: 25_000,
        }),
        down: Some(Rate {
            kbps: 9000,
            burst_bytes: 112_500,
        }),
        ..Policy::default()
    };
    assert_eq!(world.policy(&clients[0]), Some(gold));
    let filter = Change {
        filter_id: Some("mail".to_owned()),
        ..Change::default()
    };
    assert_eq!(world.authorize("alice", filter), Ok(()));
    let filtered = Policy {
        down: None,
        filter: Some(FilterId(1)),
        ..gold
    };
    assert_eq!(
        world.policy(&clients[0]),
        Some(filtered),
        "a filter is no policy"
    );
    assert_eq!(world.policy(&clients[1]), bob);
    assert!(
        !world
            .session(&clients[0])
            .unwrap()
            .session
            .policy
            .unwrap()
            .by_operator
    );

    let before = world.entry(&clients[0]);
    world.stop_control();
    world.start_control();
    assert_eq!(world.entry(&clients[0]), before);
    assert_eq!(world.policy(&clients[0]), Some(filtered));
    let more = Change {
        rate_down: limit(500),
        ..Change::default()
    };
    assert_eq!(world.authorize("alice", more), Ok(()));
    let now = world.policy(&clients[0]).unwrap();
    assert_eq!(
        (now.up, now.filter),
        (filtered.up, filtered.filter),
        "the rest stays"
    );
    assert_eq!(now.down.unwrap().kbps, 500);
}

#[test]
fn what_aaa_has_changed_stays_when_the_client_negotiates_anew() {
    let mut world = World::new(&format!("{CONFIG}{POLICIES}"));
    let mut clients = [alice()];
    world.dial(&mut clients);
    let change = Change {
        filter_id: Some("gold".to_owned()),
        rate_up: limit(2000),
        session_timeout: Some(Duration::from_secs(3_600)),
        idle_timeout: Some(Duration::from_secs(900)),
        quota_octets: Some(1 << 40),
        interim_interval: Some(Duration::from_secs(60)),
        ..Change::default()
    };
    assert_eq!(world.authorize("alice", change), Ok(()));
    let before = (world.policy(&clients[0]), world.record(&clients[0]));
    // The next run knows as well what was changed.
    clients[0].renegotiate();
    world.until("the client's return", &mut clients, |world, clients| {
        clients[0].up && world.engine_counted("outcome", "ipcp_opened") == 1
    });
    let after = (world.policy(&clients[0]), world.record(&clients[0]));
    assert_eq!(after.0, before.0);
    let (before, after) = (before.1, after.1);
    let times = |it: &bng_shm::Record| (it.session_timeout_s, it.idle_timeout_s, it.quota_octets);
    assert_eq!(times(&after), times(&before));
    assert_eq!(after.terms(), before.terms(), "interim, rates, Filter-Id");
}

#[test]
fn what_aaa_cannot_change_is_refused_with_its_cause_and_nothing_changes() {
    let mut world = World::new(&format!("{CONFIG}{POLICIES}"));
    let mut clients = [alice()];
    world.dial(&mut clients);
    let before = world.policy(&clients[0]);
    let unknown = Change {
        filter_id: Some("gone".to_owned()),
        rate_up: limit(5),
        ..Change::default()
    };
    let known = Change {
        rate_up: limit(5),
        ..Change::default()
    };
    let refused = |world: &mut World, user: &str, change: &Change| {
        world.authorize(user, change.clone()).unwrap_err()
    };
    assert_eq!(
        refused(&mut world, "alice", &unknown),
        Refusal::InvalidAttributeValue
    );
    assert_eq!(refused(&mut world, "bob", &known), Refusal::SessionNotFound);
    let nothing = Change::default();
    assert_eq!(
        refused(&mut world, "alice", &nothing),
        Refusal::MissingAttribute
    );
    assert_eq!(world.policy(&clients[0]), before);

    // Without an epoch nobody says that it is done.
    world.no_epoch = true;
    assert_eq!(
        refused(&mut world, "alice", &known),
        Refusal::ResourcesUnavailable
    );
}

#[test]
fn aaa_s_session_time_counts_from_the_change_on() {
    let mut world = World::new(CONFIG);
    let mut clients = [alice()];
    world.dial(&mut clients);
    let begun = std::time::Instant::now();
    world.until("a second", &mut clients, |_, _| {
        begun.elapsed() > Duration::from_millis(1_200)
    });
    let change = Change {
        session_timeout: Some(Duration::from_secs(1)),
        ..Change::default()
    };
    assert_eq!(world.authorize("alice", change), Ok(()));
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 0
    });
    assert_eq!(world.history().items[0].cause, "session_timeout");
    assert!(begun.elapsed() > Duration::from_millis(2_100));
}
