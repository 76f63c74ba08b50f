//! How many sessions a user may have, and whose an address is.

use bng_shm::SessionState;

use crate::client::Client;
use crate::world::{CONFIG, World};

fn config(auth: &str) -> String {
    CONFIG.replace("auth:\n", &format!("auth:\n{auth}"))
}

fn of_alice(last: u8) -> Client {
    Client::new(last, 0, "alice", "wonderland")
}

/// Turns until something is so, and sees at every turn that no address is two sessions'.
fn until(
    world: &mut World,
    what: &str,
    clients: &mut [Client],
    mut so: impl FnMut(&World, &[Client]) -> bool,
) {
    world.until(what, clients, |world, clients| {
        let entries = clients.iter().filter(|client| client.session_id != 0);
        let entries = entries.filter_map(|it| world.reader().session(world.slot(it))?.ok());
        let mut held: Vec<_> = entries
            .filter(|it| it.state != SessionState::Free && !it.framed_ip.is_unspecified())
            .map(|it| it.framed_ip)
            .collect();
        let count = held.len();
        held.sort();
        held.dedup();
        assert_eq!(held.len(), count, "an address of two sessions");
        so(world, clients)
    });
}

#[test]
fn a_user_at_the_limit_gets_a_new_session_in_place_of_the_oldest() {
    let mut world = World::new(&config("  max_sessions_per_user: 2\n"));
    let mut clients = [of_alice(1), of_alice(2), of_alice(3)];
    world.dial(&mut clients[..1]);
    world.dial(&mut clients[1..2]);
    clients[2].dial();
    until(&mut world, "the third", &mut clients, |world, clients| {
        clients[2].up && clients[0].over && world.sessions().total == 2
    });
    assert!(!clients[0].terminated, "nobody waits for its answer");
    assert_ne!(clients[2].address, clients[1].address);
    assert!(clients[1].up && !clients[1].over);
    let history = world.history();
    assert_eq!(history.total, 1);
    assert_eq!(history.items[0].cause, "replaced");
    assert!(history.items[0].was_up);
    assert_eq!(world.counted("user_replaced"), 1);

    // The limit holds for sessions of an earlier run as well.
    world.stop_control();
    world.start_control();
    clients[0].dial();
    until(&mut world, "again", &mut clients, |world, clients| {
        clients[0].up && clients[1].over && world.sessions().total == 2
    });
    assert!(clients[2].up && !clients[2].over);
}

#[test]
fn who_takes_the_place_of_its_only_session_gets_that_one_s_address() {
    let mut world = World::new(&config("  max_sessions_per_user: 1\n"));
    let mut clients = [of_alice(1), of_alice(2)];
    world.dial(&mut clients[..1]);
    let address = clients[0].address;
    clients[1].dial();
    until(&mut world, "the other", &mut clients, |_, clients| {
        clients[1].up && clients[0].over
    });
    assert_eq!(clients[1].address, address);
}

#[test]
fn beyond_the_limit_the_new_session_is_refused_where_that_is_configured() {
    let limit = "  max_sessions_per_user: 1\n  beyond_max: refuse\n";
    let mut world = World::new(&config(limit));
    let mut clients = [
        of_alice(1),
        of_alice(2),
        Client::new(3, 0, "bob", "builder"),
    ];
    world.dial(&mut clients[..1]);
    clients[1].dial();
    clients[2].dial();
    until(&mut world, "both", &mut clients, |world, clients| {
        clients[1].over && clients[2].up && world.sessions().total == 2
    });
    assert_eq!(clients[1].refused.as_deref(), Some("too many sessions"));
    assert!(clients[0].up);
    assert_eq!(world.counted("user_limit"), 1);
    assert_eq!(world.history().items[0].cause, "aaa_refused");

    clients[0].hang_up();
    until(&mut world, "the end", &mut clients, |world, _| {
        world.sessions().total == 1
    });
    clients[1].dial();
    until(&mut world, "room", &mut clients, |_, clients| clients[1].up);
}

#[test]
fn a_user_with_an_address_of_its_own_takes_it_from_its_older_session_alone() {
    let config = CONFIG.replace(
        "password: wonderland",
        "password: wonderland, framed_ip: 100.64.0.9",
    );
    let mut world = World::new(&config);
    let mut clients = [
        of_alice(1),
        of_alice(2),
        Client::new(3, 0, "bob", "builder"),
    ];
    world.dial(&mut clients[..1]);
    assert_eq!(clients[0].address, Some([100, 64, 0, 9].into()));
    clients[1].dial();
    clients[2].dial();
    until(&mut world, "both", &mut clients, |_, clients| {
        clients[1].up && clients[2].up && clients[0].over
    });
    assert_eq!(clients[1].address, Some([100, 64, 0, 9].into()));
    assert_eq!(world.counted("user_replaced"), 1);
}

#[test]
fn an_address_that_another_user_has_is_refused_and_counted() {
    let mut world = World::new(CONFIG);
    let mut clients = [Client::new(1, 0, "bob", "builder"), of_alice(2)];
    world.dial(&mut clients[..1]);
    let taken = clients[0].address.unwrap();
    world.stop_control();
    let own = format!("password: wonderland, framed_ip: {taken}");
    world.configure(&CONFIG.replace("password: wonderland", &own));
    world.start_control();
    clients[1].dial();
    until(&mut world, "refused", &mut clients, |world, clients| {
        clients[1].over && world.sessions().total == 1
    });
    assert_eq!(clients[1].refused.as_deref(), Some("address in use"));
    assert_eq!(world.counted("address_conflict"), 1);
    assert_eq!(world.counted("user_replaced"), 0);

    // Once it is free it is alice's, and bob gets another one.
    clients[0].hang_up();
    clients[1].dial();
    until(&mut world, "alice", &mut clients, |_, clients| {
        clients[1].up
    });
    assert_eq!(clients[1].address, Some(taken));
    clients[0].dial();
    until(&mut world, "bob", &mut clients, |_, clients| clients[0].up);
}

#[test]
fn who_waits_for_an_address_that_workers_may_still_use_is_refused_in_the_end() {
    let config = CONFIG.replace(
        "password: wonderland",
        "password: wonderland, framed_ip: 100.64.0.9",
    );
    let mut world = World::new(&config);
    let mut clients = [of_alice(1), of_alice(2)];
    world.dial(&mut clients[..1]);
    world.no_epoch = true;
    clients[1].dial();
    until(&mut world, "refused", &mut clients, |_, clients| {
        clients[1].refused.is_some() && clients[1].over
    });
    assert_eq!(world.counted("address_conflict"), 1);
    assert!(clients[0].over && !clients[1].up);

    world.no_epoch = false;
    clients[1].dial();
    until(&mut world, "up", &mut clients, |_, clients| clients[1].up);
    assert_eq!(clients[1].address, Some([100, 64, 0, 9].into()));
}

#[test]
fn another_user_on_a_session_that_is_up_has_to_dial_anew() {
    let mut world = World::new(CONFIG);
    let mut clients = [of_alice(1)];
    world.dial(&mut clients);
    clients[0].become_user("bob", "builder");
    clients[0].renegotiate();
    until(&mut world, "the end", &mut clients, |world, clients| {
        clients[0].over && world.sessions().total == 0
    });
    assert_eq!(world.counted("auth_user_changed"), 1);
    assert_eq!(world.status().pools.address[0].used, 0);
}
