//! Networks behind IPv4 subscribers (Framed-Route): whom they lead to, conflicts, and what a restart keeps of them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use bng_controlplane::kernel::Delta;
use bng_controlplane::request::Request;
use bng_controlplane::selection::{SessionFilter, Subscriber};
use bng_shm::{Network, NetworkOwner, Pools, PortAddresses, SlotIndex};
use bng_wire::pppoe::protocol;

use crate::client::Client;
use crate::world::{CONFIG, World};

const ROUTES: &str = "framed_routes: [198.18.7.0/24, 203.0.113.9]";
/// Hosts in the two networks of alice.
const HOSTS: [Ipv4Addr; 2] = [
    Ipv4Addr::new(198, 18, 7, 200),
    Ipv4Addr::new(203, 0, 113, 9),
];

fn config(more: &str) -> String {
    let text = CONFIG.replace(
        "password: wonderland",
        &format!("password: wonderland, {ROUTES}"),
    );
    text.replace("auth:\n", &format!("auth:\n{more}"))
}

fn alice(last: u8) -> Client {
    Client::new(last, 0, "alice", "wonderland")
}

/// Whom packets for an address are led to as a member of a network.
fn owner(world: &World, address: Ipv4Addr) -> Option<NetworkOwner> {
    let reader = world.reader();
    let mut pools = Pools::default();
    // In the middle of a change there is nothing to be had.
    while !reader.refresh_pools(&mut pools) {
        std::thread::yield_now();
    }
    reader.network_owner(pools.networks(), address.to_bits())
}

/// Whether both networks lead to a client's session, or to nobody.
fn lead_to(world: &World, client: Option<&Client>) -> bool {
    HOSTS
        .iter()
        .all(|host| match (owner(world, *host), client) {
            (None, None) => true,
            (Some(owner), Some(client)) => {
                owner.slot == world.slot(client) && owner.is(world.entry(client).generation)
            }
            _ => false,
        })
}

fn counted(world: &World) -> [u64; 3] {
    [
        "framed_route_conflict",
        "framed_route_reserved",
        "framed_routes_full",
    ]
    .map(|label| world.counted(label))
}

fn shown(world: &World, client: &Client) -> serde_json::Value {
    let detail = serde_json::to_value(world.session(client).unwrap()).unwrap();
    detail["framed_routes"].clone()
}

fn routes() -> serde_json::Value {
    serde_json::json!(["198.18.7.0/24", "203.0.113.9/32"])
}

#[test]
fn networks_lead_to_their_session_while_ipv4_is_open_and_to_nobody_after_it() {
    let ipv6 = "nat: out, ipv6: {prefixes: [2001:db8:0:100::/56]}";
    let mut world = World::new(&config("").replace("nat: out", ipv6));
    let mut clients = [alice(1), Client::new(2, 0, "bob", "builder")];
    clients[0].interface_id = Some(0x77);
    world.dial(&mut clients);
    assert!(lead_to(&world, Some(&clients[0])));
    assert_eq!(owner(&world, Ipv4Addr::new(198, 18, 8, 0)), None);
    assert_eq!(shown(&world, &clients[0]), routes());
    assert_eq!(shown(&world, &clients[1]), serde_json::json!([]));
    assert!(world.entry(&clients[0]).nat.is_some());
    // Whose is this address?
    for (host, total) in [(HOSTS[0], 1), (Ipv4Addr::new(198, 18, 6, 1), 0)] {
        let subscriber = Subscriber {
            ip: Some(host.into()),
            ..Subscriber::default()
        };
        let filter = SessionFilter {
            subscriber,
            ..SessionFilter::default()
        };
        assert_eq!(world.sessions_with(filter).total, total, "{host}");
    }

    clients[0].close(protocol::IPCP);
    world.until("IPCP closed", &mut clients, |world, clients| {
        // Until then a request for IPv4 has no effect (RFC 1661 section 4.1, Stopping), and this client asks once.
        let ppp = world.session(&clients[0]).unwrap().ppp.unwrap();
        ppp.ipcp == "Stopped" && lead_to(world, None)
    });
    assert_eq!(
        shown(&world, &clients[0]),
        routes(),
        "nobody else gets them"
    );
    clients[0].open_ipv4();
    world.until("IPCP open", &mut clients, |world, clients| {
        lead_to(world, Some(&clients[0]))
    });

    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 1
    });
    assert!(lead_to(&world, None));
    let ended = serde_json::to_value(world.history().items).unwrap();
    assert_eq!(ended[0]["framed_routes"], routes());
    world.dial(&mut clients[..1]);
    assert!(lead_to(&world, Some(&clients[0])));
    assert_eq!(counted(&world), [0; 3]);
}

#[test]
fn they_are_withdrawn_at_once_and_free_only_when_every_worker_has_forgotten_the_session() {
    let mut world = World::new(&config(""));
    let mut clients = [alice(1), alice(2)];
    world.dial(&mut clients[..1]);
    world.no_epoch = true;
    clients[0].hang_up();
    world.until("the withdrawal", &mut clients, |world, _| {
        lead_to(world, None)
    });
    clients[1].dial();
    let mut turns = 0;
    world.until("some time", &mut clients, |_, clients| {
        turns += 1;
        assert!(!clients[1].up, "a worker may hold the first session still");
        turns > 100
    });
    world.no_epoch = false;
    world.until("the second", &mut clients, |world, clients| {
        clients[1].up && lead_to(world, Some(&clients[1]))
    });
    assert_eq!(counted(&world), [0; 3]);
}

#[test]
fn a_newer_session_of_the_user_takes_them_from_an_older_one() {
    let mut world = World::new(&config(""));
    let mut clients = [alice(1), alice(2)];
    world.dial(&mut clients[..1]);
    clients[1].dial();
    world.until("the second", &mut clients, |world, clients| {
        clients[1].up && clients[0].over && world.sessions().total == 1
    });
    assert!(lead_to(&world, Some(&clients[1])));
    assert_eq!(world.history().items[0].cause, "replaced");
    assert_eq!(world.counted("user_replaced"), 1);
    assert_eq!(counted(&world), [0; 3]);
}

#[test]
fn where_none_is_replaced_the_newer_session_comes_up_without_and_that_is_counted() {
    let mut world = World::new(&config("  beyond_max: refuse\n"));
    let mut clients = [alice(1), alice(2)];
    world.dial(&mut clients[..1]);
    world.dial(&mut clients[1..]);
    assert!(lead_to(&world, Some(&clients[0])));
    assert_eq!(shown(&world, &clients[1]), serde_json::json!([]));
    assert_eq!(counted(&world), [2, 0, 0]);
    // The end of the one without takes nothing from the other.
    assert!(world.end(&clients[1]));
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 1
    });
    assert!(lead_to(&world, Some(&clients[0])));
}

#[test]
fn an_address_the_kernel_has_on_a_port_is_no_subscriber_s() {
    let mut world = World::new(&config(""));
    let addresses = PortAddresses {
        ipv4: Some(Ipv4Addr::new(198, 18, 7, 1)),
        ..PortAddresses::default()
    };
    let delta = Delta {
        addresses: Some(Arc::from([addresses])),
        ..Delta::default()
    };
    let request = Request::Kernel(Some(Arc::new(delta)));
    world.handle().tell(request).unwrap();
    let mut clients = [alice(1)];
    world.dial(&mut clients);
    assert_eq!(owner(&world, HOSTS[0]), None);
    assert!(owner(&world, HOSTS[1]).is_some(), "the other one is had");
    assert_eq!(
        shown(&world, &clients[0]),
        serde_json::json!(["203.0.113.9/32"])
    );
    assert_eq!(counted(&world), [0, 1, 0]);
}

#[test]
fn a_restart_of_control_leaves_them_alone_and_takes_away_what_nobody_has() {
    let mut world = World::new(&config("  beyond_max: refuse\n"));
    let mut clients = [alice(1), alice(2)];
    world.dial(&mut clients[..1]);
    let entry = world.entry(&clients[0]);
    let slot = world.slot(&clients[0]);
    world.stop_control();
    assert!(lead_to(&world, Some(&clients[0])), "traffic goes on");
    // Left by a control that died: of a session that is gone, of another generation, and one this session does not have.
    let network = |at: u32| Network::of(0x0a01_0000 + (at << 8), 24).unwrap();
    let left = [
        NetworkOwner::new(SlotIndex::new(1, 99), 3),
        NetworkOwner::new(slot, entry.generation + 1),
        NetworkOwner::new(slot, entry.generation),
    ];
    let mut publisher = world.publisher();
    for (at, owner) in (0..).zip(left) {
        let given = publisher.set_network_owner(network(at), Some(owner));
        given.unwrap();
    }
    assert!(lead_to(&world, Some(&clients[0])), "the summary stays");
    drop(publisher);
    world.start_control();
    assert_eq!(world.entry(&clients[0]), entry);
    assert!(lead_to(&world, Some(&clients[0])));
    assert_eq!(shown(&world, &clients[0]), routes());
    for at in 0..3 {
        assert_eq!(owner(&world, network(at).address), None, "{at}");
    }

    // They are the adopted session's until its end.
    world.dial(&mut clients[1..]);
    assert_eq!(counted(&world), [2, 0, 0]);
    assert!(lead_to(&world, Some(&clients[0])));
    assert!(world.end(&clients[0]) && world.end(&clients[1]));
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 0
    });
    assert!(lead_to(&world, None));
    world.dial(&mut clients[1..]);
    assert!(lead_to(&world, Some(&clients[1])));
}

#[test]
fn a_restart_with_a_pool_over_a_network_takes_the_network_alone() {
    let mut world = World::new(&config(""));
    let mut clients = [alice(1)];
    world.dial(&mut clients);
    world.stop_control();
    let pool =
        "  - {name: more, ranges: [198.18.7.128/25], gateway: 198.18.7.129, nat: out}\nnat:\n";
    world.configure(&CONFIG.replace("nat:\n", pool));
    world.start_control();
    assert_eq!(world.counted("adopted"), 1);
    assert_eq!(owner(&world, HOSTS[0]), None);
    assert!(owner(&world, HOSTS[1]).is_some());
    assert_eq!(
        shown(&world, &clients[0]),
        serde_json::json!(["203.0.113.9/32"])
    );
    assert_eq!(counted(&world), [0, 1, 0]);
    // The record says so, too: the next run finds nothing to leave out.
    world.stop_control();
    world.start_control();
    assert_eq!(counted(&world), [0; 3]);
    assert!(owner(&world, HOSTS[1]).is_some());
    world.end(&clients[0]);
    world.until("the end", &mut clients, |world, _| {
        world.sessions().total == 0
    });
}

#[test]
fn a_renegotiation_keeps_them() {
    let mut world = World::new(&config(""));
    let mut clients = [alice(1)];
    world.dial(&mut clients);
    clients[0].up = false;
    clients[0].renegotiate();
    world.until("up again", &mut clients, |world, clients| {
        clients[0].up && world.engine_counted("outcome", "pap_ack") == 2
    });
    world.until("the networks", &mut clients, |world, clients| {
        lead_to(world, Some(&clients[0]))
    });
    assert_eq!(shown(&world, &clients[0]), routes());
    assert_eq!(counted(&world), [0; 3]);
}
