//! The transition table, cell by cell, against the table of RFC 1661 section 4.1 in text form.

#![allow(clippy::unwrap_used, reason = "a test")]
use bng_pppoe::automaton::{Action, Event, State, transition};

/// Rows in the RFC's order; cells for states 0 to 9, `-` where the RFC has a dash, footnote letters left out.
const RFC_1661_4_1: &str = "
Up    2      irc,scr/6  -          -               -      -      -          -          -          -
Down  -      -          0          tls/1           0      1      1          1          1          tld/1
Open  tls/1  1          irc,scr/6  3               5      5      6          7          8          9
Close 0      tlf/0      2          2               4      4      irc,str/4  irc,str/4  irc,str/4  tld,irc,str/4
TO+   -      -          -          -               str/4  str/5  scr/6      scr/6      scr/8      -
TO-   -      -          -          -               tlf/2  tlf/3  tlf/3      tlf/3      tlf/3      -
RCR+  -      -          sta/2      irc,scr,sca/8   4      5      sca/8      sca,tlu/9  sca/8      tld,scr,sca/8
RCR-  -      -          sta/2      irc,scr,scn/6   4      5      scn/6      scn/7      scn/6      tld,scr,scn/6
RCA   -      -          sta/2      sta/3           4      5      irc/7      scr/6      irc,tlu/9  tld,scr/6
RCN   -      -          sta/2      sta/3           4      5      irc,scr/6  scr/6      irc,scr/8  tld,scr/6
RTR   -      -          sta/2      sta/3           sta/4  sta/5  sta/6      sta/6      sta/6      tld,zrc,sta/5
RTA   -      -          2          3               tlf/2  tlf/3  6          6          8          tld,scr/6
RUC   -      -          scj/2      scj/3           scj/4  scj/5  scj/6      scj/7      scj/8      scj/9
RXJ+  -      -          2          3               4      5      6          6          8          9
RXJ-  -      -          tlf/2      tlf/3           tlf/2  tlf/3  tlf/3      tlf/3      tlf/3      tld,irc,str/5
RXR   -      -          2          3               4      5      6          7          8          ser/9
";

fn action_name(action: Action) -> &'static str {
    match action {
        Action::Tlu => "tlu",
        Action::Tld => "tld",
        Action::Tls => "tls",
        Action::Tlf => "tlf",
        Action::Irc => "irc",
        Action::Zrc => "zrc",
        Action::Scr => "scr",
        Action::Sca => "sca",
        Action::Scn => "scn",
        Action::Str => "str",
        Action::Sta => "sta",
        Action::Scj => "scj",
        Action::Ser => "ser",
    }
}

fn cell(state: State, event: Event) -> String {
    let Some((actions, next)) = transition(state, event) else {
        return "-".into();
    };
    let next = State::ALL.iter().position(|s| *s == next).unwrap();
    if actions.is_empty() {
        return next.to_string();
    }
    let names: Vec<_> = actions.iter().copied().map(action_name).collect();
    format!("{}/{next}", names.join(","))
}

#[test]
fn every_cell_is_the_cell_of_rfc_1661() {
    let rows: Vec<&str> = RFC_1661_4_1.trim().lines().collect();
    assert_eq!(rows.len(), Event::ALL.len());
    let mut checked = 0;
    for (row, event) in rows.iter().zip(Event::ALL) {
        let mut cells = row.split_whitespace();
        let name = cells.next().unwrap();
        for state in State::ALL {
            let expected = cells.next().unwrap();
            assert_eq!(
                cell(state, event),
                expected,
                "event {name} in {}",
                state.name()
            );
            checked += 1;
        }
        assert_eq!(cells.next(), None, "row {name}");
    }
    assert_eq!(checked, 160);
}

#[test]
fn the_restart_timer_runs_from_closing_to_ack_sent() {
    let running: Vec<_> = State::ALL
        .iter()
        .filter(|s| s.runs_restart_timer())
        .map(|s| s.name())
        .collect();
    assert_eq!(
        running,
        ["Closing", "Stopping", "Req-Sent", "Ack-Rcvd", "Ack-Sent"]
    );
}
