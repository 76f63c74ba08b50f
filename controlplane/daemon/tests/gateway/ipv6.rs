//! IPv6 of a session: prefixes, who they lead to, and what a restart keeps of them.

use bng_controlplane::selection::{SessionFilter, Subscriber};
use bng_pppoe::codec::dhcpv6::kind;
use bng_pppoe::codec::nd;
use bng_shm::{BlockOwner, Delegated, Pools, SessionState};
use bng_wire::MacAddr;
use bng_wire::pppoe::protocol;

use crate::client::Client;
use crate::world::{CONFIG, World};

fn config() -> String {
    let ipv6 = "nat: out, ipv6: {prefixes: [2001:db8:0:100::/56], delegated: [2001:db8:1000::/48], \
         dns: [2001:db8::53]}";
    CONFIG.replace("nat: out", ipv6)
}

fn alice() -> Client {
    let mut client = Client::new(1, 0, "alice", "wonderland");
    client.interface_id = Some(0x77);
    client
}

fn dial(world: &mut World, clients: &mut [Client]) {
    world.dial(clients);
    world.until("IPv6", clients, |world, clients| {
        let is_up = |it: &Client| it.ipv6_up && world.entry(it).ipv6_prefix.is_some();
        clients.iter().all(is_up)
    });
}

/// Whom packets for a prefix are led to, by its upper half.
fn owner(world: &World, high: u64) -> Option<BlockOwner> {
    let reader = world.reader();
    let mut pools = Pools::default();
    assert!(reader.refresh_pools(&mut pools));
    reader.framed6_owner(pools.find6(high)?, high)
}

fn block_owner(world: &World, block: bng_shm::PortBlock) -> Option<BlockOwner> {
    let reader = world.reader();
    let mut pools = Pools::default();
    assert!(reader.refresh_pools(&mut pools));
    reader.block_owner(pools.find(block.address)?, block.address, block.first_port)
}

fn halves(world: &World, client: &Client) -> [u64; 2] {
    let entry = world.entry(client);
    let high = |address: std::net::Ipv6Addr| (address.to_bits() >> 64) as u64;
    [entry.ipv6_prefix.unwrap(), entry.delegated.unwrap().prefix].map(high)
}

#[test]
fn a_subscriber_gets_prefixes_that_lead_to_its_session_until_its_end() {
    let mut world = World::new(&config());
    let mut clients = [alice()];
    dial(&mut world, &mut clients);
    let entry = world.entry(&clients[0]);
    let prefix = entry.ipv6_prefix.unwrap();
    assert_eq!(prefix.segments()[..4], [0x2001, 0xdb8, 0, 0x100]);
    let Delegated {
        prefix: delegated,
        length,
    } = entry.delegated.unwrap();
    assert_eq!(
        (delegated.segments()[..3].to_vec(), length),
        (vec![0x2001, 0xdb8, 0x1000], 56)
    );
    assert!(!entry.framed_ip.is_unspecified() && entry.nat.is_some());
    world.until("advertisement", &mut clients, |_, clients| {
        clients[0].advertised > 0
    });

    let listed = |world: &World, ip: &str| {
        let subscriber = Subscriber {
            ip: Some(ip.parse().unwrap()),
            ..Subscriber::default()
        };
        let filter = SessionFilter {
            subscriber,
            ..SessionFilter::default()
        };
        world.sessions_with(filter).total
    };
    for inside in ["2001:db8:0:100::1", "2001:db8:1000:ff:ffff::1"] {
        assert_eq!(listed(&world, inside), 1, "{inside}");
    }
    for outside in ["2001:db8:0:101::1", "2001:db8:1000:100::1"] {
        assert_eq!(listed(&world, outside), 0, "{outside}");
    }

    let both = halves(&world, &clients[0]);
    let slot = world.slot(&clients[0]);
    for high in both {
        let owner = owner(&world, high).unwrap();
        assert_eq!((owner.slot, owner.generation), (slot, entry.generation));
    }
    // Any /64 of the delegated prefix is the subscriber's, the next prefix is nobody's.
    assert!(owner(&world, both[1] + 0xff).is_some());
    assert_eq!(owner(&world, both[1] + 0x100), None);

    let detail = serde_json::to_value(world.session(&clients[0]).unwrap()).unwrap();
    assert_eq!(detail["ipv6_prefix"], format!("{prefix}/64"));
    assert_eq!(detail["delegated_prefix"], format!("{delegated}/56"));
    assert_eq!(detail["ppp"]["ipv6cp"], "Opened");
    assert_eq!(detail["ppp"]["peer_ipv6"], nd::link_local(0x77).to_string());
    let used = |world: &World| -> Vec<_> {
        let pools = world.status().pools.prefixes.clone();
        pools.iter().map(|pool| (pool.used, pool.total)).collect()
    };
    assert_eq!(used(&world), [(1, 256), (1, 256)]);

    assert!(world.end(&clients[0]));
    world.until("the end", &mut clients, |world, clients| {
        clients[0].over && world.sessions().total == 0
    });
    assert!(both.iter().all(|high| owner(&world, *high).is_none()));
    assert_eq!(used(&world), [(0, 256), (0, 256)]);

    // The same subscriber gets the same prefixes again.
    dial(&mut world, &mut clients);
    assert_eq!(halves(&world, &clients[0]), both);
}

#[test]
fn a_subscriber_is_told_its_delegated_prefix_by_dhcpv6_and_a_release_leaves_it_routed() {
    let mut world = World::new(&config());
    let mut clients = [alice()];
    dial(&mut world, &mut clients);
    let entry = world.entry(&clients[0]);
    let delegated = entry.delegated.unwrap();
    let prefix = Some((delegated.prefix, delegated.length));
    let server = Some(MacAddr([2, 0xac, 0, 0, 0, 1]));
    let ask = |world: &mut World, clients: &mut [Client], message, server| {
        clients[0].ask_dhcpv6(message, server);
        world.until("DHCPv6", clients, |_, clients| clients[0].dhcpv6.is_some());
        clients[0].dhcpv6
    };
    let offer = ask(&mut world, &mut clients, kind::SOLICIT, None);
    assert_eq!(offer, Some((kind::ADVERTISE, prefix)));
    let reply = ask(&mut world, &mut clients, kind::REQUEST, server);
    assert_eq!(reply, Some((kind::REPLY, prefix)));
    let reply = ask(&mut world, &mut clients, kind::RELEASE, server);
    assert_eq!(reply, Some((kind::REPLY, None)));

    // A restart of control forgets nothing the subscriber needs.
    world.stop_control();
    world.start_control();
    let reply = ask(&mut world, &mut clients, kind::RENEW, server);
    assert_eq!(reply, Some((kind::REPLY, prefix)));
    assert_eq!(world.entry(&clients[0]), entry);
    let both = halves(&world, &clients[0]);
    assert!(both.iter().all(|high| owner(&world, *high).is_some()));
}

#[test]
fn a_family_that_closes_is_withdrawn_alone_and_comes_back() {
    let mut world = World::new(&config());
    let mut clients = [alice()];
    dial(&mut world, &mut clients);
    let before = world.entry(&clients[0]);
    let both = halves(&world, &clients[0]);
    let block = before.nat.unwrap();

    clients[0].close(protocol::IPCP);
    world.until("IPv4 closed", &mut clients, |world, clients| {
        world.entry(&clients[0]).framed_ip.is_unspecified() && block_owner(world, block).is_none()
    });
    let entry = world.entry(&clients[0]);
    assert_eq!((entry.state, entry.nat), (SessionState::Forwarding, None));
    assert_eq!(entry.ipv6_prefix, before.ipv6_prefix);

    // A restart keeps what is closed for the subscriber.
    world.stop_control();
    world.start_control();
    assert_eq!(world.counted("adopted"), 1);
    assert_eq!(world.entry(&clients[0]), entry);
    clients[0].open_ipv4();
    world.until("IPv4 again", &mut clients, |world, clients| {
        clients[0].up && world.entry(&clients[0]) == before
    });
    assert!(block_owner(&world, block).is_some());

    clients[0].close(protocol::IPV6CP);
    world.until("IPv6 closed", &mut clients, |world, clients| {
        let entry = world.entry(&clients[0]);
        entry.ipv6_prefix.is_none() && both.iter().all(|high| owner(world, *high).is_none())
    });
    let entry = world.entry(&clients[0]);
    assert_eq!((entry.delegated, entry.framed_ip), (None, before.framed_ip));
    assert_eq!(entry.state, SessionState::Forwarding);
}

#[test]
fn a_restart_keeps_ipv6_without_negotiating_it_again() {
    let mut world = World::new(&config());
    let mut clients = [alice()];
    dial(&mut world, &mut clients);
    let (before, both) = (world.entry(&clients[0]), halves(&world, &clients[0]));
    let shown = serde_json::to_value(world.sessions()).unwrap();
    let ppp = |world: &World, client: &Client| {
        let detail = serde_json::to_value(world.session(client).unwrap()).unwrap();
        (
            detail["ppp"]["gateway_ipv6"].clone(),
            detail["ppp"]["peer_ipv6"].clone(),
        )
    };
    let addresses = ppp(&world, &clients[0]);
    world.stop_control();
    // What a session left behind that is gone.
    let mut publisher = world.publisher();
    let stranger = BlockOwner {
        slot: bng_shm::SlotIndex::new(1, 99),
        generation: 3,
    };
    publisher
        .set_framed6_owner(both[0] + 1, Some(stranger))
        .unwrap();
    drop(publisher);
    world.start_control();
    assert_eq!(world.counted("adopted"), 1);
    assert_eq!(world.entry(&clients[0]), before);
    assert_eq!(serde_json::to_value(world.sessions()).unwrap(), shown);
    assert_eq!(ppp(&world, &clients[0]), addresses);
    assert!(both.iter().all(|high| owner(&world, *high).is_some()));
    assert_eq!(owner(&world, both[0] + 1), None);
    let echoes = clients[0].echoes;
    world.until("echo", &mut clients, |_, clients| {
        clients[0].echoes > echoes
    });
    assert_eq!(world.engine_counted("outcome", "ipv6cp_opened"), 0);

    // Nobody else gets its prefix.
    let mut bob = [Client::new(2, 2, "bob", "builder")];
    bob[0].interface_id = Some(5);
    dial(&mut world, &mut bob);
    assert!(
        halves(&world, &bob[0])
            .iter()
            .all(|high| !both.contains(high))
    );
}

#[test]
fn a_session_whose_prefix_is_no_longer_configured_is_ended() {
    let mut world = World::new(&config());
    let mut clients = [alice()];
    dial(&mut world, &mut clients);
    world.stop_control();
    world.configure(&config().replace("2001:db8:1000::/48", "2001:db8:2000::/48"));
    world.start_control();
    world.until("over", &mut clients, |world, clients| {
        clients[0].over && world.sessions().total == 0
    });
    assert_eq!(world.counted("not_adopted_prefix"), 1);
    dial(&mut world, &mut clients);
}

#[test]
fn a_subscriber_that_finds_no_prefix_has_ipv4_alone_and_that_is_counted() {
    let config = config().replace("2001:db8:0:100::/56", "2001:db8:0:100::/64");
    let mut world = World::new(&config);
    let mut clients = [alice()];
    dial(&mut world, &mut clients);
    let mut bob = [Client::new(2, 2, "bob", "builder")];
    world.dial(&mut bob);
    let entry = world.entry(&bob[0]);
    assert_eq!((entry.ipv6_prefix, entry.delegated), (None, None));
    assert_eq!(world.counted("prefixes_empty"), 1);
    assert_eq!(world.status().pools.prefixes[0].used, 1);
}
