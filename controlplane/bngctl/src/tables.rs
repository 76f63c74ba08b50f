//! Answers of the gateway as tables for people.
//!
//! What a newer or older gateway leaves out is shown as `-`: this program must be useful exactly when things are odd.

mod coalescing;
mod happenings;
mod nat;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::Value;

pub(crate) use coalescing::coalescing;
pub(crate) use happenings::{event, lockouts, reload, trace, traces};
pub(crate) use nat::who;

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

fn finish(mut table: Table, numbers: &[usize]) -> String {
    for column in numbers {
        if let Some(column) = table.column_mut(*column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

/// What stands at a path of keys, for a cell.
pub(crate) fn cell(value: &Value, path: &[&str]) -> String {
    let found = path
        .iter()
        .try_fold(value, |value, key| value.get(key))
        .unwrap_or(&Value::Null);
    match found {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        // Names come from subscribers: nothing of them may act on the terminal.
        Value::String(text) => text
            .chars()
            .map(|c| if c.is_control() { '\u{fffd}' } else { c })
            .collect(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn items(page: &Value) -> &[Value] {
    page.get("items").map_or(&[], list)
}

fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or(0)
}

/// S-VLAN and C-VLAN.
fn vlans(session: &Value) -> String {
    match (session.get("s_vlan"), session.get("c_vlan")) {
        (Some(Value::Number(s)), Some(Value::Number(c))) => format!("{s}.{c}"),
        (Some(Value::Number(s)), _) => s.to_string(),
        _ => "-".to_owned(),
    }
}

fn nat(session: &Value) -> String {
    let Some(nat @ Value::Object(_)) = session.get("nat") else {
        return "-".to_owned();
    };
    let ports = |of: &Value| format!("{}-{}", cell(of, &["first_port"]), cell(of, &["last_port"]));
    let further = nat.get("further").map_or(&[][..], list);
    let all: Vec<String> = std::iter::once(nat).chain(further).map(ports).collect();
    format!("{}:{}", cell(nat, &["address"]), all.join(","))
}

/// Bytes with a unit: three digits are enough to see what is going on.
fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if value < 1_000 {
        return format!("{value} B");
    }
    let mut scaled = value as f64 / 1e3;
    let mut unit = 0;
    while scaled >= 999.95 && unit + 1 < UNITS.len() {
        scaled /= 1e3;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// A span as its two largest units.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// Time since a moment of Unix time in milliseconds.
fn since(unix_ms: u64) -> String {
    let moment = UNIX_EPOCH + Duration::from_millis(unix_ms);
    let age = SystemTime::now().duration_since(moment);
    span(age.unwrap_or_default().as_secs())
}

/// How much of a list is shown.
fn footer(page: &Value) -> String {
    let (shown, total) = (items(page).len() as u64, number(page, "total"));
    match shown == total {
        true => format!("{total} in all\n"),
        false => format!("{shown} of {total}, from {}\n", number(page, "offset")),
    }
}

/// The list of sessions.
pub(crate) fn sessions(page: &Value) -> String {
    let mut table = table(&[
        "ID",
        "USER",
        "STATE",
        "FRAMED-IP",
        "NAT",
        "MAC",
        "VLAN",
        "POLICY",
        "FILTER",
        "WORKER",
        "SINCE",
        "UP",
        "DOWN",
    ]);
    for session in items(page) {
        table.add_row([
            cell(session, &["id"]),
            cell(session, &["user"]),
            cell(session, &["state"]),
            cell(session, &["framed_ip"]),
            nat(session),
            cell(session, &["mac"]),
            vlans(session),
            policy(session),
            cell(session, &["policy", "filter"]),
            cell(session, &["worker"]),
            since(number(session, "started_unix_ms")),
            bytes(number(session, "upstream_bytes")),
            bytes(number(session, "downstream_bytes")),
        ]);
    }
    finish(table, &[9, 10, 11, 12]) + &footer(page)
}

/// What a session may do: a policy of the configuration or one of its own.
fn policy(session: &Value) -> String {
    let Some(policy @ Value::Object(_)) = session.get("policy") else {
        return "-".to_owned();
    };
    let name = match policy.get("name") {
        Some(Value::String(_)) => cell(policy, &["name"]),
        _ => "(own)".to_owned(),
    };
    match policy.get("published") {
        Some(Value::Bool(false)) => format!("{name}, not published"),
        _ => name,
    }
}

/// Ended sessions.
pub(crate) fn history(page: &Value) -> String {
    let mut table = table(&[
        "ID",
        "USER",
        "CAUSE",
        "FRAMED-IP",
        "NAT",
        "MAC",
        "ENDED",
        "LASTED",
        "UP",
        "DOWN",
    ]);
    for session in items(page) {
        let (start, end) = (
            number(session, "started_unix_ms"),
            number(session, "ended_unix_ms"),
        );
        table.add_row([
            cell(session, &["id"]),
            cell(session, &["user"]),
            cell(session, &["cause"]),
            cell(session, &["framed_ip"]),
            nat(session),
            cell(session, &["mac"]),
            since(end) + " ago",
            span(end.saturating_sub(start) / 1_000),
            bytes(number(session, "upstream_bytes")),
            bytes(number(session, "downstream_bytes")),
        ]);
    }
    finish(table, &[6, 7, 8, 9]) + &footer(page)
}

/// One session, a line for each thing known of it.
pub(crate) fn details(session: &Value) -> String {
    let mut rows = Vec::new();
    flatten("", session, &mut rows);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([name, value]);
    }
    finish(table, &[])
}

fn flatten(prefix: &str, value: &Value, rows: &mut Vec<(String, String)>) {
    let Value::Object(map) = value else {
        let text = match value {
            Value::Array(all) => {
                let all: Vec<_> = all.iter().map(|item| cell(item, &[])).collect();
                all.join(" ")
            }
            _ => cell(value, &[]),
        };
        rows.push((prefix.to_owned(), text));
        return;
    };
    for (key, value) in map {
        let name = match prefix {
            "" => key.clone(),
            _ => format!("{prefix}.{key}"),
        };
        match (key.as_str(), value) {
            (key, Value::Number(n)) if key.ends_with("_magic") => {
                let magic = n.as_u64().unwrap_or(0);
                rows.push((name, format!("{magic:#010x}")));
            }
            _ => flatten(&name, value, rows),
        }
    }
}

/// Drop reasons, the most frequent first.
pub(crate) fn drops(drops: &Value, all: bool) -> String {
    let mut drops: Vec<_> = (list(drops).iter())
        .filter(|drop| all || number(drop, "total") != 0)
        .collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(number(drop, "total")));
    if drops.is_empty() {
        return "no frame was dropped\n".to_owned();
    }
    let mut table = table(&["REASON", "BY", "TOTAL", "PER WORKER", "HOST", "MEANING"]);
    for drop in drops {
        let workers = drop.get("workers").map_or(&[][..], list);
        let workers: Vec<_> = workers.iter().map(|count| cell(count, &[])).collect();
        table.add_row([
            cell(drop, &["reason"]),
            cell(drop, &["source"]),
            cell(drop, &["total"]),
            workers.join(" "),
            cell(drop, &["host"]),
            cell(drop, &["help"]),
        ]);
    }
    finish(table, &[2, 4])
}

/// Workers.
pub(crate) fn workers(workers: &Value) -> String {
    let mut table = table(&[
        "WORKER",
        "RUNS",
        "CORE",
        "SESSIONS",
        "NAT",
        "BUSY",
        "CYCLES/PACKET",
        "FORWARDED UP",
        "FORWARDED DOWN",
        "HANDED OVER",
        "DROPS",
        "PUNT",
        "INJECT",
        "EVENTS",
    ]);
    for worker in list(workers) {
        let counter = |label| cell(worker, &["counters", label]);
        table.add_row([
            cell(worker, &["worker"]),
            cell(worker, &["present"]),
            cell(worker, &["core"]),
            cell(worker, &["sessions"]),
            cell(worker, &["nat_mappings"]),
            percent(worker, "busy_ratio"),
            rounded(worker, "cycles_per_packet"),
            counter("forwarded_upstream"),
            counter("forwarded_downstream"),
            counter("handed_over"),
            cell(worker, &["drops"]),
            cell(worker, &["rings", "punt"]),
            cell(worker, &["rings", "inject"]),
            cell(worker, &["rings", "events"]),
        ]);
    }
    finish(table, &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
}

/// Ports.
pub(crate) fn ports(ports: &Value) -> String {
    let mut table = table(&[
        "PORT", "ROLE", "LINK", "MBIT/S", "MAC", "MTU", "DRIVER", "STEERING", "OFFLOADS", "TWIN",
        "IN", "OUT", "MISSED", "ERRORS",
    ]);
    for port in list(ports) {
        let is = |key| port.get(key).and_then(Value::as_bool) == Some(true);
        let link = match (is("started"), is("link_up")) {
            (false, _) => "not started",
            (true, false) => "down",
            (true, true) => "up",
        };
        let stats = port.get("stats").unwrap_or(&Value::Null);
        table.add_row([
            cell(port, &["name"]),
            cell(port, &["role"]),
            link.to_owned(),
            cell(port, &["link_mbps"]),
            cell(port, &["mac"]),
            cell(port, &["mtu"]),
            cell(port, &["driver"]),
            cell(port, &["steering"]),
            words(port, "offloads"),
            cell(port, &["twin_ifindex"]),
            cell(stats, &["ipackets"]),
            cell(stats, &["opackets"]),
            cell(stats, &["imissed"]),
            (number(stats, "ierrors") + number(stats, "oerrors")).to_string(),
        ]);
    }
    finish(table, &[3, 5, 9, 10, 11, 12, 13])
}

/// Address pools with their IPv6 prefixes, and NAT pools.
pub(crate) fn pools(pools: &Value) -> String {
    let mut address = table(&["ADDRESS POOL", "USED", "TOTAL", "NAT"]);
    for pool in pools.get("address").map_or(&[][..], list) {
        let text = |key| cell(pool, &[key]);
        address.add_row([text("name"), text("used"), text("total"), text("nat")]);
    }
    let mut out = finish(address, &[1, 2]);
    let prefixes = pools.get("prefixes").map_or(&[][..], list);
    if !prefixes.is_empty() {
        let mut table = table(&["IPV6 PREFIXES", "USED", "TOTAL"]);
        for pool in prefixes {
            let text = |key| cell(pool, &[key]);
            table.add_row([text("name"), text("used"), text("total")]);
        }
        out = out + "\n" + &finish(table, &[1, 2]);
    }
    let translated = pools.get("nat").map_or(&[][..], list);
    if translated.is_empty() {
        return out;
    }
    let mut blocks = table(&["NAT POOL", "BLOCKS USED", "RESTING", "TOTAL"]);
    for pool in translated {
        let text = |key| cell(pool, &[key]);
        blocks.add_row([text("name"), text("used"), text("resting"), text("total")]);
    }
    out + "\n" + &finish(blocks, &[1, 2, 3])
}

/// A committed rate and burst.
fn rate(policy: &Value, direction: &str) -> String {
    let Some(rate @ Value::Object(_)) = policy.get(direction) else {
        return "-".to_owned();
    };
    let burst = bytes(number(rate, "burst_bytes"));
    format!("{} kbit/s, {burst}", number(rate, "rate_kbps"))
}

/// Policies of the configuration.
pub(crate) fn policies(policies: &Value) -> String {
    let mut table = table(&[
        "POLICY",
        "UP",
        "DOWN",
        "SOURCE CHECK",
        "MSS CLAMP",
        "FILTER",
        "SESSIONS",
    ]);
    for policy in list(policies) {
        table.add_row([
            cell(policy, &["name"]),
            rate(policy, "up"),
            rate(policy, "down"),
            cell(policy, &["source_check"]),
            cell(policy, &["mss_clamp"]),
            cell(policy, &["filter"]),
            cell(policy, &["sessions"]),
        ]);
    }
    finish(table, &[6])
}

/// Filters of the configuration, a line for each rule.
pub(crate) fn filters(filters: &Value) -> String {
    let mut table = table(&[
        "FILTER",
        "DIRECTION",
        "ACTION",
        "PROTOCOL",
        "REMOTE",
        "REMOTE PORTS",
        "LOCAL PORTS",
        "SESSIONS",
    ]);
    for filter in list(filters) {
        for direction in ["up", "down"] {
            for rule in filter.get(direction).map_or(&[][..], list) {
                table.add_row([
                    cell(filter, &["name"]),
                    direction.to_owned(),
                    cell(rule, &["action"]),
                    cell(rule, &["protocol"]),
                    cell(rule, &["remote"]),
                    range(rule, "remote_ports"),
                    range(rule, "local_ports"),
                    cell(filter, &["sessions"]),
                ]);
            }
            let other = cell(filter, &[&format!("other_{direction}")]);
            let any = || "any".to_owned();
            table.add_row([
                cell(filter, &["name"]),
                direction.to_owned(),
                other,
                any(),
                any(),
                any(),
                any(),
                cell(filter, &["sessions"]),
            ]);
        }
    }
    finish(table, &[7])
}

/// First and last port.
fn range(rule: &Value, key: &str) -> String {
    let ports: Vec<_> = (rule.get(key).map_or(&[][..], list).iter())
        .map(|port| cell(port, &[]))
        .collect();
    match &ports[..] {
        [first, last] if first == last => first.clone(),
        [first, last] => format!("{first}-{last}"),
        _ => "-".to_owned(),
    }
}

/// Words of a list.
fn words(value: &Value, key: &str) -> String {
    let words: Vec<_> = (value.get(key).map_or(&[][..], list).iter())
        .map(|word| cell(word, &[]))
        .collect();
    match words.is_empty() {
        true => "-".to_owned(),
        false => words.join(","),
    }
}

/// A share as whole percent.
fn percent(value: &Value, key: &str) -> String {
    let share = value.get(key).and_then(Value::as_f64);
    share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn rounded(value: &Value, key: &str) -> String {
    let number = value.get(key).and_then(Value::as_f64);
    number.map_or("-".to_owned(), |number| format!("{number:.0}"))
}

/// Health.
pub(crate) fn health(health: &Value) -> String {
    let mut table = table(&["COMPONENT", "STATUS", "DETAIL"]);
    for component in health.get("components").map_or(&[][..], list) {
        let text = |key| cell(component, &[key]);
        table.add_row([text("name"), text("status"), text("detail")]);
    }
    format!("{}\n\n{}", cell(health, &["status"]), finish(table, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn units_are_those_a_person_reads() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.0 kB");
        assert_eq!(bytes(999_960), "1.0 MB");
        assert_eq!(bytes(123_456_789_012), "123.5 GB");
        assert_eq!(bytes(u64::MAX), "18.4 EB");
        assert_eq!(span(59), "59s");
        assert_eq!(span(3_599), "59m59s");
        assert_eq!(span(90_000), "1d01h");
    }

    #[test]
    fn a_session_is_one_line_and_a_name_cannot_act_on_the_terminal() {
        let page = json!({"total": 5, "offset": 1, "items": [{
            "id": "access0-7", "user": "al\u{1b}[2Jice", "state": "forwarding",
            "framed_ip": "100.64.0.2", "mac": "02:00:00:00:00:01", "s_vlan": 100, "c_vlan": 7,
            "nat": {"address": "198.51.100.1", "first_port": 1024, "last_port": 2047,
                    "further": [{"first_port": 9216, "last_port": 10239}]},
            "worker": 1, "started_unix_ms": 0, "upstream_bytes": 1_500, "downstream_bytes": 0
        }]});
        let text = sessions(&page);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        for part in [
            "access0-7",
            "198.51.100.1:1024-2047,9216-10239",
            "100.7",
            "1.5 kB",
        ] {
            assert!(lines[1].contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'));
        assert_eq!(lines[2], "1 of 5, from 1");
    }

    #[test]
    fn a_policy_of_a_session_s_own_and_one_that_is_not_published_are_told_from_none() {
        let shown = |policy: Value| super::policy(&json!({ "policy": policy }));
        assert_eq!(shown(Value::Null), "-");
        assert_eq!(shown(json!({"name": "gold", "published": true})), "gold");
        assert_eq!(shown(json!({"name": null, "published": true})), "(own)");
        let none = shown(json!({"name": "gold", "published": false}));
        assert_eq!(none, "gold, not published");
    }

    #[test]
    fn drops_that_never_happened_are_left_out_unless_asked_for() {
        let all = json!([
            {"reason": "no_route", "source": "dataplane", "total": 2, "workers": [2, 0], "host": 0, "help": "No route."},
            {"reason": "ttl_expired", "source": "dataplane", "total": 9, "workers": [9, 0], "host": 0, "help": "TTL."},
            {"reason": "not_for_us", "source": "dataplane", "total": 0, "workers": [0, 0], "host": 0, "help": "Not."}
        ]);
        let text = drops(&all, false);
        assert!(!text.contains("not_for_us"));
        assert!(text.find("ttl_expired") < text.find("no_route"), "{text}");
        assert!(drops(&all, true).contains("not_for_us"));
        assert_eq!(drops(&json!([]), false), "no frame was dropped\n");
    }

    #[test]
    fn policies_and_filters_are_a_line_for_each_thing_they_say() {
        let text = policies(&json!([
            {"name": "gold", "up": {"rate_kbps": 20_000, "burst_bytes": 250_000}, "down": null,
             "source_check": true, "mss_clamp": false, "filter": "kids", "sessions": 7}
        ]));
        for part in ["gold", "20000 kbit/s, 250.0 kB", "yes", "no", "kids", "7"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = filters(
            &json!([{"name": "kids", "other_up": "accept", "other_down": "drop", "sessions": 1,
            "down": [], "up": [{"action": "drop", "protocol": 6, "remote": "198.51.100.0/24",
            "remote_ports": [25, 25], "local_ports": [1, 9]}]}]),
        );
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        for part in ["up", "drop", "6", "198.51.100.0/24", "25", "1-9"] {
            assert!(lines[1].contains(part), "{part}: {text}");
        }
        assert!(lines[3].contains("down") && lines[3].contains("drop"));
    }

    #[test]
    fn pools_are_shown_with_their_ipv6_prefixes() {
        let text = pools(&json!({
            "address": [{"name": "home", "used": 1, "total": 253, "nat": null}],
            "prefixes": [{"name": "home ipv6.delegated", "used": 5, "total": 16}],
            "nat": []
        }));
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[3].contains("IPV6 PREFIXES"), "{text}");
        for part in ["home ipv6.delegated", "5", "16"] {
            assert!(lines[4].contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn details_are_flat_and_magic_numbers_hexadecimal() {
        let text = details(
            &json!({"id": "access0-7", "ppp": {"our_magic": 0x1234, "dns": ["9.9.9.9", "1.1.1.1"]}}),
        );
        assert!(text.contains("ppp.our_magic"), "{text}");
        assert!(text.contains("0x00001234"), "{text}");
        assert!(text.contains("9.9.9.9 1.1.1.1"), "{text}");
    }

    #[test]
    fn an_answer_with_nothing_in_it_is_shown_without_complaint() {
        for show in [
            sessions, history, details, workers, ports, pools, policies, filters, health,
        ] {
            show(&Value::Null);
            show(&json!([{}]));
            show(
                &json!({"items": [{}], "address": [{}], "prefixes": [{}], "nat": [{}], "components": [{}]}),
            );
        }
    }
}
