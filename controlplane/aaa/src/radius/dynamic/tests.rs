//! Requests about live sessions: good ones, bad ones, and ones that come again.

use super::*;
use crate::profile::RateLimit;
use crate::radius::request::tests::nas;
use std::time::Duration;

const SECRET: &str = "coa";
const NOW: u64 = 1_700_000_000;

/// Started an hour ago.
const POLICY: Policy = Policy {
    require_event_timestamp: true,
    started_unix_s: NOW - 3_600,
    remembered: REMEMBERED,
};

fn listener() -> Listener {
    listener_with(POLICY)
}

fn listener_with(policy: Policy) -> Listener {
    let client = IpAddr::from([192, 0, 2, 9]);
    Listener::new([(client, SECRET.into())], nas(), policy)
}

fn from() -> SocketAddr {
    ([192, 0, 2, 9], 5_000).into()
}

/// A request made at [`NOW`], unless it says something else of it.
fn request(code: u8, write: impl FnOnce(&mut List)) -> Vec<u8> {
    untimed(code, |list| {
        write(list);
        let mut said = packet::Attributes::of(list.as_bytes());
        if !said.any(|(kind, _)| kind == a::EVENT_TIMESTAMP) {
            list.number(a::EVENT_TIMESTAMP, NOW as u32);
        }
    })
}

fn untimed(code: u8, write: impl FnOnce(&mut List)) -> Vec<u8> {
    let mut list = List::default();
    write(&mut list);
    packet::signed_request(code, 7, SECRET.as_bytes(), &[list.as_bytes()]).unwrap()
}

fn named(list: &mut List) {
    list.bytes(a::ACCT_SESSION_ID, b"0000000000000abc").unwrap();
}

/// Code and Error-Cause of an answer, which must be right for the request.
fn read(request: &[u8], answer: &[u8]) -> (u8, Option<u32>) {
    let (request, answer) = (
        Packet::parse(request).unwrap(),
        Packet::parse(answer).unwrap(),
    );
    let authenticator = request.authenticator();
    assert!(answer.answers(&authenticator, SECRET.as_bytes()));
    assert_eq!(
        answer.message_authenticator(&authenticator, SECRET.as_bytes()),
        Some(true)
    );
    let cause = answer.find(a::ERROR_CAUSE);
    (
        answer.code(),
        cause.map(|it| u32::from_be_bytes(it.try_into().unwrap())),
    )
}

#[test]
fn a_change_names_its_session_and_what_is_different() {
    let mut listener = listener();
    let bytes = request(code::COA_REQUEST, |list| {
        named(list);
        list.bytes(a::USER_NAME, b"alice").unwrap();
        list.bytes(a::FRAMED_IP_ADDRESS, &[100, 64, 0, 2]).unwrap();
        list.bytes(a::NAS_PORT_ID, b"access0/0.0").unwrap();
        list.bytes(a::CALLING_STATION_ID, b"02:00:00:00:00:09")
            .unwrap();
        list.bytes(a::NAS_IDENTIFIER, b"bng1").unwrap();
        list.bytes(a::NAS_IP_ADDRESS, &[192, 0, 2, 1]).unwrap();
        list.number(a::EVENT_TIMESTAMP, (NOW - 300) as u32);
        list.bytes(a::PROXY_STATE, b"hop").unwrap();
        list.bytes(a::FILTER_ID, b"gold").unwrap();
        list.number(a::SESSION_TIMEOUT, 60);
        list.number(a::IDLE_TIMEOUT, 30);
        list.number(a::ACCT_INTERIM_INTERVAL, 0);
        list.vendor(a::MIKROTIK, a::MIKROTIK_RATE_LIMIT, b"1M/2M")
            .unwrap();
        list.vendor(a::MIKROTIK, a::MIKROTIK_TOTAL_LIMIT, &[0, 0, 1, 0])
            .unwrap();
    });
    let action = listener.handle_datagram(from(), &bytes, NOW).unwrap();
    let Action::Do {
        ticket,
        selector,
        wish: Wish::Change(change),
    } = action
    else {
        panic!("{action:?}")
    };
    let expected = Selector {
        accounting_id: Some(0xabc),
        user: Some(b"alice".to_vec()),
        framed_ip: Some(Ipv4Addr::new(100, 64, 0, 2)),
        nas_port_id: Some(b"access0/0.0".to_vec()),
        mac: Some([2, 0, 0, 0, 0, 9]),
    };
    assert_eq!(*selector, expected);
    let rate = |kbps| {
        Some(RateLimit {
            kbps,
            burst_bytes: None,
        })
    };
    let expected = Change {
        rate_up: rate(1_000),
        rate_down: rate(2_000),
        filter_id: Some("gold".to_owned()),
        session_timeout: Some(Duration::from_secs(60)),
        idle_timeout: Some(Duration::from_secs(30)),
        quota_octets: Some(256),
        interim_interval: Some(Duration::ZERO),
    };
    assert_eq!(*change, expected);
    let (to, answer) = listener.answer(ticket, Ok(())).unwrap();
    assert_eq!(to, from());
    assert_eq!(read(&bytes, &answer), (code::COA_ACK, None));
    let answer = Packet::parse(&answer).unwrap();
    assert_eq!(answer.find(a::PROXY_STATE), Some(&b"hop"[..]));
    assert_eq!(listener.counts().changed, 1);
}

#[test]
fn a_request_that_comes_again_has_no_second_effect_and_gets_the_same_answer() {
    let mut listener = listener();
    let bytes = request(code::DISCONNECT_REQUEST, named);
    let action = listener.handle_datagram(from(), &bytes, NOW).unwrap();
    let Action::Do { ticket, wish, .. } = action else {
        panic!("{action:?}")
    };
    assert_eq!(wish, Wish::End);
    let again = listener.handle_datagram(from(), &bytes, NOW);
    assert_eq!(again, Err(Discard::UnderWay));
    let (_, answer) = listener
        .answer(ticket, Err(Refusal::SessionNotFound))
        .unwrap();
    assert_eq!(read(&bytes, &answer), (code::DISCONNECT_NAK, Some(503)));
    let again = listener.handle_datagram(from(), &bytes, NOW).unwrap();
    assert_eq!(again, Action::Reply(answer));
    assert_eq!(listener.answer(ticket, Ok(())), None, "once");
    assert_eq!(
        (listener.counts().repeated, listener.counts().ended),
        (1, 0)
    );
}

fn at(time: u64, n: u32) -> Vec<u8> {
    request(code::DISCONNECT_REQUEST, |list| {
        named(list);
        list.bytes(a::PROXY_STATE, &n.to_be_bytes()).unwrap();
        list.number(a::EVENT_TIMESTAMP, time as u32);
    })
}

#[test]
fn when_all_that_is_remembered_is_needed_new_requests_are_discarded_and_none_is_forgotten() {
    let mut listener = listener_with(Policy {
        remembered: 3,
        ..POLICY
    });
    for n in 0..3 {
        let taken = listener.handle_datagram(from(), &at(NOW + u64::from(n), n), NOW);
        assert!(matches!(taken, Ok(Action::Do { .. })), "{taken:?}");
    }
    let full = listener.handle_datagram(from(), &at(NOW, 9), NOW + 300);
    assert_eq!(full, Err(Discard::MemoryFull));
    let counted = listener.counts().discarded[Discard::MemoryFull as usize];
    assert_eq!(counted, 1);
    for n in 0..3 {
        let again = listener.handle_datagram(from(), &at(NOW + u64::from(n), n), NOW + 300);
        assert_eq!(again, Err(Discard::UnderWay), "remembered");
    }
    // The first one is good no more, so its place is free, and only that.
    let next = listener.handle_datagram(from(), &at(NOW + 301, 10), NOW + 301);
    assert!(matches!(next, Ok(Action::Do { .. })), "{next:?}");
    let full = listener.handle_datagram(from(), &at(NOW + 301, 11), NOW + 301);
    assert_eq!(full, Err(Discard::MemoryFull));
    assert_eq!((listener.known.len(), listener.expiry.len()), (3, 3));
    // Not even with a clock that was set back.
    let again = listener.handle_datagram(from(), &at(NOW, 0), NOW + 200);
    assert_eq!(again, Err(Discard::BeforeStart));
}

#[test]
fn what_an_earlier_process_may_have_done_is_not_done_again() {
    let mut first = listener();
    let bytes = at(NOW, 1);
    assert!(first.handle_datagram(from(), &bytes, NOW).is_ok());
    let mut second = listener_with(Policy {
        started_unix_s: NOW,
        ..POLICY
    });
    let again = second.handle_datagram(from(), &bytes, NOW + 5);
    assert_eq!(again, Err(Discard::BeforeStart));
    assert!(
        second
            .handle_datagram(from(), &at(NOW + 1, 2), NOW + 5)
            .is_ok()
    );
    assert_eq!(second.counts().discarded[Discard::BeforeStart as usize], 1);
}

#[test]
fn a_request_without_event_timestamp_is_discarded_unless_it_is_allowed() {
    let mut listener = listener();
    let bytes = untimed(code::DISCONNECT_REQUEST, named);
    let result = listener.handle_datagram(from(), &bytes, NOW);
    assert_eq!(result, Err(Discard::NoEventTimestamp));
    let counted = listener.counts().discarded[Discard::NoEventTimestamp as usize];
    assert_eq!(counted, 1);
    let mut lenient = listener_with(Policy {
        require_event_timestamp: false,
        remembered: 1,
        ..POLICY
    });
    assert!(lenient.handle_datagram(from(), &bytes, NOW).is_ok());
    let again = lenient.handle_datagram(from(), &bytes, NOW + 300);
    assert_eq!(again, Err(Discard::UnderWay), "remembered for 300 s");
    let other = untimed(code::COA_REQUEST, named);
    let full = lenient.handle_datagram(from(), &other, NOW + 300);
    assert_eq!(full, Err(Discard::MemoryFull));
    assert!(lenient.handle_datagram(from(), &other, NOW + 301).is_ok());
}

#[test]
fn each_discarded_request_is_counted_by_name_and_gets_no_answer() {
    let mut listener = listener();
    let good = request(code::COA_REQUEST, named);
    let mut length = good.clone();
    length[3] += 1;
    let mut attribute = good.clone();
    attribute[21] = 0;
    let mut authenticator = good.clone();
    authenticator[4] ^= 1;
    // Signed by hand, without Message-Authenticator or with a wrong one.
    let signed = |attributes: &[u8]| {
        use md5::{Digest, Md5};
        let mut bytes = vec![
            code::COA_REQUEST,
            7,
            0,
            (packet::HEADER + attributes.len()) as u8,
        ];
        let sum = Md5::new()
            .chain_update(&bytes)
            .chain_update([0; 16])
            .chain_update(attributes)
            .chain_update(SECRET)
            .finalize();
        bytes.extend(sum);
        bytes.extend(attributes);
        bytes
    };
    let mut wrong = vec![a::MESSAGE_AUTHENTICATOR, 18];
    wrong.extend([0; 16]);
    let stale = |seconds: i64| {
        request(code::COA_REQUEST, |list| {
            named(list);
            list.number(a::EVENT_TIMESTAMP, (NOW as i64 + seconds) as u32);
        })
    };
    let cases = [
        (good[..19].to_vec(), Discard::Short),
        (length, Discard::Length),
        (attribute, Discard::Attribute),
        (request(code::ACCESS_REQUEST, named), Discard::Code),
        (authenticator, Discard::Authenticator),
        (signed(&[]), Discard::NoMessageAuthenticator),
        (signed(&wrong), Discard::MessageAuthenticator),
        (stale(301), Discard::Stale),
        (stale(-301), Discard::Stale),
    ];
    for (bytes, discard) in &cases {
        assert_eq!(listener.handle_datagram(from(), bytes, NOW), Err(*discard));
        assert!(listener.counts().discarded[*discard as usize] > 0);
    }
    let stranger = SocketAddr::from(([192, 0, 2, 8], 5_000));
    assert_eq!(
        listener.handle_datagram(stranger, &good, NOW),
        Err(Discard::Client)
    );
    let mapped = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 9).to_ipv6_mapped(), 5_000));
    assert!(listener.handle_datagram(mapped, &good, NOW).is_ok());
}

#[test]
fn each_refusal_has_its_error_cause() {
    let change = |write: fn(&mut List)| {
        request(code::COA_REQUEST, |list| {
            named(list);
            write(list);
        })
    };
    let end = |write: fn(&mut List)| {
        request(code::DISCONNECT_REQUEST, |list| {
            named(list);
            write(list);
        })
    };
    let cases = [
        (change(|_| {}), Refusal::MissingAttribute),
        (
            change(|list| list.number(a::FILTER_ID, 0)),
            Refusal::InvalidAttributeValue,
        ),
        (
            change(|list| list.number(a::SERVICE_TYPE, a::AUTHORIZE_ONLY)),
            Refusal::UnsupportedService,
        ),
        (
            change(|list| list.number(200, 1)),
            Refusal::UnsupportedAttribute,
        ),
        (
            change(|list| list.vendor(9, 1, b"x").unwrap()),
            Refusal::UnsupportedAttribute,
        ),
        (
            change(|list| list.bytes(a::NAS_IDENTIFIER, b"bng2").unwrap()),
            Refusal::NasIdentificationMismatch,
        ),
        (
            change(|list| list.number(a::NAS_IP_ADDRESS, 1)),
            Refusal::NasIdentificationMismatch,
        ),
        (change(named), Refusal::InvalidRequest),
        (
            change(|list| list.bytes(a::CALLING_STATION_ID, b"phone").unwrap()),
            Refusal::InvalidAttributeValue,
        ),
        (
            change(|list| list.bytes(a::FRAMED_IP_ADDRESS, &[1]).unwrap()),
            Refusal::InvalidAttributeValue,
        ),
        (
            end(|list| list.number(a::SESSION_TIMEOUT, 1)),
            Refusal::UnsupportedAttribute,
        ),
        (
            request(code::DISCONNECT_REQUEST, |_| {}),
            Refusal::MissingAttribute,
        ),
    ];
    for (bytes, refusal) in cases {
        let mut listener = listener();
        let action = listener.handle_datagram(from(), &bytes, NOW).unwrap();
        let Action::Reply(answer) = action else {
            panic!("{refusal:?}: {action:?}")
        };
        let (code, cause) = read(&bytes, &answer);
        assert!([code::COA_NAK, code::DISCONNECT_NAK].contains(&code));
        assert_eq!(cause, Some(refusal as u32), "{refusal:?}");
        assert_eq!(listener.counts().refused[refusal.as_str()], 1);
    }
}

#[test]
fn an_acct_session_id_that_is_not_ours_fits_no_session() {
    let mut listener = listener();
    let bytes = request(code::DISCONNECT_REQUEST, |list| {
        list.bytes(a::ACCT_SESSION_ID, b"elsewhere").unwrap();
    });
    let action = listener.handle_datagram(from(), &bytes, NOW).unwrap();
    let Action::Do { selector, .. } = action else {
        panic!("{action:?}")
    };
    assert_eq!(selector.accounting_id, Some(0));
}

#[test]
fn what_was_overheard_has_no_effect_from_another_port_either() {
    let mut listener = listener();
    let bytes = request(code::DISCONNECT_REQUEST, |list| {
        list.bytes(a::USER_NAME, b"alice").unwrap();
        list.number(a::EVENT_TIMESTAMP, NOW as u32);
    });
    let action = listener.handle_datagram(from(), &bytes, NOW).unwrap();
    let Action::Do { ticket, .. } = action else {
        panic!("{action:?}")
    };
    let other = SocketAddr::from(([192, 0, 2, 9], 5_001));
    let meanwhile = listener.handle_datagram(other, &bytes, NOW);
    assert_eq!(meanwhile, Err(Discard::UnderWay));
    let (_, answer) = listener.answer(ticket, Ok(())).unwrap();
    let again = listener.handle_datagram(other, &bytes, NOW + 200);
    assert_eq!(again, Ok(Action::Reply(answer)));
    assert_eq!(
        (listener.counts().ended, listener.counts().repeated),
        (1, 1)
    );
}

#[test]
fn other_clients_take_over_and_what_was_done_stays_done() {
    let mut listener = listener();
    let bytes = at(NOW, 1);
    assert!(listener.handle_datagram(from(), &bytes, NOW).is_ok());
    let other = IpAddr::from([192, 0, 2, 10]);
    listener.reconfigure([(other, SECRET.into())], nas(), false);
    assert_eq!(
        listener.handle_datagram(from(), &bytes, NOW),
        Err(Discard::Client)
    );
    let untimed = untimed(code::COA_REQUEST, named);
    let taken = listener.handle_datagram((other, 5_000).into(), &untimed, NOW);
    assert!(taken.is_ok(), "{taken:?}");
    listener.reconfigure([(from().ip(), SECRET.into())], nas(), true);
    let again = listener.handle_datagram(from(), &bytes, NOW);
    assert_eq!(again, Err(Discard::UnderWay), "remembered");
}
