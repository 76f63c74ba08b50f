//! Coalescing: settings, ports, runs, and the reasons of frames and runs.

use serde_json::Value;

use super::{cell, finish, list, number, table};

/// How many reasons are shown unless all are asked for.
const TOP: usize = 5;

/// Everything about coalescing; of the reasons the most frequent, or all.
pub(crate) fn coalescing(view: &Value, all: bool) -> String {
    let empty = Value::Null;
    let part = |key| view.get(key).unwrap_or(&empty);
    [
        settings(part("settings")),
        ports(part("ports")),
        workers(part("workers"), part("total")),
        sizes(part("total")),
        reasons("FRAMES LEFT ALONE", part("passed"), all),
        reasons("RUNS ENDED", part("ended"), all),
    ]
    .join("\n")
}

fn settings(settings: &Value) -> String {
    let mut table = table(&["SETTING", "VALUE"]);
    for direction in ["upstream", "downstream"] {
        table.add_row([
            direction.to_owned(),
            chosen(settings, &[(direction, "tcp"), (direction, "udp")]),
        ]);
    }
    table.add_row([
        "families".to_owned(),
        chosen(settings, &[("", "ipv4"), ("", "ipv6")]),
    ]);
    let hold = match settings.get("hold_us").and_then(Value::as_u64) {
        Some(0) => "until the burst ends".to_owned(),
        Some(hold) => format!("{hold} us"),
        None => "-".to_owned(),
    };
    table.add_row(["hold time".to_owned(), hold]);
    for (name, key) in [
        ("most frames", "max_frames"),
        ("checksums verified in software", "verify_checksums"),
    ] {
        table.add_row([name.to_owned(), cell(settings, &[key])]);
    }
    finish(table, &[])
}

/// The names of those that are true, or `off`. A name may be in a section.
fn chosen(settings: &Value, keys: &[(&str, &str)]) -> String {
    let value = |(section, key): &(&str, &str)| match *section {
        "" => settings.get(key),
        section => settings.get(section).and_then(|it| it.get(key)),
    };
    let values: Vec<_> = keys.iter().map(value).collect();
    if values.iter().all(Option::is_none) {
        return "-".to_owned();
    }
    let chosen = keys.iter().zip(values);
    let chosen = chosen.filter(|(_, value)| *value == Some(&Value::Bool(true)));
    let names: Vec<_> = chosen.map(|((_, name), _)| *name).collect();
    match names.is_empty() {
        true => "off".to_owned(),
        false => names.join(","),
    }
}

fn ports(ports: &Value) -> String {
    let mut table = table(&["PORT", "ROLE", "COALESCING", "SEGMENTS", "TWIN", "WHY"]);
    for port in list(ports) {
        let text = |key| cell(port, &[key]);
        table.add_row([
            text("name"),
            text("role"),
            text("coalescing"),
            text("segmentation"),
            text("twin_offloads"),
            text("segmentation_reason"),
        ]);
    }
    finish(table, &[])
}

fn workers(workers: &Value, total: &Value) -> String {
    let mut table = table(&[
        "WORKER",
        "CANDIDATES",
        "MERGED",
        "SINGLE",
        "SUPER-PACKETS",
        "FRAMES/SUPER",
        "TO PORT",
        "TO KERNEL",
        "FROM KERNEL",
    ]);
    let mut row = |name: String, runs: &Value| {
        let text = |key| cell(runs, &[key]);
        let ratio = runs.get("frames_per_super_packet").and_then(Value::as_f64);
        table.add_row([
            name,
            text("candidates"),
            text("merged"),
            text("single"),
            text("super_packets"),
            ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.1}")),
            text("sent_to_port"),
            text("sent_to_host"),
            text("from_host"),
        ]);
    };
    for worker in list(workers) {
        row(cell(worker, &["worker"]), worker);
    }
    row("all".to_owned(), total);
    finish(table, &[1, 2, 3, 4, 5, 6, 7, 8])
}

fn sizes(total: &Value) -> String {
    let mut table = table(&["FRAMES", "SUPER-PACKETS"]);
    let mut above = 1;
    for size in total.get("sizes").map_or(&[][..], list) {
        let from = above + 1;
        let frames = match size.get("up_to").and_then(Value::as_u64) {
            Some(up_to) if up_to == from => from.to_string(),
            Some(up_to) => format!("{from} to {up_to}"),
            None => format!("{from} or more"),
        };
        above = number(size, "up_to");
        table.add_row([frames, cell(size, &["super_packets"])]);
    }
    finish(table, &[1])
}

fn reasons(title: &str, reasons: &Value, all: bool) -> String {
    let mut reasons: Vec<_> = (list(reasons).iter())
        .filter(|reason| all || number(reason, "total") != 0)
        .collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse(number(reason, "total")));
    let hidden = match all {
        true => 0,
        false => reasons.len().saturating_sub(TOP),
    };
    reasons.truncate(reasons.len() - hidden);
    let mut table = table(&[title, "TOTAL", "PER WORKER", "MEANING"]);
    for reason in reasons {
        let workers = reason.get("workers").map_or(&[][..], list);
        let workers: Vec<_> = workers.iter().map(|count| cell(count, &[])).collect();
        table.add_row([
            cell(reason, &["reason"]),
            cell(reason, &["total"]),
            workers.join(" "),
            cell(reason, &["help"]),
        ]);
    }
    let mut text = finish(table, &[1]);
    if hidden != 0 {
        text += &format!("and {hidden} more, see --all\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer() -> Value {
        let reason = |n: u64| json!({"reason": format!("end_{n}"), "help": "It ended.", "total": n, "workers": [n, 0]});
        let reasons: Vec<_> = (0..8).map(reason).collect();
        json!({
            "settings": {"on": true, "upstream": {"tcp": true, "udp": true},
                "downstream": {"tcp": false, "udp": false}, "ipv4": true, "ipv6": false,
                "hold_us": 0, "max_frames": 64, "verify_checksums": false},
            "ports": [{"name": "core0", "role": "core", "coalescing": true, "segmentation": "software",
                "segmentation_reason": "what came out was not what should", "twin_offloads": true}],
            "total": {"candidates": 100, "merged": 90, "single": 10, "super_packets": 8,
                "frames_per_super_packet": 11.25, "sent_to_port": 3, "sent_to_host": 5, "from_host": 6,
                "sizes": [{"up_to": 2, "super_packets": 1}, {"up_to": 4, "super_packets": 7},
                    {"up_to": null, "super_packets": 9}]},
            "workers": [{"worker": "0", "candidates": 100, "super_packets": 0,
                "frames_per_super_packet": null}],
            "passed": [],
            "ended": reasons
        })
    }

    #[test]
    fn settings_ratio_and_reasons_are_shown() {
        let text = coalescing(&answer(), false);
        let lines: Vec<_> = (text.lines())
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        for expected in [
            "upstream tcp,udp",
            "downstream off",
            "families ipv4",
            "hold time until the burst ends",
            "checksums verified in software no",
            "core0 core yes software yes what came out was not what should",
            "all 100 90 10 8 11.2 3 5 6",
            "3 to 4 7",
            "5 or more 9",
            "end_7 7 7 0 It ended.",
            "and 2 more, see --all",
        ] {
            assert!(
                lines.iter().any(|line| line == expected),
                "{expected}\n{text}"
            );
        }
        // Those that never happened and those beyond the most frequent.
        for label in ["end_0", "end_1", "end_2"] {
            assert!(!text.contains(label), "{text}");
            assert!(coalescing(&answer(), true).contains(label));
        }
    }

    #[test]
    fn an_answer_with_nothing_in_it_is_shown_without_complaint() {
        for odd in [
            Value::Null,
            json!({}),
            json!({"settings": {}, "ports": [{}], "workers": [{}], "total": {"sizes": [{}]}, "ended": [{}]}),
        ] {
            coalescing(&odd, true);
            coalescing(&odd, false);
        }
    }
}
