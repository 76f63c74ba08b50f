//! Frames nobody should send: each raises its own counter by one, none gets a reply, nothing else changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod running_gateway;

use std::collections::BTreeMap;

use bng_lab::{Daemon, GatewayConfig, Lab, Programs, wait_until};
use running_gateway::{LIMIT, drops_since, engine_drops_since, sessions};

const CLIENT: [u8; 6] = [0x02, 0, 0, 0, 0, 0x66];
const BROADCAST: [u8; 6] = [0xff; 6];
const DISCOVERY: u16 = 0x8863;
const SESSION: u16 = 0x8864;
const PADI: u8 = 0x09;
const PADR: u8 = 0x19;
const PADT: u8 = 0xa7;

fn ethernet(destination: [u8; 6], source: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &ethertype.to_be_bytes(), payload].concat()
}

/// PPPoE header (RFC 2516 section 4) with a length field of the caller's choice.
fn pppoe(version_type: u8, code: u8, id: u16, length: u16, payload: &[u8]) -> Vec<u8> {
    [
        &[version_type, code][..],
        &id.to_be_bytes(),
        &length.to_be_bytes(),
        payload,
    ]
    .concat()
}

fn discovery(code: u8, id: u16, tags: &[u8]) -> Vec<u8> {
    pppoe(0x11, code, id, u16::try_from(tags.len()).unwrap(), tags)
}

/// Frames the dataplane itself drops, with the counter of each.
fn for_the_dataplane(port: [u8; 6]) -> Vec<(&'static str, Vec<u8>)> {
    let to_port = |ethertype: u16, payload: &[u8]| ethernet(port, CLIENT, ethertype, payload);
    let session = |payload: &[u8]| to_port(SESSION, payload);
    let ip_of_nobody = pppoe(0x11, 0, 7, 22, &[&[0x00, 0x21][..], &[0x45; 20]].concat());
    vec![
        // The kernel takes the outer tag off and refuses a frame that ends right after it, so the cut is in the inner one.
        ("frame_truncated", to_port(0x88a8, &[0, 1, 0x81, 0, 0, 2])),
        (
            "too_many_tags",
            to_port(
                0x88a8,
                &[
                    0, 1, 0x81, 0, 0, 2, 0x81, 0, 0, 3, 0x88, 0x64, 0x11, 0, 0, 1, 0, 2, 0xc0, 0x21,
                ],
            ),
        ),
        (
            "not_for_us",
            ethernet([0x02, 0, 0, 0, 0, 0x77], CLIENT, SESSION, &ip_of_nobody),
        ),
        ("not_pppoe", to_port(0x86dd, &[0x60; 40])),
        ("not_pppoe", ethernet(BROADCAST, CLIENT, 0x0806, &[0; 28])),
        ("pppoe_truncated", session(&[0x11, 0, 0])),
        (
            "pppoe_truncated",
            ethernet(BROADCAST, CLIENT, DISCOVERY, &[0x11, PADI, 0]),
        ),
        (
            "pppoe_version",
            session(&pppoe(0x21, 0, 1, 2, &[0xc0, 0x21])),
        ),
        (
            "pppoe_version",
            ethernet(
                BROADCAST,
                CLIENT,
                DISCOVERY,
                &pppoe(0x12, PADI, 0, 4, &[1, 1, 0, 0]),
            ),
        ),
        (
            "pppoe_code",
            session(&pppoe(0x11, 0x55, 1, 2, &[0xc0, 0x21])),
        ),
        ("pppoe_length_zero", session(&pppoe(0x11, 0, 1, 0, &[]))),
        ("pppoe_length_one", session(&pppoe(0x11, 0, 1, 1, &[0xc0]))),
        (
            "pppoe_length_long",
            session(&pppoe(0x11, 0, 1, 1000, &[0xc0, 0x21, 1, 1, 0, 4])),
        ),
        (
            "pppoe_length_long",
            ethernet(
                BROADCAST,
                CLIENT,
                DISCOVERY,
                &pppoe(0x11, PADI, 0, 200, &[1, 1, 0, 0]),
            ),
        ),
        (
            "ppp_protocol_compressed",
            session(&pppoe(0x11, 0, 1, 4, &[0x21, 0x45, 0, 0])),
        ),
        ("session_unknown", session(&ip_of_nobody)),
        (
            "session_unknown",
            session(&pppoe(0x11, 0, 0xffff, 6, &[0xc0, 0x21, 1, 1, 0, 4])),
        ),
    ]
}

/// Frames that reach the PPPoE engine and no further, with the counter of each.
fn for_the_engine(port: [u8; 6]) -> Vec<(&'static str, Vec<u8>)> {
    let broadcast = |payload: &[u8]| ethernet(BROADCAST, CLIENT, DISCOVERY, payload);
    let unicast = |payload: &[u8]| ethernet(port, CLIENT, DISCOVERY, payload);
    let service_name: &[u8] = &[0x01, 0x01, 0, 0];
    vec![
        ("discovery_code", unicast(&discovery(0x07, 0, service_name))),
        ("discovery_code", unicast(&discovery(0x42, 0, service_name))),
        (
            "discovery_session_id",
            broadcast(&discovery(PADI, 5, service_name)),
        ),
        ("discovery_session_id", unicast(&discovery(PADT, 0, &[]))),
        ("destination", unicast(&discovery(PADI, 0, service_name))),
        ("destination", broadcast(&discovery(PADR, 0, service_name))),
        (
            "tag_truncated",
            broadcast(&discovery(PADI, 0, &[0x01, 0x01, 0, 0, 0x01])),
        ),
        (
            "tag_length",
            broadcast(&discovery(PADI, 0, &[0x01, 0x01, 0xff, 0xff])),
        ),
        (
            "source_mac",
            ethernet(
                BROADCAST,
                [0x03, 0, 0, 0, 0, 1],
                DISCOVERY,
                &discovery(PADI, 0, service_name),
            ),
        ),
        ("cookie_missing", unicast(&discovery(PADR, 0, service_name))),
        (
            "cookie_forged",
            unicast(&discovery(
                PADR,
                0,
                &[service_name, &[0x01, 0x04, 0, 16], &[0x5a; 16]].concat(),
            )),
        ),
        ("session_unknown", unicast(&discovery(PADT, 99, &[]))),
    ]
}

fn expected(frames: &[(&'static str, Vec<u8>)]) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    for (counter, _) in frames {
        *counts.entry((*counter).to_owned()).or_insert(0.0) += 1.0;
    }
    counts
}

#[test]
fn every_malformed_frame_raises_its_counter_and_gets_no_reply() {
    let config = GatewayConfig {
        injected_port: true,
        ..GatewayConfig::default()
    };
    let mut lab = Lab::create(Programs::of_workspace(), &config).unwrap();
    let injector = lab.injector().unwrap();
    lab.start(Daemon::Dataplane).unwrap();
    lab.start(Daemon::Controlplane).unwrap();
    let port = lab.injected_port_mac().unwrap();
    let dataplane = for_the_dataplane(port);
    let engine = for_the_engine(port);
    let before = lab.api().metrics().unwrap();
    for (counter, frame) in dataplane.iter().chain(&engine) {
        injector
            .send(frame)
            .unwrap_or_else(|error| panic!("{counter}: {error}"));
    }

    let wanted = (expected(&dataplane), expected(&engine));
    let all = (dataplane.len() + engine.len()) as f64;
    let count = || {
        let now = lab.api().metrics()?;
        Ok((
            drops_since(&before, &now),
            engine_drops_since(&before, &now),
        ))
    };
    let counted = wait_until("all frames counted", LIMIT, count, |(dataplane, engine)| {
        dataplane.values().chain(engine.values()).sum::<f64>() >= all
    })
    .unwrap();
    assert_eq!(counted, wanted);

    // All have been looked at. A well-formed PADI now gets its PADO, and nothing came before that.
    let padi = ethernet(
        BROADCAST,
        CLIENT,
        DISCOVERY,
        &discovery(PADI, 0, &[0x01, 0x01, 0, 0]),
    );
    injector.send(&padi).unwrap();
    let reply =
        std::iter::from_fn(|| injector.receive(LIMIT).unwrap()).find(|frame| frame[6..12] == port);
    let reply = reply.expect("a PADO");
    assert_eq!(
        reply[12..16],
        [0x88, 0x63, 0x11, 0x07],
        "the first reply is the PADO: {reply:02x?}"
    );
    assert_eq!(sessions(&lab).len(), 0);
    lab.api().wait_until_conserved().unwrap();
}
