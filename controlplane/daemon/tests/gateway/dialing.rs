//! A session from PADI to its end.

use std::net::Ipv4Addr;

use bng_shm::{BlockOwner, Event, Pools, SessionState};
use bng_wire::{VlanStack, VlanTag};

use crate::client::Client;
use crate::world::{CONFIG, World};

fn alice() -> Client {
    Client::new(1, 0, "alice", "wonderland")
}

fn bob() -> Client {
    Client::new(2, 2, "bob", "builder")
}

/// Who gets packets from the core for the first port of a session's block.
fn block_owner(world: &World, client: &Client) -> Option<BlockOwner> {
    let reader = world.reader();
    let mut pools = Pools::default();
    assert!(reader.refresh_pools(&mut pools));
    let block = world.entry(client).nat.unwrap();
    let range = pools.find(block.address).unwrap();
    reader.block_owner(range, block.address, block.first_port)
}

#[test]
fn a_subscriber_dials_in_and_the_operator_ends_it() {
    let mut world = World::new(CONFIG);
    let mut clients = [alice()];
    world.dial(&mut clients);

    let address = clients[0].address.unwrap();
    assert_eq!(address.octets()[..3], [100, 64, 0]);
    assert_eq!(clients[0].dns, Some(Ipv4Addr::new(9, 9, 9, 9)));
    let entry = world.entry(&clients[0]);
    assert_eq!(entry.framed_ip, address);
    assert_eq!(entry.gateway_ip, Ipv4Addr::new(100, 64, 0, 1));
    assert_eq!(entry.client_mac, clients[0].mac.0);
    assert_eq!(entry.mtu, 1492);
    let block = entry.nat.unwrap();
    assert_eq!((block.size, block.first_port % 1024), (1024, 0));
    let owner = block_owner(&world, &clients[0]).unwrap();
    assert_eq!(owner.slot, world.slot(&clients[0]));
    assert_eq!(owner.generation, entry.generation);

    // The owner counts; control reads.
    let slot = world.slot(&clients[0]);
    let worker = world.worker(entry.owner.into());
    worker.count_up(slot, 100, 1);
    worker.count_down(slot, 1_000);
    let detail = world.session(&clients[0]).unwrap();
    let json = serde_json::to_value(&detail).unwrap();
    assert_eq!(json["user"], "alice");
    assert_eq!(json["id"], format!("access0-{}", clients[0].session_id));
    assert_eq!(json["downstream_bytes"], 1_000);
    assert_eq!(json["ppp"]["ipcp"], "Opened");
    assert_eq!(json["nat"]["last_port"], block.first_port + 1023);
    assert_eq!(json["adopted"], false);
    assert_eq!(world.status().pools.address[0].used, 1);

    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, clients| {
        clients[0].over && world.sessions().total == 0
    });
    assert!(clients[0].terminated, "a Terminate-Request came first");
    assert_eq!(world.entry(&clients[0]).state, SessionState::Free);
    let history = world.history();
    assert_eq!(history.items[0].cause, "operator");
    assert!(history.items[0].was_up);
    assert_eq!(history.items[0].traffic.upstream_bytes, 100);
    let pools = &world.status().pools;
    assert_eq!(pools.address[0].used, 0);
    assert_eq!((pools.nat[0].used, pools.nat[0].resting), (0, 1));
    assert!(!world.end(&clients[0]), "it is gone");

    // The same subscriber gets the same address again.
    world.dial(&mut clients);
    assert_eq!(clients[0].address, Some(address));
}

#[test]
fn the_port_block_leads_nowhere_as_soon_as_the_session_is_down() {
    let mut world = World::new(CONFIG);
    let mut clients = [alice()];
    world.dial(&mut clients);
    let reader = world.reader();
    let block = world.entry(&clients[0]).nat.unwrap();
    let mut pools = Pools::default();
    assert!(reader.refresh_pools(&mut pools));
    let range = *pools.find(block.address).unwrap();
    clients[0].hang_up();
    world.until("withdrawn", &mut clients, |_, _| {
        reader
            .block_owner(&range, block.address, block.first_port)
            .is_none()
    });
    world.until("gone", &mut clients, |world, _| world.sessions().total == 0);
    assert_eq!(world.history().items[0].cause, "peer_padt");
}

#[test]
fn sessions_spread_over_workers_and_ports_keep_their_own_ids() {
    let mut world = World::new(CONFIG);
    let mut clients: Vec<_> = (0..6)
        .map(|n| {
            Client::new(
                10 + n,
                if n % 3 == 0 { 2 } else { 0 },
                "alice",
                "wonderland",
            )
        })
        .collect();
    world.dial(&mut clients);
    let owned: Vec<_> = (world.status().workers.iter())
        .map(|worker| worker.sessions)
        .collect();
    assert_eq!(owned[..2], [3, 3]);
    let mut addresses: Vec<_> = clients.iter().map(|c| c.address.unwrap()).collect();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 6);
    let ports: Vec<_> = world.sessions().items.into_iter().map(|s| s.port).collect();
    assert_eq!(
        ports,
        [
            "access0", "access0", "access0", "access0", "access1", "access1"
        ]
    );
}

#[test]
fn tagged_subscribers_are_answered_with_their_tags() {
    let mut world = World::new(CONFIG);
    let tag = |tpid, tci| VlanTag { tpid, tci };
    let mut clients = [alice(), bob()];
    clients[0].vlans = VlanStack::double(tag(0x88a8, 100), tag(0x8100, 7));
    clients[1].vlans = VlanStack::single(tag(0x8100, 200));
    world.dial(&mut clients);
    let vlans = world.entry(&clients[0]).vlans;
    assert_eq!((vlans.s_vlan, vlans.c_vlan), (Some(100), Some(7)));
    assert!(vlans.outer_is_88a8);
    let vlans = world.entry(&clients[1]).vlans;
    assert_eq!((vlans.s_vlan, vlans.c_vlan), (Some(200), None));
}

#[test]
fn a_wrong_password_is_refused_counted_and_leaves_nothing() {
    let mut world = World::new(CONFIG);
    let mut clients = [
        Client::new(1, 0, "alice", "looking-glass"),
        Client::new(2, 0, "mallory", "x"),
    ];
    clients.iter_mut().for_each(Client::dial);
    world.until("refused", &mut clients, |world, clients| {
        clients.iter().all(|c| c.refused.is_some() && c.over) && world.sessions().total == 0
    });
    assert_eq!(world.engine_counted("outcome", "pap_nak"), 2);
    assert_eq!(world.counted("auth_wrong_password"), 1);
    assert_eq!(world.counted("auth_unknown_user"), 1);
    let history = world.history();
    assert!(
        history
            .items
            .iter()
            .all(|it| it.cause == "wrong_credentials" && !it.was_up)
    );
    assert_eq!(world.status().pools.address[0].used, 0);
}

#[test]
fn an_empty_pool_is_a_cause_of_its_own_and_the_next_one_gets_what_comes_back() {
    let config = CONFIG.replace("100.64.0.0/28", "100.64.0.2/31");
    let mut world = World::new(&config);
    let mut clients = [alice(), bob(), Client::new(3, 0, "carol", "christmas")];
    world.dial(&mut clients[..2]);
    clients[2].dial();
    world.until("refused", &mut clients, |world, clients| {
        clients[2].over && world.sessions().total == 2
    });
    assert_eq!(clients[2].refused.as_deref(), Some("no address available"));
    assert_eq!(world.counted("pool_empty"), 1);
    assert_eq!(world.history().items[0].cause, "pool_empty");

    clients[0].hang_up();
    world.until("one left", &mut clients, |world, _| {
        world.sessions().total == 1
    });
    let free = clients[0].address;
    world.dial(&mut clients[2..]);
    assert_eq!(clients[2].address, free);
}

#[test]
fn no_port_block_is_refused_and_gives_the_address_back() {
    // Two blocks: two addresses with one whole block each.
    let config = CONFIG.replace("block_size: 1024", "block_size: 16384, first_port: 49152");
    let mut world = World::new(&config);
    let mut clients = [alice(), bob(), Client::new(3, 0, "carol", "christmas")];
    world.dial(&mut clients[..2]);
    clients[2].dial();
    world.until("refused", &mut clients, |world, clients| {
        clients[2].over && world.sessions().total == 2
    });
    assert_eq!(world.counted("blocks_empty"), 1);
    assert_eq!(world.status().pools.address[0].used, 2);
}

#[test]
fn a_renegotiation_stops_forwarding_and_keeps_the_address() {
    let mut world = World::new(CONFIG);
    let mut clients = [alice()];
    world.dial(&mut clients);
    let before = world.entry(&clients[0]);
    clients[0].renegotiate();
    world.until("down", &mut clients, |world, clients| {
        // The entry goes down before the new negotiation can bring it up again.
        clients[0].up || world.entry(&clients[0]).state == SessionState::Negotiating
    });
    world.until("up again", &mut clients, |world, clients| {
        clients[0].up && world.entry(&clients[0]).state == SessionState::Forwarding
    });
    assert_eq!(world.entry(&clients[0]), before);
    assert_eq!(world.engine_counted("outcome", "lcp_renegotiated"), 1);
    assert_eq!(world.status().pools.address[0].used, 1);
}

#[test]
fn discovery_is_answered_when_the_dataplane_has_told_the_ports_address() {
    let mut world = World::asleep(CONFIG);
    world.start_control();
    world.start_silent_dataplane();
    let mut clients = [alice()];
    clients[0].dial();
    world.until("PADI counted", &mut clients, |world, _| {
        world.counted("punt_no_mac") == 1
    });
    world.publish_ports(1);
    world.dial(&mut clients);
    world.until("start noticed", &mut clients, |world, _| {
        world.counted("dataplane_started") == 1
    });
    assert_eq!(world.engine_counted("outcome", "padi"), 1);
}

#[test]
fn workers_requests_reach_the_netlink_watcher_and_the_log() {
    let mut world = World::new(CONFIG);
    let mut clients = [alice()];
    world.dial(&mut clients);
    let address = Ipv4Addr::new(192, 0, 2, 7);
    let slot = world.slot(&clients[0]);
    let generation = world.entry(&clients[0]).generation;
    let worker = world.worker(1);
    assert!(worker.tell(Event::ResolveNeighbour {
        port: 1,
        address: address.into()
    }));
    assert!(worker.tell(Event::BlockExhausted { slot, generation }));
    worker.pay_bell();
    let wanted = world.resolved.as_mut().unwrap().blocking_recv().unwrap();
    assert_eq!((wanted.port, wanted.address), (1, address.into()));
    world.until("counted", &mut clients, |world, _| {
        world.counted("block_exhausted") == 1
    });
}
