//! `radius`, what `auth` and `pppoe` say together with it, and what users have of their own.

use super::appended;

#[test]
fn keys_that_need_each_other() {
    for (more, expected) in [
        (
            "auth: { backends: [local, radius] }\n",
            "bng.yaml:14:27: auth.backends[1]: needs `radius`, which is not given; add it or remove this",
        ),
        (
            "radius: { servers: [{ address: 192.0.2.20, secret: x }], accounting: {} }\n",
            "bng.yaml:14:58: radius.accounting: needs `state_directory`, which is not given; add it or remove this",
        ),
        (
            "auth: { backends: [local, local] }\n",
            "bng.yaml:14:27: auth.backends[1]: `local` is already used by auth.backends[0] (line 14); choose another",
        ),
        (
            "pppoe: { lockout: { first_s: 301 } }\n",
            "bng.yaml:14:30: pppoe.lockout.first_s: is 301, more than longest_s (300); lower it or raise longest_s",
        ),
    ] {
        appended(more, expected);
    }
}

#[test]
fn servers_and_clients() {
    for (more, expected) in [
        (
            "radius: { servers: [] }\n",
            "bng.yaml:14:11: radius.servers: has 0 entries; write a list of 1 to 8 entries",
        ),
        (
            "radius: { servers: [{ address: 192.0.2.20, secret: \"\" }] }\n",
            "bng.yaml:14:52: radius.servers[0].secret: is empty; write the secret shared with the other side, in quotes",
        ),
        (
            "radius: { source: 2001:db8::1, servers: [{ address: 192.0.2.20, secret: x }] }\n",
            "bng.yaml:14:53: radius.servers[0].address: is of another address family than `radius.source`; remove that or write an address of the same family",
        ),
        (
            "state_directory: /s\nradius: { servers: [{ address: 192.0.2.20, secret: x }], accounting: { interim_s: 59 } }\n",
            "bng.yaml:15:83: radius.accounting.interim_s: is 59, write 0 for none or at least 60 (RFC 2869 section 5.16)",
        ),
        (
            "radius: { servers: [{ address: 192.0.2.20, secret: x }, { address: 192.0.2.20, secret: y }] }\n",
            "bng.yaml:14:57: radius.servers[1]: `192.0.2.20 port 1812` is already used by radius.servers[0] (line 14); choose another",
        ),
        (
            "radius: { servers: [{ address: 192.0.2.20, secret: x }], dynamic_authorization: { listen: \"192.0.2.1:3799\", clients: [{ address: 192.0.2.20, secret: \"\" }] } }\n",
            "bng.yaml:14:150: radius.dynamic_authorization.clients[0].secret: is empty; write the secret shared with the other side, in quotes",
        ),
        (
            "radius: { servers: [{ address: 192.0.2.20, secret: x }], dynamic_authorization: { listen: \"192.0.2.1:3799\", require_event_timestamp: 1, clients: [{ address: 192.0.2.20, secret: x }] } }\n",
            "bng.yaml:14:134: radius.dynamic_authorization.require_event_timestamp: `1` is not allowed; write true or false",
        ),
    ] {
        appended(more, expected);
    }
}

#[test]
fn addresses_of_users() {
    for (more, expected) in [
        (
            "auth: { users: [{ name: a, password: x, framed_ip: 100.64.0.1 }] }\n",
            "bng.yaml:14:52: auth.users[0].framed_ip: 100.64.0.1 is not an address that any pool hands out; take one of it or remove the key",
        ),
        (
            "auth: { users: [{ name: a, password: x, pool: nobody }] }\n",
            "bng.yaml:14:47: auth.users[0].pool: there is no address pool `nobody`; known here: subscribers",
        ),
        (
            "auth: { users: [{ name: a, password: x, framed_ip: 100.64.0.9 }, { name: b, password: x, framed_ip: 100.64.0.9 }] }\n",
            "bng.yaml:14:101: auth.users[1].framed_ip: 100.64.0.9 is another user's as well; only one can have it",
        ),
    ] {
        appended(more, expected);
    }
}

#[test]
fn networks_of_users() {
    let of = |networks: &str, expected: &str| {
        let more = format!(
            "auth: {{ users: [{{ name: a, password: x, framed_routes: [{networks}] }}] }}\n"
        );
        appended(&more, expected);
    };
    let key = "bng.yaml:14:57: auth.users[0].framed_routes[0]:";
    let rest = "a network is one user's alone and lies outside of all pools, gateways and ports";
    for (networks, found) in [
        (
            "198.18.0.1/24",
            "198.18.0.1/24 is not the start of its prefix; write 198.18.0.0/24",
        ),
        (
            "10.0.0.0/7",
            "10.0.0.0/7 is shorter than /8; write the networks one by one",
        ),
        (
            "224.0.0.0/8",
            "224.0.0.0 is not a unicast address; choose one that a host can have",
        ),
    ] {
        of(networks, &format!("{key} {found}"));
    }
    let overlap = "198.18.0.64 overlaps 198.18.0.0/24 of another user;";
    let two = "auth: { users: [{ name: a, password: x, framed_routes: [198.18.0.0/24] }, { name: b, password: x, framed_routes: [198.18.1.0/24, 198.18.0.64] }] }\n";
    let overlap = overlap.replace("198.18.0.64 ", "198.18.0.64/32 ");
    appended(
        two,
        &format!("bng.yaml:14:130: auth.users[1].framed_routes[1]: {overlap} {rest}"),
    );
    let wider = "198.18.0.64/26, 198.18.0.0/16";
    let overlap = "198.18.0.0/16 overlaps 198.18.0.64/26 of another user;";
    let at = "bng.yaml:14:73: auth.users[0].framed_routes[1]:";
    of(wider, &format!("{at} {overlap} {rest}"));
    let overlap = "100.0.0.0/8 overlaps 100.64.0.0/20 of pools[0].ranges[0];";
    of("100.0.0.0/8", &format!("{key} {overlap} {rest}"));
}

#[test]
fn secrets_are_never_shown() {
    let text = format!(
        "{}radius: {{ servers: [{{ address: 192.0.2.20, secret: hunter2 }}], dynamic_authorization: {{ listen: \"192.0.2.1:3799\", clients: [{{ address: 192.0.2.20, secret: hunter2 }}] }} }}\n",
        super::GOOD
    );
    let config = bng_config::Config::parse(text.as_bytes(), std::path::Path::new("t")).unwrap();
    assert!(!format!("{config:?} {config:#?}").contains("hunter2"));
}
